// Holds kernels/cuda/cublaslt_api.h to the toolkit's own header; compiled where
// there is one, run nowhere.
#include <cublasLt.h>

#include <type_traits>

#include "kernels/cuda/cublaslt_api.h"

namespace kf::cuda::lt {
namespace {

static_assert(kSuccess == CUBLAS_STATUS_SUCCESS);
static_assert(kBf16 == CUDA_R_16BF && kF32 == CUDA_R_32F);
static_assert(kComputeF32 == CUBLAS_COMPUTE_32F);
static_assert(kTransposed == CUBLAS_OP_T);
static_assert(kLayoutCols == CUBLASLT_MATRIX_LAYOUT_COLS);
static_assert(kOpTransA == CUBLASLT_MATMUL_DESC_TRANSA);
static_assert(kPrefWorkspace == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(kPrefReductions == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
static_assert(kPrefAlignmentA == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
static_assert(kPrefAlignmentA + 1 ==
              CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
static_assert(kPrefAlignmentA + 2 ==
              CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
static_assert(kPrefAlignmentD == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
static_assert(kAlgoId == CUBLASLT_ALGO_CONFIG_ID);
static_assert(kAlgoTile == CUBLASLT_ALGO_CONFIG_TILE_ID);
static_assert(kAlgoSplitK == CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
static_assert(kAlgoReduction == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
static_assert(kNoReduction == CUBLASLT_REDUCTION_SCHEME_NONE);

static_assert(sizeof(Algo) == sizeof(cublasLtMatmulAlgo_t));
using TheirHeuristic = cublasLtMatmulHeuristicResult_t;
static_assert(sizeof(Heuristic) == sizeof(TheirHeuristic));
static_assert(offsetof(Heuristic, algo) == offsetof(TheirHeuristic, algo));
static_assert(offsetof(Heuristic, workspace_bytes) ==
              offsetof(TheirHeuristic, workspaceSize));
static_assert(offsetof(Heuristic, state) == offsetof(TheirHeuristic, state));
static_assert(offsetof(Heuristic, waves) ==
              offsetof(TheirHeuristic, wavesCount));

// Whether a value of type Ours is passed as one of Theirs is: pointers are
// alike, an enumeration is its integer, and integers have one size and sign.
template <typename Ours, typename Theirs>
constexpr bool PassedAlike() {
  if constexpr (std::is_pointer_v<Theirs>) {
    return std::is_pointer_v<Ours>;
  } else if constexpr (std::is_enum_v<Theirs>) {
    return std::is_same_v<Ours, int> && sizeof(Theirs) == sizeof(int);
  } else {
    return std::is_same_v<Ours, Theirs>;
  }
}

template <typename Ours, typename Theirs>
struct SameCall : std::false_type {};
template <typename R1, typename... A1, typename R2, typename... A2>
requires(sizeof...(A1) ==
         sizeof...(A2)) struct SameCall<R1 (*)(A1...), R2 (*)(A2...)>
    : std::bool_constant<PassedAlike<R1, R2>() &&
                         (PassedAlike<A1, A2>() && ...)> {
};

#define KF_SAME_CALL(name) \
  static_assert(SameCall<decltype(Api::name), decltype(&::name)>())
KF_SAME_CALL(cublasLtGetVersion);
KF_SAME_CALL(cublasLtGetStatusName);
KF_SAME_CALL(cublasLtCreate);
KF_SAME_CALL(cublasLtDestroy);
KF_SAME_CALL(cublasLtMatrixLayoutCreate);
KF_SAME_CALL(cublasLtMatrixLayoutDestroy);
KF_SAME_CALL(cublasLtMatrixLayoutSetAttribute);
KF_SAME_CALL(cublasLtMatmulDescCreate);
KF_SAME_CALL(cublasLtMatmulDescDestroy);
KF_SAME_CALL(cublasLtMatmulDescSetAttribute);
KF_SAME_CALL(cublasLtMatmulPreferenceCreate);
KF_SAME_CALL(cublasLtMatmulPreferenceDestroy);
KF_SAME_CALL(cublasLtMatmulPreferenceSetAttribute);
KF_SAME_CALL(cublasLtMatmulAlgoGetHeuristic);
KF_SAME_CALL(cublasLtMatmulAlgoCheck);
KF_SAME_CALL(cublasLtMatmulAlgoConfigSetAttribute);
KF_SAME_CALL(cublasLtMatmulAlgoConfigGetAttribute);
KF_SAME_CALL(cublasLtMatmul);
#undef KF_SAME_CALL

}  // namespace
}  // namespace kf::cuda::lt
