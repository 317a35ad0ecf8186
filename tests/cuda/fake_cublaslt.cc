#include "tests/cuda/fake_cublaslt.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "kernels/core/bf16.h"

// NOLINTBEGIN(readability-identifier-naming): names of cuBLASLt

namespace kf::cuda::lt {

// The opaque types, here with their contents.
struct Context {};
struct Layout {
  int type;
  uint64_t rows, cols;
  int64_t ld;
};
struct Op {
  int compute, scale;
  int32_t transpose_a = 0;
};
struct Preference {
  uint64_t workspace_bytes = 0;
  uint32_t reductions = 7;
  uint32_t alignment[4] = {256, 256, 256, 256};
};

}  // namespace kf::cuda::lt

namespace kf::testing {
namespace {

namespace lt = cuda::lt;

constexpr lt::Status kInvalidValue = 7;
constexpr lt::Status kNotSupported = 15;
constexpr uint64_t kManyRows = 1024;

FakeControl& Control() {
  static FakeControl control;
  return control;
}

// What lies in the 64 bytes of an algorithm.
struct AlgoData {
  FakeAlgorithm spec;
  int32_t split_k;
  uint32_t reduction;
};
static_assert(sizeof(AlgoData) <= sizeof(lt::Algo));

AlgoData Read(const lt::Algo* algo) {
  AlgoData data;
  std::memcpy(static_cast<void*>(&data), algo, sizeof data);
  return data;
}
void Write(const AlgoData& data, lt::Algo* algo) {
  std::memcpy(algo, &data, sizeof data);
}

template <typename T, typename... Args>
lt::Status Make(T** made, Args... args) {
  *made = new T{args...};
  ++Control().live;
  return lt::kSuccess;
}
template <typename T>
lt::Status Drop(T* made) {
  delete made;
  --Control().live;
  return lt::kSuccess;
}

template <typename T>
lt::Status Take(const void* value, size_t bytes, T& to) {
  if (bytes != sizeof(T)) return kInvalidValue;
  std::memcpy(&to, value, bytes);
  return lt::kSuccess;
}

// The one product that is asked for: y^T = W x^T, bf16 into f32.
bool IsOurs(const lt::Op& op,
            const lt::Layout& a,
            const lt::Layout& b,
            const lt::Layout& c) {
  return op.compute == lt::kComputeF32 && op.scale == lt::kF32 &&
         op.transpose_a == lt::kTransposed && a.type == lt::kBf16 &&
         b.type == lt::kBf16 && c.type == lt::kF32 && a.rows == b.rows &&
         a.cols == c.rows && b.cols == c.cols &&
         static_cast<uint64_t>(a.ld) == a.rows &&
         static_cast<uint64_t>(b.ld) == b.rows &&
         static_cast<uint64_t>(c.ld) == c.rows;
}

bool Backward(FakeOrder order, int64_t rows, int64_t place) {
  switch (order) {
    case FakeOrder::kForward:
      return false;
    case FakeOrder::kBackward:
      return true;
    case FakeOrder::kByRows:
      return rows > 16;
    case FakeOrder::kByPlace:
      return place % 2 == 1;
  }
  return false;
}

struct Operands {
  const Bf16* w;
  const Bf16* x;
  const float* c;
  float* d;
  float alpha, beta;
};

void Multiply(const Operands& p, const FakeProduct& shape, FakeOrder order) {
  for (int64_t row = 0; row < shape.rows; ++row) {
    const bool backward = Backward(order, shape.rows, row);
    for (int64_t column = 0; column < shape.out; ++column) {
      float sum = 0.0F;
      for (int64_t step = 0; step < shape.in; ++step) {
        const int64_t k = backward ? shape.in - 1 - step : step;
        sum += Bf16ToFloat(p.x[row * shape.in + k]) *
               Bf16ToFloat(p.w[column * shape.in + k]);
      }
      const int64_t at = row * shape.out + column;
      p.d[at] =
          p.beta == 0.0F ? p.alpha * sum : p.alpha * sum + p.beta * p.c[at];
    }
  }
}

}  // namespace
}  // namespace kf::testing

using kf::cuda::lt::Algo;
using kf::cuda::lt::Handle;
using kf::cuda::lt::Heuristic;
using kf::cuda::lt::Layout;
using kf::cuda::lt::Op;
using kf::cuda::lt::Preference;
using kf::cuda::lt::Status;
using namespace kf::testing;  // NOLINT(google-build-using-namespace)

extern "C" {

FakeControl* fake_cublaslt_control() { return &Control(); }

size_t cublasLtGetVersion() { return Control().version; }

const char* cublasLtGetStatusName(Status status) {
  switch (status) {
    case 0:
      return "CUBLAS_STATUS_SUCCESS";
    case 1:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case kInvalidValue:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case kNotSupported:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "CUBLAS_STATUS_UNKNOWN";
  }
}

Status cublasLtCreate(Handle* handle) {
  if (Control().create_status != 0) return Control().create_status;
  return Make(handle);
}
Status cublasLtDestroy(Handle handle) { return Drop(handle); }

Status cublasLtMatrixLayoutCreate(
    Layout** layout, int type, uint64_t rows, uint64_t cols, int64_t ld) {
  return Make(layout, type, rows, cols, ld);
}
Status cublasLtMatrixLayoutDestroy(Layout* layout) { return Drop(layout); }
Status cublasLtMatrixLayoutSetAttribute(Layout* layout,
                                        int attribute,
                                        const void* value,
                                        size_t bytes) {
  if (attribute != kf::cuda::lt::kLayoutCols) return kInvalidValue;
  return Take(value, bytes, layout->cols);
}

Status cublasLtMatmulDescCreate(Op** op, int compute, int scale) {
  return Make(op, compute, scale);
}
Status cublasLtMatmulDescDestroy(Op* op) { return Drop(op); }
Status cublasLtMatmulDescSetAttribute(Op* op,
                                      int attribute,
                                      const void* value,
                                      size_t bytes) {
  if (attribute != kf::cuda::lt::kOpTransA) return kInvalidValue;
  return Take(value, bytes, op->transpose_a);
}

Status cublasLtMatmulPreferenceCreate(Preference** preference) {
  return Make(preference);
}
Status cublasLtMatmulPreferenceDestroy(Preference* preference) {
  return Drop(preference);
}
Status cublasLtMatmulPreferenceSetAttribute(Preference* preference,
                                            int attribute,
                                            const void* value,
                                            size_t bytes) {
  using namespace kf::cuda::lt;  // NOLINT(google-build-using-namespace)
  if (attribute == kPrefWorkspace) {
    return Take(value, bytes, preference->workspace_bytes);
  }
  if (attribute == kPrefReductions) {
    return Take(value, bytes, preference->reductions);
  }
  if (attribute < kPrefAlignmentA || attribute > kPrefAlignmentD) {
    return kInvalidValue;
  }
  return Take(value, bytes, preference->alignment[attribute - kPrefAlignmentA]);
}

// Ignores the preference, as a library may: what it offers is to be checked.
Status cublasLtMatmulAlgoGetHeuristic(Handle /*handle*/,
                                      Op* op,
                                      Layout* a,
                                      Layout* b,
                                      Layout* c,
                                      Layout* d,
                                      Preference* preference,
                                      int requested,
                                      Heuristic* results,
                                      int* returned) {
  if (!IsOurs(*op, *a, *b, *c) || !IsOurs(*op, *a, *b, *d)) {
    return kInvalidValue;
  }
  FakeQuery query = {static_cast<int64_t>(b->cols),
                     static_cast<int64_t>(a->rows),
                     static_cast<int64_t>(a->cols), preference->workspace_bytes,
                     preference->reductions};
  std::copy(std::begin(preference->alignment), std::end(preference->alignment),
            query.alignment);
  Control().queries.push_back(query);
  const auto& offers = b->cols > kManyRows ? Control().many : Control().few;
  *returned = 0;
  for (const FakeAlgorithm& offer : offers) {
    if (*returned == requested) break;
    Heuristic& result = results[(*returned)++];
    result = {};
    result.workspace_bytes = offer.workspace_bytes;
    Write({offer, offer.split_k, offer.split_k > 1 ? 2U : 0U}, &result.algo);
  }
  return *returned > 0 ? 0 : kNotSupported;
}

Status cublasLtMatmulAlgoCheck(Handle /*handle*/,
                               Op* op,
                               Layout* a,
                               Layout* b,
                               Layout* c,
                               Layout* /*d*/,
                               const Algo* algo,
                               Heuristic* result) {
  const AlgoData data = Read(algo);
  if (!IsOurs(*op, *a, *b, *c)) return kInvalidValue;
  if (static_cast<int64_t>(b->cols) > data.spec.most_rows) return kNotSupported;
  result->workspace_bytes = data.spec.workspace_bytes;
  return 0;
}

Status cublasLtMatmulAlgoConfigSetAttribute(Algo* algo,
                                            int attribute,
                                            const void* value,
                                            size_t bytes) {
  AlgoData data = Read(algo);
  Status status = kInvalidValue;
  if (attribute == kf::cuda::lt::kAlgoSplitK && !data.spec.fixed_split_k) {
    status = Take(value, bytes, data.split_k);
  } else if (attribute == kf::cuda::lt::kAlgoReduction) {
    status = Take(value, bytes, data.reduction);
  }
  Write(data, algo);
  return status;
}

Status cublasLtMatmulAlgoConfigGetAttribute(const Algo* algo,
                                            int attribute,
                                            void* value,
                                            size_t bytes,
                                            size_t* written) {
  const AlgoData data = Read(algo);
  int32_t found = 0;
  if (attribute == kf::cuda::lt::kAlgoSplitK) {
    found = data.split_k;
  } else if (attribute == kf::cuda::lt::kAlgoReduction) {
    found = static_cast<int32_t>(data.reduction);
  } else if (attribute == kf::cuda::lt::kAlgoId) {
    found = data.spec.id;
  } else if (attribute != kf::cuda::lt::kAlgoTile) {
    return kInvalidValue;
  }
  if (bytes != sizeof found) return kInvalidValue;
  std::memcpy(value, &found, sizeof found);
  *written = sizeof found;
  return 0;
}

#if defined(FAKE_WITHOUT_MATMUL)
#define cublasLtMatmul kfAnotherName
#endif
Status cublasLtMatmul(Handle /*handle*/,
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
                      kf::gpu::Stream stream) {
  const AlgoData data = Read(algo);
  if (!IsOurs(*op, *a_layout, *b_layout, *c_layout) ||
      !IsOurs(*op, *a_layout, *b_layout, *d_layout) ||
      (workspace == nullptr) != (workspace_bytes == 0)) {
    return kInvalidValue;
  }
  const Operands operands = {
      static_cast<const kf::Bf16*>(a),   static_cast<const kf::Bf16*>(b),
      static_cast<const float*>(c),      static_cast<float*>(d),
      *static_cast<const float*>(alpha), *static_cast<const float*>(beta)};
  const FakeProduct product = {data.spec.id,
                               data.split_k,
                               data.reduction,
                               static_cast<int64_t>(b_layout->cols),
                               static_cast<int64_t>(a_layout->rows),
                               static_cast<int64_t>(a_layout->cols),
                               operands.beta,
                               c == d,
                               workspace_bytes};
  if (Control().refuse || product.rows > data.spec.most_rows) {
    return kNotSupported;
  }
  Control().products.push_back(product);
  const size_t bytes =
      static_cast<size_t>(product.rows * product.out) * sizeof(float);
  Control().run(
      stream, [=] { Multiply(operands, product, data.spec.order); }, d, bytes);
  return 0;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
