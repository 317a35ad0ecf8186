#include "tools/bench/session.h"

#include <utility>

#include "kernels/core/status.h"

namespace kf::tools {
namespace {

// Streams share them: more than HTTP/2 allows on one connection may run.
constexpr int kConnections = 4;
constexpr double kSampleS = 0.1;

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> Session::Start(
    const std::string& binary,
    const std::vector<std::string>& flags,
    uint64_t seed,
    Interrupt& interrupt) {
  std::unique_ptr<Session> session(new Session(interrupt));
  KF_ASSIGN_OR_RETURN(session->server_, ChildServer::Start(binary, flags));
  interrupt.Arm([&server = *session->server_] { server.Kill(); });
  ConnectOptions connect;
  connect.server = session->server_->grpc_address();
  for (int i = 0; i < kConnections; ++i) {
    KF_ASSIGN_OR_RETURN(auto client, Client::Connect(connect));
    session->clients_.push_back(std::move(client));
  }
  KF_ASSIGN_OR_RETURN(session->info_,
                      session->clients_.front()->ModelInfo({}, {}));
  session->prompts_ = std::make_unique<PromptMaker>(
      session->info_.vocabulary(), std::vector<uint32_t>(), seed);
  Load warmup;
  warmup.plan = UniformPlan(1, 32, 8, 0.0, seed);
  KF_RETURN_IF_ERROR(session->Run(std::move(warmup), nullptr).status());
  return session;
}

Session::~Session() { interrupt_.Disarm(); }

absl::StatusOr<pb::GetLoadResponse> Session::GetLoad() {
  return clients_.front()->GetLoad({});
}

absl::StatusOr<Sample> Session::TakeSample(double at_s) const {
  KF_ASSIGN_OR_RETURN(MetricsPage page, server_->Scrape());
  return Sample{at_s, std::move(page), server_->Memory()};
}

absl::StatusOr<LoadResult> Session::Run(Load load, const WatchFn& watch) {
  LoadResult result;
  KF_ASSIGN_OR_RETURN(Sample before, TakeSample(0.0));
  result.samples.push_back(std::move(before));
  RunOptions options;
  options.streams = load.streams;
  options.repeat_plan = load.repeat_plan;
  options.duration_s = load.duration_s;
  options.progress_s = kSampleS;
  *options.request.mutable_cache() = load.cache;
  Runner runner(clients_, *prompts_, std::move(load.plan), std::move(options));
  absl::Status broken;
  result.records = runner.Run([&](const Progress& progress) {
    auto sample = TakeSample(progress.seconds);
    if (!sample.ok()) {
      broken = sample.status();
      return runner.Stop();
    }
    result.samples.push_back(*std::move(sample));
    if (watch != nullptr && !watch(result.samples)) runner.Stop();
  });
  KF_RETURN_IF_ERROR(broken);
  KF_ASSIGN_OR_RETURN(Sample after, TakeSample(runner.Now()));
  result.samples.push_back(std::move(after));
  return result;
}

}  // namespace kf::tools
