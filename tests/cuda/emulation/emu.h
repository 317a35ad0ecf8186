// The CUDA language and the part of its run time that this project uses, on a
// CPU: each CUDA thread is a fiber. Included by kernels/cuda/gpu.h in emulated
// builds alone, and by the emulator's own tests. docs/emulation.md.
#pragma once

#include "tests/cuda/emulation/device_types.h"
#include "tests/cuda/emulation/intrinsics.h"
#include "tests/cuda/emulation/launch.h"
#include "tests/cuda/emulation/machine.h"
#include "tests/cuda/emulation/runtime_api.h"
#include "tests/cuda/emulation/tile_ops.h"
