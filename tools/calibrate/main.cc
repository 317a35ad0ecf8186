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
#include "tools/calibrate/make_probes.h"
#include "tools/calibrate/profile_file.h"
#include "tools/client_lib/cache_flags.h"
#include "tools/client_lib/connect_flags.h"
#include "tools/client_lib/text_input.h"

namespace kf::tools {
namespace {

constexpr char kExamples[] = R"(Examples:
  keyformer-calibrate --texts tools/calibrate/texts --out MODEL.profiles.json
  keyformer-calibrate --texts my_texts --out p.json --total 0.3 --name mine
  keyformer-calibrate --texts my_texts --compare p.json
  keyformer-calibrate --texts my_texts --probes_out probes.json

Cuts the cache of one layer after another and measures what that costs: facts
that a prompt names and is asked for, and how texts go on. The costliest layers
then keep everything, and what is left goes where it gains most, at the same
total. The profile file lies beside the model; a profile that is in
it under another name stays. --texts is a folder of .txt files, 20 kB or more
each: not those that the result is judged by. --compare measures the profiles
that a file has and writes nothing; --probes_out writes what is measured with,
as token ids, for tools/calibrate/descend (docs/calibration.md).

Exit codes: 0 written, 1 a request or file failed, 2 wrong usage, 3 cannot
connect.)";

struct Flags {
  ConnectOptions connect;
  CacheFlags cache;
  SearchOptions search;
  ProbeOptions probes;
  std::string out;
  std::string compare;
  std::string probes_out;
  std::string name = "calibrated";
  size_t streams = 16;
};

void AddFlags(CLI::App& app, Flags& flags) {
  const auto add = [&app](const std::string& name, auto& value,
                          const std::string& help,
                          const CLI::Validator& check) {
    app.add_option(name, value, help)->check(check)->capture_default_str();
  };
  app.add_option("--texts", flags.probes.texts, "Folder of .txt files")
      ->required()
      ->check(CLI::ExistingDirectory);
  CLI::Option_group* what = app.add_option_group("What to do, one of");
  what->add_option("--out", flags.out, "Search; profile file to write");
  what->add_option("--compare", flags.compare,
                   "Measure the profiles of this file")
      ->check(CLI::ExistingFile);
  what->add_option("--probes_out", flags.probes_out,
                   "Write prompts and what follows them, as JSON");
  what->require_option(1);
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
  ProbeOptions& probes = flags.probes;
  add("--facts", probes.facts, "Facts to ask for", counts);
  app.add_option("--fact_bytes", probes.fact_bytes,
                 "Bytes of text around a fact; several take turns")
      ->delimiter(',')
      ->check(CLI::Range(200, 1 << 20))
      ->capture_default_str();
  add("--windows", probes.windows, "Stretches of each text", counts);
  add("--prompt_tokens", probes.prompt_tokens, "Of a stretch", counts);
  add("--forced_tokens", probes.forced_tokens, "After a stretch",
      CLI::Range(2, 4096));
  add("--streams", flags.streams, "Requests at once", CLI::Range(1, 256));
  AddConnectFlags(app, flags.connect);
  flags.cache.AddTo(app);
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

// A reader sees the old file or the new one.
absl::Status WriteFile(const std::string& path, const std::string& content) {
  const std::string scratch = path + ".part";
  std::ofstream file(scratch, std::ios::binary);
  file << content;
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(scratch, path, error);
  if (!file || error) {
    return absl::InternalError("cannot write " + path);
  }
  return absl::OkStatus();
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
  return WriteFile(flags.out, after);
}

// Everything kept, all layers alike, and the profiles of a file.
absl::Status Compare(const Flags& flags, Measurer& measurer) {
  KF_ASSIGN_OR_RETURN(const std::string text, ReadText(flags.compare));
  KF_ASSIGN_OR_RETURN(const auto profiles,
                      ReadProfiles(text, flags.search.layers));
  const auto measure = [&](const std::string& what,
                           const CacheFor& cache) -> absl::Status {
    KF_ASSIGN_OR_RETURN(const Losses losses, measurer.Run(cache));
    fmt::print("{:<18} {}, {:.1f} % evicted\n", what + ":", Describe(losses),
               100.0 * losses.evicted);
    std::fflush(stdout);
    return absl::OkStatus();
  };
  KF_RETURN_IF_ERROR(measure("everything kept", Everything()));
  KF_RETURN_IF_ERROR(
      measure("all layers alike",
              AtTheTotal(flags.search, std::vector(flags.search.layers, 1.0))));
  for (const auto& [name, weights] : profiles) {
    KF_RETURN_IF_ERROR(measure(name, AtTheTotal(flags.search, weights)));
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
                      MakeProbes(client, flags.probes));
  if (!flags.probes_out.empty()) {
    KF_RETURN_IF_ERROR(WriteFile(flags.probes_out,
                                 ProbesAsJson(probes, note.model, note.texts)));
    fmt::print("{} prompts are in {}\n", probes.size(), flags.probes_out);
    return absl::OkStatus();
  }
  Measurer measurer(client, probes, flags.streams);
  if (!flags.compare.empty()) return Compare(flags, measurer);
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
  note.texts = flags.probes.texts;
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
