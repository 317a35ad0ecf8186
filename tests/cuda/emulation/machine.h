// The emulated machine as device code and tests see it: the running thread, the
// collectives that threads meet in, shared memory, faults, options, counters.
//
// One block runs at a time, on the host thread that launched it; its CUDA
// threads are fibers that switch only where they wait. Launches are serialised
// by a lock. `Fail` ends the block and the launch; the text becomes the error
// that cudaGetLastError reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/cuda/emulation/device_types.h"

// The emulator's own work inside headers that are compiled with a kernel: not
// charged to the kernel, and not slowed down by its instrumentation.
#define KF_EMU_OWN \
  __attribute__((no_sanitize("address", "undefined", "thread")))

// What a report is to see through, to the kernel's own line.
#define KF_EMU_INLINE inline __attribute__((always_inline))

namespace kf::emu {

// Where in a kernel something was called.
struct Site {
  const char* file;
  int line;
  bool operator==(const Site& o) const {
    return line == o.line && file == o.file;
  }
};
// The last parameter of whatever reports its caller.
#define KF_EMU_HERE kf::emu::Site here = {__builtin_FILE(), __builtin_LINE()}

struct Thread {
  uint3 tid;
  unsigned lane;    // in its warp
  unsigned linear;  // in its block
};
struct BlockInfo {
  uint3 bid;
  dim3 bdim;
  dim3 gdim;
};
// The CUDA thread that this OS thread runs now; null in host code.
extern __thread Thread* self;
extern __thread BlockInfo* block;

// A warp collective: each lane brings an Op on its own stack; the last lane of
// the mask to come runs fn once for all. fn, mask and site must be equal in all
// lanes, or the warp has diverged.
struct Op {
  void (*fn)(Op** lane, uint32_t mask);
  uint32_t mask;
  Site site;
  const char* what;
  bool orders_memory = false;  // __syncwarp alone
};
void WarpOp(Op& op);

// __syncthreads; returns the sum of `value` over the block.
int Barrier(int value, Site site);

// The launch's dynamic part, 1024-byte aligned. Reads as NaN until set.
void* SharedDynamic(size_t align);
// A static array, named by the address `key`; made when first asked for.
void* SharedStatic(const void* key, size_t bytes, size_t align);

// Lazy as can be: the bytes land in the CpAsyncWait that covers their group;
// until then the target reads as NaN and counts as unset.
void CpAsync(void* to, const void* from, int bytes, int valid, Site site);
void CpAsyncCommit();
void CpAsyncWait(int pending_groups);

// A kernel's copy of device or shared memory, whose targets become as set as
// their sources are. Addresses are multiples of `bytes`.
void CopyBytes(void* to, const void* from, size_t bytes);

// f(*p, value) into *p; the old value. Checked as an atomic access.
uint32_t AtomicRmw(uint32_t* p,
                   uint32_t (*f)(uint32_t old, uint32_t value),
                   uint32_t value);
uint64_t AtomicRmw(uint64_t* p,
                   uint64_t (*f)(uint64_t old, uint64_t value),
                   uint64_t value);
uint32_t AtomicCas(uint32_t* p, uint32_t expected, uint32_t value);
uint64_t AtomicCas(uint64_t* p, uint64_t expected, uint64_t value);

// Ends the block (in a kernel), or throws std::runtime_error (elsewhere).
[[noreturn]] void Fail(const char* format, ...)
    __attribute__((format(printf, 1, 2)));

// In what order threads that could run do so, and blocks: a race that one order
// hides shows in another.
enum class Order : uint8_t { kForward, kBackward, kRandom };

struct Options {
  Order order = Order::kForward;  // KF_EMULATION_ORDER: forward, backward, or
  uint32_t seed = 0;              // a number: random with this seed
  size_t shared_limit = size_t{227} * 1024;  // bytes a block, as sm_90
};
Options& options();

// Since the last ResetCounters.
struct Counters {
  int64_t blocks = 0;
  int64_t switches = 0;     // of fibers
  int64_t collectives = 0;  // lanes that entered one, or a barrier
  int64_t ldmatrix = 0;     // 8x8 matrices
  // Rows of one matrix that share their banks with another of it: extra passes
  // on a GPU; 0 for a right swizzle.
  int64_t ldmatrix_conflicts = 0;
};
Counters& counters();
void ResetCounters();

// True in the build whose hooks see each access (`check`).
bool Checking();

}  // namespace kf::emu
