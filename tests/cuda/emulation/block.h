// The state of the block that runs now. For the emulator's own sources.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/cuda/emulation/fiber.h"
#include "tests/cuda/emulation/machine.h"

namespace kf::emu {

inline constexpr size_t kStackBytes = size_t{128} * 1024;
inline constexpr size_t kGuardBytes = 4096;  // the lowest page of a stack
inline constexpr size_t kSharedBytes = size_t{256} * 1024;
inline constexpr size_t kRedzoneBytes = 64;  // between shared arrays
inline constexpr unsigned kMaxThreads = 1024;
inline constexpr unsigned kWarpThreads = 32;

enum class Wait : uint8_t { kReady, kWarp, kBarrier, kDone };

// One cp.async on its way.
struct PendingCopy {
  char* to;
  char bytes[16];
  int count;
  int group;
  Site site;
};

struct Fiber : Thread {
  FiberContext context;
  Wait wait = Wait::kReady;
  Site site{"", 0};  // where it waits
  const char* what = "";
  unsigned barriers = 0;  // passed
  int copy_group = 0;     // of the next cp.async
  std::vector<PendingCopy> copies;
  void* fake_stack = nullptr;  // AddressSanitizer's
};

struct Warp {
  uint32_t ready = 0;
  uint32_t live = 0;
  uint32_t arrived = 0;
  unsigned epoch = 0;  // full __syncwarps passed
  Op* op[kWarpThreads] = {};
};

struct SharedArray {
  const void* key;  // null: the dynamic part
  char* address;
  size_t bytes;
};

struct Block : BlockInfo {
  Block();

  char* stacks;  // kMaxThreads of kStackBytes
  char* shared;  // kSharedBytes
  size_t shared_top = 0;
  std::vector<SharedArray> arrays;
  size_t shared_used = 0;

  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  unsigned threads = 0;
  unsigned live = 0;

  unsigned at_barrier = 0;
  int barrier_sum = 0;
  int last_barrier_sum = 0;
  Site barrier_site{"", 0};

  FiberContext host;
  const void* host_stack = nullptr;  // AddressSanitizer's
  size_t host_stack_bytes = 0;
  void* host_fake_stack = nullptr;

  void (*call)(void*) = nullptr;
  void* arguments = nullptr;
  size_t argument_bytes = 0;

  std::string error;
  bool stop = false;   // after Fail
  bool in_op = false;  // a collective's own work: not the kernel's accesses

  unsigned serial = 0;        // of this block, over all launches
  unsigned launch_first = 0;  // serial of the launch's first block
  std::mt19937 random;
};

// There is one.
Block& ThisBlock();
inline Fiber& ThisFiber() { return *static_cast<Fiber*>(self); }
inline Warp& ThisWarp() {
  return ThisBlock().warps[self->linear / kWarpThreads];
}

// Lets others run until somebody makes this fiber ready again.
void SwitchToHost(Fiber& fiber, bool last = false);

// Fills shared memory with NaN and opens its dynamic part.
void ResetShared(size_t dynamic_bytes);
void CloseShared();

}  // namespace kf::emu
