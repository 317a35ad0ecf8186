// Streams, events and graphs of the emulated run time.
#include <utility>
#include <vector>

#include "tests/cuda/emulation/runtime_api.h"
#include "tests/cuda/emulation/runtime_state.h"

using kf::emu::Device;
using kf::emu::Enqueue;
using kf::emu::Lock;
using kf::emu::TheDevice;

// --- streams and events ---
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = new CUstream_st;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream,
                                      unsigned /*flags*/) {
  return cudaStreamCreate(stream);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const cudaError_t error = cudaDeviceSynchronize();
  delete stream;
  return error;
}

cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) {
  Device& d = TheDevice();
  const Lock lock(d.mutex);
  if (const cudaError_t error = SpoilCapture(d); error != cudaSuccess) {
    return error;
  }
  return Run(d);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

// The queue is in order of issue, so what precedes an event always ran before
// what waits for it.
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t /*stream*/) {
  Device& d = TheDevice();
  const Lock lock(d.mutex);
  event->after = d.done + d.queue.size();
  return cudaPeekAtLastError();
}

// What was issued after the event still waits.
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Device& d = TheDevice();
  const Lock lock(d.mutex);
  if (const cudaError_t error = SpoilCapture(d); error != cudaSuccess) {
    return error;
  }
  return Run(d, event->after);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t /*stream*/,
                                cudaEvent_t /*event*/,
                                unsigned /*flags*/) {
  return cudaPeekAtLastError();
}

// --- graphs ---
cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                   cudaStreamCaptureMode /*mode*/) {
  Device& d = TheDevice();
  const Lock lock(d.mutex);
  if (stream == nullptr || d.captured != nullptr) {
    return Set(d, cudaErrorInvalidValue);
  }
  d.captured = stream;
  stream->capturing = true;
  stream->spoiled = false;
  stream->captured.clear();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Device& d = TheDevice();
  const Lock lock(d.mutex);
  if (stream == nullptr || !stream->capturing) {
    return Set(d, cudaErrorInvalidValue);
  }
  d.captured = nullptr;
  stream->capturing = false;
  *graph = nullptr;
  if (stream->spoiled) return Set(d, cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st{std::move(stream->captured)};
  ++d.counts.captured;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec,
                                 cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  *exec = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  Device& d = TheDevice();
  const Lock lock(d.mutex);
  if (const cudaError_t error = SpoilCapture(d); error != cudaSuccess) {
    return error;
  }
  ++d.counts.launched;
  Enqueue(stream, [work = exec->work] {
    for (const kf::emu::Work& item : work) {
      if (std::string fault = item(); !fault.empty()) return fault;
    }
    return std::string();
  });
  return cudaPeekAtLastError();
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
