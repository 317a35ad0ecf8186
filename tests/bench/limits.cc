#include "tests/bench/limits.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <utility>

#include "kernels/core/aligned.h"

namespace kf::bench {
namespace {

// Short runs, many of them: the best one was not interrupted.
constexpr int kRuns = 100;

// Units of work a second: the best of kRuns, each thread doing one piece.
template <typename Fn>
double BestRate(ThreadPool& pool, const Fn& fn) {
  double best = 0;
  for (int run = 0; run < kRuns; ++run) {
    std::vector<int64_t> done(static_cast<size_t>(pool.threads()));
    const auto start = std::chrono::steady_clock::now();
    pool.ParallelFor(pool.threads(), [&](int64_t index, int) {
      done[static_cast<size_t>(index)] = fn(index);
    });
    const std::chrono::duration<double> seconds =
        std::chrono::steady_clock::now() - start;
    int64_t total = 0;
    for (const int64_t d : done) total += d;
    best = std::max(best, static_cast<double>(total) / seconds.count());
  }
  return best;
}

Limits Measure(cpu::SimdLevel level, ThreadPool& pool) {
  const cpu::LimitKernels& kernels = LimitKernelsOf(level);
  constexpr int64_t kRounds = 50'000;
  auto memory = AlignedBytes::Allocate(kColdBytes, "bandwidth test");
  if (!memory.ok()) return {};
  std::memset(memory->data(), 1, memory->bytes());
  const int64_t share = kColdBytes / pool.threads();
  return {
      .f32_flops =
          BestRate(pool, [&](int64_t) { return kernels.fma_f32(kRounds); }),
      .bf16_flops =
          BestRate(pool, [&](int64_t) { return kernels.dot_bf16(kRounds); }),
      .read_bytes = BestRate(pool,
                             [&](int64_t index) {
                               kernels.read(memory->data() + index * share,
                                            share);
                               return share;
                             }),
  };
}

}  // namespace

#if KF_X86_LEVELS
namespace {

const cpu::LimitKernels& LimitKernelsWithTiles() {
  static const cpu::LimitKernels kernels = [] {
    cpu::LimitKernels with_tiles = cpu::avx512::kLimitKernels;
    with_tiles.dot_bf16 = cpu::amx_bf16::DotTiles;
    return with_tiles;
  }();
  return kernels;
}

}  // namespace
#endif

const cpu::LimitKernels& LimitKernelsOf(cpu::SimdLevel level) {
  switch (level) {
#if KF_X86_LEVELS
    case cpu::SimdLevel::kAmxBf16:
      return LimitKernelsWithTiles();
    case cpu::SimdLevel::kAvx2:
      return cpu::avx2::kLimitKernels;
    case cpu::SimdLevel::kAvx512:
      return cpu::avx512::kLimitKernels;
    case cpu::SimdLevel::kAvx512Bf16:
      return cpu::avx512_bf16::kLimitKernels;
#endif
    default:
      return cpu::scalar::kLimitKernels;
  }
}

double MedianTimer::MedianSeconds() const {
  std::vector<double> sorted = seconds_;
  if (sorted.empty()) return 0.0;
  std::sort(sorted.begin(), sorted.end());
  return std::max(sorted[sorted.size() / 2], 1e-9);
}

const Limits& MeasuredLimits(cpu::SimdLevel level, ThreadPool& pool) {
  static std::map<std::pair<cpu::SimdLevel, int>, Limits> known;
  const auto key = std::make_pair(level, pool.threads());
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  return known.emplace(key, Measure(level, pool)).first->second;
}

}  // namespace kf::bench
