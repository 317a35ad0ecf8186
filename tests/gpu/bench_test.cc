// The GPU benchmark in tiny sizes: on the emulated CUDA backend, and on the CPU
// backend. It measures nothing here; that it runs, and what it writes, is held.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>

#include "kernels/backend.h"
#include "tests/gpu/model_bench.h"
#include "tests/gpu/operation_bench.h"
#include "tests/gpu/plan.h"
#include "tests/gpu/report.h"
#include "tests/testing/matchers.h"
#include "tests/testing/temp_dir.h"
#if defined(KF_EMULATED_MODE)
#include "kernels/cuda/cuda_backend.h"
#endif

namespace kf::gpu_bench {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend() {
#if defined(KF_EMULATED_MODE)
  return CreateCudaBackend({.name = "cuda"});
#else
  return CreateBackend({.name = "cpu", .threads = 2});
#endif
}

const Section* Find(const Report& report, std::string_view title) {
  for (const Section& section : report.sections()) {
    if (section.title.starts_with(title)) return &section;
  }
  return nullptr;
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

class BenchTest : public ::testing::Test {
 protected:
  Plan Tiny() {
    auto plan = TinyPlan(folder_.path());
    EXPECT_THAT(plan, testing::IsOk());
    plan->make_backend = MakeBackend;
    return *std::move(plan);
  }
  testing::TempDir folder_;
};

// A measured time is a number above 0, and is in every row.
void ExpectNumbers(const Section& section, std::string_view value) {
  EXPECT_FALSE(section.rows.empty()) << section.title;
  for (const Row& row : section.rows) {
    EXPECT_GT(ValueOf(row, value), 0.0) << row.name << " " << value;
    EXPECT_TRUE(std::isfinite(ValueOf(row, value))) << row.name << " " << value;
  }
}

TEST_F(BenchTest, OperationsInJsonAndMarkdown) {
  Report report;
  DeviceLimits limits;
  const Plan plan = Tiny();
  ASSERT_THAT(RunOperations(plan, report, limits), testing::IsOk());
  EXPECT_GT(limits.copy_bytes_per_s, 0.0);
  // Copies, both attentions, products in three formats.
  ASSERT_EQ(report.sections().size(), 6U);
  ExpectNumbers(report.sections()[0], "gb_s");
  ExpectNumbers(report.sections()[1], "attend_of_copy_pct");
  ExpectNumbers(report.sections()[1], "score_evict_us");
  ExpectNumbers(report.sections()[2], "scored_us");
  ExpectNumbers(report.sections()[2], "compact_us");
  for (size_t i = 3; i < 6; ++i) {
    ExpectNumbers(report.sections()[i], "of_copy_pct");
    EXPECT_EQ(report.sections()[i].rows.size(), 4U);
  }

  ASSERT_THAT(report.Write(folder_.path()), testing::IsOk());
  const auto json =
      nlohmann::json::parse(ReadFile(folder_.path() + "/results.json"));
  ASSERT_EQ(json["sections"].size(), 6U);
  const auto& decode = json["sections"][1]["rows"][0];
  EXPECT_EQ(decode["name"], "tiny, 2 x 40 keys");
  EXPECT_GT(decode["attend_us"], 0.0);
  // The peak of this machine is not known.
  EXPECT_TRUE(json["sections"][2]["rows"][0]["attend_of_peak_pct"].is_null());
  const std::string page = ReadFile(folder_.path() + "/results.md");
  EXPECT_THAT(page, HasSubstr("## Decode attention, one layer, bf16"));
  EXPECT_THAT(page, HasSubstr("| tiny, 2 x 40 keys |"));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
}

TEST_F(BenchTest, ModelsAndTheTableOfThePaper) {
  Report report;
  const Plan plan = Tiny();
  const DeviceLimits limits = {.copy_bytes_per_s = 1e9};
  ASSERT_THAT(RunModels(plan, limits, Stopwatch(), report), testing::IsOk());
  const Section* prefill = Find(report, "Whole prefill");
  const Section* table = Find(report, "The paper's Table 1");
  ASSERT_NE(prefill, nullptr);
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(prefill->rows.size(), 3U);  // unscored, the last 256, all
  ExpectNumbers(*prefill, "tokens_per_s");
  ASSERT_EQ(table->rows.size(), 6U);  // batch 1 and the largest, 3 policies
  for (const char* value :
       {"tokens_per_s", "step_ms", "prompts_s", "first_step_of_roofline_pct"}) {
    ExpectNumbers(*table, value);
  }
  EXPECT_EQ(ValueOf(table->rows[0], "batch"), 1.0);
  EXPECT_EQ(ValueOf(table->rows[5], "batch"), 3.0);  // max_batch
  for (const Row& row : table->rows) {
    EXPECT_EQ(row.note, "4 steps measured") << row.name;
  }
}

TEST_F(BenchTest, WithoutTimeItSaysWhatItLeftOut) {
  Report report;
  Plan plan = Tiny();
  plan.seconds = -1.0;
  ASSERT_THAT(RunModels(plan, {}, Stopwatch(), report), testing::IsOk());
  size_t rows = 0;
  for (const Section& section : report.sections()) {
    for (const Row& row : section.rows) {
      EXPECT_EQ(row.note, "no time left");
      ++rows;
    }
  }
  EXPECT_EQ(rows, 9U);
}

TEST(PeakTflops, OfKnownDevices) {
  EXPECT_EQ(PeakTflops("cuda, NVIDIA H200, sm_90, own products"), 989.0);
  EXPECT_EQ(PeakTflops("cuda, NVIDIA A100, sm_80, own products"), 312.0);
  EXPECT_EQ(PeakTflops("cpu, avx2, 2 threads"), 0.0);
}

}  // namespace
}  // namespace kf::gpu_bench
