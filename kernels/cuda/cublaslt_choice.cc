#include "kernels/cuda/cublaslt_choice.h"

#include <memory>
#include <random>
#include <vector>

#include "kernels/core/status.h"
#include "kernels/cuda/compare_bits.h"

namespace kf::cuda {
namespace {

// More than two of any tile's rows up to kLtFewRows, and an odd rest.
constexpr int64_t kCheckedRows = 130;
// A prompt's slice, for the heuristic of `many`.
constexpr int64_t kManyRows = 2048;

// Values of very different size, so that another order of sums is another
// result. The same on every machine.
std::vector<Bf16> RowsToTry(int64_t count) {
  std::mt19937 random(1);
  std::vector<Bf16> values(static_cast<size_t>(count));
  for (Bf16& value : values) {
    const auto bits = static_cast<uint32_t>(random());
    const float unit = static_cast<float>(bits >> 8) * 0x1p-23F - 1.0F;
    value = FloatToBf16(unit * static_cast<float>(1U << (bits & 7U)));
  }
  return values;
}

// Runs an algorithm on some of the rows and compares them with the same rows of
// an earlier product. Differences add up on the device until they are asked
// for.
class RowTrial {
 public:
  RowTrial(const Device& device, LtMatmul& matmul, const Bf16* w)
      : device_(device), matmul_(matmul), w_(w) {}

  absl::Status Prepare();

  // The next comparisons' expectation: rows [0, rows) by `algo`, with or
  // without a residual.
  absl::Status Expect(const lt::Algo& algo, int64_t rows, bool added) {
    added_ = added;
    return Run(algo, 0, rows, *want_);
  }
  // Rows [first, first + rows), of which the first `compared` are expected.
  absl::Status Try(const lt::Algo& algo,
                   int64_t first,
                   int64_t rows,
                   int64_t compared) {
    KF_RETURN_IF_ERROR(Run(algo, first, rows, *got_));
    CompareBits(device_.stream(), got_->as<float>(),
                want_->as<float>() + first * matmul_.out(),
                compared * matmul_.out(), differing_->as<uint32_t>());
    return absl::OkStatus();
  }
  absl::Status Try(const lt::Algo& algo, int64_t first, int64_t rows) {
    return Try(algo, first, rows, rows);
  }

  // Whether all was equal since the last question. Waits.
  absl::StatusOr<bool> AllEqual();

 private:
  absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(int64_t values,
                                                         size_t bytes) {
    return DeviceBuffer::Allocate(device_, static_cast<size_t>(values) * bytes,
                                  "the check of cuBLASLt's algorithms");
  }
  absl::Status Run(const lt::Algo& algo,
                   int64_t first,
                   int64_t rows,
                   DeviceBuffer& to);

  const Device& device_;
  LtMatmul& matmul_;
  const Bf16* const w_;
  bool added_ = false;
  std::unique_ptr<DeviceBuffer> x_;
  std::unique_ptr<DeviceBuffer> want_;
  std::unique_ptr<DeviceBuffer> got_;
  std::unique_ptr<DeviceBuffer> differing_;
};

absl::Status RowTrial::Prepare() {
  const std::vector<Bf16> x = RowsToTry(kCheckedRows * matmul_.in());
  const int64_t outputs = kCheckedRows * matmul_.out();
  KF_ASSIGN_OR_RETURN(x_, Allocate(kCheckedRows * matmul_.in(), sizeof(Bf16)));
  KF_ASSIGN_OR_RETURN(want_, Allocate(outputs, sizeof(float)));
  KF_ASSIGN_OR_RETURN(got_, Allocate(outputs, sizeof(float)));
  KF_ASSIGN_OR_RETURN(differing_, Allocate(1, sizeof(uint32_t)));
  KF_RETURN_IF_ERROR(
      ToStatus(cudaMemcpyAsync(x_->data(), x.data(), x_->bytes(),
                               cudaMemcpyHostToDevice, device_.stream()),
               "cudaMemcpyAsync"));
  return AllEqual().status();  // waits, and sets the count to 0
}

absl::Status RowTrial::Run(const lt::Algo& algo,
                           int64_t first,
                           int64_t rows,
                           DeviceBuffer& to) {
  ProductArgs<Bf16> args;
  args.x = x_->as<Bf16>() + first * matmul_.in();
  args.w = w_;
  args.y = to.as<float>();
  args.rows = rows;
  args.in = matmul_.in();
  args.out = matmul_.out();
  if (added_) {
    // In place, as residuals are; the same for each row: 0.747.
    args.residual = args.y;
    KF_RETURN_IF_ERROR(ToStatus(
        cudaMemsetAsync(args.y, 0x3f,
                        static_cast<size_t>(rows * args.out) * sizeof(float),
                        device_.stream()),
        "cudaMemsetAsync"));
  }
  return matmul_.Run(device_.stream(), algo, args);
}

absl::StatusOr<bool> RowTrial::AllEqual() {
  uint32_t differing = 0;
  KF_RETURN_IF_ERROR(
      ToStatus(cudaMemcpyAsync(&differing, differing_->data(), sizeof differing,
                               cudaMemcpyDeviceToHost, device_.stream()),
               "cudaMemcpyAsync"));
  KF_RETURN_IF_ERROR(
      ToStatus(cudaMemsetAsync(differing_->data(), 0, differing_->bytes(),
                               device_.stream()),
               "cudaMemsetAsync"));
  KF_RETURN_IF_ERROR(device_.Wait());
  return differing == 0;
}

// The row counts of a decode step: each, in the first and the last place.
absl::Status TryFew(RowTrial& trial, const lt::Algo& algo) {
  for (int64_t rows = 1; rows <= kLtFewRows; ++rows) {
    KF_RETURN_IF_ERROR(trial.Try(algo, 0, rows));
    KF_RETURN_IF_ERROR(trial.Try(algo, kCheckedRows - rows, rows));
  }
  return absl::OkStatus();
}

// Around the borders of tiles.
absl::Status TryMany(RowTrial& trial, const lt::Algo& algo) {
  for (const int64_t rows : {kLtFewRows + 1, int64_t{96}, int64_t{127},
                             int64_t{128}, int64_t{129}, kCheckedRows}) {
    KF_RETURN_IF_ERROR(trial.Try(algo, 0, rows));
    KF_RETURN_IF_ERROR(trial.Try(algo, kCheckedRows - rows, rows));
  }
  return absl::OkStatus();
}

// One number of rows; each of them in several places.
absl::Status TryPlaces(RowTrial& trial, const lt::Algo& algo) {
  for (const int64_t first : {0, 1, 2, 7, 8, 16, 32, 33, 63}) {
    KF_RETURN_IF_ERROR(trial.Try(algo, first, kLtFewRows, kLtFewRows - first));
  }
  return absl::OkStatus();
}

// Whether `algo`'s rows are those of `reference` throughout `tries`, a function
// (trial, algo), alone and added to a residual. A product that the library
// refuses is a no; an error of the device is an error.
template <typename Tries>
absl::StatusOr<bool> Agrees(RowTrial& trial,
                            const lt::Algo& reference,
                            int64_t rows,
                            const lt::Algo& algo,
                            const Tries& tries) {
  bool ran = true;
  for (const bool added : {false, true}) {
    ran = ran && trial.Expect(reference, rows, added).ok() &&
          tries(trial, algo).ok();
  }
  KF_ASSIGN_OR_RETURN(const bool equal, trial.AllEqual());
  return ran && equal;
}

// Whether the library takes `algo` at all numbers of rows up to the most.
bool TakesAny(LtMatmul& matmul, const lt::Algo& algo) {
  for (int64_t rows = 1; rows <= kLtMostRows; rows *= 2) {
    if (!matmul.Takes(algo, rows)) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::optional<LtChoice>> ChooseAlgorithms(const Device& device,
                                                         LtMatmul& matmul,
                                                         const Bf16* w) {
  const std::vector<lt::Algo> offers = matmul.Candidates(kLtFewRows);
  if (offers.empty()) return std::nullopt;
  RowTrial trial(device, matmul, w);
  KF_RETURN_IF_ERROR(trial.Prepare());
  for (const lt::Algo& few : offers) {
    if (!TakesAny(matmul, few)) continue;
    KF_ASSIGN_OR_RETURN(const bool holds,
                        Agrees(trial, few, kCheckedRows, few, TryFew));
    if (!holds) continue;
    for (const lt::Algo& many : matmul.Candidates(kManyRows)) {
      if (!TakesAny(matmul, many)) continue;
      KF_ASSIGN_OR_RETURN(const bool agrees,
                          Agrees(trial, few, kCheckedRows, many, TryMany));
      if (agrees) return LtChoice{.few = few, .many = many};
    }
    return LtChoice{.few = few, .many = few};
  }
  for (const lt::Algo& algo : offers) {
    KF_ASSIGN_OR_RETURN(const bool holds,
                        Agrees(trial, algo, kLtFewRows, algo, TryPlaces));
    if (holds) return LtChoice{.few = algo, .many = algo, .padded = true};
  }
  return std::nullopt;
}

}  // namespace kf::cuda
