// The server beside another process that takes a core for itself.
#include <pthread.h>
#include <sched.h>
#include <spdlog/fmt/fmt.h>

#include <atomic>
#include <thread>

#include "kernels/core/status.h"
#include "kernels/core/thread_name.h"
#include "tools/bench/peers.h"
#include "tools/bench/scenario.h"
#include "tools/bench/session.h"

namespace kf::tools {
namespace {

// Keeps the last core that this process may use busy for as long as it lives.
class BusyCore {
 public:
  BusyCore() : thread_([this] { Burn(); }) {}
  ~BusyCore() {
    stop_.store(true);
    thread_.join();
  }
  BusyCore(const BusyCore&) = delete;
  BusyCore& operator=(const BusyCore&) = delete;

 private:
  void Burn() {
    NameThread("kf-neighbour");
    cpu_set_t usable;
    CPU_ZERO(&usable);
    sched_getaffinity(0, sizeof(usable), &usable);
    for (size_t core = CPU_SETSIZE; core-- > 0;) {
      if (!CPU_ISSET(core, &usable)) continue;
      CPU_ZERO(&usable);
      CPU_SET(core, &usable);
      pthread_setaffinity_np(pthread_self(), sizeof(usable), &usable);
      break;
    }
    while (!stop_.load(std::memory_order_relaxed)) {
    }
  }

  std::atomic<bool> stop_{false};
  std::thread thread_;
};

struct Rate {
  double tokens_per_second = 0.0;
  double p99_ms = 0.0;  // between two tokens of a stream
};

absl::StatusOr<Rate> MeasureRate(Session& session,
                                 const ScenarioOptions& options,
                                 uint32_t streams) {
  Load load;
  load.plan = UniformPlan(streams, options.neighbour.prompt_tokens,
                          options.neighbour.output_tokens, 0.0, options.seed);
  load.streams = streams;
  load.cache = HalfCache();
  KF_ASSIGN_OR_RETURN(const LoadResult result,
                      session.Run(std::move(load), nullptr));
  const Measurements measured = Measure(result.records);
  if (measured.succeeded < streams) {
    return absl::InternalError("neighbour: not all requests were answered");
  }
  return Rate{measured.output_tokens_per_second, measured.inter_token_ms.p99};
}

Rate MedianRate(const std::vector<Rate>& rates) {
  std::vector<double> speeds;
  std::vector<double> gaps;
  for (const Rate& rate : rates) {
    speeds.push_back(rate.tokens_per_second);
    gaps.push_back(rate.p99_ms);
  }
  return {MedianOf(std::move(speeds)), MedianOf(std::move(gaps))};
}

}  // namespace

absl::StatusOr<ScenarioReport> RunNeighbour(const ScenarioOptions& options,
                                            Interrupt& interrupt) {
  KF_ASSIGN_OR_RETURN(
      const auto session,
      Session::Start(options.server_binary, ServerFlags(options, {}),
                     options.seed, interrupt));
  Table table({"streams", "alone, tokens/s", "beside it, tokens/s", "ratio",
               "p99 between tokens alone, ms", "beside it, ms"});
  nlohmann::json json = nlohmann::json::array();
  for (const uint32_t streams : options.peer_streams) {
    std::vector<Rate> alone;
    std::vector<Rate> beside;
    for (uint32_t round = 0; round < options.rounds; ++round) {
      Say(fmt::format("neighbour: {} streams, round {} of {}", streams,
                      round + 1, options.rounds));
      KF_ASSIGN_OR_RETURN(const Rate quiet,
                          MeasureRate(*session, options, streams));
      alone.push_back(quiet);
      const BusyCore neighbour;
      KF_ASSIGN_OR_RETURN(const Rate busy,
                          MeasureRate(*session, options, streams));
      beside.push_back(busy);
    }
    const Rate a = MedianRate(alone);
    const Rate b = MedianRate(beside);
    table.Add(
        {fmt::format("{}", streams), fmt::format("{:.0f}", a.tokens_per_second),
         fmt::format("{:.0f}", b.tokens_per_second),
         fmt::format("{:.2f}", b.tokens_per_second / a.tokens_per_second),
         fmt::format("{:.1f}", a.p99_ms), fmt::format("{:.1f}", b.p99_ms)});
    json.push_back({{"streams", streams},
                    {"alone_tokens_per_second", a.tokens_per_second},
                    {"beside_tokens_per_second", b.tokens_per_second},
                    {"alone_p99_ms", a.p99_ms},
                    {"beside_p99_ms", b.p99_ms}});
  }
  return ScenarioReport{
      .markdown = fmt::format(
          "Requests of {} tokens, prompts included in the rate; a thread of "
          "another process takes the last core.\n\n{}",
          ShapeText(options.neighbour), table.Markdown()),
      .json = std::move(json)};
}

}  // namespace kf::tools
