// Attention over a prompt's row tile on AMX tiles: 32 rows x 32 keys, or
// channels, at a time. K's pages are tiles as they are (16 pairs of channels x
// 16 slots); V's slots are paired first. Softmax weights are the sum of two
// bf16 numbers, so that 16 of their bits count.
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/attention_vec.h"
#include "kernels/cpu/prompt_tile.h"
#include "kernels/cpu/tile_kernels.h"

namespace kf::cpu::KF_SIMD_NS {
namespace {

constexpr int64_t kBlock = 2 * kValueBlock;  // slots of weights split at a time

struct SplitWeights {
  alignas(64) uint16_t high[kTileRows][kBlock];
  alignas(64) uint16_t low[kTileRows][kBlock];
};

// Scaled sums of up to 16 rows to 16 columns of the logits.
void StoreLogits(
    const float* sums, float scale, int64_t rows, float* to, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    Store(Load(sums + r * kSlots) * Set(scale), to + r * stride);
  }
}

// Logits of all rows against one or two pages.
template <bool kLower, bool kRight>
void PageLogits(const PromptTile& tile,
                const uint32_t* q,
                TileHeights heights,
                int32_t page) {
  const HeadLayout& layout = *tile.layout;
  const int64_t stride = int64_t{layout.steps} * 4;
  const uint32_t* lower = q + kTileHeight * layout.steps;
  const unsigned char* left = Block(tile.keys, page);
  const unsigned char* right = kRight ? Block(tile.keys, page + 1) : left;
  _tile_zero(0);
  if constexpr (kRight) _tile_zero(1);
  if constexpr (kLower) _tile_zero(2);
  if constexpr (kLower && kRight) _tile_zero(3);
  for (int64_t step = 0; step < layout.steps; step += kTilePairs) {
    _tile_loadd(4, q + step, stride);
    _tile_loadd(6, left + step * kTileLine, kTileLine);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kRight) {
      _tile_loadd(7, right + step * kTileLine, kTileLine);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kLower) {
      _tile_loadd(5, lower + step, stride);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kRight) _tile_dpbf16ps(3, 5, 7);
    }
  }
  alignas(64) float sums[4][kTileHeight * kSlots];
  _tile_stored(0, sums[0], kTileLine);
  if constexpr (kRight) _tile_stored(1, sums[1], kTileLine);
  if constexpr (kLower) _tile_stored(2, sums[2], kTileLine);
  if constexpr (kLower && kRight) _tile_stored(3, sums[3], kTileLine);
  Settle();
  float* to = tile.logits + page * kSlots;
  float* below = to + kTileHeight * tile.logits_stride;
  const auto store = [&](int index, int64_t rows, float* at) {
    StoreLogits(sums[index], layout.scale, rows, at, tile.logits_stride);
  };
  store(0, heights.upper, to);
  if constexpr (kRight) store(1, heights.upper, to + kSlots);
  if constexpr (kLower) store(2, heights.lower, below);
  if constexpr (kLower && kRight) store(3, heights.lower, below + kSlots);
}

template <bool kLower>
void Logits(const PromptTile& tile,
            const uint32_t* q,
            TileHeights heights,
            int32_t pages) {
  int32_t page = 0;
  for (; page + 2 <= pages; page += 2) {
    PageLogits<kLower, true>(tile, q, heights, page);
  }
  if (page < pages) PageLogits<kLower, false>(tile, q, heights, page);
}

// Weights of slots [first, first + slots), slots a multiple of 32, as a bf16
// number and what it leaves.
void Split(const PromptTile& tile,
           int64_t first,
           int64_t slots,
           SplitWeights& to) {
  const VU mask = SetBits(0xFFFF0000U);
  for (int32_t r = 0; r < tile.rows; ++r) {
    const float* from = tile.logits + r * tile.logits_stride + first;
    for (int64_t i = 0; i < slots; i += 2 * kLanes) {
      const VF a = Load(from + i);
      const VF b = Load(from + i + kLanes);
      const VF high_a = BitsToFloat(FloatToBits(a) & mask);
      const VF high_b = BitsToFloat(FloatToBits(b) & mask);
      const auto high = _mm512_cvtne2ps_pbh(high_b, high_a);
      const auto low = _mm512_cvtne2ps_pbh(b - high_b, a - high_a);
      __builtin_memcpy(&to.high[r][i], &high, sizeof(high));
      __builtin_memcpy(&to.low[r][i], &low, sizeof(low));
    }
  }
}

// One slot's 16 channels, each in the lower half of a word.
inline VU HalfWords(const uint16_t* from) {
  VH half;
  __builtin_memcpy(&half, from, sizeof(half));
  return __builtin_convertvector(half, VU);
}

// V of `slots` as pairs, [ceil(slots / 32) * 16][d]; zero where there is no
// slot.
void PairValues(const PromptTile& tile, int64_t slots) {
  const HeadLayout& layout = *tile.layout;
  auto* to = reinterpret_cast<uint32_t*>(tile.values);
  const int64_t pairs = (slots + 31) / 32 * kTilePairs;
  for (int64_t pair = 0; pair < pairs; ++pair, to += layout.d) {
    const int64_t slot = 2 * pair;
    if (slot >= slots) {
      for (int32_t c = 0; c < layout.d; c += kLanes) StoreBits(VU{}, to + c);
      continue;
    }
    const auto* even = reinterpret_cast<const uint16_t*>(
                           Block(tile.pages, slot / kSlots) + layout.v_offset) +
                       slot % kSlots * layout.d;
    const uint16_t* odd = even + layout.d;
    if (slot + 1 == slots) {
      for (int32_t c = 0; c < layout.d; c += kLanes) {
        StoreBits(HalfWords(even + c), to + c);
      }
      continue;
    }
    for (int32_t c = 0; c < layout.d; c += kLanes) {
      StoreBits(HalfWords(even + c) | (HalfWords(odd + c) << 16), to + c);
    }
  }
}

// Adds the products of 32 slots' weights with the values in tiles 6 and 7.
template <bool kLower>
inline void AddStep(const uint16_t (&weights)[kTileRows][kBlock],
                    int64_t step) {
  constexpr int64_t kRowBytes = kBlock * 2;
  const uint16_t* upper = weights[0] + step * 2 * kTilePairs;
  _tile_loadd(4, upper, kRowBytes);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  if constexpr (kLower) {
    _tile_loadd(5, upper + kTileHeight * kBlock, kRowBytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

// sums[..][channel, channel + 32) += weights . values over `steps` x 32 slots
// from `first` on; begins with zero at the first block.
template <bool kLower>
void AddBlock(const PromptTile& tile,
              const SplitWeights& weights,
              int64_t steps,
              int32_t channel,
              int64_t first) {
  const int64_t width = int64_t{tile.layout->padded_d} * 4;
  const int64_t value_line = int64_t{tile.layout->d} * 4;
  float* sums = tile.sums + channel;
  float* below = sums + kTileHeight * tile.layout->padded_d;
  const float* block = tile.values + first / 2 * tile.layout->d + channel;
  if (first == 0) {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kLower) {
      _tile_zero(2);
      _tile_zero(3);
    }
  } else {
    _tile_loadd(0, sums, width);
    _tile_loadd(1, sums + kLanes, width);
    if constexpr (kLower) {
      _tile_loadd(2, below, width);
      _tile_loadd(3, below + kLanes, width);
    }
  }
  for (int64_t step = 0; step < steps; ++step) {
    const float* values = block + step * kTilePairs * tile.layout->d;
    _tile_loadd(6, values, value_line);
    _tile_loadd(7, values + kLanes, value_line);
    AddStep<kLower>(weights.high, step);
    AddStep<kLower>(weights.low, step);
  }
  _tile_stored(0, sums, width);
  _tile_stored(1, sums + kLanes, width);
  if constexpr (kLower) {
    _tile_stored(2, below, width);
    _tile_stored(3, below + kLanes, width);
  }
  Settle();
}

template <bool kLower>
void Values(const PromptTile& tile, int32_t keys) {
  SplitWeights weights;
  for (int64_t first = 0; first < keys; first += kBlock) {
    const int64_t slots = keys - first < kBlock ? keys - first : kBlock;
    const int64_t steps = (slots + 31) / 32;
    Split(tile, first, steps * 32, weights);
    Settle();
    for (int32_t channel = 0; channel < tile.layout->d; channel += 32) {
      AddBlock<kLower>(tile, weights, steps, channel, first);
    }
  }
}

}  // namespace

void AttendOnTiles(const PromptTile& tile) {
  const HeadLayout& layout = *tile.layout;
  const int32_t keys = tile.first_row + tile.rows;
  const int32_t pages = (keys + kSlots - 1) / kSlots;
  const int32_t padded = (keys + 31) / 32 * 32;
  const TileHeights heights = HeightsOf(tile.rows);
  const bool lower = heights.lower > 0;
  ShapeTiles(heights);
  if (tile.score.enabled) ZeroFill(tile.columns, 0, pages * kSlots);
  PairValues(tile, keys);  // for all query heads
  for (int32_t j = 0; j < tile.group; ++j) {
    const uint32_t* q = tile.q + int64_t{j} * kTileRows * layout.steps;
    Settle();
    (lower ? Logits<true> : Logits<false>)(tile, q, heights, pages);
    float inverse[kTileRows];
    TileSoftmax(tile, j, padded, inverse);
    (lower ? Values<true> : Values<false>)(tile, keys);
    StoreHead(tile, j, inverse);
  }
  _tile_release();
}

}  // namespace kf::cpu::KF_SIMD_NS
