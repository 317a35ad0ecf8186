// Attention on the default model's shape (9 query heads, 3 kv heads, d 64), one
// layer: prompts with and without scoring, as share of the machine's peak, and
// decode steps, as share of its read bandwidth.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/aligned.h"
#include "kernels/core/status.h"
#include "kernels/core/thread_pool.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd_level.h"
#include "tests/bench/limits.h"

namespace kf::bench {
namespace {

constexpr int32_t kQueryHeads = 9;
constexpr int32_t kKvHeads = 3;
constexpr int32_t kHeadDim = 64;

AttentionShape ShapeOf(DType dtype) {
  return {kQueryHeads, kKvHeads, kHeadDim, kHeadDim, 10000.0, dtype};
}

std::vector<float> RandomRows(int64_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = normal(random);
  return values;
}

// A pool whose pages are written once, so that they are really there; on huge
// pages where the system has them, as the server's.
struct Pages {
  Pages(const AttentionShape& shape, int64_t count)
      : bytes(count * static_cast<int64_t>(cpu::PageBytes(shape))) {
    auto memory =
        AlignedBytes::Allocate(static_cast<size_t>(bytes), "cache pages");
    KF_CHECK(memory.ok());
    pool.emplace(std::move(*memory));
    std::memset(pool->data(), 0, pool->bytes());
    list.resize(static_cast<size_t>(count));
    std::iota(list.begin(), list.end(), 0);
  }
  std::byte* data() { return pool->data(); }
  int64_t bytes;
  std::optional<AlignedBytes> pool;
  std::vector<int32_t> list;
};

struct Rig {
  Rig(cpu::SimdLevel level, int threads)
      : pool(threads), context{level, pool, scratch, rope} {}
  ThreadPool pool;
  cpu::ScratchArena scratch;
  cpu::RopeTable rope;
  cpu::AttentionContext context;
};

// tau 0: not scored.
void RunPrompt(benchmark::State& state,
               cpu::SimdLevel level,
               int threads,
               DType dtype,
               int32_t tokens,
               float tau) {
  Rig rig(level, threads);
  const AttentionShape shape = ShapeOf(dtype);
  Pages pages(shape, tokens / kPageTokens);
  std::vector<float> qkv = RandomRows(tokens * shape.qkv_dim());
  std::vector<float> out(static_cast<size_t>(tokens * shape.out_dim()));
  const PromptAttentionItem item = {
      .prompt_tokens = tokens,
      .rows = tokens,
      .keys = {pages.data(), pages.list},
      .score = {tau > 0.0F, NoiseKind::kGumbel, false, 1, 0, tau}};
  MedianTimer timer;
  for (auto _ : state) {
    timer.Start();
    const auto status = cpu::PromptAttention(
        rig.context, {shape, 0, qkv.data(), out.data(), {&item, 1}});
    if (!status.ok()) state.SkipWithError("PromptAttention failed");
    benchmark::ClobberMemory();
    timer.Stop();
  }
  // q . k and p V of the causal half.
  const double n = tokens;
  const double flops = 2.0 * 2.0 * kQueryHeads * kHeadDim * n * (n + 1) / 2.0;
  const Limits& limits = MeasuredLimits(level, rig.pool);
  const double seconds = timer.MedianSeconds();
  state.counters["ms"] = seconds * 1e3;
  state.counters["gflops"] = flops / seconds * 1e-9;
  state.counters["of_peak"] =
      flops / seconds /
      (dtype == DType::kBF16 ? limits.bf16_flops : limits.f32_flops);
}

// Steps of sequences of `keys` keys. Layers are taken in turn, so that each
// finds its pages in memory.
class DecodeRig {
 public:
  DecodeRig(cpu::SimdLevel level,
            int threads,
            DType dtype,
            int32_t sequences,
            int32_t keys)
      : rig(level, threads),
        shape_(ShapeOf(dtype)),
        sequences_(sequences),
        keys_(keys),
        pages_per_(keys / kPageTokens + 1),
        step_bytes_(static_cast<int64_t>(cpu::PageBytes(shape_)) * pages_per_ *
                    sequences),
        layers_(std::max<int64_t>(2, kColdBytes / step_bytes_)),
        pages_(shape_, layers_ * sequences * pages_per_),
        qkv_(RandomRows(sequences * shape_.qkv_dim())),
        out_(static_cast<size_t>(sequences * shape_.out_dim())) {}

  int64_t step_bytes() const { return step_bytes_; }

  // tau 0: not scored. With `evicts` the budget is full.
  bool Step(float tau, bool evicts) {
    std::vector<int32_t> free_slots(static_cast<size_t>(sequences_) * kKvHeads,
                                    keys_);
    std::vector<DecodeAttentionItem> items;
    for (int32_t i = 0; i < sequences_; ++i) {
      items.push_back(
          {.position = 2 * keys_,
           .held = keys_,
           .budget = evicts ? keys_ : 2 * keys_,
           .recent = keys_ / 3,
           .cache = {pages_.data(),
                     std::span(pages_.list)
                         .subspan(static_cast<size_t>(
                                      (layer_ * sequences_ + i) * pages_per_),
                                  static_cast<size_t>(pages_per_))},
           .free_slot = free_slots.data() + int64_t{i} * kKvHeads,
           .score = {tau > 0.0F, NoiseKind::kGumbel, false, 1, 0, tau}});
    }
    layer_ = (layer_ + 1) % layers_;
    const bool ok = cpu::DecodeAttention(rig.context, {shape_, 0, qkv_.data(),
                                                       out_.data(), items})
                        .ok();
    benchmark::ClobberMemory();
    return ok;
  }

  Rig rig;

 private:
  AttentionShape shape_;
  int32_t sequences_;
  int32_t keys_;
  int64_t pages_per_;
  int64_t step_bytes_;
  int64_t layers_;
  Pages pages_;
  std::vector<float> qkv_;
  std::vector<float> out_;
  int64_t layer_ = 0;
};

void RunDecode(benchmark::State& state,
               cpu::SimdLevel level,
               int threads,
               DType dtype,
               int32_t sequences,
               int32_t keys,
               float tau) {
  DecodeRig decode(level, threads, dtype, sequences, keys);
  MedianTimer timer;
  for (auto _ : state) {
    timer.Start();
    if (!decode.Step(tau, true)) state.SkipWithError("DecodeAttention failed");
    timer.Stop();
  }
  const double seconds = timer.MedianSeconds();
  const Limits& limits = MeasuredLimits(level, decode.rig.pool);
  const auto bytes = static_cast<double>(decode.step_bytes());
  state.counters["us"] = seconds * 1e6;
  state.counters["gb"] = bytes / seconds * 1e-9;
  state.counters["of_read"] = bytes / seconds / limits.read_bytes;
}

// What scoring and eviction take of decode attention at equal length: steps of
// FULL and of KEYFORMER in turn, so that both meet the same machine.
void RunScoringShare(benchmark::State& state,
                     cpu::SimdLevel level,
                     int threads,
                     DType dtype,
                     int32_t sequences,
                     int32_t keys) {
  DecodeRig decode(level, threads, dtype, sequences, keys);
  MedianTimer full;
  MedianTimer keyformer;
  for (auto _ : state) {
    full.Start();
    bool ok = decode.Step(0.0F, false);
    full.Stop();
    keyformer.Start();
    ok = decode.Step(1.5F, true) && ok;
    keyformer.Stop();
    if (!ok) state.SkipWithError("DecodeAttention failed");
  }
  state.counters["full_us"] = full.MedianSeconds() * 1e6;
  state.counters["keyformer_us"] = keyformer.MedianSeconds() * 1e6;
  state.counters["share"] =
      1.0 - full.MedianSeconds() / keyformer.MedianSeconds();
}

std::string TauName(float tau) {
  return tau == 0.0F ? "plain" : tau == 1.0F ? "scored" : "scored_tau1.5";
}

std::string TypeName(DType dtype) {
  return dtype == DType::kF32 ? "/f32" : dtype == DType::kI8 ? "/q8" : "/bf16";
}

void Register() {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  for (const cpu::SimdLevel level : cpu::AvailableSimdLevels()) {
    for (const DType dtype : {DType::kBF16, DType::kF32, DType::kI8}) {
      for (const int threads : {1, cores}) {
        const std::string prefix =
            "Attention/" + std::string(cpu::NameOf(level)) + TypeName(dtype) +
            "/threads:" + std::to_string(threads);
        for (const int32_t sequences : {1, 8, 18}) {
          const std::string name =
              prefix + "/decode:" + std::to_string(sequences) + "x1024/share";
          benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State&
                                                             state) {
            RunScoringShare(state, level, threads, dtype, sequences, 1024);
          })->UseRealTime();
        }
        for (const float tau : {0.0F, 1.0F, 1.5F}) {
          // Prompts do not attend to 8 bits.
          for (const int32_t tokens : dtype == DType::kI8
                                          ? std::vector<int32_t>{}
                                          : std::vector<int32_t>{512, 2048}) {
            const std::string name = prefix +
                                     "/prompt:" + std::to_string(tokens) + "/" +
                                     TauName(tau);
            benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State&
                                                               state) {
              RunPrompt(state, level, threads, dtype, tokens, tau);
            })->UseRealTime();
          }
          for (const int32_t sequences : {1, 8, 32}) {
            for (const int32_t keys : {512, 1024, 2048}) {
              const std::string name =
                  prefix + "/decode:" + std::to_string(sequences) + "x" +
                  std::to_string(keys) + "/" + TauName(tau);
              benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State&
                                                                 state) {
                RunDecode(state, level, threads, dtype, sequences, keys, tau);
              })->UseRealTime();
            }
          }
        }
      }
    }
  }
}

const bool kRegistered = (Register(), true);

}  // namespace
}  // namespace kf::bench
