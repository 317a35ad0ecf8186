// The engine's writer of GGUF files under the tests' own names, and a string as
// a parser's input.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "engine/model/gguf_writer.h"

namespace kf::testing {

using engine::GgufWriter;
using engine::RawBytes;
using engine::RawString;

inline std::span<const std::byte> AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace kf::testing
