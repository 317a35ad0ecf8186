// Ids against llama.cpp's vocabulary vectors and the default model's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/engine/tokenizer/vocab_files.h"
#include "tests/testing/matchers.h"

namespace kf::engine {
namespace {

using ::kf::testing::IsOk;

std::vector<std::string> Cases(const std::string& path) {
  const std::string text = ReadFile(path);
  static constexpr std::string_view kSeparator = "\n__ggml_vocab_test__\n";
  std::vector<std::string> cases;
  size_t begin = 0;
  for (size_t end = text.find(kSeparator); end != std::string::npos;
       end = text.find(kSeparator, begin)) {
    cases.push_back(text.substr(begin, end - begin));
    begin = end + kSeparator.size();
  }
  return cases;
}

std::vector<std::vector<TokenId>> Lines(const std::string& path) {
  std::istringstream in(ReadFile(path));
  std::vector<std::vector<TokenId>> lines;
  for (std::string line; std::getline(in, line);) {
    std::istringstream numbers(line);
    lines.emplace_back();
    for (TokenId id = 0; numbers >> id;) lines.back().push_back(id);
  }
  return lines;
}

// Each token's bytes stand at its offset, and the tokens leave no gap.
void ExpectOffsetsSpell(const Tokenizer& tokenizer,
                        const std::string& text,
                        const Encoding& encoding) {
  ASSERT_EQ(encoding.ids.size(), encoding.offsets.size());
  size_t at = 0;
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    std::string_view bytes = tokenizer.TokenBytes(encoding.ids[i]);
    ASSERT_LE(encoding.offsets[i], at);
    // An artificial space is in no text.
    if (i == 0 && bytes.starts_with(' ') &&
        tokenizer.Decode({encoding.ids.data(), 1}, true).size() <
            bytes.size()) {
      bytes.remove_prefix(1);
    }
    ASSERT_EQ(encoding.offsets[i], at);
    ASSERT_EQ(text.substr(at, bytes.size()), bytes);
    at += bytes.size();
  }
  ASSERT_EQ(at, text.size());
}

class VocabTest : public ::testing::TestWithParam<const char*> {};

TEST_P(VocabTest, IdsTextAndOffsetsOfEveryVector) {
  const std::string path =
      DataPath(std::string("vocab/ggml-vocab-") + GetParam() + ".gguf");
  const auto tokenizer = LoadVocab(GetParam());
  const auto cases = Cases(path + ".inp");
  const auto lines = Lines(path + ".out");
  ASSERT_GT(cases.size(), 40U);
  ASSERT_EQ(cases.size(), lines.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(cases[i]);
    const auto encoding = tokenizer->Encode(cases[i], {.add_bos = false});
    ASSERT_THAT(encoding, IsOk());
    EXPECT_EQ(encoding->ids, lines[i]);
    EXPECT_EQ(tokenizer->Decode(encoding->ids, false), cases[i]);
    ExpectOffsetsSpell(*tokenizer, cases[i], *encoding);
  }
}

INSTANTIATE_TEST_SUITE_P(Vocabularies,
                         VocabTest,
                         ::testing::Values("gpt-2",
                                           "llama-bpe",
                                           "llama-spm",
                                           "mpt",
                                           "qwen2",
                                           "starcoder"));

TEST(SmolLmVectors, BothIdListsOfEveryText) {
  for (const auto& vector : ReadJson("smollm2_tokenizer_vectors.json")) {
    const std::string text = vector["text"];
    SCOPED_TRACE(text);
    const auto plain = SmolLm().Encode(text, {});
    ASSERT_THAT(plain, IsOk());
    EXPECT_EQ(plain->ids, vector["ids"].get<std::vector<TokenId>>());
    EXPECT_EQ(SmolLm().Decode(plain->ids, false), text);
    ExpectOffsetsSpell(SmolLm(), text, *plain);
    const auto special = SmolLm().Encode(text, {.parse_special = true});
    ASSERT_THAT(special, IsOk());
    EXPECT_EQ(special->ids,
              vector["ids_parse_special"].get<std::vector<TokenId>>());
    EXPECT_EQ(SmolLm().Decode(special->ids, true), text);
    ExpectOffsetsSpell(SmolLm(), text, *special);
  }
}

TEST(SmolLmVectors, EveryChat) {
  int with_ids = 0;
  for (const auto& vector : ReadJson("smollm2_chat_vectors.json")) {
    std::vector<ChatMessage> messages;
    for (const auto& message : vector["messages"]) {
      messages.push_back({message["role"], message["content"]});
    }
    const std::string rendered = vector["rendered"];
    SCOPED_TRACE(rendered);
    const auto text = SmolLm().RenderChat(messages);
    ASSERT_THAT(text, IsOk());
    EXPECT_EQ(*text, rendered);
    const auto encoding = SmolLm().EncodeChat(messages);
    ASSERT_THAT(encoding, IsOk());
    ExpectOffsetsSpell(SmolLm(), rendered, *encoding);
    if (vector.contains("ids")) {
      ++with_ids;
      EXPECT_EQ(encoding->ids, vector["ids"].get<std::vector<TokenId>>());
    } else {
      const auto controls = std::ranges::count_if(
          encoding->ids,
          [](TokenId id) { return SmolLm().type(id) == TokenType::kControl; });
      EXPECT_EQ(controls, vector["control_ids"].get<int>());
    }
  }
  EXPECT_EQ(with_ids, 20);
}

TEST(SmolLmVectors, ChecksInTheTemplateTheModelHas) {
  EXPECT_TRUE(SmolLm().has_chat_template());
  EXPECT_EQ(SmolLm().eos(), 2);
  EXPECT_TRUE(SmolLm().IsEndOfGeneration(2));   // <|im_end|>
  EXPECT_TRUE(SmolLm().IsEndOfGeneration(0));   // <|endoftext|>
  EXPECT_FALSE(SmolLm().IsEndOfGeneration(1));  // <|im_start|>
  EXPECT_EQ(SmolLm().size(), 49152);
}

TEST(SmolLmVectors, ThreadsShareATokenizer) {
  const std::string text = "Threads 123 share it — don't they?\n\n  yes ";
  const auto want = SmolLm().Encode(text, {});
  ASSERT_THAT(want, IsOk());
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  threads.reserve(wrong.size());
  for (int& count : wrong) {
    threads.emplace_back([&text, &want, &count] {
      for (int i = 0; i < 200; ++i) {
        const auto got = SmolLm().Encode(text, {});
        count += got.ok() && got->ids == want->ids ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ::testing::Each(0));
}

// Quadratic or exponential work would not end within the test's time limit.
TEST(LongTexts, OneWordAndRunsOfSpaces) {
  const size_t size = size_t{1} << 18;
  std::string mixed;
  while (mixed.size() < size) mixed += "a1 \n'S  \t";
  const std::vector<std::string> texts = {std::string(size, 'a'),
                                          std::string(size, ' ') + "x",
                                          std::string(size, ' '),
                                          std::string(size, '\n'),
                                          std::string(size, '1'),
                                          std::string(size, '!'),
                                          mixed};
  for (const char* name : {"gpt-2", "llama-bpe", "mpt", "llama-spm"}) {
    const auto tokenizer = LoadVocab(name);
    for (const std::string& text : texts) {
      const auto encoding = tokenizer->Encode(text, {.add_bos = false});
      ASSERT_THAT(encoding, IsOk());
      EXPECT_EQ(tokenizer->Decode(encoding->ids, false), text);
    }
  }
}

}  // namespace
}  // namespace kf::engine
