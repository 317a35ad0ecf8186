// keyformer-calibrate: finds how a model's cache budget is best spread over its
// layers, and writes it as a layer profile.
#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "tools/calibrate/profile_file.h"
#include "tools/client_lib/cache_flags.h"
#include "tools/client_lib/connect_flags.h"
#include "tools/client_lib/text_input.h"

namespace kf::tools {
namespace {

constexpr char kExamples[] = R"(Examples:
  keyformer-calibrate --texts tools/calibrate/texts --out MODEL.profiles.json
  keyformer-calibrate --texts my_texts --out p.json --ratio 0.3 --name mine

Cuts the cache of one layer after another and measures what that costs: facts
that a prompt names and is asked for, and how texts go on. The costliest layers
then keep everything, and what is left goes where it gains most, at the same
total. The profile file lies beside the model; a profile that is in
it under another name stays. --texts is a folder of .txt files, 20 kB or more
each: not those that the result is judged by.

Exit codes: 0 written, 1 a request or file failed, 2 wrong usage, 3 cannot
connect.)";

struct Flags {
  ConnectOptions connect;
  CacheFlags cache;
  SearchOptions search;
  std::string texts;
  std::string out;
  std::string name = "calibrated";
  size_t facts = 12;
  size_t fact_bytes = 1500;
  size_t windows = 2;
  size_t prompt_tokens = 512;
  size_t forced_tokens = 48;
  size_t streams = 16;
};

void AddFlags(CLI::App& app, Flags& flags) {
  const auto add = [&app](const std::string& name, auto& value,
                          const std::string& help,
                          const CLI::Validator& check) {
    app.add_option(name, value, help)->check(check)->capture_default_str();
  };
  app.add_option("--texts", flags.texts, "Folder of .txt files")
      ->required()
      ->check(CLI::ExistingDirectory);
  app.add_option("--out", flags.out, "Profile file to write")->required();
  app.add_option("--name", flags.name, "Of the profile")->capture_default_str();
  const CLI::Range share(0.01, 0.99);
  const CLI::Range counts(1, 4096);
  add("--total", flags.search.ratio,
      "Budget of all layers, share of the prompt", share);
  add("--cut_to", flags.search.share, "What a layer that is cut keeps", share);
  add("--least", flags.search.least, "What each layer keeps in the end", share);
  add("--group", flags.search.group, "Layers that are spared together", counts);
  add("--most_whole", flags.search.most_whole, "Layers kept whole at most",
      counts);
  add("--text_loss", flags.search.text_loss,
      "Nats per token that texts may lose", CLI::Range(0.0, 10.0));
  add("--facts", flags.facts, "Facts to ask for", counts);
  add("--fact_bytes", flags.fact_bytes, "Bytes of text around a fact",
      CLI::Range(200, 1 << 20));
  add("--windows", flags.windows, "Stretches of each text", counts);
  add("--prompt_tokens", flags.prompt_tokens, "Of a stretch", counts);
  add("--forced_tokens", flags.forced_tokens, "After a stretch",
      CLI::Range(2, 4096));
  add("--streams", flags.streams, "Requests at once", CLI::Range(1, 256));
  AddConnectFlags(app, flags.connect);
  flags.cache.AddTo(app);
}

absl::StatusOr<std::vector<uint32_t>> Tokenize(Client& client,
                                               const std::string& text) {
  pb::TokenizeRequest request;
  request.set_text(text);
  KF_ASSIGN_OR_RETURN(const pb::TokenizeResponse response,
                      client.Tokenize(request, {}));
  return std::vector<uint32_t>(response.token_ids().begin(),
                               response.token_ids().end());
}

// The .txt files of a folder by name.
absl::StatusOr<std::vector<std::string>> ReadTexts(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".txt") paths.push_back(entry.path());
  }
  if (error || paths.empty()) {
    return absl::InvalidArgumentError("texts: no .txt files in " + folder);
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> texts;
  for (const std::string& path : paths) {
    KF_ASSIGN_OR_RETURN(texts.emplace_back(), ReadText(path));
  }
  return texts;
}

absl::StatusOr<std::vector<Probe>> MakeProbes(Client& client,
                                              const Flags& flags) {
  KF_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                      ReadTexts(flags.texts));
  std::vector<Probe> probes;
  std::vector<std::string> paragraphs;
  for (const std::string& text : texts) {
    KF_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids,
                        Tokenize(client, text));
    const std::vector<Probe> cut =
        CutText(ids, flags.prompt_tokens, flags.forced_tokens, flags.windows);
    probes.insert(probes.end(), cut.begin(), cut.end());
    const std::vector<std::string> more = Paragraphs(text);
    paragraphs.insert(paragraphs.end(), more.begin(), more.end());
  }
  if (probes.empty() || paragraphs.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "texts: none has ", flags.prompt_tokens + flags.forced_tokens,
        " tokens (prompt_tokens + forced_tokens) and paragraphs"));
  }
  for (size_t i = 0; i < flags.facts; ++i) {
    const FactText fact = MakeFact(i, flags.fact_bytes, paragraphs);
    Probe probe{.kind = ProbeKind::kFact, .prompt = {}, .forced = {}};
    KF_ASSIGN_OR_RETURN(probe.prompt, Tokenize(client, fact.prompt));
    KF_ASSIGN_OR_RETURN(probe.forced, Tokenize(client, fact.answer));
    probes.push_back(std::move(probe));
  }
  return probes;
}

std::string Describe(const Losses& losses) {
  return fmt::format("facts {}/{}, NLL of facts {:.3f}, of texts {:.4f}",
                     losses.facts_right, losses.facts, losses.fact_nll,
                     losses.text_nll);
}

// Prints each setting as it is measured, and the time left.
MeasureFn Reporting(Measurer& measurer, size_t settings) {
  using Clock = std::chrono::steady_clock;
  return [&measurer, settings, done = size_t{0}, begin = Clock::now()](
             const std::string& what,
             const CacheFor& cache) mutable -> absl::StatusOr<Losses> {
    KF_ASSIGN_OR_RETURN(const Losses losses, measurer.Run(cache));
    ++done;
    const double spent =
        std::chrono::duration<double>(Clock::now() - begin).count();
    const double each = spent / static_cast<double>(done);
    const size_t left = settings > done ? settings - done : 0;
    fmt::print(stderr, "[{}/{}, {:.0f} s left] {}: {}\n", done, settings,
               each * static_cast<double>(left), what, Describe(losses));
    return losses;
  };
}

std::string Today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  return fmt::format("{:04}-{:02}-{:02}", parts.tm_year + 1900,
                     parts.tm_mon + 1, parts.tm_mday);
}

absl::Status WriteProfile(const Flags& flags,
                          const ProfileNote& note,
                          const SearchResult& result) {
  std::string before;
  if (std::filesystem::exists(flags.out)) {
    KF_ASSIGN_OR_RETURN(before, ReadText(flags.out));
  }
  KF_ASSIGN_OR_RETURN(const std::string after,
                      WithProfile(before, note, flags.search, result));
  // A reader sees the old file or the new one.
  const std::string scratch = flags.out + ".part";
  std::ofstream file(scratch, std::ios::binary);
  file << after;
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(scratch, flags.out, error);
  if (!file || error) {
    return absl::InternalError("out: cannot write " + flags.out);
  }
  return absl::OkStatus();
}

absl::Status Calibrate(Client& client, Flags& flags, ProfileNote& note) {
  KF_ASSIGN_OR_RETURN(const pb::ModelInfoResponse info,
                      client.ModelInfo(pb::ModelInfoRequest(), {}));
  flags.search.layers = info.layers();
  note.model = info.model();
  flags.search.cache.set_policy(pb::CACHE_POLICY_KEYFORMER);
  flags.cache.FillIn(flags.search.cache);
  flags.search.least = std::min(flags.search.least, flags.search.ratio);
  KF_ASSIGN_OR_RETURN(const std::vector<Probe> probes,
                      MakeProbes(client, flags));
  Measurer measurer(client, probes, flags.streams);
  KF_ASSIGN_OR_RETURN(
      const SearchResult result,
      Search(flags.search, Reporting(measurer, CountSettings(flags.search))));
  KF_RETURN_IF_ERROR(WriteProfile(flags, note, result));
  const Candidate& best = result.tried[result.best];
  fmt::print(
      "everything kept:   {}\nall layers alike:  {}\nthis profile:      "
      "{}\n{}; \"{}\" is in {}\n",
      Describe(result.full), Describe(result.tried.front().losses),
      Describe(best.losses), best.how, note.name, flags.out);
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app("Finds how a cache budget is best spread over a model's layers.",
               "keyformer-calibrate");
  app.footer(kExamples);
  Flags flags;
  AddFlags(app, flags);
  if (const int code = ParseFlags(app, argc, argv); code >= 0) return code;
  ProfileNote note;
  note.command = "keyformer-calibrate";
  for (int i = 1; i < argc; ++i) note.command += std::string(" ") + argv[i];
  note.date = Today();
  note.name = flags.name;
  note.texts = flags.texts;
  ExitCode code = kExitError;
  const auto client = ConnectOrExplain(flags.connect, code);
  if (client == nullptr) return code;
  if (const absl::Status status = Calibrate(*client, flags, note);
      !status.ok()) {
    return Fail(status);
  }
  return kExitOk;
}

}  // namespace
}  // namespace kf::tools

int main(int argc, char** argv) { return kf::tools::Main(argc, argv); }
