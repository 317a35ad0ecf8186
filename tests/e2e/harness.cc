#include "tests/e2e/harness.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <utility>

#include "tests/engine/core/hook_backend.h"
#include "tests/server/http_client.h"
#include "tests/testing/tiny_model.h"

namespace kf::testing {
namespace {

constexpr std::chrono::seconds kPatience{120};

server::EngineFactory GatedFactory(const std::shared_ptr<Gate>& steps,
                                   Gate* load) {
  return [steps, load](const engine::EngineOptions& options,
                       const engine::Clock& clock,
                       engine::EngineObserver* observer)
             -> absl::StatusOr<std::unique_ptr<engine::Engine>> {
    if (load != nullptr) load->Pass();
    auto inner = CreateBackend(options.backend);
    if (!inner.ok()) return inner.status();
    engine::Hooks hooks;
    hooks.decode = [steps](const DecodeAttentionArgs&) {
      steps->Pass();
      return absl::OkStatus();
    };
    return engine::Engine::Create(options, clock, observer,
                                  std::make_unique<engine::HookBackend>(
                                      *std::move(inner), std::move(hooks)));
  };
}

}  // namespace

void Gate::Close() {
  const MutexLock lock(mu_);
  closed_ = true;
}

void Gate::Open() {
  const MutexLock lock(mu_);
  closed_ = false;
  opened_.NotifyAll();
}

void Gate::Pass() {
  const MutexLock lock(mu_);
  while (closed_) opened_.Wait(mu_);
}

std::string Streamed::text() const {
  std::string text;
  for (const v1::GenerateChunk& chunk : chunks) text += chunk.text();
  return text;
}

std::vector<uint32_t> Streamed::ids() const {
  std::vector<uint32_t> ids;
  for (const v1::GenerateChunk& chunk : chunks) {
    ids.insert(ids.end(), chunk.token_ids().begin(), chunk.token_ids().end());
  }
  return ids;
}

TestServer::TestServer() {
  TinyModelSpec spec;
  spec.context = 16384;
  options.engine.model_path = WriteTinyModel(spec, dir_.File("tiny.gguf"));
  options.engine.weight_format = WeightFormat::kF32;
  options.engine.cache_dtype = DType::kF32;
  options.engine.backend.threads = 1;
  options.engine.kv_pool_bytes = uint64_t{64} << 20;
  options.engine.prefill_workspace_tokens = 4096;
  options.served_model_name = "tiny";
  options.grpc_address = "127.0.0.1:0";
  options.http_address = "127.0.0.1:0";
}

TestServer::~TestServer() { gate_->Open(); }

void TestServer::Start() {
  StartLoading(nullptr);
  const absl::Status status = server_->WaitLoaded();
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

void TestServer::StartLoading(Gate* go) {
  auto server =
      server::Server::Start(options, nullptr, GatedFactory(gate_, go));
  if (!server.ok()) throw std::runtime_error(server.status().ToString());
  server_ = *std::move(server);
}

std::string TestServer::address() const {
  return "127.0.0.1:" + std::to_string(server_->grpc_port());
}

std::shared_ptr<grpc::Channel> TestServer::channel() {
  if (channel_ == nullptr) {
    channel_ =
        grpc::CreateChannel(address(), grpc::InsecureChannelCredentials());
  }
  return channel_;
}

std::unique_ptr<Stub> TestServer::stub() {
  return v1::GenerationService::NewStub(channel());
}

std::string TestServer::Metrics() const {
  return GetHttp(server_->http_port(), "/metrics");
}

void TestServer::ExpectNothingHeld() {
  ASSERT_TRUE(engine().WaitIdle(kPatience));
  const engine::EngineStats stats = engine().Stats();
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.waiting, 0);
  EXPECT_EQ(stats.pages_free, stats.pages_total);
  const std::string metrics = Metrics();
  for (const char* gauge : {"keyformer_num_requests_running 0\n",
                            "keyformer_num_requests_waiting 0\n",
                            "keyformer_kv_cache_usage_ratio 0\n",
                            "keyformer_cache_tokens{kind=\"physical\"} 0\n",
                            "keyformer_cache_tokens{kind=\"logical\"} 0\n"}) {
    EXPECT_NE(metrics.find(gauge), metrics.npos) << gauge;
  }
}

v1::GenerateRequest TextRequest(const std::string& text, uint32_t tokens) {
  v1::GenerateRequest request;
  request.set_text(text);
  request.mutable_stopping()->set_max_new_tokens(tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

Streamed ReadAll(grpc::ClientReader<v1::GenerateChunk>& reader) {
  Streamed streamed;
  v1::GenerateChunk chunk;
  while (reader.Read(&chunk)) streamed.chunks.push_back(chunk);
  streamed.status = reader.Finish();
  return streamed;
}

Streamed RunStream(Stub& stub, const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  SetPatience(context);
  return ReadAll(*stub.GenerateStream(&context, request));
}

void SetPatience(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
}

}  // namespace kf::testing
