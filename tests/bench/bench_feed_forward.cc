// The feed-forward part of the default model's layer for a prompt's rows: in
// one operation and as three, in turn.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/core/thread_pool.h"
#include "kernels/cpu/simd_level.h"
#include "tests/bench/bench_weights.h"
#include "tests/bench/limits.h"

namespace kf::bench {
namespace {

constexpr int64_t kHidden = 576;
constexpr int64_t kFfn = 1536;

void RunFeedForwardBench(benchmark::State& state,
                         cpu::SimdLevel level,
                         int threads,
                         int64_t rows) {
  const auto backend = CreateBackend({.name = "cpu",
                                      .threads = threads,
                                      .simd = std::string(cpu::NameOf(level))})
                           .value();
  // Layers enough that their weights come from memory.
  struct Layer {
    std::unique_ptr<LinearWeights> gate_up;
    std::unique_ptr<LinearWeights> down;
  };
  std::vector<Layer> layers;
  for (size_t bytes = 0; bytes < static_cast<size_t>(kColdBytes);) {
    layers.push_back(
        {LoadWeights(*backend, WeightFormat::kBF16, 2 * kFfn, kHidden),
         LoadWeights(*backend, WeightFormat::kBF16, kHidden, kFfn)});
    bytes += layers.back().gate_up->bytes() + layers.back().down->bytes();
  }
  const auto floats = [rows](int64_t width, float value) {
    return std::vector<float>(static_cast<size_t>(rows * width), value);
  };
  const std::vector<float> x = floats(kHidden, 0.25F);
  std::vector<float> inout = floats(kHidden, 0.0F);
  std::vector<float> products = floats(2 * kFfn, 0.0F);
  std::vector<float> activated = floats(kFfn, 0.0F);
  const auto args = [&](const Layer& layer) {
    return FeedForwardArgs{.gate_up = *layer.gate_up,
                           .down = *layer.down,
                           .x = x.data(),
                           .rows = rows,
                           .inout = inout.data(),
                           .products = products.data(),
                           .activated = activated.data()};
  };
  MedianTimer whole;
  MedianTimer apart;
  size_t next = 0;
  for (auto _ : state) {
    whole.Start();
    absl::Status status = backend->FeedForward(args(layers[next]));
    whole.Stop();
    next = (next + 1) % layers.size();
    apart.Start();
    // Not the backend's own.
    status.Update(backend->Backend::FeedForward(args(layers[next])));
    apart.Stop();
    next = (next + 1) % layers.size();
    if (!status.ok()) state.SkipWithError("FeedForward failed");
    std::fill(inout.begin(), inout.end(), 0.0F);
  }
  ThreadPool pool(threads);
  const double seconds = whole.MedianSeconds();
  const double flops = 6.0 * static_cast<double>(rows * kHidden * kFfn);
  state.counters["whole_us"] = seconds * 1e6;
  state.counters["apart_us"] = apart.MedianSeconds() * 1e6;
  state.counters["gflops"] = flops / seconds * 1e-9;
  state.counters["of_peak"] =
      flops / seconds / MeasuredLimits(level, pool).bf16_flops;
}

void Register() {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  for (const cpu::SimdLevel level : cpu::AvailableSimdLevels()) {
    for (const int threads : {1, cores}) {
      for (const int64_t rows : {64, 128, 256, 512}) {
        const std::string name = "FeedForward/" +
                                 std::string(cpu::NameOf(level)) +
                                 "/bf16/threads:" + std::to_string(threads) +
                                 "/rows:" + std::to_string(rows);
        benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State&
                                                           state) {
          RunFeedForwardBench(state, level, threads, rows);
        })->UseRealTime();
      }
    }
  }
}

const bool kRegistered = (Register(), true);

}  // namespace
}  // namespace kf::bench
