// Dequantisation of GGML's block formats, one block at a time.
//
// Source: ggml, ggml-common.h (layouts) and ggml-quants.c (dequantize_row_*).
// Scales are halfs and quants have at most 8 bits, so each product that is
// added to is exact in f32: a fused multiply-add changes no bit.
#include <cstring>

#include "kernels/core/bf16.h"
#include "kernels/core/dtype.h"
#include "kernels/core/ggml_blocks.h"
#include "kernels/core/status.h"

namespace kf {
namespace {

using ggml::AsFloat;
using ggml::Byte;
using ggml::LoadHalf;
using ggml::LoadHighBits;
using ggml::ScaleMin;
using ggml::UnpackScaleMin;

// 32 elements: d, 16 bytes of nibbles; the low nibbles come first.
void BlockQ4_0(const std::byte* src, float* dst) {
  const float d = LoadHalf(src);
  for (int i = 0; i < 16; ++i) {
    const uint32_t q = Byte(src + 2 + i);
    dst[i] = (AsFloat(q & 0xFU) - 8.0F) * d;
    dst[i + 16] = (AsFloat(q >> 4) - 8.0F) * d;
  }
}

// d, m, nibbles.
void BlockQ4_1(const std::byte* src, float* dst) {
  const float d = LoadHalf(src);
  const float m = LoadHalf(src + 2);
  for (int i = 0; i < 16; ++i) {
    const uint32_t q = Byte(src + 4 + i);
    dst[i] = AsFloat(q & 0xFU) * d + m;
    dst[i + 16] = AsFloat(q >> 4) * d + m;
  }
}

// d, 32 high bits, nibbles.
void BlockQ5_0(const std::byte* src, float* dst) {
  const float d = LoadHalf(src);
  const uint32_t high = LoadHighBits(src + 2);
  for (int i = 0; i < 16; ++i) {
    const uint32_t q = Byte(src + 6 + i);
    const uint32_t low_high = ((high >> i) & 1U) << 4;
    const uint32_t top_high = ((high >> (i + 16)) & 1U) << 4;
    dst[i] = (AsFloat((q & 0xFU) | low_high) - 16.0F) * d;
    dst[i + 16] = (AsFloat((q >> 4) | top_high) - 16.0F) * d;
  }
}

// d, m, 32 high bits, nibbles.
void BlockQ5_1(const std::byte* src, float* dst) {
  const float d = LoadHalf(src);
  const float m = LoadHalf(src + 2);
  const uint32_t high = LoadHighBits(src + 4);
  for (int i = 0; i < 16; ++i) {
    const uint32_t q = Byte(src + 8 + i);
    const uint32_t low_high = ((high >> i) & 1U) << 4;
    const uint32_t top_high = ((high >> (i + 16)) & 1U) << 4;
    dst[i] = AsFloat((q & 0xFU) | low_high) * d + m;
    dst[i + 16] = AsFloat((q >> 4) | top_high) * d + m;
  }
}

float SignedByte(const std::byte* p) {
  return static_cast<float>(std::to_integer<int8_t>(*p));
}

// d, 32 signed bytes.
void BlockQ8_0(const std::byte* src, float* dst) {
  const float d = LoadHalf(src);
  for (int i = 0; i < 32; ++i) dst[i] = SignedByte(src + 2 + i) * d;
}

// 256 elements in 8 sub-blocks: d, dmin, 12 bytes of scales, nibbles.
void BlockQ4_K(const std::byte* src, float* dst) {
  const float d = LoadHalf(src);
  const float dmin = LoadHalf(src + 2);
  for (int pair = 0; pair < 4; ++pair) {
    const ScaleMin lo = UnpackScaleMin(src + 4, 2 * pair);
    const ScaleMin hi = UnpackScaleMin(src + 4, 2 * pair + 1);
    const std::byte* quants = src + 16 + 32 * pair;
    float* out = dst + 64 * pair;
    for (int i = 0; i < 32; ++i) {
      const uint32_t q = Byte(quants + i);
      out[i] = d * lo.scale * AsFloat(q & 0xFU) - dmin * lo.minimum;
      out[i + 32] = d * hi.scale * AsFloat(q >> 4) - dmin * hi.minimum;
    }
  }
}

// As Q4_K with 32 bytes of fifth bits before the nibbles: bit s of byte i
// belongs to element i of sub-block s.
void BlockQ5_K(const std::byte* src, float* dst) {
  const float d = LoadHalf(src);
  const float dmin = LoadHalf(src + 2);
  const std::byte* high = src + 16;
  for (int pair = 0; pair < 4; ++pair) {
    const ScaleMin lo = UnpackScaleMin(src + 4, 2 * pair);
    const ScaleMin hi = UnpackScaleMin(src + 4, 2 * pair + 1);
    const std::byte* quants = src + 48 + 32 * pair;
    float* out = dst + 64 * pair;
    for (int i = 0; i < 32; ++i) {
      const uint32_t q = Byte(quants + i);
      const uint32_t bits = Byte(high + i) >> (2 * pair);
      const uint32_t lo_q = (q & 0xFU) | ((bits & 1U) << 4);
      const uint32_t hi_q = (q >> 4) | (((bits >> 1) & 1U) << 4);
      out[i] = d * lo.scale * AsFloat(lo_q) - dmin * lo.minimum;
      out[i + 32] = d * hi.scale * AsFloat(hi_q) - dmin * hi.minimum;
    }
  }
}

// 256 elements in 16 sub-blocks: 128 bytes of low nibbles, 64 bytes of high
// bit pairs, 16 signed scales, d.
void BlockQ6_K(const std::byte* src, float* dst) {
  const float d = LoadHalf(src + 208);
  for (int half = 0; half < 2; ++half) {
    const std::byte* low = src + 64 * half;
    const std::byte* high = src + 128 + 32 * half;
    const std::byte* scales = src + 192 + 8 * half;
    float* out = dst + 128 * half;
    for (int i = 0; i < 32; ++i) {
      for (int quarter = 0; quarter < 4; ++quarter) {
        const uint32_t nibbles = Byte(low + i + 32 * (quarter & 1));
        const uint32_t nibble = quarter < 2 ? nibbles & 0xFU : nibbles >> 4;
        const uint32_t pair = (Byte(high + i) >> (2 * quarter)) & 3U;
        const float q = AsFloat(nibble | (pair << 4)) - 32.0F;
        const float scale = SignedByte(scales + i / 16 + 2 * quarter);
        out[i + 32 * quarter] = d * scale * q;
      }
    }
  }
}

// `Block` is a template parameter so that it is inlined into the loop.
template <void (*Block)(const std::byte*, float*)>
void EachBlock(BlockLayout layout,
               const std::byte* src,
               int64_t count,
               float* dst) {
  for (int64_t i = 0; i < count; i += layout.elements) {
    Block(src, dst + i);
    src += layout.bytes;
  }
}

void OneHalf(const std::byte* src, float* dst) { *dst = LoadHalf(src); }

void OneBf16(const std::byte* src, float* dst) {
  *dst = Bf16ToFloat(static_cast<Bf16>(Byte(src) | (Byte(src + 1) << 8)));
}

}  // namespace

void Dequantize(DType type, const std::byte* src, int64_t count, float* dst) {
  const BlockLayout layout = LayoutOf(type);
  KF_CHECK(layout.elements > 0);
  KF_CHECK(count >= 0 && count % layout.elements == 0);
  switch (type) {
    case DType::kF32:
      if (count > 0) std::memcpy(dst, src, static_cast<size_t>(count) * 4);
      return;
    case DType::kF16:
      return EachBlock<OneHalf>(layout, src, count, dst);
    case DType::kBF16:
      return EachBlock<OneBf16>(layout, src, count, dst);
    case DType::kQ4_0:
      return EachBlock<BlockQ4_0>(layout, src, count, dst);
    case DType::kQ4_1:
      return EachBlock<BlockQ4_1>(layout, src, count, dst);
    case DType::kQ5_0:
      return EachBlock<BlockQ5_0>(layout, src, count, dst);
    case DType::kQ5_1:
      return EachBlock<BlockQ5_1>(layout, src, count, dst);
    case DType::kQ8_0:
      return EachBlock<BlockQ8_0>(layout, src, count, dst);
    case DType::kQ4_K:
      return EachBlock<BlockQ4_K>(layout, src, count, dst);
    case DType::kQ5_K:
      return EachBlock<BlockQ5_K>(layout, src, count, dst);
    case DType::kQ6_K:
      return EachBlock<BlockQ6_K>(layout, src, count, dst);
    case DType::kI8:
      KF_CHECK(false);
  }
}

}  // namespace kf
