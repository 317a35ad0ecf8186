// Source: ggml, ggml-common.h (layouts) and ggml-quants.c (dequantize_row_*).
#include "kernels/core/weight_groups.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/core/ggml_blocks.h"
#include "kernels/core/half.h"
#include "kernels/core/status.h"

namespace kf {
namespace {

using ggml::Byte;
using ggml::LoadHalf;

constexpr uint8_t kZero8 = 128;

float RoundToHalf(float x) { return HalfToFloat(FloatToHalf(x)); }

// As the file has it: weight i = scale * (quants[i] - zero) + minimum.
struct FileGroup {
  float scale;
  float minimum;
  int zero;
  uint8_t quants[kGroupWeights];
};

// 16 bytes hold 32 nibbles, the low ones first.
void UnpackNibbles(const std::byte* src, uint8_t* quants) {
  for (int i = 0; i < 16; ++i) {
    const uint32_t byte = Byte(src + i);
    quants[i] = static_cast<uint8_t>(byte & 0xFU);
    quants[i + 16] = static_cast<uint8_t>(byte >> 4);
  }
}

void AddFifthBits(const std::byte* src, uint8_t* quants) {
  const uint32_t high = ggml::LoadHighBits(src);
  for (int i = 0; i < kGroupWeights; ++i) {
    quants[i] = static_cast<uint8_t>(quants[i] | (((high >> i) & 1U) << 4));
  }
}

// Sub-block `index` of a block of Q4_K or Q5_K; `low` are the nibbles.
void ReadSubBlock(const std::byte* block,
                  const std::byte* low,
                  int64_t index,
                  FileGroup& group) {
  const ggml::ScaleMin packed =
      ggml::UnpackScaleMin(block + 4, static_cast<int>(index));
  group.scale = LoadHalf(block) * packed.scale;
  group.minimum = -LoadHalf(block + 2) * packed.minimum;
  group.zero = 0;
  const std::byte* pair = low + 32 * (index / 2);
  for (int i = 0; i < kGroupWeights; ++i) {
    const uint32_t byte = Byte(pair + i);
    group.quants[i] =
        static_cast<uint8_t>(index % 2 == 0 ? byte & 0xFU : byte >> 4);
  }
}

// Group `index` of a block of a type that has groups of 32 itself.
FileGroup ReadGroup(DType type, const std::byte* block, int64_t index) {
  FileGroup group = {};
  switch (type) {
    case DType::kQ4_0:
      group.scale = LoadHalf(block);
      group.zero = 8;
      UnpackNibbles(block + 2, group.quants);
      break;
    case DType::kQ4_1:
      group.scale = LoadHalf(block);
      group.minimum = LoadHalf(block + 2);
      UnpackNibbles(block + 4, group.quants);
      break;
    case DType::kQ5_0:
      group.scale = LoadHalf(block);
      group.zero = 16;
      UnpackNibbles(block + 6, group.quants);
      AddFifthBits(block + 2, group.quants);
      break;
    case DType::kQ5_1:
      group.scale = LoadHalf(block);
      group.minimum = LoadHalf(block + 2);
      UnpackNibbles(block + 8, group.quants);
      AddFifthBits(block + 4, group.quants);
      break;
    case DType::kQ8_0:
      group.scale = LoadHalf(block);
      group.zero = kZero8;
      for (int i = 0; i < kGroupWeights; ++i) {
        group.quants[i] = static_cast<uint8_t>(Byte(block + 2 + i) ^ kZero8);
      }
      break;
    case DType::kQ4_K:
      ReadSubBlock(block, block + 16, index, group);
      break;
    case DType::kQ5_K:
      ReadSubBlock(block, block + 48, index, group);
      for (int i = 0; i < kGroupWeights; ++i) {
        const uint32_t fifth = (Byte(block + 16 + i) >> index) & 1U;
        group.quants[i] = static_cast<uint8_t>(group.quants[i] | (fifth << 4));
      }
      break;
    default:
      KF_CHECK(false);
  }
  return group;
}

bool HasGroupsOf32(DType type) {
  switch (type) {
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ8_0:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return true;
    default:
      return false;
  }
}

WeightGroup Convert(const FileGroup& from, int bits) {
  WeightGroup to;
  to.scale = RoundToHalf(from.scale);
  to.minimum = RoundToHalf(from.minimum);
  if (bits == 4) {
    // At most 8 halfs: exact.
    to.minimum -= static_cast<float>(from.zero) * to.scale;
    std::memcpy(to.quants, from.quants, sizeof(to.quants));
    return to;
  }
  for (int i = 0; i < kGroupWeights; ++i) {
    to.quants[i] = static_cast<uint8_t>(from.quants[i] + (kZero8 - from.zero));
  }
  return to;
}

WeightGroup RoundTo8Bits(const float* weights, int64_t count) {
  float largest = 0.0F;
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    finite = finite && std::isfinite(weights[i]);
    largest = std::max(largest, std::fabs(weights[i]));
  }
  WeightGroup group;
  std::fill_n(group.quants, kGroupWeights, kZero8);
  group.scale = RoundToHalf(largest / 127.0F);
  if (!finite || !std::isfinite(group.scale)) {
    group.scale = std::numeric_limits<float>::quiet_NaN();
    return group;
  }
  if (group.scale == 0.0F) return group;
  for (int64_t i = 0; i < count; ++i) {
    const float quant =
        std::clamp(std::nearbyint(weights[i] / group.scale), -127.0F, 127.0F);
    group.quants[i] = static_cast<uint8_t>(static_cast<int>(quant) + kZero8);
  }
  return group;
}

}  // namespace

bool HasGroupsOf4Bits(DType type) {
  return type == DType::kQ4_0 || type == DType::kQ4_1 || type == DType::kQ4_K;
}

void ReadWeightGroups(DType type,
                      const std::byte* src,
                      int64_t count,
                      int bits,
                      WeightGroup* groups) {
  const BlockLayout layout = LayoutOf(type);
  KF_CHECK(bits == 8 || (bits == 4 && HasGroupsOf4Bits(type)));
  KF_CHECK(count % layout.elements == 0);
  if (HasGroupsOf32(type)) {
    const int64_t per_block = layout.elements / kGroupWeights;
    for (int64_t i = 0; i < count / kGroupWeights; ++i) {
      const std::byte* block = src + i / per_block * layout.bytes;
      groups[i] = Convert(ReadGroup(type, block, i % per_block), bits);
    }
    return;
  }
  // A multiple of every other type's block.
  constexpr int64_t kPiece = 256;
  float weights[kPiece];
  for (int64_t first = 0; first < count; first += kPiece) {
    const int64_t piece = std::min(kPiece, count - first);
    Dequantize(type, src + first / layout.elements * layout.bytes, piece,
               weights);
    for (int64_t i = 0; i < piece; i += kGroupWeights) {
      *groups++ = RoundTo8Bits(weights + i, std::min(kGroupWeights, piece - i));
    }
  }
}

}  // namespace kf
