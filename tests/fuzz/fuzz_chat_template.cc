// Any bytes as a chat template: parsed and run on a fixed conversation. Nothing
// may crash or run long, and no byte of a message may count as the template's.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/tokenizer/chat_template.h"
#include "kernels/core/status.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using kf::engine::ChatMessage;
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto parsed = kf::engine::ChatTemplate::Parse(source, "<s>", "</s>");
  if (!parsed.ok()) return 0;
  // \x01 is in the messages; where the template lacks it (and any way to spell
  // it), it must stay marked.
  const std::vector<ChatMessage> messages = {
      {"system", "\x01 s \x01"}, {"user", "\x01"}, {"user", "a\x01|b"}};
  const auto text = parsed->Render(messages);
  if (!text.ok() || source.find_first_of("\x01\\") != std::string_view::npos) {
    return 0;
  }
  for (const kf::engine::ByteRange& range : text->TrustedRanges()) {
    const auto part = text->text().substr(range.begin, range.end - range.begin);
    KF_CHECK(part.find('\x01') == std::string_view::npos);
  }
  return 0;
}
