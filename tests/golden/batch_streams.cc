#include "tests/golden/batch_streams.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <utility>

#include "gtest/gtest.h"
#include "tests/golden/random_policy.h"

namespace kf::testing {
namespace {

constexpr size_t kStreams = 32;

// The most sequences that any step decoded: that the streams did overlap.
class WidestStep final : public engine::EngineObserver {
 public:
  void OnStep(const engine::StepReport& step) override {
    rows_ = std::max(rows_.load(), step.decode_rows);
  }
  int32_t rows() const { return rows_; }

 private:
  std::atomic<int32_t> rows_ = 0;
};

void ExpectEqualState(const engine::CacheState& together,
                      const engine::CacheState& alone) {
  ASSERT_EQ(together.size(), alone.size());
  for (size_t layer = 0; layer < alone.size(); ++layer) {
    ASSERT_EQ(together[layer].size(), alone[layer].size());
    for (size_t head = 0; head < alone[layer].size(); ++head) {
      EXPECT_EQ(together[layer][head].positions, alone[layer][head].positions);
      EXPECT_EQ(together[layer][head].scores, alone[layer][head].scores);
    }
  }
}

}  // namespace

std::vector<engine::Request> MakeStreams(const StreamMix& mix, size_t count) {
  std::mt19937 random(mix.seed);
  const auto draw = [&](int32_t low, int32_t high) {
    return Draw(random, low, high);
  };
  std::vector<engine::Request> streams(count);
  for (size_t i = 0; i < count; ++i) {
    engine::Request& r = streams[i];
    const int32_t n = draw(1, mix.max_prompt);
    for (int32_t t = 0; t < n; ++t) {
      r.prompt.push_back(draw(0, mix.vocabulary - 1));
    }
    const int32_t new_tokens =
        i == 0 ? mix.first_new : draw(mix.min_new, mix.max_new);
    r.stopping.max_new_tokens = static_cast<uint32_t>(new_tokens);
    r.stopping.ignore_eos = true;
    r.output.logprobs = true;
    r.cache_report = engine::CacheReportDetail::kFull;
    constexpr engine::CachePolicy kPolicies[] = {
        engine::CachePolicy::kKeyformer, engine::CachePolicy::kH2O,
        engine::CachePolicy::kQuest,     engine::CachePolicy::kKeyformer,
        engine::CachePolicy::kFull,      engine::CachePolicy::kKeyformer,
        engine::CachePolicy::kWindow,    engine::CachePolicy::kH2O};
    r.cache = DrawCacheOptions(random, kPolicies[i % 8], mix.layers);
    r.sampling.seed = random();
    if (draw(0, 1) == 1) {
      r.sampling.temperature = 0.25 * draw(1, 6);
      r.sampling.top_k = static_cast<uint32_t>(draw(0, 1) * draw(2, 40));
      r.sampling.top_p = 0.1 * draw(5, 10);
      r.sampling.repetition_penalty = 1.0 + 0.1 * draw(0, 3);
    }
  }
  return streams;
}

void ExpectStreamsEqualSolo(EngineSetup setup, const StreamMix& mix) {
  WidestStep widest;
  setup.observer = &widest;
  const auto engine = MakeEngine(std::move(setup));
  const std::vector<engine::Request> streams = MakeStreams(mix, kStreams);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (size_t i = 0; i < streams.size(); ++i) {
    if (i > 0) sinks.front()->WaitForTokens(1 + i / mix.arrivals_per_step);
    sinks.push_back(std::make_shared<CollectingSink>());
    const auto id = engine->Submit(streams[i], sinks.back());
    ASSERT_TRUE(id.ok()) << id.status();
  }
  std::vector<Outcome> together;
  for (const auto& sink : sinks) together.push_back(sink->Wait());
  ::testing::Test::RecordProperty("widest_step", widest.rows());
  EXPECT_GE(widest.rows(), 8) << "the streams hardly overlapped";

  for (size_t i = 0; i < streams.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << "stream " << i);
    const Outcome alone = RunTogether(*engine, {streams[i]}).front();
    ASSERT_TRUE(alone.status.ok()) << alone.status;
    ASSERT_TRUE(together[i].status.ok()) << together[i].status;
    EXPECT_EQ(together[i].tokens.size(), *streams[i].stopping.max_new_tokens);
    EXPECT_EQ(together[i].tokens, alone.tokens);
    EXPECT_EQ(together[i].logprobs, alone.logprobs);
    ExpectEqualState(together[i].report.after_prompt,
                     alone.report.after_prompt);
    ExpectEqualState(together[i].report.at_end, alone.report.at_end);
  }
}

}  // namespace kf::testing
