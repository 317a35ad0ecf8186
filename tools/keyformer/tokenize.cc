// keyformer tokenize and detokenize: text to ids and back, as the served
// model's tokenizer does it.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/core/status.h"
#include "tools/client_lib/connect_flags.h"
#include "tools/client_lib/text_input.h"
#include "tools/keyformer/session.h"

namespace kf::tools {
namespace {

using nlohmann::json;

constexpr char kTokenizeExamples[] = R"(Examples:
  keyformer tokenize "Hello, world"          one token a line: id, bytes
  keyformer tokenize --file book.txt --ids   ids alone, separated by commas
  keyformer tokenize - --json < book.txt)";

constexpr char kDetokenizeExamples[] = R"(Examples:
  keyformer detokenize 19556,28,905
  keyformer tokenize "Hello" --ids | keyformer detokenize -)";

struct TokenizeFlags {
  std::string text;
  std::string file;
  bool parse_special = false;
  bool ids_only = false;
  bool json = false;
};

absl::StatusOr<std::string> InputText(const TokenizeFlags& flags) {
  if (!flags.file.empty()) return ReadText(flags.file);
  if (flags.text == "-") return ReadText("-");
  KF_RETURN_IF_ERROR(CheckUtf8(flags.text, "text"));
  return flags.text;
}

void PrintTokens(const TokenizeFlags& flags,
                 const pb::TokenizeResponse& response) {
  const auto dump = [](const json& value) {
    return value.dump(-1, ' ', false, json::error_handler_t::replace);
  };
  if (flags.json) {
    json out = {{"token_ids", json::array()}, {"tokens", json::array()}};
    for (const uint32_t id : response.token_ids()) {
      out["token_ids"].push_back(id);
    }
    for (const std::string& token : response.tokens()) {
      out["tokens"].push_back(token);
    }
    for (const uint32_t offset : response.offsets()) {
      out["offsets"].push_back(offset);
    }
    std::printf("%s\n", dump(out).c_str());
    return;
  }
  const char* separator = "";
  for (int i = 0; i < response.token_ids_size(); ++i) {
    if (flags.ids_only) {
      std::printf("%s%u", separator, response.token_ids(i));
      separator = ",";
      continue;
    }
    const std::string bytes =
        i < response.tokens_size() ? dump(response.tokens(i)) : "";
    std::printf("%8u  %s\n", response.token_ids(i), bytes.c_str());
  }
  if (flags.ids_only) std::printf("\n");
}

ExitCode RunTokenize(const TokenizeFlags& flags, Session& session) {
  absl::StatusOr<std::string> text = InputText(flags);
  if (!text.ok()) {
    Fail(text.status());
    return absl::IsInvalidArgument(text.status()) ? kExitUsage : kExitError;
  }
  pb::TokenizeRequest request;
  request.set_model(session.model);
  request.set_text(*std::move(text));
  request.set_parse_special(flags.parse_special);
  request.set_with_offsets(flags.json);
  ExitCode code = kExitOk;
  const std::unique_ptr<Client> client =
      ConnectOrExplain(session.connect, code);
  if (client == nullptr) return code;
  const auto response =
      client->Tokenize(request, {.timeout_s = session.timeout_s});
  if (!response.ok()) return Fail(response.status());
  PrintTokens(flags, *response);
  return kExitOk;
}

struct DetokenizeFlags {
  std::string ids;
  bool keep_special_tokens = false;
};

ExitCode RunDetokenize(const DetokenizeFlags& flags, Session& session) {
  absl::StatusOr<std::string> text = flags.ids;
  if (flags.ids == "-") text = ReadText("-");
  absl::StatusOr<std::vector<uint32_t>> ids(std::vector<uint32_t>{});
  if (text.ok()) ids = ParseTokenIds(*text);
  if (!text.ok() || !ids.ok()) {
    Fail(text.ok() ? ids.status() : text.status());
    return kExitUsage;
  }
  pb::DetokenizeRequest request;
  request.set_model(session.model);
  request.mutable_token_ids()->Assign(ids->begin(), ids->end());
  request.set_keep_special_tokens(flags.keep_special_tokens);
  ExitCode code = kExitOk;
  const std::unique_ptr<Client> client =
      ConnectOrExplain(session.connect, code);
  if (client == nullptr) return code;
  const auto response =
      client->Detokenize(request, {.timeout_s = session.timeout_s});
  if (!response.ok()) return Fail(response.status());
  std::fwrite(response->text().data(), 1, response->text().size(), stdout);
  std::printf("\n");
  return kExitOk;
}

}  // namespace

Subcommand AddTokenize(CLI::App& app, Session& session) {
  CLI::App* const sub = app.add_subcommand("tokenize", "Show a text's tokens");
  sub->footer(kTokenizeExamples);
  const auto flags = std::make_shared<TokenizeFlags>();
  CLI::Option* const text =
      sub->add_option("text", flags->text, "The text, or - for stdin");
  CLI::Option* const file =
      sub->add_option("-f,--file", flags->file, "Read the text from a file")
          ->excludes(text);
  RequireOne(*sub, {text, file});
  sub->add_flag("--parse_special", flags->parse_special,
                "Names of control tokens in the text are tokens");
  sub->add_flag("--ids", flags->ids_only, "Ids alone, on one line");
  sub->add_flag("--json", flags->json, "One JSON object, with byte offsets");
  return {sub, [flags, &session] { return RunTokenize(*flags, session); }};
}

Subcommand AddDetokenize(CLI::App& app, Session& session) {
  CLI::App* const sub =
      app.add_subcommand("detokenize", "Show the text of token ids");
  sub->footer(kDetokenizeExamples);
  const auto flags = std::make_shared<DetokenizeFlags>();
  sub->add_option("ids", flags->ids, "Ids as in \"1,2,3\", or - for stdin")
      ->required();
  sub->add_flag("--keep_special_tokens", flags->keep_special_tokens,
                "Show control tokens in the text");
  return {sub, [flags, &session] { return RunDetokenize(*flags, session); }};
}

}  // namespace kf::tools
