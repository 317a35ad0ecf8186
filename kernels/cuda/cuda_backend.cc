#include "kernels/cuda/cuda_backend.h"

#include <string>
#include <utility>
#include <vector>

#include "kernels/core/status.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/attention_calls.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/sample_calls.h"
#include "kernels/cuda/staging.h"
#include "kernels/cuda/weights.h"

namespace kf {
namespace cuda {
namespace {

#if defined(KF_CUDA_EMULATION)
constexpr std::string_view kName = "cuda-emulated";
#else
constexpr std::string_view kName = "cuda";
#endif

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(std::unique_ptr<Device> device)
      : device_(std::move(device)),
        staging_(*device_),
        workspace_(*device_),
        attention_(*device_, staging_, workspace_),
        sampling_(*device_, staging_, workspace_) {}

  std::string_view name() const override { return kName; }
  std::string description() const override {
    return absl::StrCat(ToAbsl(kName), ", ", device_->description(),
                        ", own products");
  }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(
      size_t bytes, std::string_view what) override {
    return DeviceBuffer::Allocate(*device_, bytes, what);
  }
  absl::Status Upload(std::byte* to, std::span<const std::byte> from) override;
  absl::Status Download(std::span<std::byte> to,
                        const std::byte* from) override;
  std::optional<DeviceMemory> OwnMemory() const override;
  absl::Status CopyRows(std::span<const RowCopy> copies,
                        int64_t width) override;

  bool Supports(WeightFormat format) const override {
    return format == WeightFormat::kF32 || format == WeightFormat::kBF16;
  }
  absl::StatusOr<std::unique_ptr<LinearWeights>> LoadLinear(
      std::span<const WeightView> stacked, WeightFormat format) override {
    if (!Supports(format)) {
      return absl::UnimplementedError(
          "dtype: the CUDA backend has no integer weights, want bf16 or f32");
    }
    KF_RETURN_IF_ERROR(device_->Use());
    return DeviceLinear::Load(*device_, stacked, format);
  }
  absl::StatusOr<std::unique_ptr<EmbeddingTable>> LoadEmbedding(
      const WeightView& table) override {
    KF_RETURN_IF_ERROR(device_->Use());
    return DeviceEmbedding::Load(*device_, table);
  }

  absl::Status Embed(const EmbeddingTable& table,
                     std::span<const int32_t> ids,
                     float* out) override;
  absl::Status RmsNorm(const float* x,
                       const float* weight,
                       float eps,
                       int64_t rows,
                       int64_t width,
                       float* out) override;
  absl::Status Linear(const LinearWeights& w,
                      const float* x,
                      int64_t rows,
                      float* out) override {
    return MultiplyBy(w, x, rows, nullptr, out);
  }
  absl::Status LinearAdd(const LinearWeights& w,
                         const float* x,
                         int64_t rows,
                         float* inout) override {
    return MultiplyBy(w, x, rows, inout, inout);
  }
  absl::Status SwiGlu(const float* x,
                      int64_t rows,
                      int64_t width,
                      float* out) override;

  bool SamplesRows() const override { return true; }
  absl::StatusOr<std::vector<SampledRow>> SampleRows(
      std::span<const SampleRow> rows, int32_t vocabulary) override {
    KF_RETURN_IF_ERROR(device_->Use());
    return sampling_.Rows(rows, vocabulary);
  }

  size_t PageBytes(const AttentionShape& shape) const override {
    return static_cast<size_t>(LayoutOf(shape).page_bytes);
  }
  absl::Status PromptAttention(const PromptAttentionArgs& args) override {
    return Run("PromptAttention", [&] { return attention_.Prompt(args); });
  }
  absl::Status Compact(const CompactArgs& args) override {
    return Run("Compact", [&] { return attention_.Compact(args); });
  }
  absl::Status DecodeAttention(const DecodeAttentionArgs& args) override {
    return Run("DecodeAttention", [&] { return attention_.Decode(args); });
  }
  absl::Status AddRowScores(const AddRowScoresArgs& args) override {
    return Run("AddRowScores", [&] { return attention_.AddRowScores(args); });
  }
  absl::Status Evict(const EvictArgs& args) override {
    return Run("Evict", [&] { return attention_.Evict(args); });
  }
  absl::Status CopyPages(const AttentionShape& shape,
                         std::byte* base,
                         std::span<const PageCopy> copies) override {
    return Run("CopyPages",
               [&] { return attention_.CopyPages(shape, base, copies); });
  }
  absl::Status BoundPages(const AttentionShape& shape,
                          int32_t tokens,
                          const PageSpan& cache,
                          const PageSpan& bounds) override {
    return Run("BoundPages", [&] {
      return attention_.BoundPages(shape, tokens, cache, bounds);
    });
  }
  absl::StatusOr<std::vector<HeldTokens>> ReadHeld(
      const AttentionShape& shape,
      const PageSpan& cache,
      int32_t held,
      const int32_t* free_slot) override {
    KF_RETURN_IF_ERROR(device_->Use());
    return attention_.ReadHeld(shape, cache, held, free_slot);
  }

 private:
  // An operation's launches, and the first error that they meet.
  template <typename Fn>
  absl::Status Run(std::string_view operation, const Fn& fn) {
    KF_RETURN_IF_ERROR(device_->Use());
    KF_RETURN_IF_ERROR(fn());
    return ToStatus(cudaGetLastError(), operation);
  }

  // out = residual + x W^T; residual null: none.
  absl::Status MultiplyBy(const LinearWeights& w,
                          const float* x,
                          int64_t rows,
                          const float* residual,
                          float* out);

  std::unique_ptr<Device> device_;
  Staging staging_;
  Workspace workspace_;
  AttentionCalls attention_;
  SampleCalls sampling_;
};

absl::Status CudaBackend::Upload(std::byte* to,
                                 std::span<const std::byte> from) {
  if (from.empty()) return absl::OkStatus();
  return Run("Upload", [&] {
    KF_RETURN_IF_ERROR(
        ToStatus(cudaMemcpyAsync(to, from.data(), from.size(),
                                 cudaMemcpyHostToDevice, device_->stream()),
                 "cudaMemcpyAsync"));
    return device_->Wait();  // the caller's memory may go
  });
}

absl::Status CudaBackend::Download(std::span<std::byte> to,
                                   const std::byte* from) {
  if (to.empty()) return device_->Wait();
  return Run("Download", [&] {
    KF_RETURN_IF_ERROR(
        ToStatus(cudaMemcpyAsync(to.data(), from, to.size(),
                                 cudaMemcpyDeviceToHost, device_->stream()),
                 "cudaMemcpyAsync"));
    return device_->Wait();
  });
}

std::optional<DeviceMemory> CudaBackend::OwnMemory() const {
  const auto memory = device_->Memory();
  return memory.ok() ? *memory : DeviceMemory{};
}

absl::Status CudaBackend::CopyRows(std::span<const RowCopy> copies,
                                   int64_t width) {
  return Run("CopyRows", [&] {
    for (const RowCopy& copy : copies) {
      const size_t bytes =
          static_cast<size_t>(copy.rows * width) * sizeof(float);
      if (bytes == 0) continue;
      KF_RETURN_IF_ERROR(
          ToStatus(cudaMemcpyAsync(copy.to, copy.from, bytes,
                                   cudaMemcpyDeviceToDevice, device_->stream()),
                   "cudaMemcpyAsync"));
    }
    return absl::OkStatus();
  });
}

absl::Status CudaBackend::Embed(const EmbeddingTable& table,
                                std::span<const int32_t> ids,
                                float* out) {
  if (ids.empty()) return absl::OkStatus();
  const auto& embedding = static_cast<const DeviceEmbedding&>(table);
  for (const int32_t id : ids) KF_CHECK(id >= 0 && id < embedding.rows());
  return Run("Embed", [&] {
    KF_RETURN_IF_ERROR(staging_.Begin(PartBytes(ids.size_bytes())));
    const int32_t* staged = staging_.Add(ids);
    KF_RETURN_IF_ERROR(staging_.Send());
    const auto rows = static_cast<int64_t>(ids.size());
    if (embedding.is_f32()) {
      cuda::Embed(device_->stream(), embedding.f32(), staged, rows,
                  embedding.width(), out);
    } else {
      cuda::Embed(device_->stream(), embedding.bf16(), staged, rows,
                  embedding.width(), out);
    }
    return absl::OkStatus();
  });
}

absl::Status CudaBackend::RmsNorm(const float* x,
                                  const float* weight,
                                  float eps,
                                  int64_t rows,
                                  int64_t width,
                                  float* out) {
  if (rows == 0) return absl::OkStatus();
  return Run("RmsNorm", [&] {
    NormArgs args;
    args.x = x;
    args.weight = weight;
    args.eps = eps;
    args.rows = rows;
    args.width = width;
    args.out = out;
    cuda::RmsNorm(device_->stream(), args);
    return absl::OkStatus();
  });
}

absl::Status CudaBackend::SwiGlu(const float* x,
                                 int64_t rows,
                                 int64_t width,
                                 float* out) {
  if (rows == 0) return absl::OkStatus();
  return Run("SwiGlu", [&] {
    cuda::SwiGlu(device_->stream(), x, rows, width, out);
    return absl::OkStatus();
  });
}

absl::Status CudaBackend::MultiplyBy(const LinearWeights& w,
                                     const float* x,
                                     int64_t rows,
                                     const float* residual,
                                     float* out) {
  if (rows == 0) return absl::OkStatus();
  const auto& weights = static_cast<const DeviceLinear&>(w);
  const auto fill = [&](auto& args) {
    args.residual = residual;
    args.y = out;
    args.rows = rows;
    args.in = weights.in();
    args.out = weights.out();
  };
  return Run("Linear", [&] {
    if (weights.is_f32()) {
      ProductArgs<float> args;
      fill(args);
      args.x = x;
      args.w = weights.f32();
      Product(device_->stream(), args);
      return absl::OkStatus();
    }
    const int64_t values = rows * weights.in();
    KF_ASSIGN_OR_RETURN(
        unsigned char* memory,
        workspace_.Get(static_cast<size_t>(values) * sizeof(Bf16)));
    auto* rounded = reinterpret_cast<Bf16*>(memory);
    RoundToBf16(device_->stream(), x, values, rounded);
    ProductArgs<Bf16> args;
    fill(args);
    args.x = rounded;
    args.w = weights.bf16();
    Product(device_->stream(), args);
    return absl::OkStatus();
  });
}

}  // namespace

absl::Status CheckCudaDevice(int index) { return CheckDevice(index); }

}  // namespace cuda

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(
    const BackendOptions& options) {
  KF_ASSIGN_OR_RETURN(auto device, cuda::Device::Open(options.device_index));
  return std::make_unique<cuda::CudaBackend>(std::move(device));
}

}  // namespace kf
