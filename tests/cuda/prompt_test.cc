// A prompt's attention on the CUDA backend against the reference: what the
// pages hold, the output, the scores; and that neither slices nor neighbours
// change a bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/ref/ref_backend.h"
#include "kernels/ref/ref_page.h"
#include "tests/cuda/prompt_rig.h"
#include "tests/testing/matchers.h"

#if defined(KF_CUDA_EMULATION)
#include "tests/cuda/emulation/machine.h"
#endif

namespace kf::cuda {
namespace {

using kf::testing::NearRef;
using kf::testing::Sequence;
using kf::testing::SequenceOptions;

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): read as a table
struct Case {
  const char* name;
  int32_t prompt;
  int32_t head_dim;
  int32_t rotary_dim;
  int32_t kv_heads;
  int32_t group;
  NoiseKind noise = NoiseKind::kGumbel;
  float tau = 1.0F;
  int32_t score_first_row = 0;
  bool resample_once = false;
  bool rank_positions = false;
  float outliers = 1.0F;
  float query_scale = 1.0F;
  bool scored = true;
};
void PrintTo(const Case& c, std::ostream* stream) { *stream << c.name; }

SequenceOptions OptionsOf(const Case& c, DType type) {
  SequenceOptions o;
  o.shape = {c.kv_heads * c.group, c.kv_heads, c.head_dim,
             c.rotary_dim,         10000.0,    type};
  o.prompt = c.prompt;
  o.budget = c.prompt;
  o.layer = 5;
  o.score = {c.scored, c.noise, c.resample_once, 0x123456789ULL, 0, c.tau};
  o.score_first_row = c.score_first_row;
  o.data_seed = 3;
  o.outliers = c.outliers;
  o.query_scale = c.query_scale;
  o.rank_positions = c.rank_positions;
  return o;
}

// Lengths around pages, row tiles and key tiles; every head size that kernels
// are compiled for, and some that are padded; groups of 1 to 8.
constexpr Case kCases[] = {
    {"OneKey", 1, 64, 64, 1, 1},
    {"Page15", 15, 32, 32, 2, 2},
    {"Page16", 16, 16, 16, 1, 3},
    {"Page17", 17, 96, 96, 1, 2},
    {"Tile31", 31, 64, 32, 1, 4},
    {"Tile32", 32, 128, 128, 1, 1},
    {"Tile33Constant", 33, 64, 64, 1, 2, NoiseKind::kConstant, 1.25F},
    {"Tile63Gaussian", 63, 80, 20, 1, 2, NoiseKind::kGaussian, 0.75F},
    {"Tile64None", 64, 64, 64, 1, 1, NoiseKind::kNone},
    {"Tile65", 65, 256, 64, 1, 1, NoiseKind::kGumbel, 2.0F},
    {"Padded127", 127, 18, 10, 1, 2, NoiseKind::kGumbel, 1.5F},
    {"Padded128", 128, 40, 0, 1, 1},
    {"Group8Tile129", 129, 16, 16, 1, 8, NoiseKind::kGumbel, 1.0F, 0, true},
    {"LastRows", 129, 32, 32, 2, 1, NoiseKind::kGumbel, 1.0F, 77},
    {"Ranked", 100, 64, 64, 2, 1, NoiseKind::kGumbel, 1.0F, 0, false, true},
    {"Outliers", 70, 64, 64, 1, 2, NoiseKind::kGumbel, 1.0F, 0, false, false,
     20.0F},
    {"AllEqual", 66, 32, 32, 1, 2, NoiseKind::kNone, 1.0F, 0, false, false,
     1.0F, 0.0F},
    {"Group5Outliers128", 33, 128, 128, 1, 5, NoiseKind::kGumbel, 1.0F, 0,
     false, false, 20.0F},
    {"Group6Outliers80", 17, 80, 80, 1, 6, NoiseKind::kGumbel, 1.0F, 0, false,
     false, 20.0F},
    {"Group7Tile65", 65, 96, 96, 1, 7},
    {"Group8AllEqual256", 31, 256, 256, 1, 8, NoiseKind::kNone, 1.0F, 0, false,
     false, 1.0F, 0.0F},
    {"OneKey256", 1, 256, 256, 1, 4},
    {"SmallTau", 66, 32, 32, 1, 1, NoiseKind::kGumbel, 0.05F},
    {"TinyTau", 40, 32, 32, 1, 1, NoiseKind::kGumbel, 1e-35F},
    {"Full", 34, 64, 64, 1, 1, NoiseKind::kGumbel, 1.0F, 0, false, false, 1.0F,
     1.0F, false},
};

struct Tolerance {
  double out;    // of the largest |V|
  double score;  // relative
};

class PromptTest : public ::testing::TestWithParam<Case> {
 protected:
  void Compare(DType type, const Tolerance& tolerance);
};
INSTANTIATE_TEST_SUITE_P(Cases,
                         PromptTest,
                         ::testing::ValuesIn(kCases),
                         [](const auto& p) { return p.param.name; });

// What the reference holds, as Prompt::Read lays it out.
Prompt::Held ReadReference(Sequence& sequence, const PageLayout& layout) {
  const SequenceOptions& o = sequence.options();
  Prompt::Held held;
  for (int32_t g = 0; g < layout.kv_heads; ++g) {
    for (int32_t p = 0; p < o.prompt; ++p) {
      const ref::Slot slot =
          ref::SlotAt(o.shape, sequence.prompt_pages(), g, p);
      for (int32_t c = 0; c < layout.padded_dim; ++c) {
        held.k.push_back(c < layout.head_dim ? slot.k[c] : 0.0F);
        held.v.push_back(c < layout.head_dim ? slot.v[c] : 0.0F);
      }
      held.position.push_back(*slot.position);
      held.score.push_back(*slot.score);
    }
  }
  return held;
}

std::vector<double> Doubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

double LargestOf(const std::vector<float>& values) {
  double largest = 0.0;
  for (const double v : Doubles(values))
    largest = std::max(largest, std::abs(v));
  return largest;
}

void PromptTest::Compare(DType type, const Tolerance& tolerance) {
  const SequenceOptions options = OptionsOf(GetParam(), type);
  const auto backend = CreateReferenceBackend();
  Sequence reference(*backend, options);
  reference.PrefillAll(options.prompt);
  const PageLayout layout = LayoutOf(options.shape);
  const Prompt::Held want = ReadReference(reference, layout);
  Prompt prompt(options);
  prompt.RunAll(options.prompt);
  const Prompt::Held got = prompt.Read();

  EXPECT_EQ(got.k, want.k);
  EXPECT_EQ(got.v, want.v);
  EXPECT_EQ(got.position, want.position);
  EXPECT_THAT(prompt.out(), NearRef(reference.prompt_out(), 0.0,
                                    tolerance.out * LargestOf(want.v)));
  EXPECT_THAT(got.score, NearRef(want.score, tolerance.score, 1e-6));
  double total = 0.0;
  for (const double s : Doubles(got.score)) total += s;
  const double rows =
      options.score.enabled ? options.prompt - options.score_first_row : 0;
  EXPECT_NEAR(total, rows * options.shape.query_heads, 1e-4 * (rows + 1));
}

// Logits and scores are f32 sums of exact products: 2e-4 of a score where
// outliers make logits of hundreds. Probabilities are rounded to bf16 before
// they weigh V: 2^-9 of it.
TEST_P(PromptTest, Bf16EqualsTheReference) {
  Compare(DType::kBF16, {4e-3, 2e-4});
}

TEST_P(PromptTest, F32EqualsTheReference) {
  Compare(DType::kF32, {2e-6, GetParam().outliers > 1.0F ? 2e-4 : 2e-5});
}

std::string Bits(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()),
          values.size() * sizeof(float)};
}

TEST(Prompt, SlicesChangeNoBit) {
  for (const DType type : {DType::kBF16, DType::kF32}) {
    for (const bool ranked : {false, true}) {
      Case c = {"", 150, 32, 32, 1, 2};
      c.score_first_row = 40;
      c.rank_positions = ranked;
      const SequenceOptions options = OptionsOf(c, type);
      Prompt whole(options);
      whole.RunAll(options.prompt);
      for (const int32_t slice : {32, 96}) {
        Prompt sliced(options);
        sliced.RunAll(slice);
        EXPECT_TRUE(Bits(sliced.out()) == Bits(whole.out())) << slice;
        EXPECT_TRUE(sliced.PoolBytes() == whole.PoolBytes()) << slice;
      }
    }
  }
}

// Prompts of different lengths and kinds in one call, each as if alone.
TEST(Prompt, NeighboursChangeNoBit) {
  const Case kinds[] = {
      {"", 40, 32, 32, 1, 2},
      {"", 100, 32, 32, 1, 2, NoiseKind::kGaussian, 1.5F, 30},
      {"", 3, 32, 32, 1, 2, NoiseKind::kNone, 1.0F, 0, false, true},
      {"", 70, 32, 32, 1, 2, NoiseKind::kGumbel, 1.0F, 0, true, true},
      {"", 33, 32, 32, 1, 2, NoiseKind::kGumbel, 1.0F, 0, false, false, 1.0F,
       1.0F, false},
  };
  for (const DType type : {DType::kBF16, DType::kF32}) {
    std::vector<std::unique_ptr<Prompt>> together;
    std::vector<Prompt*> batch;
    for (const Case& c : kinds) {
      together.push_back(std::make_unique<Prompt>(OptionsOf(c, type)));
      batch.push_back(together.back().get());
    }
    Prompt::Run(batch, 100);
    for (size_t i = 0; i < together.size(); ++i) {
      Prompt alone(OptionsOf(kinds[i], type));
      alone.RunAll(kinds[i].prompt);
      EXPECT_TRUE(Bits(together[i]->out()) == Bits(alone.out())) << i;
      EXPECT_TRUE(together[i]->PoolBytes() == alone.PoolBytes()) << i;
    }
  }
}

// The reference has no ALiBi: the formula in double, on what the pages hold.
TEST(Prompt, AlibiLowersDistantKeys) {
  constexpr int32_t kRows = 70;
  constexpr size_t kDim = 16;
  const std::vector<float> slopes = {0.25F, 0.0625F};
  for (const DType type : {DType::kBF16, DType::kF32}) {
    const Case c = {"", kRows, kDim, 0, 1, 2, NoiseKind::kNone};
    Prompt prompt(OptionsOf(c, type));
    prompt.RunAll(kRows, slopes);
    const Prompt::Held held = prompt.Read();
    const std::vector<double> k = Doubles(held.k);
    const std::vector<double> v = Doubles(held.v);
    std::vector<double> out;
    std::vector<double> score(kRows, 0.0);
    for (int32_t row = 0; row < kRows; ++row) {
      std::vector<float> stored = prompt.Row(row);
      for (float& x : stored) x = ref::Stored(x, type);
      const std::vector<double> q = Doubles(stored);
      for (size_t h = 0; h < 2; ++h) {
        std::vector<double> weight;
        double sum = 0.0;
        for (int32_t key = 0; key <= row; ++key) {
          double dot = 0.0;
          for (size_t i = 0; i < kDim; ++i) {
            dot += q[h * kDim + i] * k[static_cast<size_t>(key) * kDim + i];
          }
          weight.push_back(std::exp(dot / 4.0 - static_cast<double>(slopes[h]) *
                                                    (row - key)));
          sum += weight.back();
        }
        std::vector<double> y(kDim, 0.0);
        for (size_t key = 0; key < weight.size(); ++key) {
          for (size_t i = 0; i < kDim; ++i) {
            y[i] += weight[key] / sum * v[key * kDim + i];
          }
          score[key] += weight[key] / sum;
        }
        out.insert(out.end(), y.begin(), y.end());
      }
    }
    EXPECT_THAT(prompt.out(),
                NearRef(out, 0.0, type == DType::kF32 ? 1e-5 : 2e-2));
    EXPECT_THAT(held.score, NearRef(score, 2e-5, 1e-5));
  }
}

#if defined(KF_CUDA_EMULATION)
TEST(Prompt, FragmentsAreReadWithoutBankConflicts) {
  for (const int32_t dim : kHeadDims) {
    emu::ResetCounters();
    Prompt prompt(OptionsOf({"", 65, dim, 0, 1, 1}, DType::kBF16));
    prompt.RunAll(65);
    EXPECT_GT(emu::counters().ldmatrix, 0);
    EXPECT_EQ(emu::counters().ldmatrix_conflicts, 0) << dim;
  }
}
#endif

}  // namespace
}  // namespace kf::cuda
