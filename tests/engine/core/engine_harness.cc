#include "tests/engine/core/engine_harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "kernels/core/noise.h"

namespace kf::engine {
namespace {

bool SameLogprobs(const std::vector<TokenLogprob>& a,
                  const std::vector<TokenLogprob>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].id != b[i].id || a[i].rank != b[i].rank ||
        std::bit_cast<uint64_t>(a[i].logprob) !=
            std::bit_cast<uint64_t>(b[i].logprob) ||
        !SameLogprobs(a[i].top, b[i].top)) {
      return false;
    }
  }
  return true;
}

// Shares nothing with `status`: the thread sanitizer does not see the reference
// counts of Debian's absl, and takes a last release for a race.
absl::Status OwnCopy(const absl::Status& status) {
  return {status.code(), status.message()};
}

template <typename T>
void Append(std::vector<T>& to, const auto& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

bool SameAnswer(const Outcome& a, const Outcome& b) {
  return a.tokens == b.tokens && a.text == b.text &&
         a.finish_reason == b.finish_reason && a.status == b.status &&
         SameLogprobs(a.logprobs, b.logprobs) &&
         SameLogprobs(a.prompt_logprobs, b.prompt_logprobs);
}

bool SameCaches(const CacheState& a, const CacheState& b) {
  if (a.size() != b.size()) return false;
  for (size_t layer = 0; layer < a.size(); ++layer) {
    if (a[layer].size() != b[layer].size()) return false;
    for (size_t head = 0; head < a[layer].size(); ++head) {
      if (a[layer][head].positions != b[layer][head].positions ||
          a[layer][head].scores != b[layer][head].scores) {
        return false;
      }
    }
  }
  return true;
}

void RecordingSink::OnUpdate(Update update) {
  const MutexLock lock(mu_);
  EXPECT_FALSE(ended_);
  ++updates_;
  EXPECT_EQ(update.first, updates_ == 1);
  if (outcomes_.size() <= update.index) outcomes_.resize(update.index + 1);
  Outcome& outcome = outcomes_[update.index];
  // A sequence's last update has its finish reason.
  EXPECT_EQ(outcome.finish_reason, FinishReason::kNotFinished);
  ++outcome.updates;
  if (update.first) {
    ++outcome.firsts;
    outcome.first_usage = update.usage;
    outcome.seed = update.seed;
    outcome.noise_seed = update.noise_seed;
    outcome.prompt_logprobs = std::move(update.prompt_logprobs);
  }
  outcome.text += update.text;
  Append(outcome.tokens, update.token_ids);
  Append(outcome.logprobs, update.logprobs);
  if (update.finish_reason != FinishReason::kNotFinished) {
    outcome.finish_reason = update.finish_reason;
    outcome.stop_string = update.stop_string;
    outcome.score = update.score;
    outcome.usage = last_usage_ = update.usage;
    outcome.cache_report = std::move(update.cache_report);
  }
  changed_.NotifyAll();
}

void RecordingSink::OnEnd(const absl::Status& status) {
  const MutexLock lock(mu_);
  EXPECT_FALSE(ended_);
  // OK comes with the reasons of all, an error without the last one.
  const auto finished = std::count_if(
      outcomes_.begin(), outcomes_.end(), [](const Outcome& outcome) {
        return outcome.finish_reason != FinishReason::kNotFinished;
      });
  const bool all = static_cast<size_t>(finished) == outcomes_.size();
  if (status.ok()) {
    EXPECT_TRUE(all && !outcomes_.empty());
  } else if (outcomes_.size() == 1) {
    EXPECT_FALSE(all);
  }
  status_ = OwnCopy(status);
  ended_ = true;
  changed_.NotifyAll();
}

Outcome RecordingSink::Wait() {
  std::vector<Outcome> all = WaitAll();
  return std::move(all.front());
}

std::vector<Outcome> RecordingSink::WaitAll() {
  const MutexLock lock(mu_);
  while (!ended_) {
    if (!changed_.WaitFor(mu_, kPatience)) {
      ADD_FAILURE() << "the request did not end";
      break;
    }
  }
  std::vector<Outcome> all = outcomes_;
  if (all.empty()) all.emplace_back();
  for (Outcome& outcome : all) outcome.status = OwnCopy(status_);
  return all;
}

void RecordingSink::WaitForUpdates(int updates) {
  const MutexLock lock(mu_);
  while (!ended_ && updates_ < updates) {
    if (!changed_.WaitFor(mu_, kPatience)) {
      ADD_FAILURE() << "no update " << updates << " came";
      break;
    }
  }
}

Usage RecordingSink::last_usage() const {
  const MutexLock lock(mu_);
  return last_usage_;
}

bool RecordingSink::ended() const {
  const MutexLock lock(mu_);
  return ended_;
}

void Gate::Pass() {
  const MutexLock lock(mu_);
  waiting_ = true;
  changed_.NotifyAll();
  while (!open_) {
    if (!changed_.WaitFor(mu_, kPatience)) return;
  }
}

void Gate::WaitUntilReached() {
  const MutexLock lock(mu_);
  while (!waiting_) {
    if (!changed_.WaitFor(mu_, kPatience)) {
      ADD_FAILURE() << "the gate was not reached";
      return;
    }
  }
}

void Gate::Open() {
  const MutexLock lock(mu_);
  open_ = true;
  changed_.NotifyAll();
}

EngineOptions TinyOptions(const std::string& model_path) {
  EngineOptions options;
  options.model_path = model_path;
  options.weight_format = WeightFormat::kF32;
  options.cache_dtype = DType::kF32;
  options.backend = {.name = "cpu", .threads = 2, .simd = "auto"};
  options.max_batch = 16;
  return options;
}

EngineOptions TinyOptionsOn(const std::string& backend, WeightFormat format) {
  EngineOptions options = TinyOptions("");
  options.backend.name = backend;
  options.weight_format = format;
  if (format != WeightFormat::kF32) options.cache_dtype = DType::kBF16;
  return options;
}

TestEngine::TestEngine(TestEngineParts parts) {
  if (parts.options.model_path.empty() &&
      parts.options.load_format == LoadFormat::kGguf) {
    parts.options.model_path =
        WriteTinyModel(parts.spec, dir_.File("tiny.gguf"));
  }
  auto engine = Engine::Create(parts.options,
                               parts.clock == nullptr ? clock_ : *parts.clock,
                               parts.observer, std::move(parts.backend));
  EXPECT_TRUE(engine.ok()) << engine.status();
  engine_ = std::move(engine).value();
}

std::pair<RequestId, std::shared_ptr<RecordingSink>> TestEngine::Start(
    Request request) {
  auto sink = std::make_shared<RecordingSink>();
  const auto id = engine_->Submit(std::move(request), sink);
  EXPECT_TRUE(id.ok()) << id.status();
  return {id.value_or(0), sink};
}

Outcome TestEngine::Run(Request request) {
  return Start(std::move(request)).second->Wait();
}

std::vector<Outcome> TestEngine::RunAll(Request request) {
  return Start(std::move(request)).second->WaitAll();
}

void TestEngine::ExpectNothingHeld() {
  EXPECT_TRUE(engine_->WaitIdle(kPatience));
  const EngineStats stats = engine_->Stats();
  EXPECT_EQ(stats.pages_free, stats.pages_total);
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.waiting, 0);
  EXPECT_EQ(stats.waiting_prompt_tokens, 0);
  EXPECT_EQ(stats.physical_cache_tokens, 0);
  EXPECT_EQ(stats.logical_cache_tokens, 0);
}

Request MakeRequest(uint32_t seed, int32_t tokens, uint32_t max_new_tokens) {
  Request request;
  for (int32_t i = 0; i < tokens; ++i) {
    const uint32_t bits = MixBits(seed * 7919U + static_cast<uint32_t>(i));
    request.prompt.push_back(static_cast<TokenId>(bits % 256U));
  }
  request.cache.policy = CachePolicy::kFull;
  request.sampling.seed = seed;
  request.stopping.max_new_tokens = max_new_tokens;
  request.stopping.ignore_eos = true;
  request.output.logprobs = true;
  request.output.top_logprobs = 3;
  return request;
}

Request MakeKeyformerRequest(uint32_t seed,
                             int32_t tokens,
                             uint32_t max_new_tokens,
                             uint32_t budget,
                             uint32_t recent) {
  Request request = MakeRequest(seed, tokens, max_new_tokens);
  request.cache.policy = CachePolicy::kKeyformer;
  request.cache.tokens = budget;
  request.cache.recent_tokens = recent;
  return request;
}

}  // namespace kf::engine
