#include "server/not_built.h"

#include <string>

namespace kf::server {

absl::Status CheckBuilt(const engine::Request& request) {
  const engine::CacheOptions& cache = request.cache;
  const char* missing = nullptr;
  if (request.samples > 1) missing = "sampling.n above 1";
  if (request.beam.has_value()) missing = "sampling.beam";
  if (cache.policy == engine::CachePolicy::kWindow) {
    missing = "cache.policy: CACHE_POLICY_WINDOW";
  }
  if (cache.policy == engine::CachePolicy::kQuest) {
    missing = "cache.policy: CACHE_POLICY_QUEST";
  }
  if (cache.scope == engine::SelectionScope::kLayer) {
    missing = "cache.scope: SELECTION_SCOPE_LAYER";
  }
  if (cache.scope == engine::SelectionScope::kModel) {
    missing = "cache.scope: SELECTION_SCOPE_MODEL";
  }
  if (cache.positions == engine::CachePositions::kCache) {
    missing = "cache.positions: CACHE_POSITIONS_CACHE";
  }
  if (cache.score_norm == engine::ScoreNorm::kAge) {
    missing = "cache.score_norm: SCORE_NORM_AGE";
  }
  if (!cache.layer_weights.empty()) missing = "cache.layer_weights";
  if (request.cache_report != engine::CacheReportDetail::kNone) {
    missing = "output.cache_report";
  }
  if (missing == nullptr) return absl::OkStatus();
  return absl::UnimplementedError(std::string(missing) + " is not built yet");
}

}  // namespace kf::server
