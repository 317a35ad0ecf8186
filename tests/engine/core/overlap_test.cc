// What the engine does between asking a device for a step's tokens and waiting
// for them: an order of calls. The device here is the reference backend, which
// leaves every row undecided, so that the host reads it after the wait: the
// tokens show that nothing has written the logits meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/mutex.h"
#include "kernels/ref/ref_backend.h"
#include "tests/engine/core/engine_harness.h"
#include "tests/engine/core/hook_backend.h"

namespace kf::engine {
namespace {

using ::testing::ElementsAre;

// What happened, in order. Thread-safe.
class Events {
 public:
  void Add(std::string event) {
    const MutexLock lock(mu_);
    events_.push_back(std::move(event));
  }
  std::vector<std::string> Take() {
    const MutexLock lock(mu_);
    return std::exchange(events_, {});
  }

 private:
  Mutex mu_;
  std::vector<std::string> events_ KF_GUARDED_BY(mu_);
};

// Checks the contract of the two calls, too.
class SamplingBackend final : public HookBackend {
 public:
  SamplingBackend(Events& events, Hooks hooks)
      : HookBackend(CreateReferenceBackend(), std::move(hooks)),
        events_(events) {}

  bool SamplesRows() const override { return true; }
  absl::Status StartSampling(std::span<const SampleRow> rows,
                             int32_t /*vocabulary*/) override {
    EXPECT_EQ(started_, 0U) << "started twice";
    EXPECT_FALSE(rows.empty());
    events_.Add("start " + std::to_string(rows.size()));
    if (fail_start) return absl::InternalError("no start");
    started_ = rows.size();
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<SampledRow>> WaitForSamples() override {
    EXPECT_GT(started_, 0U) << "nothing has been started";
    events_.Add("wait");
    std::vector<SampledRow> rows(std::exchange(started_, 0));
    if (fail_wait) return absl::InternalError("no samples");
    for (SampledRow& row : rows) row.token.state = SampleState::kUndecided;
    return rows;
  }

  std::atomic<bool> fail_start{false};
  std::atomic<bool> fail_wait{false};

 private:
  Events& events_;
  size_t started_ = 0;
};

class AdmissionObserver final : public EngineObserver {
 public:
  explicit AdmissionObserver(Events& events) : events_(events) {}
  void OnAdmitted(double, uint32_t, uint32_t) override { events_.Add("admit"); }
  void OnCancelled() override { events_.Add("cancelled"); }

 private:
  Events& events_;
};

// An engine whose thread can be held at the end of a decode step's attention.
class OverlapTest : public ::testing::Test {
 protected:
  void Create(EngineOptions options = TinyOptions("")) {
    Hooks hooks;
    hooks.hide_memory = true;
    hooks.prompt = [this](const PromptAttentionArgs& args) {
      events_.Add("prompt layer " + std::to_string(args.layer));
      return absl::OkStatus();
    };
    hooks.decode = [this](const DecodeAttentionArgs& args) {
      if (args.layer != 1) return absl::OkStatus();
      events_.Add("decode " + std::to_string(args.items.size()));
      if (hold_.exchange(false)) gates_.back().Pass();
      return absl::OkStatus();
    };
    auto backend = std::make_unique<SamplingBackend>(events_, std::move(hooks));
    backend_ = backend.get();
    engine_ = std::make_unique<TestEngine>(
        TestEngineParts{.options = std::move(options),
                        .backend = std::move(backend),
                        .observer = &observer_});
  }

  // At the next step's attention. Whoever starts a request may do so after.
  void HoldNext() {
    gates_.emplace_back();
    hold_ = true;
  }
  void WaitUntilHeld() {
    gates_.back().WaitUntilReached();
    events_.Take();
  }
  void GoOn() { gates_.back().Open(); }

  // Runs a request until it decodes, and holds the engine there.
  std::shared_ptr<RecordingSink> StartAndHold(const Request& request) {
    HoldNext();
    auto sink = engine_->Start(request).second;
    WaitUntilHeld();
    return sink;
  }

  // The events of the step after the one that is held.
  std::vector<std::string> NextStep() {
    const std::vector<std::string> all = events_.Take();
    const auto begin = std::find_if(all.begin(), all.end(), IsDecode);
    const auto end = std::find_if(begin + 1, all.end(), IsDecode);
    return {begin, end};
  }

  static bool IsDecode(const std::string& event) {
    return event.starts_with("decode");
  }

  Events events_;
  AdmissionObserver observer_{events_};
  std::deque<Gate> gates_;  // each opens once
  std::atomic<bool> hold_{false};
  SamplingBackend* backend_ = nullptr;
  std::unique_ptr<TestEngine> engine_;
};

Outcome Alone(const Request& request) {
  TestEngine engine({.backend = CreateReferenceBackend()});
  return engine.Run(request);
}

TEST_F(OverlapTest, AdmissionAndPromptsComeBetweenStartAndWait) {
  Create();
  const Request first = MakeKeyformerRequest(1, 20, 8, 10, 3);
  const Request second = MakeKeyformerRequest(2, 40, 8, 16, 4);
  const auto sink = StartAndHold(first);
  const auto other = engine_->Start(second).second;
  GoOn();
  EXPECT_TRUE(SameAnswer(sink->Wait(), Alone(first)));
  EXPECT_TRUE(SameAnswer(other->Wait(), Alone(second)));
  // The last layer gives logits of its own, and waits until those of the
  // decode step have been read.
  EXPECT_THAT(NextStep(),
              ElementsAre("decode 1", "start 1", "admit", "prompt layer 0",
                          "wait", "prompt layer 1", "start 1", "wait"));
}

// The tokens of a batch that is read in two calls: the host admits during the
// first, and begins with the prompt during the second, when the hidden states
// of all rows have been read.
TEST_F(OverlapTest, APromptWaitsUntilAllRowsHaveLogits) {
  EngineOptions options = TinyOptions("");
  options.max_batch = kLogitRows + 10;
  Create(options);
  std::vector<Request> requests;
  for (uint32_t i = 0; i < kLogitRows + 3; ++i) {
    requests.push_back(MakeKeyformerRequest(i, 3, 100, 3, 1));
    requests.back().stopping.ignore_eos = true;
  }
  std::vector<std::shared_ptr<RecordingSink>> sinks = {
      StartAndHold(requests.front())};
  for (size_t i = 1; i < requests.size(); ++i) {
    sinks.push_back(engine_->Start(requests[i]).second);
  }
  GoOn();
  for (const auto& sink : sinks) sink->WaitForUpdates(2);
  HoldNext();
  WaitUntilHeld();
  const Request late = MakeKeyformerRequest(99, 40, 4, 16, 4);
  const auto other = engine_->Start(late).second;
  GoOn();
  EXPECT_TRUE(SameAnswer(other->Wait(), Alone(late)));
  EXPECT_THAT(NextStep(), ElementsAre("decode 67", "start 64", "admit", "wait",
                                      "start 3", "prompt layer 0", "wait",
                                      "prompt layer 1", "start 1", "wait"));
  for (size_t i = 0; i < sinks.size(); i += 13) {
    EXPECT_TRUE(SameAnswer(sinks[i]->Wait(), Alone(requests[i]))) << i;
  }
}

// What a dropped request held may be what the step grows into, and its client
// need not wait for the step.
TEST_F(OverlapTest, WhoIsDroppedHearsOfItBeforeTheStep) {
  Create();
  const Request first = MakeKeyformerRequest(1, 20, 12, 10, 3);
  const auto sink = StartAndHold(first);
  const auto [id, cancelled] =
      engine_->Start(MakeKeyformerRequest(2, 40, 8, 16, 4));
  (*engine_)->Cancel(id);
  events_.Take();
  GoOn();
  EXPECT_TRUE(SameAnswer(sink->Wait(), Alone(first)));
  EXPECT_TRUE(absl::IsCancelled(cancelled->Wait().status));
  const std::vector<std::string> events = events_.Take();
  const auto told = std::find(events.begin(), events.end(), "cancelled");
  const auto decode = std::find(events.begin(), events.end(), "decode 1");
  EXPECT_LT(told - events.begin(), decode - events.begin());
}

// A backend that does not sample computes as it is called: nothing would be
// saved, and a prompt first would make the tokens late.
TEST_F(OverlapTest, WithoutADeviceThePromptComesAfterTheTokens) {
  std::vector<std::string> events;
  std::atomic<bool> armed{false};  // not by the warm-up
  std::atomic<bool> record{false};
  Gate gate;
  Hooks hooks;
  hooks.prompt = [&](const PromptAttentionArgs& args) {
    if (record) events.push_back("prompt " + std::to_string(args.layer));
    return absl::OkStatus();
  };
  hooks.decode = [&](const DecodeAttentionArgs& args) {
    if (armed && args.layer == 1 && !record.exchange(true)) gate.Pass();
    return absl::OkStatus();
  };
  struct Observer final : EngineObserver {
    explicit Observer(std::vector<std::string>& to) : events(to) {}
    void OnToken(double) override { events.emplace_back("token"); }
    std::vector<std::string>& events;
  } observer{events};
  TestEngine engine({.backend = std::make_unique<HookBackend>(
                         CreateReferenceBackend(), std::move(hooks)),
                     .observer = &observer});
  armed = true;
  const auto sink = engine.Start(MakeKeyformerRequest(1, 20, 3, 10, 3)).second;
  gate.WaitUntilReached();
  const auto other = engine.Start(MakeKeyformerRequest(2, 40, 1, 16, 4)).second;
  gate.Open();
  sink->Wait();
  other->Wait();
  EXPECT_THAT(events, ElementsAre("token", "token", "prompt 0", "prompt 1"));
}

TEST_F(OverlapTest, AFailureEndsTheRowsOfItsCallAlone) {
  for (const bool start : {true, false}) {
    Create();
    const Request first = MakeKeyformerRequest(1, 20, 8, 10, 3);
    const auto sink = StartAndHold(first);
    (start ? backend_->fail_start : backend_->fail_wait) = true;
    GoOn();
    EXPECT_TRUE(absl::IsInternal(sink->Wait().status));
    engine_->ExpectNothingHeld();
    backend_->fail_start = backend_->fail_wait = false;
    EXPECT_TRUE(SameAnswer(engine_->Run(first), Alone(first)));
    engine_.reset();
  }
}

}  // namespace
}  // namespace kf::engine
