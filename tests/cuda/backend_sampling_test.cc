// StartSampling and WaitForSamples of the CUDA backend: what is begun is waited
// for alone, and logits may be written again at once.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "tests/testing/matchers.h"

namespace kf::testing {
namespace {

constexpr int32_t kVocabulary = 70;

class BackendSamplingTest : public ::testing::Test {
 protected:
  BackendSamplingTest() {
    auto cuda = CreateCudaBackend({.name = "cuda", .cublaslt_path = "none"});
    EXPECT_THAT(cuda, IsOk());
    backend_ = *std::move(cuda);
  }

  std::unique_ptr<Buffer> Rows(size_t rows, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(rows * kVocabulary);
    for (float& value : values) value = normal(random);
    const auto bytes = std::as_bytes(std::span<const float>(values));
    auto buffer = backend_->Allocate(bytes.size(), "logits");
    EXPECT_THAT(buffer, IsOk());
    EXPECT_THAT(backend_->Upload((*buffer)->data(), bytes), IsOk());
    return *std::move(buffer);
  }

  static std::vector<SampleRow> Asked(Buffer& logits, size_t rows) {
    std::vector<SampleRow> asked(rows);
    for (size_t i = 0; i < rows; ++i) {
      asked[i].logits = logits.as<float>() + i * kVocabulary;
      asked[i].options.temperature = i % 3 == 0 ? 0.0 : 1.0;
      asked[i].options.seed = 7 + i;
      asked[i].options.logprobs = i % 2 == 0;
      asked[i].options.top_logprobs = i % 2 == 0 ? static_cast<int>(i % 5) : 0;
    }
    return asked;
  }

  std::vector<SampledRow> Sample(std::span<const SampleRow> rows) {
    EXPECT_THAT(backend_->StartSampling(rows, kVocabulary), IsOk());
    auto sampled = backend_->WaitForSamples();
    EXPECT_THAT(sampled, IsOk());
    return *std::move(sampled);
  }

  // What `asked` asked for.
  static void ExpectSame(const SampledRow& got,
                         const SampledRow& want,
                         const SampleRow& asked) {
    EXPECT_EQ(got.token.state, SampleState::kChosen);
    EXPECT_EQ(got.token.id, want.token.id);
    if (!asked.options.logprobs) return;
    EXPECT_EQ(got.token.rank, want.token.rank);
    EXPECT_EQ(got.token.logit, want.token.logit);
    EXPECT_EQ(got.token.exp_sum, want.token.exp_sum);
    ASSERT_EQ(got.top.size(), want.top.size());
    for (size_t i = 0; i < got.top.size(); ++i) {
      EXPECT_EQ(got.top[i].id, want.top[i].id);
      EXPECT_EQ(got.top[i].logit, want.top[i].logit);
    }
  }

  std::unique_ptr<Backend> backend_;
};

// More rows than have working memory at once.
TEST_F(BackendSamplingTest, ManyRowsAreEachTheirOwn) {
  const bool checked = std::string(KF_EMULATED_MODE) == "check";
  const size_t rows = checked ? 66 : 150;
  const auto logits = Rows(rows, 1);
  const std::vector<SampleRow> asked = Asked(*logits, rows);
  const std::vector<SampledRow> together = Sample(asked);
  ASSERT_EQ(together.size(), rows);
  for (size_t i = 0; i < rows; i += checked ? 13 : 1) {
    SCOPED_TRACE(i);
    ExpectSame(together[i], Sample(std::span(asked).subspan(i, 1)).front(),
               asked[i]);
  }
}

// Operations called in between, which use the same working memory, write the
// logits, and are not waited for.
TEST_F(BackendSamplingTest, IsWaitedForAlone) {
  constexpr size_t kRows = 3;
  const auto logits = Rows(kRows, 2);
  const auto others = Rows(kRows, 3);
  const std::vector<SampleRow> asked = Asked(*logits, kRows);
  const std::vector<SampledRow> want = Sample(asked);
  const std::vector<SampledRow> next = Sample(Asked(*others, kRows));

  EXPECT_THAT(backend_->StartSampling(asked, kVocabulary), IsOk());
  const RowCopy copy = {others->as<float>(), logits->as<float>(), kRows};
  EXPECT_THAT(backend_->CopyRows({&copy, 1}, kVocabulary), IsOk());
#if defined(KF_CUDA_EMULATION)
  // Memory of an emulated device can be looked at, and work is done late.
  std::vector<std::byte> before(kRows * kVocabulary * sizeof(float));
  std::memcpy(before.data(), logits->data(), before.size());
#endif
  const auto got = backend_->WaitForSamples();
  ASSERT_THAT(got, IsOk());
#if defined(KF_CUDA_EMULATION)
  EXPECT_EQ(std::memcmp(before.data(), logits->data(), before.size()), 0)
      << "the copy was waited for";
#endif
  for (size_t i = 0; i < kRows; ++i) {
    ExpectSame((*got)[i], want[i], asked[i]);
  }
  const std::vector<SampledRow> written = Sample(asked);
  for (size_t i = 0; i < kRows; ++i) ExpectSame(written[i], next[i], asked[i]);
}

}  // namespace
}  // namespace kf::testing
