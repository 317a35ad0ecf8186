#include "kernels/cuda/cublaslt_matmul.h"

#include <array>

#include "kernels/core/status.h"

namespace kf::cuda {
namespace {

constexpr int kMostCandidates = 16;
// Of x, the residual and y. W is a device buffer's start.
constexpr uint32_t kAlignment = 16;
constexpr uint32_t kWeightAlignment = 256;

bool Aligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % kAlignment == 0;
}

}  // namespace

absl::Status LtStatus(const lt::Api& api, lt::Status status, const char* call) {
  if (status == lt::kSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(call, ": ", api.cublasLtGetStatusName(status)));
}

absl::StatusOr<std::unique_ptr<LtMatmul>> LtMatmul::Create(const lt::Api& api,
                                                           lt::Handle handle,
                                                           int64_t in,
                                                           int64_t out) {
  std::unique_ptr<LtMatmul> matmul(new LtMatmul(api, handle, in, out));
  KF_RETURN_IF_ERROR(matmul->MakeDescriptors());
  return matmul;
}

LtMatmul::~LtMatmul() {
  if (op_ != nullptr) api_.cublasLtMatmulDescDestroy(op_);
  if (preference_ != nullptr) {
    api_.cublasLtMatmulPreferenceDestroy(preference_);
  }
  for (lt::Layout* layout : {w_, x_, y_}) {
    if (layout != nullptr) api_.cublasLtMatrixLayoutDestroy(layout);
  }
}

// Row-major y = x W^T is, column by column, y^T = W x^T: W's memory is a
// column-major [in, out], read transposed, x^T a column-major [in, rows].
absl::Status LtMatmul::MakeDescriptors() {
  KF_RETURN_IF_ERROR(LtStatus(
      api_, api_.cublasLtMatmulDescCreate(&op_, lt::kComputeF32, lt::kF32),
      "cublasLtMatmulDescCreate"));
  const int32_t transposed = lt::kTransposed;
  KF_RETURN_IF_ERROR(
      LtStatus(api_,
               api_.cublasLtMatmulDescSetAttribute(
                   op_, lt::kOpTransA, &transposed, sizeof transposed),
               "cublasLtMatmulDescSetAttribute"));

  const auto make = [&](lt::Layout** layout, int type, int64_t rows,
                        int64_t columns) {
    return LtStatus(api_,
                    api_.cublasLtMatrixLayoutCreate(
                        layout, type, static_cast<uint64_t>(rows),
                        static_cast<uint64_t>(columns), rows),
                    "cublasLtMatrixLayoutCreate");
  };
  KF_RETURN_IF_ERROR(make(&w_, lt::kBf16, in_, out_));
  KF_RETURN_IF_ERROR(make(&x_, lt::kBf16, in_, 1));
  KF_RETURN_IF_ERROR(make(&y_, lt::kF32, out_, 1));

  KF_RETURN_IF_ERROR(LtStatus(api_,
                              api_.cublasLtMatmulPreferenceCreate(&preference_),
                              "cublasLtMatmulPreferenceCreate"));
  const auto prefer = [&](int attribute, auto value) {
    return LtStatus(api_,
                    api_.cublasLtMatmulPreferenceSetAttribute(
                        preference_, attribute, &value, sizeof value),
                    "cublasLtMatmulPreferenceSetAttribute");
  };
  KF_RETURN_IF_ERROR(prefer(lt::kPrefWorkspace, uint64_t{0}));
  KF_RETURN_IF_ERROR(prefer(lt::kPrefReductions, lt::kNoReduction));
  KF_RETURN_IF_ERROR(prefer(lt::kPrefAlignmentA, kWeightAlignment));
  for (int b = lt::kPrefAlignmentA + 1; b <= lt::kPrefAlignmentD; ++b) {
    KF_RETURN_IF_ERROR(prefer(b, kAlignment));
  }
  return absl::OkStatus();
}

absl::Status LtMatmul::SetRows(int64_t rows) {
  const auto columns = static_cast<uint64_t>(rows);
  for (lt::Layout* layout : {x_, y_}) {
    KF_RETURN_IF_ERROR(
        LtStatus(api_,
                 api_.cublasLtMatrixLayoutSetAttribute(
                     layout, lt::kLayoutCols, &columns, sizeof columns),
                 "cublasLtMatrixLayoutSetAttribute"));
  }
  return absl::OkStatus();
}

bool LtMatmul::Restrict(lt::Algo& algo) {
  const auto is = [&](int attribute, auto wanted) {
    // Where it cannot be set, what is there decides.
    static_cast<void>(api_.cublasLtMatmulAlgoConfigSetAttribute(
        &algo, attribute, &wanted, sizeof wanted));
    decltype(wanted) value = {};
    size_t written = 0;
    return api_.cublasLtMatmulAlgoConfigGetAttribute(&algo, attribute, &value,
                                                     sizeof value, &written) ==
               lt::kSuccess &&
           value == wanted;
  };
  return is(lt::kAlgoSplitK, int32_t{1}) &&
         is(lt::kAlgoReduction, lt::kNoReduction);
}

std::vector<lt::Algo> LtMatmul::Candidates(int64_t rows) {
  std::vector<lt::Algo> algorithms;
  std::array<lt::Heuristic, kMostCandidates> found = {};
  int count = 0;
  if (!SetRows(rows).ok() ||
      api_.cublasLtMatmulAlgoGetHeuristic(
          handle_, op_, w_, x_, y_, y_, preference_, kMostCandidates,
          found.data(), &count) != lt::kSuccess) {
    return algorithms;
  }
  for (int i = 0; i < count; ++i) {
    lt::Heuristic& offer = found[static_cast<size_t>(i)];
    if (offer.state == lt::kSuccess && Restrict(offer.algo) &&
        Takes(offer.algo, rows)) {
      algorithms.push_back(offer.algo);
    }
  }
  return algorithms;
}

bool LtMatmul::Takes(const lt::Algo& algo, int64_t rows) {
  lt::Heuristic result = {};
  return SetRows(rows).ok() &&
         api_.cublasLtMatmulAlgoCheck(handle_, op_, w_, x_, y_, y_, &algo,
                                      &result) == lt::kSuccess &&
         result.workspace_bytes == 0;
}

std::string LtMatmul::NameOf(const lt::Algo& algo) const {
  int32_t id = -1;
  uint32_t tile = 0;
  size_t written = 0;
  static_cast<void>(api_.cublasLtMatmulAlgoConfigGetAttribute(
      &algo, lt::kAlgoId, &id, sizeof id, &written));
  static_cast<void>(api_.cublasLtMatmulAlgoConfigGetAttribute(
      &algo, lt::kAlgoTile, &tile, sizeof tile, &written));
  return absl::StrCat(id, "/", tile);
}

absl::Status LtMatmul::Run(gpu::Stream stream,
                           const lt::Algo& algo,
                           const ProductArgs<Bf16>& args) {
  KF_CHECK(args.in == in_ && args.out == out_);
  KF_CHECK(Aligned(args.x) && Aligned(args.residual) && Aligned(args.y));
  KF_RETURN_IF_ERROR(SetRows(args.rows));
  const float one = 1.0F;
  const float beta = args.residual != nullptr ? 1.0F : 0.0F;
  const void* const c = args.residual != nullptr ? args.residual : args.y;
  return LtStatus(
      api_,
      api_.cublasLtMatmul(handle_, op_, &one, args.w, w_, args.x, x_, &beta, c,
                          y_, args.y, y_, &algo, nullptr, 0, stream),
      "cublasLtMatmul");
}

}  // namespace kf::cuda
