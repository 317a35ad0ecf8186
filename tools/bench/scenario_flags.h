// The command line of the scenarios: their flags, and running those asked for.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "tools/bench/scenario.h"
#include "tools/client_lib/exit_code.h"
#include "tools/client_lib/interrupt.h"

namespace kf::tools {

class ScenarioFlags {
 public:
  // `app` must not outlive this.
  void AddTo(CLI::App& app);
  bool wanted() const { return !names_.empty(); }

  // Runs them one after another; prints their tables on standard output, and
  // writes {"budget": ...} to `json_path` unless that is empty.
  ExitCode Run(uint64_t seed,
               const std::string& json_path,
               Interrupt& interrupt);

 private:
  absl::Status Resolve();

  std::vector<std::string> names_;
  ScenarioOptions options_;
  std::string steady_;
  std::string whole_;
  std::string stream_;
  std::string small_;
  std::string large_;
  std::string whole_answers_;
  std::string growth_;
  std::string share_;
  std::string neighbour_;
  std::vector<std::string> peer_shapes_;
};

// "2048+512": prompt and answer; "" is no tokens. kInvalidArgument names the
// text.
absl::StatusOr<PlannedRequest> ParseShape(const std::string& text);

// kUnavailable: the file cannot be written.
absl::Status WriteJsonFile(const nlohmann::json& json, const std::string& path);

}  // namespace kf::tools
