#include "server/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "kernels/core/mutex.h"
#include "kernels/core/status.h"
#include "server/address.h"
#include "server/generation_service.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/rpc_tracker.h"
#include "server/security.h"
#include "server/tls_check.h"

namespace kf::server {
namespace {

// For what is left when the drain is over: health watches, and streams whose
// client does not read.
constexpr auto kShutdownGrace = std::chrono::milliseconds(250);
// Streams that the engine has just ended get this long to say so.
constexpr auto kGoodbye = std::chrono::seconds(1);
// Buffers of incoming messages, all connections; a soft bound beside
// max_message_bytes.
constexpr size_t kMinBufferBytes = size_t{256} << 20;

constexpr int kMaxBlockedThreads = 32;

// Between a connection's pings while nothing is sent to it: the third that
// comes sooner closes it. Gateways ping every 10 s by timers that are early at
// times, so the limit is far below that, and still a limit.
constexpr int kMinPingMs = 1000;

constexpr char kServiceName[] = "keyformer.v1.GenerationService";

void SetChannelArguments(grpc::ServerBuilder* builder) {
  // A second server on the same port must fail, not share it.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Finds clients whose machine has gone, and lets clients look for ours.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinPingMs);
  // gRPC would inflate a message whole before it compares its size with
  // max_message_bytes, a thousand times that at worst.
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
}

// Why `--device auto` serves on the CPU, if it does.
void SayWhyNoCuda(const BackendOptions& backend) {
  if (backend.name != "auto") return;
  const absl::Status cuda = CudaAvailability(backend.device_index);
  if (cuda.ok()) return;
  spdlog::info("device auto: the CPU, for {}", std::string(cuda.message()));
}

void WarnIfOpen(const ServerOptions& options) {
  const auto address = ParseAddress(options.grpc_address);
  if (!address.ok() || !address->beyond_loopback()) return;
  if (!options.tls.enabled() && options.auth_token_file.empty()) {
    spdlog::warn(
        "{} is reachable beyond this machine without TLS (--tls_cert) or "
        "tokens (--auth_token_file): anyone who reaches it can use it",
        options.grpc_address);
  } else if (!options.tls.enabled()) {
    spdlog::warn(
        "{} takes bearer tokens without TLS (--tls_cert): anyone on "
        "the way can read them",
        options.grpc_address);
  }
}

}  // namespace

struct Server::Impl {
  ServerOptions options;
  engine::SteadyClock clock;
  Metrics metrics;
  std::unique_ptr<RpcTracker> tracker;     // outlives the service
  std::unique_ptr<TokenFile> tokens;       // null: no tokens
  std::unique_ptr<engine::Engine> engine;  // written by the loader
  std::unique_ptr<GenerationService> service;
  std::unique_ptr<grpc::Server> grpc;
  std::unique_ptr<HttpServer> http;
  std::thread loader;
  int grpc_port = 0;
  bool drained = false;

  Mutex mu;
  CondVar load_ended;
  std::optional<absl::Status> load_status KF_GUARDED_BY(mu);
  bool draining KF_GUARDED_BY(mu) = false;
  // The engine once it may be asked; null before.
  std::atomic<engine::Engine*> ready = nullptr;

  absl::Status Listen();
  absl::Status StartHttp();
  void Load(const EngineFactory& factory);
  std::string NotReadyReason();
};

absl::Status Server::Impl::Listen() {
  KF_ASSIGN_OR_RETURN(auto credentials, MakeCredentials(options.tls));
  if (!options.auth_token_file.empty()) {
    KF_ASSIGN_OR_RETURN(tokens, TokenFile::Open(options.auth_token_file));
  }
  tracker = std::make_unique<RpcTracker>(int64_t{options.engine.max_batch} +
                                         options.engine.max_queue_requests +
                                         options.spare_rpcs);
  service = std::make_unique<GenerationService>(options.served_model_name,
                                                options.rules, tokens.get(),
                                                metrics, *tracker);
  // Both are process-wide and idempotent; they act on builders made later.
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
  grpc::ServerBuilder builder;
  builder.AddListeningPort(options.grpc_address, credentials, &grpc_port);
  builder.RegisterService(service.get());
  builder.SetMaxReceiveMessageSize(options.max_message_bytes);
  SetChannelArguments(&builder);
  grpc::ResourceQuota quota("server");
  // Of the one service that blocks threads, an open stream each: reflection.
  // The polling ones below are among them.
  quota.SetMaxThreads(kMaxBlockedThreads);
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  quota.Resize(std::max(kMinBufferBytes,
                        8 * static_cast<size_t>(options.max_message_bytes)));
  builder.SetResourceQuota(quota);
  if (tokens != nullptr) AddTokenInterceptor(*tokens, &builder);
  grpc = builder.BuildAndStart();
  if (grpc == nullptr || grpc_port == 0) {
    return absl::UnavailableError(absl::StrCat(
        "--grpc_address: cannot listen on ", options.grpc_address));
  }
  grpc->GetHealthCheckService()->SetServingStatus(kServiceName, false);
  return absl::OkStatus();
}

absl::Status Server::Impl::StartHttp() {
  if (options.http_address.empty()) return absl::OkStatus();
  HttpHandlers handlers;
  handlers.metrics = [this] {
    engine::Engine* running = ready.load();
    if (running == nullptr) return metrics.Render(nullptr);
    const engine::EngineStats stats = running->Stats();
    return metrics.Render(&stats);
  };
  handlers.not_ready_reason = [this] { return NotReadyReason(); };
  KF_ASSIGN_OR_RETURN(
      http, HttpServer::Start(options.http_address, std::move(handlers)));
  return absl::OkStatus();
}

std::string Server::Impl::NotReadyReason() {
  MutexLock lock(mu);
  if (draining) return "draining";
  if (!load_status.has_value()) return "loading";
  return load_status->ok() ? "" : "the model cannot be loaded";
}

void Server::Impl::Load(const EngineFactory& factory) {
  auto made = factory(options.engine, clock, &metrics);
  absl::Status status = made.status();
  MutexLock lock(mu);
  if (made.ok()) {
    engine = *std::move(made);
    if (draining) {
      engine->Drain();
    } else if (status = service->SetReady(*engine); status.ok()) {
      ready.store(engine.get());
      grpc->GetHealthCheckService()->SetServingStatus(kServiceName, true);
    }
  }
  load_status = status;
  load_ended.NotifyAll();
}

Server::Server() : impl_(std::make_unique<Impl>()) {}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(
    const ServerOptions& options,
    std::function<void(const absl::Status&)> loaded,
    EngineFactory factory) {
  if (factory == nullptr) {
    factory = [](const engine::EngineOptions& engine_options,
                 const engine::Clock& clock, engine::EngineObserver* observer) {
      return engine::Engine::Create(engine_options, clock, observer);
    };
  }
  std::unique_ptr<Server> server(new Server());
  Impl& impl = *server->impl_;
  impl.options = options;
  KF_RETURN_IF_ERROR(impl.Listen());
  KF_RETURN_IF_ERROR(impl.StartHttp());
  WarnIfOpen(options);
  const bool random = options.engine.load_format == engine::LoadFormat::kDummy;
  spdlog::info(
      "listening: gRPC port {}, HTTP port {}; loading {}", impl.grpc_port,
      server->http_port(),
      random ? options.engine.model_config : options.engine.model_path);
  SayWhyNoCuda(options.engine.backend);
  if (random) spdlog::warn("random weights: answers mean nothing");
  impl.loader = std::thread(
      [&impl, factory = std::move(factory), loaded = std::move(loaded)] {
        impl.Load(factory);
        absl::Status status;
        {
          MutexLock lock(impl.mu);
          status = *impl.load_status;
        }
        if (status.ok()) {
          spdlog::info("serving {} on {}", impl.options.served_model_name,
                       impl.engine->backend_description());
          const std::string notice = impl.engine->backend_notice();
          if (!notice.empty()) spdlog::info("{}", notice);
        }
        if (loaded != nullptr) loaded(status);
      });
  return server;
}

Server::~Server() {
  impl_->options.drain_timeout = engine::Duration::zero();
  if (impl_->grpc != nullptr) Drain();
  if (impl_->loader.joinable()) impl_->loader.join();
  // Handlers look at the engine.
  impl_->http.reset();
}

absl::Status Server::WaitLoaded() {
  MutexLock lock(impl_->mu);
  while (!impl_->load_status.has_value()) impl_->load_ended.Wait(impl_->mu);
  return *impl_->load_status;
}

bool Server::loading() const {
  MutexLock lock(impl_->mu);
  return !impl_->load_status.has_value();
}

void Server::Drain() {
  if (impl_->drained) return;
  impl_->drained = true;
  const auto end = impl_->clock.Now() + impl_->options.drain_timeout;
  {
    MutexLock lock(impl_->mu);
    impl_->draining = true;
    impl_->grpc->GetHealthCheckService()->SetServingStatus(kServiceName, false);
  }
  if (engine::Engine* engine = impl_->ready.load(); engine != nullptr) {
    engine->Drain();
    const engine::EngineStats stats = engine->Stats();
    spdlog::info("draining: {} running, {} waiting", stats.running,
                 stats.waiting);
    const bool idle = engine->WaitIdle(
        std::max(end - impl_->clock.Now(), engine::Duration::zero()));
    if (!idle) spdlog::warn("drain timeout: ending what still runs");
    engine->Stop(absl::UnavailableError("the server is shutting down"));
    impl_->tracker->WaitNone(
        std::max<engine::Duration>(end - impl_->clock.Now(), kGoodbye));
  }
  impl_->grpc->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
  impl_->grpc->Wait();
  spdlog::info("stopped");
}

void Server::Reload() {
  if (impl_->tokens != nullptr) {
    const absl::Status status = impl_->tokens->Reload();
    if (status.ok()) {
      spdlog::info("tokens reloaded");
    } else {
      spdlog::error("tokens not reloaded, the last good set counts: {}",
                    std::string(status.message()));
    }
  }
  if (impl_->options.tls.enabled()) {
    const absl::Status status = CheckTlsFiles(impl_->options.tls);
    if (status.ok()) {
      spdlog::info("TLS files are good");
    } else {
      spdlog::error("TLS files are bad, new connections will fail: {}",
                    std::string(status.message()));
    }
  }
}

int Server::grpc_port() const { return impl_->grpc_port; }

int Server::http_port() const {
  return impl_->http == nullptr ? 0 : impl_->http->port();
}

engine::Engine* Server::engine() const { return impl_->ready.load(); }

}  // namespace kf::server
