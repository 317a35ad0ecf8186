#include "server/flags.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/numbers.h"
#include "kernels/core/status.h"
#include "server/address.h"
#include "server/cache_flags.h"
#include "server/flag_values.h"

ABSL_FLAG(std::string,
          model,
          "",
          "path of the GGUF file to serve (required, but for load_format "
          "dummy)");
ABSL_FLAG(std::string,
          load_format,
          "gguf",
          "gguf, or dummy: random weights, for work on throughput");
ABSL_FLAG(std::string,
          model_config,
          "",
          "shape of a dummy model: llama-8b, mpt-7b-shape, smollm2-135m, a "
          "config.json or a GGUF file");
ABSL_FLAG(std::string,
          served_model_name,
          "",
          "name that requests and ModelInfo use; default: the file's name "
          "without .gguf");
ABSL_FLAG(std::string,
          dtype,
          "bf16",
          "weights: bf16, f32 (exact, slower), q8 or q4 (integers in groups of "
          "32, as the file has them), auto (by the file)");
ABSL_FLAG(std::string,
          cache_dtype,
          "",
          "K and V: bf16, f32, or q8 (8 bits, on the CPU: about twice the "
          "tokens); default: f32 with --dtype f32, else bf16");
ABSL_FLAG(std::string,
          device,
          "auto",
          "cpu; cuda or cuda:N, a GPU; auto: cuda where there is one");
ABSL_FLAG(double,
          gpu_memory_share,
          0.9,
          "of a GPU's memory, for weights, workspaces and the KV pool: (0, 1]");
ABSL_FLAG(bool,
          cuda_graphs,
          true,
          "replay decode steps on a GPU as CUDA graphs; the answers are the "
          "same");
ABSL_FLAG(std::string,
          cublaslt_path,
          "",
          "file of libcublasLt.so, for a GPU's products; default: looked for; "
          "none: own products");
ABSL_FLAG(int32_t,
          threads,
          0,
          "compute threads; 0: one per usable core (affinity and CPU quota)");
ABSL_FLAG(
    bool,
    keep_cores,
    true,
    "keep each compute thread on a core of its own, if there are as many");
ABSL_FLAG(std::string,
          simd,
          "auto",
          "highest instruction set: auto, amx_bf16, avx512_bf16, avx512, avx2, "
          "scalar");
ABSL_FLAG(
    std::string,
    kv_pool_bytes,
    "0",
    "size of the KV pool, e.g. 4GiB; 0: a quarter of free memory, or what "
    "gpu_memory_share leaves");
ABSL_FLAG(int32_t, max_batch, 64, "sequences that decode at once");
ABSL_FLAG(int32_t, max_queue_requests, 1024, "requests that may wait");
ABSL_FLAG(int64_t, max_queue_tokens, 1048576, "prompt tokens that may wait");
ABSL_FLAG(int32_t,
          max_skips,
          16,
          "times that a waiting request may be passed by ones that fit");
ABSL_FLAG(int32_t,
          prefill_workspace_tokens,
          0,
          "prompt tokens in prefill at once, and the longest prompt; 0: the "
          "model's context");
ABSL_FLAG(int32_t,
          prefill_slice_tokens,
          256,
          "prompt tokens' worth of work between two decode steps");
ABSL_FLAG(int32_t,
          prefill_slice_ms,
          100,
          "milliseconds of prompt work between two decode steps, about, on the "
          "CPU; 0: no such bound");
ABSL_FLAG(uint32_t,
          default_max_new_tokens,
          256,
          "tokens to generate where a request does not say");
ABSL_FLAG(std::string, grpc_address, "127.0.0.1:8001", "host:port of gRPC");
ABSL_FLAG(std::string,
          http_address,
          "127.0.0.1:8002",
          "host:port of /metrics, /healthz, /readyz; empty: none");
ABSL_FLAG(int32_t,
          max_message_bytes,
          16777216,
          "largest request, 1024 to 1073741824");
ABSL_FLAG(double,
          drain_timeout,
          30.0,
          "seconds that running requests get after SIGTERM");
ABSL_FLAG(std::string, tls_cert, "", "PEM certificate chain; turns on TLS");
ABSL_FLAG(std::string, tls_key, "", "PEM private key of --tls_cert");
ABSL_FLAG(std::string,
          tls_client_ca,
          "",
          "PEM CA bundle; clients must then show a certificate of it");
ABSL_FLAG(std::string,
          auth_token_file,
          "",
          "bearer tokens, one a line; reloaded when it changes and on SIGHUP");
ABSL_FLAG(std::string, log_format, "text", "text or json");
ABSL_FLAG(std::string,
          log_level,
          "info",
          "trace, debug, info, warning, error, off");

namespace kf::server {
namespace {

struct Group {
  const char* title;
  std::vector<const char*> flags;
};

// The flags, and the order --help shows them in.
const std::vector<Group>& Groups() {
  static const std::vector<Group> groups = {
      {"Model",
       {"model", "load_format", "model_config", "served_model_name", "dtype",
        "cache_dtype"}},
      {"Machine",
       {"device", "gpu_memory_share", "cublaslt_path", "cuda_graphs", "threads",
        "keep_cores", "simd", "kv_pool_bytes"}},
      {"Scheduling",
       {"max_batch", "max_queue_requests", "max_queue_tokens", "max_skips",
        "prefill_workspace_tokens", "prefill_slice_tokens", "prefill_slice_ms",
        "default_max_new_tokens"}},
      {"Cache defaults (a request may choose its own)", CacheFlagNames()},
      {"What a request may ask for", LimitFlagNames()},
      {"Network",
       {"grpc_address", "http_address", "max_message_bytes", "drain_timeout"}},
      {"Security", {"tls_cert", "tls_key", "tls_client_ca", "auth_token_file"}},
      {"Logs", {"log_format", "log_level"}},
  };
  return groups;
}

std::string Help() {
  std::string text =
      "keyformer-server: serves a language model over gRPC, each request's KV "
      "cache held at a budget.\n\n"
      "  keyformer-server --model SmolLM2-135M-Instruct.Q4_1.gguf\n"
      "  keyformer-server --model m.gguf --cache_policy full --dtype f32\n"
      "  KEYFORMER_MODEL=m.gguf keyformer-server --grpc_address 0.0.0.0:8001 "
      "\\\n"
      "      --tls_cert cert.pem --tls_key key.pem --auth_token_file tokens\n\n"
      "Each flag is also an environment variable: --max_batch is "
      "KEYFORMER_MAX_BATCH.\nThe command line wins. SIGTERM drains and exits "
      "0; a second one exits at once.\n";
  for (const Group& group : Groups()) {
    text += absl::StrCat("\n", group.title, ":\n");
    for (const char* name : group.flags) {
      const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
      const std::string value = flag->DefaultValue();
      text += absl::StrCat("  --", name);
      if (!value.empty()) text += absl::StrCat(" (", value, ")");
      text += absl::StrCat("\n      ", flag->Help(), "\n");
    }
  }
  return text + "\n  --help, --version\n";
}

absl::CommandLineFlag* FindOurs(const std::string& name) {
  for (const Group& group : Groups()) {
    for (const char* ours : group.flags) {
      if (name == ours) return absl::FindCommandLineFlag(name);
    }
  }
  return nullptr;
}

absl::Status Set(const std::string& source,
                 absl::CommandLineFlag& flag,
                 const std::string& value) {
  std::string error;
  if (flag.ParseFrom(value, &error)) return absl::OkStatus();
  const char* kind = flag.IsOfType<double>()     ? "a number"
                     : flag.IsOfType<bool>()     ? "true or false"
                     : flag.IsOfType<uint32_t>() ? "a whole number >= 0"
                                                 : "a whole number";
  return absl::InvalidArgumentError(
      absl::StrCat(source, ": \"", value, "\", want ", kind));
}

using FlagNames = std::set<std::string>;

absl::Status ReadEnvironment(
    const std::function<const char*(const char*)>& environment,
    FlagNames& given) {
  for (const Group& group : Groups()) {
    for (const char* name : group.flags) {
      std::string variable = absl::StrCat("KEYFORMER_", name);
      std::transform(
          variable.begin(), variable.end(), variable.begin(),
          [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
      const char* value = environment(variable.c_str());
      if (value == nullptr) continue;
      KF_RETURN_IF_ERROR(
          Set(variable, *absl::FindCommandLineFlag(name), value));
      given.insert(name);
    }
  }
  return absl::OkStatus();
}

// Sets the flags named in `args`; returns what to print for --help, --version.
absl::StatusOr<std::string> ReadArguments(std::span<const char* const> args,
                                          FlagNames& given) {
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string argument = args[i];
    if (argument == "--help" || argument == "-h") return Help();
    if (argument == "--version") {
      return std::string("keyformer-server " KF_VERSION "\n");
    }
    if (argument.rfind("--", 0) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", argument, "\": want --flag=value (see --help)"));
    }
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(2, equals - 2);
    absl::CommandLineFlag* flag = FindOurs(name);
    if (flag == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, ": no such flag (see --help)"));
    }
    std::string value;
    if (equals != argument.npos) {
      value = argument.substr(equals + 1);
    } else if (++i < args.size()) {
      value = args[i];
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, ": the value is missing"));
    }
    KF_RETURN_IF_ERROR(Set("--" + name, *flag, value));
    given.insert(name);
  }
  return std::string();
}

// Gives the flags of the preset that nobody has given their values.
absl::Status ApplyPreset(const FlagNames& given) {
  KF_ASSIGN_OR_RETURN(const auto preset, CachePresetFlags());
  for (const auto& [name, value] : preset) {
    if (given.contains(name)) continue;
    KF_RETURN_IF_ERROR(Set(absl::StrCat("--cache_preset: ", name),
                           *absl::FindCommandLineFlag(name), value));
  }
  return absl::OkStatus();
}

absl::Status FillModel(engine::EngineOptions& engine) {
  engine.model_path = absl::GetFlag(FLAGS_model);
  engine.model_config = absl::GetFlag(FLAGS_model_config);
  KF_ASSIGN_OR_RETURN(engine.load_format,
                      Choose<engine::LoadFormat>(
                          "load_format", absl::GetFlag(FLAGS_load_format),
                          {{"gguf", engine::LoadFormat::kGguf},
                           {"dummy", engine::LoadFormat::kDummy}}));
  if (engine.load_format == engine::LoadFormat::kGguf &&
      engine.model_path.empty()) {
    return absl::InvalidArgumentError(
        "--model: missing, want the path of a GGUF file");
  }
  return absl::OkStatus();
}

// "cuda:1" is device 1.
absl::Status FillDevice(engine::EngineOptions& engine) {
  constexpr int kMaxIndex = 1023;
  const std::string device = absl::GetFlag(FLAGS_device);
  const size_t colon = device.find(':');
  const bool has_index = colon != device.npos;
  engine.backend.name = device.substr(0, colon);
  int& index = engine.backend.device_index;
  if ((engine.backend.name != "auto" && engine.backend.name != "cpu" &&
       engine.backend.name != "cuda") ||
      (has_index && (engine.backend.name != "cuda" ||
                     !absl::SimpleAtoi(device.substr(colon + 1), &index) ||
                     index < 0 || index > kMaxIndex))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--device: \"", device,
        "\", want auto, cpu, cuda, or cuda:N with N from 0 to ", kMaxIndex));
  }
  engine.gpu_memory_share = absl::GetFlag(FLAGS_gpu_memory_share);
  engine.backend.cuda_graphs = absl::GetFlag(FLAGS_cuda_graphs);
  engine.backend.cublaslt_path = absl::GetFlag(FLAGS_cublaslt_path);
  return absl::OkStatus();
}

absl::Status FillEngine(engine::EngineOptions& engine) {
  KF_RETURN_IF_ERROR(FillModel(engine));
  const std::string dtype = absl::GetFlag(FLAGS_dtype);
  KF_ASSIGN_OR_RETURN(engine.weight_format, Choose<std::optional<WeightFormat>>(
                                                "dtype", dtype,
                                                {{"auto", std::nullopt},
                                                 {"bf16", WeightFormat::kBF16},
                                                 {"f32", WeightFormat::kF32},
                                                 {"q8", WeightFormat::kQ8},
                                                 {"q4", WeightFormat::kQ4}}));
  std::string cache_dtype = absl::GetFlag(FLAGS_cache_dtype);
  if (cache_dtype.empty()) cache_dtype = dtype == "f32" ? "f32" : "bf16";
  KF_ASSIGN_OR_RETURN(
      engine.cache_dtype,
      Choose<DType>(
          "cache_dtype", cache_dtype,
          {{"bf16", DType::kBF16}, {"f32", DType::kF32}, {"q8", DType::kI8}}));
  KF_RETURN_IF_ERROR(FillDevice(engine));
  engine.backend.threads = absl::GetFlag(FLAGS_threads);
  engine.backend.keep_cores = absl::GetFlag(FLAGS_keep_cores);
  KF_RETURN_IF_ERROR(
      CheckRange("threads", engine.backend.threads,
                 engine.backend.threads >= 0 && engine.backend.threads <= 1024,
                 "0 to 1024"));
  KF_ASSIGN_OR_RETURN(engine.backend.simd,
                      Choose<std::string>("simd", absl::GetFlag(FLAGS_simd),
                                          {{"auto", "auto"},
                                           {"amx_bf16", "amx_bf16"},
                                           {"avx512_bf16", "avx512_bf16"},
                                           {"avx512", "avx512"},
                                           {"avx2", "avx2"},
                                           {"scalar", "scalar"}}));
  KF_ASSIGN_OR_RETURN(
      engine.kv_pool_bytes,
      ParseBytes("kv_pool_bytes", absl::GetFlag(FLAGS_kv_pool_bytes)));
  engine.max_batch = absl::GetFlag(FLAGS_max_batch);
  engine.max_queue_requests = absl::GetFlag(FLAGS_max_queue_requests);
  engine.max_queue_tokens = absl::GetFlag(FLAGS_max_queue_tokens);
  engine.max_skips = absl::GetFlag(FLAGS_max_skips);
  engine.prefill_workspace_tokens =
      absl::GetFlag(FLAGS_prefill_workspace_tokens);
  engine.prefill_slice_tokens = absl::GetFlag(FLAGS_prefill_slice_tokens);
  engine.prefill_slice_ms = absl::GetFlag(FLAGS_prefill_slice_ms);
  engine.default_max_new_tokens = absl::GetFlag(FLAGS_default_max_new_tokens);
  return FillCache(engine);
}

absl::Status CheckAddress(const char* flag, const std::string& address) {
  const auto parsed = ParseAddress(address);
  if (parsed.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, ": ", parsed.status().message()));
}

absl::Status FillNetwork(ServerOptions& options) {
  options.grpc_address = absl::GetFlag(FLAGS_grpc_address);
  KF_RETURN_IF_ERROR(CheckAddress("grpc_address", options.grpc_address));
  options.http_address = absl::GetFlag(FLAGS_http_address);
  if (!options.http_address.empty()) {
    KF_RETURN_IF_ERROR(CheckAddress("http_address", options.http_address));
  }
  options.max_message_bytes = absl::GetFlag(FLAGS_max_message_bytes);
  KF_RETURN_IF_ERROR(CheckRange(
      "max_message_bytes", options.max_message_bytes,
      options.max_message_bytes >= 1024 && options.max_message_bytes <= 1 << 30,
      "1024 to 1073741824"));
  const double drain = absl::GetFlag(FLAGS_drain_timeout);
  KF_RETURN_IF_ERROR(CheckRange("drain_timeout", drain,
                                drain >= 0.0 && drain <= 86400.0,
                                "0 to 86400 seconds"));
  options.drain_timeout = std::chrono::duration_cast<engine::Duration>(
      std::chrono::duration<double>(drain));
  options.tls = {absl::GetFlag(FLAGS_tls_cert), absl::GetFlag(FLAGS_tls_key),
                 absl::GetFlag(FLAGS_tls_client_ca)};
  if (options.tls.cert_path.empty() != options.tls.key_path.empty()) {
    return absl::InvalidArgumentError(
        "--tls_cert and --tls_key: one is set, want both or none");
  }
  if (!options.tls.client_ca_path.empty() && !options.tls.enabled()) {
    return absl::InvalidArgumentError(
        "--tls_client_ca: set, but --tls_cert is not");
  }
  options.auth_token_file = absl::GetFlag(FLAGS_auth_token_file);
  return absl::OkStatus();
}

absl::Status FillRest(ServerOptions& options) {
  KF_ASSIGN_OR_RETURN(
      options.log_format,
      Choose<LogFormat>(
          "log_format", absl::GetFlag(FLAGS_log_format),
          {{"text", LogFormat::kText}, {"json", LogFormat::kJson}}));
  KF_ASSIGN_OR_RETURN(
      options.log_level,
      Choose<std::string>("log_level", absl::GetFlag(FLAGS_log_level),
                          {{"trace", "trace"},
                           {"debug", "debug"},
                           {"info", "info"},
                           {"warning", "warning"},
                           {"error", "error"},
                           {"off", "off"}}));
  options.served_model_name = absl::GetFlag(FLAGS_served_model_name);
  if (options.served_model_name.empty() &&
      options.engine.load_format == engine::LoadFormat::kDummy) {
    const std::filesystem::path shape(options.engine.model_config);
    options.served_model_name = "dummy-" + shape.stem().string();
  }
  if (options.served_model_name.empty()) {
    const std::filesystem::path path(options.engine.model_path);
    options.served_model_name = path.extension() == ".gguf"
                                    ? path.stem().string()
                                    : path.filename().string();
  }
  if (options.served_model_name.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--model: \"", options.engine.model_path, "\" names no file"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ParsedFlags> ParseFlags(
    std::span<const char* const> args,
    const std::function<const char*(const char*)>& environment) {
  ParsedFlags parsed;
  FlagNames given;
  KF_RETURN_IF_ERROR(ReadEnvironment(environment, given));
  KF_ASSIGN_OR_RETURN(parsed.print, ReadArguments(args, given));
  if (!parsed.print.empty()) return parsed;
  KF_RETURN_IF_ERROR(ApplyPreset(given));
  KF_RETURN_IF_ERROR(FillEngine(parsed.options.engine));
  KF_RETURN_IF_ERROR(
      FillRules(parsed.options.engine.default_cache, parsed.options.rules));
  KF_RETURN_IF_ERROR(FillNetwork(parsed.options));
  KF_RETURN_IF_ERROR(FillRest(parsed.options));
  // Its messages name fields, which are the flags' names.
  const absl::Status engine = engine::ValidateOptions(parsed.options.engine);
  if (!engine.ok()) {
    return absl::Status(engine.code(), absl::StrCat("--", engine.message()));
  }
  return parsed;
}

}  // namespace kf::server
