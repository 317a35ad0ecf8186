// Streams that end badly, many times over: nothing may be left behind.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/harness.h"
#include "tests/e2e/relay.h"

namespace kf::testing {
namespace {

constexpr int kThreads = 4;
constexpr int kCyclesPerThread = 50;

uint32_t Below(uint32_t limit, std::mt19937& random) {
  return static_cast<uint32_t>(random() % limit);
}

v1::GenerateRequest RandomRequest(std::mt19937& random) {
  v1::GenerateRequest request =
      TextRequest(std::string(1 + Below(600, random), 'a'), 4000);
  switch (Below(3, random)) {
    case 0:
      request.mutable_cache()->set_policy(v1::CACHE_POLICY_FULL);
      break;
    case 1:
      request.mutable_cache()->set_tokens(1 + Below(64, random));
      break;
    default:
      break;
  }
  return request;
}

// Reads up to `chunks`, then goes away: by a cancel, or by a connection that
// breaks as a killed client's does.
void Cycle(TestServer& server, std::mt19937& random) {
  const bool killed = Below(2, random) == 0;
  const uint32_t chunks = Below(12, random);
  Relay relay(server.server().grpc_port());
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto stub = v1::GenerationService::NewStub(grpc::CreateCustomChannel(
      relay.address(), grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  SetPatience(context);
  auto reader = stub->GenerateStream(&context, RandomRequest(random));
  v1::GenerateChunk chunk;
  for (uint32_t i = 0; i < chunks && reader->Read(&chunk); ++i) {
  }
  if (killed) {
    relay.Cut();
  } else {
    context.TryCancel();
  }
  while (reader->Read(&chunk)) {
  }
  reader->Finish();  // OK if the server was faster
}

TEST(Churn, TwoHundredLostStreamsLeaveNothingBehind) {
  TestServer server;
  server.Start();
  const v1::GenerateRequest probe = TextRequest("is all well?", 16);
  const Streamed before = RunStream(*server.stub(), probe);
  ASSERT_TRUE(before.status.ok());
  std::vector<std::thread> clients;
  for (uint32_t thread = 0; thread < kThreads; ++thread) {
    clients.emplace_back([&server, thread] {
      std::mt19937 random(thread);  // the same moments in every run
      for (int i = 0; i < kCyclesPerThread; ++i) Cycle(server, random);
    });
  }
  for (std::thread& client : clients) client.join();
  server.ExpectNothingHeld();
  EXPECT_EQ(server.Metrics().find("keyformer_request_cancelled_total 0\n"),
            std::string::npos);
  const Streamed after = RunStream(*server.stub(), probe);
  EXPECT_TRUE(after.status.ok());
  EXPECT_EQ(after.ids(), before.ids());
}

}  // namespace
}  // namespace kf::testing
