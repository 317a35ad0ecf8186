// A model's chat template: messages in, prompt text out, each byte marked by
// whether the template or a message wrote it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/tokenizer/jinja_ast.h"
#include "engine/tokenizer/jinja_string.h"
#include "engine/tokenizer/tokenizer.h"

namespace kf::engine {

// Immutable, thread-safe, cheap to copy.
class ChatTemplate {
 public:
  static constexpr size_t kMaxSourceBytes = size_t{256} << 10;

  // kFailedPrecondition: too long, or the line and construct that the template
  // uses and we do not know. The texts of BOS and EOS are empty without one.
  static absl::StatusOr<ChatTemplate> Parse(std::string_view source,
                                            std::string bos_text,
                                            std::string eos_text);

  // The conversation with the generation prompt. Roles and contents are UTF-8.
  // Content is never trusted; a role is if it is one of the four well-known
  // names, since templates build control tokens from them ("<|user|>"). Errors
  // as RunJinja's.
  absl::StatusOr<JinjaString> Render(
      std::span<const ChatMessage> messages) const;

 private:
  std::shared_ptr<const JinjaBody> body_;
  std::string bos_text_;
  std::string eos_text_;
};

}  // namespace kf::engine
