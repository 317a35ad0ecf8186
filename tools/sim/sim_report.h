// A simulation's numbers as a table for people and as JSON for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/sim/statistics.h"

namespace kf::sim {

// One policy's run.
struct NamedRun {
  std::string policy;
  Statistics statistics;
};

// A column for each run.
std::string RunTable(const std::vector<NamedRun>& runs);
nlohmann::json RunJson(const NamedRun& run);

}  // namespace kf::sim
