// The backend's products by cuBLASLt, on a fake of it: which algorithms are
// chosen, how they are called, and what is done with a library whose rows'
// bits depend on the batch.
#if defined(KF_CUDA_EMULATION)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/products.h"
#include "kernels/ref/ref_backend.h"
#include "tests/cuda/fake_library.h"
#include "tests/kernels/dense_test_util.h"
#include "tests/testing/matchers.h"

namespace kf::testing {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;

constexpr int64_t kIn = 40;
constexpr int64_t kOut = 37;
constexpr int64_t kRows = 150;

class CublasLtTest : public ::testing::Test {
 protected:
  CublasLtTest()
      : fake_(ResetFake()),
        w_(RandomValues(kIn * kOut, 1)),
        x_(RandomValues(kIn * kRows, 2)),
        residual_(RandomValues(kOut * kRows, 3)) {}

  static WeightView View(const std::vector<float>& w) {
    return {DType::kF32, kOut, kIn,
            reinterpret_cast<const std::byte*>(w.data())};
  }

  void Start(const std::string& path = FakePath()) {
    auto backend = CreateCudaBackend({.name = "cuda", .cublaslt_path = path});
    ASSERT_THAT(backend, IsOk());
    backend_ = *std::move(backend);
    auto weights = backend_->LoadLinear({&view_, 1}, WeightFormat::kBF16);
    ASSERT_THAT(weights, IsOk());
    weights_ = *std::move(weights);
    chosen_ = fake_.products.size();
  }

  // Rows [first, first + rows) of x.
  std::vector<float> Multiply(int64_t first, int64_t rows, bool add) {
    return On(*backend_, *weights_, first, rows, add);
  }
  std::vector<float> On(Backend& backend,
                        const LinearWeights& weights,
                        int64_t first,
                        int64_t rows,
                        bool add) {
    std::vector<float> y(residual_.begin() + first * kOut,
                         residual_.begin() + (first + rows) * kOut);
    const auto x_bytes = std::as_bytes(std::span(x_).subspan(
        static_cast<size_t>(first * kIn), static_cast<size_t>(rows * kIn)));
    const auto bytes = std::as_writable_bytes(std::span(y));
    const auto x = backend.Allocate(x_bytes.size(), "x").value();
    const auto out = backend.Allocate(bytes.size(), "y").value();
    EXPECT_THAT(backend.Upload(x->data(), x_bytes), IsOk());
    EXPECT_THAT(backend.Upload(out->data(), bytes), IsOk());
    EXPECT_THAT(
        add ? backend.LinearAdd(weights, x->as<float>(), rows, out->as<float>())
            : backend.Linear(weights, x->as<float>(), rows, out->as<float>()),
        IsOk());
    EXPECT_THAT(backend.Download(bytes, out->data()), IsOk());
    return y;
  }

  // All rows are the reference's, and each has the same bits in other batches.
  void ExpectTheRightRows() {
    const auto reference = CreateReferenceBackend();
    const auto plain =
        reference->LoadLinear({&view_, 1}, WeightFormat::kBF16).value();
    for (const bool add : {false, true}) {
      const std::vector<float> all = Multiply(0, kRows, add);
      EXPECT_THAT(all,
                  NearRef(On(*reference, *plain, 0, kRows, add), 1e-4, 1e-3));
      for (const int64_t rows : {1, 2, 16, 17, 63, 64, 65, 128, 129}) {
        for (const int64_t first : {int64_t{0}, int64_t{1}, kRows - rows}) {
          SCOPED_TRACE(::testing::Message() << first << " + " << rows);
          const std::vector<float> want(all.begin() + first * kOut,
                                        all.begin() + (first + rows) * kOut);
          EXPECT_TRUE(BitsOf(Multiply(first, rows, add)) == BitsOf(want));
        }
      }
    }
  }

  // Products since the weights were loaded.
  std::vector<FakeProduct> Served() const {
    return {fake_.products.begin() + static_cast<std::ptrdiff_t>(chosen_),
            fake_.products.end()};
  }
  void ExpectServedBy(int32_t id) const {
    EXPECT_THAT(Served(), Each(Field(&FakeProduct::id, id)));
    EXPECT_FALSE(Served().empty());
  }

  FakeControl& fake_;
  const std::vector<float> w_;
  const std::vector<float> x_;
  const std::vector<float> residual_;
  const WeightView view_ = View(w_);
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<LinearWeights> weights_;
  size_t chosen_ = 0;
};

TEST_F(CublasLtTest, ServesAndSaysSo) {
  Start();
  EXPECT_THAT(backend_->description(), HasSubstr(", cuBLASLt 13.1.0"));
  EXPECT_THAT(backend_->notice(),
              HasSubstr("cuBLASLt 13.1.0 from " + FakePath() +
                        "; 40 to 37: algorithm 1/0, above 64 rows 2/0"));
  ExpectTheRightRows();
  for (const FakeProduct& product : Served()) {
    EXPECT_EQ(product.id, product.rows <= 64 ? 1 : 2);
    EXPECT_TRUE(product.in_place);
  }
}

TEST_F(CublasLtTest, EachShapeIsAskedAboutOnce) {
  Start();
  ASSERT_EQ(fake_.queries.size(), 2U);
  EXPECT_EQ(fake_.queries[0].rows, 64);
  EXPECT_EQ(fake_.queries[1].rows, 2048);
  const std::vector<float> other = RandomValues(kIn * kOut, 9);
  const WeightView same_shape = View(other);
  ASSERT_THAT(backend_->LoadLinear({&same_shape, 1}, WeightFormat::kBF16),
              IsOk());
  EXPECT_EQ(fake_.queries.size(), 2U);
  const WeightView stacked[] = {view_, same_shape};
  ASSERT_THAT(backend_->LoadLinear(stacked, WeightFormat::kBF16), IsOk());
  ASSERT_EQ(fake_.queries.size(), 4U);
  EXPECT_EQ(fake_.queries[2].out, 2 * kOut);
  // f32 is our own alone.
  ASSERT_THAT(backend_->LoadLinear({&view_, 1}, WeightFormat::kF32), IsOk());
  EXPECT_EQ(fake_.queries.size(), 4U);
}

TEST_F(CublasLtTest, SumsInOnePlace) {
  fake_.few = {{.id = 1, .split_k = 4}};
  Start();
  Multiply(0, 3, true);
  for (const FakeQuery& query : fake_.queries) {
    EXPECT_EQ(query.reductions, 0U);
    EXPECT_EQ(query.workspace_bytes, 0U);
    EXPECT_THAT(query.alignment, ::testing::ElementsAre(256, 16, 16, 16));
  }
  ASSERT_FALSE(Served().empty());
  EXPECT_THAT(fake_.products, Each(Field(&FakeProduct::split_k, 1)));
  EXPECT_THAT(fake_.products, Each(Field(&FakeProduct::reduction, 0U)));
  EXPECT_THAT(fake_.products, Each(Field(&FakeProduct::workspace_bytes, 0U)));
}

TEST_F(CublasLtTest, LeavesOutWhatSumsInSeveral) {
  fake_.few = {{.id = 7, .split_k = 2, .fixed_split_k = true},
               {.id = 8, .workspace_bytes = 4096},
               {.id = 9, .most_rows = 30000},
               {.id = 3}};
  fake_.many = fake_.few;
  Start();
  ExpectTheRightRows();
  EXPECT_THAT(fake_.products, Each(Field(&FakeProduct::id, 3)));
}

TEST_F(CublasLtTest, ManyRowsKeepTheBitsOfFew) {
  fake_.many = {{.id = 5, .order = FakeOrder::kBackward}, {.id = 6}};
  Start();
  ExpectTheRightRows();
  EXPECT_THAT(fake_.products, Contains(Field(&FakeProduct::id, 5)));
  EXPECT_THAT(Served(), Each(Field(&FakeProduct::id, ::testing::AnyOf(1, 6))));
  EXPECT_THAT(Served(), Contains(Field(&FakeProduct::id, 6)));
}

TEST_F(CublasLtTest, OneAlgorithmServesAllWhereNoneAgrees) {
  fake_.many = {{.id = 5, .order = FakeOrder::kBackward},
                {.id = 6, .order = FakeOrder::kByPlace}};
  Start();
  ExpectTheRightRows();
  ExpectServedBy(1);
}

TEST_F(CublasLtTest, TakesTheFirstThatKeepsBits) {
  fake_.few = {{.id = 5, .order = FakeOrder::kByRows},
               {.id = 6, .order = FakeOrder::kByPlace},
               {.id = 7, .order = FakeOrder::kBackward}};
  fake_.many = {{.id = 8}, {.id = 9, .order = FakeOrder::kBackward}};
  Start();
  ExpectTheRightRows();
  EXPECT_THAT(backend_->notice(),
              HasSubstr("algorithm 7/0, above 64 rows 9/0"));
}

TEST_F(CublasLtTest, PadsWhereBitsDependOnTheNumberOfRows) {
  fake_.few = {{.id = 6, .order = FakeOrder::kByPlace},
               {.id = 5, .order = FakeOrder::kByRows}};
  Start();
  EXPECT_THAT(backend_->notice(),
              HasSubstr("algorithm 5/0, padded to 64 rows"));
  ExpectTheRightRows();
  ExpectServedBy(5);
  EXPECT_THAT(Served(), Each(Field(&FakeProduct::rows, 64)));
  // 150 rows: two products, and one for the rest.
  chosen_ = fake_.products.size();
  Multiply(0, kRows, true);
  EXPECT_EQ(Served().size(), 3U);
}

TEST_F(CublasLtTest, IsNotUsedWhereBitsDependOnThePlace) {
  fake_.few = {{.id = 6, .order = FakeOrder::kByPlace}};
  Start();
  EXPECT_THAT(backend_->notice(), HasSubstr("40 to 37: own product"));
  EXPECT_THAT(backend_->description(), HasSubstr(", own products"));
  ExpectTheRightRows();
  EXPECT_TRUE(Served().empty());
  const std::vector<float> rows = Multiply(0, kRows, false);
  weights_.reset();
  Start("none");
  EXPECT_TRUE(BitsOf(rows) == BitsOf(Multiply(0, kRows, false)));
}

TEST_F(CublasLtTest, IsNotUsedWhereNothingIsOnOffer) {
  fake_.few.clear();
  Start();
  ExpectTheRightRows();
  EXPECT_TRUE(fake_.products.empty());
}

TEST_F(CublasLtTest, OwnProductsWhereNoneIsAskedFor) {
  Start("none");
  EXPECT_THAT(backend_->description(), HasSubstr("own products"));
  EXPECT_EQ(backend_->notice(), "");
  ExpectTheRightRows();
  EXPECT_TRUE(fake_.queries.empty());
}

// Integer weights are never its own.
TEST_F(CublasLtTest, IsNotNamedWhereItServesNothing) {
  for (const WeightFormat format : {WeightFormat::kQ8, WeightFormat::kQ4}) {
    auto backend =
        CreateCudaBackend({.name = "cuda", .cublaslt_path = FakePath()});
    ASSERT_THAT(backend, IsOk());
    const auto groups = (*backend)->LoadLinear({&view_, 1}, format);
    ASSERT_THAT(groups, IsOk());
    EXPECT_THAT((*backend)->description(), HasSubstr(", own products, graphs"));
    EXPECT_THAT((*backend)->notice(),
                HasSubstr("; weights that are not bf16: own products"));
    const auto rounded =
        (*backend)->LoadLinear({&view_, 1}, WeightFormat::kBF16);
    ASSERT_THAT(rounded, IsOk());
    EXPECT_THAT((*backend)->description(),
                HasSubstr(", cuBLASLt 13.1.0 and own products, no graphs"));
  }
}

TEST_F(CublasLtTest, SaysOnceWhatItLookedForInVain) {
  const auto device = cuda::Device::Open(0);
  ASSERT_THAT(device, IsOk());
  cuda::Workspace workspace(**device);
  const auto none = cuda::Products::Create(**device, workspace, "",
                                           {"/nowhere/a.so", "/nowhere/b.so"});
  ASSERT_THAT(none, IsOk());
  EXPECT_EQ((*none)->description(), "own products");
  const std::string missing =
      "cannot open shared object file: No such file or directory";
  EXPECT_EQ((*none)->notice(),
            "no cuBLASLt, own products serve; tried /nowhere/a.so: " + missing +
                "; /nowhere/b.so: " + missing);
  // One that was only found does no harm where it does not start.
  fake_.create_status = 1;
  const auto dead =
      cuda::Products::Create(**device, workspace, "", {FakePath()});
  ASSERT_THAT(dead, IsOk());
  EXPECT_EQ((*dead)->description(), "own products");
  EXPECT_THAT((*dead)->notice(),
              HasSubstr("cublasLtCreate: CUBLAS_STATUS_NOT_INITIALIZED"));
  fake_.create_status = 0;
  const auto found = cuda::Products::Create(**device, workspace, "",
                                            {"/nowhere/a.so", FakePath()});
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ((*found)->description(), "cuBLASLt 13.1.0");
}

TEST_F(CublasLtTest, AGivenPathHasToWork) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(
      CreateCudaBackend({.name = "cuda", .cublaslt_path = "/nowhere/l.so"}),
      StatusIs(kInvalid,
               "cublaslt_path: \"/nowhere/l.so\": cannot open shared object"));
  fake_.create_status = 1;
  EXPECT_THAT(
      CreateCudaBackend({.name = "cuda", .cublaslt_path = FakePath()}),
      StatusIs(kInvalid, "cublasLtCreate: CUBLAS_STATUS_NOT_INITIALIZED"));
}

TEST_F(CublasLtTest, AProductThatFailsIsAnError) {
  Start();
  fake_.refuse = true;
  const auto x = backend_->Allocate(kIn * sizeof(float), "x").value();
  const std::vector<float> ones(kIn, 1.0F);
  ASSERT_THAT(backend_->Upload(x->data(), std::as_bytes(std::span(ones))),
              IsOk());
  EXPECT_THAT(backend_->Linear(*weights_, x->as<float>(), 1, x->as<float>()),
              StatusIs(absl::StatusCode::kInternal,
                       "cublasLtMatmul: CUBLAS_STATUS_NOT_SUPPORTED"));
}

TEST_F(CublasLtTest, AllThatWasMadeIsGivenBack) {
  const int before = fake_.live;
  Start();
  EXPECT_GT(fake_.live, before);
  weights_.reset();
  backend_.reset();
  EXPECT_EQ(fake_.live, before);
}

TEST_F(CublasLtTest, AFullDeviceSaysForWhat) {
  auto backend =
      CreateCudaBackend({.name = "cuda", .cublaslt_path = FakePath()});
  ASSERT_THAT(backend, IsOk());
  // Room for the weights, not for what tries the algorithms.
  emu::SetDeviceLimit(emu::DeviceBytes() + 4096);
  EXPECT_THAT((*backend)->LoadLinear({&view_, 1}, WeightFormat::kBF16),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "the check of cuBLASLt's algorithms"));
  emu::SetDeviceLimit(size_t{2} << 30);
}

}  // namespace
}  // namespace kf::testing
#endif
