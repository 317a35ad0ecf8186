#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/status.h"
#include "kernels/cuda/attention_calls.h"
#include "kernels/cuda/cublaslt_library.h"
#include "kernels/cuda/decode_step.h"
#include "kernels/cuda/dense_calls.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/group_product.h"
#include "kernels/cuda/products.h"
#include "kernels/cuda/sample_calls.h"
#include "kernels/cuda/staging.h"
#include "kernels/cuda/weights.h"
#include "kernels/cuda/work_limits.h"

namespace kf {
namespace cuda {
namespace {

#if defined(KF_CUDA_EMULATION)
constexpr std::string_view kName = "cuda-emulated";
#else
constexpr std::string_view kName = "cuda";
#endif

// Where cuBLASLt is looked for.
std::vector<std::string> Places() {
#if defined(KF_CUDA_EMULATION)
  return {};  // a real library would take host memory for a device's
#else
  return CublasLtPlaces([](const char* name) { return std::getenv(name); });
#endif
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(std::unique_ptr<Device> device, bool graphs)
      : device_(std::move(device)),
        graphs_(graphs),
        staging_(*device_),
        workspace_(*device_),
        dense_(*device_, workspace_),
        attention_(*device_, staging_, workspace_),
        sampling_(*device_, staging_, workspace_),
        step_(*device_, workspace_, dense_, graphs) {}

  // Before anything is loaded. kInvalidArgument: the path is of no use.
  absl::Status FindProducts(const std::string& cublaslt_path) {
    KF_ASSIGN_OR_RETURN(products_, Products::Create(*device_, workspace_,
                                                    cublaslt_path, Places()));
    return absl::OkStatus();
  }

  std::string_view name() const override { return kName; }
  std::string description() const override {
    return absl::StrCat(ToAbsl(kName), ", ", device_->description(), ", ",
                        products_->description(),
                        graphs_ ? ", graphs" : ", no graphs");
  }
  std::string notice() const override { return products_->notice(); }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(
      size_t bytes, std::string_view what) override {
    return DeviceBuffer::Allocate(*device_, bytes, what);
  }
  absl::Status Reserve(const WorkLimits& limits) override;
  absl::Status Upload(std::byte* to, std::span<const std::byte> from) override;
  absl::Status Download(std::span<std::byte> to,
                        const std::byte* from) override;
  std::optional<DeviceMemory> OwnMemory() const override;
  absl::Status CopyRows(std::span<const RowCopy> copies,
                        int64_t width) override;

  bool SupportsCache(DType cache_dtype) const override {
    return cache_dtype == DType::kF32 || cache_dtype == DType::kBF16;
  }
  absl::StatusOr<std::unique_ptr<LinearWeights>> LoadLinear(
      std::span<const WeightView> stacked, WeightFormat format) override {
    KF_RETURN_IF_ERROR(device_->Use());
    KF_ASSIGN_OR_RETURN(auto linear,
                        DeviceLinear::Load(*device_, stacked, format));
    KF_RETURN_IF_ERROR(products_->Prepare(*linear));
    CountProduct(*linear);
    // Where cuBLASLt serves there are no graphs: whether its launches may be
    // captured, and padded rows with them, only a GPU can show.
    if (products_->Serves(*linear)) {
      graphs_ = false;
      step_.PutNothingOff();
    }
    return linear;
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
  absl::Status StartSampling(std::span<const SampleRow> rows,
                             int32_t vocabulary) override {
    return Run("StartSampling",
               [&] { return sampling_.Start(rows, vocabulary); });
  }
  absl::StatusOr<std::vector<SampledRow>> WaitForSamples() override {
    KF_RETURN_IF_ERROR(device_->Use());
    return sampling_.Wait();
  }

  absl::Status BeginStep(int64_t rows, int64_t capacity) override {
    step_.Begin(rows, capacity);
    return absl::OkStatus();
  }
  absl::Status EndStep() override {
    KF_RETURN_IF_ERROR(device_->Use());
    return step_.End();
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
  absl::Status DecodeAttention(const DecodeAttentionArgs& args) override;
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
    KF_RETURN_IF_ERROR(step_.Flush());
    return attention_.ReadHeld(shape, cache, held, free_slot);
  }

 private:
  // An operation's launches, after those that were put off, and the first error
  // that they meet.
  template <typename Fn>
  absl::Status Run(std::string_view operation, const Fn& fn) {
    KF_RETURN_IF_ERROR(device_->Use());
    KF_RETURN_IF_ERROR(step_.Flush());
    KF_RETURN_IF_ERROR(fn());
    return ToStatus(cudaGetLastError(), operation);
  }

  void CountProduct(const DeviceLinear& w) {
    // Some row more than few, so that all that is the same for many is in it.
    constexpr int64_t kRows = kGroupFewRows + 1;
    product_inputs_ = std::max(product_inputs_, w.in());
    product_bytes_ =
        std::max(product_bytes_, products_->Serves(w)
                                     ? products_->WorkspaceBytes(w, kRows)
                                     : DenseCalls::WorkspaceBytes(w, kRows));
  }

  // out = residual + x W^T; residual null: none.
  absl::Status MultiplyBy(const LinearWeights& w,
                          const float* x,
                          int64_t rows,
                          const float* residual,
                          float* out);

  std::unique_ptr<Device> device_;
  bool graphs_;
  Staging staging_;
  Workspace workspace_;
  DenseCalls dense_;
  AttentionCalls attention_;
  SampleCalls sampling_;
  std::unique_ptr<Products> products_;
  DecodeStep step_;
  // Of the matrices: the most inputs, and working memory for some rows.
  int64_t product_inputs_ = 0;
  size_t product_bytes_ = 0;
};

absl::Status CudaBackend::Reserve(const WorkLimits& limits) {
  KF_RETURN_IF_ERROR(device_->Use());
  const WorkBytes bytes = WorkBytesOf(limits);
  const size_t activations = PartBytes(
      static_cast<size_t>((limits.rows + kLtFewRows) * product_inputs_) *
      sizeof(Bf16));
  KF_RETURN_IF_ERROR(
      workspace_.Get(std::max(bytes.workspace, product_bytes_ + activations))
          .status());
  KF_RETURN_IF_ERROR(attention_.Reserve(limits.shape, bytes.decode_words));
  KF_RETURN_IF_ERROR(staging_.Reserve(bytes.descriptors));
  return step_.Reserve(bytes.step_descriptors, bytes.decode_words);
}

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
  return Run("Download", [&] {
    if (to.empty()) return device_->Wait();
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
  const EmbedOp op = MakeEmbedOp(table, out);
  if (step_.Takes(std::ssize(ids))) {
    step_.Add(op, ids);
    return absl::OkStatus();
  }
  return Run("Embed", [&] {
    KF_RETURN_IF_ERROR(staging_.Begin(PartBytes(ids.size_bytes())));
    const int32_t* staged = staging_.Add(ids);
    KF_RETURN_IF_ERROR(staging_.Send());
    dense_.Embed(op, staged, std::ssize(ids));
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
  const NormOp op{
      .x = x, .weight = weight, .eps = eps, .width = width, .out = out};
  if (step_.Takes(rows)) {
    step_.Add(op);
    return absl::OkStatus();
  }
  return Run("RmsNorm", [&] {
    dense_.Norm(op, rows);
    return absl::OkStatus();
  });
}

absl::Status CudaBackend::SwiGlu(const float* x,
                                 int64_t rows,
                                 int64_t width,
                                 float* out) {
  if (rows == 0) return absl::OkStatus();
  const SwiGluOp op{.x = x, .width = width, .out = out};
  if (step_.Takes(rows)) {
    step_.Add(op);
    return absl::OkStatus();
  }
  return Run("SwiGlu", [&] {
    dense_.SwiGlu(op, rows);
    return absl::OkStatus();
  });
}

absl::Status CudaBackend::MultiplyBy(const LinearWeights& w,
                                     const float* x,
                                     int64_t rows,
                                     const float* residual,
                                     float* out) {
  if (rows == 0) return absl::OkStatus();
  const ProductOp op = MakeProductOp(w, x, residual, out);
  if (step_.Takes(rows)) {
    step_.Add(op);
    return absl::OkStatus();
  }
  return Run("Linear", [&] {
    const auto& linear = static_cast<const DeviceLinear&>(w);
    return products_->Serves(linear)
               ? products_->Multiply(linear, x, rows, residual, out)
               : dense_.Product(op, rows);
  });
}

absl::Status CudaBackend::DecodeAttention(const DecodeAttentionArgs& args) {
  if (step_.Takes(args.items)) {
    KF_RETURN_IF_ERROR(device_->Use());
    KF_ASSIGN_OR_RETURN(const DecodeOp op, attention_.MakeDecodeOp(args));
    step_.Add(op, args.items);
    return absl::OkStatus();
  }
  return Run("DecodeAttention", [&] { return attention_.Decode(args); });
}

}  // namespace

absl::Status CheckCudaDevice(int index) { return CheckDevice(index); }

}  // namespace cuda

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(
    const BackendOptions& options) {
  KF_ASSIGN_OR_RETURN(auto device, cuda::Device::Open(options.device_index));
  auto backend = std::make_unique<cuda::CudaBackend>(std::move(device),
                                                     options.cuda_graphs);
  KF_RETURN_IF_ERROR(backend->FindProducts(options.cublaslt_path));
  return backend;
}

}  // namespace kf
