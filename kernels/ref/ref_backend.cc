#include "kernels/ref/ref_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "kernels/core/bf16.h"
#include "kernels/core/status.h"
#include "kernels/core/weight_groups.h"
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

bool IsGrouped(WeightFormat format) {
  return format == WeightFormat::kQ8 || format == WeightFormat::kQ4;
}

// A matrix as products of this format see it.
std::vector<float> Weights(const WeightView& view, WeightFormat format) {
  const auto count = static_cast<size_t>(view.rows * view.cols);
  std::vector<float> values(count);
  if (!IsGrouped(format)) {
    Dequantize(view.type, view.data, view.rows * view.cols, values.data());
    if (format == WeightFormat::kBF16) {
      for (float& v : values) v = Bf16ToFloat(FloatToBf16(v));
    }
    return values;
  }
  const BlockLayout block = LayoutOf(view.type);
  const int64_t row_bytes = view.cols / block.elements * block.bytes;
  const int bits =
      format == WeightFormat::kQ4 && HasGroupsOf4Bits(view.type) ? 4 : 8;
  const float zero = bits == 4 ? 0.0F : 128.0F;
  std::vector<WeightGroup> groups(
      static_cast<size_t>((view.cols + kGroupWeights - 1) / kGroupWeights));
  for (int64_t row = 0; row < view.rows; ++row) {
    ReadWeightGroups(view.type, view.data + row * row_bytes, view.cols, bits,
                     groups.data());
    for (int64_t i = 0; i < view.cols; ++i) {
      const WeightGroup& group = groups[static_cast<size_t>(i / kGroupWeights)];
      const auto quant = static_cast<float>(group.quants[i % kGroupWeights]);
      values[static_cast<size_t>(row * view.cols + i)] =
          group.scale * (quant - zero) + group.minimum;
    }
  }
  return values;
}

// A row of x as products of this format see it.
std::vector<float> Activations(const float* x,
                               int64_t width,
                               WeightFormat format) {
  std::vector<float> values(x, x + width);
  if (format == WeightFormat::kBF16) {
    for (float& v : values) v = Bf16ToFloat(FloatToBf16(v));
  }
  if (!IsGrouped(format)) return values;
  for (size_t first = 0; first < values.size(); first += kGroupWeights) {
    const std::span<float> group(
        values.data() + first,
        std::min<size_t>(kGroupWeights, values.size() - first));
    float largest = 0.0F;
    bool finite = true;
    for (const float v : group) {
      finite = finite && std::isfinite(v);
      largest = std::max(largest, std::fabs(v));
    }
    if (!finite) {
      std::ranges::fill(group, std::numeric_limits<float>::quiet_NaN());
    } else if (largest > 1.5e-36F) {
      const float scale = largest / 127.0F;
      const float inverse = 127.0F / largest;
      for (float& v : group) v = scale * std::nearbyint(v * inverse);
    } else {
      std::ranges::fill(group, 0.0F);
    }
  }
  return values;
}

class RefLinear final : public LinearWeights {
 public:
  RefLinear(std::span<const WeightView> stacked, WeightFormat format)
      : format_(format), in_(stacked.front().cols) {
    for (const WeightView& view : stacked) {
      KF_CHECK(view.cols == in_);
      const std::vector<float> values = Weights(view, format);
      values_.insert(values_.end(), values.begin(), values.end());
      out_ += view.rows;
    }
  }
  int64_t in() const override { return in_; }
  int64_t out() const override { return out_; }
  size_t bytes() const override { return values_.size() * sizeof(float); }

  // x [in] -> y(j, value) for each output j.
  template <typename Emit>
  void Apply(const float* x, const Emit& emit) const {
    const std::vector<float> seen = Activations(x, in_, format_);
    for (int64_t j = 0; j < out_; ++j) {
      const float* w = values_.data() + j * in_;
      double sum = 0.0;
      for (int64_t i = 0; i < in_; ++i) {
        sum += static_cast<double>(seen[static_cast<size_t>(i)]) *
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
