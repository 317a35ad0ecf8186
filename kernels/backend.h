// What a decoder needs from a machine: memory, weights, and about ten
// operations. All that engine/ may call; a backend is chosen once, by name.
//
// Symbols: H query heads, G key/value heads (G divides H), d head size, n
// prompt tokens, k cache budget, w recent window (tokens), M rows of a batch.
// Activations are f32, row-major, in backend memory. Descriptors (the structs
// and spans below) are in host memory.
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
#include "kernels/core/dtype.h"
#include "kernels/core/sample_row.h"
#include "kernels/core/score_options.h"

namespace kf {

inline constexpr int32_t kPageTokens = 16;     // token slots of a cache page
inline constexpr int32_t kPromptRowTile = 32;  // a prompt slice ends on these

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

// The gated feed-forward part of a layer, M = rows.
struct FeedForwardArgs {
  const LinearWeights& gate_up;  // [gate; up], [2 F, H]
  const LinearWeights& down;     // [H, F]
  const float* x = nullptr;      // [M, H]
  int64_t rows = 0;
  float* inout = nullptr;      // [M, H]
  float* products = nullptr;   // [M, 2 F], for the operation's own use
  float* activated = nullptr;  // [M, F], the same
};

// Rows of the token embedding. Opaque.
class EmbeddingTable {
 public:
  virtual ~EmbeddingTable() = default;
};

// Shape and positions of attention, the same for all layers.
struct AttentionShape {
  int32_t query_heads = 0;  // H
  int32_t kv_heads = 0;     // G
  int32_t head_dim = 0;     // d, even
  int32_t rotary_dim = 0;   // leading channels rotated, even, <= d; 0: none
  double rope_base = 10000.0;
  // kF32, kBF16, or kI8: K and V of a token and kv head are rounded to bf16,
  // and then to d integers of 8 bits and a scale each (core/byte_scale.h).
  DType cache_dtype = DType::kBF16;

  // The pages in which a prompt waits until its layer is cut: those of the
  // cache, but bf16 where they are filled with 8 bits.
  AttentionShape prompt() const {
    AttentionShape shape = *this;
    if (cache_dtype == DType::kI8) shape.cache_dtype = DType::kBF16;
    return shape;
  }
  // Channels of a fused row [Q (H d) | K (G d) | V (G d)].
  int64_t qkv_dim() const {
    return int64_t{query_heads + 2 * kv_heads} * head_dim;
  }
  int64_t out_dim() const { return int64_t{query_heads} * head_dim; }
};

// A cache page of one layer holds, for each of G heads, K and V of 16 slots
// with their positions and scores; the layout is the backend's own. A page list
// belongs to one sequence and one layer: slot s is slot s % 16 of page s / 16.
// `base + page * PageBytes(shape)` is a page's address.
struct PageSpan {
  std::byte* base = nullptr;       // the pool
  std::span<const int32_t> pages;  // in slot order
};

// Rows [first_row, first_row + rows) of one prompt through one layer.
struct PromptAttentionItem {
  int32_t prompt_tokens = 0;  // n
  int32_t first_row = 0;      // multiple of kPromptRowTile
  int32_t rows = 0;           // multiple of kPromptRowTile, or up to n
  int64_t batch_row = 0;      // the first row in qkv and out
  PageSpan keys;              // >= ceil(n / 16) pages: position p is slot p
  ScoreOptions score;
  int32_t score_first_row = 0;  // rows before it are not scored
  // Positions `cache`: K is stored unrotated, and rotated when it is read (and
  // then rounded to the cache's type once more). Here a rank is a position.
  bool rank_positions = false;
};

struct PromptAttentionArgs {
  AttentionShape shape;  // of prompt pages: not kI8
  int32_t layer = 0;
  // [M, qkv_dim], unrotated; scratch of the call: undefined afterwards.
  float* qkv = nullptr;
  float* out = nullptr;  // [M, H d]
  std::span<const PromptAttentionItem> items;
};

// One layer of a prompt that is cut to its budget.
struct CompactLayer {
  PageSpan from;  // position p is slot p, as PromptAttention left it
  // >= ceil(min(k, n) / 16) pages; in place: the first of `from`, and these are
  // of shape `shape`.
  PageSpan to;
  // [G], backend memory, out: where the next token of each head goes, that is
  // min(k, n).
  int32_t* free_slot = nullptr;
};

// Cuts a prompt to its budget: one layer of it or, in scope `model`, all of
// them at once.
struct CompactArgs {
  AttentionShape shape;
  // The pages `from` are of shape.prompt(), and what is kept is rounded to the
  // cache's type; else they are of `shape`, and bytes are copied.
  bool from_prompt = false;
  int32_t prompt_tokens = 0;  // n
  int32_t budget = 0;         // k >= 1; >= n keeps everything
  int32_t recent = 0;         // w, 0 <= w <= k
  std::span<const CompactLayer> layers;
  // One choice for all heads of all `layers`, by the sum of their scores (in
  // order of layer, then head); false: each (layer, head) chooses for itself.
  bool shared = false;
  ScoreAge age = {};
  // Scores are multiplied first, in what is kept too: beams.
  float score_factor = 1.0F;
};

// One sequence feeding one token through one layer.
struct DecodeAttentionItem {
  int32_t position = 0;  // of the token; also the number of tokens seen before
  int32_t held = 0;      // live tokens per head before this step, <= k
  int32_t budget = 0;    // k; held + 1 <= k evicts nothing
  int32_t recent = 0;    // w
  PageSpan cache;        // >= ceil((held + 1) / 16) pages
  // [G], backend memory, in/out: the slot this token takes in each head, then
  // the one the next token will take: held + 1 if nothing was evicted, else the
  // victim's. Slots {0 .. held} less the free one are live, before and after.
  int32_t* free_slot = nullptr;
  ScoreOptions score;
  bool add_scores = true;  // decode_scores; false: a new token's score is 0
  ScoreAge age = {};
  // As in PromptAttentionItem: a key's rank is its place among the held tokens
  // in order of position; the query's is the last, `held`.
  bool rank_positions = false;
  // The token takes its slot and nothing leaves: free_slot stays as it is,
  // until Evict. Scopes `layer` and `model`, and beams.
  bool defer_eviction = false;
  // Beams: [G, held + 1] by slot, backend memory, out: what this row gives to
  // the scores (0 without add_scores), which AddRowScores adds; the scores in
  // the pages stay. Needs defer_eviction. Null: scores are added in the pages.
  float* row_scores = nullptr;
  // Quest: slot p is position p, nothing is scored or leaves, and slot i of
  // this list holds the smallest and the largest value of each K channel in
  // page i of `cache`; this token's page is brought up to date. >= ceil(pages /
  // 16) pages.
  PageSpan bounds = {};
  // Of each head: the newest, then those with the highest bounds, ties to the
  // earlier. 0, and all that there are: all.
  int32_t read_pages = 0;
  // A replay: this token follows that of the item before, in one sequence. The
  // tokens of such a run are appended before any of its rows attends, and each
  // row comes to what it would in a call of its own. A token's slot is its
  // position, nothing is scored or leaves; free_slot is the first token's, and
  // then the one after the last.
  bool continues = false;
};

struct DecodeAttentionArgs {
  AttentionShape shape;
  int32_t layer = 0;
  // [M, qkv_dim], unrotated; scratch of the call: undefined afterwards.
  float* qkv = nullptr;
  float* out = nullptr;                        // [M, H d]
  std::span<const DecodeAttentionItem> items;  // M, item i is row i
};

// The caches of one layer that hold one kept set in the same slots: a
// sequence's alone, or those of all beams of a request, which have pages in
// common. Positions and scores are the same in all.
struct SharedLayer {
  std::span<const PageSpan> caches;  // >= 1
  int32_t* free_slot = nullptr;      // [G], backend memory
};

// Adds the rows of all beams to the scores of a layer, in order: to those of
// the first cache, and the sums become the scores of all.
struct AddRowScoresArgs {
  AttentionShape shape;
  SharedLayer layer;
  int32_t held = 0;                          // before this step
  std::span<const float* const> row_scores;  // of DecodeAttentionItem
};

// Chooses what leaves after DecodeAttention has deferred it: as there, the
// lowest score outside the recent window.
struct EvictArgs {
  AttentionShape shape;
  int32_t position = 0;  // of the newest token
  int32_t held = 0;      // before this step
  int32_t budget = 0;    // k; held + 1 <= k evicts nothing
  int32_t recent = 0;    // w
  std::span<const SharedLayer> layers;
  bool shared = false;  // as in CompactArgs; slots are the same in all heads
  ScoreAge age = {};
};

struct PageCopy {
  int32_t from = 0;  // page numbers
  int32_t to = 0;
};

// What is held by one (layer, head): for reports and tests.
struct HeldTokens {
  std::vector<int32_t> positions;  // ascending
  std::vector<float> scores;
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
