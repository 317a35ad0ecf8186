// Generate, GenerateStream and the small RPCs through a real channel.
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/harness.h"
#include "tests/testing/tiny_model.h"

namespace kf::testing {
namespace {

class Generate : public ::testing::Test {
 protected:
  void SetUp() override {
    server_.Start();
    stub_ = server_.stub();
  }
  void TearDown() override {
    stub_.reset();
    server_.ExpectNothingHeld();
  }

  TestServer server_;
  std::unique_ptr<Stub> stub_;
};

TEST_F(Generate, UnaryAnswersWhatTheStreamDoes) {
  v1::GenerateRequest request = TextRequest("The capital of France is", 40);
  request.set_request_id("mine");
  request.set_model("tiny");
  request.mutable_output()->set_logprobs(true);
  request.mutable_output()->set_top_logprobs(2);
  request.mutable_output()->set_prompt_logprobs(true);
  request.mutable_cache()->set_tokens(16);
  grpc::ClientContext context;
  SetPatience(context);
  v1::GenerateResponse response;
  const grpc::Status status = stub_->Generate(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.request_id(), "mine");
  ASSERT_EQ(response.sequences_size(), 1);
  const v1::Sequence& sequence = response.sequences(0);
  EXPECT_EQ(sequence.token_ids_size(), 40);
  EXPECT_EQ(sequence.finish_reason(), v1::FINISH_REASON_LENGTH);
  ASSERT_EQ(sequence.logprobs_size(), 40);
  EXPECT_EQ(sequence.logprobs(0).rank(), 1U);  // greedy
  EXPECT_EQ(sequence.logprobs(0).top_size(), 2);
  EXPECT_LE(sequence.logprobs(0).logprob(), 0.0);
  const v1::Usage& usage = response.usage();
  EXPECT_EQ(usage.cache_budget_tokens(), 16U);
  EXPECT_EQ(usage.generated_tokens(), 40U);
  EXPECT_EQ(usage.max_new_tokens(), 40U);
  // n + tokens fed - held.
  EXPECT_EQ(usage.evicted_tokens(), usage.prompt_tokens() + 39 - 16);
  EXPECT_EQ(response.prompt_logprobs_size(),
            static_cast<int>(usage.prompt_tokens()) - 1);

  const Streamed streamed = RunStream(*stub_, request);
  ASSERT_TRUE(streamed.status.ok());
  EXPECT_EQ(streamed.text(), sequence.text());
  EXPECT_EQ(streamed.ids(), std::vector<uint32_t>(sequence.token_ids().begin(),
                                                  sequence.token_ids().end()));
  const v1::GenerateChunk& first = streamed.chunks.front();
  EXPECT_EQ(first.request_id(), "mine");
  EXPECT_EQ(first.usage().prompt_tokens(), usage.prompt_tokens());
  EXPECT_EQ(first.prompt_logprobs_size(), response.prompt_logprobs_size());
  const v1::GenerateChunk& last = streamed.chunks.back();
  EXPECT_EQ(last.finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(last.usage().generated_tokens(), 40U);
  int logprobs = 0;
  for (const v1::GenerateChunk& chunk : streamed.chunks) {
    logprobs += chunk.logprobs_size();
    EXPECT_EQ(chunk.logprobs_size(), chunk.token_ids_size());
    if (&chunk != &last) {
      EXPECT_EQ(chunk.finish_reason(), v1::FINISH_REASON_NOT_FINISHED);
    }
  }
  EXPECT_EQ(logprobs, 40);
}

TEST_F(Generate, SeedsComeBackAndRepeatTheAnswer) {
  v1::GenerateRequest request = TextRequest("once upon a time", 24);
  request.mutable_sampling()->set_temperature(1.0);
  const Streamed drawn = RunStream(*stub_, request);
  ASSERT_TRUE(drawn.status.ok());
  request.mutable_sampling()->set_seed(drawn.chunks.front().seed());
  request.mutable_cache()->set_noise_seed(drawn.chunks.front().noise_seed());
  const Streamed again = RunStream(*stub_, request);
  EXPECT_EQ(again.ids(), drawn.ids());
  EXPECT_EQ(again.chunks.front().seed(), drawn.chunks.front().seed());
}

TEST_F(Generate, NoTokensIsOneChunk) {
  const Streamed streamed = RunStream(*stub_, TextRequest("hello", 0));
  ASSERT_TRUE(streamed.status.ok());
  ASSERT_EQ(streamed.chunks.size(), 1U);
  EXPECT_EQ(streamed.chunks[0].finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_GT(streamed.chunks[0].usage().prompt_tokens(), 0U);
}

TEST_F(Generate, ManyStreamsAtOnceAnswerAsAlone) {
  constexpr int kStreams = 32;
  std::vector<v1::GenerateRequest> requests;
  std::vector<Streamed> alone;
  for (int i = 0; i < kStreams; ++i) {
    requests.push_back(
        TextRequest("story number " + std::to_string(i) +
                        std::string(static_cast<size_t>(i) * 3, '.'),
                    static_cast<uint32_t>(20 + i)));
    requests.back().mutable_sampling()->set_temperature(i % 2 == 0 ? 0.0 : 0.8);
    requests.back().mutable_sampling()->set_seed(static_cast<uint64_t>(i));
    requests.back().mutable_cache()->set_tokens(static_cast<uint32_t>(8 + i));
    alone.push_back(RunStream(*stub_, requests.back()));
    ASSERT_TRUE(alone.back().status.ok());
  }
  std::vector<Streamed> together(kStreams);
  std::vector<std::thread> clients;
  for (size_t i = 0; i < kStreams; ++i) {
    clients.emplace_back(
        [&, i] { together[i] = RunStream(*stub_, requests[i]); });
  }
  for (std::thread& client : clients) client.join();
  for (size_t i = 0; i < kStreams; ++i) {
    EXPECT_TRUE(together[i].status.ok()) << together[i].status.error_message();
    EXPECT_EQ(together[i].ids(), alone[i].ids()) << i;
    EXPECT_EQ(together[i].text(), alone[i].text()) << i;
  }
}

TEST_F(Generate, CancelFreesTheRequest) {
  grpc::ClientContext context;
  SetPatience(context);
  auto reader = stub_->GenerateStream(&context, TextRequest("hello", 16000));
  v1::GenerateChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  context.TryCancel();
  while (reader->Read(&chunk)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  server_.ExpectNothingHeld();
  EXPECT_NE(server_.Metrics().find("keyformer_request_cancelled_total 1\n"),
            std::string::npos);
}

TEST_F(Generate, DeadlineFreesTheRequest) {
  server_.gate().Close();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(300));
  v1::GenerateResponse response;
  const grpc::Status status =
      stub_->Generate(&context, TextRequest("hello", 16000), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  server_.gate().Open();
  server_.ExpectNothingHeld();
}

TEST_F(Generate, SlowReaderHoldsUpNobody) {
  v1::GenerateRequest request = TextRequest("hello", 1000);
  request.mutable_output()->set_logprobs(true);
  request.mutable_output()->set_top_logprobs(64);  // about a kilobyte each
  grpc::ClientContext context;
  SetPatience(context);
  auto reader = stub_->GenerateStream(&context, request);
  // Another client is served, and the engine is done with both, though nobody
  // has read a byte of the first.
  EXPECT_TRUE(RunStream(*stub_, TextRequest("other", 5)).status.ok());
  ASSERT_TRUE(server_.engine().WaitIdle(std::chrono::seconds(120)));
  const Streamed streamed = ReadAll(*reader);
  ASSERT_TRUE(streamed.status.ok());
  EXPECT_EQ(streamed.ids().size(), 1000U);
  EXPECT_LT(streamed.chunks.size(), 1000U);
}

TEST_F(Generate, FullQueueSaysWhenToComeBack) {
  TestServer small;
  small.options.engine.max_batch = 1;
  small.options.engine.max_queue_requests = 1;
  small.Start();
  const auto stub = small.stub();
  // One runs, held in its first decode step; the next one waits.
  small.gate().Close();
  grpc::ClientContext running;
  grpc::ClientContext waiting;
  SetPatience(running);
  SetPatience(waiting);
  auto first = stub->GenerateStream(&running, TextRequest("a", 8));
  v1::GenerateChunk chunk;
  ASSERT_TRUE(first->Read(&chunk));
  auto second = stub->GenerateStream(&waiting, TextRequest("b", 8));
  while (small.engine().Stats().waiting < 1) std::this_thread::yield();
  grpc::ClientContext context;
  SetPatience(context);
  v1::GenerateResponse response;
  const grpc::Status status =
      stub->Generate(&context, TextRequest("c", 8), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms"),
            1U);
  small.gate().Open();
  EXPECT_TRUE(ReadAll(*first).status.ok());
  EXPECT_TRUE(ReadAll(*second).status.ok());
  small.ExpectNothingHeld();
}

TEST_F(Generate, UnfinishedRpcsHaveALimit) {
  TestServer small;
  small.options.engine.max_batch = 1;
  small.options.engine.max_queue_requests = 1;
  small.options.spare_rpcs = 0;
  small.Start();
  const auto stub = small.stub();
  small.gate().Close();
  grpc::ClientContext contexts[2];
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateChunk>>> readers;
  for (grpc::ClientContext& context : contexts) {
    SetPatience(context);
    readers.push_back(stub->GenerateStream(&context, TextRequest("a", 8)));
    // The first runs, and is held in its first decode step; the second waits.
    const auto arrived = [&] {
      const engine::EngineStats stats = small.engine().Stats();
      return readers.size() == 1 ? stats.running == 1 : stats.waiting == 1;
    };
    while (!arrived()) std::this_thread::yield();
  }
  const Streamed third = RunStream(*stub, TextRequest("b", 8));
  EXPECT_EQ(third.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(third.status.error_message().find("2 RPCs"), std::string::npos);
  grpc::ClientContext context;
  SetPatience(context);
  v1::GetLoadResponse load;
  EXPECT_EQ(stub->GetLoad(&context, {}, &load).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(small.Metrics().find(
                "keyformer_request_rejected_total{reason=\"queue_full\"} 1\n"),
            std::string::npos);
  small.gate().Open();
  for (auto& reader : readers) EXPECT_TRUE(ReadAll(*reader).status.ok());
  small.ExpectNothingHeld();
}

// What is above 64 KiB is read on other threads.
TEST_F(Generate, LongRequestsAreAnsweredAsShortOnes) {
  const v1::GenerateRequest request = TextRequest("hello", 8);
  const Streamed want = RunStream(*stub_, request);
  ASSERT_TRUE(want.status.ok());
  v1::GenerateRequest padded = request;
  padded.GetReflection()->MutableUnknownFields(&padded)->AddLengthDelimited(
      1000, std::string(100000, 'x'));
  const Streamed got = RunStream(*stub_, padded);
  EXPECT_TRUE(got.status.ok()) << got.status.error_message();
  EXPECT_EQ(got.ids(), want.ids());
  grpc::ClientContext context;
  SetPatience(context);
  v1::GenerateResponse response;
  EXPECT_TRUE(stub_->Generate(&context, padded, &response).ok());
  EXPECT_EQ(response.sequences(0).text(), want.text());

  v1::DetokenizeRequest ids;
  for (int i = 0; i < 65536; ++i) ids.add_token_ids(i % 2 == 0 ? 'a' : 200);
  grpc::ClientContext context2;
  SetPatience(context2);
  v1::DetokenizeResponse text;
  EXPECT_TRUE(stub_->Detokenize(&context2, ids, &text).ok());
  EXPECT_EQ(text.text().substr(0, 4), "a\xEF\xBF\xBD");
}

// So are answers written that would take the engine's thread too long.
TEST_F(Generate, LongAnswersArriveWhole) {
  v1::GenerateRequest request = TextRequest(std::string(300, 'a'), 200);
  request.mutable_output()->set_logprobs(true);
  request.mutable_output()->set_prompt_logprobs(true);
  request.mutable_output()->set_top_logprobs(64);
  const Streamed streamed = RunStream(*stub_, request);
  ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  EXPECT_EQ(streamed.ids().size(), 200U);
  grpc::ClientContext context;
  SetPatience(context);
  v1::GenerateResponse response;
  ASSERT_TRUE(stub_->Generate(&context, request, &response).ok());
  EXPECT_EQ(response.sequences(0).logprobs_size(), 200);
  EXPECT_EQ(response.sequences(0).text(), streamed.text());
  ASSERT_EQ(response.prompt_logprobs_size(), 299);
  EXPECT_EQ(streamed.chunks.front().prompt_logprobs_size(), 299);
  EXPECT_EQ(response.prompt_logprobs(0).SerializeAsString(),
            streamed.chunks.front().prompt_logprobs(0).SerializeAsString());
  server_.ExpectNothingHeld();
}

TEST_F(Generate, TokenizeAndBack) {
  v1::TokenizeRequest request;
  request.set_text("h\xC3\xA9llo");
  request.set_with_offsets(true);
  grpc::ClientContext context;
  SetPatience(context);
  v1::TokenizeResponse response;
  ASSERT_TRUE(stub_->Tokenize(&context, request, &response).ok());
  ASSERT_GT(response.token_ids_size(), 0);
  EXPECT_EQ(response.offsets_size(), response.token_ids_size());
  EXPECT_EQ(response.tokens_size(), response.token_ids_size());
  v1::DetokenizeRequest back;
  *back.mutable_token_ids() = response.token_ids();
  grpc::ClientContext context2;
  SetPatience(context2);
  v1::DetokenizeResponse text;
  ASSERT_TRUE(stub_->Detokenize(&context2, back, &text).ok());
  EXPECT_EQ(text.text(), "h\xC3\xA9llo");

  back.add_token_ids(4000000000U);
  grpc::ClientContext context3;
  SetPatience(context3);
  const grpc::Status status = stub_->Detokenize(&context3, back, &text);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(status.error_message().find("4000000000"), std::string::npos);
}

TEST(GenerateOf8Bits, ModelInfoSaysSo) {
  TestServer server;
  server.options.engine.cache_dtype = DType::kI8;
  server.Start();
  grpc::ClientContext context;
  SetPatience(context);
  v1::ModelInfoResponse info;
  ASSERT_TRUE(server.stub()->ModelInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.cache_dtype(), "q8");
  // K and V: a byte a channel, and a scale.
  EXPECT_EQ(
      info.kv_bytes_per_token(),
      uint64_t{2} * info.layers() * info.kv_heads() * (info.head_dim() + 4));
}

TEST_F(Generate, ModelInfoAndLoad) {
  grpc::ClientContext context;
  SetPatience(context);
  v1::ModelInfoResponse info;
  ASSERT_TRUE(stub_->ModelInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.model(), "tiny");
  EXPECT_EQ(info.architecture(), "llama");
  EXPECT_EQ(info.layers(), 2U);
  EXPECT_EQ(info.query_heads(), 4U);
  EXPECT_EQ(info.kv_heads(), 2U);
  EXPECT_EQ(info.vocabulary(), static_cast<uint32_t>(kTinyVocabulary));
  EXPECT_EQ(info.context_tokens(), 16384U);
  EXPECT_EQ(info.weight_dtype(), "f32");
  EXPECT_EQ(info.cache_dtype(), "f32");
  EXPECT_EQ(info.default_cache().policy(), v1::CACHE_POLICY_KEYFORMER);
  EXPECT_EQ(info.default_cache().min_tokens(), 256U);
  EXPECT_EQ(info.policies_size(), 5);
  EXPECT_EQ(info.default_max_new_tokens(), 256U);
  EXPECT_TRUE(info.has_chat_template());
  EXPECT_FALSE(info.server_version().empty());

  grpc::ClientContext context2;
  SetPatience(context2);
  v1::GetLoadResponse load;
  ASSERT_TRUE(stub_->GetLoad(&context2, {}, &load).ok());
  EXPECT_EQ(load.running(), 0U);
  EXPECT_GT(load.kv_pages_total(), 0U);
  EXPECT_EQ(load.kv_pages_free(), load.kv_pages_total());
  EXPECT_FALSE(load.draining());
}

}  // namespace
}  // namespace kf::testing
