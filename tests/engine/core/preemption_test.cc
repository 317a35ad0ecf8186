// FULL and QUEST requests that lose their cache to others, and are replayed:
// their clients notice nothing but the time.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/ref/ref_backend.h"
#include "tests/engine/core/engine_harness.h"
#include "tests/engine/core/hook_backend.h"
#include "tests/testing/matchers.h"

namespace kf::engine {
namespace {

using ::kf::testing::IsOk;

// Counts, and calls `on_preempted` on the engine thread.
class PreemptionObserver final : public EngineObserver {
 public:
  void OnAdmitted(double, uint32_t, uint32_t) override { ++admitted; }
  void OnGenerated(uint32_t tokens) override {
    generated += static_cast<int>(tokens);
  }
  void OnPreempted() override {
    ++preempted;
    preempted_now = true;
  }
  std::atomic<int> admitted{0}, generated{0}, preempted{0};
  std::atomic<bool> preempted_now{false};
};

// Of the tiny model.
uint64_t BytesOfPages(const EngineOptions& options, uint64_t pages) {
  TestEngine probe({.options = options});
  const auto total = static_cast<uint64_t>(probe->Stats().pages_total);
  return probe->options().kv_pool_bytes / total * pages;
}

// The first character of `text` at or after `at` that begins a UTF-8 character.
size_t CharacterAt(const std::string& text, size_t at) {
  while (at < text.size() &&
         (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U) {
    ++at;
  }
  return at;
}

// Stop strings that the text begins to show again and again, and one that it
// shows in full near its end.
void AddStops(const std::string& text, Request& request) {
  for (size_t at = 0; at + 12 < text.size(); at += text.size() / 12 + 1) {
    const size_t first = CharacterAt(text, at);
    const size_t end = CharacterAt(text, first + 6);
    request.stopping.stop.push_back(text.substr(first, end - first) + "\x01~");
  }
  const size_t last = CharacterAt(text, text.size() - 12);
  request.stopping.stop.push_back(
      text.substr(last, CharacterAt(text, last + 5) - last));
}

// All kinds of what a sequence remembers. The first is the first to be served,
// and does not fit together with the others.
std::vector<Request> GrowingRequests(TestEngine& engine, CachePolicy policy) {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 6; ++i) {
    requests.push_back(
        MakeRequest(10 + i, 5 + 9 * static_cast<int32_t>(i), 100 - 10 * i));
    Request& request = requests.back();
    request.cache.policy = policy;
    request.cache.tokens.reset();
    if (policy == CachePolicy::kQuest) {
      request.cache.tokens = 32;
      request.cache.full_layers = 1;
    }
    request.sampling.temperature = 1.0;
    request.cache_report = CacheReportDetail::kFull;
  }
  requests[1].sampling.repetition_penalty = 1.3;
  requests[1].sampling.frequency_penalty = 0.5;
  requests[2].output.prompt_logprobs = true;
  requests[2].output.echo_prompt = true;
  requests[3].sampling.temperature = 0.0;
  requests[3].stopping.min_new_tokens = 9;
  AddStops(engine.Run(requests[4]).text, requests[4]);
  requests[5].samples = 3;
  requests[5].stopping.stop_token_ids = {
      engine.RunAll(requests[5])[1].tokens[20]};
  return requests;
}

void ExpectSameAsAlone(const std::vector<Outcome>& got,
                       const std::vector<Outcome>& want,
                       const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(SameAnswer(got[i], want[i])) << what << ", sample " << i;
    EXPECT_EQ(got[i].stop_string, want[i].stop_string) << what;
    EXPECT_EQ(got[i].updates, want[i].updates) << what;
    EXPECT_EQ(got[i].usage.prompt_tokens, want[i].usage.prompt_tokens) << what;
    if (want.size() == 1) {
      EXPECT_EQ(got[i].usage.generated_tokens, want[i].usage.generated_tokens)
          << what;
    }
    ASSERT_TRUE(got[i].cache_report && want[i].cache_report) << what;
    EXPECT_TRUE(SameCaches(got[i].cache_report->after_prompt,
                           want[i].cache_report->after_prompt))
        << what;
    EXPECT_TRUE(
        SameCaches(got[i].cache_report->at_end, want[i].cache_report->at_end))
        << what;
  }
}

struct PreemptionCase {
  const char* name;
  const char* backend;
  WeightFormat format;
  CachePolicy policy;
};

class PreemptionTest : public ::testing::TestWithParam<PreemptionCase> {
 protected:
  static EngineOptions Options() {
    return TinyOptionsOn(GetParam().backend, GetParam().format);
  }
};

// The pool holds the largest of them, and little more.
TEST_P(PreemptionTest, AnswersAreThoseOfSoloRuns) {
  TestEngine roomy({.options = Options()});
  const std::vector<Request> requests =
      GrowingRequests(roomy, GetParam().policy);
  std::vector<std::vector<Outcome>> alone;
  alone.reserve(requests.size());
  for (const Request& request : requests) {
    alone.push_back(roomy.RunAll(request));
  }
  ASSERT_EQ(alone[4][0].finish_reason, FinishReason::kStop);
  for (const int slice : {32, 256}) {
    PreemptionObserver observer;
    EngineOptions options = Options();
    options.prefill_slice_tokens = slice;
    options.kv_pool_bytes = BytesOfPages(Options(), 44);
    // All are there before the first one's first step ends.
    Gate gate;
    std::atomic<bool> armed{false};
    auto inner = CreateBackend(options.backend);
    ASSERT_THAT(inner, IsOk());
    Hooks hooks;
    hooks.prompt = [&](const PromptAttentionArgs&) {
      if (armed) gate.Pass();
      return absl::OkStatus();
    };
    TestEngine engine({.options = options,
                       .backend = std::make_unique<HookBackend>(
                           *std::move(inner), std::move(hooks)),
                       .observer = &observer});
    armed = true;
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    sinks.reserve(requests.size());
    for (const Request& request : requests) {
      sinks.push_back(engine.Start(request).second);
    }
    gate.Open();
    for (size_t i = 0; i < sinks.size(); ++i) {
      ExpectSameAsAlone(
          sinks[i]->WaitAll(), alone[i],
          "request " + std::to_string(i) + ", slice " + std::to_string(slice));
    }
    EXPECT_GT(observer.preempted, 0);
    EXPECT_EQ(observer.admitted, static_cast<int>(requests.size()));
    engine.ExpectNothingHeld();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Policies,
    PreemptionTest,
    ::testing::Values(PreemptionCase{"FullReferenceF32", "reference",
                                     WeightFormat::kF32, CachePolicy::kFull},
                      PreemptionCase{"FullCpuF32", "cpu", WeightFormat::kF32,
                                     CachePolicy::kFull},
                      PreemptionCase{"FullCpuBf16", "cpu", WeightFormat::kBF16,
                                     CachePolicy::kFull},
                      PreemptionCase{"QuestReferenceF32", "reference",
                                     WeightFormat::kF32, CachePolicy::kQuest},
                      PreemptionCase{"QuestCpuF32", "cpu", WeightFormat::kF32,
                                     CachePolicy::kQuest},
                      PreemptionCase{"QuestCpuBf16", "cpu", WeightFormat::kBF16,
                                     CachePolicy::kQuest}),
    [](const auto& param) { return std::string(param.param.name); });

// Two requests of which the pool holds one; the engine is stopped at the first
// decode step after the second one has been preempted.
class PreemptedTest : public ::testing::Test {
 protected:
  PreemptedTest() {
    EngineOptions options = TinyOptions("");
    options.backend.name = "reference";
    options.kv_pool_bytes = BytesOfPages(options, 20);
    Hooks hooks;
    hooks.prompt = [this](const PromptAttentionArgs&) {
      if (armed_) started_.Pass();
      return absl::OkStatus();
    };
    hooks.decode = [this](const DecodeAttentionArgs&) {
      if (observer_.preempted_now) preempted_.Pass();
      return absl::OkStatus();
    };
    engine_.emplace(
        TestEngineParts{.options = options,
                        .backend = std::make_unique<HookBackend>(
                            CreateReferenceBackend(), std::move(hooks)),
                        .observer = &observer_,
                        .clock = &clock_});
    armed_ = true;
  }

  static Request Long(uint32_t seed) {
    Request request = MakeRequest(seed, 20, 100);
    request.cache_report = CacheReportDetail::kFull;
    return request;
  }

  // Returns when `second` is preempted, and the engine stands.
  void StartBoth(Request first, Request second) {
    first_ = engine_->Start(std::move(first));
    started_.WaitUntilReached();
    second_ = engine_->Start(std::move(second));
    started_.Open();
    preempted_.WaitUntilReached();
    EXPECT_EQ((*engine_)->Stats().running, 1);
    EXPECT_EQ((*engine_)->Stats().waiting, 1);
    EXPECT_EQ((*engine_)->Stats().waiting_prompt_tokens, 20);
  }
  // The first one is as it would be alone, and nothing is left.
  void ExpectTheFirstUnharmed() {
    const Outcome first = first_.second->Wait();
    engine_->ExpectNothingHeld();
    EXPECT_TRUE(SameAnswer(first, engine_->Run(Long(1))));
  }

  FakeClock clock_;
  std::atomic<bool> armed_{false};
  Gate started_;
  Gate preempted_;
  PreemptionObserver observer_;
  std::optional<TestEngine> engine_;
  std::pair<RequestId, std::shared_ptr<RecordingSink>> first_, second_;
};

TEST_F(PreemptedTest, ReturnsAndTimeCountsAsDecoding) {
  StartBoth(Long(1), Long(2));
  clock_.Advance(std::chrono::seconds(3));
  preempted_.Open();
  const Outcome second = second_.second->Wait();
  EXPECT_TRUE(SameAnswer(second, engine_->Run(Long(2))));
  EXPECT_EQ(second.usage.generated_tokens, 100U);
  EXPECT_EQ(second.usage.queue_ms, 0.0);
  EXPECT_EQ(second.usage.decode_ms, 3000.0);
  EXPECT_EQ(observer_.preempted, 1);
  ExpectTheFirstUnharmed();
}

TEST_F(PreemptedTest, Cancel) {
  StartBoth(Long(1), Long(2));
  (*engine_)->Cancel(second_.first);
  preempted_.Open();
  EXPECT_EQ(second_.second->Wait().status.code(), absl::StatusCode::kCancelled);
  ExpectTheFirstUnharmed();
}

TEST_F(PreemptedTest, Deadline) {
  Request second = Long(2);
  second.deadline = clock_.Now() + std::chrono::seconds(2);
  StartBoth(Long(1), std::move(second));
  clock_.Advance(std::chrono::seconds(3));
  preempted_.Open();
  EXPECT_EQ(second_.second->Wait().status.code(),
            absl::StatusCode::kDeadlineExceeded);
  ExpectTheFirstUnharmed();
}

// What it holds is in no cache now, but is known.
TEST_F(PreemptedTest, TimeLimit) {
  Request second = Long(2);
  second.stopping.time_limit_ms = 2000.0;
  StartBoth(Long(1), std::move(second));
  clock_.Advance(std::chrono::seconds(3));
  preempted_.Open();
  const Outcome outcome = second_.second->Wait();
  EXPECT_THAT(outcome.status, IsOk());
  EXPECT_EQ(outcome.finish_reason, FinishReason::kTimeLimit);
  ExpectTheFirstUnharmed();
  Request shorter = Long(2);
  shorter.stopping.max_new_tokens = outcome.tokens.size();
  const Outcome same = engine_->Run(shorter);
  EXPECT_EQ(outcome.tokens, same.tokens);
  EXPECT_EQ(outcome.usage.generated_tokens, same.usage.generated_tokens);
  EXPECT_TRUE(
      SameCaches(outcome.cache_report->at_end, same.cache_report->at_end));
}

// Wherever the second one is when it loses its place, and its time is up while
// its prompt is run again: what it has had is reported, and no unwritten page
// is read. Among the places is the one between its prompt and its first step.
TEST(ReplayTest, TimeIsUpWhileThePromptIsRunAgain) {
  int before_decode = 0;
  for (int32_t arrival = 36; arrival < 48; ++arrival) {
    FakeClock clock;
    PreemptionObserver observer;
    EngineOptions options = TinyOptions("");
    options.prefill_slice_tokens = 32;
    options.backend.threads = 1;
    options.kv_pool_bytes = BytesOfPages(options, 82);
    auto inner = CreateBackend(options.backend);
    ASSERT_THAT(inner, IsOk());
    Request late = MakeRequest(2, 440, 9);
    late.samples = 2;
    late.output.prompt_logprobs = true;  // takes about 21 steps
    late.stopping.time_limit_ms = 1000.0;
    late.cache_report = CacheReportDetail::kFull;
    const auto sink = std::make_shared<RecordingSink>();
    std::atomic<Engine*> engine{nullptr};
    Hooks hooks;
    hooks.decode = [&](const DecodeAttentionArgs& args) {
      if (engine.load() != nullptr && args.layer == 0 &&
          args.items[0].position == arrival) {
        EXPECT_THAT(engine.load()->Submit(late, sink), IsOk());
      }
      return absl::OkStatus();
    };
    hooks.prompt = [&](const PromptAttentionArgs&) {
      if (observer.preempted_now) clock.Advance(std::chrono::seconds(2));
      return absl::OkStatus();
    };
    TestEngine owner({.options = options,
                      .backend = std::make_unique<HookBackend>(
                          *std::move(inner), std::move(hooks)),
                      .observer = &observer,
                      .clock = &clock});
    engine = &*owner;
    // Three that grow together: they find no pages when they cross into another
    // one for the second time, 17 to 28 steps after the late one has come.
    Request early = MakeRequest(1, 20, 60);
    early.samples = 3;
    owner.RunAll(early);
    const std::vector<Outcome> outcomes = sink->WaitAll();
    owner.ExpectNothingHeld();
    if (observer.preempted == 0) continue;  // it has ended before
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.finish_reason, FinishReason::kTimeLimit);
      const bool had_prompt = !outcome.tokens.empty();
      ASSERT_EQ(outcome.cache_report.has_value(), had_prompt);
      if (!had_prompt) continue;
      for (const auto& layer : outcome.cache_report->at_end) {
        for (const HeldTokens& head : layer) {
          ASSERT_EQ(head.positions.size(), 440 + outcome.tokens.size() - 1);
          for (size_t i = 0; i < head.positions.size(); ++i) {
            ASSERT_EQ(head.positions[i], static_cast<int32_t>(i));
          }
        }
      }
      if (outcome.tokens.size() == 1) ++before_decode;
    }
  }
  EXPECT_GT(before_decode, 0);
}

TEST_F(PreemptedTest, TheEngineStops) {
  StartBoth(Long(1), Long(2));
  std::thread stopper(
      [this] { (*engine_)->Stop(absl::UnavailableError("down")); });
  preempted_.Open();
  stopper.join();
  EXPECT_TRUE(first_.second->ended());
  EXPECT_TRUE(second_.second->ended());
  engine_->ExpectNothingHeld();
}

}  // namespace
}  // namespace kf::engine
