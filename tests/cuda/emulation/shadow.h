// The checker of the `check` build: per byte of shared and device memory, who
// wrote and read it last. In the other builds these functions do nothing.
//
// An access is ordered after an earlier one if that was in an earlier launch,
// by the same thread, before a barrier that both have passed, or in the same
// warp before a full __syncwarp. Shuffles order nothing; two blocks of one
// launch are never ordered; atomics do not race with atomics.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kf::emu {

// kCopy: a read of what is only stored elsewhere; it may be unset.
enum class Access : uint8_t { kRead, kCopy, kWrite, kAtomic };

#if defined(KF_EMU_CHECK)

// Ends the block if a CUDA thread must not do this here. `pc` is where it
// returns to.
void ShadowAccess(const void* p, size_t bytes, Access access, void* pc);
// What a kernel copies is as set as its source is.
void ShadowMove(void* to, const void* from, size_t bytes);
// Shared memory that a copy in flight will set.
void ShadowUnset(const void* p, size_t bytes);
// What the block before left.
void ShadowForgetShared();
// The host's copy between launches: what is written is as set as its source is
// (host memory counts as set), and ordered before what follows. Null: that side
// is host memory.
void ShadowCopy(void* to, const void* from, size_t bytes);

// file:line of `pc`, innermost inlined function first; until the next call.
const char* DescribePlace(void* pc);

#else

inline void ShadowAccess(const void*, size_t, Access, void*) {}
inline void ShadowMove(void*, const void*, size_t) {}
inline void ShadowUnset(const void*, size_t) {}
inline void ShadowForgetShared() {}
inline void ShadowCopy(void*, const void*, size_t) {}
inline const char* DescribePlace(void*) { return "(see the check build)"; }

#endif

// Device memory, 256-byte aligned and filled with NaN. In the check build from
// one range of addresses, none used twice: what was freed is known.
void* ShadowAllocate(size_t bytes);
void ShadowFree(void* p, size_t bytes);

}  // namespace kf::emu
