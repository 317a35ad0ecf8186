#include "tools/keyformer/cache_report.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/core/status.h"
#include "tools/client_lib/cache_picture.h"
#include "tools/client_lib/cache_view.h"

namespace kf::tools {
namespace {

CacheMarks ChooseMarks() {
  const char* no_color = std::getenv("NO_COLOR");
  const bool plain = no_color != nullptr && *no_color != '\0';
  return !plain && isatty(STDERR_FILENO) != 0 ? CacheMarks::kColour
                                              : CacheMarks::kSigns;
}

std::vector<double> Retention(const pb::CacheState& state) {
  return {state.retention().begin(), state.retention().end()};
}

absl::StatusOr<std::vector<std::string>> TokensOfPrompt(
    Client& client,
    const Session& session,
    const pb::GenerateRequest& request) {
  std::vector<std::string> tokens;
  if (request.has_token_ids()) {
    for (const uint32_t id : request.token_ids().ids()) {
      tokens.push_back(std::to_string(id) + " ");
    }
    return tokens;
  }
  pb::TokenizeRequest tokenize;
  tokenize.set_model(request.model());
  tokenize.set_text(request.text());
  tokenize.set_parse_special(request.parse_special());
  KF_ASSIGN_OR_RETURN(
      const pb::TokenizeResponse response,
      client.Tokenize(tokenize, {.timeout_s = session.timeout_s}));
  tokens.assign(response.tokens().begin(), response.tokens().end());
  return tokens;
}

HeldPositions Held(const pb::CacheState& state) {
  HeldPositions held;
  for (const pb::LayerState& layer : state.layers()) {
    auto& heads = held.emplace_back();
    for (const pb::HeadState& head : layer.heads()) {
      heads.emplace_back(head.positions().begin(), head.positions().end());
    }
  }
  return held;
}

}  // namespace

absl::StatusOr<std::string> CacheReportText(Client& client,
                                            const Session& session,
                                            const pb::GenerateRequest& request,
                                            const StreamResult& result) {
  const SequenceResult& sequence = result.front();
  if (!sequence.report.has_value()) return std::string();
  KF_ASSIGN_OR_RETURN(const std::vector<std::string> tokens,
                      TokensOfPrompt(client, session, request));
  const CacheMarks marks = ChooseMarks();
  const std::vector<double> at_end = Retention(sequence.report->at_end());
  std::string text = CacheView(tokens, at_end, marks);
  if (text.empty() || text.back() != '\n') text += '\n';
  return fmt::format(
      "{}\nof the prompt   {:.1f} % held after it was read, {:.1f} % at the "
      "end\n                {}\n",
      text, 100.0 * MeanRetention(Retention(sequence.report->after_prompt())),
      100.0 * MeanRetention(at_end), CacheLegend(marks));
}

absl::Status WriteCachePicture(const std::string& path,
                               const StreamResult& result) {
  const SequenceResult& sequence = result.front();
  if (!sequence.report.has_value()) {
    return absl::NotFoundError("the answer has no cache report to draw");
  }
  const pb::CacheReport& report = *sequence.report;
  const std::string budget =
      report.budget_tokens() == 0
          ? "everything is kept"
          : fmt::format("budget {} tokens, recent {}", report.budget_tokens(),
                        report.recent_tokens());
  const std::string svg =
      CachePicture(fmt::format("KV cache: {} prompt tokens, {} generated, {}",
                               result.usage().prompt_tokens(),
                               sequence.token_ids.size(), budget),
                   {{"after the prompt", Held(report.after_prompt())},
                    {"at the end", Held(report.at_end())}},
                   result.usage().prompt_tokens());
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  bool written = file != nullptr;
  if (written) {
    written = std::fwrite(svg.data(), 1, svg.size(), file) == svg.size();
    written = std::fclose(file) == 0 && written;
  }
  if (written) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(path, ": cannot write: ", std::strerror(errno)));
}

}  // namespace kf::tools
