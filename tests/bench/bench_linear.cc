// Linear products on the default model's shapes, as share of the machine's
// limits: operations of its peak, bytes of weights of its read bandwidth.
#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/core/thread_pool.h"
#include "kernels/cpu/dense_dispatch.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd_level.h"
#include "kernels/weight_format_name.h"
#include "tests/bench/bench_weights.h"
#include "tests/bench/limits.h"

namespace kf::bench {
namespace {

struct Shape {
  const char* name;
  int64_t out;
  int64_t in;
};
constexpr Shape kShapes[] = {
    {"qkv", 960, 576},   {"o", 576, 576},       {"gate_up", 3072, 576},
    {"down", 576, 1536}, {"vocab", 49152, 576}, {"square", 4096, 4096},
};

// Copies of the weights that are used in turn, so that each call finds its own
// in memory and not in a core's cache, as a model's layers do.
constexpr int64_t kCopiesBytes = int64_t{64} << 20;

void RunLinearBench(benchmark::State& state,
                    const Shape& shape,
                    WeightFormat format,
                    cpu::SimdLevel level,
                    int threads,
                    int64_t rows) {
  ThreadPool pool(threads);
  cpu::ScratchArena scratch;
  const DType type = format == WeightFormat::kQ4 ? DType::kQ4_1 : DType::kF32;
  const BlockLayout layout = LayoutOf(type);
  std::vector<std::byte> values(static_cast<size_t>(
      shape.out * shape.in / layout.elements * layout.bytes));
  FillWeights(type, values);
  const WeightView view = {type, shape.out, shape.in, values.data()};
  std::vector<std::unique_ptr<cpu::PackedLinear>> copies;
  int64_t bytes = 0;
  do {
    copies.push_back(
        cpu::PackedLinear::Create({&view, 1}, format, pool).value());
    bytes += static_cast<int64_t>(copies.back()->bytes());
  } while (bytes < kCopiesBytes);
  const std::vector<float> x(static_cast<size_t>(rows * shape.in), 0.25F);
  std::vector<float> out(static_cast<size_t>(rows * shape.out));
  size_t next = 0;
  MedianTimer timer;
  for (auto _ : state) {
    timer.Start();
    const auto status =
        cpu::RunLinear({cpu::DenseKernelsOf(level), cpu::GroupKernelsOf(level),
                        cpu::RowBlockKernelsOf(level), pool, scratch},
                       {.weights = *copies[next],
                        .x = x.data(),
                        .rows = rows,
                        .out = out.data()});
    if (!status.ok()) state.SkipWithError("RunLinear failed");
    next = (next + 1) % copies.size();
    benchmark::ClobberMemory();
    timer.Stop();
  }
  const Limits& limits = MeasuredLimits(level, pool);
  const double seconds = timer.MedianSeconds();
  const double flops = 2.0 * static_cast<double>(rows * shape.out * shape.in);
  const auto weights = static_cast<double>(copies[0]->bytes());
  // Of integer products too: the rate that they have to beat.
  const double peak =
      format == WeightFormat::kF32 ? limits.f32_flops : limits.bf16_flops;
  state.counters["gflops"] = flops / seconds * 1e-9;
  state.counters["of_peak"] = flops / seconds / peak;
  state.counters["gb"] = weights / seconds * 1e-9;
  state.counters["of_read"] = weights / seconds / limits.read_bytes;
}

void Register() {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  for (const cpu::SimdLevel level : cpu::AvailableSimdLevels()) {
    for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kF32,
                                      WeightFormat::kQ8, WeightFormat::kQ4}) {
      for (const int threads : {1, cores}) {
        for (const Shape& shape : kShapes) {
          for (const int64_t rows : {1, 2, 4, 8, 32, 512}) {
            const std::string name =
                "Linear/" + std::string(cpu::NameOf(level)) + "/" +
                NameOf(format) + "/threads:" + std::to_string(threads) + "/" +
                shape.name + "/rows:" + std::to_string(rows);
            benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State&
                                                               state) {
              RunLinearBench(state, shape, format, level, threads, rows);
            })->UseRealTime();
          }
        }
      }
    }
  }
}

const bool kRegistered = (Register(), true);

}  // namespace
}  // namespace kf::bench
