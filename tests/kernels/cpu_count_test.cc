#include "kernels/core/cpu_count.h"

#include <gtest/gtest.h>

#include <barrier>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/thread_pool.h"

#if defined(__linux__)
#include <sched.h>
#endif

namespace kf {
namespace {

TEST(CpuCount, QuotaOfVersionTwo) {
  EXPECT_EQ(CoresOfCpuMax("200000 100000\n"), 2);
  EXPECT_EQ(CoresOfCpuMax("200000 100000"), 2);
  EXPECT_EQ(CoresOfCpuMax("200001 100000\n"), 3);
  EXPECT_EQ(CoresOfCpuMax("50000 100000\n"), 1);
  EXPECT_EQ(CoresOfCpuMax("1000 1000000\n"), 1);
  EXPECT_EQ(CoresOfCpuMax("max 100000\n"), 0);
}

TEST(CpuCount, QuotaOfVersionOne) {
  EXPECT_EQ(CoresOfCfsQuota("350000\n", "100000\n"), 4);
  EXPECT_EQ(CoresOfCfsQuota("100000\n", "100000\n"), 1);
  EXPECT_EQ(CoresOfCfsQuota("-1\n", "100000\n"), 0);
}

TEST(CpuCount, StrangeTextIsNoLimit) {
  for (const char* text :
       {"", "\n", " ", "max", "200000", "200000 ", " 100000", "200000 0\n",
        "0 100000\n", "-200000 100000\n", "200000 -100000\n", "2e5 100000\n",
        "200000  100000\n", "200000 100000 5\n", "200000 100000\n\n",
        "99999999999999999999 100000\n", "9223372036854775807 100000\n"}) {
    EXPECT_EQ(CoresOfCpuMax(text), 0) << '"' << text << '"';
  }
  EXPECT_EQ(CoresOfCfsQuota("", ""), 0);
  EXPECT_EQ(CoresOfCfsQuota("100000\n", ""), 0);
  EXPECT_EQ(CoresOfCpuMax("1125899906842624 1\n"), 1 << 20);
}

TEST(CpuCount, BackendsTakeUsableCores) {
  EXPECT_GE(UsableCores(), 1);
  const auto backend = CreateBackend({.simd = "scalar"});
  ASSERT_TRUE(backend.ok());
  EXPECT_EQ((*backend)->description(),
            "cpu, scalar, " + std::to_string(UsableCores()) + " threads");
}

#if defined(__linux__)
// As `taskset -c N` does; in a thread of its own, whose mask ends with it.
TEST(CpuCount, FollowsTheAffinityMask) {
  std::thread([] {
    cpu_set_t old;
    ASSERT_EQ(sched_getaffinity(0, sizeof(old), &old), 0);
    size_t first = 0;
    while (!CPU_ISSET(first, &old)) ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(UsableCores(), 1);
    const auto backend = CreateBackend({.simd = "scalar"});
    ASSERT_TRUE(backend.ok());
    EXPECT_EQ((*backend)->description(), "cpu, scalar, 1 threads");
  }).join();
}

// Cores of the calling thread.
cpu_set_t Cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  EXPECT_EQ(sched_getaffinity(0, sizeof(cores), &cores), 0);
  return cores;
}

TEST(CpuCount, WorkersKeepToCoresOfTheirOwn) {
  const cpu_set_t mine = Cores();
  const int threads = CPU_COUNT(&mine);
  ThreadPool pool(threads, /*keep_cores=*/true);
  std::vector<cpu_set_t> cores(static_cast<size_t>(threads));
  std::barrier all(threads);  // so that each worker takes an index
  pool.ParallelFor(threads, [&](int64_t, int worker) {
    cores[static_cast<size_t>(worker)] = Cores();
    all.arrive_and_wait();
  });
  // The caller is its owner's to keep.
  EXPECT_TRUE(CPU_EQUAL(&cores[0], &mine));
  for (size_t i = 1; i < cores.size(); ++i) {
    EXPECT_EQ(CPU_COUNT(&cores[i]), 1);
    for (size_t j = 1; j < i; ++j)
      EXPECT_FALSE(CPU_EQUAL(&cores[i], &cores[j]));
  }
}

TEST(CpuCount, OnlyBackendsThatFillTheCoresKeepThem) {
  for (const int threads : {UsableCores(), UsableCores() + 1}) {
    const auto backend = CreateBackend(
        {.threads = threads, .keep_cores = true, .simd = "scalar"});
    ASSERT_TRUE(backend.ok());
    const bool fills = FillsCores(threads);
    std::thread([&] {
      const cpu_set_t before = Cores();
      (*backend)->AdoptThread();
      cpu_set_t after = Cores();
      if (fills) {
        EXPECT_EQ(CPU_COUNT(&after), 1);
      } else {
        EXPECT_TRUE(CPU_EQUAL(&before, &after));
      }
    }).join();
  }
  EXPECT_FALSE(FillsCores(UsableCores() + 1));
}
#endif

}  // namespace
}  // namespace kf
