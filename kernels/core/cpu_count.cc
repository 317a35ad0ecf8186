#include "kernels/core/cpu_count.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#include <unistd.h>
#endif

namespace kf {
namespace {

// More than any machine has; keeps the arithmetic far from overflow.
constexpr int64_t kMaxMicroseconds = int64_t{1} << 50;
constexpr int64_t kMaxCores = 1 << 20;

// The number at the start of `text`, if it is all that is there but one end of
// line; else -1.
int64_t ParseMicroseconds(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const bool whole = error == std::errc() && stop == end;
  return whole && value <= kMaxMicroseconds ? value : -1;
}

// Empty if there is no such file.
std::string ReadFile(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

int AffinityCores() {
#if defined(__linux__)
  cpu_set_t set;
  // Fails on machines of more than 1024 CPUs.
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

int CoresOfCfsQuota(std::string_view quota_us, std::string_view period_us) {
  const int64_t quota = ParseMicroseconds(quota_us);
  const int64_t period = ParseMicroseconds(period_us);
  if (quota <= 0 || period <= 0) return 0;
  return static_cast<int>(std::min((quota + period - 1) / period, kMaxCores));
}

int CoresOfCpuMax(std::string_view cpu_max) {
  const size_t space = cpu_max.find(' ');
  if (space == std::string_view::npos) return 0;
  return CoresOfCfsQuota(cpu_max.substr(0, space), cpu_max.substr(space + 1));
}

int UsableCores() {
  int cores = std::max(AffinityCores(), 1);
  for (const int quota :
       {CoresOfCpuMax(ReadFile("/sys/fs/cgroup/cpu.max")),
        CoresOfCfsQuota(ReadFile("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
                        ReadFile("/sys/fs/cgroup/cpu/cpu.cfs_period_us"))}) {
    if (quota > 0) cores = std::min(cores, quota);
  }
  return cores;
}

bool FillsCores(int threads) {
  return threads == AffinityCores() && threads == UsableCores();
}

void KeepOnCore([[maybe_unused]] int index) {
#if defined(__linux__)
  cpu_set_t cores;
  if (sched_getaffinity(getpid(), sizeof(cores), &cores) != 0) return;
  int left = index % std::max(CPU_COUNT(&cores), 1);
  for (size_t core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &cores) || left-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    sched_setaffinity(0, sizeof(one), &one);
    return;
  }
#endif
}

}  // namespace kf
