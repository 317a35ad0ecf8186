// What only Quest and rank positions need, compiled once per SIMD level: bounds
// of pages, and K rotated as it is read.
#include "kernels/cpu/attention_simd.h"
#include "kernels/cpu/attention_vec.h"
#include "kernels/cpu/byte_vec.h"
#include "kernels/cpu/rotate_vec.h"

namespace kf::cpu::KF_SIMD_NS {
namespace {

// sum + the most that x can give between low and high.
VF AddBound(VF sum, float x, VF low, VF high) {
  return sum + Max(Set(x) * low, Set(x) * high);
}

float BitsToOneFloat(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}

// The integer in byte `i` of each lane, as f32.
VF ByteOf(VU words, int i) {
  const VI high = reinterpret_cast<VI>(words << (24 - 8 * i));
  return __builtin_convertvector(high >> 24, VF);
}

// The sum of the bounds of kLanes pages of an 8-bit cache, for one query.
VF ByteBound(const HeadLayout& layout,
             const unsigned char* lows,
             const unsigned char* highs,
             const uint32_t* q) {
  const VF scale = Set(BitsToOneFloat(q[2 * layout.steps]));
  const VF low_scale = BitsToFloat(LoadBits(lows + layout.k_scale_offset));
  const VF high_scale = BitsToFloat(LoadBits(highs + layout.k_scale_offset));
  VF sum = Zero();
  for (int32_t step = 0; step < layout.steps; ++step) {
    const VU low = LoadBits(lows + step * 64);
    const VU high = LoadBits(highs + step * 64);
    int16_t x[4];  // channels 0, 2, 1, 3
    __builtin_memcpy(x, q + 2 * step, sizeof(x));
    for (int i = 0; i < 4; ++i) {
      const float channel = x[(i % 2) * 2 + i / 2];
      sum = AddBound(sum, channel, ByteOf(low, i) * low_scale,
                     ByteOf(high, i) * high_scale);
    }
  }
  return sum * scale;
}

VF FloatBound(const HeadLayout& layout,
              const unsigned char* lows,
              const unsigned char* highs,
              const uint32_t* q) {
  VF sum = Zero();
  for (int32_t step = 0; step < layout.steps; ++step) {
    const VU low = LoadBits(lows + step * 64);
    const VU high = LoadBits(highs + step * 64);
    if (layout.bf16) {
      sum = AddBound(sum, BitsToOneFloat(q[step] << 16), EvenBf16(low),
                     EvenBf16(high));
      sum = AddBound(sum, BitsToOneFloat(q[step] & 0xFFFF0000U), OddBf16(low),
                     OddBf16(high));
    } else {
      sum = AddBound(sum, BitsToOneFloat(q[step]), BitsToFloat(low),
                     BitsToFloat(high));
    }
  }
  return sum;
}

// K of an 8-bit block: slot by slot, rounded once more.
void RotateBytes(const KeyRotation& work) {
  const HeadLayout& layout = *work.layout;
  for (int32_t slot = 0; slot < kSlots; ++slot) {
    float row[kMaxByteRow];
    LoadByteKey(layout, work.from, slot, row);
    Rotate(layout, row, work.cos_sin[slot], row);
    StoreByteKey(layout, row, work.to, slot);
  }
}

}  // namespace

// Channels in order.
void BoundBlock(const PageBounds& work) {
  const HeadLayout& layout = *work.layout;
  const VF infinity = BitsToFloat(SetBits(0x7F800000U));
  for (int v = 0; v < kPageVecs; ++v) {
    const unsigned char* lows = work.block + v * kVecBytes;
    const unsigned char* highs = lows + layout.v_offset;
    VF best = -infinity;
    for (int32_t j = 0; j < work.group; ++j) {
      const uint32_t* q = work.q + int64_t{j} * layout.query_words;
      const VF sum = layout.bytes ? ByteBound(layout, lows, highs, q)
                                  : FloatBound(layout, lows, highs, q);
      // NOLINTNEXTLINE(misc-redundant-expression): a NaN is not itself
      best = Max(sum == sum ? sum : infinity, best);
    }
    Store(best, work.out + v * kLanes);
  }
}

// The arithmetic of Rotate in rotate_vec.h: no fused multiply-add.
void RotateKeys(const KeyRotation& work) {
  const HeadLayout& layout = *work.layout;
  if (layout.bytes) return RotateBytes(work);
  const int64_t line = kSlots * 4;
  for (int32_t i = 0; i < layout.rotary_dim; i += 2) {
    for (int v = 0; v < kPageVecs; ++v) {
      // No arrays: gcc 12 misaligns those of 64 bytes under ASan's
      // detect_stack_use_after_return.
      VF c = Zero();
      VF s = Zero();
      for (int lane = 0; lane < kLanes; ++lane) {
        c[lane] = work.cos_sin[v * kLanes + lane][i];
        s[lane] = work.cos_sin[v * kLanes + lane][i + 1];
      }
      const int64_t at = (layout.bf16 ? i / 2 : i) * line + v * kVecBytes;
      const VU word = LoadBits(work.from + at);
      const VF a = layout.bf16 ? EvenBf16(word) : BitsToFloat(word);
      const VF b = layout.bf16 ? OddBf16(word)
                               : BitsToFloat(LoadBits(work.from + at + line));
      const VF x = a * c - b * s;
      const VF y = a * s + b * c;
      if (layout.bf16) {
        StoreBits((RoundToBf16Bits(x) >> 16) | RoundToBf16Bits(y),
                  work.to + at);
      } else {
        Store(x, reinterpret_cast<float*>(work.to + at));
        Store(y, reinterpret_cast<float*>(work.to + at + line));
      }
    }
  }
  const int32_t rotated =
      layout.bf16 ? layout.rotary_dim / 2 : layout.rotary_dim;
  __builtin_memcpy(work.to + rotated * line, work.from + rotated * line,
                   static_cast<uint64_t>((layout.steps - rotated) * line));
}

}  // namespace kf::cpu::KF_SIMD_NS
