// Attention, scoring and selection of the reference back end
// (docs/keyformer.md decides; names follow kernels/backend.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/ref/ref_backend.h"
#include "kernels/ref/ref_page.h"

namespace kf::ref {

// A held token when one is chosen; the place in a list is its slot.
struct Candidate {
  int32_t position;
  double rank;
};

// What tokens are compared by: the score, over the rows that saw the token with
// score norm `age`. NaN counts as infinity.
double Rank(double score, const ScoreAge& age, int32_t position);

// --- Quest (ref_quest.cc) ---
// Brings the bounds of page `page` up to date with its tokens, which end before
// position `tokens`.
void BoundPage(const AttentionShape& shape,
               int32_t tokens,
               const PageSpan& cache,
               const PageSpan& bounds,
               int32_t head,
               int32_t page);
// The keys of the pages that a step reads. q: the group's rotated queries,
// [group, d]; keys: all, by position.
std::vector<Slot> ChooseKeys(const AttentionShape& shape,
                             const DecodeAttentionItem& item,
                             int32_t head,
                             const float* q,
                             const std::vector<Slot>& keys);

class Attention {
 public:
  explicit Attention(Trap trap) : trap_(trap) {}

  void Prompt(const PromptAttentionArgs& args);
  void Compact(const CompactArgs& args);
  void Decode(const DecodeAttentionArgs& args);
  void AddRowScores(const AddRowScoresArgs& args) const;
  void Evict(const EvictArgs& args) const;
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

  void PromptItem(const PromptAttentionArgs& args,
                  const PromptAttentionItem& item);
  void DecodeItem(const DecodeAttentionArgs& args, size_t row);
  // Slots [0, slots) of a head, then its ghosts.
  std::vector<Slot> HeldSlots(const AttentionShape& shape,
                              const PageSpan& cache,
                              int32_t slots,
                              int32_t head);
  void AddScore(float& score, double value) const;
  // Which of a prompt's tokens stay, given each one's rank.
  std::vector<bool> Choose(const CompactArgs& args,
                           const std::vector<double>& ranks) const;
  void MoveHead(const CompactArgs& args,
                const CompactLayer& layer,
                int32_t head,
                const std::vector<bool>& keep);
  // The slot of the lowest rank outside the recent window; ties: the latest
  // position.
  int32_t FindVictim(const std::vector<Candidate>& candidates,
                     int32_t position,
                     int32_t recent) const;
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
