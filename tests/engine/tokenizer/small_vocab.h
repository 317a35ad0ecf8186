// Vocabularies small enough to read, written in memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "tests/testing/gguf_writer.h"

namespace kf::engine {

inline absl::StatusOr<std::unique_ptr<Tokenizer>> LoadWritten(
    const testing::GgufWriter& writer) {
  const std::string bytes = writer.File();
  auto file = GgufFile::Parse(testing::AsBytes(bytes));
  if (!file.ok()) return file.status();
  return Tokenizer::Load(**file);
}

// A byte-level spelling of one byte, as GPT-2 has it.
inline std::string SpellByte(int byte) {
  const auto printable = [](int b) {
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
  };
  int code = byte;
  if (!printable(byte)) {
    code = 0x100;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | (code >> 6)),
          static_cast<char>(0x80 | (code & 0x3F))};
}

// A small vocabulary whose parts a test may change before it is written.
struct SmallVocab {
  std::string model = "gpt2";
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  std::vector<float> scores;
  std::vector<std::string> merges;
  testing::GgufWriter extra;  // further keys

  // 256 byte tokens (ids 0 to 255), "ab" 256, "abc" 257, "<s>" 258 and "</s>"
  // 259 (control), "<u>" 260 and "<u><v>" 261 (user-defined), "<|im_end|>" 262
  // (control), "<s>x" 263 (control).
  static SmallVocab Bpe() {
    SmallVocab vocab;
    for (int b = 0; b < 256; ++b) vocab.Add(SpellByte(b), 1);
    vocab.Add("ab", 1).Add("abc", 1).Add("<s>", 3).Add("</s>", 3);
    vocab.Add("<u>", 4).Add("<u><v>", 4).Add("<|im_end|>", 3).Add("<s>x", 3);
    vocab.merges = {"a b", "ab c"};
    vocab.extra.AddString("tokenizer.ggml.pre", "gpt-2");
    return vocab;
  }

  // "<unk>" 0, "<s>" 1, "</s>" 2, bytes 3 to 258, then the pieces.
  static SmallVocab Spm(const std::vector<std::string>& pieces) {
    SmallVocab vocab;
    vocab.model = "llama";
    vocab.Add("<unk>", 2).Add("<s>", 3).Add("</s>", 3);
    for (int b = 0; b < 256; ++b) {
      static constexpr char kHex[] = "0123456789ABCDEF";
      vocab.Add(std::string("<0x") + kHex[b / 16] + kHex[b % 16] + ">", 6);
    }
    for (const std::string& piece : pieces) vocab.Add(piece, 1);
    for (size_t i = 0; i < vocab.tokens.size(); ++i) {
      vocab.scores.push_back(-static_cast<float>(i));
    }
    vocab.extra.AddUint32("tokenizer.ggml.bos_token_id", 1);
    vocab.extra.AddUint32("tokenizer.ggml.eos_token_id", 2);
    vocab.extra.AddUint32("tokenizer.ggml.unknown_token_id", 0);
    return vocab;
  }

  SmallVocab& Add(const std::string& token, int32_t type) {
    tokens.push_back(token);
    types.push_back(type);
    return *this;
  }

  absl::StatusOr<std::unique_ptr<Tokenizer>> Load() const {
    testing::GgufWriter writer = extra;
    writer.AddString("general.architecture", "none-we-know");
    writer.AddString("tokenizer.ggml.model", model);
    writer.AddStrings("tokenizer.ggml.tokens", tokens);
    if (!types.empty()) {
      writer.AddInt32s("tokenizer.ggml.token_type", types);
    }
    if (!scores.empty()) writer.AddFloat32s("tokenizer.ggml.scores", scores);
    if (model == "gpt2") writer.AddStrings("tokenizer.ggml.merges", merges);
    return LoadWritten(writer);
  }
};

}  // namespace kf::engine
