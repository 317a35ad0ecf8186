// The machine's limits, by level and threads.
#include <benchmark/benchmark.h>

#include <thread>

#include "kernels/core/thread_pool.h"
#include "kernels/cpu/simd_level.h"
#include "tests/bench/limits.h"

namespace kf::bench {
namespace {

void Register() {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  for (const cpu::SimdLevel level : cpu::AvailableSimdLevels()) {
    for (const int threads : {1, cores}) {
      const std::string name = "Limits/" + std::string(cpu::NameOf(level)) +
                               "/threads:" + std::to_string(threads);
      benchmark::RegisterBenchmark(name.c_str(), [level, threads](
                                                     benchmark::State& state) {
        ThreadPool pool(threads);
        Limits limits;
        for (auto _ : state) limits = MeasuredLimits(level, pool);
        state.counters["f32_gflops"] = limits.f32_flops * 1e-9;
        state.counters["bf16_gflops"] = limits.bf16_flops * 1e-9;
        state.counters["read_gb"] = limits.read_bytes * 1e-9;
      })->Iterations(1);
    }
  }
}

const bool kRegistered = (Register(), true);

}  // namespace
}  // namespace kf::bench
