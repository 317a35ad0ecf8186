// The GPU benchmark: gpu_bench [--device cuda|cpu] [--sizes large|tiny]
//   [--seconds S] [--out FOLDER]
//
// Writes FOLDER/results.json and FOLDER/results.md. Exit code: 0; 1: an
// operation failed (what was measured before is written all the same); 2: wrong
// arguments.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <string>
#include <string_view>

#include "kernels/core/status.h"
#include "tests/gpu/model_bench.h"
#include "tests/gpu/operation_bench.h"
#include "tests/gpu/plan.h"
#include "tests/gpu/report.h"
#include "tests/gpu/timing.h"

namespace kf::gpu_bench {
namespace {

struct Flags {
  std::string device = "cuda";
  std::string sizes = "large";
  double seconds = 240.0;
  std::string out = ".";
};

bool Parse(int argc, char** argv, Flags& flags) {
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    if (i + 1 == argc) return false;
    if (name == "--device") {
      flags.device = argv[i + 1];
    } else if (name == "--sizes") {
      flags.sizes = argv[i + 1];
    } else if (name == "--seconds") {
      flags.seconds = std::strtod(argv[i + 1], nullptr);
    } else if (name == "--out") {
      flags.out = argv[i + 1];
    } else {
      return false;
    }
  }
  return flags.sizes == "large" || flags.sizes == "tiny";
}

std::string Now() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", std::gmtime(&now));
  return text;
}

absl::Status RunAll(const Flags& flags, Report& report) {
  const Stopwatch watch;
  KF_ASSIGN_OR_RETURN(Plan plan, flags.sizes == "large" ? LargePlan(flags.out)
                                                        : TinyPlan(flags.out));
  plan.seconds = flags.seconds;
  plan.make_backend = [&flags] {
    return CreateBackend({.name = flags.device});
  };
  {
    KF_ASSIGN_OR_RETURN(const auto backend, plan.make_backend());
    report.Fact("backend", backend->description());
    plan.peak_tflops = PeakTflops(backend->description());
  }
  report.Fact("time", Now());
  report.Fact("sizes", flags.sizes);
  DeviceLimits limits;
  KF_RETURN_IF_ERROR(RunOperations(plan, report, limits));
  KF_RETURN_IF_ERROR(RunModels(plan, limits, watch, report));
  report.Fact("seconds", absl::StrCat(static_cast<int64_t>(watch.Seconds())));
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Flags flags;
  if (!Parse(argc, argv, flags)) {
    std::fprintf(stderr,
                 "gpu_bench [--device cuda|cpu] [--sizes large|tiny] "
                 "[--seconds S] [--out FOLDER]\n");
    return 2;
  }
  std::error_code error;
  std::filesystem::create_directories(flags.out, error);
  Report report;
  const absl::Status done = RunAll(flags, report);
  if (!done.ok()) {
    report.Fact("failed", done.ToString());
    std::fprintf(stderr, "gpu_bench: %s\n", done.ToString().c_str());
  }
  const absl::Status written = report.Write(flags.out);
  if (!written.ok()) {
    std::fprintf(stderr, "gpu_bench: %s\n", written.ToString().c_str());
  }
  return done.ok() && written.ok() ? 0 : 1;
}

}  // namespace
}  // namespace kf::gpu_bench

int main(int argc, char** argv) { return kf::gpu_bench::Main(argc, argv); }
