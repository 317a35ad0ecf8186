// What attention and the score pass compute alike, so that a weight of the one
// is a weight of the other. Device code.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/page_access.cuh"
#include "kernels/cuda/prompt.h"
#include "kernels/cuda/score.cuh"

namespace kf::cuda {

inline constexpr float kLog2E = 1.44269504F;

// How a row's keys are weighed: NoiseKind, and one case of it that is cheaper.
enum class Weighing : uint8_t {
  kNone,
  kConstant,
  kGumbel,
  kGaussian,
  kUnitGumbel,  // Gumbel at tau 1 (unit_gumbel.cuh)
};

// Calls f with the kind of noise as a constant, so that a tile's loop has no
// branch.
template <typename F>
__device__ __forceinline__ void WithNoise(NoiseKind noise, const F& f) {
  switch (noise) {
    case NoiseKind::kNone:
      return f(std::integral_constant<NoiseKind, NoiseKind::kNone>{});
    case NoiseKind::kConstant:
      return f(std::integral_constant<NoiseKind, NoiseKind::kConstant>{});
    case NoiseKind::kGumbel:
      return f(std::integral_constant<NoiseKind, NoiseKind::kGumbel>{});
    case NoiseKind::kGaussian:
      return f(std::integral_constant<NoiseKind, NoiseKind::kGaussian>{});
  }
}
template <typename F>
__device__ __forceinline__ void WithWeighing(const ScoreOptions& score,
                                             const F& f) {
  if (score.noise == NoiseKind::kGumbel && score.tau == 1.0F) {
    return f(std::integral_constant<Weighing, Weighing::kUnitGumbel>{});
  }
  WithNoise(score.noise, [&](auto noise) {
    constexpr auto kWeighing = static_cast<Weighing>(noise());
    f(std::integral_constant<Weighing, kWeighing>{});
  });
}

// Zeta of a kind known when compiling; not for kUnitGumbel.
template <Weighing kWeighing>
__device__ __forceinline__ float ZetaOf(NoiseRow words, int32_t key) {
  static_assert(kWeighing != Weighing::kUnitGumbel);
  return Zeta(static_cast<NoiseKind>(kWeighing), words,
              static_cast<uint32_t>(key));
}

// One (item, query head).
struct PromptHead {
  float scale;     // 1 / sqrt(d)
  float slope;     // of ALiBi, else 0
  float exponent;  // log2(e) / tau: weights are 2^((x + zeta - top) exponent)
};

__device__ __forceinline__ PromptHead MakePromptHead(const PromptArgs& args,
                                                     const PromptItem& item,
                                                     int32_t query_head) {
  // A smaller tau is as good as 0: the largest x + zeta takes all, and an
  // infinite factor would make NaN of it.
  constexpr float kMaxInverseTau = 1e30F;
  return {args.scale,
          args.alibi_slopes == nullptr ? 0.0F : args.alibi_slopes[query_head],
          fminf(1.0F / item.score.tau, kMaxInverseTau) * kLog2E};
}

// The logit of a key at `position` for a row of the same sequence.
__device__ __forceinline__ float Logit(const PromptHead& head,
                                       float dot,
                                       int32_t row,
                                       int32_t position) {
  return fmaf(-head.slope, static_cast<float>(row - position),
              __fmul_rn(dot, head.scale));
}

__device__ __forceinline__ bool Scores(const PromptItem& item, int32_t row) {
  return item.score.enabled && row >= item.score_first_row;
}

// A head's keys of one item, by position: in the pages or, where they have been
// rotated by their rank, in the workspace.
template <typename T, int kDim>
class KeyRows {
 public:
  __device__ __forceinline__ KeyRows(const PromptArgs& args,
                                     const PromptItem& item,
                                     int32_t kv_head)
      : item_(item), kv_heads_(args.layout.kv_heads), kv_head_(kv_head) {
    if (item.rank_positions) {
      ranked_ = reinterpret_cast<const T*>(args.ranked_keys) +
                (item.ranked_page * kv_heads_ + kv_head) * kSlots * kDim;
    }
  }
  const __device__ __forceinline__ T* Key(int32_t position) const {
    if (ranked_ != nullptr) {
      return ranked_ + (int64_t{position / kSlots} * kv_heads_ * kSlots +
                        position % kSlots) *
                           kDim;
    }
    return Block(position)->k[position % kSlots];
  }
  const __device__ __forceinline__ T* Value(int32_t position) const {
    return Block(position)->v[position % kSlots];
  }
  __device__ __forceinline__ float& Score(int32_t position) const {
    return Block(position)->score[position % kSlots];
  }

 private:
  __device__ __forceinline__ HeadBlock<T, kDim>* Block(int32_t position) const {
    return BlockAt<T, kDim>(item_.keys, kv_heads_, kv_head_, position / kSlots);
  }

  const PromptItem& item_;
  const int32_t kv_heads_;
  const int32_t kv_head_;
  const T* ranked_ = nullptr;
};

}  // namespace kf::cuda
