// Carries out the tensor work of a step plan: packs sequences into rows, calls
// the decoder, and hands rows of logits back. Knows no queue and no client.
//
// Thread-compatible: the engine thread's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
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
  // Takes some of a call's rows, in order. They are valid during the call only.
  // An error is the call's.
  using LogitsHandler =
      absl::FunctionRef<absl::Status(std::span<const LogitsRow>)>;

  struct PromptRun {
    SequenceGroup* group = nullptr;
    int32_t first_row = 0;
    int32_t rows = 0;
  };

  Runner(const ModelConfig& config, Decoder& decoder, Backend& backend);

  // Feeds each sequence its last token. On an error the caches of all of them
  // are in an undefined state.
  absl::Status Decode(std::span<Sequence* const> sequences,
                      LogitsHandler on_logits);
  // Feeds each live sequence of a group, whose prompt has been replayed, the
  // next `tokens` tokens that it has fed before, in one call; their logits have
  // been read then.
  absl::Status Replay(SequenceGroup& group, int32_t tokens);
  // Rows of prompts through one layer; logits come out of the last one.
  // Of a prompt that is replayed only the last row's are computed.
  absl::Status Prefill(int32_t layer,
                       std::span<const PromptRun> runs,
                       LogitsHandler on_logits);
  // What all layers of a sequence hold now.
  absl::StatusOr<CacheState> ReadCache(const Sequence& sequence) const;

 private:
  absl::Status HandleLogits(LogitsHandler on_logits);
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
};

}  // namespace kf::engine
