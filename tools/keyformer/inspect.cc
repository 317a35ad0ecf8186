// keyformer info, load and health: what a server is and how it is doing.
#include <google/protobuf/util/json_util.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "tools/client_lib/connect_flags.h"
#include "tools/client_lib/text_input.h"
#include "tools/keyformer/session.h"

namespace kf::tools {
namespace {

constexpr std::chrono::milliseconds kHealthPoll(100);

constexpr char kInfoExamples[] = R"(Examples:
  keyformer info
  keyformer info --json | jq .default_cache)";

constexpr char kLoadExamples[] = R"(Examples:
  keyformer load
  watch -n 1 keyformer load)";

constexpr char kHealthExamples[] = R"(Examples:
  keyformer health                    does the process live?
  keyformer health --service keyformer.v1.GenerationService   can it serve?
  keyformer health --wait 60          wait for that after a start

Exit code 0 if SERVING, 1 if not, 3 if there is no connection.)";

// "CACHE_POLICY_KEYFORMER" as a person types it: "keyformer".
std::string EnumWord(const std::string& name, size_t prefix) {
  std::string word = name.substr(std::min(prefix, name.size()));
  for (char& c : word) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return word;
}

std::string PolicyWord(pb::CachePolicy policy) {
  return EnumWord(pb::CachePolicy_Name(policy), sizeof("CACHE_POLICY_") - 1);
}

ExitCode PrintJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  const auto status =
      google::protobuf::util::MessageToJsonString(message, &text, options);
  if (!status.ok()) {
    return Fail(absl::InternalError("the answer cannot be written as JSON"));
  }
  std::printf("%s", text.c_str());
  return kExitOk;
}

std::string CacheText(const pb::CacheOptions& cache) {
  std::string text = PolicyWord(cache.policy());
  if (cache.has_ratio()) text += fmt::format(", ratio {:g}", cache.ratio());
  if (cache.has_tokens()) text += fmt::format(", {} tokens", cache.tokens());
  if (cache.has_min_tokens()) {
    text += fmt::format(", at least {} tokens", cache.min_tokens());
  }
  if (cache.has_recent_ratio()) {
    text += fmt::format(", recent {:g}", cache.recent_ratio());
  }
  if (cache.policy() == pb::CACHE_POLICY_KEYFORMER) {
    text += fmt::format(", noise {}, tau {:g} to {:g}",
                        EnumWord(pb::ScoreNoise_Name(cache.noise()),
                                 sizeof("SCORE_NOISE_") - 1),
                        cache.tau_init(), cache.tau_end());
  }
  if (!cache.layer_profile().empty()) {
    text += ", profile " + cache.layer_profile();
  }
  return text;
}

void PrintInfo(const pb::ModelInfoResponse& info) {
  std::string policies;
  for (const int policy : info.policies()) {
    if (!policies.empty()) policies += ", ";
    policies += PolicyWord(static_cast<pb::CachePolicy>(policy));
  }
  std::string profiles;
  for (const std::string& profile : info.layer_profiles()) {
    profiles += (profiles.empty() ? "" : ", ") + profile;
  }
  const std::string text = fmt::format(
      "model            {} ({}, {:.1f} M parameters{})\n"
      "shape            {} layers, {} query heads, {} kv heads of {}\n"
      "vocabulary       {}\n"
      "context          {} tokens\n"
      "backend          {}, weights {}, cache {} ({} bytes a token)\n"
      "default cache    {}\n"
      "policies         {}\n"
      "layer profiles   {}\n"
      "default answer   at most {} tokens\n"
      "chat template    {}\n"
      "server           {}\n",
      info.model(), info.architecture(),
      static_cast<double>(info.parameters()) / 1e6,
      info.random_weights() ? ", random" : "", info.layers(),
      info.query_heads(), info.kv_heads(), info.head_dim(), info.vocabulary(),
      info.context_tokens(), info.backend(), info.weight_dtype(),
      info.cache_dtype(), info.kv_bytes_per_token(),
      CacheText(info.default_cache()), policies, profiles,
      info.default_max_new_tokens(), info.has_chat_template() ? "yes" : "no",
      info.server_version());
  std::printf("%s", text.c_str());
}

ExitCode RunInfo(bool json, Session& session) {
  if (const absl::Status ok = CheckUtf8(session.model, "--model"); !ok.ok()) {
    Fail(ok);
    return kExitUsage;
  }
  ExitCode code = kExitOk;
  const std::unique_ptr<Client> client =
      ConnectOrExplain(session.connect, code);
  if (client == nullptr) return code;
  pb::ModelInfoRequest request;
  request.set_model(session.model);
  const auto info =
      client->ModelInfo(request, {.timeout_s = session.timeout_s});
  if (!info.ok()) return Fail(info.status());
  if (json) return PrintJson(*info);
  PrintInfo(*info);
  return kExitOk;
}

ExitCode RunLoad(bool json, Session& session) {
  ExitCode code = kExitOk;
  const std::unique_ptr<Client> client =
      ConnectOrExplain(session.connect, code);
  if (client == nullptr) return code;
  const auto load = client->GetLoad({.timeout_s = session.timeout_s});
  if (!load.ok()) return Fail(load.status());
  if (json) return PrintJson(*load);
  const std::string text = fmt::format(
      "running      {}\n"
      "waiting      {} ({} prompt tokens)\n"
      "kv cache     {:.1f} % ({} of {} pages free)\n"
      "tokens/s     {:.1f}\n"
      "draining     {}\n",
      load->running(), load->waiting(), load->waiting_prompt_tokens(),
      load->kv_usage_ratio() * 100.0, load->kv_pages_free(),
      load->kv_pages_total(), load->generation_tokens_per_second(),
      load->draining() ? "yes" : "no");
  std::printf("%s", text.c_str());
  return kExitOk;
}

// With --wait: until it serves, or that time is over.
ExitCode RunHealth(const std::string& service, Session& session) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(
                         std::chrono::duration<double>(session.connect.wait_s));
  ExitCode code = kExitOk;
  const std::unique_ptr<Client> client =
      ConnectOrExplain(session.connect, code);
  if (client == nullptr) return code;
  while (true) {
    const auto state =
        client->CheckHealth(service, {.timeout_s = session.timeout_s});
    if (!state.ok()) return Fail(state.status());
    const bool serving = *state == "SERVING";
    if (serving || Clock::now() >= deadline) {
      std::printf("%s\n", state->c_str());
      return serving ? kExitOk : kExitError;
    }
    std::this_thread::sleep_for(kHealthPoll);
  }
}

}  // namespace

Subcommand AddInfo(CLI::App& app, Session& session) {
  CLI::App* const sub = app.add_subcommand("info", "Show the model served");
  sub->footer(kInfoExamples);
  const auto json = std::make_shared<bool>(false);
  sub->add_flag("--json", *json, "The whole answer as JSON");
  return {sub, [json, &session] { return RunInfo(*json, session); }};
}

Subcommand AddLoad(CLI::App& app, Session& session) {
  CLI::App* const sub =
      app.add_subcommand("load", "Show how busy the server is");
  sub->footer(kLoadExamples);
  const auto json = std::make_shared<bool>(false);
  sub->add_flag("--json", *json, "The whole answer as JSON");
  return {sub, [json, &session] { return RunLoad(*json, session); }};
}

Subcommand AddHealth(CLI::App& app, Session& session) {
  CLI::App* const sub =
      app.add_subcommand("health", "Ask whether it is up (grpc.health.v1)");
  sub->footer(kHealthExamples);
  const auto service = std::make_shared<std::string>();
  sub->add_option("--service", *service, "Empty: the process itself");
  return {sub, [service, &session] { return RunHealth(*service, session); }};
}

}  // namespace kf::tools
