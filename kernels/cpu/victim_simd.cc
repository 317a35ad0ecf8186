// Finding the token that leaves, compiled once per SIMD level.
#include "kernels/cpu/attention_simd.h"
#include "kernels/cpu/attention_vec.h"
#include "kernels/cpu/noise_vec.h"

namespace kf::cpu::KF_SIMD_NS {
namespace {

// ScoreAge::RowsThatSaw of backend.h.
VF RowsThatSaw(const AgeSpec& age, VI position) {
  const VI after = SetInt(age.prompt_tokens) - position;
  const VI rows = SetInt(age.prompt_rows);
  const VI decode = SetInt(age.decode_rows);
  const VI prompt = (after < rows ? after : rows) + decode;
  const VI later = after + decode;
  const VI one = SetInt(1);
  return __builtin_convertvector(
      after > 0 ? prompt : (later > one ? later : one), VF);
}

}  // namespace

int32_t FindVictim(const VictimSearch& search) {
  const VF infinity = BitsToFloat(SetBits(0x7F800000U));
  VF best = infinity;
  VI best_position = SetInt(-1);
  VI best_slot = SetInt(-1);
  for (int32_t slot = 0; slot < search.slots; slot += kLanes) {
    const unsigned char* block = Block(search.pages, slot / kSlots);
    const auto* scores =
        reinterpret_cast<const float*>(block + search.layout->score_offset) +
        slot % kSlots;
    const auto* positions = reinterpret_cast<const int32_t*>(
                                block + search.layout->position_offset) +
                            slot % kSlots;
    const VI live = LiveLanes(slot, search.slots);
    // Dead lanes hold anything.
    const VI position = live & reinterpret_cast<VI>(LoadBits(positions));
    VF rank = Load(scores);
    if (search.age.enabled) rank = rank / RowsThatSaw(search.age, position);
    // Not-a-number goes last.
    rank = rank == rank ? rank : infinity;  // NOLINT(misc-redundant-expression)
    const VI candidate = live & (position <= SetInt(search.last_candidate));
    const VI better =
        candidate &
        ((rank < best) | ((rank == best) & (position > best_position)));
    best = better ? rank : best;
    best_position = better ? position : best_position;
    best_slot = better ? Iota() + SetInt(slot) : best_slot;
  }
  int winner = 0;
  for (int i = 1; i < kLanes; ++i) {
    if (best[i] < best[winner] ||
        (best[i] == best[winner] && best_position[i] > best_position[winner])) {
      winner = i;
    }
  }
  return best_slot[winner];
}

}  // namespace kf::cpu::KF_SIMD_NS
