#include "tests/cuda/emulation/shadow.h"

#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#include "tests/cuda/emulation/block.h"

extern "C" {
// Set by the linker: the program's own image.
extern char __executable_start;  // NOLINT(bugprone-reserved-identifier)
extern char end;
}

namespace kf::emu {
namespace {

// The last write and the last read of one byte.
struct Cell {
  unsigned write_block, read_block;  // serial
  uint16_t write_barrier, write_thread, write_epoch;
  uint16_t read_barrier, read_thread, read_epoch;
  uint8_t set, write_atomic, read_atomic;
};

// In read_thread: several threads have read; of one warp, or of several.
constexpr uint16_t kManyWarps = 0xFFFF;
constexpr uint16_t kManyLanes = 0x8000;
constexpr uint16_t kManyBlocks = 0xFFFF;  // in read_barrier

constexpr size_t kDeviceBytes = size_t{16} << 30;  // of addresses, not memory
constexpr size_t kPageBytes = 4096;

struct Region {
  char* base;
  size_t bytes;
  Cell* cells;

  bool Holds(const char* p) const { return p >= base && p < base + bytes; }
  Cell* At(const char* p) const { return cells + (p - base); }
};

struct Range {
  const char* base;
  size_t bytes;
};

char* Reserve(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  return static_cast<char*>(p);
}

Region MakeRegion(char* base, size_t bytes) {
  return {base, bytes, reinterpret_cast<Cell*>(Reserve(bytes * sizeof(Cell)))};
}

const Region& DeviceRegion() {
  static const Region region = MakeRegion(Reserve(kDeviceBytes), kDeviceBytes);
  return region;
}
const Region& SharedRegion() {
  static const Region region = MakeRegion(ThisBlock().shared, kSharedBytes);
  return region;
}

// Live allocations in order of address, and the end of the last one ever.
struct Allocations {
  std::vector<Range> live;
  size_t top = 256;

  // The one that holds p, or null.
  const Range* Find(const char* p) {
    if (last_ < live.size() && Inside(live[last_], p)) return &live[last_];
    auto next = std::upper_bound(
        live.begin(), live.end(), p,
        [](const char* at, const Range& r) { return at < r.base; });
    if (next == live.begin() || !Inside(*std::prev(next), p)) return nullptr;
    last_ = static_cast<size_t>(std::prev(next) - live.begin());
    return &live[last_];
  }
  static bool Inside(const Range& r, const char* p) {
    return p >= r.base && p < r.base + r.bytes;
  }

 private:
  size_t last_ = 0;
};

Allocations& DeviceAllocations() {
  static auto& instance = *new Allocations;
  return instance;
}

const char* Verb(Access access) {
  switch (access) {
    case Access::kRead:
    case Access::kCopy:
      return "read";
    case Access::kWrite:
      return "write";
    case Access::kAtomic:
      return "atomic";
  }
  return "";
}

bool InBytes(const char* p, const void* base, size_t bytes) {
  const char* begin = static_cast<const char*>(base);
  return p >= begin && p < begin + bytes;
}

// What is neither shared nor device memory: the thread's own stack, constants,
// the arguments, and the emulator's view of the thread are its to touch.
void CheckElsewhere(const char* p, size_t bytes, Access access, void* pc) {
  const Block& b = ThisBlock();
  const Fiber& f = ThisFiber();
  if (InBytes(p, b.stacks + f.linear * kStackBytes, kStackBytes)) return;
  if (InBytes(p, b.stacks, kStackBytes * kMaxThreads)) {
    Fail("host pointer: %s of another thread's local memory at %s",
         Verb(access), DescribePlace(pc));
  }
  if (InBytes(p, b.arguments, b.argument_bytes) ||
      InBytes(p, &self, sizeof self) || InBytes(p, &block, sizeof block) ||
      InBytes(p, block, sizeof *block) ||
      InBytes(p, b.fibers.data(), b.fibers.size() * sizeof(Fiber))) {
    return;
  }
  const bool reads = access == Access::kRead || access == Access::kCopy;
  if (reads && p >= &__executable_start && p < &end) return;
  Fail("host pointer: %s of %zu bytes of host memory at %s", Verb(access),
       bytes, DescribePlace(pc));
}

// Where an access of this thread stands, as the cells record it.
struct Stamp {
  uint16_t barrier;
  uint16_t thread;
  uint16_t epoch;

  unsigned warp() const { return thread / kWarpThreads; }
};

// True if the recorded access happens before this one.
bool Before(const Block& b,
            const Stamp& now,
            unsigned block_serial,
            const Stamp& then) {
  if (block_serial < b.launch_first) return true;
  if (block_serial != b.serial) return false;
  if (then.thread == now.thread || then.barrier < now.barrier) return true;
  if (then.thread == kManyWarps) return false;
  const unsigned warp = (then.thread & kManyLanes) != 0
                            ? then.thread & ~unsigned{kManyLanes}
                            : then.warp();
  return warp == now.warp() && then.epoch < now.epoch;
}

void RecordRead(Cell& c, const Block& b, const Stamp& now, bool atomic) {
  if (c.read_block >= b.launch_first && c.read_block != b.serial) {
    c.read_block = b.serial;
    c.read_thread = kManyWarps;
    c.read_barrier = kManyBlocks;
    c.read_atomic = atomic && c.read_atomic;
    return;
  }
  const bool same = c.read_block == b.serial && c.read_barrier == now.barrier;
  c.read_atomic = atomic && (c.read_atomic || !same);
  if (c.read_block == b.serial && c.read_barrier == kManyBlocks) return;
  if (!same || c.read_thread == now.thread) {
    c.read_thread = now.thread;
  } else {
    const unsigned warp = (c.read_thread & kManyLanes) != 0
                              ? c.read_thread & ~unsigned{kManyLanes}
                              : c.read_thread / kWarpThreads;
    c.read_thread = c.read_thread == kManyWarps || warp != now.warp()
                        ? kManyWarps
                        : static_cast<uint16_t>(kManyLanes | now.warp());
  }
  c.read_block = b.serial;
  c.read_barrier = now.barrier;
  c.read_epoch = now.epoch;
}

void CheckCell(Cell& c,
               const char* space,
               size_t bytes,
               Access access,
               const Stamp& now,
               void* pc) {
  const Block& b = ThisBlock();
  const bool atomic = access == Access::kAtomic;
  const bool writes = access == Access::kWrite || atomic;
  if ((access == Access::kRead || atomic) && c.set == 0) {
    Fail(
        "unset read: %zu bytes of %s memory that nobody has set yet, or that a "
        "copy "
        "in flight will set, at %s",
        bytes, space, DescribePlace(pc));
  }
  const Stamp write{c.write_barrier, c.write_thread, c.write_epoch};
  if (!Before(b, now, c.write_block, write) && !(atomic && c.write_atomic)) {
    if (c.write_block == b.serial) {
      Fail("race: %s %s at %s, written by thread %u without a barrier between",
           space, Verb(access), DescribePlace(pc), unsigned{c.write_thread});
    }
    Fail("race: %s %s at %s, written by another block of this launch", space,
         Verb(access), DescribePlace(pc));
  }
  const Stamp read{c.read_barrier, c.read_thread, c.read_epoch};
  if (writes && !Before(b, now, c.read_block, read) &&
      !(atomic && c.read_atomic)) {
    Fail("race: %s %s at %s, read by another %s without a barrier between",
         space, Verb(access), DescribePlace(pc),
         c.read_block == b.serial && c.read_barrier != kManyBlocks
             ? "thread"
             : "block of this launch");
  }
  if (access != Access::kWrite) RecordRead(c, b, now, atomic);
  if (writes) {
    c.write_block = b.serial;
    c.write_barrier = now.barrier;
    c.write_thread = now.thread;
    c.write_epoch = now.epoch;
    c.write_atomic = atomic;
    c.set = 1;
  }
}

bool InSharedArray(const char* p, size_t bytes) {
  for (const SharedArray& array : ThisBlock().arrays) {
    if (p >= array.address && p + bytes <= array.address + array.bytes) {
      return true;
    }
  }
  return false;
}

}  // namespace

void ShadowAccess(const void* p, size_t bytes, Access access, void* pc) {
  const char* at = static_cast<const char*>(p);
  const bool shared = SharedRegion().Holds(at);
  const Region& region = shared ? SharedRegion() : DeviceRegion();
  if (!region.Holds(at)) {
    CheckElsewhere(at, bytes, access, pc);
    return;
  }
  const char* space = shared ? "shared" : "global";
  bool inside = false;
  if (shared) {
    inside = InSharedArray(at, bytes);
  } else {
    const Range* range = DeviceAllocations().Find(at);
    inside = range != nullptr && at + bytes <= range->base + range->bytes;
  }
  if (!inside) {
    Fail("out of bounds: %s %s of %zu bytes at %p at %s", space, Verb(access),
         bytes, p, DescribePlace(pc));
  }
  const Stamp now{static_cast<uint16_t>(ThisFiber().barriers),
                  static_cast<uint16_t>(ThisFiber().linear),
                  static_cast<uint16_t>(ThisWarp().epoch)};
  Cell* cell = region.At(at);
  for (size_t i = 0; i < bytes; ++i) {
    CheckCell(cell[i], space, bytes, access, now, pc);
  }
}

void ShadowMove(void* to, const void* from, size_t bytes) {
  const auto cells = [](const void* p) -> Cell* {
    const char* at = static_cast<const char*>(p);
    if (SharedRegion().Holds(at)) return SharedRegion().At(at);
    return DeviceRegion().Holds(at) ? DeviceRegion().At(at) : nullptr;
  };
  Cell* target = cells(to);
  const Cell* source = cells(from);
  // What is neither (a thread's own stack, arguments) has no cells.
  if (target == nullptr || source == nullptr) return;
  for (size_t i = 0; i < bytes; ++i) target[i].set = source[i].set;
}

void ShadowUnset(const void* p, size_t bytes) {
  const char* at = static_cast<const char*>(p);
  if (!SharedRegion().Holds(at)) return;
  for (size_t i = 0; i < bytes; ++i) SharedRegion().At(at)[i].set = 0;
}

void ShadowForgetShared() {
  // Pages of zeros again: 256 KiB of shared memory have 6 MiB of cells.
  const Region& region = SharedRegion();
  size_t used = std::min(region.bytes, ThisBlock().shared_top);
  if (used == 0) return;
  std::memset(static_cast<void*>(region.cells), 0, used * sizeof(Cell));
}

void ShadowCopy(void* to, const void* from, size_t bytes) {
  if (to == nullptr) return;
  Cell* target = DeviceRegion().At(static_cast<const char*>(to));
  const Cell* source = from == nullptr
                           ? nullptr
                           : DeviceRegion().At(static_cast<const char*>(from));
  for (size_t i = 0; i < bytes; ++i) {
    const uint8_t set = source == nullptr ? uint8_t{1} : source[i].set;
    target[i] = Cell{};
    target[i].set = set;
  }
}

void* ShadowAllocate(size_t bytes) {
  Allocations& all = DeviceAllocations();
  if (all.top + bytes + kPageBytes > kDeviceBytes) throw std::bad_alloc();
  char* p = DeviceRegion().base + all.top;
  all.live.push_back({p, bytes});
  std::memset(p, 0xff, bytes);
  // At least 256 bytes between two, that belong to nobody.
  all.top = (all.top + bytes + 511) / 256 * 256;
  return p;
}

void ShadowFree(void* p, size_t bytes) {
  Allocations& all = DeviceAllocations();
  all.live.erase(std::find_if(all.live.begin(), all.live.end(),
                              [p](const Range& r) { return r.base == p; }));
  // Addresses are not used again, but the pages under them are given back.
  auto drop = [](void* base, size_t size) {
    const auto begin = (reinterpret_cast<uintptr_t>(base) + kPageBytes - 1) /
                       kPageBytes * kPageBytes;
    const auto stop =
        (reinterpret_cast<uintptr_t>(base) + size) / kPageBytes * kPageBytes;
    if (begin < stop) {
      madvise(reinterpret_cast<void*>(begin), stop - begin, MADV_DONTNEED);
    }
  };
  drop(p, bytes);
  drop(DeviceRegion().At(static_cast<char*>(p)), bytes * sizeof(Cell));
}

const char* DescribePlace(void* pc) {
  static char text[600];
  Dl_info info;
  if (dladdr(pc, &info) == 0) return "an unknown place";
  // Position-independent programs are read with addresses relative to them.
  const auto* header = static_cast<const Elf64_Ehdr*>(info.dli_fbase);
  const char* base = header->e_type == ET_DYN
                         ? static_cast<const char*>(info.dli_fbase)
                         : nullptr;
  const auto offset = static_cast<const char*>(pc) - 1 - base;
  char command[512];
  std::snprintf(command, sizeof command, "addr2line -i -s -e '%s' 0x%zx",
                info.dli_fname, static_cast<size_t>(offset));
  text[0] = '\0';
  std::FILE* lines = popen(command, "r");
  if (lines == nullptr) return "an unknown place (no addr2line)";
  char line[256];
  while (std::fgets(line, sizeof line, lines) != nullptr) {
    line[std::strcspn(line, " \n")] = '\0';
    // Below this the chain is the launch's.
    if (std::strncmp(line, "tuple:", 6) == 0 ||
        std::strncmp(line, "invoke.h:", 9) == 0) {
      break;
    }
    const size_t used = std::strlen(text);
    std::snprintf(text + used, sizeof text - used, "%s%s",
                  used == 0 ? "" : " < ", line);
  }
  pclose(lines);
  return text[0] == '\0' ? "an unknown place (no addr2line)" : text;
}

}  // namespace kf::emu
