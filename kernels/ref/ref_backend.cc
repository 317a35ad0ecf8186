#include "kernels/ref/ref_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "kernels/core/bf16.h"
#include "kernels/core/status.h"
#include "kernels/ref/ref_attention.h"
#include "kernels/ref/ref_page.h"

namespace kf {
namespace {

constexpr size_t kAlignment = 64;
// Larger requests are refused before the allocator is asked.
constexpr size_t kMaxBytes = size_t{1} << 40;

class RefBuffer final : public Buffer {
 public:
  RefBuffer(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}
  ~RefBuffer() override {
    ::operator delete (data_, std::align_val_t{kAlignment});
  }
  std::byte* data() override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  std::byte* data_;
  size_t bytes_;
};

float RoundIf(WeightFormat format, float x) {
  return format == WeightFormat::kBF16 ? Bf16ToFloat(FloatToBf16(x)) : x;
}

class RefLinear final : public LinearWeights {
 public:
  RefLinear(std::span<const WeightView> stacked, WeightFormat format)
      : format_(format), in_(stacked.front().cols) {
    for (const WeightView& view : stacked) {
      KF_CHECK(view.cols == in_);
      const auto count = static_cast<size_t>(view.rows * view.cols);
      const size_t before = values_.size();
      values_.resize(before + count);
      Dequantize(view.type, view.data, view.rows * view.cols,
                 values_.data() + before);
      out_ += view.rows;
    }
    for (float& v : values_) v = RoundIf(format_, v);
  }
  int64_t in() const override { return in_; }
  int64_t out() const override { return out_; }
  size_t bytes() const override { return values_.size() * sizeof(float); }

  // x [in] -> y(j, value) for each output j.
  template <typename Emit>
  void Apply(const float* x, const Emit& emit) const {
    for (int64_t j = 0; j < out_; ++j) {
      const float* w = values_.data() + j * in_;
      double sum = 0.0;
      for (int64_t i = 0; i < in_; ++i) {
        sum += static_cast<double>(RoundIf(format_, x[i])) *
               static_cast<double>(w[i]);
      }
      emit(j, static_cast<float>(sum));
    }
  }

 private:
  WeightFormat format_;
  int64_t in_;
  int64_t out_ = 0;
  std::vector<float> values_;
};

class RefEmbedding final : public EmbeddingTable {
 public:
  explicit RefEmbedding(const WeightView& view) : view_(view) {}
  int64_t width() const { return view_.cols; }
  void Read(int32_t id, float* out) const {
    KF_CHECK(id >= 0 && id < view_.rows);
    const BlockLayout block = LayoutOf(view_.type);
    const int64_t row_bytes = view_.cols / block.elements * block.bytes;
    Dequantize(view_.type, view_.data + id * row_bytes, view_.cols, out);
  }

 private:
  WeightView view_;
};

class RefBackend final : public Backend {
 public:
  explicit RefBackend(Trap trap) : attention_(trap) {}

  std::string_view name() const override { return "reference"; }
  std::string description() const override { return "reference, 1 thread"; }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(
      size_t bytes, std::string_view what) override {
    void* data =
        bytes > kMaxBytes
            ? nullptr
            : ::operator new (std::max(bytes, kAlignment),
                              std::align_val_t{kAlignment}, std::nothrow);
    if (data == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat(
          ToAbsl(what), ": cannot allocate ", bytes, " bytes of memory"));
    }
    return std::make_unique<RefBuffer>(static_cast<std::byte*>(data), bytes);
  }
  absl::Status Upload(std::byte* to, std::span<const std::byte> from) override {
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
    return absl::OkStatus();
  }
  const std::byte* HostView(const std::byte* memory) const override {
    return memory;
  }
  absl::Status Download(std::span<std::byte> to,
                        const std::byte* from) override {
    if (!to.empty()) std::memcpy(to.data(), from, to.size());
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<LinearWeights>> LoadLinear(
      std::span<const WeightView> stacked, WeightFormat format) override {
    KF_CHECK(!stacked.empty());
    return std::make_unique<RefLinear>(stacked, format);
  }
  absl::StatusOr<std::unique_ptr<EmbeddingTable>> LoadEmbedding(
      const WeightView& table) override {
    return std::make_unique<RefEmbedding>(table);
  }

  absl::Status Embed(const EmbeddingTable& table,
                     std::span<const int32_t> ids,
                     float* out) override {
    const auto& rows = static_cast<const RefEmbedding&>(table);
    for (const int32_t id : ids) {
      rows.Read(id, out);
      out += rows.width();
    }
    return absl::OkStatus();
  }
  absl::Status RmsNorm(const float* x,
                       const float* weight,
                       float eps,
                       int64_t rows,
                       int64_t width,
                       float* out) override {
    for (int64_t r = 0; r < rows; ++r, x += width, out += width) {
      double squares = 0.0;
      for (int64_t i = 0; i < width; ++i) {
        squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
      }
      const double scale =
          std::isfinite(squares)
              ? 1.0 / std::sqrt(squares / static_cast<double>(width) +
                                static_cast<double>(eps))
              : std::numeric_limits<double>::quiet_NaN();
      for (int64_t i = 0; i < width; ++i) {
        out[i] = static_cast<float>(static_cast<double>(x[i]) * scale *
                                    static_cast<double>(weight[i]));
      }
    }
    return absl::OkStatus();
  }
  absl::Status Linear(const LinearWeights& w,
                      const float* x,
                      int64_t rows,
                      float* out) override {
    const auto& weights = static_cast<const RefLinear&>(w);
    for (int64_t r = 0; r < rows; ++r, x += w.in(), out += w.out()) {
      weights.Apply(x, [out](int64_t j, float y) { out[j] = y; });
    }
    return absl::OkStatus();
  }
  absl::Status LinearAdd(const LinearWeights& w,
                         const float* x,
                         int64_t rows,
                         float* inout) override {
    const auto& weights = static_cast<const RefLinear&>(w);
    for (int64_t r = 0; r < rows; ++r, x += w.in(), inout += w.out()) {
      weights.Apply(x, [inout](int64_t j, float y) { inout[j] += y; });
    }
    return absl::OkStatus();
  }
  absl::Status SwiGlu(const float* x,
                      int64_t rows,
                      int64_t width,
                      float* out) override {
    for (int64_t r = 0; r < rows; ++r, x += 2 * width, out += width) {
      for (int64_t i = 0; i < width; ++i) {
        const auto gate = static_cast<double>(x[i]);
        out[i] = static_cast<float>(gate / (1.0 + std::exp(-gate)) *
                                    static_cast<double>(x[width + i]));
      }
    }
    return absl::OkStatus();
  }

  size_t PageBytes(const AttentionShape& shape) const override {
    return static_cast<size_t>(shape.kv_heads) * ref::HeadBytes(shape);
  }
  absl::Status PromptAttention(const PromptAttentionArgs& args) override {
    attention_.Prompt(args);
    return absl::OkStatus();
  }
  absl::Status Compact(const CompactArgs& args) override {
    attention_.Compact(args);
    return absl::OkStatus();
  }
  absl::Status DecodeAttention(const DecodeAttentionArgs& args) override {
    attention_.Decode(args);
    return absl::OkStatus();
  }
  absl::Status AddRowScores(const AddRowScoresArgs& args) override {
    attention_.AddRowScores(args);
    return absl::OkStatus();
  }
  absl::Status Evict(const EvictArgs& args) override {
    attention_.Evict(args);
    return absl::OkStatus();
  }
  absl::Status CopyPages(const AttentionShape& shape,
                         std::byte* base,
                         std::span<const PageCopy> copies) override {
    const size_t bytes = PageBytes(shape);
    for (const PageCopy& copy : copies) {
      std::memcpy(base + static_cast<size_t>(copy.to) * bytes,
                  base + static_cast<size_t>(copy.from) * bytes, bytes);
    }
    return absl::OkStatus();
  }
  absl::Status BoundPages(const AttentionShape& shape,
                          int32_t tokens,
                          const PageSpan& cache,
                          const PageSpan& bounds) override {
    for (int32_t g = 0; g < shape.kv_heads; ++g) {
      for (int32_t page = 0; page * kPageTokens < tokens; ++page) {
        ref::BoundPage(shape, tokens, cache, bounds, g, page);
      }
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<HeldTokens>> ReadHeld(
      const AttentionShape& shape,
      const PageSpan& cache,
      int32_t held,
      const int32_t* free_slot) override {
    return attention_.ReadHeld(shape, cache, held, free_slot);
  }

 private:
  ref::Attention attention_;
};

}  // namespace

std::unique_ptr<Backend> CreateReferenceBackend(Trap trap) {
  return std::make_unique<RefBackend>(trap);
}

}  // namespace kf
