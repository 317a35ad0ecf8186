// keyformer generate: one prompt in, the answer streamed out.
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "kernels/core/status.h"
#include "tools/client_lib/connect_flags.h"
#include "tools/client_lib/text_input.h"
#include "tools/keyformer/cache_report.h"
#include "tools/keyformer/request_flags.h"
#include "tools/keyformer/run_stream.h"
#include "tools/keyformer/session.h"

namespace kf::tools {
namespace {

constexpr char kGenerateExamples[] = R"(Examples:
  keyformer generate "The capital of France is"
  keyformer generate --file prompt.txt --max_new_tokens 200
  git log -5 | keyformer generate - --temperature 0.7 --seed 1
  keyformer generate --file long.txt --policy keyformer --budget_tokens 512
  keyformer generate "Once" --policy full --logprobs --json
  keyformer generate "Once" --n 3 --temperature 0.8
  keyformer generate "Once" --beam-width 4 --max_new_tokens 40
  keyformer generate --file long.txt --ratio 0.3 --min_tokens 1 --show-cache
  keyformer generate --file long.txt --ratio 0.3 --cache-picture kept.svg

The answer goes to standard output as it comes, a summary to standard error.
Flags left out take the server's defaults (keyformer info shows them).)";

struct GenerateFlags {
  std::string prompt;
  std::string file;
  std::string token_ids;
  std::string forced_tokens;
  bool parse_special = false;
  bool json = false;
  bool quiet = false;
  bool show_cache = false;
  std::string cache_picture;
  RequestFlags request;

  bool several() const {
    return request.n.value_or(1) > 1 || request.beam_width.has_value();
  }
};

absl::Status FillInIds(const std::string& text, pb::TokenIds& out) {
  KF_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids, ParseTokenIds(text));
  out.mutable_ids()->Assign(ids.begin(), ids.end());
  return absl::OkStatus();
}

absl::Status FillInInput(const GenerateFlags& flags,
                         pb::GenerateRequest& request) {
  if (!flags.token_ids.empty()) {
    return FillInIds(flags.token_ids, *request.mutable_token_ids());
  }
  if (!flags.file.empty() || flags.prompt == "-") {
    KF_ASSIGN_OR_RETURN(*request.mutable_text(),
                        ReadText(flags.file.empty() ? "-" : flags.file));
    return absl::OkStatus();
  }
  KF_RETURN_IF_ERROR(CheckUtf8(flags.prompt, "prompt"));
  request.set_text(flags.prompt);
  return absl::OkStatus();
}

// What --show_cache and --cache_picture need, if it is not asked for already.
void AskForCacheReport(const GenerateFlags& flags, pb::OutputOptions& output) {
  if (!flags.cache_picture.empty()) {
    output.set_cache_report(pb::CACHE_REPORT_DETAIL_FULL);
  } else if (flags.show_cache && flags.request.cache_report.empty()) {
    output.set_cache_report(pb::CACHE_REPORT_DETAIL_SUMMARY);
  }
}

absl::StatusOr<pb::GenerateRequest> MakeRequest(const GenerateFlags& flags,
                                                const Session& session) {
  pb::GenerateRequest request;
  request.set_model(session.model);
  KF_RETURN_IF_ERROR(FillInInput(flags, request));
  KF_RETURN_IF_ERROR(flags.request.FillIn(request));
  request.set_parse_special(flags.parse_special);
  if (!flags.forced_tokens.empty()) {
    KF_RETURN_IF_ERROR(
        FillInIds(flags.forced_tokens, *request.mutable_forced_tokens()));
  }
  AskForCacheReport(flags, *request.mutable_output());
  return request;
}

void PrintResult(const GenerateFlags& flags, const StreamRun& run) {
  if (flags.json) {
    const std::string text = run.result.ToJson().dump(
        2, ' ', false, nlohmann::json::error_handler_t::replace);
    std::printf("%s\n", text.c_str());
    return;
  }
  // In a file the answer stays exact; on a terminal the summary needs a line.
  if (isatty(STDOUT_FILENO) != 0 && !flags.several()) std::printf("\n");
  std::fflush(stdout);
  if (flags.quiet) return;
  std::fprintf(stderr, "\n%s%s", run.result.LogprobTable().c_str(),
               run.result.Summary(run.status).c_str());
}

absl::Status ShowCache(const GenerateFlags& flags,
                       const Session& session,
                       Client& client,
                       const pb::GenerateRequest& request,
                       const StreamResult& result) {
  if (flags.show_cache) {
    KF_ASSIGN_OR_RETURN(const std::string text,
                        CacheReportText(client, session, request, result));
    std::fprintf(stderr, "\n%s", text.c_str());
  }
  if (flags.cache_picture.empty()) return absl::OkStatus();
  return WriteCachePicture(flags.cache_picture, result);
}

ExitCode RunGenerate(const GenerateFlags& flags, Session& session) {
  const absl::StatusOr<pb::GenerateRequest> request =
      MakeRequest(flags, session);
  if (!request.ok()) {
    Fail(request.status());
    return absl::IsInvalidArgument(request.status()) ? kExitUsage : kExitError;
  }
  ExitCode code = kExitOk;
  const std::unique_ptr<Client> client =
      ConnectOrExplain(session.connect, code);
  if (client == nullptr) return code;
  const Show show = flags.json        ? Show::kNothing
                    : flags.several() ? Show::kWhole
                                      : Show::kText;
  const StreamRun run = RunStream(*client, session, *request, show);
  if (!run.status.ok() && !run.interrupted) {
    if (!flags.json && !run.result.text().empty()) std::printf("\n");
    return Fail(run.status);
  }
  PrintResult(flags, run);
  if (run.interrupted) return kExitInterrupted;
  if (const absl::Status shown =
          ShowCache(flags, session, *client, *request, run.result);
      !shown.ok()) {
    return Fail(shown);
  }
  return run.result.failed() ? kExitError : kExitOk;
}

}  // namespace

Subcommand AddGenerate(CLI::App& app, Session& session) {
  CLI::App* const sub =
      app.add_subcommand("generate", "Continue a prompt and stream the answer");
  sub->footer(kGenerateExamples);
  const auto flags = std::make_shared<GenerateFlags>();
  CLI::Option* const prompt =
      sub->add_option("prompt", flags->prompt, "The text, or - for stdin");
  CLI::Option* const file =
      sub->add_option("-f,--file", flags->file, "Read the prompt from a file")
          ->excludes(prompt);
  CLI::Option* const ids =
      sub->add_option("--token_ids", flags->token_ids, "Ids, as in \"1,2,3\"")
          ->excludes(prompt)
          ->excludes(file);
  RequireOne(*sub, {prompt, file, ids});
  sub->add_option("--forced_tokens", flags->forced_tokens,
                  "Take these ids instead of sampled ones and score them");
  sub->add_flag("--parse_special", flags->parse_special,
                "Names of control tokens in the prompt are tokens");
  sub->add_flag("--json", flags->json, "Print one JSON object at the end");
  sub->add_flag("-q,--quiet", flags->quiet, "No summary");
  sub->add_flag("--show_cache", flags->show_cache,
                "Print the prompt with what the cache kept of it bright and "
                "what it lost dim (signs instead where there is no terminal, "
                "or NO_COLOR is set)")
      ->group("Output");
  sub->add_option("--cache_picture", flags->cache_picture,
                  "Write a layer by position heat map of the cache, as SVG")
      ->group("Output");
  flags->request.AddTo(*sub);
  flags->request.AddSeveralTo(*sub);
  return {sub, [flags, &session] { return RunGenerate(*flags, session); }};
}

}  // namespace kf::tools
