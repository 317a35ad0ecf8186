// The engine without its thread: one Step at a time, drop -> preempt -> decode
// -> admit -> take the tokens -> prefill, with clients and gauges told of what
// changed. What stands between decode and its tokens does not depend on them: a
// device samples meanwhile (Backend::StartSampling), and begins with the
// prompts while the host takes the tokens.
//
// Thread-compatible: Engine drives it from the engine thread; tests may drive
// it directly.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cache/page_pool.h"
#include "engine/cache_store.h"
#include "engine/clock.h"
#include "engine/model/decoder.h"
#include "engine/observer.h"
#include "engine/prefill_pacer.h"
#include "engine/row_reader.h"
#include "engine/runner.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/sequence_group.h"
#include "engine/token_emitter.h"

namespace kf::engine {

// What the core owns and what has happened since the last report.
struct CoreReport {
  int32_t running = 0;
  int64_t pages_free = 0;
  int64_t physical_cache_tokens = 0;
  int64_t logical_cache_tokens = 0;
  int32_t preempted = 0;          // requests that wait for their replay
  int64_t preempted_tokens = 0;   // their prompts
  int32_t left_queue = 0;         // requests admitted or dropped since
  int64_t left_queue_tokens = 0;  // their prompts
  int32_t generated = 0;          // tokens since
};

class EngineCore {
 public:
  struct Parts {
    const ModelConfig& config;
    const Tokenizer& tokenizer;
    const Clock& clock;
    Backend& backend;
    Decoder& decoder;
    PagePool& pool;
    SchedulerLimits limits;
    // Of a step's prefill beside streams, about; zero: only limits bound it.
    Duration prefill_slice_time = Duration::zero();
    // Told before any client hears of what is reported.
    std::function<void(const CoreReport&)> report;
  };

  // All parts outlive the core.
  static absl::StatusOr<std::unique_ptr<EngineCore>> Create(Parts parts);

  // May be null; set while idle.
  void SetObserver(EngineObserver* observer);

  void Add(std::unique_ptr<SequenceGroup> group);
  void Cancel(RequestId id) { scheduler_.Cancel(id); }
  void Step();
  // Ends whatever there is, without a last update.
  void EndAll(const absl::Status& status);
  bool idle() const { return groups_.empty(); }

 private:
  // A request that has ended, with the updates that end its sequences.
  struct Ending {
    std::unique_ptr<SequenceGroup> group;
    std::vector<Update> updates;
    absl::Status status;
  };
  using Reading = RowReader::Reading;

  EngineCore(Parts parts, std::unique_ptr<CacheStore> caches);
  double TimeOf(absl::FunctionRef<void()> work) const;  // seconds
  void Drop(const StepPlan& plan, TimePoint now);
  void Preempt(const StepPlan& plan);
  void Admit(const StepPlan& plan, TimePoint now);
  // Decode, in three parts, which add those of its time to `report`: up to
  // where its first rows are being read; all rows but the last that are read
  // together; these.
  void StartDecode(const StepPlan& plan, StepReport& report);
  void TakeFirstRows(StepReport& report);
  void FinishDecode(const StepPlan& plan, StepReport& report);
  void StartDecoded(StepReport& report);
  void TakeDecoded(StepReport& report);
  // The calls that need not wait until decode's rows have been read: their
  // number.
  size_t RunPrefillAhead(const StepPlan& plan);
  void RunPrefill(std::span<const PrefillCall> calls);
  void RunPrefillCall(const PrefillCall& call);
  void RunReplay(const StepPlan& plan);
  absl::Status NextRows();
  absl::Status TakeRows();
  void TakePromptRow(const Runner::LogitsRow& row, std::span<Reading> readings);
  void TakeReading(Reading& reading);
  void TakeToken(Sequence& s, TokenEmitter::Choice choice);
  void TakeBeamRow(SequenceGroup& group, Reading& reading);
  void Emit(Sequence& s, Update update);
  void FinishAll(SequenceGroup& group, FinishReason reason, TimePoint now);
  std::vector<Update> LastUpdates(SequenceGroup& group,
                                  FinishReason reason,
                                  TimePoint now);
  void CountGenerated(uint32_t tokens);
  void Fail(RequestId id, const absl::Status& status);
  void End(RequestId id, std::vector<Update> updates, absl::Status status);
  void AttachReport(const Sequence& s, Update& update) const;
  void Count(Sequence& s, int32_t tokens);
  void ReleaseWorkspace(SequenceGroup& group);
  void ReleaseSequence(Sequence& s);
  void Release(SequenceGroup& group);
  void LeaveQueue(SequenceGroup& group);
  void Report();
  void Deliver();
  void Observe(const Ending& ending, TimePoint now);

  const Parts parts_;
  EngineObserver null_observer_;
  EngineObserver* observer_ = &null_observer_;
  Scheduler scheduler_;
  PrefillPacer pacer_;
  std::unique_ptr<CacheStore> caches_;
  Runner runner_;
  TokenEmitter emitter_;
  RowReader reader_;
  StepPlan plan_;  // of the step; its memory stays
  // Of the step's decode: who feeds a token, what leaves the caches then, and
  // how it went so far.
  std::vector<Sequence*> decoding_;
  uint32_t evicted_ = 0;
  absl::Status decoded_;
  // Rows of logits that are being read, the runner's, and what for.
  std::span<const Runner::LogitsRow> rows_;
  std::vector<Reading> readings_;
  std::unordered_map<RequestId, std::unique_ptr<SequenceGroup>> groups_;
  std::vector<Ending> endings_;  // not told yet
  CoreReport report_;
};

}  // namespace kf::engine
