#include <utility>

#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/utf8.h"

namespace kf::engine {

IncrementalDecoder::IncrementalDecoder(const Tokenizer& tokenizer,
                                       bool keep_special,
                                       bool at_text_start)
    : tokenizer_(tokenizer),
      keep_special_(keep_special),
      whole_text_(at_text_start),
      at_start_(at_text_start) {}

std::string IncrementalDecoder::Push(TokenId id) {
  std::string_view bytes = tokenizer_.TokenBytes(id);
  if (tokenizer_.type(id) == TokenType::kControl) {
    // Encoding begins again behind a control token, artificial space and all.
    at_start_ = whole_text_;
    if (!keep_special_) return {};
  } else if (at_start_ && !bytes.empty()) {
    at_start_ = false;
    if (tokenizer_.strips_leading_space() && bytes[0] == ' ') {
      bytes.remove_prefix(1);
    }
  }
  pending_ += bytes;
  std::string out;
  size_t pos = 0;
  while (pos < pending_.size()) {
    const Utf8Step step = NextUtf8(pending_, pos);
    if (step.kind == Utf8Kind::kIncomplete) break;
    if (step.kind == Utf8Kind::kValid) {
      out.append(pending_, pos, step.length);
    } else {
      out += kReplacementCharacter;
    }
    pos += step.length;
  }
  pending_.erase(0, pos);
  return out;
}

std::string IncrementalDecoder::Finish() {
  const bool cut = !pending_.empty();
  pending_.clear();
  return cut ? std::string(kReplacementCharacter) : std::string();
}

}  // namespace kf::engine
