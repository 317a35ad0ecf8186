// Cuts text into the words that byte-level BPE merges within, by the regular
// expressions that `tokenizer.ggml.pre` names.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/tokenizer/special_matcher.h"

namespace kf::engine {

// Immutable after Create, thread-safe.
class PreTokenizer {
 public:
  // kInvalidArgument for a name we do not know.
  static absl::StatusOr<std::unique_ptr<PreTokenizer>> Create(
      std::string_view name);
  ~PreTokenizer();
  PreTokenizer(const PreTokenizer&) = delete;
  PreTokenizer& operator=(const PreTokenizer&) = delete;

  // The words of `text`, which is UTF-8, in order and without gaps.
  // kInvalidArgument if splitting takes more steps than the limit.
  absl::Status Split(std::string_view text,
                     std::vector<ByteRange>& words) const;

  // The whole word is looked up in the vocabulary before merging.
  bool ignore_merges() const { return ignore_merges_; }
  // Whether a file that does not say so puts BOS in front.
  bool default_add_bos() const { return default_add_bos_; }

 private:
  struct Stages;
  PreTokenizer();

  std::unique_ptr<Stages> stages_;
  bool ignore_merges_ = false;
  bool default_add_bos_ = false;
};

}  // namespace kf::engine
