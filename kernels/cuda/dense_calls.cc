#include "kernels/cuda/dense_calls.h"

#include "kernels/core/status.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/group_product.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/product.h"

namespace kf::cuda {

EmbedOp MakeEmbedOp(const EmbeddingTable& table, float* out) {
  const auto& embedding = static_cast<const DeviceEmbedding&>(table);
  EmbedOp op;
  if (embedding.is_f32()) {
    op.f32 = embedding.f32();
  } else {
    op.bf16 = embedding.bf16();
  }
  op.width = embedding.width();
  op.out = out;
  return op;
}

ProductOp MakeProductOp(const LinearWeights& weights,
                        const float* x,
                        const float* residual,
                        float* y) {
  const auto& linear = static_cast<const DeviceLinear&>(weights);
  ProductOp op;
  op.weights = &linear;
  op.data = linear.data();
  op.x = x;
  op.residual = residual;
  op.y = y;
  return op;
}

void DenseCalls::Embed(const EmbedOp& op,
                       const int32_t* ids,
                       int64_t rows) const {
  if (op.f32 != nullptr) {
    cuda::Embed(device_.stream(), op.f32, ids, rows, op.width, op.out);
  } else {
    cuda::Embed(device_.stream(), op.bf16, ids, rows, op.width, op.out);
  }
}

void DenseCalls::Norm(const NormOp& op, int64_t rows) const {
  NormArgs args;
  args.x = op.x;
  args.weight = op.weight;
  args.eps = op.eps;
  args.rows = rows;
  args.width = op.width;
  args.out = op.out;
  RmsNorm(device_.stream(), args);
}

void DenseCalls::SwiGlu(const SwiGluOp& op, int64_t rows) const {
  cuda::SwiGlu(device_.stream(), op.x, rows, op.width, op.out);
}

// x in bf16, and behind it, for many rows, room for unpacked weights.
size_t DenseCalls::WorkspaceBytes(const DeviceLinear& w, int64_t rows) {
  if (w.format() == WeightFormat::kF32) return 0;
  size_t bytes = PartBytes(static_cast<size_t>(rows * w.in()) * sizeof(Bf16));
  if (rows > kGroupFewRows && !w.runs().empty()) {
    bytes += static_cast<size_t>(GroupRoomOutputs(w.in(), w.out()) * w.in()) *
             sizeof(Bf16);
  }
  return bytes;
}

absl::Status DenseCalls::Product(const ProductOp& op, int64_t rows) {
  const DeviceLinear& w = *op.weights;
  const auto fill = [&](auto& args) {
    args.residual = op.residual;
    args.y = op.y;
    args.rows = rows;
    args.in = w.in();
    args.out = w.out();
  };
  if (w.format() == WeightFormat::kF32) {
    ProductArgs<float> args;
    fill(args);
    args.x = op.x;
    args.w = w.f32();
    cuda::Product(device_.stream(), args);
    return absl::OkStatus();
  }
  KF_ASSIGN_OR_RETURN(unsigned char* memory,
                      workspace_.Get(WorkspaceBytes(w, rows)));
  auto* rounded = reinterpret_cast<Bf16*>(memory);
  RoundToBf16(device_.stream(), op.x, rows * w.in(), rounded);
  if (w.format() == WeightFormat::kBF16) {
    ProductArgs<Bf16> args;
    fill(args);
    args.x = rounded;
    args.w = w.bf16();
    cuda::Product(device_.stream(), args);
    return absl::OkStatus();
  }
  for (const GroupRun& run : w.runs()) {
    GroupProductArgs args;
    fill(args);
    args.x = rounded;
    args.tiles = run.tiles;
    args.bits = run.bits;
    if (args.residual != nullptr) args.residual += run.first;
    args.y += run.first;
    args.out = run.out;
    args.stride = w.out();
    args.room = reinterpret_cast<Bf16*>(
        memory + PartBytes(static_cast<size_t>(rows * w.in()) * sizeof(Bf16)));
    args.room_outputs = GroupRoomOutputs(w.in(), w.out());
    GroupProduct(device_.stream(), args);
  }
  return absl::OkStatus();
}

}  // namespace kf::cuda
