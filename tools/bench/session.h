// A server of one's own, clients of it, and loads to measure it under.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/bench/child_server.h"
#include "tools/bench/runner.h"
#include "tools/bench/window.h"
#include "tools/bench/workload.h"
#include "tools/client_lib/client.h"
#include "tools/client_lib/interrupt.h"

namespace kf::tools {

struct Load {
  std::vector<PlannedRequest> plan;
  size_t streams = 1;
  bool repeat_plan = false;
  double duration_s = 0.0;  // no new request after this long; 0: no limit
  pb::CacheOptions cache;
};

struct LoadResult {
  std::vector<RequestRecord> records;
  // The first is from before the load, the last from after it.
  std::vector<Sample> samples;
};

// Looks at the samples so far; false ends the load, and cancels what runs.
using WatchFn = std::function<bool(const std::vector<Sample>&)>;

class Session {
 public:
  // Returns once a request has been answered. A signal
  // kills the server, and so ends everything. `interrupt` outlives the session.
  static absl::StatusOr<std::unique_ptr<Session>> Start(
      const std::string& binary,
      const std::vector<std::string>& flags,
      uint64_t seed,
      Interrupt& interrupt);
  ~Session();

  const pb::ModelInfoResponse& info() const { return info_; }
  absl::StatusOr<pb::GetLoadResponse> GetLoad();
  ProcessMemory Memory() const { return server_->Memory(); }
  std::map<std::string, double> ThreadSeconds() const {
    return server_->ThreadSeconds();
  }

  // Samples ten times a second; `watch` may be null. kUnavailable: the server
  // has gone.
  absl::StatusOr<LoadResult> Run(Load load, const WatchFn& watch);

 private:
  explicit Session(Interrupt& interrupt) : interrupt_(interrupt) {}
  absl::StatusOr<Sample> TakeSample(double at_s) const;

  Interrupt& interrupt_;
  std::unique_ptr<ChildServer> server_;
  std::vector<std::unique_ptr<Client>> clients_;
  pb::ModelInfoResponse info_;
  std::unique_ptr<PromptMaker> prompts_;
};

}  // namespace kf::tools
