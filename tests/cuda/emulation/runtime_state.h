// What the emulated run time's functions share: the device, its queue, and who
// captures. Inside the emulator only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/cuda/emulation/runtime_api.h"

// NOLINTBEGIN(readability-identifier-naming): names of the CUDA run time
struct CUstream_st {
  bool capturing = false;
  bool spoiled = false;  // the capture
  std::vector<kf::emu::Work> captured;
};
struct CUevent_st {
  uint64_t after = 0;  // so much of the queue's work, since the beginning
};
struct CUgraph_st {
  std::vector<kf::emu::Work> work;
};
struct CUgraphExec_st {
  std::vector<kf::emu::Work> work;
};
// NOLINTEND(readability-identifier-naming)

namespace kf::emu {

struct Device {
  std::recursive_mutex mutex;
  std::deque<Work> queue;
  uint64_t done = 0;  // work that has left the queue
  cudaError_t error = cudaSuccess;
  std::string fault;  // of the last cudaErrorLaunchFailure
  std::map<const char*, size_t> device_memory;
  std::map<const char*, size_t> pinned;
  size_t live_bytes = 0;
  size_t limit_bytes = size_t{2} << 30;
  CUstream_st* captured = nullptr;  // the stream that captures, if one does
  GraphCounts counts;
};

using Lock = std::lock_guard<std::recursive_mutex>;

Device& TheDevice();
// Keeps the error, unless there is one already; returns it.
cudaError_t Set(Device& d, cudaError_t error);
// For calls that a capture does not bear: an error if there is one.
cudaError_t SpoilCapture(Device& d);
// Does all that is queued, or until so much has left the queue since the
// beginning; the device's error.
cudaError_t Run(Device& d, uint64_t until = UINT64_MAX);

}  // namespace kf::emu
