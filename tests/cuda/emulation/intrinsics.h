// Built-in variables and functions of the CUDA device language, with CUDA's own
// names. There is no atomicAdd on floats: its order is not fixed, and this
// project's results are.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "tests/cuda/emulation/device_types.h"
#include "tests/cuda/emulation/machine.h"

// NOLINTBEGIN(bugprone-reserved-identifier): names of the CUDA language
using std::max;
using std::min;

#define threadIdx (kf::emu::self->tid)
#define blockIdx (kf::emu::block->bid)
#define blockDim (kf::emu::block->bdim)
#define gridDim (kf::emu::block->gdim)
inline constexpr int warpSize = 32;

namespace kf::emu {

template <typename T>
struct ShuffleOp : Op {
  T in, out;
  int source;
};

template <typename T>
T Shuffle(const char* what, uint32_t mask, T value, int source, Site site) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  ShuffleOp<T> op;
  op.what = what;
  op.mask = mask;
  op.site = site;
  op.in = value;
  op.source = source;
  op.fn = [](Op** lane, uint32_t m) KF_EMU_OWN {
    for (unsigned i = 0; i < 32; ++i) {
      if ((m >> i & 1U) == 0) continue;
      auto* a = static_cast<ShuffleOp<T>*>(lane[i]);
      if ((m >> a->source & 1U) == 0) {
        Fail(
            "divergent warp: %s %s:%d: lane %u reads lane %d, which is not in "
            "the mask %08x",
            a->what, a->site.file, a->site.line, i, a->source, m);
      }
      a->out = static_cast<ShuffleOp<T>*>(lane[a->source])->in;
    }
  };
  WarpOp(op);
  return op.out;
}

struct VoteOp : Op {
  uint32_t in, out;
};

// F: uint32_t(const uint32_t* in, uint32_t mask, unsigned lane).
template <typename F>
uint32_t Vote(const char* what,
              uint32_t mask,
              uint32_t value,
              F,
              Site site,
              bool orders_memory = false) {
  VoteOp op;
  op.what = what;
  op.mask = mask;
  op.site = site;
  op.in = value;
  op.orders_memory = orders_memory;
  op.fn = [](Op** lane, uint32_t m) KF_EMU_OWN {
    uint32_t in[32] = {};
    for (unsigned i = 0; i < 32; ++i) {
      if (m >> i & 1U) in[i] = static_cast<VoteOp*>(lane[i])->in;
    }
    for (unsigned i = 0; i < 32; ++i) {
      if (m >> i & 1U) static_cast<VoteOp*>(lane[i])->out = F{}(in, m, i);
    }
  };
  WarpOp(op);
  return op.out;
}

template <typename F>
struct Reduce {
  KF_EMU_OWN uint32_t operator()(const uint32_t* in,
                                 uint32_t m,
                                 unsigned) const {
    uint32_t result = 0;
    bool first = true;
    for (unsigned i = 0; i < 32; ++i) {
      if ((m >> i & 1U) == 0) continue;
      result = first ? in[i] : F{}(result, in[i]);
      first = false;
    }
    return result;
  }
};
struct Nothing {
  KF_EMU_OWN uint32_t operator()(const uint32_t*, uint32_t, unsigned) const {
    return 0;
  }
};
struct Ballot {
  KF_EMU_OWN uint32_t operator()(const uint32_t* in,
                                 uint32_t m,
                                 unsigned) const {
    uint32_t result = 0;
    for (unsigned i = 0; i < 32; ++i) {
      if ((m >> i & 1U) && in[i] != 0) result |= 1U << i;
    }
    return result;
  }
};
struct MatchAny {
  KF_EMU_OWN uint32_t operator()(const uint32_t* in,
                                 uint32_t m,
                                 unsigned lane) const {
    uint32_t result = 0;
    for (unsigned i = 0; i < 32; ++i) {
      if ((m >> i & 1U) && in[i] == in[lane]) result |= 1U << i;
    }
    return result;
  }
};
struct Add {
  template <typename T>
  KF_EMU_OWN T operator()(T a, T b) const {
    return a + b;
  }
};
template <typename As>
struct Min {
  template <typename T>
  KF_EMU_OWN T operator()(T a, T b) const {
    return static_cast<As>(b) < static_cast<As>(a) ? b : a;
  }
};
template <typename As>
struct Max {
  template <typename T>
  KF_EMU_OWN T operator()(T a, T b) const {
    return static_cast<As>(a) < static_cast<As>(b) ? b : a;
  }
};
struct And {
  template <typename T>
  KF_EMU_OWN T operator()(T a, T b) const {
    return a & b;
  }
};
struct Or {
  template <typename T>
  KF_EMU_OWN T operator()(T a, T b) const {
    return a | b;
  }
};
struct Second {
  template <typename T>
  KF_EMU_OWN T operator()(T, T b) const {
    return b;
  }
};

inline int Lane() { return static_cast<int>(self->lane); }

// An atomic operation on an integer of 4 or 8 bytes.
template <typename F, typename T>
KF_EMU_INLINE T Atomic(T* p, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T>);
  using U = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  return static_cast<T>(AtomicRmw(
      reinterpret_cast<U*>(p), [](U a, U b) KF_EMU_OWN { return F{}(a, b); },
      static_cast<U>(value)));
}

}  // namespace kf::emu

// --- barriers ---
inline void __syncthreads(KF_EMU_HERE) { kf::emu::Barrier(0, here); }
inline int __syncthreads_count(int p, KF_EMU_HERE) {
  return kf::emu::Barrier(p != 0, here);
}
inline int __syncthreads_or(int p, KF_EMU_HERE) {
  return kf::emu::Barrier(p != 0, here) != 0;
}
inline int __syncthreads_and(int p, KF_EMU_HERE) {
  return kf::emu::Barrier(p == 0, here) == 0;
}
inline void __syncwarp(uint32_t mask = ~0U, KF_EMU_HERE) {
  kf::emu::Vote("__syncwarp", mask, 0, kf::emu::Nothing{}, here, true);
}
inline void __threadfence() {}
inline void __threadfence_block() {}

// --- votes and reductions of a warp ---
inline uint32_t __ballot_sync(uint32_t mask, int p, KF_EMU_HERE) {
  return kf::emu::Vote("__ballot_sync", mask, p != 0, kf::emu::Ballot{}, here);
}
inline int __any_sync(uint32_t mask, int p, KF_EMU_HERE) {
  return kf::emu::Vote("__any_sync", mask, p != 0, kf::emu::Ballot{}, here) !=
         0;
}
inline int __all_sync(uint32_t mask, int p, KF_EMU_HERE) {
  return kf::emu::Vote("__all_sync", mask, p != 0, kf::emu::Ballot{}, here) ==
         mask;
}
inline uint32_t __match_any_sync(uint32_t mask, uint32_t v, KF_EMU_HERE) {
  return kf::emu::Vote("__match_any_sync", mask, v, kf::emu::MatchAny{}, here);
}
#define KF_EMU_REDUCE(name, type, function)                         \
  inline type name(uint32_t mask, type v, KF_EMU_HERE) {            \
    return static_cast<type>(                                       \
        kf::emu::Vote(#name, mask, static_cast<uint32_t>(v),        \
                      kf::emu::Reduce<kf::emu::function>{}, here)); \
  }
KF_EMU_REDUCE(__reduce_add_sync, uint32_t, Add)
KF_EMU_REDUCE(__reduce_add_sync, int, Add)
KF_EMU_REDUCE(__reduce_min_sync, uint32_t, Min<uint32_t>)
KF_EMU_REDUCE(__reduce_min_sync, int, Min<int>)
KF_EMU_REDUCE(__reduce_max_sync, uint32_t, Max<uint32_t>)
KF_EMU_REDUCE(__reduce_max_sync, int, Max<int>)
KF_EMU_REDUCE(__reduce_and_sync, uint32_t, And)
KF_EMU_REDUCE(__reduce_or_sync, uint32_t, Or)
#undef KF_EMU_REDUCE

// --- shuffles: int, unsigned, float, and their 8-byte kin ---
template <typename T>
T __shfl_sync(uint32_t mask, T v, int source, int width = 32, KF_EMU_HERE) {
  const int lane = kf::emu::Lane();
  return kf::emu::Shuffle("__shfl_sync", mask, v,
                          (lane & -width) | (source & (width - 1)), here);
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T v, int bits, int width = 32, KF_EMU_HERE) {
  const int lane = kf::emu::Lane();
  const int source = lane ^ bits;
  return kf::emu::Shuffle("__shfl_xor_sync", mask, v,
                          source < (lane & -width) + width ? source : lane,
                          here);
}
template <typename T>
T __shfl_down_sync(
    uint32_t mask, T v, unsigned delta, int width = 32, KF_EMU_HERE) {
  const int lane = kf::emu::Lane();
  const int source = lane + static_cast<int>(delta);
  return kf::emu::Shuffle("__shfl_down_sync", mask, v,
                          source < (lane & -width) + width ? source : lane,
                          here);
}
template <typename T>
T __shfl_up_sync(
    uint32_t mask, T v, unsigned delta, int width = 32, KF_EMU_HERE) {
  const int lane = kf::emu::Lane();
  const int source = lane - static_cast<int>(delta);
  return kf::emu::Shuffle("__shfl_up_sync", mask, v,
                          source >= (lane & -width) ? source : lane, here);
}

// --- atomics; never in order to fix an order ---
template <typename T>
KF_EMU_INLINE T atomicAdd(T* p, std::type_identity_t<T> v) {
  return kf::emu::Atomic<kf::emu::Add>(p, v);
}
template <typename T>
KF_EMU_INLINE T atomicMin(T* p, std::type_identity_t<T> v) {
  return kf::emu::Atomic<kf::emu::Min<T>>(p, v);
}
template <typename T>
KF_EMU_INLINE T atomicMax(T* p, std::type_identity_t<T> v) {
  return kf::emu::Atomic<kf::emu::Max<T>>(p, v);
}
template <typename T>
KF_EMU_INLINE T atomicAnd(T* p, std::type_identity_t<T> v) {
  return kf::emu::Atomic<kf::emu::And>(p, v);
}
template <typename T>
KF_EMU_INLINE T atomicOr(T* p, std::type_identity_t<T> v) {
  return kf::emu::Atomic<kf::emu::Or>(p, v);
}
template <typename T>
KF_EMU_INLINE T atomicExch(T* p, std::type_identity_t<T> v) {
  return kf::emu::Atomic<kf::emu::Second>(p, v);
}
template <typename T>
KF_EMU_INLINE T atomicCAS(T* p,
                          std::type_identity_t<T> expected,
                          std::type_identity_t<T> v) {
  using U = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  return static_cast<T>(kf::emu::AtomicCas(
      reinterpret_cast<U*>(p), static_cast<U>(expected), static_cast<U>(v)));
}

// --- integers ---
inline int __popc(uint32_t v) { return __builtin_popcount(v); }
inline int __popcll(uint64_t v) { return __builtin_popcountll(v); }
inline int __clz(int v) {
  return v == 0 ? 32 : __builtin_clz(static_cast<uint32_t>(v));
}
inline int __ffs(int v) { return __builtin_ffs(v); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(static_cast<uint64_t>(a) * b >> 32);
}
// Byte i: the one of a (0 to 3) or b (4 to 7) that half-byte i of s names.
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t s) {
  const uint64_t both = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const auto byte = static_cast<uint8_t>(both >> 8 * (s >> 4 * i & 7U));
    result |= uint32_t{byte} << 8 * i;
  }
  return result;
}
inline uint32_t __brev(uint32_t v) {
  uint32_t result = 0;
  for (unsigned i = 0; i < 32; ++i) result |= (v >> i & 1U) << (31 - i);
  return result;
}

// --- floats: the fast forms are exact here; `rn` forms are never fused ---
inline float __expf(float x) { return std::exp(x); }
inline float __exp2f(float x) { return std::exp2(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0F / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __saturatef(float x) { return std::clamp(x, 0.0F, 1.0F); }
inline float rsqrtf(float x) { return 1.0F / std::sqrt(x); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }

// --- memory hints ---
template <typename T>
KF_EMU_INLINE T __ldg(const T* p) {
  return *p;
}
template <typename T>
KF_EMU_INLINE T __ldcs(const T* p) {
  return *p;
}
template <typename T>
KF_EMU_INLINE void __stcs(T* p, T v) {
  *p = v;
}
// NOLINTEND(bugprone-reserved-identifier)
