// keyformer-bench: measures a running server under a stated load, or servers of
// its own in a scenario.
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/status.h"
#include "tools/bench/report.h"
#include "tools/bench/runner.h"
#include "tools/bench/scenario_flags.h"
#include "tools/bench/workload.h"
#include "tools/client_lib/cache_flags.h"
#include "tools/client_lib/connect_flags.h"
#include "tools/client_lib/interrupt.h"
#include "tools/client_lib/text_input.h"

namespace kf::tools {
namespace {

constexpr char kExamples[] = R"(Examples:
  keyformer-bench --concurrency 8 --prompt_tokens 512 --output_tokens 128
  keyformer-bench --rate 4 --duration 60 --policy keyformer --ratio 0.5
  keyformer-bench --trace day.jsonl --json result.json
  keyformer-bench --scenario budget,memory --model m.gguf --json result.json

A closed loop keeps --concurrency requests running; --rate and --trace send them
when they are due, and waiting for a free stream counts as latency. Answers have
exactly --output_tokens tokens. A trace has a line for each request:
  {"arrival_ms": 120, "prompt_tokens": 900, "output_tokens": 64}

Exit codes: 0 every request succeeded, 1 some failed, 2 wrong usage, 3 cannot
connect, 130 interrupted (what was measured is still reported).)";

constexpr int kMaxRequests = 1 << 24;

struct Flags {
  ConnectOptions connect;
  size_t concurrency = 8;
  size_t max_in_flight = 256;
  size_t connections = 1;
  size_t requests = 64;
  size_t warmup = 2;
  uint32_t prompt_tokens = 512;
  uint32_t output_tokens = 128;
  double rate = 0.0;
  double duration_s = 0.0;
  double timeout_s = 0.0;
  double temperature = 0.0;
  uint64_t seed = 1;
  std::string trace;
  std::string text_file;
  std::string json;
  bool quiet = false;
  CacheFlags cache;
  ScenarioFlags scenario;
};

void AddFlags(CLI::App& app, Flags& flags) {
  const auto add = [&app](const std::string& name, auto& value,
                          const std::string& help,
                          const CLI::Validator& check) {
    return app.add_option(name, value, help)
        ->check(check)
        ->capture_default_str()
        ->group("Load");
  };
  const CLI::Range streams(1, 1024);
  const CLI::Range tokens(1, 1 << 24);
  const CLI::Range seconds(0.0, 1e6);
  add("--concurrency", flags.concurrency, "Requests running at once", streams);
  add("--requests", flags.requests, "Requests in all",
      CLI::Range(1, kMaxRequests));
  add("--duration", flags.duration_s, "Or: go on this many seconds", seconds);
  add("--prompt_tokens", flags.prompt_tokens, "Length of a prompt", tokens);
  add("--output_tokens", flags.output_tokens, "Length of an answer", tokens);
  CLI::Option* const rate =
      add("--rate", flags.rate, "Poisson arrivals, requests a second", seconds);
  app.add_option("--trace", flags.trace, "Arrivals and lengths from a file")
      ->excludes(rate)
      ->group("Load");
  app.add_option("--text_file", flags.text_file, "Cut the prompts from a text")
      ->group("Load");
  add("--max_in_flight", flags.max_in_flight,
      "Most requests at once with --rate or --trace", streams);
  add("--connections", flags.connections, "Connections to share", streams);
  add("--warmup", flags.warmup, "Requests before, not measured",
      CLI::Range(0, 1024));
  add("--timeout", flags.timeout_s, "Seconds a request may take", seconds);
  add("--temperature", flags.temperature, "0: greedy", CLI::Number);
  add("--seed", flags.seed, "Of prompts and arrivals", CLI::NonNegativeNumber);
  app.add_option("--json", flags.json, "Also write the result to this file");
  app.add_flag("-q,--quiet", flags.quiet, "No progress line");
  AddConnectFlags(app, flags.connect);
  flags.cache.AddTo(app);
  flags.scenario.AddTo(app);
}

absl::StatusOr<std::vector<PlannedRequest>> MakePlan(const Flags& flags) {
  if (!flags.trace.empty()) {
    KF_ASSIGN_OR_RETURN(const std::string text, ReadText(flags.trace));
    return ParseTrace(text);
  }
  size_t count = flags.requests;
  if (flags.duration_s > 0.0 && flags.rate > 0.0) {
    // Enough that the plan outlasts the duration but for one run in millions.
    const double expected = flags.rate * flags.duration_s;
    const double most = expected + 6.0 * std::sqrt(expected) + 10.0;
    if (most > kMaxRequests) {
      return absl::InvalidArgumentError(absl::StrCat(
          "rate x duration: ", most, " requests, want <= ", kMaxRequests));
    }
    count = static_cast<size_t>(most);
  }
  return UniformPlan(count, flags.prompt_tokens, flags.output_tokens,
                     flags.rate, flags.seed);
}

// The file's ids, piece by piece: a server encodes no more at once than a
// context could hold, and each of its tokens may have four bytes or more.
absl::StatusOr<std::vector<uint32_t>> TextIds(Client& client,
                                              const std::string& path,
                                              uint32_t context_tokens) {
  std::vector<uint32_t> ids;
  if (path.empty()) return ids;
  KF_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  const size_t piece_bytes =
      std::clamp<size_t>(size_t{4} * context_tokens, 4, size_t{64} << 10);
  for (const std::string_view piece : CutText(text, piece_bytes)) {
    pb::TokenizeRequest request;
    request.set_text(std::string(piece));
    request.set_with_offsets(true);
    KF_ASSIGN_OR_RETURN(const pb::TokenizeResponse response,
                        client.Tokenize(request, {}));
    // Two tokens at offset 0: the first is an added BOS, which belongs at the
    // beginning alone.
    const bool bos = response.offsets_size() > 1 && response.offsets(1) == 0;
    const int skip = bos && !ids.empty() ? 1 : 0;
    ids.insert(ids.end(), response.token_ids().begin() + skip,
               response.token_ids().end());
  }
  if (ids.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": no tokens"));
  }
  return ids;
}

void PrintProgress(const Progress& progress, size_t total) {
  const std::string goal = total > 0 ? fmt::format("/{}", total) : "";
  const std::string line = fmt::format(
      "{}{} done, {} running, {:.1f} tokens/s, {:.0f} s", progress.done, goal,
      progress.running,
      static_cast<double>(progress.output_tokens) / progress.seconds,
      progress.seconds);
  if (isatty(STDERR_FILENO) != 0) {
    std::fprintf(stderr, "\r%s\033[K", line.c_str());
  } else if (static_cast<uint64_t>(progress.seconds) % 10 == 0) {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
}

nlohmann::json ConfigJson(const Flags& flags,
                          const pb::ModelInfoResponse& info) {
  pb::CacheOptions cache;
  flags.cache.FillIn(cache);
  return {{"model", info.model()},
          {"server_version", info.server_version()},
          {"backend", info.backend()},
          {"weight_dtype", info.weight_dtype()},
          {"cache_dtype", info.cache_dtype()},
          {"concurrency", flags.concurrency},
          {"rate", flags.rate},
          {"trace", flags.trace},
          {"prompt_tokens", flags.prompt_tokens},
          {"output_tokens", flags.output_tokens},
          {"cache", cache.ShortDebugString()},
          {"seed", flags.seed}};
}

class Bench {
 public:
  Bench(const Flags& flags, Interrupt& interrupt)
      : flags_(flags), interrupt_(interrupt) {}

  ExitCode Run() {
    absl::StatusOr<std::vector<PlannedRequest>> plan = MakePlan(flags_);
    if (!plan.ok()) {
      Fail(plan.status());
      return kExitUsage;
    }
    if (const ExitCode code = Connect(); code != kExitOk) return code;
    const auto info = clients_.front()->ModelInfo({}, {});
    if (!info.ok()) return Fail(info.status());
    auto ids =
        TextIds(*clients_.front(), flags_.text_file, info->context_tokens());
    if (!ids.ok()) return Fail(ids.status());
    PromptMaker prompts(info->vocabulary(), *std::move(ids), flags_.seed);
    if (flags_.warmup > 0) {
      std::vector<PlannedRequest> warmup(flags_.warmup, plan->front());
      for (PlannedRequest& request : warmup) request.arrival_s.reset();
      Load(prompts, std::move(warmup), /*measured=*/false);
      if (interrupt_.Fired()) return kExitInterrupted;
    }
    const Measurements measured =
        Measure(Load(prompts, *std::move(plan), /*measured=*/true));
    std::printf("%s", ReportTable(measured).c_str());
    if (const ExitCode code = WriteJson(*info, measured); code != kExitOk) {
      return code;
    }
    if (interrupt_.Fired()) return kExitInterrupted;
    return measured.errors.empty() ? kExitOk : kExitError;
  }

 private:
  ExitCode Connect() {
    ExitCode code = kExitOk;
    for (size_t i = 0; i < flags_.connections; ++i) {
      clients_.push_back(ConnectOrExplain(flags_.connect, code));
      if (clients_.back() == nullptr) return code;
    }
    return code;
  }

  bool open_loop() const { return flags_.rate > 0.0 || !flags_.trace.empty(); }

  std::vector<RequestRecord> Load(PromptMaker& prompts,
                                  std::vector<PlannedRequest> plan,
                                  bool measured) {
    RunOptions options;
    options.streams =
        open_loop() && measured ? flags_.max_in_flight : flags_.concurrency;
    options.timeout_s = flags_.timeout_s;
    if (measured) options.duration_s = flags_.duration_s;
    options.repeat_plan = options.duration_s > 0.0 && !open_loop();
    if (!options.repeat_plan) {
      options.streams = std::min(options.streams, plan.size());
    }
    options.request.mutable_sampling()->set_temperature(flags_.temperature);
    options.request.mutable_sampling()->set_seed(flags_.seed);
    if (!flags_.cache.Empty()) {
      flags_.cache.FillIn(*options.request.mutable_cache());
    }
    const size_t total = options.repeat_plan ? 0 : plan.size();
    Runner runner(clients_, prompts, std::move(plan), std::move(options));
    interrupt_.Arm([&runner] { runner.Stop(); });
    std::vector<RequestRecord> records =
        runner.Run([&](const Progress& progress) {
          if (measured && !flags_.quiet) PrintProgress(progress, total);
        });
    interrupt_.Disarm();
    if (measured && !flags_.quiet && isatty(STDERR_FILENO) != 0) {
      std::fprintf(stderr, "\r\033[K");
    }
    return records;
  }

  ExitCode WriteJson(const pb::ModelInfoResponse& info,
                     const Measurements& measured) const {
    if (flags_.json.empty()) return kExitOk;
    nlohmann::json out = ReportJson(measured);
    out["config"] = ConfigJson(flags_, info);
    const absl::Status written = WriteJsonFile(out, flags_.json);
    return written.ok() ? kExitOk : Fail(written);
  }

  const Flags& flags_;
  Interrupt& interrupt_;
  std::vector<std::unique_ptr<Client>> clients_;
};

}  // namespace
}  // namespace kf::tools

int main(int argc, char** argv) {
  kf::tools::Interrupt interrupt;
  kf::tools::Flags flags;
  CLI::App app(
      "Measures a Keyformer server: tokens a second, time to the first "
      "token, time between tokens.",
      "keyformer-bench");
  app.footer(kf::tools::kExamples);
  kf::tools::AddFlags(app, flags);
  const int parsed = kf::tools::ParseFlags(app, argc, argv);
  if (parsed >= 0) return parsed;
  if (flags.scenario.wanted()) {
    return flags.scenario.Run(flags.seed, flags.json, interrupt);
  }
  return kf::tools::Bench(flags, interrupt).Run();
}
