// Attention on the default model's shape (9 query heads, 3 kv heads, d 64), one
// layer: prompts with and without scoring, as share of the machine's peak, and
// decode steps, as share of its read bandwidth.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/backend.h"
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

// A pool whose pages are written once, so that they are really there.
struct Pages {
  Pages(const AttentionShape& shape, int64_t count)
      : bytes(static_cast<size_t>(count) * cpu::PageBytes(shape)), list() {
    list.resize(static_cast<size_t>(count));
    std::iota(list.begin(), list.end(), 0);
  }
  std::vector<std::byte> bytes;
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
      .keys = {pages.bytes.data(), pages.list},
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

void RunDecode(benchmark::State& state,
               cpu::SimdLevel level,
               int threads,
               DType dtype,
               int32_t sequences,
               int32_t keys,
               float tau) {
  Rig rig(level, threads);
  const AttentionShape shape = ShapeOf(dtype);
  // Layers are taken in turn, so that each finds its pages in memory.
  const int64_t pages_per = keys / kPageTokens + 1;
  const auto step_bytes =
      static_cast<int64_t>(cpu::PageBytes(shape)) * pages_per * sequences;
  const auto layers = std::max<int64_t>(1, kColdBytes / step_bytes);
  Pages pages(shape, layers * sequences * pages_per);
  std::vector<int32_t> free_slots(
      static_cast<size_t>(layers * sequences * kKvHeads), keys);
  std::vector<float> qkv = RandomRows(sequences * shape.qkv_dim());
  std::vector<float> out(static_cast<size_t>(sequences * shape.out_dim()));
  std::vector<DecodeAttentionItem> items;
  for (int64_t i = 0; i < layers * sequences; ++i) {
    items.push_back(
        {.position = 2 * keys,
         .held = keys,
         .budget = keys,
         .recent = keys / 3,
         .cache = {pages.bytes.data(),
                   std::span(pages.list)
                       .subspan(static_cast<size_t>(i * pages_per),
                                static_cast<size_t>(pages_per))},
         .free_slot = free_slots.data() + i * kKvHeads,
         .score = {tau > 0.0F, NoiseKind::kGumbel, false, 1, 0, tau}});
  }
  MedianTimer timer;
  size_t layer = 0;
  for (auto _ : state) {
    timer.Start();
    const auto status = cpu::DecodeAttention(
        rig.context,
        {shape, 0, qkv.data(), out.data(),
         std::span(items).subspan(layer * static_cast<size_t>(sequences),
                                  static_cast<size_t>(sequences))});
    if (!status.ok()) state.SkipWithError("DecodeAttention failed");
    benchmark::ClobberMemory();
    timer.Stop();
    layer = (layer + 1) % static_cast<size_t>(layers);
  }
  const double seconds = timer.MedianSeconds();
  const Limits& limits = MeasuredLimits(level, rig.pool);
  state.counters["us"] = seconds * 1e6;
  state.counters["gb"] = static_cast<double>(step_bytes) / seconds * 1e-9;
  state.counters["of_read"] =
      static_cast<double>(step_bytes) / seconds / limits.read_bytes;
}

std::string TauName(float tau) {
  return tau == 0.0F ? "plain" : tau == 1.0F ? "scored" : "scored_tau1.5";
}

void Register() {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  for (const cpu::SimdLevel level : cpu::AvailableSimdLevels()) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      for (const int threads : {1, cores}) {
        const std::string prefix = "Attention/" +
                                   std::string(cpu::NameOf(level)) +
                                   (dtype == DType::kF32 ? "/f32" : "/bf16") +
                                   "/threads:" + std::to_string(threads);
        for (const float tau : {0.0F, 1.0F, 1.5F}) {
          for (const int32_t tokens : {512, 2048}) {
            const std::string name = prefix +
                                     "/prompt:" + std::to_string(tokens) + "/" +
                                     TauName(tau);
            benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State&
                                                               state) {
              RunPrompt(state, level, threads, dtype, tokens, tau);
            })->UseRealTime();
          }
          for (const int32_t sequences : {1, 8, 32}) {
            for (const int32_t keys : {512, 2048}) {
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
