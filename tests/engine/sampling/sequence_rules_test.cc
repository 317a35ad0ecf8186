// What goes with several sequences, and what is refused beside them.
#include "engine/sequence_rules.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "kernels/core/status.h"

namespace kf::engine {
namespace {

constexpr int32_t kVocabulary = 100;

Request BeamRequest(uint32_t width = 4) {
  Request request;
  request.beam = BeamParams{.width = width};
  return request;
}

std::string Message(const Request& request) {
  const absl::Status status = CheckSequences(request, kVocabulary);
  if (status.ok()) return "";
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(ToStd(status.message()));
}

TEST(SequenceRulesTest, BeamsGoWithLengthEosAndCache) {
  Request request = BeamRequest();
  request.stopping.max_new_tokens = 9;
  request.stopping.ignore_eos = true;
  request.stopping.time_limit_ms = 5.0;
  request.sampling.seed = 1;  // of the noise
  request.output.prompt_logprobs = true;
  request.output.echo_prompt = true;
  request.cache.policy = CachePolicy::kH2O;
  EXPECT_EQ(Message(request), "");
  EXPECT_EQ(CountSequences(request), 4);
}

TEST(SequenceRulesTest, AnyOtherOptionBesideBeamsIsRefused) {
  struct Case {
    const char* field;
    std::function<void(Request&)> set;
  };
  const Case cases[] = {
      {"sampling.temperature", [](Request& r) { r.sampling.temperature = 1; }},
      {"sampling.top_k", [](Request& r) { r.sampling.top_k = 1; }},
      {"sampling.top_p", [](Request& r) { r.sampling.top_p = 0.5; }},
      {"sampling.min_p", [](Request& r) { r.sampling.min_p = 0.5; }},
      {"sampling.typical_p", [](Request& r) { r.sampling.typical_p = 0.5; }},
      {"sampling.repetition_penalty",
       [](Request& r) { r.sampling.repetition_penalty = 1.2; }},
      {"sampling.presence_penalty",
       [](Request& r) { r.sampling.presence_penalty = 1; }},
      {"sampling.frequency_penalty",
       [](Request& r) { r.sampling.frequency_penalty = 1; }},
      {"sampling.logit_bias", [](Request& r) { r.sampling.logit_bias[1] = 1; }},
      {"sampling.n", [](Request& r) { r.samples = 2; }},
      {"stopping.min_new_tokens",
       [](Request& r) { r.stopping.min_new_tokens = 1; }},
      {"stopping.stop", [](Request& r) { r.stopping.stop = {"x"}; }},
      {"stopping.stop_token_ids",
       [](Request& r) { r.stopping.stop_token_ids = {1}; }},
      {"stopping.include_stop",
       [](Request& r) { r.stopping.include_stop = true; }},
      {"output.logprobs", [](Request& r) { r.output.logprobs = true; }},
      {"forced_tokens", [](Request& r) { r.forced_tokens = {1}; }},
  };
  for (const Case& c : cases) {
    Request request = BeamRequest();
    c.set(request);
    EXPECT_EQ(Message(request),
              std::string(c.field) +
                  ": set, but sampling.beam is too, which goes with "
                  "max_new_tokens, ignore_eos and cache options only");
  }
  Request quest = BeamRequest();
  quest.cache.policy = CachePolicy::kQuest;
  EXPECT_EQ(Message(quest),
            "sampling.beam: set, but cache.policy is QUEST, which has no "
            "beams");
}

TEST(SequenceRulesTest, BeamParametersHaveLimits) {
  EXPECT_EQ(Message(BeamRequest(50)), "");
  EXPECT_EQ(Message(BeamRequest(51)), "sampling.beam.width: 51, want 1 to 50");
  EXPECT_EQ(Message(BeamRequest(0)), "sampling.beam.width: 0, want 1 to 50");
  Request request = BeamRequest();
  for (const double good : {-10.0, 0.0, 10.0}) {
    request.beam->length_penalty = good;
    EXPECT_EQ(Message(request), "");
  }
  for (const double bad : {-10.5, 10.5, std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()}) {
    request.beam->length_penalty = bad;
    EXPECT_NE(Message(request).find("sampling.beam.length_penalty: "),
              std::string::npos);
  }
}

TEST(SequenceRulesTest, SamplesAreOneOrMoreAndNotForced) {
  Request request;
  EXPECT_EQ(Message(request), "");
  EXPECT_EQ(CountSequences(request), 1);
  request.samples = 7;
  EXPECT_EQ(Message(request), "");
  EXPECT_EQ(CountSequences(request), 7);
  request.samples = std::numeric_limits<uint32_t>::max();
  EXPECT_EQ(CountSequences(request), std::numeric_limits<int32_t>::max());
  request.samples = 0;
  EXPECT_EQ(Message(request), "sampling.n: 0, want at least 1");
  request.samples = 2;
  request.forced_tokens = {1, 2};
  EXPECT_EQ(Message(request), "sampling.n: 2, want 1 with forced_tokens");
}

}  // namespace
}  // namespace kf::engine
