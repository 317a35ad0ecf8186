// A row's bits depend on the row alone: not on slices, threads, neighbours,
// place in the batch, or what unowned memory holds; under every policy.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "tests/kernels/attention_rig.h"

namespace kf::testing {
namespace {

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void ExpectSame(const Trace& got, const Trace& want) {
  EXPECT_TRUE(SameBits(got.prompt_out, want.prompt_out)) << "prompt";
  ASSERT_EQ(got.step_out.size(), want.step_out.size());
  for (size_t i = 0; i < got.step_out.size(); ++i) {
    EXPECT_TRUE(SameBits(got.step_out[i], want.step_out[i])) << "step " << i;
  }
  ASSERT_EQ(got.held.size(), want.held.size());
  for (size_t i = 0; i < got.held.size(); ++i) {
    ASSERT_EQ(got.held[i].size(), want.held[i].size());
    for (size_t g = 0; g < got.held[i].size(); ++g) {
      EXPECT_EQ(got.held[i][g].positions, want.held[i][g].positions);
      EXPECT_TRUE(SameBits(got.held[i][g].scores, want.held[i][g].scores));
    }
  }
}

void ExpectFinite(const Trace& trace) {
  double sum = 0.0;
  for (const float v : trace.prompt_out) sum += static_cast<double>(v * v);
  for (const auto& step : trace.step_out) {
    for (const float v : step) sum += static_cast<double>(v * v);
  }
  for (const HeldTokens& head : trace.held.back()) {
    for (const float v : head.scores) sum += static_cast<double>(v);
  }
  EXPECT_TRUE(sum > 1.0 && sum < 1e9) << sum;  // false for NaN
}

constexpr int32_t kSteps = 12;

enum class Kind : uint8_t {
  kKeyformer,
  kAge,
  kShared,
  kRank,
  kRankShared,
  kQuest,
  kWindow,
};
constexpr Kind kKinds[] = {Kind::kKeyformer, Kind::kAge,   Kind::kShared,
                           Kind::kRank,      Kind::kQuest, Kind::kRankShared,
                           Kind::kWindow};

SequenceOptions OptionsOf(DType dtype,
                          int32_t prompt,
                          uint32_t seed,
                          Kind kind) {
  SequenceOptions o;
  o.shape = {6, 2, 48, 48, 10000.0, dtype};
  o.prompt = prompt;
  o.budget = prompt > 1 ? prompt / 2 : 1;
  o.recent = o.budget / 3;
  o.layer = 3;
  o.score = {true, NoiseKind::kGumbel, false, seed, 0, 1.0F};
  o.max_steps = kSteps;
  o.data_seed = seed;
  o.age = kind == Kind::kAge || kind == Kind::kShared;
  o.shared = o.defer = kind == Kind::kShared || kind == Kind::kRankShared;
  o.rank_positions = kind == Kind::kRank || kind == Kind::kRankShared;
  if (kind == Kind::kQuest) {
    o.score.enabled = false;
    o.budget = prompt + kSteps;
    o.quest = true;
    o.read_pages = prompt / 32 + 1;
  }
  if (kind == Kind::kWindow) {
    o.score.enabled = false;
    o.recent = o.budget - std::min(4, o.budget - 1);
  }
  return o;
}

class InvarianceTest
    : public ::testing::TestWithParam<std::tuple<std::string, DType>> {};

TEST_P(InvarianceTest, SlicesAndThreads) {
  const std::string& simd = std::get<0>(GetParam());
  const DType dtype = std::get<1>(GetParam());
  const auto expect_same = [&](const SequenceOptions& options) {
    const Trace want = RunAlone(*MakeCpu(simd, 1), options, 4096);
    ExpectFinite(want);
    // Sanitizers: 3 threads, the shortest and the longest slices.
    for (const int threads :
         kSanitizer ? std::vector{3} : std::vector{1, 2, 3, 4}) {
      const auto backend = MakeCpu(simd, threads);
      for (const int32_t slice :
           kSanitizer ? std::vector{32, 4096} : std::vector{32, 64, 4096}) {
        SCOPED_TRACE(::testing::Message()
                     << threads << " threads, slices of " << slice);
        ExpectSame(RunAlone(*backend, options, slice), want);
      }
    }
  };
  // 640 tokens: the decode step has two chunks.
  for (const int32_t prompt : {1, 31, 33, 100, 640}) {
    SCOPED_TRACE(prompt);
    expect_same(OptionsOf(dtype, prompt, 7, Kind::kKeyformer));
  }
  for (const Kind kind : kKinds) {
    if (kind == Kind::kKeyformer) continue;
    SCOPED_TRACE(static_cast<int>(kind));
    expect_same(OptionsOf(dtype, 530, 7, kind));
  }
}

TEST_P(InvarianceTest, Neighbours) {
  const auto& [simd, dtype] = GetParam();
  const auto backend = MakeCpu(simd, 2);
  const int32_t prompts[] = {5, 100, 33, 640, 64, 1, 320};
  constexpr size_t kCount = std::size(prompts);
  static_assert(kCount == std::size(kKinds));
  std::vector<Trace> alone;
  for (size_t i = 0; i < kCount; ++i) {
    alone.push_back(RunAlone(
        *backend,
        OptionsOf(dtype, prompts[i], static_cast<uint32_t>(i) + 1, kKinds[i]),
        4096));
  }
  // ThreadSanitizer: one order of the seven.
  for (size_t turn = 0; turn < kCount; turn += kThreadSanitizer ? kCount : 2) {
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<size_t> index;
    for (size_t i = 0; i < kCount; ++i) {
      index.push_back((i + turn) % kCount);
      sequences.push_back(std::make_unique<Sequence>(
          *backend, OptionsOf(dtype, prompts[index.back()],
                              static_cast<uint32_t>(index.back()) + 1,
                              kKinds[index.back()])));
    }
    // All prompts share each slice; those that are done drop out.
    while (true) {
      std::vector<Sequence*> open;
      for (const auto& s : sequences) {
        if (s->seen() < s->options().prompt) open.push_back(s.get());
      }
      if (open.empty()) break;
      Sequence::Prefill(open, 96);
    }
    for (const auto& s : sequences) s->Compact();
    // One more sequence a step joins the batch.
    for (int32_t step = 0; step < kSteps + static_cast<int32_t>(kCount);
         ++step) {
      std::vector<Sequence*> batch;
      for (size_t i = 0; i < kCount; ++i) {
        const int32_t age = step - static_cast<int32_t>(i);
        if (age >= 0 && age < kSteps) batch.push_back(sequences[i].get());
      }
      if (!batch.empty()) Sequence::Step(batch);
    }
    for (size_t i = 0; i < kCount; ++i) {
      SCOPED_TRACE(::testing::Message() << "turn " << turn << ", place " << i);
      ExpectSame(sequences[i]->trace(), alone[index[i]]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Levels,
    InvarianceTest,
    ::testing::Combine(
        ::testing::ValuesIn(SimdLevelNames()),
        ::testing::Values(DType::kF32, DType::kBF16, DType::kI8)),
    [](const auto& param_info) {
      return std::get<0>(param_info.param) + "_" +
             std::string(NameOf(std::get<1>(param_info.param)));
    });

}  // namespace
}  // namespace kf::testing
