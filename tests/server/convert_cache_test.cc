#include "server/convert_cache.h"

#include <functional>
#include <string>

#include "tests/testing/matchers.h"

namespace kf::server {
namespace {

namespace v1 = ::keyformer::v1;
using testing::IsOk;
using testing::StatusIs;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

struct Case {
  const char* name;
  v1::CachePolicy policy;
  std::function<void(v1::CacheOptions&)> set;
  absl::StatusCode code;
  const char* message;
};

class CacheRefusals : public ::testing::TestWithParam<Case> {};

TEST_P(CacheRefusals, NamesTheField) {
  v1::CacheOptions proto;
  proto.set_policy(GetParam().policy);
  GetParam().set(proto);
  EXPECT_THAT(ToCacheOptions(proto, {}),
              StatusIs(GetParam().code, GetParam().message));
}

void Nothing(v1::CacheOptions& /*unused*/) {}
v1::CachePolicy Policy(int number) {
  return static_cast<v1::CachePolicy>(number);
}

INSTANTIATE_TEST_SUITE_P(
    Table,
    CacheRefusals,
    ::testing::Values(
        Case{"Window", v1::CACHE_POLICY_WINDOW, Nothing, kUnimplemented,
             "cache.policy: CACHE_POLICY_WINDOW"},
        Case{"WindowSinks", v1::CACHE_POLICY_WINDOW,
             [](auto& c) { c.set_sinks(4); }, kUnimplemented, "cache.policy"},
        Case{"Quest", v1::CACHE_POLICY_QUEST, Nothing, kUnimplemented,
             "cache.policy: CACHE_POLICY_QUEST"},
        Case{"UnknownPolicy", Policy(77), Nothing, kInvalid,
             "cache.policy: 77"},
        Case{"NegativePolicy", Policy(-1), Nothing, kInvalid,
             "cache.policy: -1"},
        Case{"UnknownBasis", v1::CACHE_POLICY_KEYFORMER,
             [](auto& c) { c.set_basis(v1::BudgetBasis(9)); }, kInvalid,
             "cache.basis: 9"},
        Case{"UnknownNoise", v1::CACHE_POLICY_KEYFORMER,
             [](auto& c) { c.set_noise(v1::ScoreNoise(9)); }, kInvalid,
             "cache.noise: 9"},
        Case{"UnknownResample", v1::CACHE_POLICY_KEYFORMER,
             [](auto& c) { c.set_resample(v1::NoiseResample(9)); }, kInvalid,
             "cache.resample: 9"},
        Case{"UnknownScope", v1::CACHE_POLICY_KEYFORMER,
             [](auto& c) { c.set_scope(v1::SelectionScope(9)); }, kInvalid,
             "cache.scope: 9"},
        Case{"UnknownPositions", v1::CACHE_POLICY_KEYFORMER,
             [](auto& c) { c.set_positions(v1::CachePositions(9)); }, kInvalid,
             "cache.positions: 9"},
        Case{"UnknownNorm", v1::CACHE_POLICY_KEYFORMER,
             [](auto& c) { c.set_score_norm(v1::ScoreNorm(9)); }, kInvalid,
             "cache.score_norm: 9"},
        Case{"LayerScope", v1::CACHE_POLICY_H2O,
             [](auto& c) { c.set_scope(v1::SELECTION_SCOPE_LAYER); },
             kUnimplemented, "cache.scope: SELECTION_SCOPE_LAYER"},
        Case{"ModelScope", v1::CACHE_POLICY_KEYFORMER,
             [](auto& c) { c.set_scope(v1::SELECTION_SCOPE_MODEL); },
             kUnimplemented, "cache.scope: SELECTION_SCOPE_MODEL"},
        Case{"CachePositions", v1::CACHE_POLICY_KEYFORMER,
             [](auto& c) { c.set_positions(v1::CACHE_POSITIONS_CACHE); },
             kUnimplemented, "cache.positions"},
        Case{"NormAge", v1::CACHE_POLICY_KEYFORMER,
             [](auto& c) { c.set_score_norm(v1::SCORE_NORM_AGE); },
             kUnimplemented, "cache.score_norm"},
        Case{"Profile", v1::CACHE_POLICY_KEYFORMER,
             [](auto& c) { c.set_layer_profile("pyramid"); }, kUnimplemented,
             "cache.layer_profile: \"pyramid\""},
        Case{"Weights", v1::CACHE_POLICY_KEYFORMER,
             [](auto& c) { c.add_layer_weights(1.0); }, kUnimplemented,
             "cache.layer_weights"},
        Case{"FullReadsNoRatio", v1::CACHE_POLICY_FULL,
             [](auto& c) { c.set_ratio(0.5); }, kInvalid,
             "cache.ratio: set, but policy CACHE_POLICY_FULL"},
        Case{"FullReadsNoTokens", v1::CACHE_POLICY_FULL,
             [](auto& c) { c.set_tokens(5); }, kInvalid, "cache.tokens"},
        Case{"FullReadsNoScope", v1::CACHE_POLICY_FULL,
             [](auto& c) { c.set_scope(v1::SELECTION_SCOPE_HEAD); }, kInvalid,
             "cache.scope"},
        Case{"FullReadsNoProfile", v1::CACHE_POLICY_FULL,
             [](auto& c) { c.set_layer_profile("uniform"); }, kInvalid,
             "cache.layer_profile"},
        Case{"H2OReadsNoTau", v1::CACHE_POLICY_H2O,
             [](auto& c) { c.set_tau_init(1.0); }, kInvalid,
             "cache.tau_init: set, but policy CACHE_POLICY_H2O"},
        Case{"H2OReadsNoNoise", v1::CACHE_POLICY_H2O,
             [](auto& c) { c.set_noise(v1::SCORE_NOISE_NONE); }, kInvalid,
             "cache.noise"},
        Case{"H2OReadsNoNoiseSeed", v1::CACHE_POLICY_H2O,
             [](auto& c) { c.set_noise_seed(0); }, kInvalid,
             "cache.noise_seed"},
        Case{"KeyformerReadsNoSinks", v1::CACHE_POLICY_KEYFORMER,
             [](auto& c) { c.set_sinks(0); }, kInvalid, "cache.sinks"},
        Case{"DefaultReadsNoFullLayers", v1::CACHE_POLICY_UNSPECIFIED,
             [](auto& c) { c.set_full_layers(2); }, kInvalid,
             "cache.full_layers: set, but policy CACHE_POLICY_KEYFORMER"},
        Case{"TokensAndMinimum", v1::CACHE_POLICY_KEYFORMER,
             [](auto& c) {
               c.set_tokens(5);
               c.set_min_tokens(1);
             },
             kInvalid, "cache.min_tokens"},
        Case{"TokensAndBasis", v1::CACHE_POLICY_KEYFORMER,
             [](auto& c) {
               c.set_tokens(5);
               c.set_basis(v1::BUDGET_BASIS_TOTAL);
             },
             kInvalid, "cache.basis"}),
    [](const auto& p) { return p.param.name; });

TEST(CacheOptions, UnsetFieldsTakeTheServersDefaults) {
  engine::CacheOptions defaults;
  defaults.policy = engine::CachePolicy::kH2O;
  defaults.ratio = 0.25;
  defaults.min_tokens = 8;
  const auto options = ToCacheOptions({}, defaults);
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(options->policy, engine::CachePolicy::kH2O);
  EXPECT_EQ(options->ratio, 0.25);
  EXPECT_EQ(options->min_tokens, 8U);
  EXPECT_FALSE(options->tokens.has_value());
}

TEST(CacheOptions, ServerDefaultsOfAnotherPolicyAreNoFields) {
  v1::CacheOptions proto;
  proto.set_policy(v1::CACHE_POLICY_FULL);
  EXPECT_THAT(ToCacheOptions(proto, {}), IsOk());
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
  proto.set_scope(v1::SELECTION_SCOPE_HEAD);
  proto.set_positions(v1::CACHE_POSITIONS_ORIGINAL);
  proto.set_score_queries(32);
  proto.set_decode_scores(false);
  proto.set_noise_seed(0);
  proto.set_score_norm(v1::SCORE_NORM_NONE);
  proto.set_layer_profile("uniform");
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
  EXPECT_EQ(options->score_queries, 32U);
  EXPECT_FALSE(options->decode_scores);
  EXPECT_EQ(options->noise_seed, 0U);
}

TEST(CacheOptions, DefaultsSurviveTheWireAndBack) {
  engine::CacheOptions defaults;
  defaults.noise = NoiseKind::kConstant;
  defaults.resample_once = true;
  defaults.basis = engine::BudgetBasis::kTotal;
  defaults.tau_end = 1.25;
  const v1::CacheOptions proto = FromCacheOptions(defaults);
  const auto options = ToCacheOptions(proto, {});
  ASSERT_THAT(options, IsOk());
  EXPECT_EQ(FromCacheOptions(*options).SerializeAsString(),
            proto.SerializeAsString());
  EXPECT_EQ(options->noise, NoiseKind::kConstant);
}

}  // namespace
}  // namespace kf::server
