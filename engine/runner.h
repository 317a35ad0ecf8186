// Carries out the tensor work of a step plan: packs sequences into rows, calls
// the decoder, and hands rows of logits back, some at a time. Knows no queue
// and no client.
//
// Thread-compatible: the engine thread's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/decoder.h"
#include "engine/sequence.h"
#include "engine/sequence_group.h"
#include "kernels/backend.h"

namespace kf::engine {

class Runner {
 public:
  // The logits, [vocabulary], that follow the token which `sequence` has fed,
  // or row `prompt_row` of the group's prompt (then sequence is null).
  struct LogitsRow {
    SequenceGroup* group = nullptr;
    Sequence* sequence = nullptr;
    int32_t prompt_row = 0;
    const float* memory = nullptr;  // the logits, backend memory
    // Where the host can read them; empty on a backend that samples rows.
    std::span<const float> logits = {};

    bool EndsPrompt() const {
      return sequence == nullptr &&
             prompt_row + 1 == group->sizes.prompt_tokens;
    }
  };
  struct PromptRun {
    SequenceGroup* group = nullptr;
    int32_t first_row = 0;
    int32_t rows = 0;
  };

  Runner(const ModelConfig& config, Decoder& decoder, Backend& backend);

  // Feeds each sequence its last token; logits come of each. On an error the
  // caches of all of them are in an undefined state.
  absl::Status Decode(std::span<Sequence* const> sequences);
  // Feeds each live sequence of a group, whose prompt has been replayed, the
  // next `tokens` tokens that it has fed before, in one call; their logits have
  // been read then.
  absl::Status Replay(SequenceGroup& group, int32_t tokens);
  // Rows of prompts through one layer; logits come out of the last one. Of a
  // prompt that is replayed only the last row's are wanted.
  absl::Status Prefill(int32_t layer, std::span<const PromptRun> runs);

  // Computes the logits of the next rows of the last call that gives some
  // (Decode, or Prefill through the last layer, and was OK): in order, at most
  // kLogitRows; empty where none is left. They are valid until the next call of
  // this, or of one that gives some: other layers may run meanwhile.
  absl::StatusOr<std::span<const LogitsRow>> NextLogits();
  bool logits_left() const { return next_row_ < wanted_.size(); }

  // What all layers of a sequence hold now.
  absl::StatusOr<CacheState> ReadCache(const Sequence& sequence) const;

 private:
  absl::Status ReadCutLayer(int32_t layer, std::span<const PromptRun> runs);
  absl::StatusOr<std::vector<HeldTokens>> ReadLayer(const Sequence& sequence,
                                                    int32_t layer) const;

  const int32_t layers_;
  const size_t vocabulary_;
  Decoder& decoder_;
  Backend& backend_;
  std::vector<DecodeRow> rows_;
  std::vector<PromptPiece> pieces_;
  std::vector<LogitsRow> wanted_;  // without logits until they are computed
  size_t next_row_ = 0;            // of wanted_
};

}  // namespace kf::engine
