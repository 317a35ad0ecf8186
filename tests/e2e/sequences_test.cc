// Several sequences of a request, every policy and the cache report through a
// real channel.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/harness.h"

namespace kf::testing {
namespace {

class Sequences : public ::testing::Test {
 protected:
  void SetUp() override {
    server_.Start();
    stub_ = server_.stub();
  }
  void TearDown() override {
    stub_.reset();
    server_.ExpectNothingHeld();
  }

  v1::GenerateResponse Whole(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    SetPatience(context);
    v1::GenerateResponse response;
    const grpc::Status status = stub_->Generate(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  TestServer server_;
  std::unique_ptr<Stub> stub_;
};

v1::GenerateRequest SampledRequest(uint32_t n, uint32_t tokens) {
  v1::GenerateRequest request =
      TextRequest("once upon a time there was a server", tokens);
  request.mutable_sampling()->set_n(n);
  request.mutable_sampling()->set_temperature(1.0);
  request.mutable_sampling()->set_seed(7);
  request.mutable_cache()->set_tokens(20);
  return request;
}

// What a stream's chunks of one index come to.
std::map<uint32_t, v1::Sequence> Joined(const Streamed& streamed) {
  std::map<uint32_t, v1::Sequence> sequences;
  for (const v1::GenerateChunk& chunk : streamed.chunks) {
    v1::Sequence& s = sequences[chunk.index()];
    EXPECT_EQ(s.finish_reason(), v1::FINISH_REASON_NOT_FINISHED)
        << "a chunk after the last of " << chunk.index();
    s.set_index(chunk.index());
    *s.mutable_text() += chunk.text();
    s.mutable_token_ids()->MergeFrom(chunk.token_ids());
    s.mutable_logprobs()->MergeFrom(chunk.logprobs());
    s.set_finish_reason(chunk.finish_reason());
    s.set_stop_string(chunk.stop_string());
    s.set_score(chunk.score());
    if (chunk.has_cache_report()) {
      *s.mutable_cache_report() = chunk.cache_report();
    }
  }
  return sequences;
}

// The rules of docs/api.md for a stream of any number of sequences.
void ExpectWellFormed(const Streamed& streamed, size_t sequences) {
  ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  EXPECT_EQ(Joined(streamed).size(), sequences);
  size_t finished = 0;
  for (const v1::GenerateChunk& chunk : streamed.chunks) {
    const bool first = &chunk == &streamed.chunks.front();
    const bool last = &chunk == &streamed.chunks.back();
    EXPECT_EQ(chunk.has_usage(), first || last);
    EXPECT_EQ(chunk.seed() != 0, first);
    finished += chunk.finish_reason() != v1::FINISH_REASON_NOT_FINISHED;
  }
  EXPECT_EQ(finished, sequences);
  EXPECT_NE(streamed.chunks.back().finish_reason(),
            v1::FINISH_REASON_NOT_FINISHED);
}

TEST_F(Sequences, SamplesStreamWhatTheyAnswer) {
  v1::GenerateRequest request = SampledRequest(3, 24);
  request.mutable_output()->set_logprobs(true);
  const v1::GenerateResponse response = Whole(request);
  ASSERT_EQ(response.sequences_size(), 3);
  const Streamed streamed = RunStream(*stub_, request);
  ExpectWellFormed(streamed, 3);
  for (const auto& [index, sequence] : Joined(streamed)) {
    EXPECT_EQ(sequence.SerializeAsString(),
              response.sequences(static_cast<int>(index)).SerializeAsString());
    EXPECT_EQ(sequence.logprobs_size(), 24);
  }
  EXPECT_NE(response.sequences(0).text(), response.sequences(1).text());
  EXPECT_EQ(response.usage().generated_tokens(), 72U);
  const v1::Usage& usage = streamed.chunks.back().usage();
  EXPECT_EQ(usage.generated_tokens(), 72U);
  EXPECT_EQ(usage.evicted_tokens(), response.usage().evicted_tokens());
  EXPECT_EQ(usage.evicted_tokens(), 3 * (usage.prompt_tokens() + 23 - 20));
}

TEST_F(Sequences, OneOfManyIsTheOneAlone) {
  const v1::GenerateResponse three = Whole(SampledRequest(3, 16));
  const v1::GenerateResponse one = Whole(SampledRequest(1, 16));
  EXPECT_EQ(one.sequences(0).SerializeAsString(),
            three.sequences(0).SerializeAsString());
}

// Sequences run on at their own pace while nobody reads; all arrives.
TEST_F(Sequences, SlowReaderGetsAllOfThemInFewChunks) {
  v1::GenerateRequest request = SampledRequest(8, 200);
  request.mutable_output()->set_logprobs(true);
  request.mutable_output()->set_top_logprobs(64);
  request.mutable_output()->set_prompt_logprobs(true);
  grpc::ClientContext context;
  SetPatience(context);
  auto reader = stub_->GenerateStream(&context, request);
  ASSERT_TRUE(RunStream(*stub_, TextRequest("other", 5)).status.ok());
  ASSERT_TRUE(server_.engine().WaitIdle(std::chrono::seconds(120)));
  const Streamed streamed = ReadAll(*reader);
  ExpectWellFormed(streamed, 8);
  EXPECT_LT(streamed.chunks.size(), 1600U);
  EXPECT_GT(streamed.chunks.front().prompt_logprobs_size(), 0);
  for (const auto& [index, sequence] : Joined(streamed)) {
    EXPECT_EQ(sequence.token_ids_size(), 200) << index;
    EXPECT_EQ(sequence.logprobs_size(), 200) << index;
  }
}

TEST_F(Sequences, CancelFreesThemAll) {
  grpc::ClientContext context;
  SetPatience(context);
  auto reader = stub_->GenerateStream(&context, SampledRequest(4, 16000));
  v1::GenerateChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  context.TryCancel();
  while (reader->Read(&chunk)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

v1::GenerateRequest WithPolicy(v1::CachePolicy policy) {
  v1::GenerateRequest request =
      TextRequest(std::string(90, 'a') + " story of many words", 30);
  v1::CacheOptions& cache = *request.mutable_cache();
  cache.set_policy(policy);
  if (policy != v1::CACHE_POLICY_FULL) cache.set_tokens(32);
  return request;
}

std::vector<v1::GenerateRequest> EveryPolicy() {
  std::vector<v1::GenerateRequest> requests;
  const auto add = [&](v1::CachePolicy policy) -> v1::CacheOptions& {
    requests.push_back(WithPolicy(policy));
    return *requests.back().mutable_cache();
  };
  add(v1::CACHE_POLICY_FULL);
  add(v1::CACHE_POLICY_WINDOW).set_sinks(2);
  add(v1::CACHE_POLICY_H2O).set_scope(v1::SELECTION_SCOPE_LAYER);
  add(v1::CACHE_POLICY_KEYFORMER).set_scope(v1::SELECTION_SCOPE_MODEL);
  add(v1::CACHE_POLICY_KEYFORMER).set_positions(v1::CACHE_POSITIONS_CACHE);
  add(v1::CACHE_POLICY_KEYFORMER).set_score_norm(v1::SCORE_NORM_AGE);
  v1::CacheOptions& weighted = add(v1::CACHE_POLICY_KEYFORMER);
  weighted.add_layer_weights(0.5);
  weighted.add_layer_weights(1.5);
  add(v1::CACHE_POLICY_QUEST).set_full_layers(1);
  return requests;
}

TEST_F(Sequences, EveryPolicyAnswersInOneBatchAsAlone) {
  const std::vector<v1::GenerateRequest> requests = EveryPolicy();
  std::vector<Streamed> alone;
  for (const v1::GenerateRequest& request : requests) {
    alone.push_back(RunStream(*stub_, request));
    ASSERT_TRUE(alone.back().status.ok())
        << alone.back().status.error_message();
    const v1::CachePolicy policy = request.cache().policy();
    const v1::Usage& usage = alone.back().chunks.back().usage();
    const bool evicts =
        policy != v1::CACHE_POLICY_FULL && policy != v1::CACHE_POLICY_QUEST;
    EXPECT_EQ(usage.cache_budget_tokens(), evicts ? 32U : 0U)
        << v1::CachePolicy_Name(policy);
    EXPECT_EQ(usage.evicted_tokens() > 0, evicts);
  }
  std::vector<Streamed> together(requests.size());
  std::vector<std::thread> clients;
  for (size_t i = 0; i < requests.size(); ++i) {
    clients.emplace_back(
        [&, i] { together[i] = RunStream(*stub_, requests[i]); });
  }
  for (std::thread& client : clients) client.join();
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(together[i].ids(), alone[i].ids()) << i;
  }
}

// In every head: `held` tokens, ascending, with as many scores.
void ExpectHeld(const v1::CacheState& state, int held, bool scored) {
  ASSERT_EQ(state.layers_size(), 2);
  for (const v1::LayerState& layer : state.layers()) {
    ASSERT_EQ(layer.heads_size(), 2);
    for (const v1::HeadState& head : layer.heads()) {
      EXPECT_EQ(head.positions_size(), held);
      EXPECT_TRUE(
          std::is_sorted(head.positions().begin(), head.positions().end()));
      if (scored) {
        EXPECT_EQ(head.scores_size(), held);
      }
    }
  }
}

// The share of heads that hold each prompt token, from the lists.
std::vector<double> ShareOf(const v1::CacheState& state, uint32_t prompt) {
  std::vector<double> share(prompt);
  for (const v1::LayerState& layer : state.layers()) {
    for (const v1::HeadState& head : layer.heads()) {
      for (const uint32_t position : head.positions()) {
        if (position < prompt) share[position] += 0.25;
      }
    }
  }
  return share;
}

TEST_F(Sequences, ReportsSayWhatIsHeld) {
  v1::GenerateRequest request = WithPolicy(v1::CACHE_POLICY_KEYFORMER);
  request.mutable_cache()->set_recent_tokens(8);
  EXPECT_FALSE(Whole(request).sequences(0).has_cache_report());
  request.mutable_output()->set_cache_report(v1::CACHE_REPORT_DETAIL_FULL);
  const v1::GenerateResponse full = Whole(request);
  const uint32_t prompt = full.usage().prompt_tokens();
  const v1::CacheReport& report = full.sequences(0).cache_report();
  EXPECT_EQ(report.budget_tokens(), 32U);
  EXPECT_EQ(report.recent_tokens(), 8U);
  for (const auto* state : {&report.after_prompt(), &report.at_end()}) {
    ExpectHeld(*state, 32, true);
    EXPECT_EQ(std::vector<double>(state->retention().begin(),
                                  state->retention().end()),
              ShareOf(*state, prompt));
  }
  // The newest are held in any case; the last token was never fed.
  const v1::HeadState& head = report.at_end().layers(1).heads(1);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(head.positions(31 - i), prompt + 28U - static_cast<uint32_t>(i));
  }

  request.mutable_output()->set_cache_report(v1::CACHE_REPORT_DETAIL_SUMMARY);
  const Streamed streamed = RunStream(*stub_, request);
  const v1::CacheReport& summary = streamed.chunks.back().cache_report();
  EXPECT_EQ(summary.at_end().layers_size(), 0);
  ASSERT_EQ(summary.at_end().retention_size(), static_cast<int>(prompt));
  for (int i = 0; i < summary.at_end().retention_size(); ++i) {
    EXPECT_EQ(summary.at_end().retention(i), report.at_end().retention(i));
    EXPECT_EQ(summary.after_prompt().retention(i),
              report.after_prompt().retention(i));
  }
}

TEST_F(Sequences, WhatEvictsNothingHoldsEverything) {
  for (const auto policy : {v1::CACHE_POLICY_FULL, v1::CACHE_POLICY_QUEST}) {
    v1::GenerateRequest request = WithPolicy(policy);
    request.mutable_output()->set_cache_report(v1::CACHE_REPORT_DETAIL_FULL);
    const v1::GenerateResponse response = Whole(request);
    const v1::CacheReport& report = response.sequences(0).cache_report();
    EXPECT_EQ(report.budget_tokens(), 0U);
    const int prompt = static_cast<int>(response.usage().prompt_tokens());
    ExpectHeld(report.after_prompt(), prompt, false);
    ExpectHeld(report.at_end(), prompt + 29, false);
    for (const double share : report.at_end().retention()) {
      EXPECT_EQ(share, 1.0);
    }
  }
}

TEST_F(Sequences, EachSampleHasItsReport) {
  v1::GenerateRequest request = SampledRequest(2, 40);
  request.mutable_output()->set_cache_report(v1::CACHE_REPORT_DETAIL_FULL);
  const Streamed streamed = RunStream(*stub_, request);
  ExpectWellFormed(streamed, 2);
  const auto sequences = Joined(streamed);
  const v1::CacheReport& zero = sequences.at(0).cache_report();
  const v1::CacheReport& one = sequences.at(1).cache_report();
  EXPECT_EQ(zero.after_prompt().SerializeAsString(),
            one.after_prompt().SerializeAsString());
  EXPECT_NE(zero.at_end().SerializeAsString(),
            one.at_end().SerializeAsString());
}

v1::GenerateRequest BeamRequest(uint32_t width, v1::CachePolicy policy) {
  v1::GenerateRequest request =
      TextRequest("once upon a time there was a server", 12);
  request.mutable_sampling()->mutable_beam()->set_width(width);
  request.mutable_cache()->set_policy(policy);
  if (policy != v1::CACHE_POLICY_FULL) request.mutable_cache()->set_tokens(20);
  return request;
}

TEST_F(Sequences, BeamsComeAtTheEndBestFirst) {
  for (const auto policy :
       {v1::CACHE_POLICY_FULL, v1::CACHE_POLICY_KEYFORMER}) {
    const v1::GenerateRequest request = BeamRequest(4, policy);
    const v1::GenerateResponse response = Whole(request);
    ASSERT_EQ(response.sequences_size(), 4);
    for (int i = 0; i < 4; ++i) {
      const v1::Sequence& sequence = response.sequences(i);
      EXPECT_EQ(sequence.index(), static_cast<uint32_t>(i));
      EXPECT_EQ(sequence.token_ids_size(), 12);
      EXPECT_LT(sequence.score(), 0.0);
      if (i > 0) {
        EXPECT_LE(sequence.score(), response.sequences(i - 1).score());
      }
    }
    const Streamed streamed = RunStream(*stub_, request);
    ExpectWellFormed(streamed, 4);
    uint32_t index = 0;  // a chunk each
    for (const v1::GenerateChunk& chunk : streamed.chunks) {
      EXPECT_EQ(chunk.index(), index++);
    }
    for (const auto& [i, sequence] : Joined(streamed)) {
      EXPECT_EQ(sequence.SerializeAsString(),
                response.sequences(static_cast<int>(i)).SerializeAsString());
    }
  }
}

// Without a token there is nothing to tell beams apart: one comes back, and it
// is the last chunk all the same.
TEST_F(Sequences, BeamsOfNoTokensAreOne) {
  v1::GenerateRequest request = BeamRequest(4, v1::CACHE_POLICY_KEYFORMER);
  request.mutable_stopping()->set_max_new_tokens(0);
  EXPECT_EQ(Whole(request).sequences_size(), 1);
  const Streamed streamed = RunStream(*stub_, request);
  ExpectWellFormed(streamed, 1);
  EXPECT_EQ(streamed.chunks.size(), 1U);
}

TEST_F(Sequences, ABeamOfOneIsGreedy) {
  v1::GenerateRequest request = BeamRequest(1, v1::CACHE_POLICY_H2O);
  const v1::GenerateResponse beam = Whole(request);
  request.clear_sampling();
  const v1::GenerateResponse greedy = Whole(request);
  EXPECT_EQ(beam.sequences(0).text(), greedy.sequences(0).text());
}

TEST_F(Sequences, BeamsShareTheirReport) {
  v1::GenerateRequest request = BeamRequest(2, v1::CACHE_POLICY_KEYFORMER);
  request.mutable_output()->set_cache_report(v1::CACHE_REPORT_DETAIL_FULL);
  const v1::GenerateResponse response = Whole(request);
  const v1::CacheReport& best = response.sequences(0).cache_report();
  ExpectHeld(best.at_end(), 20, true);
  EXPECT_EQ(best.at_end().layers(0).SerializeAsString(),
            response.sequences(1)
                .cache_report()
                .at_end()
                .layers(0)
                .SerializeAsString());
}

// The file beside the model, the default by flag, and a request's own choice.
TEST(Profiles, AreServedByName) {
  TestServer server;
  std::ofstream(server.options.engine.model_path + ".profiles.json")
      << R"({"profiles": {"late": {"weights": [0.5, 1.5]}}})";
  server.options.rules.layer_profile = "late";
  server.Start();
  const auto stub = server.stub();
  grpc::ClientContext context;
  SetPatience(context);
  v1::ModelInfoResponse info;
  ASSERT_TRUE(stub->ModelInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.default_cache().layer_profile(), "late");
  ASSERT_EQ(info.layer_profiles_size(), 2);
  EXPECT_EQ(info.layer_profiles(0), "late");
  EXPECT_EQ(info.layer_profiles(1), "uniform");

  v1::GenerateRequest request = WithPolicy(v1::CACHE_POLICY_KEYFORMER);
  request.mutable_output()->set_cache_report(v1::CACHE_REPORT_DETAIL_FULL);
  const auto held = [&](const std::string& profile) {
    request.mutable_cache()->set_layer_profile(profile);
    const Streamed streamed = RunStream(*stub, request);
    EXPECT_TRUE(streamed.status.ok()) << streamed.status.error_message();
    std::vector<int> sizes;
    for (const v1::LayerState& layer :
         streamed.chunks.back().cache_report().at_end().layers()) {
      sizes.push_back(layer.heads(0).positions_size());
    }
    return sizes;
  };
  EXPECT_EQ(held(""), (std::vector<int>{16, 48}));
  EXPECT_EQ(held("late"), (std::vector<int>{16, 48}));
  EXPECT_EQ(held("uniform"), (std::vector<int>{32, 32}));
}

TEST(Profiles, ADefaultThatThereIsNotEndsTheStart) {
  TestServer server;
  server.options.rules.layer_profile = "late";
  EXPECT_THROW(server.Start(), std::runtime_error);
}

TEST(Reports, TooLongOnesAreRefusedAtOnce) {
  TestServer server;
  server.options.rules.max_report_bytes = 100000;
  server.Start();
  v1::GenerateRequest request = TextRequest(std::string(2000, 'a'), 10);
  request.mutable_cache()->set_policy(v1::CACHE_POLICY_FULL);
  request.mutable_output()->set_cache_report(v1::CACHE_REPORT_DETAIL_FULL);
  const Streamed refused = RunStream(*server.stub(), request);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(refused.status.error_message().find("output.cache_report: FULL"),
            std::string::npos)
      << refused.status.error_message();
  request.mutable_output()->set_cache_report(v1::CACHE_REPORT_DETAIL_SUMMARY);
  EXPECT_TRUE(RunStream(*server.stub(), request).status.ok());
  server.ExpectNothingHeld();
}

}  // namespace
}  // namespace kf::testing
