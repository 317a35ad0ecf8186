// Loading, health, reflection, and the drain.
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/harness.h"
#include "tests/e2e/raw_rpc.h"
#include "tests/server/http_client.h"

namespace kf::testing {
namespace {

constexpr char kService[] = "keyformer.v1.GenerationService";

TEST(Lifecycle, AnswersHealthWhileItLoads) {
  TestServer server;
  Gate load;
  load.Close();
  server.StartLoading(&load);
  const auto channel = server.channel();
  EXPECT_EQ(CheckHealth(channel, ""), "SERVING");
  EXPECT_EQ(CheckHealth(channel, kService), "NOT_SERVING");
  const int http = server.server().http_port();
  EXPECT_NE(GetHttp(http, "/healthz").find("200 OK"), std::string::npos);
  EXPECT_NE(GetHttp(http, "/readyz").find("loading"), std::string::npos);
  EXPECT_NE(GetHttp(http, "/metrics").find("num_requests_running 0"),
            std::string::npos);
  const Streamed early = RunStream(*server.stub(), TextRequest("hi", 2));
  EXPECT_EQ(early.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_NE(early.status.error_message().find("loading"), std::string::npos);
  load.Open();
  ASSERT_TRUE(server.server().WaitLoaded().ok());
  EXPECT_EQ(CheckHealth(channel, kService), "SERVING");
  EXPECT_NE(GetHttp(http, "/readyz").find("200 OK"), std::string::npos);
  EXPECT_TRUE(RunStream(*server.stub(), TextRequest("hi", 2)).status.ok());
}

TEST(Lifecycle, LoadFailureIsReportedAndHealthStaysDown) {
  TestServer server;
  server.options.engine.model_path += ".missing";
  server.StartLoading(nullptr);
  EXPECT_FALSE(server.server().WaitLoaded().ok());
  EXPECT_EQ(CheckHealth(server.channel(), kService), "NOT_SERVING");
}

TEST(Lifecycle, DrainWhileLoadingEnds) {
  TestServer server;
  Gate load;
  load.Close();
  server.StartLoading(&load);
  server.server().Drain();
  EXPECT_TRUE(server.server().loading());
  load.Open();
}

TEST(Lifecycle, PortInUseIsAnError) {
  TestServer first;
  first.Start();
  TestServer second;
  second.options.grpc_address = first.address();
  EXPECT_THROW(second.Start(), std::runtime_error);
}

TEST(Lifecycle, ReflectionListsTheServices) {
  TestServer server;
  server.Start();
  const auto [status, response] = ListServices(server.channel());
  EXPECT_TRUE(status.ok());
  EXPECT_NE(response.find(kService), std::string::npos);
  EXPECT_NE(response.find("grpc.health.v1.Health"), std::string::npos);
}

// Reflection's streams block a thread each.
TEST(Lifecycle, IdleReflectionStreamsAreFewAndHoldUpNobody) {
  TestServer server;
  server.Start();
  std::vector<std::unique_ptr<IdleReflection>> idle;
  int open = 0;
  for (int i = 0; i < 40; ++i) {
    idle.push_back(std::make_unique<IdleReflection>(server.channel()));
    if (idle.back()->Ask()) {
      ++open;
    } else {
      EXPECT_EQ(idle.back()->End().error_code(),
                grpc::StatusCode::RESOURCE_EXHAUSTED);
    }
  }
  EXPECT_GE(open, 16);
  EXPECT_LT(open, 40);
  std::vector<std::unique_ptr<HealthWatch>> watches;
  for (int i = 0; i < 40; ++i) {
    watches.push_back(
        std::make_unique<HealthWatch>(server.channel(), kService));
    EXPECT_EQ(watches.back()->Next(), "SERVING");
  }
  EXPECT_TRUE(RunStream(*server.stub(), TextRequest("hi", 2)).status.ok());
  idle.clear();
  // Its threads come back, some moments after the streams have ended.
  while (!ListServices(server.channel()).first.ok()) std::this_thread::yield();
}

TEST(Drain, LetsRunningStreamsFinishUnderAnOpenWatch) {
  TestServer server;
  server.Start();
  const auto stub = server.stub();
  HealthWatch watch(server.channel(), kService);
  EXPECT_EQ(watch.Next(), "SERVING");
  server.gate().Close();
  grpc::ClientContext context;
  SetPatience(context);
  auto reader = stub->GenerateStream(&context, TextRequest("hello", 50));
  v1::GenerateChunk first;
  ASSERT_TRUE(reader->Read(&first));

  std::thread drain([&] { server.server().Drain(); });
  EXPECT_EQ(watch.Next(), "NOT_SERVING");
  while (!server.engine().Stats().draining) std::this_thread::yield();
  EXPECT_EQ(CheckHealth(server.channel(), ""), "SERVING");
  EXPECT_NE(GetHttp(server.server().http_port(), "/readyz").find("draining"),
            std::string::npos);
  const Streamed late = RunStream(*stub, TextRequest("late", 2));
  EXPECT_EQ(late.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  server.gate().Open();
  const Streamed rest = ReadAll(*reader);
  EXPECT_TRUE(rest.status.ok()) << rest.status.error_message();
  EXPECT_EQ(static_cast<size_t>(first.token_ids_size()) + rest.ids().size(),
            50U);
  drain.join();  // though the watch is still open
}

TEST(Drain, EndsWhatIsLeftWithUnavailable) {
  TestServer server;
  server.options.drain_timeout = engine::Duration::zero();
  server.Start();
  const auto stub = server.stub();
  grpc::ClientContext context;
  SetPatience(context);
  server.gate().Close();
  auto reader = stub->GenerateStream(&context, TextRequest("hello", 16000));
  v1::GenerateChunk first;
  ASSERT_TRUE(reader->Read(&first));
  std::thread drain([&] { server.server().Drain(); });
  while (!server.engine().Stats().draining) std::this_thread::yield();
  server.gate().Open();
  EXPECT_EQ(ReadAll(*reader).status.error_code(),
            grpc::StatusCode::UNAVAILABLE);
  drain.join();
}

TEST(Drain, IsNotHeldUpByAClientThatDoesNotRead) {
  TestServer server;
  server.options.drain_timeout = engine::Duration::zero();
  server.Start();
  // The first chunk alone is some megabytes: its write cannot end unread.
  v1::GenerateRequest request = TextRequest(std::string(3000, 'a'), 10000);
  request.mutable_output()->set_prompt_logprobs(true);
  request.mutable_output()->set_top_logprobs(64);
  server.gate().Close();
  grpc::ClientContext context;
  SetPatience(context);
  auto reader = server.stub()->GenerateStream(&context, request);
  while (server.engine().Stats().running == 0) std::this_thread::yield();
  std::thread drain([&] { server.server().Drain(); });
  while (!server.engine().Stats().draining) std::this_thread::yield();
  server.gate().Open();
  drain.join();
  EXPECT_FALSE(ReadAll(*reader).status.ok());
}

}  // namespace
}  // namespace kf::testing
