// Beam search through the engine. That it is the oracle's, kept sets included,
// is shown by tests/golden; here: what surrounds it.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/ref/ref_backend.h"
#include "tests/engine/core/engine_harness.h"
#include "tests/engine/core/hook_backend.h"
#include "tests/testing/matchers.h"

namespace kf::engine {
namespace {

using ::kf::testing::IsOk;
using ::kf::testing::StatusIs;

constexpr int32_t kTinyLayers = testing::TinyModelSpec{}.layers;

Request Beams(Request request, uint32_t width) {
  request.beam = BeamParams{.width = width};
  request.output.logprobs = false;
  request.output.top_logprobs = 0;
  request.cache_report = CacheReportDetail::kFull;
  return request;
}

Request ByScope(SelectionScope scope) {
  Request request = MakeKeyformerRequest(6, 70, 30, 20, 5);
  request.cache.scope = scope;
  return request;
}

struct BeamCase {
  const char* name;
  Request (*make)();
};

class BeamsTest
    : public ::testing::TestWithParam<std::tuple<const char*, BeamCase>> {
 protected:
  static EngineOptions Options() {
    EngineOptions options = TinyOptions("");
    options.backend.name = std::get<0>(GetParam());
    return options;
  }
  static Request Make() { return std::get<1>(GetParam()).make(); }
};

// One beam takes the best token at each step, and sees what greedy sees.
TEST_P(BeamsTest, OfWidthOneAreGreedy) {
  TestEngine engine({.options = Options()});
  Request greedy = Make();
  greedy.cache_report = CacheReportDetail::kFull;
  const Outcome want = engine.Run(greedy);
  const std::vector<Outcome> got = engine.RunAll(Beams(Make(), 1));
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(got[0].tokens, want.tokens);
  EXPECT_EQ(got[0].text, want.text);
  EXPECT_EQ(got[0].finish_reason, FinishReason::kLength);
  EXPECT_TRUE(
      SameCaches(got[0].cache_report->at_end, want.cache_report->at_end));
  double sum = 0.0;
  for (const TokenLogprob& logprob : want.logprobs) sum += logprob.logprob;
  EXPECT_NEAR(got[0].score * static_cast<double>(want.tokens.size()), sum,
              1e-9);
  engine.ExpectNothingHeld();
}

TEST_P(BeamsTest, ComeOrderedAndWhole) {
  TestEngine engine({.options = Options()});
  const auto sink = engine.Start(Beams(Make(), 3)).second;
  const std::vector<Outcome> beams = sink->WaitAll();
  ASSERT_EQ(beams.size(), 3U);
  uint32_t generated = 0;
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_THAT(beams[i].status, IsOk());
    EXPECT_EQ(beams[i].updates, 1);
    EXPECT_EQ(beams[i].tokens.size(), *Make().stopping.max_new_tokens);
    EXPECT_FALSE(beams[i].text.empty());
    generated += static_cast<uint32_t>(beams[i].tokens.size());
    if (i == 0) continue;
    EXPECT_LE(beams[i].score, beams[i - 1].score);
    EXPECT_NE(beams[i].tokens, beams[i - 1].tokens);
    // One kept set.
    EXPECT_TRUE(SameCaches(beams[i].cache_report->at_end,
                           beams[0].cache_report->at_end));
  }
  EXPECT_EQ(beams[0].firsts, 1);
  EXPECT_EQ(sink->last_usage().generated_tokens, generated);
  engine.ExpectNothingHeld();
}

// The same bits, whoever else is in the batch, however the prompt is sliced.
TEST_P(BeamsTest, DependOnNothingElse) {
  TestEngine alone({.options = Options()});
  const std::vector<Outcome> want = alone.RunAll(Beams(Make(), 4));
  EngineOptions options = Options();
  options.prefill_slice_tokens = 32;
  options.backend.threads = 3;
  TestEngine busy({.options = options});
  const auto other = busy.Start(MakeKeyformerRequest(9, 50, 60, 20, 5)).second;
  other->WaitForUpdates(2);
  const auto again = busy.Start(Beams(Make(), 2)).second;
  const std::vector<Outcome> got = busy.RunAll(Beams(Make(), 4));
  ASSERT_EQ(got.size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(got[i].tokens, want[i].tokens) << i;
    EXPECT_EQ(got[i].score, want[i].score) << i;
    EXPECT_TRUE(
        SameCaches(got[i].cache_report->at_end, want[i].cache_report->at_end));
  }
  again->Wait();
  other->Wait();
  busy.ExpectNothingHeld();
}

INSTANTIATE_TEST_SUITE_P(
    Policies,
    BeamsTest,
    ::testing::Combine(
        ::testing::Values("reference", "cpu"),
        ::testing::Values(
            BeamCase{"Full", [] { return MakeRequest(1, 40, 25); }},
            BeamCase{"Keyformer",
                     [] { return ByScope(SelectionScope::kHead); }},
            BeamCase{"KeyformerByLayer",
                     [] { return ByScope(SelectionScope::kLayer); }},
            BeamCase{"KeyformerByModel",
                     [] { return ByScope(SelectionScope::kModel); }},
            BeamCase{"KeyformerWithRoom",
                     [] { return MakeKeyformerRequest(4, 20, 20, 64, 5); }},
            BeamCase{"KeyformerByRank",
                     [] {
                       Request request = ByScope(SelectionScope::kHead);
                       request.cache.positions = CachePositions::kCache;
                       request.cache.score_norm = ScoreNorm::kAge;
                       return request;
                     }},
            BeamCase{"Window",
                     [] {
                       Request request = MakeKeyformerRequest(5, 47, 30, 32, 0);
                       request.cache.policy = CachePolicy::kWindow;
                       request.cache.recent_tokens.reset();
                       return request;
                     }})),
    [](const auto& param) {
      return std::string(std::get<0>(param.param)) +
             std::get<1>(param.param).name;
    });

// Under FULL nothing depends on the other beams: each beam's score is that of
// its text, forced.
TEST(BeamsTest, ScoresAreThoseOfTheirTexts) {
  TestEngine engine;
  Request request = Beams(MakeRequest(3, 37, 24), 4);
  request.stopping.ignore_eos = false;
  request.beam->length_penalty = 0.7;
  for (const Outcome& beam : engine.RunAll(request)) {
    Request forced = MakeRequest(3, 37, 24);
    forced.stopping.max_new_tokens.reset();
    forced.forced_tokens = beam.tokens;
    double sum = 0.0;
    for (const TokenLogprob& p : engine.Run(forced).logprobs) sum += p.logprob;
    const auto length = static_cast<double>(beam.tokens.size());
    EXPECT_NEAR(beam.score, sum / std::pow(length, 0.7), 1e-9);
  }
}

// Two whole pages of the prompt are never copied; of the pages behind them the
// beams have as many as their texts differ in.
TEST(BeamsTest, HavePagesInCommon) {
  std::atomic<int> copies{0};
  TestEngine engine({.backend = std::make_unique<HookBackend>(
                         CreateReferenceBackend(),
                         Hooks{.decode =
                                   [&](const DecodeAttentionArgs& args) {
                                     // Not of the warm-up, which has one page.
                                     if (args.items.size() == 1) {
                                       return absl::OkStatus();
                                     }
                                     for (const auto& a : args.items) {
                                       EXPECT_EQ(a.cache.pages[0],
                                                 args.items[0].cache.pages[0]);
                                       EXPECT_EQ(a.cache.pages[1],
                                                 args.items[0].cache.pages[1]);
                                     }
                                     return absl::OkStatus();
                                   },
                               .copy =
                                   [&](std::span<const PageCopy> pages) {
                                     copies += static_cast<int>(pages.size());
                                     return absl::OkStatus();
                                   }})});
  EXPECT_EQ(engine.RunAll(Beams(MakeRequest(1, 40, 27), 3)).size(), 3U);
  // Each step at most the two that are not the last to write, and at a page's
  // begin none.
  EXPECT_GE(copies, 2 * kTinyLayers);
  EXPECT_LE(copies, 26 * 2 * kTinyLayers);
  engine.ExpectNothingHeld();
}

// One noise for all beams, whatever stream a test asks for.
TEST(BeamsTest, DrawFromStreamZero) {
  std::atomic<int> rows{0};
  TestEngine engine({.backend = std::make_unique<HookBackend>(
                         CreateReferenceBackend(),
                         Hooks{.decode = [&](const DecodeAttentionArgs& args) {
                           for (const auto& item : args.items) {
                             if (item.score.enabled) ++rows;
                             EXPECT_EQ(item.score.stream, 0U);
                           }
                           return absl::OkStatus();
                         }})});
  Request request = Beams(MakeKeyformerRequest(6, 70, 9, 20, 5), 3);
  request.first_stream = 2;
  engine.RunAll(request);
  EXPECT_EQ(rows, 3 * 8 * kTinyLayers);
}

// 3 beams of 9 pages less the whole ones of the prompt, in either layer: the
// pool need not hold more.
TEST(BeamsTest, RunInThePagesThatAreCounted) {
  for (const bool full : {true, false}) {
    const Request request = Beams(
        full ? MakeRequest(1, 40, 100) : MakeKeyformerRequest(1, 90, 60, 50, 9),
        3);
    const int64_t pages =
        full ? kTinyLayers * (2 + 3 * 7) : kTinyLayers * 3 * 4;
    TestEngine probe;
    const auto page_bytes =
        static_cast<int64_t>(probe->options().kv_pool_bytes /
                             static_cast<uint64_t>(probe->Stats().pages_total));
    for (const int64_t fewer : {0, 1}) {
      EngineOptions options = TinyOptions("");
      options.kv_pool_bytes =
          static_cast<uint64_t>((pages - fewer) * page_bytes);
      TestEngine engine({.options = options});
      const auto sink = std::make_shared<RecordingSink>();
      const auto id = engine->Submit(request, sink);
      if (fewer > 0) {
        EXPECT_THAT(id, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 "for 3 sequences"));
        continue;
      }
      EXPECT_THAT(id, IsOk());
      EXPECT_EQ(sink->WaitAll().size(), 3U);
      engine.ExpectNothingHeld();
    }
  }
}

TEST(BeamsTest, ATimeLimitEndsThemAsTheyStand) {
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
  Request request = Beams(MakeKeyformerRequest(1, 40, 100, 20, 5), 3);
  request.stopping.time_limit_ms = 1e4;
  const auto beams = engine.RunAll(request);
  ASSERT_EQ(beams.size(), 3U);
  for (const Outcome& beam : beams) {
    EXPECT_THAT(beam.status, IsOk());
    EXPECT_EQ(beam.finish_reason, FinishReason::kTimeLimit);
    EXPECT_EQ(beam.tokens.size(), 6U);
  }
  // A limit that is over before it begins: one beam without a token.
  request.stopping.time_limit_ms = 1e-7;  // less than a nanosecond
  const auto none = engine.RunAll(request);
  ASSERT_EQ(none.size(), 1U);
  EXPECT_EQ(none[0].finish_reason, FinishReason::kTimeLimit);
  EXPECT_TRUE(none[0].tokens.empty());
  engine.ExpectNothingHeld();
}

TEST(BeamsTest, WithoutTokensThereIsOne) {
  TestEngine engine;
  const auto beams =
      engine.RunAll(Beams(MakeKeyformerRequest(1, 40, 0, 20, 5), 3));
  ASSERT_EQ(beams.size(), 1U);
  EXPECT_EQ(beams[0].finish_reason, FinishReason::kLength);
  EXPECT_TRUE(beams[0].tokens.empty());
  engine.ExpectNothingHeld();
}

TEST(BeamsTest, ABadRowEndsTheSearch) {
  std::atomic<bool> spoil{true};
  TestEngine engine({.backend = std::make_unique<HookBackend>(
                         CreateReferenceBackend(),
                         Hooks{.decode = [&](const DecodeAttentionArgs& args) {
                           if (spoil && args.items[0].position == 25) {
                             // The second beam's row.
                             args.out[args.shape.out_dim()] =
                                 std::numeric_limits<float>::quiet_NaN();
                           }
                           return absl::OkStatus();
                         }})});
  const Request request = Beams(MakeKeyformerRequest(8, 20, 40, 12, 4), 3);
  const auto beams = engine.RunAll(request);
  ASSERT_EQ(beams.size(), 3U);
  for (const Outcome& beam : beams) {
    EXPECT_THAT(beam.status, IsOk());
    EXPECT_EQ(beam.finish_reason, FinishReason::kError);
    EXPECT_EQ(beam.tokens.size(), 6U);
  }
  engine.ExpectNothingHeld();
  spoil = false;
  EXPECT_EQ(engine.RunAll(request)[0].finish_reason, FinishReason::kLength);
}

TEST(BeamsTest, ACopyThatFailsEndsTheSearch) {
  std::atomic<bool> broken{false};
  TestEngine engine({.backend = std::make_unique<HookBackend>(
                         CreateReferenceBackend(),
                         Hooks{.copy = [&](std::span<const PageCopy>) {
                           return broken ? absl::InternalError("no copies")
                                         : absl::OkStatus();
                         }})});
  const Request request = Beams(MakeKeyformerRequest(8, 20, 10, 12, 4), 2);
  broken = true;
  EXPECT_THAT(engine.RunAll(request)[0].status,
              StatusIs(absl::StatusCode::kInternal, "no copies"));
  engine.ExpectNothingHeld();
  broken = false;
  EXPECT_EQ(engine.RunAll(request).size(), 2U);
}

TEST(BeamsTest, CancelledOnesLeaveNothing) {
  EngineOptions options = TinyOptions("");
  options.max_batch = 8;
  options.prefill_slice_tokens = 32;
  TestEngine engine({.options = options});
  for (uint32_t i = 0; i < 30; ++i) {
    const uint32_t draw = MixBits(i);
    const auto tokens = 1 + static_cast<int32_t>(draw % 80);
    const auto first = engine.Start(
        Beams(draw % 2 == 0 ? MakeRequest(i, tokens, 200)
                            : MakeKeyformerRequest(i, tokens, 200, 12, 3),
              1 + (draw >> 8) % 5));
    const auto beside = engine.Start(MakeKeyformerRequest(i, 10, 5, 8, 3));
    beside.second->WaitForUpdates(static_cast<int>((draw >> 16) % 6));
    engine->Cancel(first.first);
    first.second->Wait();
    EXPECT_THAT(beside.second->Wait().status, IsOk());
  }
  engine.ExpectNothingHeld();
}

TEST(BeamsTest, AWiderSearchThanTheBatchIsRefused) {
  EngineOptions options = TinyOptions("");
  options.max_batch = 3;
  TestEngine engine({.options = options});
  const auto sink = std::make_shared<RecordingSink>();
  EXPECT_THAT(engine->Submit(Beams(MakeRequest(1, 10, 5), 4), sink),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "4 sequences, the batch holds 3"));
  EXPECT_EQ(engine.RunAll(Beams(MakeRequest(1, 10, 5), 3)).size(), 3U);
}

}  // namespace
}  // namespace kf::engine
