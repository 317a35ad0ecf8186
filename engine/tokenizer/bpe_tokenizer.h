// Byte-level BPE (tokenizer.ggml.model "gpt2").
//
// Source: GPT-2's encoder.py; the rules of each pre-tokeniser as llama.cpp
// names them.
#pragma once

#include <memory>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "engine/tokenizer/merge_queue.h"
#include "engine/tokenizer/pretokenizer.h"
#include "engine/tokenizer/text_tokenizer.h"

namespace kf::engine {

class BpeTokenizer : public TextTokenizer {
 public:
  // Requires tokenizer.ggml.{pre,tokens,merges}. A merge must name two tokens
  // whose joint text is a token.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const GgufFile& file);

 private:
  BpeTokenizer(Vocab vocab, std::unique_ptr<PreTokenizer> pre);
  absl::Status ReadMerges(const GgufFile& file);
  absl::Status AddMerge(std::string_view merge, uint32_t rank);
  absl::Status EncodeText(std::string_view text,
                          ByteRange range,
                          bool begins_piece,
                          Encoding& out) const override;
  absl::Status EncodeWord(std::string_view text,
                          ByteRange word,
                          std::vector<Symbol>& symbols,
                          Encoding& out) const;

  std::unique_ptr<PreTokenizer> pre_;
  // (left id << 32 | right id) -> what they become and the merge's rank.
  absl::flat_hash_map<uint64_t, Merge<uint32_t>> merges_;
};

}  // namespace kf::engine
