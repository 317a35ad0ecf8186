// The only header that device code includes: what a kernel may use beyond the
// plain CUDA language. PTX under nvcc, the emulator elsewhere; both paths of a
// wrapper stand side by side. Names are lower case, as those of the language's
// own intrinsics.
//
// Rules for kernels: no __shared__, asm or <<<>>> outside this header; of the
// warp intrinsics only *_sync forms with masks written out; no __activemask, no
// __constant__, no atomics on floats, no spinning on memory; 16-byte accesses
// through uint4; no host pointers in arguments (docs/emulation.md).
//
// Source of the fragment layouts: PTX ISA 9.0, "Warp-level matrix
// instructions".
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(KF_CUDA_EMULATION)
#include "emu.h"
#include "kernels/core/half.h"
#else
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#endif

#include "kernels/cuda/gpu_api.h"

namespace kf::gpu {

using bf16 = __nv_bfloat16;
inline constexpr uint32_t kFullWarp = 0xFFFFFFFFU;

// --- shared memory ---
// KF_GPU_SHARED(float[4][64], name): a static array, 16-byte aligned.
// dyn_smem<T>(): the launch's dynamic part, 1024-byte aligned.
#if defined(KF_CUDA_EMULATION)
#define KF_GPU_SHARED(T, name)                         \
  static char name##_key;                              \
  auto& name = *static_cast<std::type_identity_t<T>*>( \
      kf::emu::SharedStatic(&name##_key, sizeof(T), 16))
template <typename T>
T* dyn_smem() {
  return static_cast<T*>(kf::emu::SharedDynamic(1024));
}
#else
#define KF_GPU_SHARED(T, name) \
  __shared__ __align__(16) std::type_identity_t<T> name
template <typename T>
__device__ T* dyn_smem() {
  extern __shared__ __align__(1024) unsigned char kf_gpu_smem[];
  return reinterpret_cast<T*>(kf_gpu_smem);
}
#endif

// --- device memory ---
// Says that `p` points into device memory. The compiler knows that of a
// kernel's pointer arguments, and loses sight of it where pointers come out of
// structs; without it a load is a generic one.
template <typename T>
__device__ inline T* in_device_memory(T* p) {
#if !defined(KF_CUDA_EMULATION)
  __builtin_assume(__isGlobal(p));
#endif
  return p;
}

// Copies 16 bytes of device memory, whatever they hold: bytes that nobody has
// set stay unset, and are no fault before somebody uses them. Addresses are
// multiples of 16.
#if defined(KF_CUDA_EMULATION)
KF_EMU_INLINE void copy16(void* to, const void* from) {
  kf::emu::CopyBytes(to, from, 16);
}
#else
__device__ inline void copy16(void* to, const void* from) {
  *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
}
#endif

// --- numbers ---
__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(bf16 x) { return __bfloat162float(x); }
template <typename T>
__device__ inline T from_float(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    return __float2bfloat16(x);
  }
}
// Two bf16 in one register, as mma fragments hold them.
__device__ inline uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &v, sizeof bits);
  return bits;
}
__device__ inline float bf16_low(uint32_t bits) {
  return __uint_as_float(bits << 16);
}
__device__ inline float bf16_high(uint32_t bits) {
  return __uint_as_float(bits & 0xFFFF0000U);
}

// The two halfs (IEEE, 16 bits) in one register, exactly.
#if defined(KF_CUDA_EMULATION)
inline float half_low(uint32_t halfs) {
  return HalfToFloat(static_cast<uint16_t>(halfs));
}
#else
__device__ inline float half_low(uint32_t halfs) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<uint16_t>(halfs)));
  return x;
}
#endif
__device__ inline float half_high(uint32_t halfs) {
  return half_low(halfs >> 16);
}

// 2^x within 2 units of the last place, and 1 / x within 1, where neither x nor
// the result is subnormal (those may count as 0): one instruction each, which
// exp2f and a division are not.
#if defined(KF_CUDA_EMULATION)
inline float exp2_approx(float x) { return std::exp2(x); }
inline float reciprocal_approx(float x) { return 1.0F / x; }
#else
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

// --- cp.async: 16 bytes from global to shared memory, zeros where !valid ---
// `from` must be a device address even then. The bytes may be read after
// cp_async_wait<N> (all but the last N committed groups have landed) by this
// thread, and after a barrier too by the others.
#if defined(KF_CUDA_EMULATION)
KF_EMU_INLINE void cp_async16(void* to,
                              const void* from,
                              bool valid,
                              KF_EMU_HERE) {
  kf::emu::CpAsync(to, from, 16, valid ? 16 : 0, here);
}
inline void cp_async_commit() { kf::emu::CpAsyncCommit(); }
template <int kPending>
void cp_async_wait() {
  kf::emu::CpAsyncWait(kPending);
}
#else
__device__ inline uint32_t smem_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ inline void cp_async16(void* to, const void* from, bool valid) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_address(to)),
      "l"(from), "r"(valid ? 16 : 0)
      : "memory");
}
__device__ inline void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
#endif

// --- ldmatrix: 8x8 matrices of 2-byte elements from shared memory ---
// Lane i gives the address of row i % 8 of matrix i / 8, 16-byte aligned. r[j]:
// elements [g][2t], [g][2t + 1] of matrix j, g = lane / 4, t = lane % 4;
// transposed: [2t][g], [2t + 1][g].
#if defined(KF_CUDA_EMULATION)
KF_EMU_INLINE void ldmatrix_x4(uint32_t (&r)[4], const void* row, KF_EMU_HERE) {
  kf::emu::Ldmatrix<false>(r, row, here);
}
KF_EMU_INLINE void ldmatrix_x4_trans(uint32_t (&r)[4],
                                     const void* row,
                                     KF_EMU_HERE) {
  kf::emu::Ldmatrix<true>(r, row, here);
}
KF_EMU_INLINE void ldmatrix_x2(uint32_t (&r)[2], const void* row, KF_EMU_HERE) {
  kf::emu::Ldmatrix<false>(r, row, here);
}
KF_EMU_INLINE void ldmatrix_x2_trans(uint32_t (&r)[2],
                                     const void* row,
                                     KF_EMU_HERE) {
  kf::emu::Ldmatrix<true>(r, row, here);
}
#else
__device__ inline void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(smem_address(row))
               : "memory");
}
__device__ inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(smem_address(row))
      : "memory");
}
__device__ inline void ldmatrix_x2(uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(smem_address(row))
               : "memory");
}
__device__ inline void ldmatrix_x2_trans(uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(smem_address(row))
               : "memory");
}
#endif

// --- mma.sync: C += A B, A [16, 16], B [16, 8], bf16 with f32 sums ---
// g = lane / 4, t = lane % 4, two columns (A, C) or rows (B) a register:
// a[0] A[g][2t..], a[1] A[g+8][2t..], a[2] A[g][2t+8..], a[3] A[g+8][2t+8..];
// b0 B[2t..][g], b1 B[2t+8..][g];
// c[0], c[1] C[g][2t..], c[2], c[3] C[g+8][2t..].
#if defined(KF_CUDA_EMULATION)
inline void mma_16816(float (&c)[4],
                      const uint32_t (&a)[4],
                      uint32_t b0,
                      uint32_t b1,
                      KF_EMU_HERE) {
  kf::emu::Mma16816(c, a, b0, b1, here);
}
#else
__device__ inline void mma_16816(float (&c)[4],
                                 const uint32_t (&a)[4],
                                 uint32_t b0,
                                 uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
      "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

// --- launch ---
// Queues kernel(args...) on `stream`; errors are the run time's own
// (cudaGetLastError). More than 48 KiB of dynamic shared memory are allowed
// for. Grid sizes must be > 0.
#if defined(KF_CUDA_EMULATION)
template <typename... P, typename... A>
void launch(Stream stream,
            kf::emu::Grid grid,
            dim3 block,
            size_t dynamic_bytes,
            void (*kernel)(P...),
            A&&... args) {
  kf::emu::Launch(stream, grid, block, dynamic_bytes, kernel, args...);
}
#elif defined(__CUDACC__)
template <typename... P, typename... A>
void launch(Stream stream,
            dim3 grid,
            dim3 block,
            size_t dynamic_bytes,
            void (*kernel)(P...),
            A&&... args) {
  if (dynamic_bytes > size_t{48} * 1024) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(dynamic_bytes));
  }
  kernel<<<grid, block, dynamic_bytes, stream>>>(static_cast<P>(args)...);
}
#endif

}  // namespace kf::gpu
