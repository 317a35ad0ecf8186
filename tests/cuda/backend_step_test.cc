// BeginStep and EndStep of the CUDA backend: operations are put off and
// replayed as graphs, and nothing of it shows in what they leave.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "tests/testing/matchers.h"

#if defined(KF_CUDA_EMULATION)
#include "runtime_api.h"
#endif

namespace kf::testing {
namespace {

constexpr int64_t kVocabulary = 20;
constexpr int64_t kWidth = 64;
constexpr int64_t kCapacity = 8;

std::vector<float> Random(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

WeightView ViewOf(const std::vector<float>& values) {
  return {DType::kF32, static_cast<int64_t>(values.size()) / kWidth, kWidth,
          reinterpret_cast<const std::byte*>(values.data())};
}

int Captured() {
#if defined(KF_CUDA_EMULATION)
  return emu::graph_counts().captured;
#else
  return 0;
#endif
}
int Launched() {
#if defined(KF_CUDA_EMULATION)
  return emu::graph_counts().launched;
#else
  return 0;
#endif
}
// How often graphs are captured is known on the emulator alone.
#if defined(KF_CUDA_EMULATION)
constexpr int kOne = 1;
#else
constexpr int kOne = 0;
#endif

// A model of one product without attention, on a backend of its own.
class Model {
 public:
  Model(bool graphs, WeightFormat format) {
    auto cuda = CreateCudaBackend({.name = "cuda", .cuda_graphs = graphs});
    EXPECT_THAT(cuda, IsOk());
    backend = *std::move(cuda);
    auto table = backend->LoadEmbedding(ViewOf(table_values_));
    EXPECT_THAT(table, IsOk());
    table_ = *std::move(table);
    const WeightView weights = ViewOf(weight_values_);
    auto linear = backend->LoadLinear({&weights, 1}, format);
    EXPECT_THAT(linear, IsOk());
    linear_ = *std::move(linear);
    norm_ = Filled(Random(kWidth, 3));
    // A row more than there is room for, to see that it stays as it is.
    hidden_ = Filled(std::vector<float>((kCapacity + 1) * kWidth, 42.0F));
    normed_ = Filled(std::vector<float>((kCapacity + 1) * kWidth, 43.0F));
  }

  absl::Status Operations(std::span<const int32_t> ids, float eps) {
    const auto rows = std::ssize(ids);
    auto* hidden = hidden_->as<float>();
    auto* normed = normed_->as<float>();
    if (auto s = backend->Embed(*table_, ids, hidden); !s.ok()) return s;
    if (auto s = backend->RmsNorm(hidden, norm_->as<float>(), eps, rows, kWidth,
                                  normed);
        !s.ok()) {
      return s;
    }
    return backend->LinearAdd(*linear_, normed, rows, hidden);
  }
  void Step(std::span<const int32_t> ids,
            float eps = 1e-5F,
            int64_t capacity = kCapacity) {
    EXPECT_THAT(backend->BeginStep(std::ssize(ids), capacity), IsOk());
    EXPECT_THAT(Operations(ids, eps), IsOk());
    EXPECT_THAT(backend->EndStep(), IsOk());
  }
  std::vector<float> Hidden(size_t rows) {
    std::vector<float> values(rows * kWidth);
    EXPECT_THAT(backend->Download(std::as_writable_bytes(std::span(values)),
                                  hidden_->data()),
                IsOk());
    return values;
  }
  std::unique_ptr<Buffer> Filled(const std::vector<float>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    auto buffer = backend->Allocate(bytes.size(), "test memory");
    EXPECT_THAT(buffer, IsOk());
    EXPECT_THAT(backend->Upload((*buffer)->data(), bytes), IsOk());
    return *std::move(buffer);
  }

  std::unique_ptr<Backend> backend;

 private:
  const std::vector<float> table_values_ = Random(kVocabulary * kWidth, 1);
  const std::vector<float> weight_values_ = Random(kWidth * kWidth, 2);
  std::unique_ptr<EmbeddingTable> table_;
  std::unique_ptr<LinearWeights> linear_;
  std::unique_ptr<Buffer> norm_;
  std::unique_ptr<Buffer> hidden_;
  std::unique_ptr<Buffer> normed_;
};

using Ids = std::vector<int32_t>;

class BackendStepTest : public ::testing::TestWithParam<WeightFormat> {
 protected:
  void ExpectSame(const Ids& ids, float eps = 1e-5F) {
    Model plain(/*graphs=*/false, GetParam());
    plain.Step(ids, eps);
    EXPECT_EQ(step_.Hidden(ids.size()), plain.Hidden(ids.size()));
  }

  Model step_{/*graphs=*/true, GetParam()};
};

TEST_P(BackendStepTest, StepsOfABucketShareAGraph) {
  const int captured = Captured();
  const int launched = Launched();
  for (const Ids& ids : {Ids{3, 4, 5}, Ids{9, 0, 19, 7}, Ids{1, 1, 2}}) {
    step_.Step(ids);
    ExpectSame(ids);
  }
  EXPECT_EQ(Captured() - captured, kOne);
  EXPECT_EQ(Launched() - launched, 3 * kOne);
  step_.Step(Ids{6});
  ExpectSame(Ids{6});
  step_.Step(Ids{6, 7, 8, 9, 10});
  ExpectSame(Ids{6, 7, 8, 9, 10});
  EXPECT_EQ(Captured() - captured, 3 * kOne);
}

// A bucket's graph is replayed only for the operations that it was made of.
TEST_P(BackendStepTest, OtherOperationsAreCapturedAnew) {
  const int captured = Captured();
  for (const float eps : {1e-5F, 0.5F, 0.5F, 1e-5F}) {
    step_.Step(Ids{3, 4}, eps);
    ExpectSame(Ids{3, 4}, eps);
  }
  EXPECT_EQ(Captured() - captured, 3 * kOne);
}

// Five rows round up to eight, but not beyond what there is room for.
TEST_P(BackendStepTest, NothingIsWrittenBeyondTheCapacity) {
  for (const int64_t capacity : {8, 6, 5}) {
    Model model(/*graphs=*/true, GetParam());
    model.Step(Ids{3, 4, 5, 6, 7}, 1e-5F, capacity);
    const std::vector<float> hidden = model.Hidden(kCapacity + 1);
    for (size_t i = static_cast<size_t>(capacity) * kWidth; i < hidden.size();
         ++i) {
      ASSERT_EQ(hidden[i], 42.0F) << capacity;
    }
  }
}

// A call that is no part of a graph finds what came before it done.
TEST_P(BackendStepTest, OtherCallsComeAfterWhatWasPutOff) {
  const Ids ids = {5, 6, 7};
  const int launched = Launched();
  EXPECT_THAT(step_.backend->BeginStep(3, kCapacity), IsOk());
  EXPECT_THAT(step_.Operations(ids, 1e-5F), IsOk());
  ExpectSame(ids);  // downloads
  // And what follows is done at once.
  EXPECT_THAT(step_.Operations(Ids{1, 2, 3}, 1e-5F), IsOk());
  ExpectSame({1, 2, 3});
  EXPECT_THAT(step_.backend->EndStep(), IsOk());
  ExpectSame({1, 2, 3});
  EXPECT_EQ(Launched(), launched);
}

TEST_P(BackendStepTest, AnOperationOfOtherRowsEndsThePuttingOff) {
  EXPECT_THAT(step_.backend->BeginStep(3, kCapacity), IsOk());
  EXPECT_THAT(step_.Operations(Ids{5, 6, 7}, 1e-5F), IsOk());
  EXPECT_THAT(step_.Operations(Ids{8, 9}, 1e-5F), IsOk());
  EXPECT_THAT(step_.backend->EndStep(), IsOk());
  std::vector<float> want = step_.Hidden(3);
  want.resize(2 * kWidth);
  Model plain(/*graphs=*/false, GetParam());
  plain.Step(Ids{8, 9});
  EXPECT_EQ(want, plain.Hidden(2));
}

TEST_P(BackendStepTest, AnEmptyStepDoesNothing) {
  const int launched = Launched();
  EXPECT_THAT(step_.backend->BeginStep(3, kCapacity), IsOk());
  EXPECT_THAT(step_.backend->EndStep(), IsOk());
  EXPECT_THAT(step_.backend->EndStep(), IsOk());
  EXPECT_EQ(Launched(), launched);
}

INSTANTIATE_TEST_SUITE_P(Formats,
                         BackendStepTest,
                         ::testing::Values(WeightFormat::kF32,
                                           WeightFormat::kBF16));

}  // namespace
}  // namespace kf::testing
