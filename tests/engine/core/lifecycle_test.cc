// Requests that are refused, cancelled, late, or fail: nothing leaks, and what
// runs beside them does not notice.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "kernels/core/noise.h"
#include "kernels/ref/ref_backend.h"
#include "tests/engine/core/engine_harness.h"
#include "tests/engine/core/hook_backend.h"
#include "tests/testing/matchers.h"

namespace kf::engine {
namespace {

using ::kf::testing::IsOk;
using ::kf::testing::StatusIs;

std::unique_ptr<Backend> Hooked(Hooks hooks) {
  return std::make_unique<HookBackend>(CreateReferenceBackend(),
                                       std::move(hooks));
}

struct CountingObserver final : EngineObserver {
  void OnReceived() override { ++received; }
  void OnRejected(RejectReason) override { ++rejected; }
  void OnAdmitted(double, uint32_t, uint32_t) override { ++admitted; }
  void OnFirstToken(double) override { ++first_tokens; }
  void OnToken(double) override { ++later_tokens; }
  void OnEvicted(uint32_t tokens) override {
    evicted += static_cast<int>(tokens);
  }
  void OnSucceeded(FinishReason, const Usage&, double) override { ++succeeded; }
  void OnCancelled() override { ++cancelled; }
  void OnFailed(absl::StatusCode code) override {
    ++failed;
    last_code = code;
  }
  std::atomic<int> received{0}, rejected{0}, admitted{0}, first_tokens{0},
      later_tokens{0}, evicted{0}, succeeded{0}, cancelled{0}, failed{0};
  std::atomic<absl::StatusCode> last_code{absl::StatusCode::kOk};
};

TEST(LifecycleTest, ObserverSeesARequest) {
  CountingObserver observer;
  TestEngine engine({.observer = &observer});
  engine.Run(MakeKeyformerRequest(1, 40, 10, 16, 4));
  EXPECT_EQ(observer.received, 1);
  EXPECT_EQ(observer.admitted, 1);
  EXPECT_EQ(observer.first_tokens, 1);
  EXPECT_EQ(observer.later_tokens, 9);
  EXPECT_EQ(observer.evicted, 24 + 9);
  EXPECT_EQ(observer.succeeded, 1);
  EXPECT_EQ(observer.failed + observer.cancelled + observer.rejected, 0);
}

TEST(LifecycleTest, RefusalsNameTheNumbers) {
  CountingObserver observer;
  EngineOptions options = TinyOptions("");
  options.prefill_workspace_tokens = 100;
  options.kv_pool_bytes = 200000;
  TestEngine engine({.options = options, .observer = &observer});
  const auto sink = std::make_shared<RecordingSink>();
  EXPECT_THAT(
      engine->Submit(Request(), sink),
      StatusIs(absl::StatusCode::kInvalidArgument, "the prompt: 0 tokens"));
  EXPECT_THAT(engine->Submit(MakeRequest(1, 101, 1), sink),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "101 tokens, the prefill workspace holds 100"));
  EXPECT_THAT(engine->Submit(MakeRequest(1, 50, 460), sink),
              StatusIs(absl::StatusCode::kFailedPrecondition, "pages"));
  EXPECT_EQ(observer.rejected, 3);
  EXPECT_FALSE(sink->ended());
  engine.ExpectNothingHeld();
}

// One runs, held at the gate; the rest queue up behind it.
TEST(LifecycleTest, AFullQueueIsToldAtOnce) {
  Gate gate;
  EngineOptions options = TinyOptions("");
  options.max_batch = 1;
  options.max_queue_requests = 2;
  std::atomic<bool> armed{false};
  TestEngine engine({.options = options,
                     .backend = Hooked({.prompt =
                                            [&](const PromptAttentionArgs&) {
                                              if (armed) gate.Pass();
                                              return absl::OkStatus();
                                            },
                                        .decode = nullptr})});
  armed = true;
  const auto first = engine.Start(MakeRequest(1, 10, 3));
  gate.WaitUntilReached();
  const auto second = engine.Start(MakeRequest(2, 10, 3));
  const auto third = engine.Start(MakeRequest(3, 10, 3));
  EXPECT_EQ(engine->Stats().running, 1);
  EXPECT_EQ(engine->Stats().waiting, 2);
  EXPECT_EQ(engine->Stats().waiting_prompt_tokens, 20);
  EXPECT_THAT(
      engine->Submit(MakeRequest(4, 10, 3), std::make_shared<RecordingSink>()),
      StatusIs(absl::StatusCode::kResourceExhausted, "max_queue_requests"));
  // A cancelled one leaves the queue.
  engine->Cancel(second.first);
  gate.Open();
  EXPECT_THAT(first.second->Wait().status, IsOk());
  EXPECT_THAT(second.second->Wait().status,
              StatusIs(absl::StatusCode::kCancelled, ""));
  EXPECT_THAT(third.second->Wait().status, IsOk());
  engine.ExpectNothingHeld();
}

TEST(LifecycleTest, CancelInPrefillEndsWithinAStep) {
  Gate gate;
  std::atomic<int> calls{-1000};  // the warm-up's do not count
  EngineOptions options = TinyOptions("");
  options.prefill_slice_tokens = 32;
  TestEngine engine({.options = options,
                     .backend = Hooked({.prompt =
                                            [&](const PromptAttentionArgs&) {
                                              if (++calls == 1) gate.Pass();
                                              return absl::OkStatus();
                                            },
                                        .decode = nullptr})});
  calls = 0;
  const auto [id, sink] = engine.Start(MakeRequest(1, 500, 3));
  gate.WaitUntilReached();
  engine->Cancel(id);
  gate.Open();
  EXPECT_THAT(sink->Wait().status, StatusIs(absl::StatusCode::kCancelled, ""));
  EXPECT_EQ(calls, 1);  // 64 rows are one call, and one step
  engine.ExpectNothingHeld();
  EXPECT_EQ(engine.Run(MakeRequest(2, 500, 3)).tokens.size(), 3U);
}

TEST(LifecycleTest, CancelWhileDecoding) {
  CountingObserver observer;
  TestEngine engine({.observer = &observer});
  const auto [id, sink] = engine.Start(MakeRequest(1, 10, 500));
  const Outcome beside = engine.Run(MakeRequest(2, 10, 5));
  engine->Cancel(id);
  engine->Cancel(id);
  engine->Cancel(12345);
  const Outcome outcome = sink->Wait();
  EXPECT_EQ(beside.tokens.size(), 5U);
  if (outcome.status.ok()) {
    EXPECT_EQ(outcome.tokens.size(), 500U);  // it was faster
  } else {
    EXPECT_THAT(outcome.status, StatusIs(absl::StatusCode::kCancelled, ""));
    EXPECT_EQ(observer.cancelled, 1);
  }
  engine.ExpectNothingHeld();
}

// Time moves inside decode step 5, so exactly 1 + 5 tokens come out.
struct TimeCase {
  const char* name;
  bool deadline;
};
class TimeTest : public ::testing::TestWithParam<TimeCase> {};
TEST_P(TimeTest, EndsAfterTheStepInWhichTimeIsUp) {
  FakeClock clock;
  CountingObserver observer;
  std::atomic<int> steps{-1000};
  TestEngine engine(
      {.backend = Hooked({.prompt = nullptr,
                          .decode =
                              [&](const DecodeAttentionArgs& a) {
                                if (a.layer == 0 && ++steps == 5) {
                                  clock.Advance(std::chrono::seconds(10));
                                }
                                return absl::OkStatus();
                              }}),
       .observer = &observer,
       .clock = &clock});
  steps = 0;
  Request request = MakeRequest(1, 10, 100);
  if (GetParam().deadline) {
    request.deadline = clock.Now() + std::chrono::seconds(10);
  } else {
    request.stopping.time_limit_ms = 1e4;
  }
  const Outcome outcome = engine.Run(request);
  EXPECT_EQ(outcome.tokens.size(), 6U);
  if (GetParam().deadline) {
    EXPECT_THAT(outcome.status,
                StatusIs(absl::StatusCode::kDeadlineExceeded, "deadline"));
    EXPECT_EQ(observer.last_code, absl::StatusCode::kDeadlineExceeded);
  } else {
    EXPECT_THAT(outcome.status, IsOk());
    EXPECT_EQ(outcome.finish_reason, FinishReason::kTimeLimit);
    EXPECT_EQ(outcome.usage.generated_tokens, 6U);
    EXPECT_EQ(outcome.usage.decode_ms, 1e4);
    EXPECT_EQ(observer.succeeded, 1);
  }
  engine.ExpectNothingHeld();
  EXPECT_GT(engine->Stats().generation_tokens_per_second, 0.0);
  clock.Advance(std::chrono::seconds(10));
  EXPECT_EQ(engine->Stats().generation_tokens_per_second, 0.0);
}
INSTANTIATE_TEST_SUITE_P(Kinds,
                         TimeTest,
                         ::testing::Values(TimeCase{"Deadline", true},
                                           TimeCase{"TimeLimit", false}),
                         [](const auto& p) {
                           return std::string(p.param.name);
                         });

TEST(LifecycleTest, ADeadlineThatHasPassedEndsBeforeAdmission) {
  FakeClock clock;
  CountingObserver observer;
  TestEngine engine({.observer = &observer, .clock = &clock});
  Request request = MakeRequest(1, 10, 10);
  request.deadline = clock.Now();
  EXPECT_THAT(engine.Run(request).status,
              StatusIs(absl::StatusCode::kDeadlineExceeded, ""));
  EXPECT_EQ(observer.admitted, 0);
  EXPECT_EQ(observer.failed, 1);
  engine.ExpectNothingHeld();
}

TEST(LifecycleTest, TimeLimitWhileQueuedIsAnOrdinaryEnd) {
  Gate gate;
  FakeClock clock;
  std::atomic<bool> armed{false};
  EngineOptions options = TinyOptions("");
  options.max_batch = 1;
  TestEngine engine({.options = options,
                     .backend = Hooked({.prompt =
                                            [&](const PromptAttentionArgs&) {
                                              if (armed) gate.Pass();
                                              return absl::OkStatus();
                                            }}),
                     .clock = &clock});
  armed = true;
  const auto first = engine.Start(MakeRequest(1, 10, 5));
  gate.WaitUntilReached();
  Request limited = MakeRequest(2, 10, 5);
  limited.stopping.time_limit_ms = 100.0;
  limited.output.echo_prompt = true;
  limited.prompt_text = "prompt";
  const auto second = engine.Start(limited);
  clock.Advance(std::chrono::milliseconds(100));
  gate.Open();
  const Outcome outcome = second.second->Wait();
  EXPECT_THAT(outcome.status, IsOk());
  EXPECT_EQ(outcome.finish_reason, FinishReason::kTimeLimit);
  EXPECT_EQ(outcome.firsts, 1);
  EXPECT_EQ(outcome.text, "prompt");
  EXPECT_TRUE(outcome.tokens.empty());
  EXPECT_EQ(outcome.usage.queue_ms, 100.0);
  EXPECT_EQ(outcome.usage.prefill_ms, 0.0);
  EXPECT_EQ(first.second->Wait().tokens.size(), 5U);
  engine.ExpectNothingHeld();
}

constexpr uint64_t kPoisonSeed = 666;

// Spoils rows of the request whose noise seed is kPoisonSeed.
TEST(LifecycleTest, ABadRowEndsItsSequenceAlone) {
  CountingObserver observer;
  TestEngine engine(
      {.backend = Hooked(
           {.prompt = nullptr,
            .decode =
                [](const DecodeAttentionArgs& args) {
                  for (size_t i = 0; i < args.items.size(); ++i) {
                    if (args.items[i].score.seed == kPoisonSeed &&
                        args.items[i].position == 25) {
                      args.out[static_cast<int64_t>(i) * args.shape.out_dim()] =
                          std::numeric_limits<float>::quiet_NaN();
                    }
                  }
                  return absl::OkStatus();
                }}),
       .observer = &observer});
  const Outcome alone = engine.Run(MakeKeyformerRequest(7, 20, 40, 12, 4));
  const auto good = engine.Start(MakeKeyformerRequest(7, 20, 40, 12, 4));
  Request poisoned = MakeKeyformerRequest(8, 20, 40, 12, 4);
  poisoned.cache.noise_seed = kPoisonSeed;
  const auto bad = engine.Start(poisoned);
  const Outcome outcome = bad.second->Wait();
  EXPECT_THAT(outcome.status, IsOk());
  EXPECT_EQ(outcome.finish_reason, FinishReason::kError);
  EXPECT_EQ(outcome.tokens.size(), 6U);  // positions 19 .. 24 were fine
  EXPECT_TRUE(SameAnswer(good.second->Wait(), alone));
  EXPECT_EQ(observer.failed, 1);
  EXPECT_EQ(observer.last_code, absl::StatusCode::kInternal);
  engine.ExpectNothingHeld();
  EXPECT_TRUE(
      SameAnswer(engine.Run(MakeKeyformerRequest(7, 20, 40, 12, 4)), alone));
}

TEST(LifecycleTest, AFailedStepEndsItsRequestsAndTheEngineLives) {
  std::atomic<bool> broken{false};
  const auto fail = [&](const auto&) -> absl::Status {
    return broken ? absl::InternalError("out of order") : absl::OkStatus();
  };
  TestEngine engine({.backend = Hooked({.prompt = fail, .decode = fail})});
  const Outcome before = engine.Run(MakeRequest(1, 10, 5));
  broken = true;
  EXPECT_THAT(engine.Run(MakeRequest(1, 10, 5)).status,
              StatusIs(absl::StatusCode::kInternal, "out of order"));
  engine.ExpectNothingHeld();
  broken = false;
  EXPECT_TRUE(SameAnswer(engine.Run(MakeRequest(1, 10, 5)), before));
  // And while decoding.
  const auto [id, sink] = engine.Start(MakeRequest(1, 10, 500));
  sink->WaitForUpdates(2);
  broken = true;
  const Outcome outcome = sink->Wait();
  EXPECT_TRUE(!outcome.status.ok() || outcome.tokens.size() == 500U);
  broken = false;
  engine.ExpectNothingHeld();
  EXPECT_TRUE(SameAnswer(engine.Run(MakeRequest(1, 10, 5)), before));
}

TEST(LifecycleTest, TwoHundredRandomCancels) {
  CountingObserver observer;
  EngineOptions options = TinyOptions("");
  options.max_batch = 4;
  options.prefill_slice_tokens = 64;
  TestEngine engine({.options = options, .observer = &observer});
  const Outcome alone = engine.Run(MakeKeyformerRequest(1, 50, 30, 20, 6));
  std::vector<std::pair<RequestId, std::shared_ptr<RecordingSink>>> running;
  for (uint32_t i = 0; i < 200; ++i) {
    const uint32_t draw = MixBits(i);
    running.push_back(engine.Start(MakeKeyformerRequest(
        i, 1 + static_cast<int32_t>(draw % 300), 50, 30, 9)));
    if (draw % 3 == 0) {
      running.back().second->WaitForUpdates(static_cast<int>((draw >> 8) % 9));
    }
    if (running.size() < 1 + (draw >> 16) % 8) continue;
    for (const auto& [id, sink] : running) engine->Cancel(id);
    for (const auto& [id, sink] : running) sink->Wait();
    running.clear();
  }
  for (const auto& [id, sink] : running) engine->Cancel(id);
  for (const auto& [id, sink] : running) sink->Wait();
  engine.ExpectNothingHeld();
  EXPECT_EQ(observer.received, 201);
  EXPECT_EQ(observer.cancelled + observer.succeeded, 201);
  EXPECT_GT(observer.cancelled, 100);
  EXPECT_TRUE(
      SameAnswer(engine.Run(MakeKeyformerRequest(1, 50, 30, 20, 6)), alone));
}

TEST(LifecycleTest, DrainFinishesWhatRunsAndRefusesTheRest) {
  TestEngine engine;
  const auto [id, sink] = engine.Start(MakeRequest(1, 10, 200));
  engine->Drain();
  EXPECT_TRUE(engine->Stats().draining);
  EXPECT_THAT(
      engine->Submit(MakeRequest(2, 10, 3), std::make_shared<RecordingSink>()),
      StatusIs(absl::StatusCode::kUnavailable, "draining"));
  EXPECT_TRUE(engine->WaitIdle(kPatience));
  EXPECT_TRUE(sink->ended());
  EXPECT_EQ(sink->Wait().tokens.size(), 200U);
  engine.ExpectNothingHeld();
}

TEST(LifecycleTest, WaitIdleGivesUpAndStopEndsTheRest) {
  Gate gate;
  std::atomic<bool> armed{false};
  TestEngine engine({.backend = Hooked({.prompt =
                                            [&](const PromptAttentionArgs&) {
                                              if (armed) gate.Pass();
                                              return absl::OkStatus();
                                            },
                                        .decode = nullptr})});
  armed = true;
  const auto [id, sink] = engine.Start(MakeRequest(1, 10, 500));
  gate.WaitUntilReached();
  EXPECT_FALSE(engine->WaitIdle(std::chrono::milliseconds(1)));
  std::thread stopper(
      [&] { engine->Stop(absl::UnavailableError("shutting down")); });
  gate.Open();
  stopper.join();
  engine->Stop(absl::InternalError("the second call changes nothing"));
  EXPECT_THAT(sink->Wait().status,
              StatusIs(absl::StatusCode::kUnavailable, "shutting down"));
  EXPECT_TRUE(engine->WaitIdle(kPatience));
  EXPECT_THAT(
      engine->Submit(MakeRequest(2, 10, 3), std::make_shared<RecordingSink>()),
      StatusIs(absl::StatusCode::kUnavailable, ""));
  EXPECT_EQ(sink.use_count(), 1);
}

TEST(LifecycleTest, SubmitFromManyThreads) {
  TestEngine engine;
  std::vector<Outcome> outcomes(8);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < outcomes.size(); ++t) {
    threads.emplace_back([&, t] {
      outcomes[t] = engine.Run(MakeRequest(5, 30, 12));
      engine->Stats();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(SameAnswer(outcome, outcomes[0]));
  }
  engine.ExpectNothingHeld();
}

TEST(LifecycleTest, BadOptionsNameTheField) {
  const SteadyClock clock;
  EngineOptions options = TinyOptions("/nonexistent/model.gguf");
  EXPECT_THAT(Engine::Create(options, clock, nullptr),
              StatusIs(absl::StatusCode::kNotFound, "model.gguf"));
  options.max_batch = 0;
  EXPECT_THAT(Engine::Create(options, clock, nullptr),
              StatusIs(absl::StatusCode::kInvalidArgument, "max_batch: 0"));
  options.max_batch = 5000;
  EXPECT_THAT(Engine::Create(options, clock, nullptr),
              StatusIs(absl::StatusCode::kInvalidArgument, "max_batch: 5000"));
  options = TinyOptions("x");
  options.prefill_slice_tokens = 31;
  EXPECT_THAT(
      Engine::Create(options, clock, nullptr),
      StatusIs(absl::StatusCode::kInvalidArgument, "prefill_slice_tokens: 31"));
  options = TinyOptions("x");
  options.cache_dtype = DType::kQ8_0;
  EXPECT_THAT(Engine::Create(options, clock, nullptr),
              StatusIs(absl::StatusCode::kInvalidArgument, "cache_dtype"));
}

TEST(LifecycleTest, ABackendMayHaveNoByteCache) {
  const SteadyClock clock;
  const testing::TempDir dir;
  EngineOptions options =
      TinyOptions(testing::WriteTinyModel({}, dir.File("tiny.gguf")));
  options.cache_dtype = DType::kI8;
  const auto create = [&](bool no_byte_cache) {
    Hooks hooks;
    hooks.no_byte_cache = no_byte_cache;
    return Engine::Create(options, clock, nullptr, Hooked(std::move(hooks)))
        .status();
  };
  EXPECT_THAT(create(true),
              StatusIs(absl::StatusCode::kUnimplemented,
                       "cache_dtype: q8 is not served by the reference "
                       "backend, want bf16 or f32"));
  EXPECT_THAT(create(false), IsOk());
}

}  // namespace
}  // namespace kf::engine
