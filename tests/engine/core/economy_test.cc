// Work and memory that a request does not need, or cannot have.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/request_validation.h"
#include "engine/sequence_group.h"
#include "kernels/core/status.h"
#include "kernels/ref/ref_backend.h"
#include "tests/engine/core/engine_harness.h"
#include "tests/engine/core/hook_backend.h"
#include "tests/testing/matchers.h"

namespace kf::engine {
namespace {

using ::kf::testing::StatusIs;

// Scores are for the decode steps that follow, or for a report.
TEST(EconomyTest, NothingIsScoredThatNobodyReads) {
  std::atomic<bool> scored{false};
  TestEngine engine({.backend = std::make_unique<HookBackend>(
                         CreateReferenceBackend(),
                         Hooks{.prompt = [&](const PromptAttentionArgs& args) {
                           for (const auto& item : args.items) {
                             if (item.score.enabled) scored = true;
                           }
                           return absl::OkStatus();
                         }})});
  const auto scores = [&](Request request) {
    scored = false;
    EXPECT_EQ(engine.Run(std::move(request)).finish_reason,
              FinishReason::kLength);
    return scored.load();
  };
  EXPECT_TRUE(scores(MakeKeyformerRequest(1, 40, 2, 16, 4)));
  EXPECT_FALSE(scores(MakeKeyformerRequest(1, 40, 1, 16, 4)));
  EXPECT_FALSE(scores(MakeKeyformerRequest(1, 40, 0, 16, 4)));
  EXPECT_FALSE(scores(MakeKeyformerRequest(1, 40, 5, 44, 4)));
  EXPECT_TRUE(scores(MakeKeyformerRequest(1, 40, 5, 43, 4)));
  for (const uint32_t tokens : {0U, 1U}) {
    Request reported = MakeKeyformerRequest(1, 40, tokens, 16, 4);
    reported.cache_report = CacheReportDetail::kFull;
    EXPECT_TRUE(scores(std::move(reported)));
  }
}

// A summary says the same as the lists, and does not keep them.
TEST(EconomyTest, SummariesAreNoLongerThanThePrompt) {
  TestEngine engine;
  Request request = MakeKeyformerRequest(1, 100, 20, 16, 4);
  request.cache_report = CacheReportDetail::kFull;
  const Outcome full = engine.Run(request);
  request.cache_report = CacheReportDetail::kSummary;
  const Outcome summary = engine.Run(request);
  ASSERT_TRUE(full.cache_report && summary.cache_report);
  EXPECT_TRUE(summary.cache_report->after_prompt.empty());
  EXPECT_TRUE(summary.cache_report->at_end.empty());
  for (const auto kept :
       {&CacheReport::kept_after_prompt, &CacheReport::kept_at_end}) {
    const Retention& want = (*full.cache_report).*kept;
    const Retention& got = (*summary.cache_report).*kept;
    EXPECT_EQ(got.heads, want.heads);
    EXPECT_EQ(got.holders, want.holders);
    ASSERT_EQ(got.holders.size(), 100U);
  }
  std::vector<uint32_t> holders(100);
  uint32_t heads = 0;
  for (const auto& layer : full.cache_report->at_end) {
    for (const HeldTokens& head : layer) {
      ++heads;
      for (const int32_t position : head.positions) {
        if (position < 100) ++holders[static_cast<size_t>(position)];
      }
    }
  }
  EXPECT_EQ(full.cache_report->kept_at_end.heads, heads);
  EXPECT_EQ(full.cache_report->kept_at_end.holders, holders);
}

// The first token does not hang on what is kept.
TEST(EconomyTest, OneTokenIsTheFirstOfMany) {
  TestEngine engine;
  const Outcome one = engine.Run(MakeKeyformerRequest(1, 100, 1, 16, 4));
  const Outcome many = engine.Run(MakeKeyformerRequest(1, 100, 8, 16, 4));
  ASSERT_EQ(one.tokens.size(), 1U);
  EXPECT_EQ(one.tokens[0], many.tokens[0]);
  EXPECT_EQ(one.usage.evicted_tokens, 84U);
}

// Logits are read where they are, or downloaded: all the same, with more rows
// than are held at once.
TEST(EconomyTest, LogitsOutOfReachAreDownloaded) {
  TestEngine near;
  auto backend = CreateBackend({.name = "cpu", .threads = 3});
  ASSERT_TRUE(backend.ok());
  TestEngine far({.backend = std::make_unique<HookBackend>(
                      *std::move(backend), Hooks{.hide_memory = true})});
  Request request = MakeRequest(7, 150, 12);
  request.output.prompt_logprobs = true;
  request.sampling.temperature = 0.8;
  request.sampling.top_p = 0.9;
  request.sampling.frequency_penalty = 0.5;
  const Outcome want = near.Run(request);
  EXPECT_EQ(want.prompt_logprobs.size(), 149U);
  EXPECT_TRUE(SameAnswer(want, far.Run(request)));
}

// As many prompt tokens as a flag can say.
TEST(EconomyTest, AWorkspaceTooLargeNamesItsFlag) {
  testing::TempDir dir;
  testing::TinyModelSpec spec;
  spec.context = 1 << 20;
  EngineOptions options = TinyOptions(WriteTinyModel(spec, dir.File("m.gguf")));
  options.max_batch = kMaxBatch;
  options.prefill_workspace_tokens = std::numeric_limits<int32_t>::max();
  const SteadyClock clock;
  const auto engine = Engine::Create(
      options, clock, nullptr,
      std::make_unique<HookBackend>(
          CreateReferenceBackend(),
          Hooks{.allocate = [](size_t bytes, std::string_view what) {
            return bytes < (size_t{1} << 30)
                       ? absl::OkStatus()
                       : absl::ResourceExhaustedError(
                             absl::StrCat(ToAbsl(what), ": ", bytes));
          }}));
  EXPECT_THAT(engine.status(), StatusIs(absl::StatusCode::kResourceExhausted,
                                        "prefill_workspace_tokens: "));
}

// The gauge counts what running requests have seen, and only them.
TEST(EconomyTest, SeenTokensAreCountedAsTheyCome) {
  std::atomic<int64_t> most{0};
  std::atomic<Engine*> running{nullptr};
  EngineOptions options = TinyOptions("");
  options.max_batch = 2;
  TestEngine engine({.options = options,
                     .backend = std::make_unique<HookBackend>(
                         CreateReferenceBackend(),
                         Hooks{.decode = [&](const DecodeAttentionArgs& args) {
                           if (running.load() == nullptr || args.layer > 0) {
                             return absl::OkStatus();
                           }
                           int64_t fed = 0;
                           for (const auto& item : args.items)
                             fed += item.position;
                           // Of the last report: before this step's tokens.
                           const int64_t seen =
                               running.load()->Stats().logical_cache_tokens;
                           EXPECT_GE(seen, fed);
                           EXPECT_LE(seen, fed + 30);  // another one in prefill
                           most = std::max(most.load(), seen);
                           return absl::OkStatus();
                         }})});
  running = &*engine;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (uint32_t i = 0; i < 5; ++i) {
    sinks.push_back(engine.Start(MakeKeyformerRequest(i, 30, 6, 8, 2)).second);
  }
  for (const auto& sink : sinks) sink->Wait();
  EXPECT_GE(most.load(), 34);  // 30 and 4 of the 5 that are fed
  EXPECT_LE(most.load(), 70);
  engine.ExpectNothingHeld();
}

// Scope MODEL owns all of a prompt in every layer until its end, then the
// budget alone: other requests get the rest while it decodes.
TEST(EconomyTest, ScopeModelDecodesInThePagesOfItsBudget) {
  std::atomic<Engine*> running{nullptr};
  std::atomic<int64_t> in_prompt{0};
  std::atomic<int64_t> in_decode{0};
  const auto note = [&running](std::atomic<int64_t>& most) {
    if (running.load() == nullptr) return absl::OkStatus();
    const EngineStats stats = running.load()->Stats();
    most = std::max(most.load(), stats.pages_total - stats.pages_free);
    return absl::OkStatus();
  };
  TestEngine engine(
      {.backend = std::make_unique<HookBackend>(
           CreateReferenceBackend(),
           Hooks{.prompt = [&](const auto&) { return note(in_prompt); },
                 .decode = [&](const auto&) { return note(in_decode); }})});
  running = &*engine;
  Request request = MakeKeyformerRequest(1, 100, 5, 12, 3);
  request.cache.scope = SelectionScope::kModel;
  EXPECT_EQ(engine.Run(std::move(request)).tokens.size(), 5U);
  EXPECT_EQ(in_prompt.load(), 2 * 7);
  EXPECT_EQ(in_decode.load(), 2);
  engine.ExpectNothingHeld();
}

// Long prompts arrive among running streams. Between two decode steps there is
// the work of one slice, in rows times layers; and nothing is allocated for any
// of it.
TEST(EconomyTest, ADecodeStepWaitsForOneSliceAtMost) {
  constexpr int32_t kSlice = 64;
  std::atomic<int64_t> work{0};
  std::atomic<int64_t> most{0};
  std::atomic<int64_t> all{0};
  std::atomic<int> allocations{0};
  Hooks hooks;
  hooks.prompt = [&](const PromptAttentionArgs& args) {
    for (const auto& item : args.items) {
      work += item.rows;
      all += item.rows;
    }
    return absl::OkStatus();
  };
  hooks.decode = [&](const DecodeAttentionArgs& args) {
    if (args.layer > 0) return absl::OkStatus();
    most = std::max(most.load(), work.load());
    work = 0;
    return absl::OkStatus();
  };
  hooks.allocate = [&](size_t, std::string_view) {
    ++allocations;
    return absl::OkStatus();
  };
  EngineOptions options = TinyOptions("");
  options.prefill_slice_tokens = kSlice;
  options.prefill_workspace_tokens = 900;
  TestEngine engine({.options = options,
                     .backend = std::make_unique<HookBackend>(
                         CreateReferenceBackend(), std::move(hooks))});
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (uint32_t i = 0; i < 3; ++i) {
    sinks.push_back(engine.Start(MakeRequest(i, 20, 100)).second);
  }
  for (const auto& sink : sinks) sink->WaitForUpdates(1);
  all = 0;
  most = 0;
  allocations = 0;
  for (uint32_t i = 3; i < 6; ++i) {
    sinks.push_back(
        engine.Start(MakeKeyformerRequest(i, 300, 3, 150, 40)).second);
  }
  for (const auto& sink : sinks) sink->Wait();
  constexpr int32_t kLayersOfAll = testing::TinyModelSpec{}.layers;
  EXPECT_EQ(all, 3 * 300 * kLayersOfAll);
  EXPECT_LE(most, int64_t{kSlice} * kLayersOfAll);
  EXPECT_GT(most, int64_t{kSlice} * kLayersOfAll / 2);
  EXPECT_EQ(allocations, 0);
  engine.ExpectNothingHeld();
}

// On a machine that takes 1 ms for a row of a layer, 256 rows x layers would
// hold up the stream for longer than it may wait.
TEST(EconomyTest, ASliceBesideStreamsTakesAboutAsLongAsItMay) {
  FakeClock clock;
  std::atomic<int64_t> work{0};
  std::atomic<int64_t> most{0};
  Hooks hooks;
  hooks.prompt = [&](const PromptAttentionArgs& args) {
    for (const auto& item : args.items) {
      work += item.rows;
      clock.Advance(std::chrono::milliseconds(item.rows));
    }
    return absl::OkStatus();
  };
  hooks.decode = [&](const DecodeAttentionArgs& args) {
    if (args.layer > 0) return absl::OkStatus();
    most = std::max(most.load(), work.load());
    work = 0;
    return absl::OkStatus();
  };
  EngineOptions options = TinyOptions("");
  options.prefill_slice_tokens = 256;
  options.prefill_workspace_tokens = 900;
  options.prefill_slice_ms = 100;
  TestEngine engine({.options = options,
                     .backend = std::make_unique<HookBackend>(
                         CreateReferenceBackend(), std::move(hooks)),
                     .clock = &clock});
  const auto stream = engine.Start(MakeRequest(1, 20, 100)).second;
  stream->WaitForUpdates(1);
  most = 0;
  const auto prompt =
      engine.Start(MakeKeyformerRequest(2, 300, 3, 150, 40)).second;
  EXPECT_TRUE(prompt->Wait().status.ok());
  EXPECT_TRUE(stream->Wait().status.ok());
  EXPECT_GE(most, 64);
  EXPECT_LE(most, 160);
}

// A request may wait long, and many may: it is not as large as all its samples.
TEST(EconomyTest, SamplesThatWaitShareWhatTheyRead) {
  TestEngine engine;
  Request request = MakeRequest(1, 40, 8);
  request.samples = 3;
  request.sampling.presence_penalty = 1.0;
  request.stopping.stop = {"never", "nowhere"};
  const auto sizes = ValidateRequest(
      request, {.vocabulary = engine->config().vocabulary,
                .context_tokens = engine->config().context_tokens,
                .layers = engine->config().layers});
  ASSERT_TRUE(sizes.ok()) << sizes.status();
  const SequenceGroup group(1, request, *sizes,
                            std::make_shared<RecordingSink>(),
                            engine->tokenizer(), TimePoint());
  ASSERT_EQ(group.sequences.size(), 3U);
  for (const auto& s : group.sequences) {
    EXPECT_EQ(&s->history->counts(), &group.first().history->counts());
    EXPECT_TRUE(s->matcher.SharesStringsWith(group.first().matcher));
  }
}

}  // namespace
}  // namespace kf::engine
