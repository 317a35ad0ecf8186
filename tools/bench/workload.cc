#include "tools/bench/workload.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "kernels/core/status.h"

namespace kf::tools {
namespace {

using nlohmann::json;

// A limit on each length in a trace: past any model's context.
constexpr double kMaxTokens = 1 << 24;

absl::Status LineError(size_t line, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("trace line ", line, ": ", what));
}

absl::StatusOr<double> ReadNumber(const json& object,
                                  const std::string& field,
                                  double low,
                                  double high,
                                  size_t line) {
  const auto found = object.find(field);
  if (found == object.end() || !found->is_number()) {
    return LineError(line, field + ": missing or no number");
  }
  const double value = found->get<double>();
  if (!(value >= low && value <= high)) {
    return LineError(line, absl::StrCat(field, ": ", value, ", want [", low,
                                        ", ", high, "]"));
  }
  return value;
}

absl::StatusOr<PlannedRequest> ParseLine(std::string_view text, size_t line) {
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return LineError(line, "no JSON object");
  KF_ASSIGN_OR_RETURN(const double arrival_ms,
                      ReadNumber(object, "arrival_ms", 0.0, 1e12, line));
  KF_ASSIGN_OR_RETURN(const double prompt, ReadNumber(object, "prompt_tokens",
                                                      1.0, kMaxTokens, line));
  KF_ASSIGN_OR_RETURN(const double output, ReadNumber(object, "output_tokens",
                                                      1.0, kMaxTokens, line));
  return PlannedRequest{.prompt_tokens = static_cast<uint32_t>(prompt),
                        .output_tokens = static_cast<uint32_t>(output),
                        .arrival_s = arrival_ms / 1e3};
}

// Uniform in [0, 1). std's distributions differ between libraries; this one
// does not.
double UnitDraw(std::mt19937_64& random) {
  return static_cast<double>(random() >> 11) * 0x1.0p-53;
}

}  // namespace

absl::StatusOr<std::vector<PlannedRequest>> ParseTrace(std::string_view text) {
  std::vector<PlannedRequest> plan;
  size_t number = 0;
  while (!text.empty()) {
    ++number;
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? "" : text.substr(end + 1);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    KF_ASSIGN_OR_RETURN(const PlannedRequest request, ParseLine(line, number));
    if (!plan.empty() && *request.arrival_s < *plan.back().arrival_s) {
      return LineError(number, "arrival_ms: before the line above");
    }
    plan.push_back(request);
  }
  if (plan.empty()) return absl::InvalidArgumentError("trace: no request");
  return plan;
}

std::vector<PlannedRequest> UniformPlan(size_t count,
                                        uint32_t prompt_tokens,
                                        uint32_t output_tokens,
                                        double rate,
                                        uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<PlannedRequest> plan;
  plan.reserve(count);
  double at = 0.0;
  for (size_t i = 0; i < count; ++i) {
    PlannedRequest request{.prompt_tokens = prompt_tokens,
                           .output_tokens = output_tokens,
                           .arrival_s = std::nullopt};
    if (rate > 0.0) {
      request.arrival_s = at;
      at -= std::log1p(-UnitDraw(random)) / rate;
    }
    plan.push_back(request);
  }
  return plan;
}

PromptMaker::PromptMaker(uint32_t vocabulary,
                         std::vector<uint32_t> text_ids,
                         uint64_t seed)
    : vocabulary_(vocabulary), text_ids_(std::move(text_ids)), random_(seed) {
  KF_CHECK(vocabulary_ > 0 || !text_ids_.empty());
}

std::vector<uint32_t> PromptMaker::Make(uint32_t tokens) {
  std::vector<uint32_t> ids(tokens);
  if (text_ids_.empty()) {
    for (uint32_t& id : ids) {
      id = static_cast<uint32_t>(random_() % vocabulary_);
    }
    return ids;
  }
  size_t at = random_() % text_ids_.size();
  for (uint32_t& id : ids) {
    id = text_ids_[at];
    at = at + 1 == text_ids_.size() ? 0 : at + 1;
  }
  return ids;
}

}  // namespace kf::tools
