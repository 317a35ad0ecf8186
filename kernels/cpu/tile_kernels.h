// What runs on Intel's AMX tiles: bf16 products, and attention over a prompt.
// Members as of DenseKernels and AttentionKernels.
#pragma once

#include <stdint.h>

#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/dense_kernels.h"
#include "kernels/cpu/row_block.h"

namespace kf::cpu::amx_bf16 {

void LinearTiles(const LinearBlock& block);
void PackTileRow(const float* x, int64_t k, void* out);
int64_t TileRowBytes(int64_t k);

extern const RowBlockKernels kRowBlockKernels;

// Of a bf16 cache with d a multiple of 32.
void AttendOnTiles(const PromptTile& tile);

}  // namespace kf::cpu::amx_bf16
