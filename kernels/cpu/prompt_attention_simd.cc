// Appending tokens and attending over a prompt's row tile, compiled once per
// SIMD level.
#include "kernels/cpu/attention_simd.h"
#include "kernels/cpu/attention_vec.h"
#include "kernels/cpu/byte_vec.h"
#include "kernels/cpu/pack_pairs.h"
#include "kernels/cpu/prompt_tile.h"
#include "kernels/cpu/rotate_vec.h"

namespace kf::cpu::KF_SIMD_NS {
namespace {

// Register tiles: accumulators, operands and one broadcast fit the registers.
constexpr int kQkRows = KF_SIMD_LEVEL >= 2 ? 8 : KF_SIMD_LEVEL == 1 ? 4 : 2;
constexpr int kQkPages = KF_SIMD_LEVEL >= 2 ? 2 : 1;
constexpr int kPvRows = KF_SIMD_LEVEL >= 2 ? 4 : 2;
constexpr int kPvVecs = 4;

// Channels of a head that are rotated at a time: an even number.
constexpr int32_t kPiece = 64;

// Calls emit(first, words, count) for the words of the rotated, packed row,
// piece by piece; `words` are bytes. Not copied from array to array: gcc 12
// does that by aligned vectors also in AddressSanitizer's frames, which are
// not.
template <typename Emit>
void RotateAndPack(const HeadLayout& layout,
                   const float* x,
                   const float* cos_sin,
                   const Emit& emit) {
  for (int32_t from = 0; from < layout.d; from += kPiece) {
    HeadLayout piece = layout;
    piece.d = layout.d - from < kPiece ? layout.d - from : kPiece;
    piece.rotary_dim = layout.rotary_dim - from;
    if (piece.rotary_dim < 0) piece.rotary_dim = 0;
    if (piece.rotary_dim > piece.d) piece.rotary_dim = piece.d;
    float rotated[kPiece];
    Rotate(piece, x + from, cos_sin + from, rotated);
    if (layout.bf16) {
      uint16_t halves[kPiece];
      PackPairs(rotated, piece.d, halves);
      emit(from / 2, reinterpret_cast<const unsigned char*>(halves),
           piece.d / 2);
    } else {
      emit(from, reinterpret_cast<const unsigned char*>(rotated), piece.d);
    }
  }
}

// All logits of one query head, [rows][keys rounded up to pages].
void TileLogits(const PromptTile& tile, const uint32_t* q, int32_t pages) {
  const HeadLayout& layout = *tile.layout;
  const QkWork work = {tile.keys,    pages,       q,
                       layout.steps, tile.rows,   layout.steps,
                       layout.scale, tile.logits, tile.logits_stride};
  if (layout.bf16) {
    QkLogits<Bf16Keys, kQkRows, kQkPages>(work, NoAhead{});
  } else {
    QkLogits<FloatKeys, kQkRows, kQkPages>(work, NoAhead{});
  }
}

void WidenValues(const PromptTile& tile, int32_t first, int32_t slots) {
  const HeadLayout& layout = *tile.layout;
  for (int32_t i = 0; i < slots; ++i) {
    const unsigned char* values =
        Block(tile.pages, (first + i) / kSlots) + layout.v_offset;
    const int64_t row = int64_t{(first + i) % kSlots} * layout.d;
    float* to = tile.values + int64_t{i} * layout.padded_d;
    if (layout.bf16) {
      const auto* from = reinterpret_cast<const uint16_t*>(values) + row;
      for (int32_t c = 0; c < layout.d; c += kLanes) {
        Store(LoadBf16(from + c), to + c);
      }
    } else {
      const auto* from = reinterpret_cast<const float*>(values) + row;
      for (int32_t c = 0; c < layout.d; c += kLanes) {
        Store(Load(from + c), to + c);
      }
    }
  }
}

// sums[r][c] += p[r] . values[c] over one block, kVecs vectors of channels.
template <int kVecs>
void AddBlock(const PromptTile& tile,
              int32_t first,
              int32_t slots,
              int32_t channel) {
  const int64_t width = tile.layout->padded_d;
  for (int32_t r = 0; r < tile.rows; r += kPvRows) {
    float* sums = tile.sums + r * width + channel;
    VF acc[kPvRows][kVecs];
#pragma GCC unroll 16
    for (int i = 0; i < kPvRows; ++i) {
#pragma GCC unroll 16
      for (int c = 0; c < kVecs; ++c) {
        acc[i][c] = Load(sums + i * width + c * kLanes);
      }
    }
    const float* values = tile.values + channel;
    PvTile<kPvRows, kVecs>(tile.logits + r * tile.logits_stride + first,
                           tile.logits_stride, values, values, width, slots,
                           acc, NoAhead{});
#pragma GCC unroll 16
    for (int i = 0; i < kPvRows; ++i) {
#pragma GCC unroll 16
      for (int c = 0; c < kVecs; ++c) {
        Store(acc[i][c], sums + i * width + c * kLanes);
      }
    }
  }
}

void TileValues(const PromptTile& tile, int32_t keys) {
  const int32_t width = tile.layout->padded_d;
  ZeroFill(tile.sums, 0, int64_t{kTileRows} * width);
  for (int32_t first = 0; first < keys; first += kValueBlock) {
    const int32_t slots =
        keys - first < kValueBlock ? keys - first : kValueBlock;
    WidenValues(tile, first, slots);
    int32_t channel = 0;
    for (; channel + kPvVecs * kLanes <= width; channel += kPvVecs * kLanes) {
      AddBlock<kPvVecs>(tile, first, slots, channel);
    }
    for (; channel < width; channel += kLanes) {
      AddBlock<1>(tile, first, slots, channel);
    }
  }
}

void AppendFloats(const AppendToken& token) {
  const HeadLayout& layout = *token.layout;
  auto* k = reinterpret_cast<uint32_t*>(token.block) + token.slot;
  RotateAndPack(layout, token.k, token.cos_sin,
                [k](int32_t first, const unsigned char* words, int32_t count) {
                  for (int32_t i = 0; i < count; ++i) {
                    __builtin_memcpy(k + (first + i) * kSlots, words + i * 4,
                                     4);
                  }
                });
  unsigned char* values = token.block + layout.v_offset;
  if (layout.bf16) {
    auto* v = reinterpret_cast<uint16_t*>(values) + token.slot * layout.d;
    PackPairs(token.v, layout.d, v);
  } else {
    auto* v = reinterpret_cast<float*>(values) + token.slot * layout.d;
    for (int32_t c = 0; c < layout.d; ++c) v[c] = token.v[c];
  }
}

void AppendBytes(const AppendToken& token) {
  const HeadLayout& layout = *token.layout;
  float row[kMaxByteRow];
  Rotate(layout, token.k, token.cos_sin, row);
  StoreByteKey(layout, row, token.block, token.slot);
  for (int32_t c = 0; c < layout.d; ++c) row[c] = token.v[c];
  StoreByteValue(layout, row, token.block, token.slot);
}

}  // namespace

void Append(const AppendToken& token) {
  const HeadLayout& layout = *token.layout;
  if (layout.bytes) {
    AppendBytes(token);
  } else {
    AppendFloats(token);
  }
  reinterpret_cast<int32_t*>(token.block + layout.position_offset)[token.slot] =
      token.position;
  reinterpret_cast<float*>(token.block + layout.score_offset)[token.slot] =
      0.0F;
}

void PackQuery(const HeadLayout& layout,
               const float* q,
               const float* cos_sin,
               uint32_t* out) {
  if (layout.bytes) {
    float row[kMaxByteRow];
    Rotate(layout, q, cos_sin, row);
    return PackByteQuery(layout, row, out);
  }
  RotateAndPack(
      layout, q, cos_sin,
      [out](int32_t first, const unsigned char* words, int32_t count) {
        __builtin_memcpy(out + first, words, static_cast<uint64_t>(count) * 4);
      });
}

void AttendTile(const PromptTile& tile) {
  const HeadLayout& layout = *tile.layout;
  const int32_t keys = tile.first_row + tile.rows;
  const int32_t pages = (keys + kSlots - 1) / kSlots;
  if (tile.score.enabled) ZeroFill(tile.columns, 0, pages * kSlots);
  for (int32_t j = 0; j < tile.group; ++j) {
    const uint32_t* q = tile.q + int64_t{j} * kTileRows * layout.steps;
    TileLogits(tile, q, pages);
    float inverse[kTileRows];
    TileSoftmax(tile, j, pages * kSlots, inverse);
    // Rows that a register tile takes along.
    for (int32_t r = tile.rows; r < kTileRows && r % kPvRows != 0; ++r) {
      ZeroFill(tile.logits + r * tile.logits_stride, 0, pages * kSlots);
    }
    TileValues(tile, keys);
    StoreHead(tile, j, inverse);
  }
}

}  // namespace kf::cpu::KF_SIMD_NS
