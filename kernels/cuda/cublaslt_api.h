// The part of cuBLASLt's C interface that is called here, under names of our
// own: no header of the toolkit is needed where it is not installed. Numbers,
// sizes and signatures are those of <cublasLt.h>, to which
// tests/cuda/cublaslt_header_check.cc holds them where that header is found.
//
// Matrices are column-major there; "op" is a product's description.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"

namespace kf::cuda::lt {

struct Context;
struct Layout;
struct Op;
struct Preference;
using Handle = Context*;

using Status = int;  // cublasStatus_t
inline constexpr Status kSuccess = 0;

// Attributes are numbers, as are the values of these enumerations.
inline constexpr int kBf16 = 14;             // CUDA_R_16BF
inline constexpr int kF32 = 0;               // CUDA_R_32F
inline constexpr int kComputeF32 = 68;       // CUBLAS_COMPUTE_32F
inline constexpr int kTransposed = 1;        // CUBLAS_OP_T
inline constexpr int kLayoutCols = 3;        // CUBLASLT_MATRIX_LAYOUT_COLS
inline constexpr int kOpTransA = 3;          // CUBLASLT_MATMUL_DESC_TRANSA
inline constexpr int kPrefWorkspace = 1;     // .._PREF_MAX_WORKSPACE_BYTES
inline constexpr int kPrefReductions = 3;    // .._PREF_REDUCTION_SCHEME_MASK
inline constexpr int kPrefAlignmentA = 5;    // .._PREF_MIN_ALIGNMENT_A_BYTES
inline constexpr int kPrefAlignmentD = 8;    // B and C in between
inline constexpr int kAlgoId = 0;            // CUBLASLT_ALGO_CONFIG_ID
inline constexpr int kAlgoTile = 1;          // .._CONFIG_TILE_ID
inline constexpr int kAlgoSplitK = 2;        // .._CONFIG_SPLITK_NUM
inline constexpr int kAlgoReduction = 3;     // .._CONFIG_REDUCTION_SCHEME
inline constexpr uint32_t kNoReduction = 0;  // CUBLASLT_REDUCTION_SCHEME_NONE

struct Algo {
  uint64_t data[8];
};

struct Heuristic {
  Algo algo;
  size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};

// The functions, by the names that a library exports.
// NOLINTBEGIN(readability-identifier-naming)
struct Api {
  size_t (*cublasLtGetVersion)();  // 130100: 13.1.0
  const char* (*cublasLtGetStatusName)(Status status);
  Status (*cublasLtCreate)(Handle* handle);
  Status (*cublasLtDestroy)(Handle handle);
  Status (*cublasLtMatrixLayoutCreate)(
      Layout** layout, int type, uint64_t rows, uint64_t cols, int64_t ld);
  Status (*cublasLtMatrixLayoutDestroy)(Layout* layout);
  Status (*cublasLtMatrixLayoutSetAttribute)(Layout* layout,
                                             int attribute,
                                             const void* value,
                                             size_t bytes);
  Status (*cublasLtMatmulDescCreate)(Op** op, int compute_type, int scale_type);
  Status (*cublasLtMatmulDescDestroy)(Op* op);
  Status (*cublasLtMatmulDescSetAttribute)(Op* op,
                                           int attribute,
                                           const void* value,
                                           size_t bytes);
  Status (*cublasLtMatmulPreferenceCreate)(Preference** preference);
  Status (*cublasLtMatmulPreferenceDestroy)(Preference* preference);
  Status (*cublasLtMatmulPreferenceSetAttribute)(Preference* preference,
                                                 int attribute,
                                                 const void* value,
                                                 size_t bytes);
  Status (*cublasLtMatmulAlgoGetHeuristic)(Handle handle,
                                           Op* op,
                                           Layout* a,
                                           Layout* b,
                                           Layout* c,
                                           Layout* d,
                                           Preference* preference,
                                           int requested,
                                           Heuristic* results,
                                           int* returned);
  Status (*cublasLtMatmulAlgoCheck)(Handle handle,
                                    Op* op,
                                    Layout* a,
                                    Layout* b,
                                    Layout* c,
                                    Layout* d,
                                    const Algo* algo,
                                    Heuristic* result);
  Status (*cublasLtMatmulAlgoConfigSetAttribute)(Algo* algo,
                                                 int attribute,
                                                 const void* value,
                                                 size_t bytes);
  Status (*cublasLtMatmulAlgoConfigGetAttribute)(const Algo* algo,
                                                 int attribute,
                                                 void* value,
                                                 size_t bytes,
                                                 size_t* written);
  // D = alpha op(A) op(B) + beta C; alpha and beta point to host floats.
  Status (*cublasLtMatmul)(Handle handle,
                           Op* op,
                           const void* alpha,
                           const void* a,
                           Layout* a_layout,
                           const void* b,
                           Layout* b_layout,
                           const void* beta,
                           const void* c,
                           Layout* c_layout,
                           void* d,
                           Layout* d_layout,
                           const Algo* algo,
                           void* workspace,
                           size_t workspace_bytes,
                           gpu::Stream stream);
};
// NOLINTEND(readability-identifier-naming)

}  // namespace kf::cuda::lt
