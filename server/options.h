// Everything the server is started with; read from the command line and the
// environment by flags.h. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/clock.h"
#include "engine/engine.h"

namespace kf::server {

enum class LogFormat : uint8_t { kText, kJson };

struct TlsOptions {
  std::string cert_path;       // PEM chain; empty: no TLS
  std::string key_path;        // PEM private key
  std::string client_ca_path;  // PEM bundle; set: clients must show a cert
  bool enabled() const { return !cert_path.empty(); }
};

// What one request may ask for, and one default that only the loaded model can
// tell.
struct RequestRules {
  uint32_t max_samples = 64;                       // sampling.n, >= 1
  uint32_t max_beam_width = 16;                    // sampling.beam.width, >= 1
  std::string layer_profile = "auto";              // where a request names none
  uint64_t max_report_bytes = uint64_t{64} << 20;  // of FULL cache reports
  std::vector<engine::CachePolicy> policies = {
      engine::CachePolicy::kFull, engine::CachePolicy::kWindow,
      engine::CachePolicy::kH2O, engine::CachePolicy::kKeyformer,
      engine::CachePolicy::kQuest};
};

struct ServerOptions {
  engine::EngineOptions engine;
  RequestRules rules;
  std::string served_model_name;                // never empty
  std::string grpc_address = "127.0.0.1:8001";  // port 0: any
  std::string http_address = "127.0.0.1:8002";  // empty: no HTTP
  TlsOptions tls;
  std::string auth_token_file;  // empty: no tokens
  int32_t max_message_bytes = 16 << 20;
  // RPCs at once beyond the requests that the engine runs and lets wait: the
  // short ones, and answers that their clients do not read.
  int32_t spare_rpcs = 256;
  engine::Duration drain_timeout = std::chrono::seconds(30);
  LogFormat log_format = LogFormat::kText;
  std::string log_level = "info";
};

}  // namespace kf::server
