// What a decoder needs from a machine: memory, weights, and about ten
// operations. All that engine/ may call; a backend is chosen once, by name.
//
// Symbols: H query heads, G key/value heads (G divides H), d head size, n
// prompt tokens, k cache budget, w recent window (tokens), M rows of a batch.
// Activations are f32, row-major, in backend memory. Descriptors (the structs
// and spans of arguments) are in host memory.
//
// Every operation is batch-invariant: a row's bits depend on the row alone, not
// on M, its place in the batch, or the number of threads (docs/architecture.md,
// Determinism). Operations are called from one thread (the engine thread);
// shapes are checked by the caller, and violated preconditions are KF_CHECKs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/attention_args.h"
#include "kernels/core/dtype.h"
#include "kernels/core/sample_row.h"

namespace kf {

// Backend memory, 64-byte aligned, freed by the deleter. On the CPU the pointer
// is an ordinary one; elsewhere only the backend may follow it.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual std::byte* data() = 0;
  virtual size_t bytes() const = 0;
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data());
  }
};

// A matrix as the model file holds it: [rows, cols], row-major, cols a multiple
// of the type's block. Linear weights are [out, in]. The memory must outlive
// what is loaded from it.
struct WeightView {
  DType type = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* data = nullptr;
};

// What a product computes in. kF32 and kBF16: weights and activations in that
// type. kQ8 and kQ4: weights as integers of 8 bits in groups of 32, kQ4 with 4
// bits where the file's own groups have no more (core/weight_groups.h says what
// is exact). Against them the CPU multiplies activations that are rounded to 8
// bits, by at most 1 / 254 of the largest magnitude among 32 that follow each
// other in a row; cuda multiplies bf16 by the groups' values rounded to bf16.
enum class WeightFormat : uint8_t { kF32, kBF16, kQ8, kQ4 };

// y = x W^T, packed for the backend. Opaque.
class LinearWeights {
 public:
  virtual ~LinearWeights() = default;
  virtual int64_t in() const = 0;   // columns of W
  virtual int64_t out() const = 0;  // rows of W
  virtual size_t bytes() const = 0;
};

// The gated feed-forward part of a layer.
struct FeedForwardArgs {
  const LinearWeights& gate_up;  // [gate; up], [2 ffn, hidden]
  const LinearWeights& down;     // [hidden, ffn]
  const float* x = nullptr;      // [M, hidden]
  int64_t rows = 0;              // M
  float* inout = nullptr;        // [M, hidden]
  float* products = nullptr;     // [M, 2 ffn], for the operation's own use
  float* activated = nullptr;    // [M, ffn], the same
};

// Rows of the token embedding. Opaque.
class EmbeddingTable {
 public:
  virtual ~EmbeddingTable() = default;
};

// `rows` consecutive rows, backend memory to backend memory.
struct RowCopy {
  const float* from = nullptr;
  float* to = nullptr;
  int64_t rows = 0;
};

// Bytes of a device's own memory.
struct DeviceMemory {
  uint64_t total = 0;
  uint64_t free = 0;
};

// The most that operations will be asked for: Backend::Reserve.
struct WorkLimits {
  AttentionShape shape;  // of the cache
  int32_t layers = 0;
  int32_t vocabulary = 0;
  int32_t context_tokens = 0;  // of a sequence
  int64_t rows = 0;            // of a call
  int64_t decode_rows = 0;     // of DecodeAttention: <= rows
  int64_t prompt_pages = 0;    // of all items of a PromptAttention
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;    // "cpu", "reference", "cuda"
  virtual std::string description() const = 0;  // "cpu, avx512_bf16, 2 threads"
  // What an operator should be told once the weights are loaded, or nothing.
  virtual std::string notice() const { return {}; }

  // --- memory ---
  // kResourceExhausted names `what` and the size. Contents are undefined.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(
      size_t bytes, std::string_view what) = 0;
  virtual absl::Status Upload(std::byte* to,
                              std::span<const std::byte> from) = 0;
  virtual absl::Status Download(std::span<std::byte> to,
                                const std::byte* from) = 0;

  // Of the device as it is now; null: its memory is the host's.
  virtual std::optional<DeviceMemory> OwnMemory() const { return std::nullopt; }

  // Takes what operations within these limits need for themselves, so that they
  // take no more of OwnMemory when they run: but for descriptors that are
  // larger than usual. Called once, after the weights have been loaded.
  // kResourceExhausted as Allocate.
  virtual absl::Status Reserve(const WorkLimits& /*limits*/) {
    return absl::OkStatus();
  }

  // Where the host can read this memory as it is, from any thread; null: it has
  // to be downloaded.
  virtual const std::byte* HostView(const std::byte* /*memory*/) const {
    return nullptr;
  }

  // Gathers and scatters rows of `width` floats; ranges do not overlap. The
  // default serves backends whose memory is the host's.
  virtual absl::Status CopyRows(std::span<const RowCopy> copies,
                                int64_t width) {
    for (const RowCopy& copy : copies) {
      std::memcpy(copy.to, copy.from,
                  static_cast<size_t>(copy.rows * width) * sizeof(float));
    }
    return absl::OkStatus();
  }

  // Called once by the thread that operations are called from, before the
  // first: it may be kept on a core (BackendOptions::keep_cores).
  virtual void AdoptThread() {}

  // --- host work ---
  // fn(index, worker) once for each index in [0, count), on the threads that
  // are idle between operations; worker < workers() is distinct for calls that
  // run at the same time. As an operation, it is called from one thread, and fn
  // calls none. The default has one worker, the caller.
  virtual int workers() const { return 1; }
  virtual void ParallelFor(
      int64_t count, absl::FunctionRef<void(int64_t index, int worker)> fn) {
    for (int64_t index = 0; index < count; ++index) fn(index, 0);
  }

  // Whether pages may be of this type; kF32 and kBF16 are served by all.
  virtual bool SupportsCache(DType /*cache_dtype*/) const { return true; }

  // --- weights ---
  // Matrices of one input stacked by rows: [Q; K; V], [gate; up].
  virtual absl::StatusOr<std::unique_ptr<LinearWeights>> LoadLinear(
      std::span<const WeightView> stacked, WeightFormat format) = 0;
  virtual absl::StatusOr<std::unique_ptr<EmbeddingTable>> LoadEmbedding(
      const WeightView& table) = 0;

  // --- operations; M = rows ---
  // out[i] = table[ids[i]], [M, hidden]; ids are below the table's rows.
  virtual absl::Status Embed(const EmbeddingTable& table,
                             std::span<const int32_t> ids,
                             float* out) = 0;
  // out = x / sqrt(mean(x^2) + eps) * weight, [M, width]; out may be x. A row
  // that holds NaN or infinity comes out as NaN.
  virtual absl::Status RmsNorm(const float* x,
                               const float* weight,
                               float eps,
                               int64_t rows,
                               int64_t width,
                               float* out) = 0;
  // out = x W^T, [M, W.out()].
  virtual absl::Status Linear(const LinearWeights& w,
                              const float* x,
                              int64_t rows,
                              float* out) = 0;
  // inout += x W^T: the residual is added in the epilogue.
  virtual absl::Status LinearAdd(const LinearWeights& w,
                                 const float* x,
                                 int64_t rows,
                                 float* inout) = 0;
  // out[i, j] = silu(x[i, j]) * x[i, width + j], x [M, 2 width].
  virtual absl::Status SwiGlu(const float* x,
                              int64_t rows,
                              int64_t width,
                              float* out) = 0;

  // inout += SwiGlu(x gate_up^T) down^T: these three operations, or one with
  // their bits.
  virtual absl::Status FeedForward(const FeedForwardArgs& args) {
    absl::Status status =
        Linear(args.gate_up, args.x, args.rows, args.products);
    if (!status.ok()) return status;
    status = SwiGlu(args.products, args.rows, args.down.in(), args.activated);
    if (!status.ok()) return status;
    return LinearAdd(args.down, args.activated, args.rows, args.inout);
  }

  // --- sampling; optional ---
  // Whether the two below serve: rows of logits then need not travel to the
  // host. False where the host reads them in place.
  virtual bool SamplesRows() const { return false; }
  // Begins to find what each row, [vocabulary], comes to, with the bits of the
  // engine's own sampler; may return before that is known. The descriptors are
  // the caller's again when it returns. Logits are read in the order of
  // operations: one that is called afterwards may write them. After an error
  // nothing has begun.
  virtual absl::Status StartSampling(std::span<const SampleRow> /*rows*/,
                                     int32_t /*vocabulary*/) {
    return absl::UnimplementedError("this backend samples no rows");
  }
  // What the rows came to, in order: waits for them, and need not wait for
  // operations that were called after StartSampling. To be called once for each
  // StartSampling that was OK, before the next one and from the same thread;
  // other operations may come in between. An error may be that of any operation
  // called before; the sampling is over all the same.
  virtual absl::StatusOr<std::vector<SampledRow>> WaitForSamples() {
    return absl::UnimplementedError("this backend samples no rows");
  }

  // --- steps of decoding; optional ---
  // What is called from BeginStep to EndStep is one decode step, the same for
  // every step but for its rows and their items: operations of `rows` rows
  // each. A backend may put them off until EndStep, or until another operation
  // is called; an error may come as late. It may do them for up to `capacity`
  // rows, which what they write has room for: what is beyond `rows` is then
  // undefined. The bits of the others do not depend on it.
  virtual absl::Status BeginStep(int64_t /*rows*/, int64_t /*capacity*/) {
    return absl::OkStatus();
  }
  // Called also where an operation has failed.
  virtual absl::Status EndStep() { return absl::OkStatus(); }

  // --- attention ---
  virtual size_t PageBytes(const AttentionShape& shape) const = 0;
  // Rotates, writes K and V of the rows into their pages, attends causally, and
  // adds the rows' noisy softmax to the scores in the pages (row 0 clears
  // them). Slices of one prompt and layer come in row order.
  virtual absl::Status PromptAttention(const PromptAttentionArgs& args) = 0;
  // Keeps the last w and the k - w best scored older tokens (ties: the earlier
  // position), in position order, in slots 0 .. min(k, n) - 1.
  virtual absl::Status Compact(const CompactArgs& args) = 0;
  // Rotates, appends, attends, adds the step's scores, evicts the token with
  // the lowest score outside the recent window (ties: the latest position).
  virtual absl::Status DecodeAttention(const DecodeAttentionArgs& args) = 0;
  virtual absl::Status AddRowScores(const AddRowScoresArgs& args) = 0;
  // free_slot becomes the victim's, or held + 1.
  virtual absl::Status Evict(const EvictArgs& args) = 0;
  // Whole pages of one pool; all targets differ, and no source is a target.
  virtual absl::Status CopyPages(const AttentionShape& shape,
                                 std::byte* base,
                                 std::span<const PageCopy> copies) = 0;
  // Quest: the bounds of a prompt's pages, as DecodeAttentionItem says.
  virtual absl::Status BoundPages(const AttentionShape& shape,
                                  int32_t tokens,
                                  const PageSpan& cache,
                                  const PageSpan& bounds) = 0;
  // Live tokens of each of the G heads: slots {0 .. held} less the free one.
  virtual absl::StatusOr<std::vector<HeldTokens>> ReadHeld(
      const AttentionShape& shape,
      const PageSpan& cache,
      int32_t held,
      const int32_t* free_slot) = 0;
};

struct BackendOptions {
  // "cpu", "reference", "cuda", or "auto": cuda where CudaAvailability is OK.
  std::string name = "cpu";
  int device_index = 0;  // of cuda, as the CUDA driver counts
  // Of cuda: decode steps are replayed as CUDA graphs, with the same bits.
  bool cuda_graphs = true;
  // cuda: the file of libcublasLt.so; empty: looked for in the usual places;
  // "none": our own products.
  std::string cublaslt_path = {};
  int threads = 0;  // 0: UsableCores() of kernels/core/cpu_count.h
  // cpu: where threads and cores are as many, each thread keeps to one. A
  // system that moves threads leaves two on one core for long while another
  // process, however low its priority, has the other.
  bool keep_cores = false;
  // scalar, avx2, avx512, avx512_bf16, amx_bf16: exactly that level is used.
  // auto: the one preferred on this machine, the highest but for one case (an
  // Intel without tiles: PreferredSimdLevel).
  std::string simd = "auto";
};

// OK if "cuda" can serve on device `index`; else why not: kUnimplemented, the
// build has no CUDA backend; kUnavailable, the driver or the device is missing.
absl::Status CudaAvailability(int index);

// kInvalidArgument names the option, its value and what is on offer; a level
// that the machine lacks is an error too, never a silent fallback. For cuda
// also the errors of CudaAvailability, and a cublaslt_path that is of no use.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(
    const BackendOptions& options);

}  // namespace kf
