#include "engine/row_reader.h"

#include <algorithm>
#include <utility>

#include "engine/sampling/logit_row.h"
#include "engine/sampling/sample_row.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

// The row of a replay has been read before; without tokens to generate, the
// prompt's last row is of no use.
bool NothingToRead(const Runner::LogitsRow& row,
                   const RowReader::Reading& reading) {
  const SequenceGroup& group = *row.group;
  if (row.EndsPrompt() && group.prompt_done) return true;
  return reading.sequence != nullptr && group.sizes.max_new_tokens == 0;
}

}  // namespace

absl::Status RowReader::Start(Rows rows, std::span<const Reading> readings) {
  for_host_.clear();
  asked_.clear();
  sample_rows_.resize(std::max(sample_rows_.size(), readings.size()));
  changes_.resize(std::max(changes_.size(), readings.size()));
  const bool on_device = backend_.SamplesRows();
  for (size_t i = 0; i < readings.size(); ++i) {
    const Runner::LogitsRow& row = rows[readings[i].row];
    if (NothingToRead(row, readings[i])) continue;
    const size_t place = asked_.size();
    const bool described =
        on_device &&
        Describe(row, readings[i], changes_[place], sample_rows_[place]);
    (described ? asked_ : for_host_).push_back(i);
  }
  if (asked_.empty()) return absl::OkStatus();
  KF_RETURN_IF_ERROR(backend_.StartSampling(
      std::span(sample_rows_).first(asked_.size()), vocabulary_));
  waits_ = true;
  return absl::OkStatus();
}

absl::Status RowReader::Finish(Rows rows, std::span<Reading> readings) {
  if (std::exchange(waits_, false)) KF_RETURN_IF_ERROR(TakeSamples(readings));
  KF_RETURN_IF_ERROR(FetchRows(rows, readings));
  backend_.ParallelFor(std::ssize(for_host_), [&](int64_t index, int worker) {
    const auto i = static_cast<size_t>(index);
    Reading& reading = readings[for_host_[i]];
    ReadOnHost(rows[reading.row], host_logits_[i], worker, reading);
  });
  return absl::OkStatus();
}

// False: the host has to read the row.
bool RowReader::Describe(const Runner::LogitsRow& row,
                         const Reading& reading,
                         std::vector<LogitChange>& changes,
                         SampleRow& asked) const {
  const SequenceGroup& group = *row.group;
  const Request& request = group.request;
  if (group.beams != nullptr && reading.sequence != nullptr) return false;
  if (!RowCanBeDescribed(request.output)) return false;
  bool logprobs = true;
  if (reading.sequence == nullptr) {
    asked = {};
    asked.options.forced =
        request.prompt[static_cast<size_t>(row.prompt_row) + 1];
  } else if (const auto forced = emitter_.ForcedToken(*reading.sequence)) {
    asked = {};
    asked.options.forced = *forced;
  } else {
    if (!RowCanBeSampled(request.sampling)) return false;
    asked = MakeSampleRow(emitter_.SamplerInput(*reading.sequence), changes);
    logprobs = request.output.logprobs;
  }
  asked.logits = row.memory;
  if (logprobs) {
    AskForLogprobs(request.output.top_logprobs, vocabulary_, asked.options);
  }
  return true;
}

absl::Status RowReader::TakeSamples(std::span<Reading> readings) {
  KF_ASSIGN_OR_RETURN(const std::vector<SampledRow> sampled,
                      backend_.WaitForSamples());
  for (size_t i = 0; i < asked_.size(); ++i) {
    TokenEmitter::Choice& choice = readings[asked_[i]].choice;
    switch (sampled[i].token.state) {
      case SampleState::kUndecided:
        for_host_.push_back(asked_[i]);
        continue;
      case SampleState::kBad:
        choice.bad = true;
        continue;
      case SampleState::kChosen:
        choice.id = sampled[i].token.id;
        if (sample_rows_[i].options.logprobs) {
          choice.logprob = LogprobOf(sampled[i]);
        }
    }
  }
  std::sort(for_host_.begin(), for_host_.end());
  return absl::OkStatus();
}

// host_logits_: where the rows of for_host_ can be read; one that is read
// several times comes once.
absl::Status RowReader::FetchRows(Rows rows,
                                  std::span<const Reading> readings) {
  const auto width = static_cast<size_t>(vocabulary_);
  const auto row_of = [&](size_t i) { return readings[for_host_[i]].row; };
  const auto again = [&](size_t i) {
    return i > 0 && row_of(i) == row_of(i - 1);
  };
  size_t missing = 0;
  for (size_t i = 0; i < for_host_.size(); ++i) {
    if (rows[row_of(i)].logits.empty() && !again(i)) ++missing;
  }
  fetched_.resize(std::max(fetched_.size(), missing * width));
  host_logits_.clear();
  float* next = fetched_.data();
  for (size_t i = 0; i < for_host_.size(); ++i) {
    const Runner::LogitsRow& row = rows[row_of(i)];
    if (!row.logits.empty()) {
      host_logits_.push_back(row.logits);
    } else if (again(i)) {
      host_logits_.push_back(host_logits_.back());
    } else {
      const std::span<float> logits(next, width);
      next += width;
      KF_RETURN_IF_ERROR(
          backend_.Download(std::as_writable_bytes(logits),
                            reinterpret_cast<const std::byte*>(row.memory)));
      host_logits_.push_back(logits);
    }
  }
  return absl::OkStatus();
}

void RowReader::ReadOnHost(const Runner::LogitsRow& row,
                           std::span<const float> logits,
                           int worker,
                           Reading& reading) {
  const SequenceGroup& group = *row.group;
  if (reading.sequence == nullptr) {
    reading.choice = emitter_.ReadPromptRow(group, row.prompt_row, logits);
  } else if (group.beams == nullptr) {
    reading.choice = emitter_.ChooseNext(*reading.sequence, logits, worker);
  } else {
    const LogitsScan scan = ScanLogits(logits);
    reading.choice.bad = scan.bad;
    if (scan.bad) return;
    reading.continuations =
        group.beams->Rank(reading.sequence->index, logits, scan);
  }
}

}  // namespace kf::engine
