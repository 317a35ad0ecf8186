#include "tools/bench/runner.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "kernels/core/status.h"

namespace kf::tools {

Runner::Runner(const std::vector<std::unique_ptr<Client>>& clients,
               PromptMaker& prompts,
               std::vector<PlannedRequest> plan,
               RunOptions options)
    : clients_(clients),
      plan_(std::move(plan)),
      options_(std::move(options)),
      begin_(Clock::now()),
      cancel_(options_.streams),
      prompts_(prompts) {
  KF_CHECK(!clients_.empty() && !plan_.empty() && options_.streams > 0);
}

double Runner::Now() const {
  return std::chrono::duration<double>(Clock::now() - begin_).count();
}

std::vector<RequestRecord> Runner::Run(
    const std::function<void(const Progress&)>& on_progress) {
  std::vector<std::thread> threads;
  {
    const MutexLock lock(mu_);
    working_ = options_.streams;
  }
  for (size_t i = 0; i < options_.streams; ++i) {
    threads.emplace_back([this, i] { Work(i); });
  }
  while (true) {
    Progress progress;
    {
      const MutexLock lock(mu_);
      if (working_ > 0) {
        changed_.WaitFor(mu_,
                         std::chrono::duration<double>(options_.progress_s));
      }
      if (working_ == 0) break;
      progress = {records_.size(), running_, output_tokens_.load(), Now()};
    }
    on_progress(progress);
  }
  for (std::thread& thread : threads) thread.join();
  const MutexLock lock(mu_);
  return std::move(records_);
}

void Runner::Stop() {
  {
    const MutexLock lock(mu_);
    stopped_ = true;
  }
  changed_.NotifyAll();
  for (CancelToken& cancel : cancel_) cancel.Cancel();
}

bool Runner::TakeJob(Job& job) {
  const MutexLock lock(mu_);
  if (next_ == plan_.size() && options_.repeat_plan) next_ = 0;
  const bool over = options_.duration_s > 0.0 && Now() >= options_.duration_s;
  if (stopped_ || over || next_ == plan_.size()) return false;
  job.place = next_;
  job.planned = plan_[next_++];
  job.prompt = prompts_.Make(job.planned.prompt_tokens);
  return true;
}

bool Runner::WaitUntil(double at_s) {
  const MutexLock lock(mu_);
  while (!stopped_ && Now() < at_s) {
    changed_.WaitFor(mu_, std::chrono::duration<double>(at_s - Now()));
  }
  return !stopped_;
}

bool Runner::WaitForAnswers(size_t count) {
  const MutexLock lock(mu_);
  while (!stopped_ && answering_ < count) changed_.Wait(mu_);
  return !stopped_;
}

void Runner::CountAnswer() {
  {
    const MutexLock lock(mu_);
    ++answering_;
  }
  changed_.NotifyAll();
}

void Runner::Work(size_t stream) {
  Job job;
  while (TakeJob(job)) {
    const double due_s = job.planned.arrival_s.value_or(0.0);
    if (options_.duration_s > 0.0 && due_s >= options_.duration_s) break;
    if (!WaitUntil(due_s)) break;
    if (job.planned.settle_s.has_value() &&
        (!WaitForAnswers(job.place) ||
         !WaitUntil(Now() + *job.planned.settle_s))) {
      break;
    }
    {
      const MutexLock lock(mu_);
      ++running_;
    }
    RequestRecord record = RunOne(stream, job);
    const MutexLock lock(mu_);
    --running_;
    records_.push_back(std::move(record));
  }
  {
    const MutexLock lock(mu_);
    --working_;
  }
  changed_.NotifyAll();
}

RequestRecord Runner::RunOne(size_t stream, const Job& job) {
  pb::GenerateRequest request = options_.request;
  request.mutable_token_ids()->mutable_ids()->Assign(job.prompt.begin(),
                                                     job.prompt.end());
  pb::StoppingOptions& stopping = *request.mutable_stopping();
  stopping.set_max_new_tokens(job.planned.output_tokens);
  stopping.set_ignore_eos(true);
  RequestRecord record;
  record.start_s = job.planned.arrival_s.value_or(Now());
  record.prompt_tokens = job.planned.prompt_tokens;
  bool row_failed = false;
  const absl::Status status = clients_[stream % clients_.size()]->Stream(
      request, {.timeout_s = options_.timeout_s, .cancel = &cancel_[stream]},
      [&](const pb::GenerateChunk& chunk) {
        const uint32_t tokens = static_cast<uint32_t>(chunk.token_ids_size());
        if (tokens > 0) {
          record.arrivals.push_back({Now(), tokens});
          if (record.arrivals.size() == 1) CountAnswer();
          output_tokens_ += tokens;
        }
        if (chunk.has_usage()) {
          record.cache_budget_tokens = chunk.usage().cache_budget_tokens();
          record.evicted_tokens = chunk.usage().evicted_tokens();
        }
        row_failed |= chunk.finish_reason() == pb::FINISH_REASON_ERROR;
        return true;
      });
  if (record.arrivals.empty()) CountAnswer();
  record.end_s = Now();
  if (row_failed) record.code = "ERROR";
  if (!status.ok()) {
    record.code = absl::StatusCodeToString(status.code());
  }
  return record;
}

}  // namespace kf::tools
