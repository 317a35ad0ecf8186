// One SIMD level's functions behind AttentionKernels; included by the files
// that define them and the one that tables them.
#pragma once

#include <stdint.h>

#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/vec.h"

namespace kf::cpu::KF_SIMD_NS {

void Append(const AppendToken& token);
void PackQuery(const HeadLayout& layout,
               const float* q,
               const float* cos_sin,
               uint32_t* out);
void AttendTile(const PromptTile& tile);
void AttendChunk(const DecodeChunk& chunk);
void CombineChunks(const DecodeCombine& combine);
int32_t FindVictim(const VictimSearch& search);
void BoundBlock(const PageBounds& work);
void RotateKeys(const KeyRotation& work);

}  // namespace kf::cpu::KF_SIMD_NS
