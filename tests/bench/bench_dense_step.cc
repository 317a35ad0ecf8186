// The dense part of a decode step of the default model: all that is not
// attention and sampling, layer by layer, on weights of the real size that come
// from memory.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/aligned.h"
#include "kernels/core/dtype.h"
#include "kernels/core/status.h"
#include "kernels/cpu/simd_level.h"
#include "kernels/weight_format_name.h"
#include "tests/bench/bench_weights.h"
#include "tests/bench/limits.h"

namespace kf::bench {
namespace {

constexpr int kLayers = 30;
constexpr int64_t kHidden = 576;
constexpr int64_t kQkv = 960;
constexpr int64_t kFfn = 1536;
constexpr int64_t kVocabulary = 49152;

// The default model's matrices, of values that do not matter.
struct Layer {
  std::unique_ptr<LinearWeights> qkv;
  std::unique_ptr<LinearWeights> output;
  std::unique_ptr<LinearWeights> gate_up;
  std::unique_ptr<LinearWeights> down;
};
struct Model {
  std::unique_ptr<Backend> backend;
  std::vector<Layer> layers;
  std::unique_ptr<LinearWeights> head;
};

// Aligned as the engine's are.
class Floats {
 public:
  Floats(Backend& backend, int64_t rows, int64_t width)
      : memory_(backend
                    .Allocate(static_cast<size_t>(rows * width) * sizeof(float),
                              "activations")
                    .value()) {
    Fill();
  }
  float* data() const { return memory_->as<float>(); }
  void Fill() const {
    std::fill_n(data(), memory_->bytes() / sizeof(float), 0.25F);
  }

 private:
  std::unique_ptr<Buffer> memory_;
};

// One at a time: a model takes up to half a gigabyte.
Model& ModelOf(cpu::SimdLevel level, WeightFormat format, int threads) {
  static std::string known;
  static Model model;
  std::string key = std::string(cpu::NameOf(level)) + NameOf(format) +
                    std::to_string(threads);
  if (key == known) return model;
  known = std::move(key);
  model = {};
  model.backend = CreateBackend({.name = "cpu",
                                 .threads = threads,
                                 .simd = std::string(cpu::NameOf(level))})
                      .value();
  Backend& backend = *model.backend;
  for (int i = 0; i < kLayers; ++i) {
    model.layers.push_back({LoadWeights(backend, format, kQkv, kHidden),
                            LoadWeights(backend, format, kHidden, kHidden),
                            LoadWeights(backend, format, 2 * kFfn, kHidden),
                            LoadWeights(backend, format, kHidden, kFfn)});
  }
  model.head = LoadWeights(backend, format, kVocabulary, kHidden);
  return model;
}

// Reads other memory, as attention does in a server between two layers' and two
// steps' products: weights that stay in the last cache come faster.
class OtherReads {
 public:
  OtherReads() {
    auto memory = AlignedBytes::Allocate(2 * kColdBytes, "other memory");
    KF_CHECK(memory.ok());
    memory_.emplace(std::move(*memory));
    std::memset(memory_->data(), 1, memory_->bytes());
  }
  void Run(cpu::SimdLevel level, Backend& backend) const {
    const int64_t share = 2 * kColdBytes / backend.workers();
    backend.ParallelFor(backend.workers(), [&](int64_t index, int) {
      LimitKernelsOf(level).read(memory_->data() + index * share, share);
    });
  }

 private:
  std::optional<AlignedBytes> memory_;
};

enum Part : size_t {
  kNorms,
  kQkvPart,
  kOutput,
  kGateUp,
  kSwiGlu,
  kDown,
  kHead,
  kParts
};
constexpr std::array<const char*, kParts> kPartNames = {
    "norms", "qkv", "o", "gate_up", "swiglu", "down", "vocab"};

void RunDenseStep(benchmark::State& state,
                  cpu::SimdLevel level,
                  WeightFormat format,
                  int threads,
                  int64_t rows) {
  using Clock = std::chrono::steady_clock;
  Model& model = ModelOf(level, format, threads);
  Backend& backend = *model.backend;
  const Floats norm(backend, 1, kHidden);
  const Floats hidden(backend, rows, kHidden);
  const Floats normed(backend, rows, kHidden);
  const Floats qkv(backend, rows, kQkv);
  const Floats attended(backend, rows, kHidden);
  const Floats gate_up(backend, rows, 2 * kFfn);
  const Floats activated(backend, rows, kFfn);
  const Floats logits(backend, rows, kVocabulary);
  std::array<double, kParts> seconds = {};
  const auto time = [&](Part part, const absl::Status& status,
                        Clock::time_point start) {
    if (!status.ok()) state.SkipWithError("an operation failed");
    seconds[part] +=
        std::chrono::duration<double>(Clock::now() - start).count();
  };
  const auto normalise = [&] {
    const auto start = Clock::now();
    time(kNorms,
         backend.RmsNorm(hidden.data(), norm.data(), 1e-5F, rows, kHidden,
                         normed.data()),
         start);
  };
  const auto product = [&](Part part, const LinearWeights& w, const float* x,
                           float* out, bool add) {
    const auto start = Clock::now();
    time(part,
         add ? backend.LinearAdd(w, x, rows, out)
             : backend.Linear(w, x, rows, out),
         start);
  };
  static const OtherReads others;
  std::array<std::vector<double>, kParts + 1> times;
  for (auto _ : state) {
    others.Run(level, backend);
    seconds = {};
    hidden.Fill();
    for (const Layer& w : model.layers) {
      normalise();
      product(kQkvPart, *w.qkv, normed.data(), qkv.data(), false);
      product(kOutput, *w.output, attended.data(), hidden.data(), true);
      normalise();
      product(kGateUp, *w.gate_up, normed.data(), gate_up.data(), false);
      const auto start = Clock::now();
      time(kSwiGlu,
           backend.SwiGlu(gate_up.data(), rows, kFfn, activated.data()), start);
      product(kDown, *w.down, activated.data(), hidden.data(), true);
    }
    normalise();
    product(kHead, *model.head, normed.data(), logits.data(), false);
    double total = 0;
    for (size_t part = 0; part < kParts; ++part) {
      times[part].push_back(seconds[part]);
      total += seconds[part];
    }
    times[kParts].push_back(total);
  }
  // A lower decile: the machine may be shared.
  const auto milliseconds = [&](size_t part) {
    std::sort(times[part].begin(), times[part].end());
    return times[part][times[part].size() / 10] * 1e3;
  };
  for (size_t part = 0; part < kParts; ++part) {
    state.counters[std::string(kPartNames[part]) + "_ms"] = milliseconds(part);
  }
  state.counters["step_ms"] = milliseconds(kParts);
}

void Register() {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  for (const cpu::SimdLevel level : cpu::AvailableSimdLevels()) {
    for (const WeightFormat format :
         {WeightFormat::kBF16, WeightFormat::kQ8, WeightFormat::kQ4}) {
      for (const int threads : {1, cores}) {
        for (const int64_t rows : {1, 2, 4, 8, 12, 16, 24, 32, 48, 64}) {
          const std::string name =
              "DenseStep/" + std::string(cpu::NameOf(level)) + "/" +
              NameOf(format) + "/threads:" + std::to_string(threads) +
              "/rows:" + std::to_string(rows);
          benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State&
                                                             state) {
            RunDenseStep(state, level, format, threads, rows);
          })->UseRealTime();
        }
      }
    }
  }
}

const bool kRegistered = (Register(), true);

}  // namespace
}  // namespace kf::bench
