// Attention, scoring and selection of the reference back end
// (docs/keyformer.md decides; names follow kernels/backend.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "kernels/backend.h"
#include "kernels/ref/ref_backend.h"

namespace kf::ref {

class Attention {
 public:
  explicit Attention(Trap trap) : trap_(trap) {}

  void Prompt(const PromptAttentionArgs& args);
  void Compact(const CompactArgs& args);
  void Decode(const DecodeAttentionArgs& args);
  std::vector<HeldTokens> ReadHeld(const AttentionShape& shape,
                                   const PageSpan& cache,
                                   int32_t held,
                                   const int32_t* free_slot) const;

 private:
  // A token that the pages have no room for (Trap::kRecentZeroOff).
  struct Ghost {
    std::vector<float> k;
    std::vector<float> v;
    int32_t position;
    float score;
  };
  // Ghosts of a sequence and layer by kv head; the key is the address of the
  // list's first page.
  using GhostKey = std::pair<const std::byte*, int32_t>;

  void DecodeItem(const DecodeAttentionArgs& args, size_t row);
  void AddScore(float& score, double value) const;
  void AddGhost(const AttentionShape& shape,
                const PageSpan& cache,
                int32_t head,
                const PageSpan& from,
                int32_t slot);
  void ForgetGhosts(const AttentionShape& shape, const PageSpan& cache);

  const Trap trap_;
  std::map<GhostKey, std::vector<Ghost>> ghosts_;
};

}  // namespace kf::ref
