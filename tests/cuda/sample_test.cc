// Tokens and log-probabilities of the device against the engine's sampler: not
// close to it, the same.
#include "kernels/cuda/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/sampling/sample_row.h"
#include "engine/sampling/sampler.h"
#include "kernels/cuda/gpu_api.h"
#include "tests/cuda/device_array.h"

namespace kf::cuda {
namespace {

using engine::SamplingParams;
using engine::TokenHistory;
using engine::TokenId;

constexpr float kInf = std::numeric_limits<float>::infinity();

struct RowCase {
  std::vector<float> logits;
  SamplingParams params;
  std::vector<TokenId> prompt;
  std::vector<TokenId> generated;
  std::vector<TokenId> forbidden;
  uint64_t seed = 1;
  uint32_t step = 0;
  uint32_t stream = 0;
  int32_t top_logprobs = 5;
  int32_t forced = kNoToken;
};

TokenHistory HistoryOf(const RowCase& row) {
  TokenHistory history;
  history.AddPrompt(row.prompt);
  for (const TokenId id : row.generated) history.AddGenerated(id);
  return history;
}

engine::Sampler::Input InputOf(const RowCase& row,
                               const TokenHistory& history) {
  return {.logits = row.logits,
          .params = &row.params,
          .history = &history,
          .seed = row.seed,
          .step = row.step,
          .stream = row.stream,
          .forbidden = row.forbidden};
}

// Runs a batch of rows on the device.
class Batch {
 public:
  explicit Batch(const std::vector<RowCase>& rows) {
    const auto vocabulary = static_cast<int32_t>(rows[0].logits.size());
    std::vector<SampleItem> items;
    items.reserve(rows.size());
    for (const RowCase& row : rows) items.push_back(MakeItem(row));
    gpu::DeviceArray<SampleItem> device_items(items);
    gpu::DeviceArray<SampledToken> out(items.size());
    gpu::DeviceArray<uint32_t> memory(
        items.size() * static_cast<size_t>(SampleWords(vocabulary)));
    SampleWork work;
    work.items = device_items.data();
    work.rows = static_cast<int32_t>(items.size());
    work.vocabulary = vocabulary;
    work.out = out.data();
    work.memory = memory.data();
    Sample(nullptr, work);
    EXPECT_EQ(gpu::TakeError(), "");
    tokens = out.Download();
    for (size_t i = 0; i < rows.size(); ++i) {
      top_ids.push_back(ids_[i]->Download());
      top_logits.push_back(floats_[2 * i + 1]->Download());
    }
  }

  std::vector<SampledToken> tokens;
  std::vector<std::vector<int32_t>> top_ids;
  std::vector<std::vector<float>> top_logits;

 private:
  SampleItem MakeItem(const RowCase& row) {
    const TokenHistory history = HistoryOf(row);
    std::vector<LogitChange> list;
    SampleRow described = engine::MakeSampleRow(InputOf(row, history), list);
    engine::AskForLogprobs(static_cast<uint32_t>(row.top_logprobs),
                           static_cast<int32_t>(row.logits.size()),
                           described.options);
    const auto upload = [](auto& arrays, const auto& values) {
      using Array = typename std::decay_t<decltype(arrays)>::value_type;
      arrays.push_back(std::make_unique<typename Array::element_type>(values));
      return arrays.back()->data();
    };
    SampleItem item;
    item.logits = upload(floats_, row.logits);
    item.change_count = static_cast<int32_t>(list.size());
    list.resize(std::max<size_t>(1, list.size()));
    item.changes = upload(changes_, list);
    std::vector<int32_t> forbidden = row.forbidden;
    item.forbidden_count = static_cast<int32_t>(forbidden.size());
    forbidden.resize(std::max<size_t>(1, forbidden.size()));
    item.forbidden = upload(forbidden_, forbidden);
    item.options = described.options;
    item.options.forced = row.forced;
    const auto top = static_cast<size_t>(std::max(1, row.top_logprobs));
    item.top_ids = upload(ids_, std::vector<int32_t>(top));
    item.top_logits = upload(floats_, std::vector<float>(top));
    return item;
  }

  std::vector<std::unique_ptr<gpu::DeviceArray<float>>> floats_;
  std::vector<std::unique_ptr<gpu::DeviceArray<int32_t>>> ids_;
  std::vector<std::unique_ptr<gpu::DeviceArray<int32_t>>> forbidden_;
  std::vector<std::unique_ptr<gpu::DeviceArray<LogitChange>>> changes_;
};

void ExpectSamplers(const std::vector<RowCase>& rows) {
  const Batch batch(rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    const RowCase& row = rows[i];
    const SampledToken& got = batch.tokens[i];
    const engine::LogitsScan scan = engine::ScanLogits(row.logits);
    if (scan.bad) {
      EXPECT_EQ(got.state, SampleState::kBad) << i;
      continue;
    }
    const TokenHistory history = HistoryOf(row);
    engine::Sampler sampler(static_cast<int32_t>(row.logits.size()));
    const TokenId want = row.forced != kNoToken
                             ? row.forced
                             : sampler.Sample(InputOf(row, history), scan);
    ASSERT_EQ(got.state, SampleState::kChosen) << i;
    EXPECT_EQ(got.id, want) << i;
    const engine::TokenLogprob logprob = engine::LogprobOf(
        row.logits, scan, want, static_cast<uint32_t>(row.top_logprobs));
    const auto of = [&got](float logit) {
      return (static_cast<double>(logit) - static_cast<double>(got.largest)) -
             std::log(got.exp_sum);
    };
    EXPECT_EQ(of(got.logit), logprob.logprob) << i;
    EXPECT_EQ(got.rank, logprob.rank) << i;
    for (size_t t = 0; t < logprob.top.size(); ++t) {
      EXPECT_EQ(batch.top_ids[i][t], logprob.top[t].id) << i;
      EXPECT_EQ(of(batch.top_logits[i][t]), logprob.top[t].logprob) << i;
    }
  }
}

std::vector<float> Logits(std::mt19937& random, size_t count, float spread) {
  std::normal_distribution<float> normal(0.0F, spread);
  std::vector<float> logits;
  for (size_t i = 0; i < count; ++i) logits.push_back(normal(random));
  return logits;
}

std::vector<SamplingParams> Params() {
  return {{},
          {.temperature = 1.0},
          {.temperature = 0.7, .top_k = 40},
          {.temperature = 1e-30},
          {.temperature = 1e300},
          {.temperature = 0.8, .top_p = 0.9},
          {.temperature = 1.3, .top_k = 50, .top_p = 0.5},
          {.temperature = 1.0, .min_p = 0.05},
          {.temperature = 1.0, .top_k = 7, .top_p = 0.95, .min_p = 0.1},
          {.temperature = 1.0, .top_p = 1e-9},
          {.temperature = 1.0, .top_p = 0.4, .min_p = 1.0},
          {.temperature = 1.0, .top_k = 1},
          {.repetition_penalty = 1.3, .presence_penalty = 0.5},
          {.temperature = 0.9,
           .top_p = 0.8,
           .repetition_penalty = 0.8,
           .presence_penalty = -0.3,
           .frequency_penalty = 0.7},
          {.temperature = 1.0, .logit_bias = {{3, 4.5}, {5, -1e9}, {7, -2.25}}},
          {.temperature = 1.0,
           .top_k = 20,
           .frequency_penalty = 0.1,
           .logit_bias = {{1, 1e9}, {2, -1e9}}}};
}

TEST(SampleTest, EqualsTheEngine) {
  std::mt19937 random(7);
  // Around the sizes of a pass, a block of a sum, and its sixteens.
  for (const size_t vocabulary :
       {1, 2, 15, 17, 63, 511, 512, 513, 1500, 5003}) {
    std::vector<RowCase> rows;
    for (const SamplingParams& params : Params()) {
      RowCase row;
      row.logits =
          Logits(random, vocabulary, rows.size() % 2 == 0 ? 1.0F : 6.0F);
      row.params = params;
      const auto id = [&] {
        return static_cast<TokenId>(random() % vocabulary);
      };
      std::erase_if(row.params.logit_bias, [&](const auto& bias) {
        return static_cast<size_t>(bias.first) >= vocabulary;
      });
      for (int i = 0; i < 6; ++i) row.prompt.push_back(id());
      for (int i = 0; i < 6; ++i) row.generated.push_back(id());
      if (rows.size() % 3 == 0) row.forbidden = {id()};
      row.seed = 0x1234567890AU + rows.size();
      row.step = static_cast<uint32_t>(rows.size() * 3);
      row.stream = static_cast<uint32_t>(rows.size() % 4);
      row.top_logprobs =
          static_cast<int32_t>(std::min<size_t>(vocabulary, rows.size() * 4));
      rows.push_back(row);
    }
    ExpectSamplers(rows);
    if (HasFatalFailure()) return;
  }
}

TEST(SampleTest, TiesAndInfinities) {
  std::vector<RowCase> rows;
  for (const SamplingParams& params : Params()) {
    RowCase row;
    row.params = params;
    row.logits.assign(1000, 0.5F);
    row.seed = rows.size();
    rows.push_back(row);
    for (size_t i = 0; i < 1000; ++i) {
      row.logits[i] = i % 7 == 0 ? -kInf : static_cast<float>(i % 3) - 1.0F;
    }
    row.logits[4] = -0.0F;
    rows.push_back(row);
  }
  ExpectSamplers(rows);
}

// A token that is known gets its logprob, as any other would.
TEST(SampleTest, ForcedTokens) {
  std::mt19937 random(9);
  std::vector<RowCase> rows(3);
  for (RowCase& row : rows) row.logits = Logits(random, 700, 3.0F);
  rows[0].forced = 0;
  rows[1].forced = 699;
  rows[2].forced = 350;
  rows[2].top_logprobs = 0;
  rows[2].logits[3] = -kInf;
  ExpectSamplers(rows);
}

TEST(SampleTest, BadRows) {
  std::vector<RowCase> rows(4);
  for (RowCase& row : rows) row.logits.assign(600, 1.0F);
  rows[0].logits[599] = std::numeric_limits<float>::quiet_NaN();
  rows[1].logits[0] = kInf;
  rows[1].forced = 5;
  rows[2].logits.assign(600, -kInf);
  ExpectSamplers(rows);
}

// The mask gives way, then the bans.
TEST(SampleTest, NothingLeft) {
  RowCase masked;
  masked.logits = {0.0F, 1.0F, 2.0F};
  masked.forbidden = {0, 1, 2};
  masked.top_logprobs = 3;
  RowCase banned = masked;
  banned.params.logit_bias = {{0, -1e9}, {2, -1e9}};
  RowCase all_banned = banned;
  all_banned.params.logit_bias[1] = -1e9;
  RowCase finite_among_infinities = banned;
  finite_among_infinities.logits[1] = -kInf;
  ExpectSamplers({masked, banned, all_banned, finite_among_infinities});
}

// More candidates than are sorted: the host's turn, and only then.
TEST(SampleTest, TooManyCandidates) {
  std::vector<RowCase> rows(4);
  for (RowCase& row : rows) {
    row.logits.assign(3000, 0.0F);
    row.params.temperature = 1.0;
    row.top_logprobs = 0;
  }
  rows[0].params.top_p = 0.9;
  rows[1].params.min_p = 0.5;
  rows[2].params.top_p = 0.6;
  rows[3].params.top_p = 0.9;
  rows[3].params.top_k = 2048;
  const Batch batch(rows);
  EXPECT_EQ(batch.tokens[0].state, SampleState::kUndecided);
  EXPECT_EQ(batch.tokens[1].state, SampleState::kUndecided);
  EXPECT_EQ(batch.tokens[2].state, SampleState::kChosen);
  EXPECT_EQ(batch.tokens[3].state, SampleState::kChosen);
  ExpectSamplers({rows[2], rows[3]});
}

}  // namespace
}  // namespace kf::cuda
