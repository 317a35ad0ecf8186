// What rows of logits come to: tokens, logprobs, and how beams may go on. On a
// backend that samples, its own answer for all the rows it can decide, so that
// their logits stay where they are; the others, and all rows elsewhere, are
// read by the host. Both give the same bits.
//
// Thread-compatible: the engine thread's, which has the backend's threads help.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/beam_search.h"
#include "engine/runner.h"
#include "engine/sequence.h"
#include "engine/token_emitter.h"
#include "kernels/backend.h"

namespace kf::engine {

class RowReader {
 public:
  // What a row of logits is read for: the next token of a sequence, or the
  // logprob of a prompt token (then sequence is null). All samples of a prompt
  // read its last row.
  struct Reading {
    size_t row = 0;  // of the call
    Sequence* sequence = nullptr;
    TokenEmitter::Choice choice = {};
    std::vector<BeamSearch::Continuation> continuations = {};  // beams' choice
  };

  // Both outlive the reader.
  RowReader(int32_t vocabulary, Backend& backend, TokenEmitter& emitter)
      : vocabulary_(vocabulary), backend_(backend), emitter_(emitter) {}

  // Has the backend begin with what it can decide. `rows` and `readings`, which
  // are in order of row, stay as they are until Finish, and so do the rows'
  // logits: the host may have to read some. An error is the backend's; then
  // nothing has begun.
  absl::Status Start(std::span<const Runner::LogitsRow> rows,
                     std::span<const Reading> readings);
  // Whether the backend works on it: what the caller does now costs no time.
  bool waits() const { return waits_; }
  // Fills the readings of the last Start, which was OK. An error is the
  // backend's.
  absl::Status Finish(std::span<const Runner::LogitsRow> rows,
                      std::span<Reading> readings);

 private:
  using Rows = std::span<const Runner::LogitsRow>;

  bool Describe(const Runner::LogitsRow& row,
                const Reading& reading,
                std::vector<LogitChange>& changes,
                SampleRow& asked) const;
  absl::Status TakeSamples(std::span<Reading> readings);
  absl::Status FetchRows(Rows rows, std::span<const Reading> readings);
  void ReadOnHost(const Runner::LogitsRow& row,
                  std::span<const float> logits,
                  int worker,
                  Reading& reading);

  const int32_t vocabulary_;
  Backend& backend_;
  TokenEmitter& emitter_;
  bool waits_ = false;  // for what the backend has begun
  // Scratch. Readings that the host has to do, by their numbers, and the
  // logits of their rows.
  std::vector<size_t> for_host_;
  std::vector<std::span<const float>> host_logits_;  // [for_host_]
  std::vector<float> fetched_;          // the rows that had to come
  std::vector<size_t> asked_;           // readings that the backend does
  std::vector<SampleRow> sample_rows_;  // of asked_
  std::vector<std::vector<LogitChange>> changes_;  // of asked_
};

}  // namespace kf::engine
