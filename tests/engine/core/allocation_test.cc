// A decode step takes no memory from the heap: neither the engine's thread nor
// the kernels' do, once the first steps have given their vectors the size that
// they keep. What allocates is told apart by case: see kCases.
//
// This binary replaces malloc, which sanitizers have replaced already: with
// them there is nothing to count with.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/core/engine_harness.h"
#include "tests/testing/matchers.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KF_COUNTS_ALLOCATIONS 0
#else
#define KF_COUNTS_ALLOCATIONS 1
#endif

namespace {

// Of all threads.
std::atomic<int64_t> allocations{0};

}  // namespace

#if KF_COUNTS_ALLOCATIONS
// glibc's own, under the names that it keeps for those who replace the others;
// operator new comes here too.
extern "C" {
void* __libc_malloc(size_t bytes);                  // NOLINT
void* __libc_calloc(size_t count, size_t bytes);    // NOLINT
void* __libc_realloc(void* memory, size_t bytes);   // NOLINT
void* __libc_memalign(size_t align, size_t bytes);  // NOLINT
void* malloc(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(memory, bytes);
}
void* aligned_alloc(size_t align, size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(align, bytes);
}
int posix_memalign(void** memory, size_t align, size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  *memory = __libc_memalign(align, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}
}
#endif

namespace kf::engine {
namespace {

// All are there before the second step. The prompts' part of a test is over
// when all of them decode; the window ends before the first of them does.
constexpr int kStreams = 3;
constexpr int32_t kPromptTokens = 60;
constexpr uint32_t kNewTokens = 200;
constexpr int kWarmSteps = 60;
constexpr int kCountedSteps = 100;

// Notes, at the end of each step of all streams, how many allocations there
// have been. Its own memory is there from the start.
class StepCounter final : public EngineObserver {
 public:
  StepCounter() { counts_.reserve(kNewTokens + 1); }
  void OnStep(const StepReport& report) override {
    if (!passed_) gate_.Pass();
    passed_ = true;
    const int64_t now = allocations.load();
    if (report.decode_rows == kStreams && !report.prefilled &&
        counts_.size() < counts_.capacity()) {
      counts_.push_back(now - before_);
    }
    before_ = now;
  }
  // Of each step since the one before; valid when the engine is idle.
  const std::vector<int64_t>& counts() const { return counts_; }
  Gate& gate() { return gate_; }

 private:
  Gate gate_;  // holds the first step
  bool passed_ = false;
  int64_t before_ = 0;
  std::vector<int64_t> counts_;
};

// Takes what comes, and remembers nothing of it but the end.
class Drain final : public TokenSink {
 public:
  void OnUpdate(Update /*update*/) override {}
  void OnEnd(const absl::Status& status) override {
    const MutexLock lock(mu_);
    ok_ = status.ok();
    ended_ = true;
    changed_.NotifyAll();
  }
  // Whether the request ended well; allocates nothing while it waits.
  bool Wait() {
    const MutexLock lock(mu_);
    while (!ended_) {
      if (!changed_.WaitFor(mu_, kPatience)) return false;
    }
    return ok_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool ended_ KF_GUARDED_BY(mu_) = false;
  bool ok_ KF_GUARDED_BY(mu_) = false;
};

struct Case {
  const char* name;
  WeightFormat weights = WeightFormat::kBF16;
  CachePolicy policy = CachePolicy::kKeyformer;
  void (*change)(Request& request) = [](Request&) {};
  // Steps of the counted ones in which a page list may grow.
  int steps_with_growth = 0;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.name;
}

// A sequence that grows takes a page in each layer for every 16 tokens, and its
// lists with them. Penalties that count tokens, logprobs, beams and text of
// more than 15 bytes a token have memory of their own, and are left out.
const Case kCases[] = {
    {.name = "Greedy"},
    {.name = "F32", .weights = WeightFormat::kF32},
    {.name = "Q8", .weights = WeightFormat::kQ8},
    {.name = "Q4", .weights = WeightFormat::kQ4},
    {.name = "H2O", .policy = CachePolicy::kH2O},
    {.name = "Window", .policy = CachePolicy::kWindow},
    {.name = "LayerScope",
     .change = [](Request& r) { r.cache.scope = SelectionScope::kLayer; }},
    {.name = "ModelScope",
     .change = [](Request& r) { r.cache.scope = SelectionScope::kModel; }},
    {.name = "CachePositions",
     .change = [](Request& r) { r.cache.positions = CachePositions::kCache; }},
    {.name = "Sampled",
     .change =
         [](Request& r) {
           r.sampling.temperature = 0.9;
           r.sampling.top_k = 40;
           r.sampling.top_p = 0.95;
           r.sampling.min_p = 0.01;
         }},
    {.name = "Typical",
     .change =
         [](Request& r) {
           r.sampling.temperature = 1.1;
           r.sampling.typical_p = 0.9;
         }},
    {.name = "StopString",
     .change = [](Request& r) { r.stopping.stop = {"never to be seen"}; }},
    // Two pages to a layer and 16 steps, seven times at most.
    {.name = "Full", .policy = CachePolicy::kFull, .steps_with_growth = 7},
    {.name = "Quest", .policy = CachePolicy::kQuest, .steps_with_growth = 7},
};

Request RequestOf(const Case& c, uint32_t seed) {
  const bool grows =
      c.policy == CachePolicy::kFull || c.policy == CachePolicy::kQuest;
  Request request =
      grows ? MakeRequest(seed, kPromptTokens, kNewTokens)
            : MakeKeyformerRequest(seed, kPromptTokens, kNewTokens, 32, 8);
  request.cache.policy = c.policy;
  if (c.policy == CachePolicy::kQuest) request.cache.tokens = 32;
  request.stopping.ignore_eos = true;
  request.output = {};
  c.change(request);
  return request;
}

class AllocationTest : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Steps,
                         AllocationTest,
                         ::testing::ValuesIn(kCases),
                         [](const auto& entry) {
                           return std::string(entry.param.name);
                         });

TEST_P(AllocationTest, ADecodeStepTakesNoMemory) {
  if (!KF_COUNTS_ALLOCATIONS) GTEST_SKIP() << "a sanitizer owns malloc";
  StepCounter counter;
  EngineOptions options = TinyOptions("");
  options.weight_format = GetParam().weights;
  options.cache_dtype = DType::kBF16;
  options.backend.threads = 2;
  TestEngine engine({.options = options, .observer = &counter});
  std::vector<std::shared_ptr<Drain>> drains;
  for (uint32_t i = 0; i < kStreams; ++i) {
    drains.push_back(std::make_shared<Drain>());
    ASSERT_THAT(engine->Submit(RequestOf(GetParam(), i + 1), drains.back()),
                testing::IsOk());
    if (i == 0) counter.gate().WaitUntilReached();
  }
  counter.gate().Open();
  for (const auto& drain : drains) ASSERT_TRUE(drain->Wait());
  ASSERT_TRUE(engine->WaitIdle(kPatience));

  const std::vector<int64_t>& counts = counter.counts();
  ASSERT_GT(counts.size(), size_t{kWarmSteps + kCountedSteps});
  int steps = 0;
  std::string text;
  for (size_t i = kWarmSteps; i < kWarmSteps + kCountedSteps; ++i) {
    if (counts[i] == 0) continue;
    ++steps;
    text += " " + std::to_string(i) + ":" + std::to_string(counts[i]);
  }
  EXPECT_LE(steps, GetParam().steps_with_growth * kStreams)
      << "step:allocations" << text;
}

// The counter does count: a test that sees nothing would pass for ever.
TEST(AllocationTest, TheCounterCounts) {
  if (!KF_COUNTS_ALLOCATIONS) GTEST_SKIP() << "a sanitizer owns malloc";
  const int64_t before = allocations.load();
  auto number = std::make_unique<volatile int>(1);
  EXPECT_EQ(*number, 1);
  EXPECT_EQ(allocations.load(), before + 1);
}

}  // namespace
}  // namespace kf::engine
