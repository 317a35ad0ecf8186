// What an 8-bit cache stores: the integers and scales of each token, the same
// however the token came there, and for as long as it stays.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "kernels/core/bf16.h"
#include "kernels/cpu/attention_layout.h"
#include "kernels/ref/ref_backend.h"
#include "kernels/ref/ref_page.h"
#include "tests/kernels/attention_rig.h"

namespace kf::testing {
namespace {

// K and V of a slot, as they lie in an 8-bit page.
struct StoredToken {
  std::vector<int8_t> k;  // [d]
  std::vector<int8_t> v;  // [d]
  float k_scale = 0.0F;
  float v_scale = 0.0F;
  friend bool operator==(const StoredToken& a, const StoredToken& b) {
    return a.k == b.k && a.v == b.v && a.k_scale == b.k_scale &&
           a.v_scale == b.v_scale;
  }
};

StoredToken TokenAt(const AttentionShape& shape,
                    const PageSpan& pages,
                    int32_t head,
                    int32_t slot) {
  const cpu::HeadLayout layout = cpu::MakeHeadLayout(shape);
  const unsigned char* block =
      cpu::BlockOf(cpu::MakeHeadPages(shape, pages, head), slot / kPageTokens);
  const int32_t at = slot % kPageTokens;
  StoredToken token;
  for (int32_t c = 0; c < shape.head_dim; ++c) {
    token.k.push_back(
        static_cast<int8_t>(block[(c / 4 * kPageTokens + at) * 4 + c % 4]));
    token.v.push_back(static_cast<int8_t>(
        block[layout.v_offset + at * layout.value_stride + c]));
  }
  std::memcpy(&token.k_scale, block + layout.k_scale_offset + at * 4, 4);
  std::memcpy(&token.v_scale, block + layout.v_scale_offset + at * 4, 4);
  return token;
}

int32_t PositionAt(const AttentionShape& shape,
                   const PageSpan& pages,
                   int32_t head,
                   int32_t slot) {
  unsigned char* block =
      cpu::BlockOf(cpu::MakeHeadPages(shape, pages, head), slot / kPageTokens);
  return cpu::PositionsOf(cpu::MakeHeadLayout(shape),
                          block)[slot % kPageTokens];
}

SequenceOptions ByteOptions(int32_t head_dim, int32_t prompt, int32_t budget) {
  SequenceOptions o = SmallOptions(prompt, budget, budget / 4);
  o.shape = {6, 2, head_dim, head_dim / 4 * 2, 10000.0, DType::kI8};
  o.outliers = 10.0F;
  return o;
}

class ByteCacheTest : public ::testing::TestWithParam<std::string> {
 protected:
  const std::unique_ptr<Backend> backend_ = MakeCpu(GetParam());
};

// The integers and scales are those of the plain twin, at every level.
TEST_P(ByteCacheTest, StoresWhatTheTwinStores) {
  const auto twin = CreateReferenceBackend();
  for (const int32_t d : {2, 10, 64, 80, 250}) {
    SCOPED_TRACE(d);
    SequenceOptions options = ByteOptions(d, 70, 70);
    options.max_steps = 30;
    Sequence got(*backend_, options);
    Sequence want(*twin, options);
    for (Sequence* s : {&got, &want}) {
      s->PrefillAll(32);
      s->Compact();
    }
    for (int32_t slot = 0; slot < 70; ++slot) {
      const StoredToken token =
          TokenAt(options.shape, got.cache_pages(), 1, slot);
      const ref::Slot twin_token =
          ref::SlotAt(options.shape, want.cache_pages(), 1, slot);
      for (size_t c = 0; c < static_cast<size_t>(d); ++c) {
        ASSERT_EQ(static_cast<float>(token.k[c]) * token.k_scale,
                  twin_token.k[c]);
        ASSERT_EQ(static_cast<float>(token.v[c]) * token.v_scale,
                  twin_token.v[c]);
      }
      // The nearest integers of the full range.
      const std::vector<float> row = got.RowAt(slot);
      const float* v = row.data() + 9 * d;
      int largest = 0;
      for (size_t c = 0; c < static_cast<size_t>(d); ++c) {
        const float x = Bf16ToFloat(FloatToBf16(v[c]));
        ASSERT_LE(std::abs(x - twin_token.v[c]), token.v_scale * 0.50001F);
        largest = std::max(largest, std::abs(int{token.v[c]}));
      }
      ASSERT_EQ(largest, 127);
    }
  }
}

// Cutting copies: from the prompt, in place, and over decode steps.
TEST_P(ByteCacheTest, SurvivorsKeepTheirBits) {
  for (const int32_t d : {26, 64}) {
    SequenceOptions options = ByteOptions(d, 150, 150);
    Sequence whole(*backend_, options);
    whole.PrefillAll(4096);
    whole.Compact();
    const auto original = [&](int32_t head, int32_t position) {
      return TokenAt(options.shape, whole.cache_pages(), head, position);
    };
    for (const bool in_place : {false, true}) {
      SCOPED_TRACE(::testing::Message() << d << (in_place ? " in place" : ""));
      SequenceOptions cut = ByteOptions(d, 150, 60);
      cut.in_place = in_place;
      Sequence s(*backend_, cut);
      s.PrefillAll(4096);
      s.Compact();
      int32_t moved = 0;
      const auto expect_same = [&](int32_t slots) {
        for (int32_t g = 0; g < 2; ++g) {
          for (int32_t slot = 0; slot < slots; ++slot) {
            if (slot == s.free_slot()[g]) continue;
            const int32_t p = PositionAt(cut.shape, s.cache_pages(), g, slot);
            if (p >= 150) continue;
            moved += p != slot;
            ASSERT_EQ(TokenAt(cut.shape, s.cache_pages(), g, slot),
                      original(g, p))
                << "position " << p;
          }
        }
      };
      expect_same(60);
      for (int32_t step = 0; step < 50; ++step) s.StepAlone();
      expect_same(61);
      EXPECT_GT(moved, 50) << "nothing was moved";
    }
  }
}

// A token's bytes are the same whether it came with the prompt or was fed.
TEST_P(ByteCacheTest, FedTokensAreStoredLikeThePrompts) {
  for (const bool rank_positions : {false, true}) {
    SequenceOptions options = ByteOptions(80, 90, 90);
    options.rank_positions = rank_positions;
    Sequence prompt(*backend_, options);
    prompt.PrefillAll(4096);
    prompt.Compact();
    options.prompt = 70;
    Sequence fed(*backend_, options);
    fed.PrefillAll(4096);
    fed.Compact();
    for (int32_t p = 70; p < 90; ++p) fed.StepAlone();
    for (int32_t p = 0; p < 90; ++p) {
      ASSERT_EQ(PositionAt(options.shape, fed.cache_pages(), 0, p), p);
      ASSERT_EQ(TokenAt(options.shape, fed.cache_pages(), 0, p),
                TokenAt(options.shape, prompt.cache_pages(), 0, p))
          << p;
    }
  }
}

// No number is lost: what is not finite is not finite when it is read, and
// zeros, or less than the scale can say, are zeros.
TEST_P(ByteCacheTest, UnusualVectors) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const float odd : {0.0F, 1e-40F, 1e-31F, kNan, kInfinity, -kInfinity}) {
    SCOPED_TRACE(odd);
    SequenceOptions options = ByteOptions(64, 40, 60);
    options.score.enabled = false;
    options.rows = [&](int32_t position) {
      std::vector<float> row(10 * 64, 0.5F);
      // K of zeros: all weights are the same.
      for (size_t c = 6 * 64; c < 8 * 64; ++c) row[c] = 0.0F;
      for (size_t c = 8 * 64; c < row.size(); ++c) row[c] = 1.0F;
      if (position != 7) return row;
      // The V of head 1.
      for (size_t c = 9 * 64; c < row.size(); ++c) row[c] = 0.0F;
      row[9 * 64 + 5] = odd;
      return row;
    };
    options.max_steps = 1;
    Sequence s(*backend_, options);
    s.PrefillAll(4096);
    s.Compact();
    s.StepAlone();
    const std::vector<float>& out = s.step_out()[0];
    for (size_t c = 0; c < 6 * 64; ++c) {
      if (c < 3 * 64) {
        ASSERT_NEAR(out[c], 1.0F, 1e-5F);
      } else if (std::isfinite(odd)) {
        ASSERT_NEAR(out[c], 40.0F / 41.0F, 1e-5F);
      } else {
        ASSERT_TRUE(std::isnan(out[c])) << c;
      }
    }
  }
}

// What the 8 bits cost, against bf16: some thousandths of the outputs' size;
// and they are not free, or the test would see nothing.
TEST_P(ByteCacheTest, OutputsAreNearThoseOfBf16) {
  const auto run = [&](DType dtype) {
    SequenceOptions options = ByteOptions(64, 400, 200);
    options.outliers = 1.0F;
    options.shape.cache_dtype = dtype;
    options.max_steps = 40;
    // The same tokens must stay.
    options.score.enabled = false;
    return RunAlone(*backend_, options, 4096);
  };
  const Trace bytes = run(DType::kI8);
  const Trace bf16 = run(DType::kBF16);
  EXPECT_EQ(bytes.prompt_out, bf16.prompt_out)
      << "prompts attend to what is not yet rounded";
  double error = 0.0;
  double size = 0.0;
  for (size_t step = 0; step < bf16.step_out.size(); ++step) {
    for (size_t i = 0; i < bf16.step_out[step].size(); ++i) {
      const auto want = static_cast<double>(bf16.step_out[step][i]);
      const double off = static_cast<double>(bytes.step_out[step][i]) - want;
      error += off * off;
      size += want * want;
    }
  }
  const double relative = std::sqrt(error / size);
  RecordProperty("relative_error", std::to_string(relative));
  EXPECT_LT(relative, 0.02);
  EXPECT_GT(relative, 0.0005);
}

TEST(ByteCacheBytes, APageTakesLittleMoreThanHalf) {
  for (const auto& [d, bytes] :
       {std::pair{64, 2304}, {80, 2816}, {128, 4352}}) {
    AttentionShape shape = {8, 2, d, d, 10000.0, DType::kI8};
    const auto backend = MakeCpu("auto");
    EXPECT_EQ(backend->PageBytes(shape), static_cast<size_t>(2 * bytes));
    const size_t few = backend->PageBytes(shape);
    shape.cache_dtype = DType::kBF16;
    EXPECT_LT(static_cast<double>(few),
              0.55 * static_cast<double>(backend->PageBytes(shape)));
  }
}

INSTANTIATE_TEST_SUITE_P(Levels,
                         ByteCacheTest,
                         ::testing::ValuesIn(SimdLevelNames()),
                         [](const auto& param_info) {
                           return param_info.param;
                         });

}  // namespace
}  // namespace kf::testing
