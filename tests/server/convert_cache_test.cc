#include "server/convert_cache.h"

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "tests/testing/matchers.h"

namespace kf::server {
namespace {

namespace v1 = ::keyformer::v1;
using testing::IsOk;
using testing::StatusIs;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

using Set = std::function<void(v1::CacheOptions&)>;

// docs/keyformer.md, Sizes: who reads what.
struct Option {
  const char* name;
  Set set;
  std::vector<v1::CachePolicy> readers;
};

const std::vector<v1::CachePolicy> kBudgeted = {
    v1::CACHE_POLICY_WINDOW, v1::CACHE_POLICY_H2O, v1::CACHE_POLICY_KEYFORMER,
    v1::CACHE_POLICY_QUEST};
const std::vector<v1::CachePolicy> kEvicting = {
    v1::CACHE_POLICY_WINDOW, v1::CACHE_POLICY_H2O, v1::CACHE_POLICY_KEYFORMER};
const std::vector<v1::CachePolicy> kScored = {v1::CACHE_POLICY_H2O,
                                              v1::CACHE_POLICY_KEYFORMER};
const std::vector<v1::CachePolicy> kKeyformer = {v1::CACHE_POLICY_KEYFORMER};

const Option kOptions[] = {
    {"ratio", [](auto& c) { c.set_ratio(0.5); }, kBudgeted},
    {"tokens", [](auto& c) { c.set_tokens(5); }, kBudgeted},
    {"min_tokens", [](auto& c) { c.set_min_tokens(1); }, kBudgeted},
    {"basis", [](auto& c) { c.set_basis(v1::BUDGET_BASIS_TOTAL); }, kBudgeted},
    {"recent_ratio", [](auto& c) { c.set_recent_ratio(0.0); }, kScored},
    {"recent_tokens", [](auto& c) { c.set_recent_tokens(0); }, kScored},
    {"sinks", [](auto& c) { c.set_sinks(0); }, {v1::CACHE_POLICY_WINDOW}},
    {"tau_init", [](auto& c) { c.set_tau_init(1.0); }, kKeyformer},
    {"tau_end", [](auto& c) { c.set_tau_end(1.0); }, kKeyformer},
    {"noise", [](auto& c) { c.set_noise(v1::SCORE_NOISE_NONE); }, kKeyformer},
    {"resample", [](auto& c) { c.set_resample(v1::NOISE_RESAMPLE_ONCE); },
     kKeyformer},
    {"noise_seed", [](auto& c) { c.set_noise_seed(0); }, kKeyformer},
    {"scope", [](auto& c) { c.set_scope(v1::SELECTION_SCOPE_MODEL); }, kScored},
    {"positions", [](auto& c) { c.set_positions(v1::CACHE_POSITIONS_CACHE); },
     kEvicting},
    {"score_queries", [](auto& c) { c.set_score_queries(0); }, kScored},
    {"decode_scores", [](auto& c) { c.set_decode_scores(true); }, kScored},
    {"score_norm", [](auto& c) { c.set_score_norm(v1::SCORE_NORM_AGE); },
     kScored},
    {"full_layers",
     [](auto& c) { c.set_full_layers(0); },
     {v1::CACHE_POLICY_QUEST}},
    {"layer_profile", [](auto& c) { c.set_layer_profile("uniform"); },
     kEvicting},
    {"layer_weights", [](auto& c) { c.add_layer_weights(1.0); }, kEvicting},
};

class Readers
    : public ::testing::TestWithParam<std::tuple<Option, v1::CachePolicy>> {};

TEST_P(Readers, TakeWhatTheyReadAndRefuseTheRest) {
  const auto& [option, policy] = GetParam();
  const bool reads = std::find(option.readers.begin(), option.readers.end(),
                               policy) != option.readers.end();
  v1::CacheOptions proto;
  option.set(proto);
  const std::string message = std::string("cache.") + option.name +
                              ": set, but policy " +
                              v1::CachePolicy_Name(policy) + " does not";
  CacheOffer offer;
  for (const bool by_default : {false, true}) {
    // Chosen by the request, or the server's default.
    if (by_default) {
      proto.set_policy(v1::CACHE_POLICY_UNSPECIFIED);
      v1::CacheOptions chosen;
      chosen.set_policy(policy);
      offer.defaults = *ToCacheOptions(chosen, {});
    } else {
      proto.set_policy(policy);
    }
    if (reads) {
      EXPECT_THAT(ToCacheOptions(proto, offer), IsOk());
    } else {
      EXPECT_THAT(ToCacheOptions(proto, offer), StatusIs(kInvalid, message));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table,
    Readers,
    ::testing::Combine(::testing::ValuesIn(kOptions),
                       ::testing::Values(v1::CACHE_POLICY_FULL,
                                         v1::CACHE_POLICY_WINDOW,
                                         v1::CACHE_POLICY_H2O,
                                         v1::CACHE_POLICY_KEYFORMER,
                                         v1::CACHE_POLICY_QUEST)),
    [](const auto& p) {
      return std::string(std::get<0>(p.param).name) + "_" +
             v1::CachePolicy_Name(std::get<1>(p.param));
    });

// A field added to the message is in the table above, or here.
TEST(CacheOptions, TheTableHasEveryField) {
  const auto& message = *v1::CacheOptions::descriptor();
  EXPECT_EQ(static_cast<size_t>(message.field_count()),
            std::size(kOptions) + 1);  // and policy
}

struct Case {
  const char* name;
  Set set;
  const char* message;
};

class CacheRefusals : public ::testing::TestWithParam<Case> {};

TEST_P(CacheRefusals, NamesTheField) {
  v1::CacheOptions proto;
  GetParam().set(proto);
  EXPECT_THAT(ToCacheOptions(proto, {}),
              StatusIs(kInvalid, GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Table,
    CacheRefusals,
    ::testing::Values(
        Case{"UnknownPolicy",
             [](auto& c) { c.set_policy(v1::CachePolicy(77)); },
             "cache.policy: 77"},
        Case{"NegativePolicy",
             [](auto& c) { c.set_policy(v1::CachePolicy(-1)); },
             "cache.policy: -1"},
        Case{"UnknownBasis", [](auto& c) { c.set_basis(v1::BudgetBasis(9)); },
             "cache.basis: 9"},
        Case{"UnknownNoise", [](auto& c) { c.set_noise(v1::ScoreNoise(9)); },
             "cache.noise: 9"},
        Case{"UnknownResample",
             [](auto& c) { c.set_resample(v1::NoiseResample(9)); },
             "cache.resample: 9"},
        Case{"UnknownScope",
             [](auto& c) { c.set_scope(v1::SelectionScope(9)); },
             "cache.scope: 9"},
        Case{"UnknownPositions",
             [](auto& c) { c.set_positions(v1::CachePositions(9)); },
             "cache.positions: 9"},
        Case{"UnknownNorm", [](auto& c) { c.set_score_norm(v1::ScoreNorm(9)); },
             "cache.score_norm: 9"},
        Case{"TokensAndMinimum",
             [](auto& c) {
               c.set_tokens(5);
               c.set_min_tokens(1);
             },
             "cache.min_tokens: set, but cache.tokens"},
        Case{"TokensAndBasis",
             [](auto& c) {
               c.set_tokens(5);
               c.set_basis(v1::BUDGET_BASIS_TOTAL);
             },
             "cache.basis: set, but cache.tokens"},
        Case{"ProfileAndWeights",
             [](auto& c) {
               c.set_layer_profile("uniform");
               c.add_layer_weights(1.0);
             },
             "cache.layer_weights: set, but cache.layer_profile"},
        Case{"UnknownProfile", [](auto& c) { c.set_layer_profile("pyramid"); },
             "cache.layer_profile: \"pyramid\", want one of: uniform"}),
    [](const auto& p) { return p.param.name; });

TEST(CacheOptions, UnsetFieldsTakeTheServersDefaults) {
  CacheOffer offer;
  offer.defaults.policy = engine::CachePolicy::kH2O;
  offer.defaults.ratio = 0.25;
  offer.defaults.min_tokens = 8;
  offer.defaults.scope = engine::SelectionScope::kLayer;
  offer.defaults.score_norm = engine::ScoreNorm::kAge;
  const auto options = ToCacheOptions({}, offer);
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->policy, engine::CachePolicy::kH2O);
  EXPECT_EQ(options->ratio, 0.25);
  EXPECT_EQ(options->min_tokens, 8U);
  EXPECT_EQ(options->scope, engine::SelectionScope::kLayer);
  EXPECT_EQ(options->score_norm, engine::ScoreNorm::kAge);
  EXPECT_FALSE(options->tokens.has_value());
}

TEST(CacheOptions, DefaultsThatThePolicyDoesNotReadStayOut) {
  CacheOffer offer;
  offer.defaults.scope = engine::SelectionScope::kModel;
  offer.defaults.positions = engine::CachePositions::kCache;
  offer.defaults.layer_weights = {0.5, 1.5};
  offer.defaults.noise = NoiseKind::kNone;
  v1::CacheOptions proto;
  for (const auto policy : {v1::CACHE_POLICY_FULL, v1::CACHE_POLICY_QUEST}) {
    proto.set_policy(policy);
    const auto options = ToCacheOptions(proto, offer);
    ASSERT_THAT(options, IsOk());
    EXPECT_EQ(options->scope, engine::SelectionScope::kHead);
    EXPECT_EQ(options->positions, engine::CachePositions::kOriginal);
    EXPECT_EQ(options->noise, NoiseKind::kGumbel);
    EXPECT_TRUE(options->layer_weights.empty());
  }
}

TEST(CacheOptions, AskingForARatioPutsADefaultOfTokensAside) {
  CacheOffer offer;
  offer.defaults.tokens = 512;
  v1::CacheOptions proto;
  proto.set_min_tokens(1);
  const auto options = ToCacheOptions(proto, offer);
  ASSERT_THAT(options, IsOk());
  EXPECT_FALSE(options->tokens.has_value());
  EXPECT_EQ(ToCacheOptions({}, offer)->tokens, 512U);
}

TEST(CacheOptions, ProfilesAreKnownByName) {
  CacheOffer offer;
  offer.profiles["late"] = {0.5, 1.5};
  offer.defaults.layer_weights = {1.5, 0.5};
  const auto weights = [&](const std::string& name) {
    v1::CacheOptions proto;
    proto.set_layer_profile(name);
    return ToCacheOptions(proto, offer)->layer_weights;
  };
  EXPECT_EQ(weights(""), (std::vector<double>{1.5, 0.5}));
  EXPECT_EQ(weights("late"), (std::vector<double>{0.5, 1.5}));
  EXPECT_TRUE(weights("uniform").empty());
  v1::CacheOptions proto;
  proto.set_layer_profile("early");
  EXPECT_THAT(ToCacheOptions(proto, offer),
              StatusIs(kInvalid, "want one of: late, uniform"));
}

TEST(CacheOptions, TheDefaultProfileIsOneOfTheModels) {
  const engine::LayerProfiles profiles = {{"late", {0.5, 1.5}},
                                          {"uniform", {}}};
  const auto offer =
      MakeCacheOffer({}, profiles, "late", {engine::CachePolicy::kKeyformer});
  ASSERT_THAT(offer, IsOk());
  EXPECT_EQ(offer->defaults.layer_weights, (std::vector<double>{0.5, 1.5}));
  EXPECT_EQ(ToCacheOptions({}, *offer)->layer_weights.size(), 2U);
  EXPECT_EQ(offer->policies.size(), 1U);
  EXPECT_THAT(
      MakeCacheOffer({}, profiles, "early", {}),
      StatusIs(kInvalid,
               "--layer_profile: \"early\", want one of: late, uniform"));
}

TEST(CacheOptions, AutoIsTheCalibratedProfileWhereThereIsOne) {
  const auto name = [](const engine::LayerProfiles& profiles) {
    return MakeCacheOffer({}, profiles, "auto", {})->default_profile;
  };
  EXPECT_EQ(name({{"uniform", {}}, {"late", {0.5, 1.5}}}), "uniform");
  EXPECT_EQ(name({{"uniform", {}}, {"calibrated", {0.5, 1.5}}}), "calibrated");
}

// A default must never make a request fail that does not mention it.
TEST(CacheOptions, ADefaultProfileGivesWayToOneSetForTheModel) {
  CacheOffer offer;
  offer.defaults.layer_weights = {1.5, 0.5};
  v1::CacheOptions proto;
  proto.set_scope(v1::SELECTION_SCOPE_MODEL);
  EXPECT_TRUE(ToCacheOptions(proto, offer)->layer_weights.empty());
  proto.add_layer_weights(1.0);
  EXPECT_EQ(ToCacheOptions(proto, offer)->layer_weights.size(), 1U);
}

TEST(CacheOptions, AProfileDoesNotGoWithOneSetForTheModel) {
  CacheOffer offer;
  offer.profiles["late"] = {0.5, 1.5};
  offer.defaults.scope = engine::SelectionScope::kModel;
  v1::CacheOptions proto;
  proto.set_layer_profile("late");
  EXPECT_THAT(
      ToCacheOptions(proto, offer),
      StatusIs(kInvalid,
               "cache.layer_profile: \"late\", but cache.scope is MODEL"));
  proto.set_layer_profile("uniform");
  EXPECT_THAT(ToCacheOptions(proto, offer), IsOk());
  proto.set_layer_profile("late");
  proto.set_scope(v1::SELECTION_SCOPE_HEAD);
  EXPECT_THAT(ToCacheOptions(proto, offer), IsOk());
  // WINDOW has no scope.
  proto.clear_scope();
  proto.set_policy(v1::CACHE_POLICY_WINDOW);
  EXPECT_THAT(ToCacheOptions(proto, offer), IsOk());
}

TEST(CacheOptions, PoliciesMayBeWithheld) {
  CacheOffer offer;
  offer.policies = {engine::CachePolicy::kH2O, engine::CachePolicy::kKeyformer};
  v1::CacheOptions proto;
  proto.set_policy(v1::CACHE_POLICY_FULL);
  EXPECT_THAT(ToCacheOptions(proto, offer),
              StatusIs(kInvalid,
                       "cache.policy: CACHE_POLICY_FULL, this server offers "
                       "CACHE_POLICY_H2O, CACHE_POLICY_KEYFORMER"));
  EXPECT_THAT(ToCacheOptions({}, offer), IsOk());
}

TEST(CacheOptions, EverySetFieldArrives) {
  v1::CacheOptions proto;
  proto.set_policy(v1::CACHE_POLICY_KEYFORMER);
  proto.set_ratio(0.75);
  proto.set_recent_tokens(0);
  proto.set_min_tokens(1);
  proto.set_basis(v1::BUDGET_BASIS_TOTAL);
  proto.set_tau_init(1.5);
  proto.set_tau_end(3.0);
  proto.set_noise(v1::SCORE_NOISE_GAUSSIAN);
  proto.set_resample(v1::NOISE_RESAMPLE_ONCE);
  proto.set_scope(v1::SELECTION_SCOPE_LAYER);
  proto.set_positions(v1::CACHE_POSITIONS_CACHE);
  proto.set_score_queries(32);
  proto.set_decode_scores(false);
  proto.set_noise_seed(0);
  proto.set_score_norm(v1::SCORE_NORM_AGE);
  proto.add_layer_weights(0.25);
  proto.add_layer_weights(1.75);
  const auto options = ToCacheOptions(proto, {});
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->ratio, 0.75);
  EXPECT_EQ(options->recent_tokens, 0U);
  EXPECT_EQ(options->min_tokens, 1U);
  EXPECT_EQ(options->basis, engine::BudgetBasis::kTotal);
  EXPECT_EQ(options->tau_init, 1.5);
  EXPECT_EQ(options->tau_end, 3.0);
  EXPECT_EQ(options->noise, NoiseKind::kGaussian);
  EXPECT_TRUE(options->resample_once);
  EXPECT_EQ(options->scope, engine::SelectionScope::kLayer);
  EXPECT_EQ(options->positions, engine::CachePositions::kCache);
  EXPECT_EQ(options->score_queries, 32U);
  EXPECT_FALSE(options->decode_scores);
  EXPECT_EQ(options->noise_seed, 0U);
  EXPECT_EQ(options->score_norm, engine::ScoreNorm::kAge);
  EXPECT_EQ(options->layer_weights, (std::vector<double>{0.25, 1.75}));

  proto.Clear();
  proto.set_policy(v1::CACHE_POLICY_WINDOW);
  proto.set_sinks(7);
  proto.set_tokens(9);
  EXPECT_EQ(ToCacheOptions(proto, {})->sinks, 7U);
  EXPECT_EQ(ToCacheOptions(proto, {})->tokens, 9U);
  proto.Clear();
  proto.set_policy(v1::CACHE_POLICY_QUEST);
  proto.set_full_layers(5);
  EXPECT_EQ(ToCacheOptions(proto, {})->full_layers, 5U);
}

TEST(CacheOptions, DefaultsSurviveTheWireAndBack) {
  engine::CacheOptions defaults;
  defaults.noise = NoiseKind::kConstant;
  defaults.resample_once = true;
  defaults.basis = engine::BudgetBasis::kTotal;
  defaults.tau_end = 1.25;
  defaults.scope = engine::SelectionScope::kModel;
  defaults.positions = engine::CachePositions::kCache;
  defaults.score_norm = engine::ScoreNorm::kAge;
  v1::CacheOptions proto = FromCacheOptions(defaults, "uniform");
  // Every field that has a default is said, whoever reads it.
  EXPECT_EQ(proto.sinks(), 4U);
  EXPECT_EQ(proto.full_layers(), 2U);
  EXPECT_EQ(proto.layer_profile(), "uniform");
  proto.clear_sinks();
  proto.clear_full_layers();
  const auto options = ToCacheOptions(proto, {});
  ASSERT_THAT(options, IsOk());
  v1::CacheOptions again = FromCacheOptions(*options, "uniform");
  again.clear_sinks();
  again.clear_full_layers();
  EXPECT_EQ(again.SerializeAsString(), proto.SerializeAsString());
  EXPECT_EQ(options->noise, NoiseKind::kConstant);
}

}  // namespace
}  // namespace kf::server
