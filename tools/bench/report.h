// A run's numbers as a table for people and as JSON for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tools/bench/measurements.h"

namespace kf::tools {

std::string ReportTable(const Measurements& measured);
nlohmann::json ReportJson(const Measurements& measured);

}  // namespace kf::tools
