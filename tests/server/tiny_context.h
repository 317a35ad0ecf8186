// A ConvertContext over the tiny byte-level model: ids 0..255 are the bytes.
#pragma once

#include <memory>
#include <string>

#include "engine/model/gguf.h"
#include "server/convert.h"

namespace kf::testing {

// The context borrows from the other members.
struct TinyContext {
  std::string bytes;
  std::unique_ptr<engine::GgufFile> file;
  std::unique_ptr<engine::Tokenizer> tokenizer;
  server::ConvertContext context;
};

// Served as "tiny", with a context of 512 tokens. `chat_template` false: chat
// is refused.
std::unique_ptr<TinyContext> MakeTinyContext(bool chat_template);

}  // namespace kf::testing
