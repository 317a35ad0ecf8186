#include "engine/tokenizer/chat_template.h"

#include <algorithm>
#include <utility>

#include "engine/tokenizer/jinja_interpreter.h"
#include "engine/tokenizer/jinja_parser.h"
#include "engine/tokenizer/utf8.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

constexpr std::string_view kWellKnownRoles[] = {"system", "user", "assistant",
                                                "tool"};

// Jinja's newline_sequence, and its dropping of one line end at the end.
std::string NormalizeLineEnds(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
    } else {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view source,
                                                 std::string bos_text,
                                                 std::string eos_text) {
  if (source.size() > kMaxSourceBytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("the chat template is ", source.size(),
                     " bytes long; at most ", kMaxSourceBytes));
  }
  const size_t valid = ValidUtf8Prefix(source);
  if (valid != source.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the chat template is not UTF-8 at byte ", valid));
  }
  KF_ASSIGN_OR_RETURN(JinjaBody body, ParseJinja(NormalizeLineEnds(source)));
  ChatTemplate result;
  result.body_ = std::make_shared<const JinjaBody>(std::move(body));
  result.bos_text_ = std::move(bos_text);
  result.eos_text_ = std::move(eos_text);
  return result;
}

absl::StatusOr<JinjaString> ChatTemplate::Render(
    std::span<const ChatMessage> messages) const {
  JinjaList list;
  for (const ChatMessage& message : messages) {
    const bool well_known = std::ranges::find(kWellKnownRoles, message.role) !=
                            std::end(kWellKnownRoles);
    JinjaDict members;
    members.emplace("role", JinjaValue::String(message.role, well_known));
    members.emplace("content", JinjaValue::String(message.content, false));
    KF_ASSIGN_OR_RETURN(JinjaValue value, JinjaValue::Dict(std::move(members)));
    list.push_back(std::move(value));
  }
  JinjaDict globals;
  KF_ASSIGN_OR_RETURN(globals["messages"], JinjaValue::List(std::move(list)));
  globals["bos_token"] = JinjaValue::String(bos_text_, true);
  globals["eos_token"] = JinjaValue::String(eos_text_, true);
  globals["add_generation_prompt"] = JinjaValue::Bool(true);
  return RunJinja(*body_, globals);
}

}  // namespace kf::engine
