#include "server/convert_report.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kf::server {
namespace {

namespace v1 = ::keyformer::v1;

// A position as a varint of up to 2^28 and a score. The rest is for headers, of
// which a head and a state get a token's worth more.
constexpr uint64_t kBytesPerToken = 16;
constexpr uint64_t kBytesPerPromptToken = 8;  // its retention
constexpr uint64_t kStates = 2;               // after the prompt, at the end

void SetRetention(const engine::Retention& kept, v1::CacheState* to) {
  if (kept.heads == 0) return;
  to->mutable_retention()->Reserve(static_cast<int>(kept.holders.size()));
  for (const uint32_t count : kept.holders) {
    to->add_retention(static_cast<double>(count) / kept.heads);
  }
}

void SetLayers(const engine::CacheState& state, v1::CacheState* to) {
  for (const auto& layer : state) {
    v1::LayerState& wire_layer = *to->add_layers();
    for (const HeldTokens& head : layer) {
      v1::HeadState& wire_head = *wire_layer.add_heads();
      wire_head.mutable_positions()->Add(head.positions.begin(),
                                         head.positions.end());
      wire_head.mutable_scores()->Add(head.scores.begin(), head.scores.end());
    }
  }
}

}  // namespace

v1::CacheReport ToCacheReport(const engine::CacheReport& report,
                              engine::CacheReportDetail detail) {
  v1::CacheReport wire;
  wire.set_budget_tokens(report.budget_tokens);
  wire.set_recent_tokens(report.recent_tokens);
  SetRetention(report.kept_after_prompt, wire.mutable_after_prompt());
  SetRetention(report.kept_at_end, wire.mutable_at_end());
  if (detail == engine::CacheReportDetail::kFull) {
    SetLayers(report.after_prompt, wire.mutable_after_prompt());
    SetLayers(report.at_end, wire.mutable_at_end());
  }
  return wire;
}

absl::Status CheckReportSize(const engine::Request& request,
                             const ReportLimits& limits) {
  if (request.cache_report != engine::CacheReportDetail::kFull) {
    return absl::OkStatus();
  }
  const auto sizes = engine::ValidateRequest(request, limits.request);
  if (!sizes.ok()) return absl::OkStatus();
  const int32_t total = sizes->prompt_tokens + sizes->max_new_tokens;
  uint64_t tokens = 0;  // of one head, all layers
  for (int32_t layer = 0; layer < limits.request.layers; ++layer) {
    tokens +=
        static_cast<uint64_t>(std::min(sizes->rules.size(layer).budget, total));
  }
  const auto prompt = static_cast<uint64_t>(sizes->prompt_tokens);
  const auto layers = static_cast<uint64_t>(limits.request.layers);
  const auto heads = static_cast<uint64_t>(limits.kv_heads);
  const uint64_t sequences =
      request.beam.has_value() ? request.beam->width : request.samples;
  // Each factor is below 2^13 but for the tokens, below 2^42.
  const uint64_t state = kBytesPerToken * (heads * (tokens + layers) + 1) +
                         kBytesPerPromptToken * prompt;
  const uint64_t bytes = kStates * sequences * state;
  if (bytes <= limits.max_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "output.cache_report: FULL may take ", bytes, " bytes (", sequences,
      " sequences, ", tokens, " tokens in ", limits.request.layers, " layers, ",
      limits.kv_heads, " heads), want at most ", limits.max_bytes,
      "; SUMMARY is short"));
}

}  // namespace kf::server
