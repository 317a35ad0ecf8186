// The products of one [out, in] matrix of bf16 weights on cuBLASLt: its
// descriptors, the algorithms on offer, and a product by one of them.
//
// Thread-compatible: the engine thread's, after the thread that made it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cublaslt_api.h"
#include "kernels/cuda/product.h"

namespace kf::cuda {

class LtMatmul {
 public:
  // `api` and `handle` outlive it. kInternal names the call that failed.
  static absl::StatusOr<std::unique_ptr<LtMatmul>> Create(const lt::Api& api,
                                                          lt::Handle handle,
                                                          int64_t in,
                                                          int64_t out);
  ~LtMatmul();
  LtMatmul(const LtMatmul&) = delete;
  LtMatmul& operator=(const LtMatmul&) = delete;

  int64_t in() const { return in_; }
  int64_t out() const { return out_; }

  // What the library's heuristic has for a product of `rows`, the one it
  // expects to be fastest first. Only such as sum an output in one place:
  // split-K is 1, the reduction scheme none, and no workspace is asked for, so
  // that stream-K has nowhere to keep partial sums.
  std::vector<lt::Algo> Candidates(int64_t rows);
  // Whether the library would run `algo` with `rows`.
  bool Takes(const lt::Algo& algo, int64_t rows);
  // Id and tile of `algo` as the library numbers them: "66/20".
  std::string NameOf(const lt::Algo& algo) const;

  // args.x, args.residual and args.y are 16-byte aligned.
  absl::Status Run(gpu::Stream stream,
                   const lt::Algo& algo,
                   const ProductArgs<Bf16>& args);

 private:
  LtMatmul(const lt::Api& api, lt::Handle handle, int64_t in, int64_t out)
      : api_(api), handle_(handle), in_(in), out_(out) {}

  absl::Status MakeDescriptors();
  absl::Status SetRows(int64_t rows);
  // Makes `algo` one that sums in one place; false: it is none.
  bool Restrict(lt::Algo& algo);

  const lt::Api& api_;
  const lt::Handle handle_;
  const int64_t in_;
  const int64_t out_;
  lt::Op* op_ = nullptr;
  lt::Preference* preference_ = nullptr;
  lt::Layout* w_ = nullptr;
  lt::Layout* x_ = nullptr;
  lt::Layout* y_ = nullptr;  // of the residual, too
};

// OK, or kInternal: "cublasLtMatmul: CUBLAS_STATUS_NOT_SUPPORTED".
absl::Status LtStatus(const lt::Api& api, lt::Status status, const char* call);

}  // namespace kf::cuda
