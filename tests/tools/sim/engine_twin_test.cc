// The simulator beside the engine's core: the same requests at the same steps
// are admitted, run, preempted, replayed and ended in the same steps, with the
// same pages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "engine/cache/page_pool.h"
#include "engine/core.h"
#include "engine/model/decoder.h"
#include "engine/model/gguf.h"
#include "engine/request_validation.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/testing/matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/tiny_model.h"
#include "tests/tools/sim/sim_support.h"

namespace kf::sim {
namespace {

using engine::CachePolicy;
using engine::RequestId;
using engine::TimePoint;
using testing::IsOk;

constexpr int32_t kTwinContext = 512;

// What one step comes to, as both can tell it.
struct StepSeen {
  int64_t decode_rows = 0;
  int64_t prefill_tokens = 0;  // token-layers / layers, rounded
  int64_t first_admissions = 0;
  int64_t preemptions = 0;
  std::vector<RequestId> ended;  // in order
  // Afterwards.
  int32_t running = 0;
  int32_t waiting = 0;
  int64_t waiting_prompt_tokens = 0;
  int64_t pages_used = 0;

  bool operator==(const StepSeen&) const = default;
};
void PrintTo(const StepSeen& s, std::ostream* out) {
  *out << "decodes " << s.decode_rows << ", prefills " << s.prefill_tokens
       << ", admits " << s.first_admissions << ", preempts " << s.preemptions
       << ", ends " << ::testing::PrintToString(s.ended) << ", then runs "
       << s.running << ", waits " << s.waiting << " ("
       << s.waiting_prompt_tokens << " tokens), pages " << s.pages_used;
}

template <typename T>
T MustHave(absl::StatusOr<T> result) {
  EXPECT_THAT(result, IsOk());
  return std::move(result).value();
}

// An engine's core over a tiny model, one step at a time.
class CoreTwin {
 public:
  explicit CoreTwin(const engine::SchedulerLimits& limits) : limits_(limits) {
    const testing::TinyModelSpec spec{.context = kTwinContext};
    file_ = MustHave(engine::GgufFile::Open(
        testing::WriteTinyModel(spec, dir_.File("tiny.gguf"))));
    config_ = MustHave(engine::ReadModelConfig(*file_));
    tokenizer_ = MustHave(engine::Tokenizer::Load(*file_));
    backend_ =
        MustHave(CreateBackend({.name = "cpu", .threads = 1, .simd = "auto"}));
    decoder_ = MustHave(engine::Decoder::Create(
        *file_, config_,
        {.weight_format = WeightFormat::kF32,
         .cache_dtype = DType::kF32,
         .max_batch = limits.max_batch,
         .workspace_tokens = static_cast<int32_t>(limits.workspace_tokens),
         .max_workspace_prompts = limits.max_batch},
        *backend_));
    pool_ = MustHave(engine::PagePool::Create(
        *backend_, backend_->PageBytes(decoder_->shape()),
        static_cast<int32_t>(limits.pool_pages), "pages"));
    core_ = MustHave(engine::EngineCore::Create(
        {.config = config_,
         .tokenizer = *tokenizer_,
         .clock = clock_,
         .backend = *backend_,
         .decoder = *decoder_,
         .pool = *pool_,
         .limits = limits,
         .report = [this](const engine::CoreReport& news) { Take(news); }}));
    core_->SetObserver(&observer_);
  }

  void Add(RequestId id, const engine::Request& request) {
    const auto sizes = MustHave(
        ValidateRequest(request, {.vocabulary = config_.vocabulary,
                                  .context_tokens = config_.context_tokens,
                                  .layers = config_.layers}));
    ++queued_;
    queued_tokens_ += sizes.prompt_tokens;
    core_->Add(std::make_unique<engine::SequenceGroup>(
        id, request, sizes, std::make_shared<Sink>(id, ended_), *tokenizer_,
        clock_.now));
  }

  bool idle() const { return core_->idle(); }

  StepSeen Step(TimePoint now) {
    clock_.now = now;
    observer_.seen = {};
    ended_.clear();
    core_->Step();
    StepSeen seen = observer_.seen;
    seen.ended = ended_;
    seen.running = report_.running;
    seen.waiting = queued_ + report_.preempted;
    seen.waiting_prompt_tokens = queued_tokens_ + report_.preempted_tokens;
    seen.pages_used = limits_.pool_pages - report_.pages_free;
    return seen;
  }

 private:
  struct ManualClock final : engine::Clock {
    TimePoint Now() const override { return now; }
    TimePoint now;
  };
  struct Observer final : engine::EngineObserver {
    void OnAdmitted(double, uint32_t, uint32_t) override {
      ++seen.first_admissions;
    }
    void OnPreempted() override { ++seen.preemptions; }
    void OnStep(const engine::StepReport& step) override {
      seen.decode_rows = step.decode_rows;
      seen.prefill_tokens = step.prompt_tokens;
    }
    StepSeen seen;
  };
  class Sink final : public engine::TokenSink {
   public:
    Sink(RequestId id, std::vector<RequestId>& ended)
        : id_(id), ended_(ended) {}
    void OnUpdate(engine::Update) override {}
    void OnEnd(const absl::Status&) override { ended_.push_back(id_); }

   private:
    const RequestId id_;
    std::vector<RequestId>& ended_;
  };

  void Take(const engine::CoreReport& news) {
    report_ = news;
    queued_ -= news.left_queue;
    queued_tokens_ -= news.left_queue_tokens;
  }

  const engine::SchedulerLimits limits_;
  testing::TempDir dir_;
  ManualClock clock_;
  Observer observer_;
  std::unique_ptr<engine::GgufFile> file_;
  engine::ModelConfig config_;
  std::unique_ptr<engine::Tokenizer> tokenizer_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<engine::Decoder> decoder_;
  std::unique_ptr<engine::PagePool> pool_;
  std::unique_ptr<engine::EngineCore> core_;
  engine::CoreReport report_;
  int32_t queued_ = 0;
  int64_t queued_tokens_ = 0;
  std::vector<RequestId> ended_;
};

// The simulator's replica, told in the same terms.
class ReplicaTwin {
 public:
  explicit ReplicaTwin(const engine::SchedulerLimits& limits)
      : layers_(limits.layers),
        cost_(QuickCost()),
        replica_({.limits = limits}, cost_, statistics_) {}

  void Add(Job job) {
    ASSERT_EQ(replica_.Submit(std::move(job)), Outcome::kFinished);
  }
  bool idle() const { return replica_.idle(); }
  TimePoint ready() const { return replica_.ready(); }

  StepSeen Step(TimePoint now) {
    const Statistics before = statistics_;
    std::vector<Replica::Ended> ended;
    replica_.Step(now, ended);
    const Statistics& after = statistics_;
    const LoadView load = replica_.Load(replica_.ready());
    const auto grown = [](const auto& was, const auto& is) {
      return static_cast<int64_t>(is.size() - was.size());
    };
    StepSeen seen{
        .decode_rows = after.decode_rows - before.decode_rows,
        .prefill_tokens = (after.prefill_token_layers -
                           before.prefill_token_layers + layers_ / 2) /
                          layers_,
        .first_admissions = grown(before.queue_s, after.queue_s),
        .preemptions = after.preemptions - before.preemptions,
        .ended = {},
        .running = load.running,
        .waiting = load.waiting,
        .waiting_prompt_tokens = load.waiting_prompt_tokens,
        .pages_used = replica_.pages_used()};
    for (const Replica::Ended& end : ended) seen.ended.push_back(end.id);
    return seen;
  }

  const Statistics& statistics() const { return statistics_; }

 private:
  const int64_t layers_;
  const CostModel cost_;
  Statistics statistics_;
  Replica replica_;
};

struct TwinCase {
  const char* name;
  uint64_t seed;
  int32_t slice;
  int32_t max_skips;
  int32_t pool_pages;
  bool beams;
};
void PrintTo(const TwinCase& c, std::ostream* out) { *out << c.name; }

class EngineTwinTest : public ::testing::TestWithParam<TwinCase> {
 protected:
  static constexpr int kRequests = 300;

  // The same request for both.
  static engine::Request EngineRequest(const TraceRequest& asked,
                                       const SimulationOptions& options) {
    engine::Request request;
    request.prompt.assign(static_cast<size_t>(asked.prompt_tokens), 7);
    request.stopping.max_new_tokens =
        static_cast<uint32_t>(asked.output_tokens);
    request.stopping.ignore_eos = true;
    request.priority = asked.priority;
    request.cache.policy = asked.policy->policy;
    request.cache.ratio = asked.policy->ratio;
    request.cache.min_tokens = options.min_tokens;
    request.cache.score_queries = options.score_queries;
    if (options.beams > 1) {
      request.beam.emplace().width = static_cast<uint32_t>(options.beams);
    }
    return request;
  }

  engine::SchedulerLimits Limits() const {
    return {.pool_pages = GetParam().pool_pages,
            .workspace_tokens = 256,
            .max_batch = 10,
            .layers = TinyModel().layers,
            .slice_tokens = GetParam().slice,
            .call_rows = engine::kPromptCallRows,
            .max_skips = GetParam().max_skips};
  }
};

std::vector<TraceRequest> TwinTrace(uint64_t seed, size_t requests) {
  auto trace = DrawTrace({.requests = requests,
                          .prompt_tokens = 30,
                          .output_tokens = 40,
                          .spread = 0.8,
                          .max_tokens = 150,
                          .seed = seed});
  const PolicySpec kinds[] = {kFull,
                              kHalf,
                              {CachePolicy::kQuest, 0.4},
                              kFull,
                              {CachePolicy::kWindow, 0.6},
                              {CachePolicy::kH2O, 0.9}};
  for (size_t i = 0; i < trace.size(); ++i) {
    trace[i].policy = kinds[i % std::size(kinds)];
    trace[i].priority = static_cast<int32_t>(i % 7 == 0);
  }
  return trace;
}

TEST_P(EngineTwinTest, BothTakeTheSameSteps) {
  const TwinCase& c = GetParam();
  CoreTwin core(Limits());
  ReplicaTwin replica(Limits());
  ModelSpec model = TinyModel();
  model.context_tokens = kTwinContext;
  const auto trace = TwinTrace(c.seed, kRequests);
  std::mt19937_64 draws(c.seed);
  TimePoint now(std::chrono::hours(1));
  size_t next = 0;
  for (int step = 0; next < trace.size() || !core.idle(); ++step) {
    // Some come together, some steps apart.
    while (next < trace.size() && draws() % 4 == 0) {
      SimulationOptions options = TinyOptions();
      options.policy = *trace[next].policy;
      const bool quest = options.policy.policy == CachePolicy::kQuest;
      if (c.beams && next % 5 == 0 && !quest) options.beams = 2;
      engine::Request request = EngineRequest(trace[next], options);
      if (draws() % 8 == 0) request.deadline = now + std::chrono::seconds(2);
      const RequestId id = ++next;
      core.Add(id, request);
      replica.Add({.id = id,
                   .sizes = *SizesOf(trace[id - 1], model, options),
                   .priority = request.priority,
                   .deadline = request.deadline,
                   .arrival = now});
    }
    ASSERT_EQ(core.idle(), replica.idle()) << "step " << step;
    if (core.idle()) continue;
    StepSeen want = core.Step(now);
    const StepSeen got = replica.Step(now);
    // Beams that have pages in common take fewer than are counted for them.
    if (c.beams) {
      ASSERT_LE(want.pages_used, got.pages_used) << "step " << step;
      want.pages_used = got.pages_used;
    }
    ASSERT_EQ(got, want) << "step " << step;
    now = replica.ready();
  }
  EXPECT_TRUE(replica.idle());
  const Statistics& s = replica.statistics();
  EXPECT_GT(s.preemptions, 5);
  EXPECT_GT(s.replayed_token_layers, 0);
  EXPECT_GT(static_cast<int64_t>(s.request_s.size()), kRequests / 2);
}

INSTANTIATE_TEST_SUITE_P(
    Cases,
    EngineTwinTest,
    ::testing::Values(TwinCase{"SmallSlices", 1, 32, 0, 44, false},
                      TwinCase{"SmallPool", 2, 64, 3, 44, false},
                      TwinCase{"LongSlices", 3, 1024, 16, 48, false},
                      TwinCase{"Beams", 4, 64, 2, 60, true}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace kf::sim
