// SentencePiece BPE (tokenizer.ggml.model "llama"): pairs merge by the score of
// the token they make; what has no token falls back to its bytes.
//
// Source: SentencePiece, bpe_model.cc.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "engine/tokenizer/merge_queue.h"
#include "engine/tokenizer/text_tokenizer.h"

namespace kf::engine {

class SpmTokenizer : public TextTokenizer {
 public:
  // Requires tokenizer.ggml.{tokens,scores}.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const GgufFile& file);

 private:
  explicit SpmTokenizer(Vocab vocab) : TextTokenizer(std::move(vocab)) {}
  absl::Status ReadScores(const GgufFile& file);
  bool strips_leading_space() const override { return add_space_prefix_; }
  absl::Status EncodeText(std::string_view text,
                          ByteRange range,
                          bool begins_piece,
                          Encoding& out) const override;
  absl::Status EncodeChunk(std::string_view text,
                           std::vector<Symbol>& symbols,
                           Encoding& out) const;

  std::vector<float> scores_;  // per token
  bool add_space_prefix_ = true;
  // No token has a space behind another character, so no merge crosses from a
  // character to a following space and text may be cut there.
  bool cuts_at_spaces_ = true;
};

}  // namespace kf::engine
