// A server over a tiny model in this process, and a client's way to it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/core/mutex.h"
#include "keyformer/v1/generation.grpc.pb.h"
#include "server/server.h"
#include "tests/testing/temp_dir.h"

namespace kf::testing {

namespace v1 = ::keyformer::v1;
using Stub = v1::GenerationService::Stub;

// Holds the engine at the end of a decode step while closed, so that a test
// decides what happens in the middle of a stream. Thread-safe.
class Gate {
 public:
  void Close();
  void Open();
  void Pass();  // returns once open

 private:
  Mutex mu_;
  CondVar opened_;
  bool closed_ KF_GUARDED_BY(mu_) = false;
};

// All of a stream.
struct Streamed {
  std::vector<v1::GenerateChunk> chunks;
  grpc::Status status;
  std::string text() const;
  std::vector<uint32_t> ids() const;
};

class TestServer {
 public:
  // Options of a tiny f32 model on ports of the system's choice; the model's
  // context is 16,384 tokens.
  TestServer();
  ~TestServer();

  // To be changed before Start.
  server::ServerOptions options;

  // Starts and waits until loaded; failures throw.
  void Start();
  // The same without waiting: the load goes on when `go` opens.
  void StartLoading(Gate* go);

  server::Server& server() { return *server_; }
  engine::Engine& engine() { return *server_->engine(); }
  Gate& gate() { return *gate_; }
  std::string address() const;
  std::shared_ptr<grpc::Channel> channel();  // insecure, one per server
  std::unique_ptr<Stub> stub();
  std::string Metrics() const;  // the /metrics page
  // Nothing runs or waits, every page is free, and the gauges say so.
  void ExpectNothingHeld();

 private:
  TempDir dir_;
  std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  std::unique_ptr<server::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

// `tokens` to come whatever the model would say.
v1::GenerateRequest TextRequest(const std::string& text, uint32_t tokens);
Streamed ReadAll(grpc::ClientReader<v1::GenerateChunk>& reader);
Streamed RunStream(Stub& stub, const v1::GenerateRequest& request);

// A guard against a hang, not a measure of speed.
void SetPatience(grpc::ClientContext& context);

}  // namespace kf::testing
