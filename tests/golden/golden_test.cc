// The engine against the numpy oracle's vectors, through the scheduler and the
// kernels that serve; and the vectors against known faults, so that they are
// known to notice.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "kernels/ref/ref_backend.h"
#include "tests/golden/golden_support.h"
#include "tests/testing/temp_dir.h"

namespace kf::testing {
namespace {

class GoldenTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    golden_ = new GoldenFile(LoadGolden());
    folder_ = new TempDir();
    for (size_t i = 0; i < golden_->models.size(); ++i) {
      WriteTinyModel(golden_->models[i], ModelPath(i));
    }
  }
  static void TearDownTestSuite() {
    delete golden_;
    delete folder_;
  }
  static std::string ModelPath(size_t model) {
    return folder_->File(std::to_string(model) + ".gguf");
  }

  // The cases of each model, with what an engine made by `setup` says of them.
  using SetupFor = std::function<EngineSetup()>;
  static std::map<std::string, std::string> Differences(const SetupFor& setup,
                                                        bool together) {
    std::map<std::string, std::string> differences;
    for (size_t model = 0; model < golden_->models.size(); ++model) {
      EngineSetup s = setup();
      s.model_path = ModelPath(model);
      const std::unique_ptr<engine::Engine> engine = MakeEngine(std::move(s));
      std::vector<const GoldenCase*> cases;
      std::vector<engine::Request> requests;
      for (const GoldenCase& c : golden_->cases) {
        if (c.model != model) continue;
        cases.push_back(&c);
        requests.push_back(c.request);
      }
      std::vector<Outcome> outcomes;
      if (together) {
        outcomes = RunTogether(*engine, requests);
      } else {
        for (const engine::Request& r : requests) {
          outcomes.push_back(RunTogether(*engine, {r}).front());
        }
      }
      for (size_t i = 0; i < cases.size(); ++i) {
        const std::string difference = Difference(*cases[i], outcomes[i]);
        if (!difference.empty()) differences[cases[i]->name] = difference;
      }
      const engine::EngineStats stats = engine->Stats();
      if (stats.pages_free != stats.pages_total) {
        differences["pages"] = "not all were given back";
      }
    }
    return differences;
  }

  static GoldenFile* golden_;
  static TempDir* folder_;
};

GoldenFile* GoldenTest::golden_ = nullptr;
TempDir* GoldenTest::folder_ = nullptr;

using NoDifference = std::map<std::string, std::string>;

TEST_F(GoldenTest, ModelsAreTheOnesOfTheVectors) {
  for (size_t i = 0; i < golden_->models.size(); ++i) {
    EXPECT_EQ(Fnv1a(TinyModelBytes(golden_->models[i])),
              golden_->model_fnv1a[i])
        << "model " << i << " has changed: run make_golden.py again";
  }
}

TEST_F(GoldenTest, VectorsCoverWhatTheyShould) {
  EXPECT_GE(golden_->cases.size(), 40U);
  EXPECT_GE(4 * golden_->evicting_much, 3 * golden_->cases.size());
  size_t shortest = 1000;
  size_t longest = 0;
  for (const GoldenCase& c : golden_->cases) {
    shortest = std::min(shortest, c.request.prompt.size());
    longest = std::max(longest, c.request.prompt.size());
  }
  EXPECT_EQ(shortest, 1U);
  EXPECT_EQ(longest, 300U);
}

TEST_F(GoldenTest, DefaultSimdLevelTogether) {
  EXPECT_EQ(Differences([] { return EngineSetup{}; }, true), NoDifference());
}

TEST_F(GoldenTest, DefaultSimdLevelAlone) {
  EXPECT_EQ(Differences([] { return EngineSetup{}; }, false), NoDifference());
}

TEST_F(GoldenTest, ScalarTogether) {
  const auto scalar = [] {
    EngineSetup s;
    s.simd = "scalar";
    return s;
  };
  EXPECT_EQ(Differences(scalar, true), NoDifference());
}

// --- the vectors notice the faults of the paper's released code ---

EngineSetup Reference(Trap trap) {
  EngineSetup s;
  s.backend = CreateReferenceBackend(trap);
  return s;
}

TEST_F(GoldenTest, ReferenceAgrees) {
  EXPECT_EQ(Differences([] { return Reference(Trap::kNone); }, true),
            NoDifference());
}

struct TrapCase {
  std::string name;
  Trap trap;
};
void PrintTo(const TrapCase& c, std::ostream* os) { *os << c.name; }

class TrapTest : public GoldenTest,
                 public ::testing::WithParamInterface<TrapCase> {};

TEST_P(TrapTest, FailsAtLeastFiveCases) {
  const auto differences =
      Differences([] { return Reference(GetParam().trap); }, true);
  EXPECT_EQ(differences.count("pages"), 0U);
  RecordProperty("failing_cases", static_cast<int>(differences.size()));
  EXPECT_GE(differences.size(), 5U);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    TrapTest,
    ::testing::Values(TrapCase{"DropLeavingWindow", Trap::kDropLeavingWindow},
                      TrapCase{"FrozenKeys", Trap::kFrozenKeys},
                      TrapCase{"RecentZeroOff", Trap::kRecentZeroOff},
                      TrapCase{"Bf16Scores", Trap::kBf16Scores}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace kf::testing
