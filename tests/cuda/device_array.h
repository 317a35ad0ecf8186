// Device memory of a test: filled from a vector, read back into one. Works on
// the emulator and on a GPU. Errors of the run time, kernels' faults included,
// fail the test with the text of the fault.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/gpu_api.h"

namespace kf::gpu {

// Elements are trivially copyable. New memory reads as NaN in emulation.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    void* p = nullptr;
    EXPECT_EQ(cudaMalloc(&p, count * sizeof(T)), cudaSuccess) << TakeError();
    data_ = static_cast<T*>(p);
  }
  explicit DeviceArray(const std::vector<T>& values)
      : DeviceArray(values.size()) {
    Upload(values);
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return count_; }

  // values.size() <= size().
  void Upload(const std::vector<T>& values) {
    EXPECT_EQ(cudaMemcpy(data_, values.data(), values.size() * sizeof(T),
                         cudaMemcpyHostToDevice),
              cudaSuccess)
        << TakeError();
  }
  // Waits for the device first.
  std::vector<T> Download() const {
    std::vector<T> values(count_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, count_ * sizeof(T),
                         cudaMemcpyDeviceToHost),
              cudaSuccess)
        << TakeError();
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

}  // namespace kf::gpu
