// The calibration's arithmetic and search, without a server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "tools/calibrate/budgets.h"
#include "tools/calibrate/make_probes.h"
#include "tools/calibrate/probe.h"
#include "tools/calibrate/profile_file.h"
#include "tools/calibrate/search.h"

namespace kf::tools {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::SizeIs;

double MeanOf(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) /
         static_cast<double>(values.size());
}

TEST(WithShares, CutsSomeLayersAndNoOther) {
  for (const size_t n : {1u, 17u, 1000u}) {
    for (const size_t count : {1u, 3u, 29u}) {
      SCOPED_TRACE(testing::Message() << n << " " << count);
      std::vector<double> shares(30, 1.0);
      std::fill_n(shares.begin(), count, 0.2);
      const auto cut = WithShares(shares, n, 8);
      ASSERT_THAT(cut.weights, SizeIs(30));
      EXPECT_NEAR(MeanOf(cut.weights), 1.0, 1e-9);
      for (size_t l = 0; l < 30; ++l) {
        const double k = cut.tokens * cut.weights[l];
        if (l < count) {
          EXPECT_NEAR(k, 0.2 * static_cast<double>(n), 1e-6);
        } else {
          EXPECT_GE(k, static_cast<double>(n + 8));
        }
      }
    }
  }
}

TEST(WithShares, CutsAllLayers) {
  const auto cut = WithShares(std::vector<double>{0.25, 0.75}, 100, 8);
  EXPECT_EQ(cut.tokens, 50u);
  EXPECT_THAT(cut.weights, ElementsAre(0.5, 1.5));
}

TEST(Spread, KeepsTheTotal) {
  const std::vector<double> merits = {0.1, 0.9, 0.0, 0.5};
  for (const double power : {0.0, 0.5, 1.0}) {
    for (const double ratio : {0.2, 0.5, 0.9}) {
      const auto shares =
          Spread(merits, {false, true, false, false}, power, ratio, 0.1);
      SCOPED_TRACE(testing::Message() << power << " " << ratio);
      EXPECT_NEAR(MeanOf(shares), ratio, 1e-6);
      EXPECT_THAT(shares, Each(testing::AllOf(testing::Ge(0.1 - 1e-9),
                                              testing::Le(1.0))));
    }
  }
}

TEST(Spread, GivesWholeLayersThePromptAndTheOthersByMerit) {
  const std::vector<double> merits = {0.1, 0.9, 0.0, 0.3};
  const std::vector<bool> whole = {false, true, false, false};
  const auto alike = Spread(merits, whole, 0.0, 0.5, 0.1);
  EXPECT_DOUBLE_EQ(alike[1], 1.0);
  EXPECT_NEAR(alike[0], 1.0 / 3, 1e-9);
  EXPECT_NEAR(alike[2], 1.0 / 3, 1e-9);
  const auto steep = Spread(merits, whole, 1.0, 0.5, 0.1);
  EXPECT_DOUBLE_EQ(steep[2], 0.1);
  EXPECT_NEAR(steep[3] / steep[0], 3.0, 1e-6);
}

TEST(Spread, LeavesTheOthersWhatTheyNeed) {
  const auto shares = Spread(std::vector<double>{1, 1, 1, 1},
                             {true, true, true, false}, 0.0, 0.4, 0.2);
  EXPECT_NEAR(shares[0], 1.4 / 3, 1e-9);
  EXPECT_NEAR(shares[3], 0.2, 1e-9);
}

TEST(RoundedWeights, KeepsTheMean) {
  EXPECT_THAT(RoundedWeights(std::vector<double>(30, 1.0 / 3)), Each(1.0));
  std::vector<double> uneven;
  for (int i = 0; i < 30; ++i) uneven.push_back(0.3 + 0.0137 * i);
  const auto even = RoundedWeights(uneven);
  EXPECT_NEAR(MeanOf(even), 1.0, 1e-9);
  for (size_t i = 0; i < even.size(); ++i) {
    EXPECT_NEAR(even[i], uneven[i] / MeanOf(uneven), 2e-3);
  }
}

TEST(Facts, NameTheAnswerOnceAndAskForIt) {
  const std::vector<std::string> paragraphs(20, std::string(200, 'x'));
  std::set<std::string> answers;
  for (size_t i = 0; i < 20; ++i) {
    const FactText fact = MakeFact(i, 2000, paragraphs);
    EXPECT_EQ(fact.prompt, MakeFact(i, 2000, paragraphs).prompt);
    const size_t at = fact.prompt.find("is:" + fact.answer + ".");
    ASSERT_NE(at, std::string::npos);
    EXPECT_EQ(fact.prompt.find(fact.answer, at + 5), std::string::npos);
    EXPECT_THAT(fact.prompt, testing::EndsWith("mentioned in the text is"));
    EXPECT_EQ(fact.answer.size(), 8u);
    answers.insert(fact.answer);
  }
  EXPECT_THAT(answers, SizeIs(20));
  // At the beginning and at the end.
  EXPECT_EQ(MakeFact(0, 2000, paragraphs).prompt.rfind("One of", 0), 0u);
  EXPECT_THAT(
      MakeFact(4, 2000, paragraphs).prompt,
      HasSubstr("is:" + MakeFact(4, 2000, paragraphs).answer + ".\n\nWhat is"));
}

TEST(Facts, AreAskedOfTextsThatAreTooShortAsWell) {
  const std::vector<std::string> one(1, "short");
  EXPECT_THAT(MakeFact(3, 5000, one).prompt, HasSubstr("short"));
}

TEST(Paragraphs, AreWhatBlankLinesPart) {
  const std::string long_one(100, 'a');
  const std::string another(90, 'b');
  EXPECT_THAT(Paragraphs(long_one + "\n\nshort\n\n" + another),
              ElementsAre(long_one, another));
  EXPECT_THAT(Paragraphs(""), SizeIs(0));
  EXPECT_THAT(Paragraphs(std::string(2000, 'c')), SizeIs(0));
}

TEST(CutText, TakesStretchesThatFollowEachOther) {
  std::vector<uint32_t> ids(25);
  std::iota(ids.begin(), ids.end(), 0u);
  const auto probes = CutText(ids, 8, 2, 9);
  ASSERT_THAT(probes, SizeIs(2));
  EXPECT_EQ(probes[1].prompt.front(), 10u);
  EXPECT_THAT(probes[1].forced, ElementsAre(18, 19));
  EXPECT_THAT(CutText(ids, 8, 2, 1), SizeIs(1));
  EXPECT_THAT(CutText(ids, 30, 2, 1), SizeIs(0));
}

// A model whose facts hang on layer 2, and a little on layers 4 and 5: what is
// lost is what these do not hold, and a text's loss what the mean layer does
// not.
Losses Hypothetical(const pb::CacheOptions& cache, size_t n) {
  Losses losses;
  losses.facts = 10;
  if (cache.policy() == pb::CACHE_POLICY_FULL) return losses;
  const double k = cache.has_tokens() ? cache.tokens()
                                      : cache.ratio() * static_cast<double>(n);
  const auto lost = [&](int l) {
    return 1.0 -
           std::min(1.0, k * cache.layer_weights(l) / static_cast<double>(n));
  };
  losses.fact_nll = lost(2) + 0.2 * (lost(4) + lost(5));
  for (int l = 0; l < cache.layer_weights_size(); ++l) {
    losses.text_nll += 0.01 * lost(l);
  }
  return losses;
}

absl::StatusOr<SearchResult> SearchHypothetical(const SearchOptions& options,
                                                size_t& asked) {
  return Search(options, [&](const std::string&, const CacheFor& cache) {
    ++asked;
    return Hypothetical(cache(1000, 8), 1000);
  });
}

TEST(Search, FindsTheLayersThatFactsHangOn) {
  SearchOptions options;
  options.layers = 8;
  options.group = 2;
  options.most_whole = 1;
  options.text_loss = 1.0;
  size_t asked = 0;
  const auto result = SearchHypothetical(options, asked);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(asked, CountSettings(options));
  ASSERT_THAT(result->cut, SizeIs(8));
  EXPECT_GT(result->cut[2].fact_nll, 0.7);
  EXPECT_EQ(result->cut[3].fact_nll, 0.0);
  EXPECT_GT(result->gains[4], 10 * result->gains[6]);
  const Candidate& best = result->tried[result->best];
  EXPECT_EQ(best.how, "spread steeply, each at least 0.15");
  EXPECT_NEAR(best.weights[2], 2.0, 2e-3);
  EXPECT_NEAR(best.weights[4], 2.0, 2e-3);
  EXPECT_LT(best.weights[7], 0.5);
  EXPECT_NEAR(MeanOf(best.weights), 1.0, 1e-9);
}

TEST(Search, KeepsAllLayersAlikeWhereThatIsBest) {
  // What helps facts costs texts more than is allowed.
  SearchOptions options;
  options.layers = 6;
  const auto result =
      Search(options, [](const std::string& what, const CacheFor&) {
        Losses losses;
        const bool alike =
            what == "all layers alike" || what == "nothing is cut";
        losses.text_nll = alike ? 0.0 : 0.011;
        losses.fact_nll = alike ? 1.0 : 0.0;
        return losses;
      });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->best, 0u);
  EXPECT_THAT(result->tried[0].weights, Each(1.0));
}

TEST(Search, EndsWithTheFirstError) {
  SearchOptions options;
  options.layers = 6;
  size_t asked = 0;
  const auto result = Search(
      options,
      [&](const std::string&, const CacheFor&) -> absl::StatusOr<Losses> {
        if (++asked == 3) return absl::UnavailableError("gone");
        return Losses();
      });
  EXPECT_EQ(result.status(), absl::UnavailableError("gone"));
  EXPECT_EQ(asked, 3u);
}

TEST(ProfileFile, AddsAProfileAndKeepsTheOthers) {
  SearchOptions options;
  options.layers = 6;
  size_t asked = 0;
  const auto result = SearchHypothetical(options, asked);
  ASSERT_TRUE(result.ok());
  ProfileNote note;
  note.name = "new";
  note.model = "m";
  const auto text =
      WithProfile(R"({"profiles": {"old": {"weights": [1]}, "new": {}}})", note,
                  options, *result);
  ASSERT_TRUE(text.ok()) << text.status();
  const auto file = nlohmann::json::parse(*text);
  EXPECT_EQ(file["profiles"]["old"]["weights"].size(), 1u);
  EXPECT_EQ(file["profiles"]["new"]["weights"].size(), 6u);
  EXPECT_EQ(file["profiles"]["new"]["evidence"]["model"], "m");
  EXPECT_TRUE(WithProfile("", note, options, *result).ok());
  for (const char* bad : {"[]", "{", "{\"profiles\": 3}", "null"}) {
    EXPECT_FALSE(WithProfile(bad, note, options, *result).ok()) << bad;
  }
}

TEST(ProfileFile, ReadsWeights) {
  const auto profiles = ReadProfiles(
      R"({"profiles": {"b": {"weights": [0.5, 1.5], "evidence": {}},
                       "a": {"weights": [1, 1]}}})",
      2);
  ASSERT_TRUE(profiles.ok()) << profiles.status();
  EXPECT_THAT(*profiles, ElementsAre(Pair("a", ElementsAre(1.0, 1.0)),
                                     Pair("b", ElementsAre(0.5, 1.5))));
  for (const char* bad :
       {"[]", "{", R"({"profiles": {"a": {}}})", R"({"profiles": {"a": 3}})",
        R"({"profiles": {"a": {"weights": [1, 1, 1]}}})",
        R"({"profiles": {"a": {"weights": [1, "x"]}}})"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ReadProfiles(bad, 2).status())) << bad;
  }
}

TEST(AtTheTotal, IsTheProfileAtTheRatio) {
  SearchOptions options;
  options.ratio = 0.4;
  options.cache.set_score_queries(7);
  const pb::CacheOptions cache = AtTheTotal(options, {0.5, 1.5})(100, 8);
  EXPECT_EQ(cache.ratio(), 0.4);
  EXPECT_EQ(cache.min_tokens(), 1u);
  EXPECT_EQ(cache.score_queries(), 7u);
  EXPECT_THAT(cache.layer_weights(), ElementsAre(0.5, 1.5));
}

TEST(ProbesAsJson, HoldsKindsAndIds) {
  const auto file = nlohmann::json::parse(ProbesAsJson(
      {{.kind = ProbeKind::kText, .prompt = {1, 2}, .forced = {3}},
       {.kind = ProbeKind::kFact, .prompt = {4}, .forced = {5, 6}}},
      "m", "t"));
  EXPECT_EQ(file["model"], "m");
  EXPECT_EQ(file["texts"], "t");
  ASSERT_THAT(file["probes"], SizeIs(2));
  EXPECT_EQ(file["probes"][0]["kind"], "text");
  EXPECT_THAT(file["probes"][0]["prompt"], ElementsAre(1, 2));
  EXPECT_EQ(file["probes"][1]["kind"], "fact");
  EXPECT_THAT(file["probes"][1]["forced"], ElementsAre(5, 6));
}

}  // namespace
}  // namespace kf::tools
