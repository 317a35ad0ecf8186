#include "tools/bench/scenario_flags.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "kernels/core/status.h"
#include "tools/bench/child_server.h"
#include "tools/client_lib/connect_flags.h"

namespace kf::tools {
namespace {

using RunFn = absl::StatusOr<ScenarioReport> (*)(const ScenarioOptions&,
                                                 Interrupt&);

struct Scenario {
  const char* name;
  RunFn run;
};
constexpr Scenario kScenarios[] = {
    {"budget", RunBudget},     {"stall", RunStall},
    {"overload", RunOverload}, {"memory", RunMemory},
    {"peers", RunPeers},       {"growth", RunGrowth},
    {"share", RunShare},       {"neighbour", RunNeighbour}};

constexpr uint32_t kMaxTokens = 1 << 24;

std::string ShapeFlag(const PlannedRequest& request) {
  return absl::StrCat(request.prompt_tokens, "+", request.output_tokens);
}

}  // namespace

void ScenarioFlags::AddTo(CLI::App& app) {
  const auto add = [&app](const std::string& name, auto& value,
                          const std::string& help) {
    return app.add_option(name, value, help)
        ->capture_default_str()
        ->group("Scenarios (with a server of their own)");
  };
  std::vector<std::string> known;
  for (const Scenario& scenario : kScenarios) known.emplace_back(scenario.name);
  add("--scenario", names_,
      "Which: budget, stall, overload, memory, peers, growth, share, neighbour")
      ->delimiter(',')
      ->check(CLI::IsMember(known));
  add("--model", options_.model, "The model that the server loads");
  add("--server_binary", options_.server_binary,
      "Default: keyformer-server beside this program");
  add("--server_flag", options_.server_flags,
      "For every server, as --name=value; may be repeated");
  add("--seconds", options_.seconds,
      "budget: of each steady state; overload: of 1x, and half of the rest")
      ->check(CLI::Range(0.1, 3600.0));
  add("--pools", options_.pools, "budget: pools, in whole FULL requests")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  steady_ = ShapeFlag(options_.steady);
  add("--steady_shape", steady_, "budget: prompt+answer; empty: leave out");
  add("--turns", options_.turns,
      "budget: steady states of both policies, in turn; the turn of the median "
      "ratio is shown")
      ->check(CLI::Range(1, 100));
  whole_ = ShapeFlag(options_.whole);
  add("--whole_shape", whole_, "budget: the same, answered from first to last");
  add("--rounds", options_.rounds,
      "budget: requests of --whole_shape, times what runs at once; peers, "
      "neighbour: how often each is measured")
      ->check(CLI::Range(1, 100));
  add("--streams", options_.streams, "stall: running streams")
      ->check(CLI::Range(1, 64));
  stream_ = ShapeFlag(options_.stream);
  add("--stream_shape", stream_, "stall: prompt+answer of a stream");
  add("--long_prompt", options_.long_prompt, "stall: tokens of the prompt")
      ->check(CLI::Range(1U, kMaxTokens));
  add("--settle", options_.settle_s,
      "stall: seconds from the streams' first tokens until it comes")
      ->check(CLI::Range(0.0, 3600.0));
  add("--slices", options_.slices, "stall: slices, tokens; 0: one for all")
      ->delimiter(',');
  small_ = ShapeFlag(options_.small);
  add("--small_shape", small_, "overload: prompt+answer");
  add("--overload", options_.overload, "overload: times what is answered")
      ->check(CLI::Range(1.0, 100.0));
  large_ = ShapeFlag(options_.large);
  add("--large_shape", large_, "memory: prompt+answer");
  add("--large_requests", options_.large_requests, "memory: requests at once")
      ->check(CLI::Range(1, 256));
  add("--peer", options_.peers,
      "peers: another engine, as name=command; may be repeated");
  for (const PlannedRequest& shape : options_.peer_shapes) {
    peer_shapes_.push_back(ShapeFlag(shape));
  }
  add("--peer_shapes", peer_shapes_,
      "peers: prompt+answer; empty: whole answers alone")
      ->delimiter(',');
  whole_answers_ = ShapeFlag(options_.peer_whole);
  add("--peer_whole_shape", whole_answers_,
      "peers: prompt+answer, from first to last; empty: leave out");
  growth_ = ShapeFlag(options_.growth);
  add("--growth_shape", growth_, "growth: prompt+answer of the one request");
  share_ = ShapeFlag(options_.share);
  add("--share_shape", share_, "share: prompt+answer");
  add("--share_streams", options_.share_streams, "share: streams at once")
      ->check(CLI::Range(1, 64));
  neighbour_ = ShapeFlag(options_.neighbour);
  add("--neighbour_shape", neighbour_, "neighbour: prompt+answer");
  add("--peer_streams", options_.peer_streams,
      "peers, neighbour: streams at once")
      ->delimiter(',')
      ->check(CLI::Range(1, 64));
}

absl::StatusOr<PlannedRequest> ParseShape(const std::string& text) {
  PlannedRequest shape;
  if (text.empty()) return shape;
  int used = 0;
  const int read = std::sscanf(text.c_str(), "%8u+%8u%n", &shape.prompt_tokens,
                               &shape.output_tokens, &used);
  if (read != 2 || used != static_cast<int>(text.size()) ||
      shape.prompt_tokens == 0 || shape.output_tokens == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\": want prompt+answer in tokens, as 2048+512"));
  }
  return shape;
}

absl::Status ScenarioFlags::Resolve() {
  // A server of random weights has no file.
  const bool has_file = std::none_of(
      options_.server_flags.begin(), options_.server_flags.end(),
      [](const std::string& flag) { return flag == "--load_format=dummy"; });
  if (has_file && options_.model.empty()) {
    return absl::InvalidArgumentError("--model: want the server's model file");
  }
  if (options_.server_binary.empty()) {
    options_.server_binary = ServerBesideThisProgram();
  }
  KF_ASSIGN_OR_RETURN(options_.steady, ParseShape(steady_));
  KF_ASSIGN_OR_RETURN(options_.whole, ParseShape(whole_));
  KF_ASSIGN_OR_RETURN(options_.peer_whole, ParseShape(whole_answers_));
  for (const auto& [text, shape] :
       {std::pair{&stream_, &options_.stream},
        std::pair{&small_, &options_.small},
        std::pair{&large_, &options_.large},
        std::pair{&growth_, &options_.growth},
        std::pair{&share_, &options_.share},
        std::pair{&neighbour_, &options_.neighbour}}) {
    KF_ASSIGN_OR_RETURN(*shape, ParseShape(*text));
    if (shape->prompt_tokens == 0) {
      return absl::InvalidArgumentError("an empty shape: want prompt+answer");
    }
  }
  options_.peer_shapes.clear();
  for (const std::string& text : peer_shapes_) {
    KF_ASSIGN_OR_RETURN(const PlannedRequest shape, ParseShape(text));
    if (shape.prompt_tokens > 0) options_.peer_shapes.push_back(shape);
  }
  return absl::OkStatus();
}

ExitCode ScenarioFlags::Run(uint64_t seed,
                            const std::string& json_path,
                            Interrupt& interrupt) {
  options_.seed = seed;
  if (const absl::Status status = Resolve(); !status.ok()) {
    Fail(status);
    return kExitUsage;
  }
  nlohmann::json json = nlohmann::json::object();
  for (const std::string& name : names_) {
    for (const Scenario& scenario : kScenarios) {
      if (name != scenario.name) continue;
      const auto report = scenario.run(options_, interrupt);
      if (interrupt.Fired()) return kExitInterrupted;
      if (!report.ok()) return Fail(report.status());
      std::printf("### %s\n\n%s\n", scenario.name, report->markdown.c_str());
      std::fflush(stdout);
      json[name] = report->json;
    }
  }
  if (json_path.empty()) return kExitOk;
  const absl::Status written = WriteJsonFile(json, json_path);
  return written.ok() ? kExitOk : Fail(written);
}

absl::Status WriteJsonFile(const nlohmann::json& json,
                           const std::string& path) {
  std::ofstream file(path);
  file << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
       << "\n";
  file.close();
  if (file.fail()) {
    return absl::UnavailableError(absl::StrCat(path, ": cannot write"));
  }
  return absl::OkStatus();
}

}  // namespace kf::tools
