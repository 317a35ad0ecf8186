#include "tests/gpu/operation_bench.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "kernels/weight_format_name.h"
#include "tests/gpu/cache_rig.h"
#include "tests/gpu/timing.h"

namespace kf::gpu_bench {
namespace {

absl::Status Copies(const Plan& plan,
                    Backend& backend,
                    Report& report,
                    DeviceLimits& limits) {
  report.Begin("Copy bandwidth",
               {"Device memory to device memory; bytes read and written."});
  const auto floats = static_cast<int64_t>(plan.copy_bytes / sizeof(float));
  KF_ASSIGN_OR_RETURN(const auto from, RandomFloats(backend, floats));
  KF_ASSIGN_OR_RETURN(const auto to, RandomFloats(backend, floats));
  const RowCopy copy = {from->as<float>(), to->as<float>(), 1};
  KF_ASSIGN_OR_RETURN(const double seconds, SecondsPerCall(plan, backend, [&] {
                        return backend.CopyRows({&copy, 1}, floats);
                      }));
  const double bytes = 2.0 * static_cast<double>(plan.copy_bytes);
  limits.copy_bytes_per_s = bytes / seconds;
  report.Add({"copy",
              {{"mib", static_cast<double>(plan.copy_bytes) / (1 << 20)},
               {"us", seconds * 1e6},
               {"gb_s", limits.copy_bytes_per_s * 1e-9}},
              ""});
  return absl::OkStatus();
}

std::string CaseName(const LayerShape& layer, int32_t rows, int32_t keys) {
  return layer.name + ", " + std::to_string(rows) + " x " +
         std::to_string(keys) + " keys";
}

absl::Status DecodeCase(const Plan& plan,
                        Backend& backend,
                        const LayerShape& layer,
                        int32_t rows,
                        int32_t keys,
                        const DeviceLimits& limits,
                        Report& report) {
  const AttentionShape& shape = layer.attention;
  const int64_t set_bytes = CacheRig::SetBytes(backend, shape, keys, rows);
  const int64_t sets = std::max<int64_t>(
      1, (static_cast<int64_t>(plan.cold_bytes) + set_bytes - 1) / set_bytes);
  KF_ASSIGN_OR_RETURN(const auto rig,
                      CacheRig::Create(backend, shape, keys, rows, sets));
  double seconds[2];
  for (const auto kind :
       {CacheRig::Kind::kAttend, CacheRig::Kind::kScoreAndEvict}) {
    KF_ASSIGN_OR_RETURN(
        seconds[static_cast<int>(kind)],
        SecondsPerCall(plan, backend, [&] { return rig->Step(kind); }));
  }
  const double bytes = 2.0 * rows * keys * shape.kv_heads * shape.head_dim *
                       (shape.cache_dtype == DType::kBF16 ? 2.0 : 4.0);
  report.Add({CaseName(layer, rows, keys),
              {{"attend_us", seconds[0] * 1e6},
               {"attend_gb_s", bytes / seconds[0] * 1e-9},
               {"attend_of_copy_pct",
                Percent(bytes / seconds[0], limits.copy_bytes_per_s)},
               {"score_evict_us", seconds[1] * 1e6},
               {"score_evict_of_copy_pct",
                Percent(bytes / seconds[1], limits.copy_bytes_per_s)},
               {"overhead_pct", Percent(seconds[1] - seconds[0], seconds[0])}},
              ""});
  return absl::OkStatus();
}

absl::Status PromptCase(const Plan& plan,
                        Backend& backend,
                        const LayerShape& layer,
                        int32_t tokens,
                        Report& report) {
  const AttentionShape& shape = layer.attention;
  KF_ASSIGN_OR_RETURN(const auto rig,
                      CacheRig::Create(backend, shape, tokens, 1, 1));
  KF_ASSIGN_OR_RETURN(const double plain, SecondsPerCall(plan, backend, [&] {
                        return rig->Prompt(false);
                      }));
  KF_ASSIGN_OR_RETURN(const double scored, SecondsPerCall(plan, backend, [&] {
                        return rig->Prompt(true);
                      }));
  KF_ASSIGN_OR_RETURN(const double cut, SecondsPerCall(plan, backend, [&] {
                        return rig->Compact();
                      }));
  // q k and p V over the causal half.
  const double n = tokens;
  const double flops =
      4.0 * shape.query_heads * shape.head_dim * n * (n + 1) / 2.0;
  report.Add({layer.name + ", " + std::to_string(tokens) + " tokens",
              {{"attend_us", plain * 1e6},
               {"attend_tflops", flops / plain * 1e-12},
               {"attend_of_peak_pct",
                Percent(flops / plain * 1e-12, plan.peak_tflops)},
               {"scored_us", scored * 1e6},
               {"scored_extra_pct", Percent(scored - plain, plain)},
               {"compact_us", cut * 1e6}},
              ""});
  return absl::OkStatus();
}

// A matrix of numbers below 1 as a model file of this format holds it: BF16,
// Q8_0 or Q4_1.
struct HostMatrix {
  HostMatrix(WeightFormat format, int64_t rows, int64_t cols) {
    view.type = format == WeightFormat::kQ8   ? DType::kQ8_0
                : format == WeightFormat::kQ4 ? DType::kQ4_1
                                              : DType::kBF16;
    const BlockLayout block = LayoutOf(view.type);
    bytes.resize(
        static_cast<size_t>(rows * cols / block.elements * block.bytes));
    uint32_t state = 1;
    for (std::byte& byte : bytes) {
      state = state * 1664525U + 1013904223U;
      byte = static_cast<std::byte>(state >> 24);
    }
    // Of each block, or bf16, the halves of a number that set its size.
    const auto set = [&](size_t at, uint32_t half) {
      bytes[at] = static_cast<std::byte>(half & 0xFFU);
      bytes[at + 1] = static_cast<std::byte>(half >> 8);
    };
    const auto step = static_cast<size_t>(block.bytes);
    for (size_t at = 0; at < bytes.size(); at += step) {
      if (view.type == DType::kBF16) {
        bytes[at + 1] = std::byte{0x3E};  // 1/8 to 1/2
      } else if (view.type == DType::kQ8_0) {
        set(at, 0x1C00);  // scale 2^-8
      } else {
        set(at, 0x2C00);      // scale 1/16
        set(at + 2, 0xB800);  // minimum -1/2
      }
    }
    view.rows = rows;
    view.cols = cols;
    view.data = bytes.data();
  }
  std::vector<std::byte> bytes;
  WeightView view;
};

absl::Status ProductCases(const Plan& plan,
                          Backend& backend,
                          const std::string& name,
                          WeightFormat format,
                          int64_t in,
                          int64_t out,
                          const DeviceLimits& limits,
                          Report& report) {
  const HostMatrix matrix(format, out, in);
  KF_ASSIGN_OR_RETURN(const auto weights,
                      backend.LoadLinear({&matrix.view, 1}, format));
  const int32_t most =
      *std::max_element(plan.product_rows.begin(), plan.product_rows.end());
  KF_ASSIGN_OR_RETURN(const auto x, RandomFloats(backend, most * in));
  KF_ASSIGN_OR_RETURN(const auto y, RandomFloats(backend, most * out));
  for (const int32_t rows : plan.product_rows) {
    KF_ASSIGN_OR_RETURN(
        const double seconds, SecondsPerCall(plan, backend, [&] {
          return backend.Linear(*weights, x->as<float>(), rows, y->as<float>());
        }));
    const double flops = 2.0 * rows * static_cast<double>(in * out);
    const double bytes = static_cast<double>(weights->bytes()) +
                         4.0 * rows * static_cast<double>(in + out);
    report.Add(
        {name + ", " + std::to_string(rows) + " rows",
         {{"us", seconds * 1e6},
          {"tflops", flops / seconds * 1e-12},
          {"of_peak_pct", Percent(flops / seconds * 1e-12, plan.peak_tflops)},
          {"gb_s", bytes / seconds * 1e-9},
          {"of_copy_pct", Percent(bytes / seconds, limits.copy_bytes_per_s)}},
         ""});
  }
  return absl::OkStatus();
}

absl::Status Products(const Plan& plan,
                      Backend& backend,
                      WeightFormat format,
                      const DeviceLimits& limits,
                      Report& report) {
  report.Begin(std::string("Dense products, ") + kf::NameOf(format),
               {"Of one layer; few rows are bound by reading the weights, many "
                "by arithmetic."});
  const LayerShape& layer = plan.layers.front();
  struct Case {
    const char* name;
    int64_t in;
    int64_t out;
  };
  for (const Case& c : {Case{"qkv", layer.hidden, layer.attention.qkv_dim()},
                        Case{"o", layer.attention.out_dim(), layer.hidden},
                        Case{"gate+up", layer.hidden, 2 * layer.ffn},
                        Case{"down", layer.ffn, layer.hidden}}) {
    KF_RETURN_IF_ERROR(ProductCases(plan, backend, layer.name + " " + c.name,
                                    format, c.in, c.out, limits, report));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunOperations(const Plan& plan,
                           Report& report,
                           DeviceLimits& limits) {
  KF_ASSIGN_OR_RETURN(const auto backend, plan.make_backend());
  KF_RETURN_IF_ERROR(Copies(plan, *backend, report, limits));
  report.Begin("Decode attention, one layer, bf16",
               {"K and V that are read, over time; against the copy above. "
                "score_evict adds the step's scores and evicts a token."});
  for (const LayerShape& layer : plan.layers) {
    for (const int32_t keys : plan.decode_keys) {
      for (const int32_t rows : plan.decode_rows) {
        KF_RETURN_IF_ERROR(
            DecodeCase(plan, *backend, layer, rows, keys, limits, report));
      }
    }
  }
  report.Begin(
      "Prompt attention, one layer, bf16",
      {"scored: every row adds to the scores. compact: the cut to half "
       "of the prompt."});
  for (const LayerShape& layer : plan.layers) {
    for (const int32_t tokens : plan.prompt_tokens) {
      KF_RETURN_IF_ERROR(PromptCase(plan, *backend, layer, tokens, report));
    }
  }
  for (const WeightFormat format :
       {WeightFormat::kBF16, WeightFormat::kQ8, WeightFormat::kQ4}) {
    KF_RETURN_IF_ERROR(Products(plan, *backend, format, limits, report));
  }
  return absl::OkStatus();
}

}  // namespace kf::gpu_bench
