#include "kernels/cuda/weights.h"

#include <algorithm>
#include <vector>

#include "kernels/core/status.h"
#include "kernels/core/weight_groups.h"
#include "kernels/cuda/group_tile.h"

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

bool IsGrouped(WeightFormat format) {
  return format == WeightFormat::kQ8 || format == WeightFormat::kQ4;
}

// Writes rows that follow each other in the matrix as tiles of one width. A
// stacked matrix may begin inside 8 outputs, so that tiles are filled row by
// row, and sent when enough of them are full.
class TileWriter {
 public:
  TileWriter(const Device& device, int bits, int64_t in, std::byte* to)
      : device_(device), bits_(bits), in_(in), to_(to) {}

  absl::Status Add(const WeightView& view) {
    const BlockLayout block = LayoutOf(view.type);
    KF_CHECK(block.elements > 0 && in_ % block.elements == 0);
    const int64_t row_bytes = in_ / block.elements * block.bytes;
    const size_t eight = GroupTileBytes(bits_, in_, kGroupTileOutputs);
    std::vector<WeightGroup> groups(
        static_cast<size_t>((in_ + kGroupWeights - 1) / kGroupWeights));
    for (int64_t row = 0; row < view.rows; ++row) {
      if (row_ % kGroupTileOutputs == 0) {
        if (static_cast<int64_t>(tiles_.size()) >= kPieceValues) {
          KF_RETURN_IF_ERROR(Send());
        }
        tiles_.resize(tiles_.size() + eight);
      }
      ReadWeightGroups(view.type, view.data + row * row_bytes, in_, bits_,
                       groups.data());
      PackGroups(bits_, groups.data(), in_, row_++,
                 tiles_.data() + tiles_.size() - eight);
    }
    return absl::OkStatus();
  }

  absl::Status Send() {
    KF_RETURN_IF_ERROR(Copy(device_, to_, tiles_));
    to_ += tiles_.size();
    tiles_.clear();
    return absl::OkStatus();
  }

 private:
  const Device& device_;
  const int bits_;
  const int64_t in_;
  std::byte* to_;
  int64_t row_ = 0;
  std::vector<std::byte> tiles_;
};

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
  // Activations are copied in pieces of 16 bytes: f32, else bf16.
  const int64_t whole = format == WeightFormat::kF32 ? 4 : 8;
  if (linear->in_ % whole != 0) {
    return absl::UnimplementedError(
        absl::StrCat("a linear layer of ", linear->in_,
                     " inputs: the CUDA backend wants a multiple of ", whole));
  }
  KF_RETURN_IF_ERROR(IsGrouped(format) ? linear->LoadGroups(device, stacked)
                                       : linear->LoadValues(device, stacked));
  return linear;
}

absl::Status DeviceLinear::LoadValues(const Device& device,
                                      std::span<const WeightView> stacked) {
  const bool f32 = format_ == WeightFormat::kF32;
  const size_t element = f32 ? sizeof(float) : sizeof(Bf16);
  KF_ASSIGN_OR_RETURN(
      data_, DeviceBuffer::Allocate(
                 device, static_cast<size_t>(in_ * out_) * element, "weights"));
  std::byte* to = data_->data();
  for (const WeightView& view : stacked) {
    KF_RETURN_IF_ERROR(Convert(device, view, f32, to));
    to += static_cast<size_t>(view.rows * view.cols) * element;
  }
  return absl::OkStatus();
}

absl::Status DeviceLinear::LoadGroups(const Device& device,
                                      std::span<const WeightView> stacked) {
  const auto bits_of = [&](const WeightView& view) {
    return format_ == WeightFormat::kQ4 && HasGroupsOf4Bits(view.type) ? 4 : 8;
  };
  for (const WeightView& view : stacked) {
    if (runs_.empty() || runs_.back().bits != bits_of(view)) {
      const int64_t first =
          runs_.empty() ? 0 : runs_.back().first + runs_.back().out;
      runs_.push_back({.bits = bits_of(view), .first = first});
    }
    runs_.back().out += view.rows;
  }
  size_t bytes = 0;
  for (const GroupRun& run : runs_) {
    bytes += GroupTileBytes(run.bits, in_, run.out);
  }
  KF_ASSIGN_OR_RETURN(data_, DeviceBuffer::Allocate(device, bytes, "weights"));
  std::byte* to = data_->data();
  const WeightView* view = stacked.data();
  for (GroupRun& run : runs_) {
    run.tiles = to;
    TileWriter writer(device, run.bits, in_, to);
    for (int64_t rows = 0; rows < run.out; rows += (view++)->rows) {
      KF_RETURN_IF_ERROR(writer.Add(*view));
    }
    KF_RETURN_IF_ERROR(writer.Send());
    to += GroupTileBytes(run.bits, in_, run.out);
  }
  return absl::OkStatus();
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
