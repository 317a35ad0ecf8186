#include "kernels/cuda/weights.h"

#include <algorithm>
#include <vector>

#include "kernels/core/status.h"

namespace kf::cuda {
namespace {

// Values dequantised at a time.
constexpr int64_t kPieceValues = int64_t{1} << 22;

// In the device's own stream, and waited for: cudaMemcpy may return before the
// bytes are there, and its stream orders nothing for ours.
absl::Status Copy(const Device& device,
                  std::byte* to,
                  std::span<const std::byte> from) {
  KF_RETURN_IF_ERROR(
      ToStatus(cudaMemcpyAsync(to, from.data(), from.size(),
                               cudaMemcpyHostToDevice, device.stream()),
               "cudaMemcpyAsync of weights"));
  return device.Wait();
}

// Writes `view` as f32 or bf16 from `to` on.
absl::Status Convert(const Device& device,
                     const WeightView& view,
                     bool f32,
                     std::byte* to) {
  const BlockLayout block = LayoutOf(view.type);
  KF_CHECK(block.elements > 0 && view.cols % block.elements == 0);
  const int64_t row_bytes = view.cols / block.elements * block.bytes;
  if (!f32 && view.type == DType::kBF16) {
    return Copy(device, to,
                {view.data, static_cast<size_t>(view.rows * row_bytes)});
  }
  const int64_t piece = std::max<int64_t>(1, kPieceValues / view.cols);
  std::vector<float> values;
  std::vector<Bf16> rounded;
  for (int64_t row = 0; row < view.rows; row += piece) {
    const int64_t rows = std::min(piece, view.rows - row);
    const int64_t count = rows * view.cols;
    values.resize(static_cast<size_t>(count));
    Dequantize(view.type, view.data + row * row_bytes, count, values.data());
    std::span<const std::byte> bytes = std::as_bytes(std::span(values));
    if (!f32) {
      rounded.resize(values.size());
      std::transform(values.begin(), values.end(), rounded.begin(),
                     FloatToBf16);
      bytes = std::as_bytes(std::span(rounded));
    }
    KF_RETURN_IF_ERROR(Copy(device, to, bytes));
    to += bytes.size();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceLinear>> DeviceLinear::Load(
    const Device& device,
    std::span<const WeightView> stacked,
    WeightFormat format) {
  KF_CHECK(!stacked.empty());
  std::unique_ptr<DeviceLinear> linear(new DeviceLinear);
  linear->in_ = stacked.front().cols;
  linear->format_ = format;
  for (const WeightView& view : stacked) {
    KF_CHECK(view.cols == linear->in_);
    linear->out_ += view.rows;
  }
  const size_t element = linear->is_f32() ? sizeof(float) : sizeof(Bf16);
  if (static_cast<size_t>(linear->in_) * element % 16 != 0) {
    return absl::UnimplementedError(absl::StrCat(
        "a linear layer of ", linear->in_,
        " inputs: the CUDA backend wants a multiple of ", 16 / element));
  }
  KF_ASSIGN_OR_RETURN(
      linear->data_,
      DeviceBuffer::Allocate(
          device, static_cast<size_t>(linear->in_ * linear->out_) * element,
          "weights"));
  std::byte* to = linear->data_->data();
  for (const WeightView& view : stacked) {
    KF_RETURN_IF_ERROR(Convert(device, view, linear->is_f32(), to));
    to += static_cast<size_t>(view.rows * view.cols) * element;
  }
  return linear;
}

absl::StatusOr<std::unique_ptr<DeviceEmbedding>> DeviceEmbedding::Load(
    const Device& device, const WeightView& table) {
  std::unique_ptr<DeviceEmbedding> embedding(new DeviceEmbedding);
  embedding->rows_ = table.rows;
  embedding->width_ = table.cols;
  embedding->is_f32_ = table.type != DType::kBF16;
  const size_t element = embedding->is_f32_ ? sizeof(float) : sizeof(Bf16);
  KF_ASSIGN_OR_RETURN(
      embedding->data_,
      DeviceBuffer::Allocate(
          device, static_cast<size_t>(table.rows * table.cols) * element,
          "token embeddings"));
  KF_RETURN_IF_ERROR(
      Convert(device, table, embedding->is_f32_, embedding->data_->data()));
  return embedding;
}

}  // namespace kf::cuda
