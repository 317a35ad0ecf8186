// Streams that end badly, many times over: nothing may be left behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/harness.h"
#include "tests/e2e/relay.h"
#include "tools/client_lib/metrics_page.h"

namespace kf::testing {
namespace {

constexpr uint32_t kThreads = 4;

// KEYFORMER_CHURN_CYCLES asks for more than a test run has time for.
uint32_t CyclesPerThread() {
  const char* cycles = std::getenv("KEYFORMER_CHURN_CYCLES");
  const int wanted = cycles == nullptr ? 200 : std::atoi(cycles);
  return (static_cast<uint32_t>(std::max(wanted, 1)) + kThreads - 1) / kThreads;
}

uint32_t Below(uint32_t limit, std::mt19937& random) {
  return static_cast<uint32_t>(random() % limit);
}

v1::GenerateRequest RandomRequest(std::mt19937& random) {
  v1::GenerateRequest request =
      TextRequest(std::string(1 + Below(600, random), 'a'), 4000);
  switch (Below(4, random)) {
    case 0:
      request.mutable_cache()->set_policy(v1::CACHE_POLICY_FULL);
      break;
    case 1:
      request.mutable_cache()->set_tokens(1 + Below(64, random));
      break;
    case 2:
      request.mutable_sampling()->set_n(2);
      break;
    default:
      break;
  }
  return request;
}

enum class Loss : uint8_t { kCancel, kKill, kDeadline };

// Reads up to `chunks`, then goes away: by a cancel, by a connection that
// breaks as a killed client's does, or because its deadline passes.
void Cycle(TestServer& server, std::mt19937& random) {
  const auto loss = static_cast<Loss>(Below(3, random));
  const uint32_t chunks = Below(12, random);
  Relay relay(server.server().grpc_port());
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto stub = v1::GenerationService::NewStub(grpc::CreateCustomChannel(
      relay.address(), grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  SetPatience(context);
  if (loss == Loss::kDeadline) {
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::milliseconds(1 + Below(60, random)));
  }
  auto reader = stub->GenerateStream(&context, RandomRequest(random));
  v1::GenerateChunk chunk;
  for (uint32_t i = 0; i < chunks && reader->Read(&chunk); ++i) {
  }
  if (loss == Loss::kKill) relay.Cut();
  if (loss == Loss::kCancel) context.TryCancel();
  while (reader->Read(&chunk)) {
  }
  reader->Finish();  // OK if the server was faster
}

int64_t ThreadsOfThisProcess() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

void Churn(TestServer& server, uint32_t cycles) {
  std::vector<std::thread> clients;
  for (uint32_t thread = 0; thread < kThreads; ++thread) {
    clients.emplace_back([&server, thread, cycles] {
      std::mt19937 random(thread);  // the same moments in every run
      for (uint32_t i = 0; i < cycles; ++i) Cycle(server, random);
    });
  }
  for (std::thread& client : clients) client.join();
}

// Some of them are lost in the queue: there are more of them than may run.
TEST(Churn, LostStreamsLeaveNothingBehind) {
  TestServer server;
  server.options.engine.max_batch = 3;
  server.Start();
  const v1::GenerateRequest probe = TextRequest("is all well?", 16);
  const Streamed before = RunStream(*server.stub(), probe);
  ASSERT_TRUE(before.status.ok());
  Churn(server, 2);  // gRPC has the threads that it wants
  const int64_t threads_before = ThreadsOfThisProcess();

  std::atomic<bool> over{false};
  std::thread scraper([&] {
    while (!over) {
      const tools::RequestCounts counts =
          tools::MetricsPage(server.Metrics()).Requests();
      EXPECT_EQ(counts.received, counts.accounted_for());
    }
  });
  Churn(server, CyclesPerThread());
  over = true;
  scraper.join();

  server.ExpectNothingHeld();
  const tools::MetricsPage page(server.Metrics());
  const tools::RequestCounts counts = page.Requests();
  EXPECT_EQ(counts.received, counts.ended());
  EXPECT_GT(counts.cancelled, 0.0);
  EXPECT_GT(page.Value("request_failed_total{code=\"DEADLINE_EXCEEDED\"}"),
            0.0);
  // gRPC's own vary by a few.
  EXPECT_LT(ThreadsOfThisProcess(), threads_before + 16);
  const Streamed after = RunStream(*server.stub(), probe);
  EXPECT_TRUE(after.status.ok());
  EXPECT_EQ(after.ids(), before.ids());
}

}  // namespace
}  // namespace kf::testing
