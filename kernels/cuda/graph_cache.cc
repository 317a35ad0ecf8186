#include "kernels/cuda/graph_cache.h"

#include "kernels/core/status.h"

namespace kf::cuda {

GraphCache::~GraphCache() {
  // Nothing could be done about an error.
  for (auto& [bucket, graph] : graphs_) Drop(graph).IgnoreError();
}

absl::Status GraphCache::Run(const GraphBucket& bucket,
                             const std::vector<StepOp>& ops,
                             const void* descriptors,
                             const void* workspace,
                             const std::function<absl::Status()>& launch) {
  if (descriptors != descriptors_ || workspace != workspace_) {
    // Memory has grown and moved: none will be launched again.
    for (auto& [old, graph] : graphs_) KF_RETURN_IF_ERROR(Drop(graph));
    graphs_.clear();
    descriptors_ = descriptors;
    workspace_ = workspace;
  }
  Graph& graph = graphs_[bucket];
  if (graph.exec == nullptr || graph.ops != ops) {
    KF_RETURN_IF_ERROR(Drop(graph));
    KF_RETURN_IF_ERROR(Capture(launch, graph));
    graph.ops = ops;
  }
  return ToStatus(cudaGraphLaunch(graph.exec, device_.stream()),
                  "cudaGraphLaunch");
}

absl::Status GraphCache::Capture(const std::function<absl::Status()>& launch,
                                 Graph& graph) const {
  KF_RETURN_IF_ERROR(
      ToStatus(cudaStreamBeginCapture(device_.stream(),
                                      cudaStreamCaptureModeThreadLocal),
               "cudaStreamBeginCapture"));
  absl::Status status = launch();
  // Ends in any case: a stream that captures does no work.
  cudaGraph_t captured = nullptr;
  const absl::Status ended =
      ToStatus(cudaStreamEndCapture(device_.stream(), &captured),
               "cudaStreamEndCapture");
  if (status.ok()) status = ended;
  if (status.ok()) status = ToStatus(cudaGetLastError(), "a captured launch");
  if (status.ok()) {
    status = ToStatus(cudaGraphInstantiate(&graph.exec, captured, 0),
                      "cudaGraphInstantiate");
  }
  if (captured != nullptr) cudaGraphDestroy(captured);
  return status;
}

// It may be under way.
absl::Status GraphCache::Drop(Graph& graph) const {
  if (graph.exec == nullptr) return absl::OkStatus();
  KF_RETURN_IF_ERROR(device_.Wait());
  const cudaGraphExec_t exec = graph.exec;
  graph = {};
  return ToStatus(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
}

}  // namespace kf::cuda
