// Runs the blocks of a grid, one after another, and the threads of a block as
// fibers, each until it has to wait.
#include <sys/mman.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

#include "tests/cuda/emulation/block.h"
#include "tests/cuda/emulation/launch.h"
#include "tests/cuda/emulation/sanitizers.h"
#include "tests/cuda/emulation/shadow.h"

namespace kf::emu {

__thread Thread* self = nullptr;
__thread BlockInfo* block = nullptr;

namespace {

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
std::mutex launch_mutex;

Options OptionsFromEnvironment() {
  Options result;
  const char* order = std::getenv("KF_EMULATION_ORDER");
  if (order == nullptr || std::string(order) == "forward") return result;
  if (std::string(order) == "backward") {
    result.order = Order::kBackward;
    return result;
  }
  result.order = Order::kRandom;
  result.seed = static_cast<uint32_t>(std::strtoul(order, nullptr, 10));
  return result;
}

void SwitchToFiber(Fiber& fiber) {
  Block& b = ThisBlock();
  self = &fiber;
  ++counters().switches;
  BeforeSwitch(&b.host_fake_stack, b.stacks + fiber.linear * kStackBytes,
               kStackBytes);
  FiberContext::Switch(b.host, fiber.context);
  AfterSwitch(b.host_fake_stack, nullptr, nullptr);
  self = nullptr;
}

void FiberMain() {
  Block& b = ThisBlock();
  AfterSwitch(nullptr, &b.host_stack, &b.host_stack_bytes);
  b.call(b.arguments);
  Fiber& f = ThisFiber();
  if (!f.copies.empty()) {
    const Site site = f.copies.front().site;
    Fail(
        "unfinished copy: the thread exits with %zu cp.async in flight, the "
        "first from %s:%d",
        f.copies.size(), site.file, site.line);
  }
  f.wait = Wait::kDone;
  ThisWarp().live &= ~(1U << f.lane);
  ThisWarp().ready &= ~(1U << f.lane);
  --b.live;
  if (b.at_barrier != 0) {
    Fail(
        "divergent barrier: this thread exits, %u threads wait at "
        "__syncthreads %s:%d",
        b.at_barrier, b.barrier_site.file, b.barrier_site.line);
  }
  SwitchToHost(f, true);
  std::abort();  // nobody switches to a fiber that is done
}

unsigned PickLane(uint32_t set) {
  switch (options().order) {
    case Order::kForward:
      return static_cast<unsigned>(__builtin_ctz(set));
    case Order::kBackward:
      return 31U - static_cast<unsigned>(__builtin_clz(set));
    case Order::kRandom:
      break;
  }
  const auto count = static_cast<unsigned>(__builtin_popcount(set));
  for (unsigned n = static_cast<unsigned>(ThisBlock().random()) % count; n > 0;
       --n) {
    set &= set - 1;
  }
  return static_cast<unsigned>(__builtin_ctz(set));
}

void PrepareFibers(Block& b) {
  if (b.fibers.size() < b.threads) b.fibers.resize(b.threads);
  b.warps.assign((b.threads + kWarpThreads - 1) / kWarpThreads, Warp{});
  for (unsigned i = 0; i < b.threads; ++i) {
    Fiber& f = b.fibers[i];
    f.tid = {i % b.bdim.x, i / b.bdim.x % b.bdim.y, i / (b.bdim.x * b.bdim.y)};
    f.linear = i;
    f.lane = i % kWarpThreads;
    f.wait = Wait::kReady;
    f.site = {"start", 0};
    f.what = "";
    f.barriers = 0;
    f.copy_group = 0;
    f.copies.clear();
    f.fake_stack = nullptr;
    b.warps[i / kWarpThreads].live |= 1U << f.lane;
    b.warps[i / kWarpThreads].ready |= 1U << f.lane;
    char* stack = b.stacks + i * kStackBytes;
    // Frames that never returned, of a block that was ended, are forgotten.
    AllowAccess(stack + kGuardBytes, kStackBytes - kGuardBytes);
    // Tops staggered: or all hot frames would share a few cache sets.
    f.context.Start(stack, kStackBytes - size_t{i % 64} * 320, FiberMain);
  }
}

std::string Deadlock(const Block& b) {
  std::map<std::string, int> places;
  for (unsigned i = 0; i < b.threads; ++i) {
    const Fiber& f = b.fibers[i];
    std::string place;
    switch (f.wait) {
      case Wait::kDone:
        place = "exited";
        break;
      case Wait::kBarrier:
        place = "at __syncthreads";
        break;
      case Wait::kWarp:
      case Wait::kReady:
        place = std::string("at ") + f.what;
        break;
    }
    if (f.wait != Wait::kDone) {
      place +=
          std::string(" ") + f.site.file + ":" + std::to_string(f.site.line);
    }
    ++places[place];
  }
  std::string text = "deadlock: no thread can run;";
  for (const auto& [place, count] : places) {
    text += " " + std::to_string(count) + " " + place + ";";
  }
  return text;
}

// Runs the warps in order until nobody can move; true if somebody has.
bool RunReady(Block& b) {
  bool moved = false;
  const size_t count = b.warps.size();
  for (size_t k = 0; k < count && !b.stop; ++k) {
    const size_t i = options().order == Order::kBackward ? count - 1 - k : k;
    while (b.warps[i].ready != 0 && !b.stop) {
      moved = true;
      SwitchToFiber(b.fibers[i * kWarpThreads + PickLane(b.warps[i].ready)]);
    }
  }
  return moved;
}

void RunBlock(Block& b, size_t dynamic_bytes) {
  b.live = b.threads;
  b.at_barrier = 0;
  b.barrier_sum = 0;
  b.stop = false;
  b.in_op = false;
  b.error.clear();
  b.random.seed(options().seed * 7919 + b.serial);
  ++counters().blocks;
  ResetShared(dynamic_bytes);
  PrepareFibers(b);
  block = &b;
  while (b.live != 0 && !b.stop) {
    if (!RunReady(b)) {
      b.error = Deadlock(b);
      b.stop = true;
    }
  }
  block = nullptr;
}

std::string RunBlocks(Block& b, const LaunchShape& shape) {
  const unsigned grid = shape.grid.x * shape.grid.y * shape.grid.z;
  b.launch_first = b.serial + 1;
  for (unsigned i = 0; i < grid; ++i) {
    const unsigned k = options().order == Order::kBackward ? grid - 1 - i : i;
    b.bid = {k % shape.grid.x, k / shape.grid.x % shape.grid.y,
             k / (shape.grid.x * shape.grid.y)};
    ++b.serial;
    RunBlock(b, shape.shared_bytes);
    if (b.stop) {
      return "kernel launched at " + std::string(shape.site.file) + ":" +
             std::to_string(shape.site.line) + ", block (" +
             std::to_string(b.bid.x) + "," + std::to_string(b.bid.y) + "," +
             std::to_string(b.bid.z) + "), " + b.error;
    }
  }
  return {};
}

}  // namespace

Options& options() {
  static Options instance = OptionsFromEnvironment();
  return instance;
}

Counters& counters() {
  static Counters instance;
  return instance;
}

void ResetCounters() { counters() = Counters{}; }

Block& ThisBlock() {
  static auto& instance = *new Block;  // fibers may outlive static destruction
  return instance;
}

Block::Block() {
  void* memory =
      mmap(nullptr, kStackBytes * kMaxThreads, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  void* arena = mmap(nullptr, kSharedBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || arena == MAP_FAILED) throw std::bad_alloc();
  stacks = static_cast<char*>(memory);
  shared = static_cast<char*>(arena);
  for (size_t i = 0; i < kMaxThreads; ++i) {
    mprotect(stacks + i * kStackBytes, kGuardBytes, PROT_NONE);
  }
}

void SwitchToHost(Fiber& fiber, bool last) {
  Block& b = ThisBlock();
  BeforeSwitch(last ? nullptr : &fiber.fake_stack, b.host_stack,
               b.host_stack_bytes);
  FiberContext::Switch(fiber.context, b.host);
  AfterSwitch(fiber.fake_stack, nullptr, nullptr);
}

void Fail(const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (self == nullptr) throw std::runtime_error(text);
  Block& b = ThisBlock();
  // First: what follows may be compiled with the hooks, and would fail again.
  b.stop = true;
  b.error = "thread (" + std::to_string(self->tid.x) + "," +
            std::to_string(self->tid.y) + "," + std::to_string(self->tid.z) +
            "): " + text;
  for (;;) SwitchToHost(ThisFiber());
}

std::string RunGrid(const LaunchShape& shape,
                    void (*call)(void*),
                    void* arguments,
                    size_t argument_bytes) {
  const std::lock_guard lock(launch_mutex);
  Block& b = ThisBlock();
  const dim3 dim = shape.block;
  const uint64_t threads = uint64_t{dim.x} * dim.y * dim.z;
  const std::string place = "launch at " + std::string(shape.site.file) + ":" +
                            std::to_string(shape.site.line) + ": ";
  if (threads == 0 || threads > kMaxThreads) {
    return place + std::to_string(threads) + " threads a block, want 1..1024";
  }
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0 ||
      shape.grid.y > 65535 || shape.grid.z > 65535) {
    return place + "grid (" + std::to_string(shape.grid.x) + "," +
           std::to_string(shape.grid.y) + "," + std::to_string(shape.grid.z) +
           "), want 1..2^31-1, 1..65535, 1..65535";
  }
  if (shape.shared_bytes > options().shared_limit) {
    return place + std::to_string(shape.shared_bytes) +
           " bytes of shared memory, want <= " +
           std::to_string(options().shared_limit);
  }
  b.bdim = dim;
  b.gdim = shape.grid;
  b.threads = static_cast<unsigned>(threads);
  b.call = call;
  b.arguments = arguments;
  b.argument_bytes = argument_bytes;
  std::string fault = RunBlocks(b, shape);
  CloseShared();
  return fault;
}

}  // namespace kf::emu
