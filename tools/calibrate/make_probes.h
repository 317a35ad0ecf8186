// A calibration's probes, made from a folder of texts by a server's tokenizer.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/calibrate/probe.h"
#include "tools/client_lib/client.h"

namespace kf::tools {

struct ProbeOptions {
  std::string texts;  // folder of .txt files
  size_t facts = 12;
  // Of text around a fact; each of these for two facts in turn.
  std::vector<size_t> fact_bytes = {1500};
  size_t windows = 2;  // stretches of each text
  size_t prompt_tokens = 512;
  size_t forced_tokens = 48;  // >= 2
};

// The texts' stretches, then the facts. Blocks; kInvalidArgument where the
// folder has no text that is long enough.
absl::StatusOr<std::vector<Probe>> MakeProbes(Client& client,
                                              const ProbeOptions& options);

// The probes as a JSON file that tools/calibrate/descend reads:
//   {"model": "...", "texts": "...", "probes":
//     [{"kind": "fact" or "text", "prompt": [ids], "forced": [ids]}, ...]}
std::string ProbesAsJson(const std::vector<Probe>& probes,
                         const std::string& model,
                         const std::string& texts);

}  // namespace kf::tools
