// Special tokens, BOS, unknown text and hostile vocabularies, on vocabularies
// small enough to read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/engine/tokenizer/small_vocab.h"
#include "tests/engine/tokenizer/vocab_files.h"
#include "tests/testing/matchers.h"

namespace kf::engine {
namespace {

using ::kf::testing::IsOk;
using ::kf::testing::StatusIs;
using ::testing::ElementsAre;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::vector<TokenId> Ids(const Tokenizer& tokenizer,
                         std::string_view text,
                         const EncodeOptions& options = {}) {
  const auto encoding = tokenizer.Encode(text, options);
  EXPECT_THAT(encoding, IsOk());
  return encoding.ok() ? encoding->ids : std::vector<TokenId>();
}

TEST(BpeRules, UserDefinedAlwaysControlOnAskingLongestFirst) {
  const auto tokenizer = SmallVocab::Bpe().Load();
  ASSERT_THAT(tokenizer, IsOk());
  const Tokenizer& t = **tokenizer;
  EXPECT_THAT(Ids(t, "a<u>abc"), ElementsAre('a', 260, 257));
  EXPECT_THAT(Ids(t, "<u><v><u>"), ElementsAre(261, 260));
  EXPECT_THAT(Ids(t, "<s>"), ElementsAre('<', 's', '>'));
  const EncodeOptions special = {.parse_special = true};
  EXPECT_THAT(Ids(t, "<s>ab<s>x", special), ElementsAre(258, 256, 263));
  EXPECT_THAT(Ids(t, "<s", special), ElementsAre('<', 's'));
  EXPECT_THAT(t.Encode("b<u><s>", special)->offsets, ElementsAre(0, 1, 4));
  EXPECT_EQ(t.Decode(std::vector<TokenId>{258, 'a', 260, 259}, false), "a<u>");
  EXPECT_EQ(t.Decode(std::vector<TokenId>{258, 'a', 260, 259}, true),
            "<s>a<u></s>");
}

TEST(BpeRules, BosAsTheFileSays) {
  SmallVocab vocab = SmallVocab::Bpe();
  EXPECT_THAT(Ids(**vocab.Load(), "a"), ElementsAre('a'));  // gpt2: none
  vocab.extra.AddBool("tokenizer.ggml.add_bos_token", true);
  EXPECT_THAT(vocab.Load(), StatusIs(kInvalid, "bos_token_id: missing"));
  vocab.extra.AddUint32("tokenizer.ggml.bos_token_id", 258);
  const auto tokenizer = vocab.Load();
  ASSERT_THAT(tokenizer, IsOk());
  EXPECT_THAT(Ids(**tokenizer, "a"), ElementsAre(258, 'a'));
  EXPECT_THAT(Ids(**tokenizer, "a", {.add_bos = false}), ElementsAre('a'));
  EXPECT_THAT((*tokenizer)->Encode("ab", {})->offsets, ElementsAre(0, 0));
  EXPECT_THAT(Ids(**tokenizer, ""), ElementsAre(258));
  // Llama-3 files leave it to the pre-tokeniser's default.
  EXPECT_EQ(Ids(*LoadVocab("llama-bpe"), "")[0], 128000);
  EXPECT_EQ(Ids(*LoadVocab("llama-spm"), "")[0], 1);
  EXPECT_TRUE(Ids(*LoadVocab("qwen2"), "").empty());
}

TEST(BpeRules, TextMustBeUtf8AndMayHoldNul) {
  const auto tokenizer = SmallVocab::Bpe().Load();
  ASSERT_THAT(tokenizer, IsOk());
  EXPECT_THAT((*tokenizer)->Encode("ab\xC3", {}),
              StatusIs(kInvalid, "text: not UTF-8 at byte 2"));
  EXPECT_THAT((*tokenizer)->Encode("\xED\xA0\x80", {}),
              StatusIs(kInvalid, "byte 0"));
  EXPECT_THAT(Ids(**tokenizer, std::string_view("a\0b", 3)),
              ElementsAre('a', 0, 'b'));
}

TEST(BpeRules, AByteWithoutATokenIsAnErrorNeverAControlToken) {
  SmallVocab vocab = SmallVocab::Bpe();
  vocab.tokens['z'] = "zz";
  EXPECT_THAT((*vocab.Load())->Encode("az", {}),
              StatusIs(kInvalid, "7a (hexadecimal) at byte 1"));
  SmallVocab control = vocab;
  control.extra.AddUint32("tokenizer.ggml.unknown_token_id", 258);
  EXPECT_THAT((*control.Load())->Encode("az", {}), StatusIs(kInvalid, "7a"));
  vocab.types['y'] = 2;
  vocab.extra.AddUint32("tokenizer.ggml.unknown_token_id", 'y');
  EXPECT_THAT(Ids(**vocab.Load(), "az"), ElementsAre('a', 'y'));
}

TEST(BpeRules, EndOfGeneration) {
  SmallVocab vocab = SmallVocab::Bpe();
  vocab.extra.AddUint32("tokenizer.ggml.eos_token_id", 259);
  vocab.extra.AddUint32("tokenizer.ggml.eot_token_id", 260);
  vocab.extra.AddUint32("tokenizer.ggml.eom_token_id", 261);
  const auto t = vocab.Load();
  ASSERT_THAT(t, IsOk());
  for (const TokenId id : {259, 260, 261, 262}) {
    EXPECT_TRUE((*t)->IsEndOfGeneration(id)) << id;
  }
  EXPECT_FALSE((*t)->IsEndOfGeneration(258));
  EXPECT_FALSE((*t)->IsEndOfGeneration('a'));
}

TEST(SpmRules, MergesByScoreWithSpacePrefixAndByteFallback) {
  const SmallVocab vocab = SmallVocab::Spm(
      {"\u2581", "a", "b", "c", "bc", "ab", "\u2581a", "\u2581ab"});
  const auto tokenizer = vocab.Load();
  ASSERT_THAT(tokenizer, IsOk());
  const Tokenizer& t = **tokenizer;
  const EncodeOptions bare = {.add_bos = false};
  // " abc": "bc" (score -263) merges before "ab" (-264), then " a" (-265).
  EXPECT_THAT(Ids(t, "abc"), ElementsAre(1, 265, 263));
  EXPECT_THAT(Ids(t, "ab", bare), ElementsAre(266));
  EXPECT_THAT(Ids(t, "a a", bare), ElementsAre(265, 265));
  EXPECT_THAT(Ids(t, "\u00E9", bare), ElementsAre(259, 3 + 0xC3, 3 + 0xA9));
  EXPECT_THAT(Ids(t, "", bare), ElementsAre());
  EXPECT_THAT(t.Encode("a a\u00E9", bare)->offsets, ElementsAre(0, 1, 3, 4));
  // Control and byte tokens are never spelt by text.
  for (const std::string text : {"<s>", "<0x41>", "a  b ", "\u2581"}) {
    const auto ids = Ids(t, text);
    EXPECT_THAT(std::vector<TokenId>(ids.begin() + 1, ids.end()),
                ::testing::Each(::testing::Gt(2)));
    EXPECT_EQ(t.Decode(ids, false), text);
    EXPECT_EQ(t.Decode(Ids(t, text, bare), true), text);
  }
  // Behind a control token a piece begins anew.
  EXPECT_THAT(Ids(t, "a</s>a", {.parse_special = true}),
              ElementsAre(1, 265, 2, 265));
  EXPECT_EQ(t.Decode(std::vector<TokenId>{1, 265, 2, 265}, true), "<s>a</s>a");
}

TEST(SpmRules, NoSpacePrefixWhenTheFileSaysSo) {
  SmallVocab vocab = SmallVocab::Spm({"\u2581", "a"});
  vocab.extra.AddBool("tokenizer.ggml.add_space_prefix", false);
  vocab.extra.AddBool("tokenizer.ggml.add_bos_token", false);
  const auto t = vocab.Load();
  ASSERT_THAT(t, IsOk());
  EXPECT_THAT(Ids(**t, "a"), ElementsAre(260));
  EXPECT_EQ((*t)->Decode(Ids(**t, " a"), false), " a");
}

TEST(SpmRules, UnknownTextWithoutByteTokens) {
  SmallVocab vocab;
  vocab.model = "llama";
  vocab.Add("<unk>", 2).Add("<s>", 3).Add("\u2581", 1).Add("a", 1);
  vocab.scores = {0, 0, -1, -2};
  vocab.extra.AddUint32("tokenizer.ggml.bos_token_id", 1);
  EXPECT_THAT((*vocab.Load())->Encode("a\u00E9", {}),
              StatusIs(kInvalid, "no token for the byte c3"));
  vocab.extra.AddUint32("tokenizer.ggml.unknown_token_id", 0);
  EXPECT_THAT(Ids(**vocab.Load(), "a\u00E9"), ElementsAre(1, 2, 3, 0));
}

TEST(SpmRules, TokensWithSpacesInsideStillMerge) {
  SmallVocab vocab = SmallVocab::Spm({"\u2581", "a", "a\u2581",
                                      "a\u2581"
                                      "a"});
  const auto t = vocab.Load();
  ASSERT_THAT(t, IsOk());
  EXPECT_THAT(Ids(**t, "a a"), ElementsAre(1, 259, 262));
}

TEST(HostileVocab, LoadErrorsNameTheKeyAndTheValue) {
  const auto expect = [](const auto& change, const std::string& part) {
    SmallVocab vocab = SmallVocab::Bpe();
    change(vocab);
    EXPECT_THAT(vocab.Load(), StatusIs(kInvalid, part));
  };
  using V = SmallVocab;
  expect([](V& v) { v.model = "bert"; }, "\"bert\" is not supported");
  expect([](V& v) { v.model = "llama"; }, "tokenizer.ggml.scores");
  expect([](V& v) { v.extra = {}; }, "tokenizer.ggml.pre");
  expect(
      [](V& v) {
        v.extra = {};
        v.extra.AddString("tokenizer.ggml.pre", "viking");
      },
      "\"viking\" is not supported");
  expect([](V& v) { v.types.pop_back(); }, "263 entries for 264 tokens");
  expect([](V& v) { v.types[7] = 9; }, "token_type[7]: 9 is no token type");
  expect([](V& v) { v.tokens[5] = "\xFF"; }, "tokens[5]: not UTF-8");
  expect([](V& v) { v.tokens[258] = std::string(257, 'x'); },
         "tokens[258]: a control or user-defined token of 257 bytes");
  expect([](V& v) { v.tokens[5] = std::string(70000, 'x'); }, "70000 bytes");
  expect([](V& v) { v.merges[1] = "abc"; }, "merges[1]: \"abc\" is not two");
  expect([](V& v) { v.merges[1] = " a"; }, "merges[1]");
  expect([](V& v) { v.merges[1] = "a "; }, "merges[1]");
  expect([](V& v) { v.merges[1] = "a q"; }, "not in the vocabulary");
  expect([](V& v) { v.merges[1] = "\xC3 a"; }, "is not UTF-8");
  // A merge must not lead to a control token.
  expect([](V& v) { v.merges = {"< s"}; }, "not in the vocabulary");
  expect([](V& v) { v.extra.AddUint32("tokenizer.ggml.eos_token_id", 264); },
         "eos_token_id: 264 is no token");
  expect(
      [](V& v) {
        v.extra.AddUint32("tokenizer.ggml.bos_token_id", 4000000000);
      },
      "bos_token_id: 4000000000 is no token");
  expect([](V& v) { v = {}; }, "tokenizer.ggml.pre");
  SmallVocab spm = SmallVocab::Spm({"a"});
  spm.scores[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(spm.Load(), StatusIs(kInvalid, "scores[3]: not a number"));
  spm.scores.pop_back();
  EXPECT_THAT(spm.Load(), StatusIs(kInvalid, "259 entries for 260 tokens"));
  spm = SmallVocab::Spm({"a"});
  spm.tokens[4] = "<0xZZ>";
  EXPECT_THAT(spm.Load(), StatusIs(kInvalid, "tokens[4]: a byte token"));
}

TEST(HostileVocab, DuplicateEmptyAndRepeatedEntriesHaveAMeaning) {
  SmallVocab vocab = SmallVocab::Bpe();
  vocab.Add("ab", 1).Add("", 1).Add("<u>", 4).Add("", 3);
  vocab.merges.insert(vocab.merges.begin() + 1, "a b");
  const auto t = vocab.Load();
  ASSERT_THAT(t, IsOk());
  EXPECT_THAT(Ids(**t, "ab<u>"), ElementsAre(256, 260));  // lowest id
  EXPECT_EQ((*t)->Decode(std::vector<TokenId>{264, 265, 266, 267}, true),
            "ab<u>");
}

}  // namespace
}  // namespace kf::engine
