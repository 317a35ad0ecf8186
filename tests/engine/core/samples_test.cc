// Several samples of one prompt: each is what it would be alone, and takes no
// more room than it needs.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <string>
#include <tuple>

#include "kernels/ref/ref_backend.h"
#include "tests/engine/core/engine_harness.h"
#include "tests/engine/core/hook_backend.h"
#include "tests/testing/matchers.h"

namespace kf::engine {
namespace {

using ::kf::testing::IsOk;
using ::kf::testing::StatusIs;

constexpr int32_t kLayers = testing::TinyModelSpec{}.layers;

Request Sampled(Request request, uint32_t samples) {
  request.samples = samples;
  request.sampling.temperature = 1.0;
  request.cache_report = CacheReportDetail::kFull;
  return request;
}

Request Solo(Request request, uint32_t stream) {
  request.samples = 1;
  request.first_stream = stream;
  return request;
}

void ExpectSame(const Outcome& got,
                const Outcome& want,
                const std::string& what) {
  EXPECT_EQ(got.tokens, want.tokens) << what;
  EXPECT_EQ(got.text, want.text) << what;
  EXPECT_EQ(got.finish_reason, want.finish_reason) << what;
  EXPECT_EQ(got.status, want.status) << what;
  ASSERT_EQ(got.logprobs.size(), want.logprobs.size()) << what;
  for (size_t i = 0; i < want.logprobs.size(); ++i) {
    EXPECT_EQ(got.logprobs[i].logprob, want.logprobs[i].logprob) << what;
  }
  ASSERT_TRUE(got.cache_report && want.cache_report) << what;
  EXPECT_TRUE(SameCaches(got.cache_report->after_prompt,
                         want.cache_report->after_prompt))
      << what;
  EXPECT_TRUE(SameCaches(got.cache_report->at_end, want.cache_report->at_end))
      << what;
}

struct PolicyCase {
  const char* name;
  Request (*make)();
};

class SamplesTest
    : public ::testing::TestWithParam<std::tuple<const char*, PolicyCase>> {};

TEST_P(SamplesTest, EachIsWhatItWouldBeAlone) {
  const auto& [backend, policy] = GetParam();
  EngineOptions options = TinyOptions("");
  options.backend.name = backend;
  TestEngine engine({.options = options});
  const Request request = Sampled(policy.make(), 4);
  std::vector<Outcome> alone;
  for (uint32_t i = 0; i < 4; ++i) {
    alone.push_back(engine.Run(Solo(request, i)));
  }
  EXPECT_NE(alone[0].tokens, alone[1].tokens);
  // Alone, and among others that come and go.
  for (const bool busy : {false, true}) {
    std::vector<std::shared_ptr<RecordingSink>> others;
    if (busy) {
      others.push_back(
          engine.Start(MakeKeyformerRequest(9, 50, 30, 20, 5)).second);
      others.push_back(engine.Start(Sampled(MakeRequest(8, 21, 9), 3)).second);
      others.back()->WaitForUpdates(4);
    }
    const auto sink = engine.Start(request).second;
    const std::vector<Outcome> together = sink->WaitAll();
    ASSERT_EQ(together.size(), 4U);
    for (size_t i = 0; i < 4; ++i) {
      ExpectSame(together[i], alone[i],
                 "sample " + std::to_string(i) + (busy ? ", busy" : ""));
    }
    EXPECT_EQ(together[0].firsts, 1);
    EXPECT_EQ(together[0].first_usage.prompt_tokens, request.prompt.size());
    const Usage usage = sink->last_usage();
    EXPECT_EQ(usage.generated_tokens, 4 * *request.stopping.max_new_tokens);
    EXPECT_EQ(usage.evicted_tokens, 4 * alone[0].usage.evicted_tokens);
    for (const auto& other : others) other->Wait();
    engine.ExpectNothingHeld();
  }
}

template <CachePolicy kPolicy>
Request Evicting() {
  Request request = MakeKeyformerRequest(5, 47, 30, 32, 0);
  request.cache.policy = kPolicy;
  request.cache.recent_tokens.reset();
  return request;
}

INSTANTIATE_TEST_SUITE_P(
    Policies,
    SamplesTest,
    ::testing::Combine(
        ::testing::Values("reference", "cpu"),
        ::testing::Values(
            PolicyCase{"Full", [] { return MakeRequest(1, 40, 25); }},
            PolicyCase{"FullToThePageBorder",
                       [] { return MakeRequest(2, 32, 17); }},
            PolicyCase{"Keyformer",
                       [] { return MakeKeyformerRequest(3, 70, 30, 20, 5); }},
            PolicyCase{"KeyformerWithRoom",
                       [] { return MakeKeyformerRequest(4, 20, 9, 64, 5); }},
            PolicyCase{"KeyformerByLayerAndAge",
                       [] {
                         Request r = MakeKeyformerRequest(6, 70, 30, 20, 5);
                         r.cache.scope = SelectionScope::kLayer;
                         r.cache.score_norm = ScoreNorm::kAge;
                         return r;
                       }},
            PolicyCase{"KeyformerByModelAndRank",
                       [] {
                         Request r = MakeKeyformerRequest(6, 130, 30, 20, 5);
                         r.cache.scope = SelectionScope::kModel;
                         r.cache.positions = CachePositions::kCache;
                         return r;
                       }},
            PolicyCase{"H2O", Evicting<CachePolicy::kH2O>},
            PolicyCase{"Window", Evicting<CachePolicy::kWindow>},
            // The 257th token begins a second page of bounds.
            PolicyCase{"QuestAcrossBounds",
                       [] {
                         Request r = MakeRequest(8, 250, 20);
                         r.cache.policy = CachePolicy::kQuest;
                         r.cache.tokens = 40;
                         r.cache.full_layers = 0;
                         return r;
                       }},
            PolicyCase{"Quest",
                       [] {
                         Request r = MakeRequest(7, 270, 40);
                         r.cache.policy = CachePolicy::kQuest;
                         r.cache.tokens = 48;
                         r.cache.full_layers = 1;
                         return r;
                       }})),
    [](const auto& param) {
      return std::string(std::get<0>(param.param)) +
             std::get<1>(param.param).name;
    });

// Without sampling the samples still differ in the noise of their scores.
TEST(SamplesTest, EachHasItsOwnNoise) {
  EngineOptions options = TinyOptions("");
  options.backend.name = "reference";
  TestEngine engine({.options = options});
  Request request = Sampled(MakeKeyformerRequest(3, 70, 40, 20, 5), 2);
  request.sampling.temperature = 0.0;
  const std::vector<Outcome> samples = engine.RunAll(request);
  EXPECT_TRUE(SameCaches(samples[0].cache_report->after_prompt,
                         samples[1].cache_report->after_prompt));
  EXPECT_FALSE(SameCaches(samples[0].cache_report->at_end,
                          samples[1].cache_report->at_end));
}

// What the engine holds at each decode step, seen from inside of it.
struct Watch {
  std::atomic<Engine*> engine{nullptr};
  std::vector<int64_t> pages;  // in use, per layer
  std::vector<size_t> rows;
  std::atomic<int> copies{0};

  std::unique_ptr<kf::Backend> Hooked() {
    return std::make_unique<HookBackend>(
        CreateReferenceBackend(),
        Hooks{.decode =
                  [this](const DecodeAttentionArgs& args) {
                    if (engine.load() != nullptr && args.layer == 0) {
                      rows.push_back(args.items.size());
                    }
                    return absl::OkStatus();
                  },
              .copy =
                  [this](std::span<const PageCopy> pages_copied) {
                    copies += static_cast<int>(pages_copied.size());
                    return absl::OkStatus();
                  }});
  }
};

class PageWatcher final : public EngineObserver {
 public:
  explicit PageWatcher(Watch& watch) : watch_(watch) {}
  void OnStep(const StepReport& report) override {
    const Engine* engine = watch_.engine;
    if (engine == nullptr || report.decode_rows == 0) return;
    const EngineStats stats = engine->Stats();
    watch_.pages.push_back((stats.pages_total - stats.pages_free) / kLayers);
  }

 private:
  Watch& watch_;
};

// 40 tokens are two whole pages, which stay in common, and half of a third: it
// is copied for all but the last to write there.
TEST(SamplesTest, FullSharesThePromptsPages) {
  Watch watch;
  PageWatcher observer(watch);
  TestEngine engine({.backend = watch.Hooked(), .observer = &observer});
  watch.engine = &*engine;
  const auto samples = engine.RunAll(Sampled(MakeRequest(1, 40, 27), 3));
  EXPECT_EQ(samples.size(), 3U);
  engine.ExpectNothingHeld();
  // Until position 47 three pages of the first, and two copies; then a fourth
  // and a fifth page of each, as they come there.
  ASSERT_EQ(watch.pages.size(), 26U);
  EXPECT_EQ(watch.pages[0], 3 + 2);
  EXPECT_EQ(watch.pages[7], 3 + 2);
  EXPECT_EQ(watch.pages[8], 3 + 2 + 3);
  EXPECT_EQ(watch.pages[24], 2 + 3 * 3);
  EXPECT_EQ(watch.copies, 2 * kLayers);  // pages that begin empty need none
}

TEST(SamplesTest, AnEvictingPolicyCopiesItsPages) {
  Watch watch;
  PageWatcher observer(watch);
  TestEngine engine({.backend = watch.Hooked(), .observer = &observer});
  watch.engine = &*engine;
  engine.RunAll(Sampled(MakeKeyformerRequest(1, 100, 5, 40, 10), 3));
  engine.ExpectNothingHeld();
  EXPECT_EQ(watch.pages[0], 3 * 3);  // ceil(41 / 16) of each
  EXPECT_EQ(watch.copies, 2 * 3 * kLayers);
}

// A token that one sample comes to before the others ends it there: its rows
// and pages are free for who waits, while the others go on.
TEST(SamplesTest, EachEndsOnItsOwn) {
  Watch watch;
  PageWatcher observer(watch);
  EngineOptions options = TinyOptions("");
  options.max_batch = 3;
  TestEngine engine(
      {.options = options, .backend = watch.Hooked(), .observer = &observer});
  Request request = Sampled(MakeKeyformerRequest(1, 40, 40, 20, 5), 3);
  const std::vector<Outcome> free = engine.RunAll(request);
  const TokenId stop = free[1].tokens[4];
  const auto end_of = [stop](const Outcome& outcome) {
    return static_cast<size_t>(
        std::find(outcome.tokens.begin(), outcome.tokens.end(), stop) -
        outcome.tokens.begin());
  };
  request.stopping.stop_token_ids = {stop};
  watch.engine = &*engine;
  const auto sink = engine.Start(request).second;
  const auto waiting = engine.Start(MakeKeyformerRequest(7, 10, 3, 8, 2));
  const std::vector<Outcome> samples = sink->WaitAll();
  const Outcome next = waiting.second->Wait();
  EXPECT_THAT(next.status, IsOk());
  uint32_t generated = 0;
  bool apart = false;
  for (size_t i = 0; i < 3; ++i) {
    const size_t end = end_of(free[i]);
    const bool stopped = end < 40;
    EXPECT_EQ(samples[i].finish_reason,
              stopped ? FinishReason::kStop : FinishReason::kLength);
    EXPECT_EQ(samples[i].tokens.size(), stopped ? end + 1 : 40U);
    EXPECT_TRUE(std::equal(samples[i].tokens.begin(), samples[i].tokens.end(),
                           free[i].tokens.begin()));
    generated += static_cast<uint32_t>(samples[i].tokens.size());
    apart = apart || samples[i].tokens.size() != samples[0].tokens.size();
  }
  EXPECT_TRUE(apart);
  EXPECT_EQ(sink->last_usage().generated_tokens, generated);
  // Rows never exceed the batch, and the one that waited ran beside the rest.
  EXPECT_EQ(*std::max_element(watch.rows.begin(), watch.rows.end()), 3U);
  EXPECT_LT(next.usage.queue_ms, samples[0].usage.decode_ms + 1e6);
  engine.ExpectNothingHeld();
}

TEST(SamplesTest, NoTokensAreStillSeveralSequences) {
  EngineOptions options = TinyOptions("");
  options.backend.name = "reference";
  TestEngine engine({.options = options});
  Request request = Sampled(MakeKeyformerRequest(1, 40, 0, 20, 5), 3);
  request.output.prompt_logprobs = true;
  request.output.echo_prompt = true;
  request.prompt_text = "prompt";
  const std::vector<Outcome> samples = engine.RunAll(request);
  ASSERT_EQ(samples.size(), 3U);
  for (const Outcome& sample : samples) {
    EXPECT_EQ(sample.finish_reason, FinishReason::kLength);
    EXPECT_EQ(sample.text, "prompt");
    EXPECT_TRUE(SameCaches(sample.cache_report->at_end,
                           samples[0].cache_report->after_prompt));
  }
  EXPECT_EQ(samples[0].prompt_logprobs.size(), 39U);
  EXPECT_EQ(samples[1].prompt_logprobs.size(), 0U);
  engine.ExpectNothingHeld();
}

TEST(SamplesTest, MoreThanABatchHoldsAreRefused) {
  EngineOptions options = TinyOptions("");
  options.max_batch = 3;
  TestEngine engine({.options = options});
  EXPECT_THAT(engine->Submit(Sampled(MakeRequest(1, 10, 5), 4),
                             std::make_shared<RecordingSink>()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "4 sequences, the batch holds 3"));
  engine.ExpectNothingHeld();
}

TEST(SamplesTest, TheirPagesAreCountedBeforeTheyRun) {
  EngineOptions options = TinyOptions("");
  options.kv_pool_bytes = 200000;
  TestEngine engine({.options = options});
  const Request one = MakeKeyformerRequest(1, 100, 50, 60, 5);
  EXPECT_THAT(engine.Run(one).status, IsOk());
  EXPECT_THAT(
      engine->Submit(Sampled(one, 16), std::make_shared<RecordingSink>()),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               "pages for 16 sequences"));
  engine.ExpectNothingHeld();
}

TEST(SamplesTest, ATimeLimitEndsThemAll) {
  FakeClock clock;
  std::atomic<int> steps{-1000};
  TestEngine engine({.backend = std::make_unique<HookBackend>(
                         CreateReferenceBackend(),
                         Hooks{.decode =
                                   [&](const DecodeAttentionArgs& a) {
                                     if (a.layer == 0 && ++steps == 5) {
                                       clock.Advance(std::chrono::seconds(10));
                                     }
                                     return absl::OkStatus();
                                   }}),
                     .clock = &clock});
  steps = 0;
  Request request = Sampled(MakeRequest(1, 10, 100), 3);
  request.stopping.time_limit_ms = 1e4;
  const auto sink = engine.Start(request).second;
  for (const Outcome& sample : sink->WaitAll()) {
    EXPECT_THAT(sample.status, IsOk());
    EXPECT_EQ(sample.finish_reason, FinishReason::kTimeLimit);
    EXPECT_EQ(sample.tokens.size(), 6U);
  }
  EXPECT_EQ(sink->last_usage().generated_tokens, 18U);
  engine.ExpectNothingHeld();
}

TEST(SamplesTest, ABadRowEndsItsSampleAlone) {
  TestEngine engine(
      {.backend = std::make_unique<HookBackend>(
           CreateReferenceBackend(),
           Hooks{.decode = [](const DecodeAttentionArgs& args) {
             for (size_t i = 0; i < args.items.size(); ++i) {
               if (args.items[i].score.stream == 1 &&
                   args.items[i].position == 25) {
                 args.out[static_cast<int64_t>(i) * args.shape.out_dim()] =
                     std::numeric_limits<float>::quiet_NaN();
               }
             }
             return absl::OkStatus();
           }})});
  const Request request = Sampled(MakeKeyformerRequest(8, 20, 40, 12, 4), 3);
  const std::vector<Outcome> samples = engine.RunAll(request);
  EXPECT_EQ(samples[1].finish_reason, FinishReason::kError);
  EXPECT_EQ(samples[1].tokens.size(), 6U);
  ExpectSame(samples[0], engine.Run(Solo(request, 0)), "sample 0");
  ExpectSame(samples[2], engine.Run(Solo(request, 2)), "sample 2");
  engine.ExpectNothingHeld();
}

TEST(SamplesTest, ACopyThatFailsEndsTheRequestAlone) {
  std::atomic<bool> broken{false};
  TestEngine engine({.backend = std::make_unique<HookBackend>(
                         CreateReferenceBackend(),
                         Hooks{.copy = [&](std::span<const PageCopy>) {
                           return broken ? absl::InternalError("no copies")
                                         : absl::OkStatus();
                         }})});
  const Request request = Sampled(MakeKeyformerRequest(8, 20, 10, 12, 4), 2);
  const std::vector<Outcome> before = engine.RunAll(request);
  broken = true;
  EXPECT_THAT(engine.RunAll(request)[0].status,
              StatusIs(absl::StatusCode::kInternal, "no copies"));
  EXPECT_THAT(engine.Run(Solo(request, 0)).status, IsOk());
  engine.ExpectNothingHeld();
  broken = false;
  ExpectSame(engine.RunAll(request)[1], before[1], "sample 1");
}

// With every kind of end at random moments, beside others.
TEST(SamplesTest, ManyCancelsLeaveNothing) {
  EngineOptions options = TinyOptions("");
  options.max_batch = 6;
  options.prefill_slice_tokens = 32;
  TestEngine engine({.options = options});
  std::vector<std::pair<RequestId, std::shared_ptr<RecordingSink>>> running;
  for (uint32_t i = 0; i < 60; ++i) {
    const uint32_t draw = MixBits(i);
    const auto tokens = 1 + static_cast<int32_t>(draw % 60);
    Request request = draw % 2 == 0
                          ? MakeRequest(i, tokens, 20)
                          : MakeKeyformerRequest(i, tokens, 20, 12, 3);
    request = Sampled(std::move(request), 1 + (draw >> 8) % 5);
    request.stopping.stop_token_ids = {
        static_cast<TokenId>((draw >> 9) % 256),
        static_cast<TokenId>((draw >> 17) % 256)};
    running.push_back(engine.Start(std::move(request)));
    if (draw % 3 == 0) {
      running.back().second->WaitForUpdates(
          static_cast<int>((draw >> 12) % 30));
    }
    if (running.size() < 1 + (draw >> 16) % 6) continue;
    engine->Cancel(running[draw % running.size()].first);
    for (const auto& [id, sink] : running) sink->Wait();
    running.clear();
  }
  for (const auto& [id, sink] : running) sink->Wait();
  engine.ExpectNothingHeld();
}

}  // namespace
}  // namespace kf::engine
