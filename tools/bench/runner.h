// Sends a plan's requests over a number of streams and records what came back.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/core/mutex.h"
#include "keyformer/v1/generation.pb.h"
#include "tools/bench/measurements.h"
#include "tools/bench/workload.h"
#include "tools/client_lib/client.h"

namespace kf::tools {

struct Progress {
  size_t done = 0;
  size_t running = 0;
  uint64_t output_tokens = 0;
  double seconds = 0.0;
};

struct RunOptions {
  size_t streams = 1;        // most requests at once; one thread each
  double duration_s = 0.0;   // no new request after this long; 0: no limit
  double timeout_s = 0.0;    // of each request; 0: none
  bool repeat_plan = false;  // start over at the plan's end
  double progress_s = 1.0;   // between two reports of progress
  keyformer::v1::GenerateRequest request;  // all but input and length
};

// One run. Run blocks its caller; Stop may be called from any thread.
class Runner {
 public:
  // Streams share `clients` round robin; both outlive the runner.
  Runner(const std::vector<std::unique_ptr<Client>>& clients,
         PromptMaker& prompts,
         std::vector<PlannedRequest> plan,
         RunOptions options);

  // Calls `on_progress` every progress_s or so, on the calling thread.
  std::vector<RequestRecord> Run(
      const std::function<void(const Progress&)>& on_progress);

  // Cancels what runs and starts nothing more.
  void Stop();

  double Now() const;  // seconds since it was made

 private:
  using Clock = std::chrono::steady_clock;

  struct Job {
    PlannedRequest planned;
    size_t place = 0;  // in the plan
    std::vector<uint32_t> prompt;
  };

  void Work(size_t stream);
  bool TakeJob(Job& job);
  // False: stopped while waiting.
  bool WaitUntil(double at_s);
  // Until the first `count` of the plan answer or have ended.
  bool WaitForAnswers(size_t count);
  void CountAnswer();
  RequestRecord RunOne(size_t stream, const Job& job);

  const std::vector<std::unique_ptr<Client>>& clients_;
  const std::vector<PlannedRequest> plan_;
  const RunOptions options_;
  const Clock::time_point begin_;
  std::vector<CancelToken> cancel_;  // one a stream
  std::atomic<uint64_t> output_tokens_{0};

  Mutex mu_;
  CondVar changed_;
  PromptMaker& prompts_ KF_GUARDED_BY(mu_);
  size_t next_ KF_GUARDED_BY(mu_) = 0;  // of the plan
  size_t running_ KF_GUARDED_BY(mu_) = 0;
  size_t answering_ KF_GUARDED_BY(mu_) = 0;  // or ended; since the start
  size_t working_ KF_GUARDED_BY(mu_) = 0;    // threads
  bool stopped_ KF_GUARDED_BY(mu_) = false;
  std::vector<RequestRecord> records_ KF_GUARDED_BY(mu_);
};

}  // namespace kf::tools
