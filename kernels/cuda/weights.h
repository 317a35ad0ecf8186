// Weights in device memory: matrices of linear layers, and token embeddings.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/core/bf16.h"
#include "kernels/cuda/device.h"

namespace kf::cuda {

// Outputs of a matrix that follow each other and have groups of one width.
struct GroupRun {
  int bits = 8;       // or 4
  int64_t first = 0;  // of the matrix' outputs
  int64_t out = 0;
  const std::byte* tiles = nullptr;  // GroupTile<bits>; device memory
};

// W: row-major as f32 or rounded to bf16, or its groups (group_tile.h).
class DeviceLinear final : public LinearWeights {
 public:
  // Converts on the host, a piece at a time. kUnimplemented: rows that are no
  // multiple of 16 bytes of activations; kResourceExhausted: no room.
  static absl::StatusOr<std::unique_ptr<DeviceLinear>> Load(
      const Device& device,
      std::span<const WeightView> stacked,
      WeightFormat format);

  int64_t in() const override { return in_; }
  int64_t out() const override { return out_; }
  size_t bytes() const override { return data_->bytes(); }

  // As asked for; kQ4 may have runs of 8 bits.
  WeightFormat format() const { return format_; }
  const std::byte* data() const { return data_->data(); }
  const float* f32() const { return data_->as<float>(); }
  const Bf16* bf16() const { return data_->as<Bf16>(); }
  // Of kQ8 and kQ4.
  std::span<const GroupRun> runs() const { return runs_; }

 private:
  DeviceLinear() = default;

  absl::Status LoadValues(const Device& device,
                          std::span<const WeightView> stacked);
  absl::Status LoadGroups(const Device& device,
                          std::span<const WeightView> stacked);

  int64_t in_ = 0;
  int64_t out_ = 0;
  WeightFormat format_ = WeightFormat::kBF16;
  std::unique_ptr<DeviceBuffer> data_;
  std::vector<GroupRun> runs_;
};

// Exact: f32, but bf16 where the file has that.
class DeviceEmbedding final : public EmbeddingTable {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceEmbedding>> Load(
      const Device& device, const WeightView& table);

  int64_t rows() const { return rows_; }
  int64_t width() const { return width_; }
  bool is_f32() const { return is_f32_; }
  const float* f32() const { return data_->as<float>(); }
  const Bf16* bf16() const { return data_->as<Bf16>(); }

 private:
  DeviceEmbedding() = default;

  int64_t rows_ = 0;
  int64_t width_ = 0;
  bool is_f32_ = true;
  std::unique_ptr<DeviceBuffer> data_;
};

}  // namespace kf::cuda
