#include "server/convert.h"

#include <cctype>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "engine/request_validation.h"
#include "tests/server/tiny_context.h"
#include "tests/testing/matchers.h"
#include "tests/testing/tiny_model.h"

namespace kf::server {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::MakeTinyContext;
using testing::StatusIs;
using testing::TinyContext;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

const TinyContext& Tiny() {
  static const TinyContext* tiny = MakeTinyContext(true).release();
  return *tiny;
}

v1::GenerateRequest TextRequest() {
  v1::GenerateRequest request;
  request.set_text("hello");
  return request;
}

// Through both checks that a request passes before it is queued.
absl::Status Check(const v1::GenerateRequest& proto) {
  auto request = ToEngineRequest(proto, Tiny().context);
  if (!request.ok()) return request.status();
  engine::RequestLimits limits;
  limits.vocabulary = testing::kTinyVocabulary;
  limits.context_tokens = 512;
  limits.layers = 2;
  return engine::ValidateRequest(*request, limits).status();
}

struct Case {
  const char* name;
  std::function<void(v1::GenerateRequest&)> set;
  absl::StatusCode code;
  const char* message;
};

class Refusals : public ::testing::TestWithParam<Case> {};

TEST_P(Refusals, NameTheField) {
  v1::GenerateRequest request = TextRequest();
  GetParam().set(request);
  EXPECT_THAT(Check(request), StatusIs(GetParam().code, GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Table,
    Refusals,
    ::testing::Values(
        Case{"NoInput", [](auto& r) { r.clear_input(); }, kInvalid, "input"},
        Case{"EmptyText", [](auto& r) { r.set_text(""); }, kInvalid,
             "text: empty prompt"},
        Case{"NoIds", [](auto& r) { r.mutable_token_ids(); }, kInvalid,
             "token_ids.ids: empty prompt"},
        Case{"IdTooLarge",
             [](auto& r) {
               r.mutable_token_ids()->add_ids(1);
               r.mutable_token_ids()->add_ids(258);
             },
             kInvalid, "token_ids.ids[1]: 258, want a token id below 258"},
        Case{"IdHuge",
             [](auto& r) { r.mutable_token_ids()->add_ids(4294967295U); },
             kInvalid, "token_ids.ids[0]: 4294967295"},
        Case{"HugeText", [](auto& r) { r.set_text(std::string(100000, 'a')); },
             kInvalid, "text: 100000 bytes"},
        Case{"LongText", [](auto& r) { r.set_text(std::string(600, 'a')); },
             kInvalid, "512"},
        Case{"NoMessages", [](auto& r) { r.mutable_chat(); }, kInvalid,
             "chat.messages: none"},
        Case{
            "NoRole",
            [](auto& r) { r.mutable_chat()->add_messages()->set_content("a"); },
            kInvalid, "chat.messages[0].role: 0 bytes"},
        Case{"LongRole",
             [](auto& r) {
               r.mutable_chat()->add_messages()->set_role(std::string(65, 'r'));
             },
             kInvalid, "chat.messages[0].role: 65 bytes"},
        Case{"HugeContent",
             [](auto& r) {
               auto* message = r.mutable_chat()->add_messages();
               message->set_role("user");
               message->set_content(std::string(100000, 'a'));
             },
             kInvalid, "chat.messages[0].content: 100000 bytes"},
        Case{"OtherModel", [](auto& r) { r.set_model("gpt"); },
             absl::StatusCode::kNotFound, "model: \"gpt\""},
        Case{"LongRequestId",
             [](auto& r) { r.set_request_id(std::string(257, 'i')); }, kInvalid,
             "request_id: 257 bytes"},
        Case{"TooManySamples", [](auto& r) { r.mutable_sampling()->set_n(65); },
             kInvalid, "sampling.n: 65, want at most 64"},
        Case{"TooWideABeam",
             [](auto& r) {
               r.mutable_sampling()->mutable_beam()->set_width(17);
             },
             kInvalid, "sampling.beam.width: 17, want 1 to 16"},
        Case{"QuestBeam",
             [](auto& r) {
               r.mutable_sampling()->mutable_beam()->set_width(2);
               r.mutable_cache()->set_policy(v1::CACHE_POLICY_QUEST);
             },
             kInvalid, "sampling.beam: set, but cache.policy is QUEST"},
        Case{"BeamOfNone",
             [](auto& r) { r.mutable_sampling()->mutable_beam(); }, kInvalid,
             "sampling.beam.width: 0, want 1 to 16"},
        Case{"BiasKey",
             [](auto& r) {
               (*r.mutable_sampling()->mutable_logit_bias())[258] = 1.0;
             },
             kInvalid, "sampling.logit_bias key: 258"},
        Case{"StopId",
             [](auto& r) { r.mutable_stopping()->add_stop_token_ids(999); },
             kInvalid, "stopping.stop_token_ids[0]: 999"},
        Case{"EmptyStop", [](auto& r) { r.mutable_stopping()->add_stop(""); },
             kInvalid, "stopping.stop"},
        Case{"UnknownReport",
             [](auto& r) {
               r.mutable_output()->set_cache_report(v1::CacheReportDetail(7));
             },
             kInvalid, "output.cache_report: 7"},
        Case{"TopWithoutLogprobs",
             [](auto& r) { r.mutable_output()->set_top_logprobs(3); }, kInvalid,
             "output.top_logprobs"},
        Case{"TopTooMany",
             [](auto& r) {
               r.mutable_output()->set_logprobs(true);
               r.mutable_output()->set_top_logprobs(65);
             },
             kInvalid, "output.top_logprobs"},
        Case{"NothingForced", [](auto& r) { r.mutable_forced_tokens(); },
             kInvalid, "forced_tokens.ids: none"},
        Case{"ForcedId",
             [](auto& r) { r.mutable_forced_tokens()->add_ids(258); }, kInvalid,
             "forced_tokens.ids[0]: 258"},
        Case{"ForcedSamples",
             [](auto& r) {
               r.mutable_forced_tokens()->add_ids(1);
               r.mutable_sampling()->set_n(2);
             },
             kInvalid, "sampling.n: 2"},
        Case{"ForcedBeam",
             [](auto& r) {
               r.mutable_forced_tokens()->add_ids(1);
               r.mutable_sampling()->mutable_beam()->set_width(2);
             },
             kInvalid, "sampling.beam"},
        Case{"ForcedOtherLength",
             [](auto& r) {
               r.mutable_forced_tokens()->add_ids(1);
               r.mutable_stopping()->set_max_new_tokens(2);
             },
             kInvalid, "max_new_tokens"},
        Case{"CacheTokensZero",
             [](auto& r) { r.mutable_cache()->set_tokens(0); }, kInvalid,
             "cache.tokens"},
        Case{"MinTokensZero",
             [](auto& r) { r.mutable_cache()->set_min_tokens(0); }, kInvalid,
             "cache.min_tokens"},
        Case{"RecentAboveBudget",
             [](auto& r) {
               r.mutable_cache()->set_tokens(4);
               r.mutable_cache()->set_recent_tokens(5);
             },
             kInvalid, "cache.recent_tokens"}),
    [](const auto& p) { return p.param.name; });

// What may not stand beside a beam, each by itself.
struct Beside {
  const char* field;
  std::function<void(v1::GenerateRequest&)> set;
};

class BesideBeam : public ::testing::TestWithParam<Beside> {};

TEST_P(BesideBeam, IsRefusedNamingBoth) {
  v1::GenerateRequest request = TextRequest();
  request.mutable_sampling()->mutable_beam()->set_width(2);
  request.mutable_stopping()->set_max_new_tokens(4);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_cache()->set_ratio(0.5);
  GetParam().set(request);
  EXPECT_THAT(Check(request), StatusIs(kInvalid, GetParam().field));
  EXPECT_THAT(Check(request), StatusIs(kInvalid, "sampling.beam"));
}

INSTANTIATE_TEST_SUITE_P(
    Table,
    BesideBeam,
    ::testing::Values(
        Beside{"sampling.temperature",
               [](auto& r) { r.mutable_sampling()->set_temperature(1.0); }},
        Beside{"sampling.top_k",
               [](auto& r) { r.mutable_sampling()->set_top_k(1); }},
        Beside{"sampling.top_p",
               [](auto& r) { r.mutable_sampling()->set_top_p(1.0); }},
        Beside{"sampling.min_p",
               [](auto& r) { r.mutable_sampling()->set_min_p(0.1); }},
        Beside{"sampling.typical_p",
               [](auto& r) { r.mutable_sampling()->set_typical_p(0.1); }},
        Beside{
            "sampling.repetition_penalty",
            [](auto& r) { r.mutable_sampling()->set_repetition_penalty(1); }},
        Beside{"sampling.presence_penalty",
               [](auto& r) { r.mutable_sampling()->set_presence_penalty(1); }},
        Beside{"sampling.frequency_penalty",
               [](auto& r) { r.mutable_sampling()->set_frequency_penalty(1); }},
        Beside{"sampling.seed",
               [](auto& r) { r.mutable_sampling()->set_seed(0); }},
        Beside{"sampling.logit_bias",
               [](auto& r) {
                 (*r.mutable_sampling()->mutable_logit_bias())[1] = 0.0;
               }},
        Beside{"sampling.n", [](auto& r) { r.mutable_sampling()->set_n(2); }},
        Beside{"stopping.min_new_tokens",
               [](auto& r) { r.mutable_stopping()->set_min_new_tokens(1); }},
        Beside{"stopping.stop",
               [](auto& r) { r.mutable_stopping()->add_stop("x"); }},
        Beside{"stopping.stop_token_ids",
               [](auto& r) { r.mutable_stopping()->add_stop_token_ids(1); }},
        Beside{"stopping.include_stop",
               [](auto& r) { r.mutable_stopping()->set_include_stop(true); }},
        Beside{"stopping.time_limit_ms",
               [](auto& r) { r.mutable_stopping()->set_time_limit_ms(1); }}),
    [](const auto& p) {
      std::string name = p.param.field;
      for (char& c : name) {
        if (c == '.') c = '_';
      }
      return name;
    });

// Every double of the request, by its path, with a setter and whether a
// negative one is out of range too.
struct Real {
  const char* path;
  std::function<void(v1::GenerateRequest&, double)> set;
  bool refuses_negative;
};

class Reals : public ::testing::TestWithParam<Real> {};

TEST_P(Reals, RefuseWhatIsNoNumberInRange) {
  std::vector<double> bad = {std::numeric_limits<double>::quiet_NaN(),
                             std::numeric_limits<double>::infinity(),
                             -std::numeric_limits<double>::infinity()};
  if (GetParam().refuses_negative) {
    bad.push_back(-0.5);
    bad.push_back(-1e300);
  }
  for (const double value : bad) {
    v1::GenerateRequest request = TextRequest();
    GetParam().set(request, value);
    EXPECT_THAT(Check(request), StatusIs(kInvalid, GetParam().path)) << value;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table,
    Reals,
    ::testing::Values(
        Real{
            "sampling.temperature",
            [](auto& r, double v) { r.mutable_sampling()->set_temperature(v); },
            true},
        Real{"sampling.top_p",
             [](auto& r, double v) { r.mutable_sampling()->set_top_p(v); },
             true},
        Real{"sampling.min_p",
             [](auto& r, double v) { r.mutable_sampling()->set_min_p(v); },
             true},
        Real{"sampling.typical_p",
             [](auto& r, double v) { r.mutable_sampling()->set_typical_p(v); },
             true},
        Real{"sampling.repetition_penalty",
             [](auto& r, double v) {
               r.mutable_sampling()->set_repetition_penalty(v);
             },
             true},
        Real{"sampling.presence_penalty",
             [](auto& r, double v) {
               r.mutable_sampling()->set_presence_penalty(v);
             },
             false},
        Real{"sampling.frequency_penalty",
             [](auto& r, double v) {
               r.mutable_sampling()->set_frequency_penalty(v);
             },
             false},
        Real{"sampling.logit_bias",
             [](auto& r, double v) {
               (*r.mutable_sampling()->mutable_logit_bias())[3] = v;
             },
             false},
        Real{"stopping.time_limit_ms",
             [](auto& r, double v) {
               r.mutable_stopping()->set_time_limit_ms(v);
             },
             true},
        Real{"cache.ratio",
             [](auto& r, double v) { r.mutable_cache()->set_ratio(v); }, true},
        Real{"cache.recent_ratio",
             [](auto& r, double v) { r.mutable_cache()->set_recent_ratio(v); },
             true},
        Real{"sampling.beam.length_penalty",
             [](auto& r, double v) {
               r.mutable_sampling()->mutable_beam()->set_width(2);
               r.mutable_sampling()->mutable_beam()->set_length_penalty(v);
             },
             false},
        Real{"cache.layer_weights[1]",
             [](auto& r, double v) {
               r.mutable_cache()->add_layer_weights(1.0);
               r.mutable_cache()->add_layer_weights(v);
             },
             true},
        Real{"cache.tau_init",
             [](auto& r, double v) { r.mutable_cache()->set_tau_init(v); },
             true},
        Real{"cache.tau_end",
             [](auto& r, double v) { r.mutable_cache()->set_tau_end(v); },
             true}),
    [](const auto& p) {
      std::string name = p.param.path;
      for (char& c : name) {
        if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
      }
      return name;
    });

TEST(ToEngineRequest, FieldsArrive) {
  v1::GenerateRequest proto = TextRequest();
  proto.set_model("tiny");
  proto.set_priority(-3);
  proto.mutable_sampling()->set_temperature(0.7);
  proto.mutable_sampling()->set_top_k(4294967295U);
  proto.mutable_sampling()->set_seed(0);
  (*proto.mutable_sampling()->mutable_logit_bias())[7] = -2.0;
  proto.mutable_stopping()->set_max_new_tokens(0);
  proto.mutable_stopping()->add_stop("x");
  proto.mutable_stopping()->add_stop_token_ids(9);
  proto.mutable_output()->set_echo_prompt(true);
  const auto request = ToEngineRequest(proto, Tiny().context);
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->priority, -3);
  EXPECT_EQ(request->sampling.temperature, 0.7);
  EXPECT_EQ(request->sampling.top_k, 4294967295U);
  EXPECT_EQ(request->sampling.seed, 0U);
  EXPECT_EQ(request->sampling.logit_bias.at(7), -2.0);
  EXPECT_EQ(request->stopping.max_new_tokens, 0U);
  EXPECT_EQ(request->stopping.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(request->stopping.stop_token_ids, std::vector<engine::TokenId>{9});
  EXPECT_EQ(request->prompt_text, "hello");
  EXPECT_FALSE(request->prompt.empty());
}

TEST(ToEngineRequest, ControlTokensAreTextUnlessAsked) {
  v1::GenerateRequest proto;
  proto.set_text("</s>");
  const auto count = [&] {
    const auto request = ToEngineRequest(proto, Tiny().context);
    return std::count(request->prompt.begin(), request->prompt.end(),
                      testing::kTinyEos);
  };
  EXPECT_EQ(count(), 0);
  proto.set_parse_special(true);
  EXPECT_EQ(count(), 1);
}

TEST(ToEngineRequest, LeavesTheEchoOfIdsToTheirTurn) {
  // Nothing is decoded before the length is known to be in range.
  v1::GenerateRequest proto;
  for (int i = 0; i < 5; ++i) proto.mutable_token_ids()->add_ids(65);
  proto.mutable_output()->set_echo_prompt(true);
  const auto request = ToEngineRequest(proto, Tiny().context);
  ASSERT_THAT(request, IsOk());
  EXPECT_TRUE(request->output.echo_prompt);
  EXPECT_EQ(request->prompt_text, "");
}

TEST(ToEngineRequest, TextHasAConstantLimitToo) {
  ConvertContext context = Tiny().context;
  context.context_tokens = 1 << 30;
  v1::GenerateRequest proto;
  proto.set_text(std::string(kMaxTextBytes + 1, 'a'));
  EXPECT_THAT(ToEngineRequest(proto, context),
              StatusIs(kInvalid, "text: 4194305 bytes, want at most 4194304"));
}

TEST(ToEngineRequest, ChatThatOverworksTheTemplateIsNoShortage) {
  v1::GenerateRequest proto;
  for (int i = 0; i < 60000; ++i) {
    proto.mutable_chat()->add_messages()->set_role(
        "as long a role as there may be, sixty-four bytes of it at most!!");
  }
  EXPECT_THAT(ToEngineRequest(proto, Tiny().context),
              StatusIs(kInvalid, "chat.messages: chat template line"));
}

TEST(ToEngineRequest, ChatGoesThroughTheTemplate) {
  v1::GenerateRequest proto;
  auto* message = proto.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("</s>");
  const auto request = ToEngineRequest(proto, Tiny().context);
  ASSERT_THAT(request, IsOk());
  EXPECT_GT(request->prompt.size(), 4U);
}

TEST(ToEngineRequest, ChatWithoutTemplateSaysSo) {
  const auto tiny = MakeTinyContext(false);
  v1::GenerateRequest proto;
  proto.mutable_chat()->add_messages()->set_role("user");
  EXPECT_THAT(ToEngineRequest(proto, tiny->context),
              StatusIs(absl::StatusCode::kFailedPrecondition, "chat: "));
}

}  // namespace
}  // namespace kf::server
