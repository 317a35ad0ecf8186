// How long a device takes for a model's work: a roofline. A call moves bytes
// and computes; the slower of the two is its time, divided by the device's
// efficiency. Nothing else costs: no launch, no host, no network.
//
// Counts follow what the engine does (docs/architecture.md, A step): a decode
// step reads all weights once and what each row attends to, and so does a call
// of a replay; a prompt's call reads one layer's weights. Of the last layer all
// rows are counted, although the engine takes only those with wanted logits
// past the attention.
//
// Immutable; thread-safe.
#pragma once

#include <cstdint>

#include "engine/cache/request_sizes.h"
#include "tools/sim/specs.h"

namespace kf::sim {

struct Work {
  double bytes = 0.0;         // to and from the device's memory
  double tensor_flops = 0.0;  // of matrix products; multiply-adds count 2
  double vector_flops = 0.0;  // softmax and scores, in f32
};

// Of all rows of one decode step, or of one call of a replay. Sums over rows
// and layers, in tokens of one layer.
struct DecodeWork {
  int64_t rows = 0;
  int64_t read_tokens = 0;      // whose K and V come from memory
  int64_t attended_tokens = 0;  // that a row multiplies with
  int64_t scored_tokens = 0;    // of these, whose scores are updated

  DecodeWork& operator+=(const DecodeWork& other) {
    rows += other.rows;
    read_tokens += other.read_tokens;
    attended_tokens += other.attended_tokens;
    scored_tokens += other.scored_tokens;
    return *this;
  }
};

// Of one call: rows through one layer.
struct PromptWork {
  int64_t rows = 0;
  int64_t pairs = 0;         // (query row, key) under the causal mask
  int64_t scored_pairs = 0;  // those of rows that are scored
  int64_t held_tokens = 0;   // sum over prompts of keys before and in the call
  int64_t logit_rows = 0;    // rows that go on to the output matrix

  // Adds rows [first_row, first_row + rows) of one prompt; those from
  // first_scored on are scored.
  void Add(int64_t first_row, int64_t prompt_rows, int64_t first_scored);
};

class CostModel {
 public:
  CostModel(const DeviceSpec& device, const ModelSpec& model);

  // Of the weights in memory.
  double weight_bytes() const;
  // K and V of one token in one layer.
  double token_bytes() const { return token_bytes_; }
  // A page: 16 slots of one layer with their positions and scores.
  double page_bytes() const;
  // What a prompt in prefill needs beside its pages, a token: one layer's K and
  // V, and the hidden states in f32.
  double workspace_bytes() const;

  Work Decode(const DecodeWork& work) const;
  // Rows that have been fed before, in one call: nobody wants their logits.
  Work Replay(const DecodeWork& work) const;
  Work Prompt(const PromptWork& work) const;
  double Seconds(const Work& work) const;

  const ModelSpec& model() const { return model_; }

 private:
  Work Feed(const DecodeWork& work, double output_parameters) const;

  DeviceSpec device_;
  ModelSpec model_;
  double layer_parameters_ = 0.0;
  double output_parameters_ = 0.0;
  double token_bytes_ = 0.0;
};

// What a decode step of one sequence, which holds `held` tokens in each layer,
// comes to; its own token is among them. Quest
// reads fewer, and its pages' bounds (two vectors for each page of 16 tokens)
// count as 1/16 of their tokens.
DecodeWork DecodeWorkOf(const engine::RequestSizes& sizes,
                        int32_t layers,
                        int32_t held);

}  // namespace kf::sim
