// The CUDA run time for host code: the toolkit's, or the emulator's in emulated
// builds, whose include path alone has it (docs/emulation.md).
#pragma once

#if defined(KF_CUDA_EMULATION)
#include "runtime_api.h"
#else
#include <cuda_runtime_api.h>
#endif

#include <string>

#include "kernels/cuda/stream.h"

namespace kf::gpu {

// Waits for the device and takes the first error since the last call: "" or
// its name and text.
std::string TakeError();

}  // namespace kf::gpu
