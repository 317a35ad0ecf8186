// The engine against the numpy oracle's vectors, through the scheduler and the
// kernels that serve; and the vectors against known faults, so that they are
// known to notice.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "kernels/ref/ref_backend.h"
#include "tests/golden/golden_file.h"
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

  // The cases of each model that `wanted` takes (null: all), with what an
  // engine made by `setup` says of them.
  using SetupFor = std::function<EngineSetup()>;
  using Wanted = bool (*)(const GoldenCase&);
  static std::map<std::string, std::string> Differences(
      const SetupFor& setup, bool together, Wanted wanted = nullptr) {
    std::map<std::string, std::string> differences;
    for (size_t model = 0; model < golden_->models.size(); ++model) {
      EngineSetup s = setup();
      s.model_path = ModelPath(model);
      const std::unique_ptr<engine::Engine> engine = MakeEngine(std::move(s));
      std::vector<const GoldenCase*> cases;
      std::vector<engine::Request> requests;
      for (const GoldenCase& c : golden_->cases) {
        if (c.model != model || (wanted && !wanted(c))) continue;
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
  std::map<std::string, int> counts;
  std::set<size_t> lengths;
  for (const GoldenCase& c : golden_->cases) {
    const engine::Request& r = c.request;
    const auto number = [](auto value) {
      return std::to_string(static_cast<uint32_t>(value));
    };
    ++counts["policy " + number(r.cache.policy)];
    ++counts["scope " + number(r.cache.scope)];
    ++counts["noise " + number(r.cache.noise)];
    ++counts["positions " + number(r.cache.positions)];
    ++counts["norm " + number(r.cache.score_norm)];
    ++counts["basis " + number(r.cache.basis)];
    ++counts["once " + number(r.cache.resample_once)];
    ++counts["layer weights " + number(!r.cache.layer_weights.empty())];
    ++counts["stream " + number(r.first_stream > 0)];
    ++counts["groups " + number(golden_->models[c.model].kv_heads)];
    if (r.beam.has_value()) ++counts["beams " + number(r.beam->width)];
    lengths.insert(r.prompt.size());
  }
  EXPECT_GE(golden_->cases.size(), 150U);
  EXPECT_GE(4 * golden_->evicting_much, 3 * golden_->cases.size());
  EXPECT_EQ(*lengths.begin(), 1U);
  EXPECT_GE(*lengths.rbegin(), 590U);
  for (const char* const option :
       {"policy 0",    "policy 1",        "policy 2", "policy 3", "policy 4",
        "scope 1",     "scope 2",         "noise 1",  "noise 2",  "noise 3",
        "positions 1", "norm 1",          "basis 1",  "once 1",   "stream 1",
        "beams 1",     "beams 2",         "beams 3",  "beams 4",  "groups 1",
        "groups 2",    "layer weights 1", "groups 4"}) {
    EXPECT_GE(counts[option], 3) << option;
  }
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

// A released model's way: each head of one sequence for itself. The traps are
// built for it, and short prompts show them.
bool ShowsTraps(const GoldenCase& c) {
  const engine::CacheOptions& options = c.request.cache;
  return !c.request.beam.has_value() && c.request.prompt.size() <= 200 &&
         (options.policy == engine::CachePolicy::kH2O ||
          options.policy == engine::CachePolicy::kKeyformer) &&
         options.scope == engine::SelectionScope::kHead &&
         options.positions == engine::CachePositions::kOriginal &&
         options.layer_weights.empty();
}

TEST_P(TrapTest, FailsAtLeastFiveCases) {
  const auto differences =
      Differences([] { return Reference(GetParam().trap); }, true, ShowsTraps);
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
