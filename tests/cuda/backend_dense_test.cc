// Memory, weights and dense operations of the CUDA backend against the plain
// reference, and what a device that is full says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/ref/ref_backend.h"
#include "tests/kernels/dense_test_util.h"
#include "tests/testing/matchers.h"

#if defined(KF_CUDA_EMULATION)
#include "runtime_api.h"
#endif

namespace kf::testing {
namespace {

class BackendDenseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto cuda = CreateCudaBackend({.name = "cuda"});
    ASSERT_THAT(cuda, IsOk());
    cuda_ = *std::move(cuda);
  }

  std::unique_ptr<Buffer> Upload(std::span<const float> values) {
    auto buffer = cuda_->Allocate(values.size_bytes(), "test memory");
    EXPECT_THAT(buffer, IsOk());
    EXPECT_THAT(cuda_->Upload((*buffer)->data(), std::as_bytes(values)),
                IsOk());
    return *std::move(buffer);
  }
  std::vector<float> Download(Buffer& buffer) {
    std::vector<float> values(buffer.bytes() / sizeof(float));
    EXPECT_THAT(cuda_->Download(std::as_writable_bytes(std::span(values)),
                                buffer.data()),
                IsOk());
    return values;
  }

  std::unique_ptr<Backend> cuda_;
  std::unique_ptr<Backend> reference_ = CreateReferenceBackend();
};

std::vector<float> Random(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

WeightView ViewOf(const std::vector<float>& values, int64_t cols) {
  return {DType::kF32, static_cast<int64_t>(values.size()) / cols, cols,
          reinterpret_cast<const std::byte*>(values.data())};
}

TEST_F(BackendDenseTest, ProductsOfStackedWeights) {
  constexpr int64_t kIn = 40;
  const std::vector<float> a = Random(kIn * 33, 1);
  const std::vector<float> b = Random(kIn * 5, 2);
  const WeightView stacked[] = {ViewOf(a, kIn), ViewOf(b, kIn)};
  struct Format {
    WeightFormat format;
    double tolerance;
  };
  for (const Format& f : {Format{WeightFormat::kF32, 1e-5},
                          // x is rounded to bf16 as well
                          Format{WeightFormat::kBF16, 0.03}}) {
    SCOPED_TRACE(static_cast<int>(f.format));
    const auto got_w = cuda_->LoadLinear(stacked, f.format);
    const auto want_w = reference_->LoadLinear(stacked, f.format);
    ASSERT_THAT(got_w, IsOk());
    EXPECT_EQ((*got_w)->in(), kIn);
    EXPECT_EQ((*got_w)->out(), 38);
    std::vector<float> first_row;
    for (const int64_t rows : {1, 3, 17}) {
      const std::vector<float> x = Random(rows * kIn, 3);
      std::vector<float> want = Random(rows * 38, 4);
      const auto device_x = Upload(x);
      const auto out = Upload(want);
      const auto added = Upload(want);
      ASSERT_THAT(cuda_->LinearAdd(**got_w, device_x->as<float>(), rows,
                                   added->as<float>()),
                  IsOk());
      ASSERT_THAT(reference_->LinearAdd(**want_w, x.data(), rows, want.data()),
                  IsOk());
      EXPECT_THAT(Download(*added), NearRef(want, f.tolerance, f.tolerance));
      ASSERT_THAT(
          cuda_->Linear(**got_w, device_x->as<float>(), rows, out->as<float>()),
          IsOk());
      ASSERT_THAT(reference_->Linear(**want_w, x.data(), rows, want.data()),
                  IsOk());
      std::vector<float> got = Download(*out);
      EXPECT_THAT(got, NearRef(want, f.tolerance, f.tolerance));
      got.resize(38);
      if (first_row.empty()) first_row = got;
      EXPECT_EQ(got, first_row) << "of " << rows;
    }
  }
}

TEST_F(BackendDenseTest, LinearWantsWholeWords) {
  const std::vector<float> w = Random(12, 1);
  const WeightView view = ViewOf(w, 6);
  for (const WeightFormat format :
       {WeightFormat::kBF16, WeightFormat::kQ8, WeightFormat::kQ4}) {
    EXPECT_THAT(cuda_->LoadLinear({&view, 1}, format),
                StatusIs(absl::StatusCode::kUnimplemented, "6 inputs"));
  }
}

// Stacked as [Q; K; V] of a file that mixes types: runs of 4, 8 and 4 bits,
// that begin where no 8 outputs do. Their values are those of the file, so that
// bf16 is the twin.
TEST_F(BackendDenseTest, IntegerWeightsOfSeveralWidths) {
  constexpr int64_t kIn = 96;
  const TestMatrix a = RandomMatrix(DType::kQ4_0, 13, kIn, 1);
  const TestMatrix b = RandomMatrix(DType::kQ8_0, 6, kIn, 2);
  const TestMatrix c = RandomMatrix(DType::kQ4_0, 4, kIn, 3);
  const WeightView stacked[] = {a.view, b.view, c.view, c.view};
  constexpr int64_t kOut = 27;
  const auto want_w = reference_->LoadLinear(stacked, WeightFormat::kBF16);
  const auto bf16 = cuda_->LoadLinear(stacked, WeightFormat::kBF16);
  const auto q8 = cuda_->LoadLinear(stacked, WeightFormat::kQ8);
  const auto q4 = cuda_->LoadLinear(stacked, WeightFormat::kQ4);
  for (const auto* w : {&want_w, &bf16, &q8, &q4}) ASSERT_THAT(*w, IsOk());
  EXPECT_EQ((*q4)->out(), kOut);
  // Tiles of 8 by 128: 2, 1 and 1 of them, 4 in 8 bits.
  EXPECT_EQ((*q4)->bytes(), 3U * 640 + 1152);
  EXPECT_EQ((*q8)->bytes(), 4U * 1152);
  for (const int64_t rows : {1, 3, 17, 65}) {
    SCOPED_TRACE(rows);
    const std::vector<float> x = Random(rows * kIn, 4);
    const std::vector<float> residual = Random(rows * kOut, 5);
    const auto device_x = Upload(x);
    std::vector<float> want = residual;
    ASSERT_THAT(reference_->LinearAdd(**want_w, x.data(), rows, want.data()),
                IsOk());
    for (const auto* w : {&q8, &q4}) {
      const auto y = Upload(residual);
      ASSERT_THAT(
          cuda_->LinearAdd(***w, device_x->as<float>(), rows, y->as<float>()),
          IsOk());
      EXPECT_THAT(Download(*y), NearRef(want, 1e-4, 1e-2));
    }
  }
}

TEST_F(BackendDenseTest, EmbeddingsAreExact) {
  const std::vector<float> table = Random(7 * 20, 1);
  const WeightView view = ViewOf(table, 20);
  const auto got = cuda_->LoadEmbedding(view);
  ASSERT_THAT(got, IsOk());
  const std::vector<int32_t> ids = {6, 0, 3, 3};
  const auto out = Upload(std::vector<float>(80, 1.0F));
  ASSERT_THAT(cuda_->Embed(**got, ids, out->as<float>()), IsOk());
  const std::vector<float> rows = Download(*out);
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto id = static_cast<size_t>(ids[i]);
    EXPECT_EQ(
        std::vector<float>(rows.begin() + 20 * static_cast<int>(i),
                           rows.begin() + 20 * static_cast<int>(i) + 20),
        std::vector<float>(table.begin() + 20 * static_cast<int>(id),
                           table.begin() + 20 * static_cast<int>(id) + 20));
  }
}

// More calls than there are staging slots, and nothing waits in between.
TEST_F(BackendDenseTest, CallsInFlightKeepTheirDescriptors) {
  constexpr int32_t kRows = 40;
  const std::vector<float> table = Random(kRows * 8, 1);
  const auto embedding = cuda_->LoadEmbedding(ViewOf(table, 8));
  ASSERT_THAT(embedding, IsOk());
  const auto out = Upload(std::vector<float>(table.size(), 0.0F));
  for (int32_t id = 0; id < kRows; ++id) {
    ASSERT_THAT(cuda_->Embed(**embedding, {&id, 1}, out->as<float>() + id * 8),
                IsOk());
  }
  EXPECT_EQ(Download(*out), table);
}

TEST_F(BackendDenseTest, NormAndActivation) {
  constexpr int64_t kRows = 3;
  constexpr int64_t kWidth = 33;
  const std::vector<float> x = Random(kRows * 2 * kWidth, 1);
  const std::vector<float> weight = Random(2 * kWidth, 2);
  std::vector<float> want(x.size());
  const auto device_x = Upload(x);
  const auto device_weight = Upload(weight);
  const auto out = Upload(want);
  ASSERT_THAT(cuda_->RmsNorm(device_x->as<float>(), device_weight->as<float>(),
                             1e-5F, kRows, 2 * kWidth, out->as<float>()),
              IsOk());
  ASSERT_THAT(reference_->RmsNorm(x.data(), weight.data(), 1e-5F, kRows,
                                  2 * kWidth, want.data()),
              IsOk());
  EXPECT_THAT(Download(*out), NearRef(want, 2e-6, 1e-12));
  want.resize(static_cast<size_t>(kRows * kWidth));
  const auto activated = Upload(want);
  ASSERT_THAT(cuda_->SwiGlu(device_x->as<float>(), kRows, kWidth,
                            activated->as<float>()),
              IsOk());
  ASSERT_THAT(reference_->SwiGlu(x.data(), kRows, kWidth, want.data()), IsOk());
  EXPECT_THAT(Download(*activated), NearRef(want, 2e-6, 1e-12));
}

TEST_F(BackendDenseTest, RowsAreCopied) {
  const std::vector<float> values = Random(40, 1);
  const auto from = Upload(values);
  const auto to = Upload(std::vector<float>(40, 0.0F));
  const RowCopy copies[] = {{from->as<float>() + 8, to->as<float>(), 2},
                            {from->as<float>(), to->as<float>() + 32, 1}};
  ASSERT_THAT(cuda_->CopyRows(copies, 8), IsOk());
  std::vector<float> want(40, 0.0F);
  std::copy(values.begin() + 8, values.begin() + 24, want.begin());
  std::copy(values.begin(), values.begin() + 8, want.begin() + 32);
  EXPECT_EQ(Download(*to), want);
}

TEST_F(BackendDenseTest, SaysWhatItIs) {
  EXPECT_NE(cuda_->description().find("sm_"), std::string::npos);
  // On a GPU it depends on the machine which.
  EXPECT_THAT(cuda_->description(),
              ::testing::AnyOf(::testing::HasSubstr("own products"),
                               ::testing::HasSubstr("cuBLASLt")));
#if defined(KF_CUDA_EMULATION)
  EXPECT_THAT(cuda_->description(), ::testing::HasSubstr("own products"));
#endif
  const auto memory = cuda_->OwnMemory();
  ASSERT_TRUE(memory.has_value());
  EXPECT_GT(memory->free, 0U);
  EXPECT_GE(memory->total, memory->free);
  const auto buffer = Upload(std::vector<float>(4));
  EXPECT_EQ(cuda_->HostView(buffer->data()), nullptr);
}

TEST_F(BackendDenseTest, NoSuchDevice) {
  EXPECT_THAT(CreateCudaBackend({.name = "cuda", .device_index = 1000}),
              StatusIs(absl::StatusCode::kUnavailable, "no CUDA device 1000"));
}

#if defined(KF_CUDA_EMULATION)
TEST_F(BackendDenseTest, AFullDeviceSaysForWhat) {
  emu::SetDeviceLimit(emu::DeviceBytes() + 4096);
  EXPECT_THAT(cuda_->Allocate(8192, "kv_pool_bytes"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "kv_pool_bytes: cannot allocate 8192 bytes"));
  // Later calls do not answer for it.
  EXPECT_THAT(cuda_->Allocate(64, "a little"), IsOk());
  emu::SetDeviceLimit(size_t{2} << 30);
}
#endif

}  // namespace
}  // namespace kf::testing
