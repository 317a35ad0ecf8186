// Any bytes as a model file: parsed, probed as the engine would, its sizes
// read. Nothing may crash, and no read may leave the input.
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/model/gguf.h"
#include "tests/engine/model/gguf_probe.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file =
      kf::engine::GgufFile::Parse(std::as_bytes(std::span(data, size)));
  if (file.ok()) (void)kf::engine::ProbeGguf(**file);
  return 0;
}
