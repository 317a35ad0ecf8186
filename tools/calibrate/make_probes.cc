#include "tools/calibrate/make_probes.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/core/status.h"
#include "tools/client_lib/text_input.h"

namespace kf::tools {
namespace {

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

}  // namespace

absl::StatusOr<std::vector<Probe>> MakeProbes(Client& client,
                                              const ProbeOptions& options) {
  KF_CHECK(!options.fact_bytes.empty());
  KF_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                      ReadTexts(options.texts));
  std::vector<Probe> probes;
  std::vector<std::string> paragraphs;
  for (const std::string& text : texts) {
    KF_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids,
                        Tokenize(client, text));
    const std::vector<Probe> cut = CutText(
        ids, options.prompt_tokens, options.forced_tokens, options.windows);
    probes.insert(probes.end(), cut.begin(), cut.end());
    const std::vector<std::string> more = Paragraphs(text);
    paragraphs.insert(paragraphs.end(), more.begin(), more.end());
  }
  if (probes.empty() || paragraphs.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "texts: none has ", options.prompt_tokens + options.forced_tokens,
        " tokens (prompt_tokens + forced_tokens) and paragraphs"));
  }
  for (size_t i = 0; i < options.facts; ++i) {
    // Two in turn: every second fact has others beside it.
    const size_t bytes = options.fact_bytes[i / 2 % options.fact_bytes.size()];
    const FactText fact = MakeFact(i, bytes, paragraphs);
    Probe probe{.kind = ProbeKind::kFact, .prompt = {}, .forced = {}};
    KF_ASSIGN_OR_RETURN(probe.prompt, Tokenize(client, fact.prompt));
    KF_ASSIGN_OR_RETURN(probe.forced, Tokenize(client, fact.answer));
    probes.push_back(std::move(probe));
  }
  return probes;
}

std::string ProbesAsJson(const std::vector<Probe>& probes,
                         const std::string& model,
                         const std::string& texts) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Probe& probe : probes) {
    list.push_back({{"kind", probe.kind == ProbeKind::kFact ? "fact" : "text"},
                    {"prompt", probe.prompt},
                    {"forced", probe.forced}});
  }
  const nlohmann::ordered_json file = {
      {"model", model}, {"texts", texts}, {"probes", std::move(list)}};
  return file.dump() + "\n";
}

}  // namespace kf::tools
