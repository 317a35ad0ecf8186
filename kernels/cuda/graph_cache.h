// CUDA graphs of decode steps: the launches of a step, captured once and then
// started by one call.
//
// A graph keeps the arguments of its capture, so a step may be replayed only if
// all that its launches take from the host is what it was then. What that is,
// is written down beside each graph and compared before every replay.
//
// Thread-compatible: the engine thread's.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/dense_calls.h"
#include "kernels/cuda/device.h"

namespace kf::cuda {

// DecodeAttentionArgs, but for the items.
struct DecodeOp {
  DecodeShape shape;
  const double* frequencies = nullptr;
  int32_t layer = 0;
  const float* qkv = nullptr;
  float* out = nullptr;
  bool operator==(const DecodeOp&) const = default;
};

using StepOp = std::variant<EmbedOp, NormOp, SwiGluOp, ProductOp, DecodeOp>;

// Limits that grids are made for: a step of no more has a graph.
struct GraphBucket {
  int64_t rows = 0;
  int32_t chunks = 0;  // of a row (decode_attention.h)
  auto operator<=>(const GraphBucket&) const = default;
};

class GraphCache {
 public:
  explicit GraphCache(const Device& device) : device_(device) {}
  ~GraphCache();
  GraphCache(const GraphCache&) = delete;
  GraphCache& operator=(const GraphCache&) = delete;

  // Runs `launch`, by its graph. `launch` is called where the bucket has none,
  // or one of other operations or addresses: it may depend on those and the
  // bucket alone, and do nothing but launch.
  absl::Status Run(const GraphBucket& bucket,
                   const std::vector<StepOp>& ops,
                   const void* descriptors,
                   const void* workspace,
                   const std::function<absl::Status()>& launch);

 private:
  struct Graph {
    std::vector<StepOp> ops;
    cudaGraphExec_t exec = nullptr;
  };

  absl::Status Capture(const std::function<absl::Status()>& launch,
                       Graph& graph) const;
  absl::Status Drop(Graph& graph) const;

  const Device& device_;
  std::map<GraphBucket, Graph> graphs_;
  // That all graphs have.
  const void* descriptors_ = nullptr;
  const void* workspace_ = nullptr;
};

}  // namespace kf::cuda
