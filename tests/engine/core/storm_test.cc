// The whole engine in bad weather: requests of all kinds that come at random
// moments, are cancelled, late, or fail, in a pool so small that some lose
// their place. Whoever ends by itself has the answer of its solo run, bit for
// bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/noise.h"
#include "tests/engine/core/engine_harness.h"
#include "tests/engine/core/hook_backend.h"
#include "tests/testing/matchers.h"

namespace kf::engine {
namespace {

using ::kf::testing::IsOk;

// A position that one request alone reaches, in decode.
constexpr int32_t kBadPosition = 310;

class Draws {
 public:
  explicit Draws(uint32_t seed) : state_(seed << 20) {}
  uint32_t Below(uint32_t end) { return MixBits(++state_) % end; }

 private:
  uint32_t state_;
};

CacheOptions RandomCache(CachePolicy policy, int32_t tokens, Draws& draws) {
  CacheOptions cache;
  cache.policy = policy;
  if (policy == CachePolicy::kFull) return cache;
  cache.tokens = 1 + draws.Below(static_cast<uint32_t>(tokens));
  if (policy == CachePolicy::kQuest) {
    cache.full_layers = draws.Below(2);
  } else if (policy != CachePolicy::kWindow) {
    cache.scope = static_cast<SelectionScope>(draws.Below(3));
  }
  return cache;
}

Request RandomRequest(uint32_t seed, Draws& draws) {
  constexpr CachePolicy kPolicies[] = {
      CachePolicy::kFull,   CachePolicy::kFull, CachePolicy::kQuest,
      CachePolicy::kWindow, CachePolicy::kH2O,  CachePolicy::kKeyformer};
  const auto tokens = 1 + static_cast<int32_t>(draws.Below(80));
  Request request = MakeRequest(seed, tokens, 1 + draws.Below(70));
  request.cache = RandomCache(kPolicies[draws.Below(6)], tokens, draws);
  request.priority = static_cast<int32_t>(draws.Below(2));
  if (request.cache.policy != CachePolicy::kQuest && draws.Below(8) == 0) {
    request.beam = BeamParams{.width = 2 + draws.Below(2)};
    request.output.logprobs = false;
    request.output.top_logprobs = 0;
    return request;
  }
  request.samples = draws.Below(3) == 0 ? 1 + draws.Below(4) : 1;
  request.sampling.temperature = draws.Below(2) == 0 ? 0.0 : 1.1;
  if (draws.Below(3) == 0) request.sampling.presence_penalty = 0.7;
  if (draws.Below(3) == 0) request.sampling.repetition_penalty = 1.2;
  if (draws.Below(4) == 0) request.output.prompt_logprobs = true;
  if (draws.Below(3) == 0) request.stopping.stop = {"ab", "e", "\x7f!q"};
  if (draws.Below(3) == 0) {
    request.stopping.stop_token_ids = {static_cast<TokenId>(draws.Below(256))};
  }
  return request;
}

void ExpectWhole(const std::vector<Outcome>& got,
                 const std::vector<Outcome>& want,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(SameAnswer(got[i], want[i])) << what << ", sequence " << i;
    EXPECT_EQ(got[i].score, want[i].score) << what;
    EXPECT_EQ(got[i].stop_string, want[i].stop_string) << what;
  }
}

// What came until then is right.
void ExpectBeginning(const std::vector<Outcome>& got,
                     const std::vector<Outcome>& want,
                     const std::string& what) {
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const std::vector<TokenId>& tokens = got[i].tokens;
    ASSERT_LE(tokens.size(), want[i].tokens.size()) << what;
    EXPECT_TRUE(
        std::equal(tokens.begin(), tokens.end(), want[i].tokens.begin()))
        << what;
  }
}

struct StormObserver final : EngineObserver {
  void OnReceived() override { ++received; }
  void OnRejected(RejectReason) override { ++rejected; }
  void OnPreempted() override { ++preempted; }
  void OnSucceeded(FinishReason, const Usage&, double) override { ++ended; }
  void OnCancelled() override { ++ended; }
  void OnFailed(absl::StatusCode) override { ++ended; }
  std::atomic<int> received{0}, rejected{0}, preempted{0}, ended{0};
};

struct Weather {
  const char* name;
  uint32_t seed;
  int32_t slice;
  int32_t threads;
  DType cache_dtype;
};

class StormTest : public ::testing::TestWithParam<Weather> {
 protected:
  static constexpr size_t kRequests = 40;
  // The first ones are long, are never cancelled, and end in 18 pages each: all
  // are let in, and do not fit. After them comes the one with a bad row.
  static constexpr size_t kSteady = 4;
  static constexpr size_t kBad = kSteady;

  StormTest() {
    Draws draws(GetParam().seed);
    TestEngine roomy({.options = Options()});
    for (uint32_t i = 0; i < kRequests; ++i) {
      const uint32_t seed = 100 * GetParam().seed + i;
      requests_.push_back(RandomRequest(seed, draws));
      if (i < kSteady) {
        requests_.back() = MakeRequest(seed, 10, 135);
        requests_.back().priority = 2;
      }
      alone_.push_back(roomy.RunAll(requests_.back()));
    }
    // One row of logits of this one will be bad.
    requests_[kBad] = MakeRequest(77, 300, 40);
    alone_[kBad] = roomy.RunAll(requests_[kBad]);
    page_bytes_ = roomy->options().kv_pool_bytes /
                  static_cast<uint64_t>(roomy->Stats().pages_total);
  }

  static EngineOptions Options() {
    EngineOptions options = TinyOptions("");
    options.cache_dtype = GetParam().cache_dtype;
    options.prefill_slice_tokens = GetParam().slice;
    options.backend.threads = GetParam().threads;
    options.max_batch = 12;
    options.max_skips = static_cast<int32_t>(GetParam().seed % 4);
    return options;
  }

  // The bad row's request needs 44 of the 70 pages that there are; some others
  // with four samples nearly all.
  EngineOptions SmallOptions() const {
    EngineOptions options = Options();
    options.kv_pool_bytes = 70 * page_bytes_;
    return options;
  }

  std::unique_ptr<Backend> SpoilingBackend() {
    auto inner = CreateBackend(Options().backend);
    EXPECT_THAT(inner, IsOk());
    Hooks hooks;
    hooks.prompt = [this](const PromptAttentionArgs&) {
      if (armed_) gate_.Pass();
      return absl::OkStatus();
    };
    hooks.decode = [this](const DecodeAttentionArgs& args) {
      for (size_t i = 0; i < args.items.size() && spoil_; ++i) {
        if (args.items[i].position != kBadPosition) continue;
        args.out[static_cast<int64_t>(i) * args.shape.out_dim()] =
            std::numeric_limits<float>::quiet_NaN();
      }
      return absl::OkStatus();
    };
    return std::make_unique<HookBackend>(*std::move(inner), std::move(hooks));
  }

  void ExpectEnd(size_t i, const std::vector<Outcome>& got) const {
    const std::string what = "request " + std::to_string(i);
    const absl::Status& status = got.front().status;
    if (!status.ok()) {
      EXPECT_TRUE(absl::IsCancelled(status) || absl::IsDeadlineExceeded(status))
          << what << ": " << status;
      ExpectBeginning(got, alone_[i], what);
    } else if (i == kBad) {
      EXPECT_EQ(got.front().finish_reason, FinishReason::kError);
      EXPECT_EQ(got.front().tokens.size(), kBadPosition - 300U + 1);
      ExpectBeginning(got, alone_[i], what);
    } else {
      ExpectWhole(got, alone_[i], what);
    }
  }

  std::vector<Request> requests_;
  std::vector<std::vector<Outcome>> alone_;
  uint64_t page_bytes_ = 0;
  Gate gate_;
  std::atomic<bool> armed_{false};
  std::atomic<bool> spoil_{true};
};

TEST_P(StormTest, WhoeverEndsByItselfHasItsOwnAnswer) {
  StormObserver observer;
  TestEngine engine({.options = SmallOptions(),
                     .backend = SpoilingBackend(),
                     .observer = &observer});
  Draws draws(GetParam().seed + 1000);
  armed_ = true;
  std::vector<std::pair<RequestId, std::shared_ptr<RecordingSink>>> started;
  for (size_t i = 0; i < kRequests; ++i) {
    Request request = requests_[i];
    // The first third is there when the first step ends; none of it is late.
    if (i == kRequests / 3) gate_.Open();
    if (i > kRequests / 3 && draws.Below(6) == 0) {
      request.deadline =
          SteadyClock().Now() + std::chrono::microseconds(draws.Below(20000));
    }
    started.push_back(engine.Start(std::move(request)));
    if (i <= kRequests / 3) continue;
    if (draws.Below(3) == 0) {
      started[draws.Below(static_cast<uint32_t>(i))].second->WaitForUpdates(
          static_cast<int>(draws.Below(8)));
    }
    if (draws.Below(4) == 0) {
      const size_t victim = draws.Below(static_cast<uint32_t>(i) + 1);
      if (victim > kBad) engine->Cancel(started[victim].first);
    }
  }
  for (size_t i = 0; i < kRequests; ++i) {
    ExpectEnd(i, started[i].second->WaitAll());
  }
  engine.ExpectNothingHeld();
  EXPECT_EQ(observer.received, static_cast<int>(kRequests));
  EXPECT_EQ(observer.rejected, 0);
  EXPECT_EQ(observer.ended, static_cast<int>(kRequests));
  EXPECT_GT(observer.preempted, 0);
  // In the same pages, one after another.
  spoil_ = false;
  for (size_t i = 0; i < kRequests; i += 3) {
    ExpectWhole(engine.RunAll(requests_[i]), alone_[i],
                "afterwards, request " + std::to_string(i));
  }
  engine.ExpectNothingHeld();
}

INSTANTIATE_TEST_SUITE_P(
    Weathers,
    StormTest,
    ::testing::Values(Weather{"SmallSlices", 1, 32, 2, DType::kF32},
                      Weather{"OneThread", 2, 64, 1, DType::kBF16},
                      Weather{"ThreeThreads", 3, 256, 3, DType::kF32},
                      Weather{"LongSlices", 4, 4096, 2, DType::kBF16},
                      Weather{"ByteCache", 5, 64, 2, DType::kI8}),
    [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace kf::engine
