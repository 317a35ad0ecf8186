// How many threads this process can really run at the same time.
#pragma once

#include <string_view>

namespace kf {

// Whole cores of a control group's CPU quota, rounded up; 0: no limit, or text
// that the kernel would not write.
//   v2: cpu.max, "200000 100000\n" or "max 100000\n"
//   v1: cpu.cfs_quota_us, "200000\n" or "-1\n", and cpu.cfs_period_us
int CoresOfCpuMax(std::string_view cpu_max);
int CoresOfCfsQuota(std::string_view quota_us, std::string_view period_us);

// Cores this process may use, >= 1: those of its affinity mask, but no more
// than the quota of the control group mounted at /sys/fs/cgroup (a container's
// own). More threads than that would take the quota from each other by waiting.
int UsableCores();

// Whether `threads` threads could have a core each, and together all that the
// calling thread may use: as many as its affinity mask has, and no quota less.
bool FillsCores(int threads);

// Keeps the calling thread on the index-th core of the affinity mask with which
// the process's first thread runs, counted round; threads that it starts
// inherit that. Without effect where there are no such masks.
void KeepOnCore(int index);

}  // namespace kf
