#include "tests/cuda/emulation/runtime_api.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "tests/cuda/emulation/machine.h"
#include "tests/cuda/emulation/runtime_state.h"
#include "tests/cuda/emulation/shadow.h"

namespace kf::emu {

Device& TheDevice() {
  static auto& instance = *new Device;  // outlives static destructors
  return instance;
}

cudaError_t Set(Device& d, cudaError_t error) {
  if (d.error == cudaSuccess) d.error = error;
  return error;
}

cudaError_t SpoilCapture(Device& d) {
  if (d.captured == nullptr) return cudaSuccess;
  d.captured->spoiled = true;
  return Set(d, cudaErrorStreamCaptureUnsupported);
}

namespace {

cudaError_t SetFault(Device& d, std::string text) {
  if (d.error == cudaSuccess) d.fault = std::move(text);
  return Set(d, cudaErrorLaunchFailure);
}

// The address and size of the block of memory that holds p, or nothing.
std::pair<const char*, size_t> Holder(
    const std::map<const char*, size_t>& memory, const void* p) {
  const char* at = static_cast<const char*>(p);
  auto next = memory.upper_bound(at);
  if (next == memory.begin()) return {nullptr, 0};
  const auto& [base, bytes] = *std::prev(next);
  if (at >= base + bytes) return {nullptr, 0};
  return {base, bytes};
}

bool InDevice(const Device& d, const void* p) {
  return Holder(d.device_memory, p).first != nullptr;
}
bool Pinned(const Device& d, const void* p) {
  return Holder(d.pinned, p).first != nullptr;
}

bool Fits(const std::pair<const char*, size_t>& holder,
          const void* p,
          size_t bytes) {
  return static_cast<const char*>(p) + bytes <= holder.first + holder.second;
}

std::string CopyNow(void* to, const void* from, size_t bytes) {
  Device& d = TheDevice();
  const auto source = Holder(d.device_memory, from);
  const auto target = Holder(d.device_memory, to);
  if (source.first != nullptr && !Fits(source, from, bytes)) {
    return "out-of-bounds memcpy: source has less than " +
           std::to_string(bytes) + " bytes left";
  }
  if (target.first != nullptr && !Fits(target, to, bytes)) {
    return "out-of-bounds memcpy: target has less than " +
           std::to_string(bytes) + " bytes left";
  }
  ShadowCopy(target.first != nullptr ? to : nullptr,
             source.first != nullptr ? from : nullptr, bytes);
  std::memmove(to, from, bytes);
  return {};
}

std::string SetNow(void* p, int value, size_t bytes) {
  const auto target = Holder(TheDevice().device_memory, p);
  if (target.first == nullptr || !Fits(target, p, bytes)) {
    return "out-of-bounds memset of " + std::to_string(bytes) + " bytes";
  }
  ShadowCopy(p, nullptr, bytes);
  std::memset(p, value, bytes);
  return {};
}

bool KindFits(const Device& d,
              const void* to,
              const void* from,
              cudaMemcpyKind kind) {
  if (kind == cudaMemcpyDefault) return true;
  const bool to_device =
      kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device =
      kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  return to_device == InDevice(d, to) && from_device == InDevice(d, from);
}

}  // namespace

cudaError_t Run(Device& d, uint64_t until) {
  while (!d.queue.empty() && d.done < until) {
    const Work work = std::move(d.queue.front());
    d.queue.pop_front();
    ++d.done;
    if (std::string fault = work(); !fault.empty()) {
      d.done += d.queue.size();
      d.queue.clear();
      SetFault(d, std::move(fault));
    }
  }
  return d.error;
}

void Enqueue(cudaStream_t stream, Work work) {
  Device& d = TheDevice();
  const Lock lock(d.mutex);
  if (stream != nullptr && stream->capturing) {
    stream->captured.push_back(std::move(work));
    return;
  }
  if (d.error != cudaSuccess) return;  // as after a fault on a GPU
  d.queue.push_back(std::move(work));
}

GraphCounts graph_counts() {
  Device& d = TheDevice();
  const Lock lock(d.mutex);
  return d.counts;
}

size_t DeviceBytes() {
  Device& d = TheDevice();
  const Lock lock(d.mutex);
  return d.live_bytes;
}

void SetDeviceLimit(size_t bytes) {
  Device& d = TheDevice();
  const Lock lock(d.mutex);
  d.limit_bytes = bytes;
}

}  // namespace kf::emu

using kf::emu::Device;
using kf::emu::Enqueue;
using kf::emu::InDevice;
using kf::emu::KindFits;
using kf::emu::Lock;
using kf::emu::Pinned;
using kf::emu::TheDevice;

// --- errors ---
cudaError_t cudaGetLastError() {
  Device& d = TheDevice();
  const Lock lock(d.mutex);
  return std::exchange(d.error, cudaSuccess);
}

cudaError_t cudaPeekAtLastError() {
  Device& d = TheDevice();
  const Lock lock(d.mutex);
  return d.error;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorLaunchFailure:
      return TheDevice().fault.c_str();
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
  }
  return "unrecognized error code";
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
  }
  return "unrecognized error code";
}

// --- the device: one, that looks like a small sm_90 ---
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) return cudaErrorInvalidDevice;
  *properties = cudaDeviceProp{};
  std::strncpy(properties->name, "emulated", sizeof properties->name - 1);
  properties->major = 9;
  properties->multiProcessorCount = 4;
  properties->totalGlobalMem = TheDevice().limit_bytes;
  properties->sharedMemPerBlockOptin = kf::emu::options().shared_limit;
  properties->l2CacheSize = 1 << 20;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value,
                                   cudaDeviceAttr attribute,
                                   int device) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
    return cudaErrorInvalidDevice;
  }
  switch (attribute) {
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      return cudaSuccess;
  }
  return cudaErrorInvalidValue;
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  Device& d = TheDevice();
  const Lock lock(d.mutex);
  *free_bytes = d.limit_bytes - d.live_bytes;
  *total_bytes = d.limit_bytes;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  Device& d = TheDevice();
  const Lock lock(d.mutex);
  if (const cudaError_t error = SpoilCapture(d); error != cudaSuccess) {
    return error;
  }
  return Run(d);
}

// --- memory ---
cudaError_t cudaMalloc(void** p, size_t bytes) {
  Device& d = TheDevice();
  const Lock lock(d.mutex);
  if (const cudaError_t error = SpoilCapture(d); error != cudaSuccess) {
    return error;
  }
  if (bytes == 0) {
    *p = nullptr;
    return cudaSuccess;
  }
  if (bytes > d.limit_bytes - d.live_bytes) {
    return Set(d, cudaErrorMemoryAllocation);
  }
  *p = kf::emu::ShadowAllocate(bytes);
  d.device_memory[static_cast<char*>(*p)] = bytes;
  d.live_bytes += bytes;
  return cudaSuccess;
}

cudaError_t cudaFree(void* p) {
  if (p == nullptr) return cudaSuccess;
  Device& d = TheDevice();
  const Lock lock(d.mutex);
  if (const cudaError_t error = SpoilCapture(d); error != cudaSuccess) {
    return error;
  }
  const auto found = d.device_memory.find(static_cast<char*>(p));
  if (found == d.device_memory.end()) return Set(d, cudaErrorInvalidValue);
  const cudaError_t error = Run(d);  // as on a GPU: waits for what may use it
  d.live_bytes -= found->second;
  kf::emu::ShadowFree(p, found->second);
  d.device_memory.erase(found);
  return error;
}

cudaError_t cudaMallocHost(void** p, size_t bytes) {
  Device& d = TheDevice();
  const Lock lock(d.mutex);
  if (const cudaError_t error = SpoilCapture(d); error != cudaSuccess) {
    return error;
  }
  *p = std::malloc(bytes == 0 ? 1 : bytes);
  if (*p == nullptr) return Set(d, cudaErrorMemoryAllocation);
  std::memset(*p, 0xff, bytes);
  d.pinned[static_cast<char*>(*p)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* p) {
  Device& d = TheDevice();
  const Lock lock(d.mutex);
  if (const cudaError_t error = SpoilCapture(d); error != cudaSuccess) {
    return error;
  }
  const cudaError_t error = Run(d);
  d.pinned.erase(static_cast<char*>(p));
  std::free(p);
  return error;
}

cudaError_t cudaMemcpy(void* to,
                       const void* from,
                       size_t bytes,
                       cudaMemcpyKind kind) {
  const Lock lock(TheDevice().mutex);
  if (const cudaError_t error = SpoilCapture(TheDevice());
      error != cudaSuccess) {
    return error;
  }
  const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return error == cudaSuccess ? cudaDeviceSynchronize() : error;
}

cudaError_t cudaMemcpyAsync(void* to,
                            const void* from,
                            size_t bytes,
                            cudaMemcpyKind kind,
                            cudaStream_t stream) {
  Device& d = TheDevice();
  const Lock lock(d.mutex);
  if (bytes == 0) return cudaSuccess;
  if (!KindFits(d, to, from, kind)) return Set(d, cudaErrorInvalidValue);
  const bool to_host = !InDevice(d, to);
  const bool from_host = !InDevice(d, from);
  const bool capturing = stream != nullptr && stream->capturing;
  const bool pageable =
      (from_host && !Pinned(d, from)) || (to_host && !Pinned(d, to));
  if (capturing && pageable) return SpoilCapture(d);
  if (from_host && !Pinned(d, from)) {
    // Pageable memory is read before the call returns.
    const char* bytes_from = static_cast<const char*>(from);
    std::vector<char> staged(bytes_from, bytes_from + bytes);
    Enqueue(stream, [to, staged = std::move(staged)] {
      return kf::emu::CopyNow(to, staged.data(), staged.size());
    });
    return d.error;
  }
  Enqueue(stream,
          [to, from, bytes] { return kf::emu::CopyNow(to, from, bytes); });
  // And is written before the call returns.
  if (to_host && !Pinned(d, to)) return Run(d);
  return d.error;
}

cudaError_t cudaMemset(void* p, int value, size_t bytes) {
  return cudaMemsetAsync(p, value, bytes, nullptr);
}

cudaError_t cudaMemsetAsync(void* p,
                            int value,
                            size_t bytes,
                            cudaStream_t stream) {
  Enqueue(stream,
          [p, value, bytes] { return kf::emu::SetNow(p, value, bytes); });
  return cudaPeekAtLastError();
}
