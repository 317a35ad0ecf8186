#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/core/aligned.h"
#include "kernels/core/cpu_count.h"
#include "kernels/core/status.h"
#include "kernels/core/thread_pool.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/dense_dispatch.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/row_blocks.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd_level.h"

namespace kf {
namespace {

// More threads than any machine of today has cores.
constexpr int kMaxThreads = 1024;

// Rows are handed to the threads in equal pieces of at least this many values;
// what makes one piece is done in place, since a region costs about 2 us, and
// as many values of a norm no more than that.
constexpr int64_t kRowPiece = 16384;
// An exponential and a division take as long as so many values of a norm.
constexpr int64_t kSwiGluCost = 2;

class CpuBuffer : public Buffer {
 public:
  explicit CpuBuffer(AlignedBytes memory) : memory_(std::move(memory)) {}
  std::byte* data() override { return memory_.data(); }
  size_t bytes() const override { return memory_.bytes(); }

 private:
  AlignedBytes memory_;
};

// Rows are dequantised where the file is mapped.
class MappedEmbedding : public EmbeddingTable {
 public:
  explicit MappedEmbedding(const WeightView& table)
      : table_(table),
        row_bytes_(table.cols / LayoutOf(table.type).elements *
                   LayoutOf(table.type).bytes) {}

  int64_t rows() const { return table_.rows; }
  int64_t width() const { return table_.cols; }
  void ReadRow(int64_t row, float* out) const {
    Dequantize(table_.type, table_.data + row * row_bytes_, table_.cols, out);
  }

 private:
  WeightView table_;
  int64_t row_bytes_;
};

class CpuBackend : public Backend {
 public:
  CpuBackend(cpu::SimdLevel level, int threads, bool keep_cores)
      : level_(level),
        kernels_(cpu::DenseKernelsOf(level)),
        keep_cores_(keep_cores),
        pool_(threads, keep_cores),
        linear_{kernels_, cpu::GroupKernelsOf(level),
                cpu::RowBlockKernelsOf(level), pool_, scratch_},
        attention_{level, pool_, scratch_, rope_} {}

  std::string_view name() const override { return "cpu"; }
  std::string description() const override {
    return absl::StrCat("cpu, ", ToAbsl(cpu::NameOf(level_)), ", ",
                        pool_.threads(), " threads");
  }

  void AdoptThread() override {
    if (keep_cores_) KeepOnCore(0);
  }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(
      size_t bytes, std::string_view what) override {
    KF_ASSIGN_OR_RETURN(AlignedBytes memory,
                        AlignedBytes::Allocate(bytes, what));
    return std::make_unique<CpuBuffer>(std::move(memory));
  }
  absl::Status Upload(std::byte* to, std::span<const std::byte> from) override {
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
    return absl::OkStatus();
  }
  absl::Status Download(std::span<std::byte> to,
                        const std::byte* from) override {
    if (!to.empty()) std::memcpy(to.data(), from, to.size());
    return absl::OkStatus();
  }

  absl::Status CopyRows(std::span<const RowCopy> copies,
                        int64_t width) override {
    int64_t rows = 0;
    for (const RowCopy& copy : copies) rows += copy.rows;
    const int64_t count = std::ssize(copies);
    ForRows(
        count, rows * width / std::max<int64_t>(count, 1), [&](int64_t index) {
          const RowCopy& copy = copies[static_cast<size_t>(index)];
          std::memcpy(copy.to, copy.from,
                      static_cast<size_t>(copy.rows * width) * sizeof(float));
        });
    return absl::OkStatus();
  }

  const std::byte* HostView(const std::byte* memory) const override {
    return memory;
  }

  int workers() const override { return pool_.threads(); }
  void ParallelFor(
      int64_t count,
      absl::FunctionRef<void(int64_t index, int worker)> fn) override {
    pool_.ParallelFor(count, fn);
  }

  absl::StatusOr<std::unique_ptr<LinearWeights>> LoadLinear(
      std::span<const WeightView> stacked, WeightFormat format) override {
    return cpu::PackedLinear::Create(stacked, format, pool_);
  }
  absl::StatusOr<std::unique_ptr<EmbeddingTable>> LoadEmbedding(
      const WeightView& table) override {
    KF_CHECK(LayoutOf(table.type).elements > 0 &&
             table.cols % LayoutOf(table.type).elements == 0);
    return std::make_unique<MappedEmbedding>(table);
  }

  absl::Status Embed(const EmbeddingTable& table,
                     std::span<const int32_t> ids,
                     float* out) override {
    const auto& mapped = static_cast<const MappedEmbedding&>(table);
    const auto rows = static_cast<int64_t>(ids.size());
    ForRows(rows, mapped.width(), [&](int64_t row) {
      const int32_t id = ids[static_cast<size_t>(row)];
      KF_CHECK(id >= 0 && id < mapped.rows());
      mapped.ReadRow(id, out + row * mapped.width());
    });
    return absl::OkStatus();
  }
  absl::Status RmsNorm(const float* x,
                       const float* weight,
                       float eps,
                       int64_t rows,
                       int64_t width,
                       float* out) override {
    ForRows(rows, width, [&](int64_t row) {
      kernels_.rms_norm(x + row * width, weight, eps, width, out + row * width);
    });
    return absl::OkStatus();
  }
  absl::Status Linear(const LinearWeights& w,
                      const float* x,
                      int64_t rows,
                      float* out) override {
    return Product(w, x, rows, out, /*add=*/false);
  }
  absl::Status LinearAdd(const LinearWeights& w,
                         const float* x,
                         int64_t rows,
                         float* inout) override {
    return Product(w, x, rows, inout, /*add=*/true);
  }
  absl::Status SwiGlu(const float* x,
                      int64_t rows,
                      int64_t width,
                      float* out) override {
    ForRows(rows, kSwiGluCost * width, [&](int64_t row) {
      const float* gate = x + row * 2 * width;
      kernels_.swiglu(gate, gate + width, width, out + row * width);
    });
    return absl::OkStatus();
  }

  absl::Status FeedForward(const FeedForwardArgs& args) override {
    const cpu::GatedArgs gated = {
        .gate_up = static_cast<const cpu::PackedLinear&>(args.gate_up),
        .down = static_cast<const cpu::PackedLinear&>(args.down),
        .x = args.x,
        .rows = args.rows,
        .inout = args.inout};
    if (!cpu::TakesGated(linear_, gated)) return Backend::FeedForward(args);
    scratch_.Reset();
    return cpu::RunGated(linear_, gated);
  }

  size_t PageBytes(const AttentionShape& shape) const override {
    return cpu::PageBytes(shape);
  }
  absl::Status PromptAttention(const PromptAttentionArgs& args) override {
    return cpu::PromptAttention(attention_, args);
  }
  absl::Status Compact(const CompactArgs& args) override {
    return cpu::Compact(attention_, args);
  }
  absl::Status DecodeAttention(const DecodeAttentionArgs& args) override {
    return cpu::DecodeAttention(attention_, args);
  }
  absl::Status AddRowScores(const AddRowScoresArgs& args) override {
    return cpu::AddRowScores(attention_, args);
  }
  absl::Status Evict(const EvictArgs& args) override {
    return cpu::Evict(attention_, args);
  }
  absl::Status CopyPages(const AttentionShape& shape,
                         std::byte* base,
                         std::span<const PageCopy> copies) override {
    return cpu::CopyPages(attention_, shape, base, copies);
  }
  absl::Status BoundPages(const AttentionShape& shape,
                          int32_t tokens,
                          const PageSpan& cache,
                          const PageSpan& bounds) override {
    return cpu::BoundPages(attention_, shape, tokens, cache, bounds);
  }
  absl::StatusOr<std::vector<HeldTokens>> ReadHeld(
      const AttentionShape& shape,
      const PageSpan& cache,
      int32_t held,
      const int32_t* free_slot) override {
    return cpu::ReadHeld(shape, cache, held, free_slot);
  }

 private:
  absl::Status Product(const LinearWeights& w,
                       const float* x,
                       int64_t rows,
                       float* out,
                       bool add) {
    return cpu::RunLinear(linear_,
                          {.weights = static_cast<const cpu::PackedLinear&>(w),
                           .x = x,
                           .rows = rows,
                           .out = out,
                           .add = add});
  }

  // fn(row) for each row, which costs as much as a norm of `values` values.
  template <typename Fn>
  void ForRows(int64_t rows, int64_t values, const Fn& fn) {
    const int64_t pieces = std::clamp<int64_t>(rows * values / kRowPiece, 1,
                                               std::max<int64_t>(rows, 1));
    pool_.ParallelFor(pieces, [&](int64_t index, int) {
      const int64_t end = rows * (index + 1) / pieces;
      for (int64_t row = rows * index / pieces; row < end; ++row) fn(row);
    });
  }

  cpu::SimdLevel level_;
  const cpu::DenseKernels& kernels_;
  const bool keep_cores_;
  ThreadPool pool_;
  cpu::ScratchArena scratch_;
  cpu::LinearContext linear_;
  cpu::RopeTable rope_;
  cpu::AttentionContext attention_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(
    const BackendOptions& options) {
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads: ", options.threads,
                     ", want 0 (usable cores) to ", kMaxThreads));
  }
  KF_ASSIGN_OR_RETURN(const cpu::SimdLevel level,
                      cpu::ParseSimdLevel(options.simd));
  const int threads = options.threads == 0
                          ? std::min(UsableCores(), kMaxThreads)
                          : options.threads;
  return std::make_unique<CpuBackend>(
      level, threads, options.keep_cores && FillsCores(threads));
}

}  // namespace kf
