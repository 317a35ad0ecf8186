// The warp-wide tile instructions: ldmatrix and mma.sync, m16n8k16, bf16.
// Fragment layouts are those of the PTX ISA (sections on ldmatrix and on the
// fragments of mma.m16n8k16); tests/cuda/fragments_test.cc states them again,
// element by element, and is the first thing to run on a real GPU.
#pragma once

#include <cstdint>
#include <cstring>

#include "tests/cuda/emulation/device_types.h"
#include "tests/cuda/emulation/machine.h"

namespace kf::emu {

template <bool kTrans, int kCount>
struct LdmatrixOp : Op {
  uint16_t row[8];
  uint32_t out[kCount];
  const void* address;
};

// Lane i gives the address of row i % 8 of matrix i / 8 (i < 8 kCount; the
// other lanes' addresses are not read). r[j] is this lane's part of matrix j.
template <bool kTrans, int kCount>
KF_EMU_INLINE void Ldmatrix(uint32_t (&r)[kCount], const void* row, Site site) {
  using This = LdmatrixOp<kTrans, kCount>;
  This op;
  op.what = "ldmatrix";
  op.mask = ~0U;
  op.site = site;
  op.address = row;
  if (self->lane < 8 * kCount) {
    // The lane's own read, so that a fault is charged to it.
    const uint4 v = *static_cast<const uint4*>(row);
    std::memcpy(op.row, &v, 16);
  }
  op.fn = [](Op** lane, uint32_t) KF_EMU_OWN {
    auto at = [&](int i) KF_EMU_OWN { return static_cast<This*>(lane[i]); };
    for (int j = 0; j < kCount; ++j) {
      uint32_t banks = 0;
      for (int i = 0; i < 8; ++i) {
        const auto a = reinterpret_cast<uintptr_t>(at(8 * j + i)->address);
        banks |= 1U << (a / 16 % 8);
      }
      counters().ldmatrix += 1;
      counters().ldmatrix_conflicts += 8 - __builtin_popcount(banks);
      for (int i = 0; i < 32; ++i) {
        const int g = i / 4;
        const int t = 2 * (i % 4);
        const uint32_t low =
            kTrans ? at(8 * j + t)->row[g] : at(8 * j + g)->row[t];
        const uint32_t high =
            kTrans ? at(8 * j + t + 1)->row[g] : at(8 * j + g)->row[t + 1];
        at(i)->out[j] = low | high << 16;
      }
    }
  };
  WarpOp(op);
  std::memcpy(r, op.out, sizeof op.out);
}

struct MmaOp : Op {
  uint32_t a[4], b[2];
  float c[4];
};

// C += A B, A [16, 16], B [16, 8], summed in f32 in index order; the bits of a
// tensor core differ in the last places.
inline void Mma16816(float (&c)[4],
                     const uint32_t (&a)[4],
                     uint32_t b0,
                     uint32_t b1,
                     Site site) {
  MmaOp op;
  op.what = "mma";
  op.mask = ~0U;
  op.site = site;
  std::memcpy(op.a, a, sizeof op.a);
  op.b[0] = b0;
  op.b[1] = b1;
  std::memcpy(op.c, c, sizeof op.c);
  op.fn = [](Op** lane, uint32_t) KF_EMU_OWN {
    auto at = [&](int i) KF_EMU_OWN { return static_cast<MmaOp*>(lane[i]); };
    auto low = [](uint32_t u) KF_EMU_OWN { return __uint_as_float(u << 16); };
    auto high = [](uint32_t u)
                    KF_EMU_OWN { return __uint_as_float(u & 0xFFFF0000U); };
    float ta[16][16];
    float tb[16][8];
    for (int i = 0; i < 32; ++i) {
      const int g = i / 4;
      const int t = 2 * (i % 4);
      for (int r = 0; r < 4; ++r) {
        ta[g + 8 * (r & 1)][t + 8 * (r >> 1)] = low(at(i)->a[r]);
        ta[g + 8 * (r & 1)][t + 8 * (r >> 1) + 1] = high(at(i)->a[r]);
      }
      for (int r = 0; r < 2; ++r) {
        tb[t + 8 * r][g] = low(at(i)->b[r]);
        tb[t + 8 * r + 1][g] = high(at(i)->b[r]);
      }
    }
    float tc[16][8] = {};
    for (int i = 0; i < 16; ++i) {
      for (int k = 0; k < 16; ++k) {
        for (int j = 0; j < 8; ++j) tc[i][j] += ta[i][k] * tb[k][j];
      }
    }
    for (int i = 0; i < 32; ++i) {
      for (int r = 0; r < 4; ++r) {
        at(i)->c[r] += tc[i / 4 + 8 * (r >> 1)][2 * (i % 4) + (r & 1)];
      }
    }
  };
  WarpOp(op);
  std::memcpy(c, op.c, sizeof op.c);
}

}  // namespace kf::emu
