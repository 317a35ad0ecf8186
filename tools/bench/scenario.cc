#include "tools/bench/scenario.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "kernels/core/status.h"
#include "tools/bench/session.h"

namespace kf::tools {
namespace {

constexpr uint64_t kProbePoolBytes = uint64_t{64} << 20U;
constexpr uint32_t kPageTokens = 16;

}  // namespace

pb::CacheOptions FullCache() {
  pb::CacheOptions cache;
  cache.set_policy(pb::CACHE_POLICY_FULL);
  return cache;
}

pb::CacheOptions HalfCache() {
  pb::CacheOptions cache;
  cache.set_policy(pb::CACHE_POLICY_KEYFORMER);
  cache.set_ratio(0.5);
  return cache;
}

uint32_t HalfBudget(const pb::ModelInfoResponse& info, uint32_t prompt_tokens) {
  return std::max(prompt_tokens / 2, info.default_cache().min_tokens());
}

std::string ShapeText(const PlannedRequest& request) {
  return fmt::format("{} + {}", request.prompt_tokens, request.output_tokens);
}

std::vector<std::string> ServerFlags(const ScenarioOptions& options,
                                     std::vector<std::string> flags) {
  if (!options.model.empty()) {
    flags.insert(flags.begin(), "--model=" + options.model);
  }
  flags.insert(flags.end(), options.server_flags.begin(),
               options.server_flags.end());
  return flags;
}

std::string Mebibytes(double bytes) {
  return fmt::format("{:.1f}", bytes / (1024.0 * 1024.0));
}

void Say(const std::string& line) {
  std::fprintf(stderr, "%s\n", line.c_str());
}

uint64_t PageSizes::Pages(uint32_t tokens) const {
  return uint64_t{layers} * (tokens / kPageTokens + 1);
}

uint64_t PageSizes::PoolBytes(uint64_t pages) const {
  return static_cast<uint64_t>(
      std::ceil(page_bytes * static_cast<double>(pages)));
}

absl::StatusOr<PageSizes> AskPageSizes(const ScenarioOptions& options,
                                       pb::ModelInfoResponse* info,
                                       Interrupt& interrupt) {
  const auto flags =
      ServerFlags(options, {absl::StrCat("--kv_pool_bytes=", kProbePoolBytes)});
  KF_ASSIGN_OR_RETURN(
      const auto session,
      Session::Start(options.server_binary, flags, options.seed, interrupt));
  KF_ASSIGN_OR_RETURN(const pb::GetLoadResponse load, session->GetLoad());
  *info = session->info();
  return PageSizes{.page_bytes = static_cast<double>(kProbePoolBytes) /
                                 static_cast<double>(load.kv_pages_total()),
                   .layers = info->layers()};
}

}  // namespace kf::tools
