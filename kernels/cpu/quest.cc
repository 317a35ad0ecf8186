#include "kernels/cpu/quest.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

#include "kernels/core/bf16.h"
#include "kernels/core/byte_scale.h"
#include "kernels/core/status.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_layout.h"
#include "kernels/cpu/rank_key.h"

namespace kf::cpu {
namespace {

uint32_t LoadWord(const unsigned char* from) {
  uint32_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

float LowHalf(uint32_t word) {
  return Bf16ToFloat(static_cast<uint16_t>(word & 0xFFFFU));
}
float HighHalf(uint32_t word) {
  return Bf16ToFloat(static_cast<uint16_t>(word >> 16));
}

// Channels stay in their places: a word is one f32 or a pair of bf16.
template <typename Pick>
uint32_t PickWord(bool bf16, uint32_t a, uint32_t b, const Pick& pick) {
  if (!bf16) {
    return std::bit_cast<uint32_t>(
        pick(std::bit_cast<float>(a), std::bit_cast<float>(b)));
  }
  const uint32_t low = FloatToBf16(pick(LowHalf(a), LowHalf(b)));
  const uint32_t high = FloatToBf16(pick(HighHalf(a), HighHalf(b)));
  return low | (high << 16);
}

// The integers of `bounds`, rounded outwards by `round`, and their scale, to a
// slot's K.
template <typename Round>
void StoreByteBounds(const HeadLayout& layout,
                     std::span<const float> bounds,
                     const Round& round,
                     unsigned char* to,
                     int32_t slot) {
  const ByteScale scale = ByteScaleOf(bounds, kByteRange);
  std::memcpy(to + layout.k_scale_offset + slot * 4, &scale.scale, 4);
  for (size_t c = 0; c < bounds.size(); ++c) {
    const float x = round(bounds[c] * scale.inverse);
    // Also of NaN, where the scale says it.
    const float bounded =
        x >= -kByteRange ? std::min(x, kByteRange) : -kByteRange;
    const auto byte = static_cast<int8_t>(bounded);
    std::memcpy(
        to + (c / 4 * kPageTokens + static_cast<size_t>(slot)) * 4 + c % 4,
        &byte, 1);
  }
}

// Bounds of tokens [0, end) of a page of 8 bits: their scales differ, so that a
// later token can change the integers of all channels.
void BoundBytes(const HeadLayout& layout,
                const unsigned char* k,
                int32_t end,
                unsigned char* to,
                int32_t slot) {
  std::array<float, kPageTokens> scales;
  std::memcpy(scales.data(), k + layout.k_scale_offset, sizeof(scales));
  std::array<float, kMaxByteRow> lows;
  std::array<float, kMaxByteRow> highs;
  const auto row = static_cast<size_t>(layout.value_stride);
  for (size_t c = 0; c < row; ++c) {
    const auto value = [&](size_t token) {
      int8_t byte;
      std::memcpy(&byte, k + (c / 4 * kPageTokens + token) * 4 + c % 4, 1);
      return static_cast<float>(byte) * scales[token];
    };
    lows[c] = highs[c] = value(0);
    for (size_t token = 1; token < static_cast<size_t>(end); ++token) {
      const float x = value(token);
      lows[c] = std::min(lows[c], x);
      highs[c] = std::max(highs[c], x);
    }
  }
  StoreByteBounds(
      layout, {lows.data(), row}, [](float x) { return std::floor(x); }, to,
      slot);
  StoreByteBounds(
      layout, {highs.data(), row}, [](float x) { return std::ceil(x); },
      to + layout.v_offset, slot);
}

}  // namespace

void UpdateBounds(const HeadLayout& layout,
                  const HeadPages& cache,
                  const HeadPages& bounds,
                  int32_t page,
                  int32_t first,
                  int32_t end) {
  const unsigned char* k = BlockOf(cache, page);
  if (layout.bytes) {
    return BoundBytes(layout, k, end, BlockOf(bounds, page / kPageTokens),
                      page % kPageTokens);
  }
  unsigned char* to =
      BlockOf(bounds, page / kPageTokens) + page % kPageTokens * 4;
  for (int64_t step = 0; step < layout.steps; ++step) {
    const int64_t line = step * kPageTokens * 4;
    uint32_t low = LoadWord(first == 0 ? k + line : to + line);
    uint32_t high = first == 0 ? low : LoadWord(to + layout.v_offset + line);
    for (int32_t slot = first; slot < end; ++slot) {
      const uint32_t word = LoadWord(k + line + slot * 4);
      low = PickWord(layout.bf16, low, word,
                     [](float a, float b) { return std::min(a, b); });
      high = PickWord(layout.bf16, high, word,
                      [](float a, float b) { return std::max(a, b); });
    }
    std::memcpy(to + line, &low, sizeof(low));
    std::memcpy(to + layout.v_offset + line, &high, sizeof(high));
  }
}

void ChoosePages(const AttentionKernels& kernels, const PageChoice& choice) {
  for (int32_t first = 0; first < choice.newest; first += kPageTokens) {
    std::array<float, kPageTokens> bounds;
    kernels.page_bounds({choice.layout,
                         BlockOf(choice.bounds, first / kPageTokens),
                         choice.group, choice.q, bounds.data()});
    const int32_t end = std::min(choice.newest, first + kPageTokens);
    for (int32_t page = first; page < end; ++page) {
      choice.keys[page] =
          RankKey(bounds[static_cast<size_t>(page - first)], page);
    }
  }
  const int32_t best = choice.count - 1;
  if (best > 0) {
    std::nth_element(choice.keys, choice.keys + best - 1,
                     choice.keys + choice.newest);
  }
  for (int32_t i = 0; i < best; ++i) {
    choice.pages[i] = PositionOfKey(choice.keys[i]);
  }
  choice.pages[best] = choice.newest;
  std::sort(choice.pages, choice.pages + best);
  for (int32_t i = 0; i < choice.count; ++i) {
    choice.pages[i] = choice.cache.pages[choice.pages[i]];
  }
}

absl::Status BoundPages(AttentionContext& context,
                        const AttentionShape& shape,
                        int32_t tokens,
                        const PageSpan& cache,
                        const PageSpan& bounds) {
  const HeadLayout layout = MakeHeadLayout(shape);
  const int32_t pages = PagesFor(tokens);
  KF_CHECK(std::ssize(cache.pages) >= pages);
  KF_CHECK(std::ssize(bounds.pages) >= PagesFor(pages));
  context.pool.ParallelFor(
      int64_t{shape.kv_heads} * pages, [&](int64_t i, int /*worker*/) {
        const auto head = static_cast<int32_t>(i / pages);
        const auto page = static_cast<int32_t>(i % pages);
        UpdateBounds(layout, MakeHeadPages(shape, cache, head),
                     MakeHeadPages(shape, bounds, head), page, 0,
                     std::min(kPageTokens, tokens - page * kPageTokens));
      });
  return absl::OkStatus();
}

}  // namespace kf::cpu
