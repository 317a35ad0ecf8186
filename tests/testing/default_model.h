// Where the default model is: $KEYFORMER_TEST_MODEL, else the cache folder that
// scripts/fetch_model.sh fills. Throws if there is none, so that a test that
// needs it fails and says what to do.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace kf::testing {

inline std::string DefaultModelPath() {
  const auto env = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  std::string path = env("KEYFORMER_TEST_MODEL");
  if (path.empty()) {
    const std::string xdg = env("XDG_CACHE_HOME");
    path = (xdg.empty() ? env("HOME") + "/.cache" : xdg) +
           "/keyformer/SmolLM2-135M-Instruct.Q4_1.gguf";
  }
  if (!std::filesystem::exists(path)) {
    throw std::runtime_error("default model not found at " + path +
                             ": run scripts/fetch_model.sh");
  }
  return path;
}

}  // namespace kf::testing
