// The emulated CUDA run time: streams that run late, graphs, errors, memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "kernels/cuda/gpu.h"
#include "tests/cuda/device_array.h"

namespace kf::emu {
namespace {

using gpu::DeviceArray;
using gpu::launch;
using testing::HasSubstr;

__global__ void AddTo(int* sum, int value) { *sum += value; }
__global__ void Load(int* y, const int* x) { *y = *x; }
__global__ void Fault(int* y) {
  if (threadIdx.x == 0) return;
  __syncthreads();
  *y = 1;
}

class RuntimeApi : public testing::Test {
 protected:
  RuntimeApi() { EXPECT_EQ(cudaStreamCreate(&stream_), cudaSuccess); }
  ~RuntimeApi() override { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }

  cudaStream_t stream_ = nullptr;
};

TEST_F(RuntimeApi, WorkRunsWhenSomebodyWaits) {
  int* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, sizeof(int)), cudaSuccess);
  DeviceArray<int> x(1);
  *pinned = 1;
  cudaMemcpyAsync(x.data(), pinned, sizeof(int), cudaMemcpyHostToDevice,
                  stream_);
  // Too early: the copy has not read its source yet.
  *pinned = 2;
  cudaStreamSynchronize(stream_);
  EXPECT_EQ(x.Download()[0], 2);

  launch(stream_, 1, 1, 0, AddTo, x.data(), 5);
  cudaMemcpyAsync(pinned, x.data(), sizeof(int), cudaMemcpyDeviceToHost,
                  stream_);
  EXPECT_EQ(*pinned, 2);  // too early again
  cudaStreamSynchronize(stream_);
  EXPECT_EQ(*pinned, 7);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(RuntimeApi, AnEventIsWaitedForAndNothingAfterIt) {
  int* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, 2 * sizeof(int)), cudaSuccess);
  pinned[0] = pinned[1] = 0;
  DeviceArray<int> x(std::vector<int>{1});
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
            cudaSuccess);
  const auto fetch = [&](int* to) {
    launch(stream_, 1, 1, 0, AddTo, x.data(), 1);
    cudaMemcpyAsync(to, x.data(), sizeof(int), cudaMemcpyDeviceToHost, stream_);
  };
  fetch(&pinned[0]);
  ASSERT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
  fetch(&pinned[1]);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(pinned[0], 2);
  EXPECT_EQ(pinned[1], 0);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(pinned[1], 3);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(RuntimeApi, PageableMemoryIsReadAtOnce) {
  int value = 1;
  DeviceArray<int> x(1);
  cudaMemcpyAsync(x.data(), &value, sizeof(int), cudaMemcpyHostToDevice,
                  stream_);
  value = 2;
  EXPECT_EQ(x.Download()[0], 1);
}

TEST_F(RuntimeApi, AGraphKeepsTheArgumentsOfItsCapture) {
  DeviceArray<int> x(std::vector<int>{0});
  int added = 3;
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal),
            cudaSuccess);
  launch(stream_, 1, 1, 0, AddTo, x.data(), added);
  added = 4;
  launch(stream_, 1, 1, 0, AddTo, x.data(), added);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph), cudaSuccess);
  EXPECT_EQ(x.Download()[0], 0);  // captured, not run
  cudaGraphLaunch(exec, stream_);
  cudaGraphLaunch(exec, stream_);
  EXPECT_EQ(x.Download()[0], 14);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
}

// What a graph is for: values that change are read from device memory, where
// the graph finds the new ones.
TEST_F(RuntimeApi, AGraphReadsMemoryAsItIsWhenItRuns) {
  int* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, sizeof(int)), cudaSuccess);
  DeviceArray<int> x(std::vector<int>{1});
  DeviceArray<int> y(1);
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
            cudaSuccess);
  cudaMemcpyAsync(x.data(), pinned, sizeof(int), cudaMemcpyHostToDevice,
                  stream_);
  launch(stream_, 1, 1, 0, Load, y.data(), x.data());
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph), cudaSuccess);
  cudaGraphDestroy(graph);
  for (const int value : {7, 9}) {
    *pinned = value;
    cudaGraphLaunch(exec, stream_);
    EXPECT_EQ(y.Download()[0], value);
  }
  cudaGraphExecDestroy(exec);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

// Each of them is an error, which spoils the capture; then the stream works as
// before.
TEST_F(RuntimeApi, WhatACaptureDoesNotBear) {
  DeviceArray<int> x(std::vector<int>{0});
  void* device = nullptr;
  void* pinned = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 64), cudaSuccess);
  ASSERT_EQ(cudaMallocHost(&pinned, 64), cudaSuccess);
  int pageable = 1;
  void* other = nullptr;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
            cudaSuccess);
  const std::vector<std::function<cudaError_t()>> calls = {
      [&] { return cudaStreamSynchronize(stream_); },
      [&] { return cudaDeviceSynchronize(); },
      [&] { return cudaEventSynchronize(event); },
      [&] { return cudaMalloc(&other, 64); },
      [&] { return cudaFree(device); },
      [&] { return cudaMallocHost(&other, 64); },
      [&] { return cudaFreeHost(pinned); },
      [&] {
        return cudaMemcpy(x.data(), &pageable, sizeof(int),
                          cudaMemcpyHostToDevice);
      },
      [&] {
        return cudaMemcpyAsync(x.data(), &pageable, sizeof(int),
                               cudaMemcpyHostToDevice, stream_);
      },
      [&] {
        return cudaMemcpyAsync(&pageable, x.data(), sizeof(int),
                               cudaMemcpyDeviceToHost, stream_);
      },
  };
  for (size_t i = 0; i < calls.size(); ++i) {
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
              cudaSuccess);
    launch(stream_, 1, 1, 0, AddTo, x.data(), 1);
    EXPECT_EQ(calls[i](), cudaErrorStreamCaptureUnsupported) << i;
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph),
              cudaErrorStreamCaptureInvalidated)
        << i;
    EXPECT_EQ(graph, nullptr) << i;
    EXPECT_THAT(gpu::TakeError(), HasSubstr("stream is capturing")) << i;
  }
  EXPECT_EQ(x.Download()[0], 0);
  launch(stream_, 1, 1, 0, AddTo, x.data(), 1);
  EXPECT_EQ(x.Download()[0], 1);
  cudaEventDestroy(event);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(RuntimeApi, AFaultStaysUntilItIsTaken) {
  DeviceArray<int> x(std::vector<int>{0});
  launch(stream_, 1, 2, 0, Fault, x.data());
  launch(stream_, 1, 1, 0, AddTo, x.data(), 1);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorLaunchFailure);
  EXPECT_THAT(gpu::TakeError(), HasSubstr("divergent barrier"));
  EXPECT_EQ(gpu::TakeError(), "");
  EXPECT_EQ(x.Download()[0], 0);  // nothing ran after it
}

TEST_F(RuntimeApi, CopiesMustStayInsideTheirMemory) {
  DeviceArray<int> x(std::vector<int>(4, 1));
  std::vector<int> host(8, 0);
  cudaMemcpy(host.data(), x.data(), 5 * sizeof(int), cudaMemcpyDeviceToHost);
  EXPECT_THAT(gpu::TakeError(), HasSubstr("out-of-bounds memcpy: source"));
  cudaMemcpy(x.data(), host.data(), 5 * sizeof(int), cudaMemcpyHostToDevice);
  EXPECT_THAT(gpu::TakeError(), HasSubstr("out-of-bounds memcpy: target"));
  cudaMemset(x.data(), 0, 5 * sizeof(int));
  EXPECT_THAT(gpu::TakeError(), HasSubstr("out-of-bounds memset"));
  cudaMemcpy(x.data(), host.data(), sizeof(int), cudaMemcpyDeviceToHost);
  EXPECT_THAT(gpu::TakeError(), HasSubstr("cudaErrorInvalidValue"));
}

TEST_F(RuntimeApi, DeviceMemoryRunsOut) {
  const size_t before = DeviceBytes();
  SetDeviceLimit(before + 1024);
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, 1025), cudaErrorMemoryAllocation);
  EXPECT_THAT(gpu::TakeError(), HasSubstr("out of memory"));
  EXPECT_EQ(cudaMalloc(&p, 1024), cudaSuccess);
  size_t free_bytes = 1;
  size_t total_bytes = 0;
  EXPECT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  EXPECT_EQ(free_bytes, 0U);
  EXPECT_EQ(cudaFree(p), cudaSuccess);
  EXPECT_EQ(DeviceBytes(), before);
  SetDeviceLimit(size_t{2} << 30);
}

TEST_F(RuntimeApi, CopiesOnTheDeviceCarryWhatIsUnset) {
  DeviceArray<int> x(2);
  DeviceArray<int> y(1);
  x.Upload({5});
  int* next = x.data() + 1;
  cudaMemcpyAsync(next, x.data(), sizeof(int), cudaMemcpyDeviceToDevice,
                  stream_);
  launch(stream_, 1, 1, 0, Load, y.data(), next);
  EXPECT_EQ(y.Download()[0], 5);
  DeviceArray<int> fresh(1);
  cudaMemcpyAsync(next, fresh.data(), sizeof(int), cudaMemcpyDeviceToDevice,
                  stream_);
  launch(stream_, 1, 1, 0, Load, y.data(), next);
  const std::string error = gpu::TakeError();
  if (std::string_view(KF_EMULATED_MODE) == "check") {
    EXPECT_THAT(error, HasSubstr("unset read"));
  } else {
    EXPECT_EQ(error, "");
  }
}

}  // namespace
}  // namespace kf::emu
