#include "tests/gpu/load.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "kernels/core/mutex.h"
#include "kernels/core/status.h"
#include "tests/gpu/timing.h"

namespace kf::gpu_bench {
namespace {

constexpr std::chrono::milliseconds kPoll{20};
constexpr double kStepPatience_s = 120.0;  // for all measured steps together
constexpr std::chrono::seconds kIdlePatience{60};

// What all requests of a load have brought so far. Times are taken where tokens
// come, on the engine's thread: who waits may wake late. Thread-safe; outlives
// the requests by shared ownership.
class Progress {
 public:
  struct Mark {
    int64_t tokens = 0;
    double at_s = 0.0;
  };
  struct State {
    int32_t started = 0;
    int32_t ended = 0;
    int64_t tokens = 0;
    Mark last_start;
    // Set by Measure: how many decode, and where the measured steps begin and
    // end.
    int32_t batch = 0;
    std::optional<Mark> from;
    std::optional<Mark> to;
    absl::Status error;
  };

  explicit Progress(const Load& load)
      : load_(load), has_started_(static_cast<size_t>(load.requests), false) {}

  void Add(size_t request, int64_t tokens) {
    const MutexLock lock(mu_);
    state_.tokens += tokens;
    const Mark now = {state_.tokens, watch_.Seconds()};
    if (!has_started_[request]) {
      has_started_[request] = true;
      ++state_.started;
      state_.last_start = now;
      if (state_.started == load_.requests) state_.batch = state_.started;
    }
    if (state_.batch > 0) Measure(now);
    changed_.NotifyAll();
  }
  void End(const absl::Status& status) {
    const MutexLock lock(mu_);
    ++state_.ended;
    // We cancel requests ourselves, at the end.
    if (!status.ok() && !absl::IsCancelled(status)) state_.error = status;
    changed_.NotifyAll();
  }

  // Those that have started are the batch; no others are waited for.
  void StartMeasuring() {
    const MutexLock lock(mu_);
    state_.batch = state_.started;
  }

  // Until done(state), an error, or `limit_s` from now.
  template <typename Done>
  State WaitUntil(double limit_s, const Done& done) {
    const Stopwatch waited;
    const MutexLock lock(mu_);
    while (!done(state_) && state_.error.ok() && waited.Seconds() < limit_s) {
      changed_.WaitFor(mu_, kPoll);
    }
    return state_;
  }
  bool HasStarted(size_t request) {
    const MutexLock lock(mu_);
    return has_started_[request];
  }

 private:
  // A step of all that decode is so many tokens. The first are let pass: what
  // was cancelled is gone by then.
  void Measure(const Mark& now) KF_REQUIRES(mu_) {
    if (begin_at_ == 0) begin_at_ = now.tokens + 2 * int64_t{state_.batch};
    if (!state_.from.has_value()) {
      if (now.tokens >= begin_at_) state_.from = now;
    } else if (!state_.to.has_value() &&
               now.tokens >=
                   state_.from->tokens + int64_t{load_.steps} * state_.batch) {
      state_.to = now;
    }
  }

  const Load load_;
  const Stopwatch watch_;
  Mutex mu_;
  CondVar changed_;
  std::vector<bool> has_started_ KF_GUARDED_BY(mu_);
  int64_t begin_at_ KF_GUARDED_BY(mu_) = 0;
  State state_ KF_GUARDED_BY(mu_);
};

class Sink final : public engine::TokenSink {
 public:
  Sink(std::shared_ptr<Progress> progress, size_t request)
      : progress_(std::move(progress)), request_(request) {}

  void OnUpdate(engine::Update update) override {
    if (update.token_ids.empty()) return;
    progress_->Add(request_, static_cast<int64_t>(update.token_ids.size()));
  }
  void OnEnd(const absl::Status& status) override { progress_->End(status); }

 private:
  const std::shared_ptr<Progress> progress_;
  const size_t request_;
};

engine::Request MakeRequest(const Load& load,
                            int32_t vocabulary,
                            std::mt19937& random) {
  // Ids of ordinary text: the first few hundred are bytes and controls.
  std::uniform_int_distribution<int32_t> ids(std::min(260, vocabulary - 1),
                                             vocabulary - 1);
  engine::Request request;
  request.prompt.resize(static_cast<size_t>(load.prompt_tokens));
  for (engine::TokenId& id : request.prompt) id = ids(random);
  request.sampling.seed = 1;
  request.stopping.max_new_tokens = static_cast<uint32_t>(load.new_tokens);
  request.stopping.ignore_eos = true;
  request.cache = load.cache;
  return request;
}

using State = Progress::State;

// Once all prompts are done, or the time is up.
absl::StatusOr<Measured> WatchPrompts(Progress& progress, const Load& load) {
  const State begun = progress.WaitUntil(
      load.prompt_limit_s,
      [&](const State& s) { return s.started == load.requests; });
  KF_RETURN_IF_ERROR(begun.error);
  if (begun.started == 0) {
    return absl::DeadlineExceededError("no prompt was done in time");
  }
  Measured measured = {.requests = begun.started,
                       .prompts_s = begun.last_start.at_s};
  measured.early_tokens = static_cast<double>(begun.last_start.tokens) /
                          static_cast<double>(begun.started);
  return measured;
}

absl::Status WatchSteps(Progress& progress,
                        const Load& load,
                        Measured& measured) {
  const State done = progress.WaitUntil(kStepPatience_s, [&](const State& s) {
    return s.to.has_value() || s.ended == load.requests;
  });
  KF_RETURN_IF_ERROR(done.error);
  if (!done.to.has_value()) {
    return absl::DeadlineExceededError("decode steps were not done in time");
  }
  measured.requests = done.batch;
  measured.step_s = (done.to->at_s - done.from->at_s) *
                    static_cast<double>(done.batch) /
                    static_cast<double>(done.to->tokens - done.from->tokens);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Measured> Run(engine::Engine& engine, const Load& load) {
  std::mt19937 random(7);
  std::vector<engine::Request> requests;
  for (int32_t i = 0; i < load.requests; ++i) {
    requests.push_back(MakeRequest(load, engine.config().vocabulary, random));
  }
  const auto progress = std::make_shared<Progress>(load);
  std::vector<engine::RequestId> ids;
  absl::Status refused;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto id = engine.Submit(std::move(requests[i]),
                                  std::make_shared<Sink>(progress, i));
    if (!id.ok()) {
      refused = id.status();
      break;
    }
    ids.push_back(*id);
  }
  auto measured = refused.ok() ? WatchPrompts(*progress, load)
                               : absl::StatusOr<Measured>(refused);
  if (measured.ok() && load.steps > 0) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (!progress->HasStarted(i)) engine.Cancel(ids[i]);
    }
    if (measured->requests < load.requests) progress->StartMeasuring();
    const absl::Status watched = WatchSteps(*progress, load, *measured);
    if (!watched.ok()) measured = watched;
  }
  for (const engine::RequestId id : ids) engine.Cancel(id);
  if (!engine.WaitIdle(kIdlePatience)) {
    return absl::DeadlineExceededError("the engine does not come to rest");
  }
  return measured;
}

}  // namespace kf::gpu_bench
