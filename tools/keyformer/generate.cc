// keyformer generate: one prompt in, the answer streamed out.
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "kernels/core/status.h"
#include "tools/client_lib/connect_flags.h"
#include "tools/client_lib/text_input.h"
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

The answer goes to standard output as it comes, a summary to standard error.
GenerateFlags left out take the server's defaults (keyformer info shows them).)";

struct GenerateFlags {
  std::string prompt;
  std::string file;
  std::string token_ids;
  std::string forced_tokens;
  bool parse_special = false;
  bool json = false;
  bool quiet = false;
  RequestFlags request;
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
  if (isatty(STDOUT_FILENO) != 0) std::printf("\n");
  std::fflush(stdout);
  if (flags.quiet) return;
  std::fprintf(stderr, "\n%s%s", run.result.LogprobTable().c_str(),
               run.result.Summary(run.status).c_str());
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
  const StreamRun run = RunStream(*client, session, *request,
                                  flags.json ? Show::kNothing : Show::kText);
  if (!run.status.ok() && !run.interrupted) {
    if (!flags.json && !run.result.text().empty()) std::printf("\n");
    return Fail(run.status);
  }
  PrintResult(flags, run);
  if (run.interrupted) return kExitInterrupted;
  return run.result.finish_reason() == pb::FINISH_REASON_ERROR ? kExitError
                                                               : kExitOk;
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
  flags->request.AddTo(*sub);
  return {sub, [flags, &session] { return RunGenerate(*flags, session); }};
}

}  // namespace kf::tools
