// The fake libcublasLt.so, ready for one test on the emulator: two algorithms
// that keep a row's bits, number 1 for few rows and number 2 for many.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "runtime_api.h"
#include "tests/cuda/emulation/shadow.h"
#include "tests/cuda/fake_cublaslt.h"

namespace kf::testing {

inline std::string FakePath() { return KF_FAKE_CUBLASLT; }

// Its work is the stream's, and late as all work there.
inline void RunInStream(gpu::Stream stream,
                        std::function<void()> work,
                        void* to,
                        size_t bytes) {
  emu::Enqueue(stream, [work = std::move(work), to, bytes] {
    work();
    // Written by code that the checking build does not see.
    emu::ShadowCopy(to, nullptr, bytes);
    return std::string();
  });
}

// The library's control, as it is for a library just loaded.
inline FakeControl& ResetFake() {
  static FakeControl* const control = [] {
    void* const library = dlopen(KF_FAKE_CUBLASLT, RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(library, nullptr) << dlerror();
    return reinterpret_cast<FakeControlFn>(
        dlsym(library, "fake_cublaslt_control"))();
  }();
  const int live = control->live;
  *control = FakeControl{};
  control->live = live;
  control->few = {{.id = 1}};
  control->many = {{.id = 2}};
  control->run = RunInStream;
  return *control;
}

}  // namespace kf::testing
