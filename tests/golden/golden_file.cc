#include "tests/golden/golden_file.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <stdexcept>

#include "kernels/core/status.h"
#include "nlohmann/json.hpp"

namespace kf::testing {
namespace {

using engine::CachePolicy;
using nlohmann::json;

// The oracle's word for a choice, and ours.
template <typename T>
struct Word {
  std::string_view word;
  T value;
};

template <typename T, size_t count>
T Choose(const json& policy,
         const char* field,
         const Word<T> (&words)[count],
         T otherwise) {
  if (!policy.contains(field)) return otherwise;
  const auto& chosen = policy[field].get_ref<const std::string&>();
  for (const auto& [word, value] : words) {
    if (word == chosen) return value;
  }
  throw std::runtime_error(std::string("cases.json: ") + field + " " + chosen);
}

constexpr Word<CachePolicy> kKindWords[] = {
    {"full", CachePolicy::kFull},
    {"window", CachePolicy::kWindow},
    {"h2o", CachePolicy::kH2O},
    {"keyformer", CachePolicy::kKeyformer},
    {"quest", CachePolicy::kQuest}};
constexpr Word<NoiseKind> kNoiseWords[] = {{"gumbel", NoiseKind::kGumbel},
                                           {"gaussian", NoiseKind::kGaussian},
                                           {"constant", NoiseKind::kConstant},
                                           {"none", NoiseKind::kNone}};
constexpr Word<engine::BudgetBasis> kBasisWords[] = {
    {"prompt", engine::BudgetBasis::kPrompt},
    {"total", engine::BudgetBasis::kTotal}};
constexpr Word<engine::SelectionScope> kScopeWords[] = {
    {"head", engine::SelectionScope::kHead},
    {"layer", engine::SelectionScope::kLayer},
    {"model", engine::SelectionScope::kModel}};
constexpr Word<engine::CachePositions> kPositionWords[] = {
    {"original", engine::CachePositions::kOriginal},
    {"cache", engine::CachePositions::kCache}};
constexpr Word<engine::ScoreNorm> kNormWords[] = {
    {"none", engine::ScoreNorm::kNone}, {"age", engine::ScoreNorm::kAge}};
constexpr Word<bool> kResampleWords[] = {{"step", false}, {"once", true}};

// The oracle's Policy with its own defaults where a field is left out.
engine::CacheOptions CacheOf(const json& policy) {
  engine::CacheOptions c;
  c.policy = Choose(policy, "kind", kKindWords, CachePolicy::kKeyformer);
  c.ratio = policy.value("ratio", 0.5);
  if (policy.contains("budget")) c.tokens = policy["budget"].get<uint32_t>();
  c.recent_ratio = policy.value("recent", 0.3);
  if (policy.contains("window")) {
    c.recent_tokens = policy["window"].get<uint32_t>();
  }
  c.min_tokens = policy.value("min_tokens", 1U);
  c.basis = Choose(policy, "basis", kBasisWords, engine::BudgetBasis::kPrompt);
  c.sinks = policy.value("sinks", 4U);
  c.tau_init = policy.value("tau_init", 1.0);
  c.tau_end = policy.value("tau_end", 2.0);
  c.noise = Choose(policy, "noise", kNoiseWords, NoiseKind::kGumbel);
  c.resample_once = Choose(policy, "resample", kResampleWords, false);
  c.scope = Choose(policy, "scope", kScopeWords, engine::SelectionScope::kHead);
  c.positions = Choose(policy, "positions", kPositionWords,
                       engine::CachePositions::kOriginal);
  c.score_queries = policy.value("score_queries", 0U);
  c.decode_scores = policy.value("decode_scores", true);
  c.noise_seed = policy.value("seed", uint64_t{0});
  c.score_norm =
      Choose(policy, "score_norm", kNormWords, engine::ScoreNorm::kNone);
  c.full_layers = policy.value("full_layers", 2U);
  c.layer_weights = policy.value("layer_weights", std::vector<double>{});
  return c;
}

// "0-3,7" -> 0, 1, 2, 3, 7.
std::vector<int32_t> PositionsOf(const std::string& ranges) {
  std::vector<int32_t> positions;
  const char* at = ranges.data();
  const char* const end = at + ranges.size();
  const auto number = [&] {
    int32_t value = 0;
    const auto parsed = std::from_chars(at, end, value);
    if (parsed.ec != std::errc()) {
      throw std::runtime_error("cases.json: positions " + ranges);
    }
    at = parsed.ptr;
    return value;
  };
  while (at < end) {
    const int32_t first = number();
    int32_t last = first;
    if (at < end && *at == '-') {
      ++at;
      last = number();
    }
    for (int32_t p = first; p <= last; ++p) positions.push_back(p);
    if (at < end) ++at;  // the comma
  }
  return positions;
}

GoldenCase::Kept KeptOf(const json& from) {
  GoldenCase::Kept kept;
  for (const json& layer : from) {
    auto& heads = kept.emplace_back();
    for (const json& head : layer) {
      heads.push_back(PositionsOf(head.get_ref<const std::string&>()));
    }
  }
  return kept;
}

GoldenCase CaseOf(const json& from, size_t index) {
  GoldenCase c;
  c.name = absl::StrCat("case ", index, " ", from.at("policy").dump());
  c.model = from.at("model").get<size_t>();
  c.request.prompt = from.at("prompt").get<std::vector<engine::TokenId>>();
  c.request.stopping.max_new_tokens = from.at("max_new").get<uint32_t>();
  c.request.stopping.ignore_eos = from.at("ignore_eos").get<bool>();
  c.request.cache = CacheOf(from.at("policy"));
  c.request.first_stream = from.value("stream", 0U);
  c.request.cache_report = engine::CacheReportDetail::kFull;
  if (from.contains("forced")) {
    c.request.forced_tokens =
        from["forced"].get<std::vector<engine::TokenId>>();
  }
  const json& want = from.at("want");
  c.budget = want.at("k").get<int32_t>();
  c.seen = want.at("seen").get<int32_t>();
  if (from.contains("beam")) {
    const json& beam = from["beam"];
    c.name += beam.dump();
    c.request.beam = engine::BeamParams{
        .width = beam.at("width").get<uint32_t>(),
        .length_penalty = beam.at("length_penalty").get<double>(),
        .early_stopping = beam.at("early_stopping").get<bool>()};
    for (const json& b : want.at("beams")) {
      Answer& answer = c.answers.emplace_back();
      b.at("tokens").get_to(answer.tokens);
      b.at("score").get_to(answer.score);
    }
  } else {
    c.request.output.logprobs = true;
    Answer& answer = c.answers.emplace_back();
    want.at("tokens").get_to(answer.tokens);
    want.at("logprobs").get_to(answer.logprobs);
  }
  c.kept_after_prompt = KeptOf(want.at("kept_after_prompt"));
  c.kept_at_end = KeptOf(want.at("kept_at_end"));
  return c;
}

TinyModelSpec SpecOf(const json& from) {
  TinyModelSpec spec;
  spec.seed = from.at("seed").get<uint32_t>();
  spec.layers = from.at("layers").get<int32_t>();
  spec.heads = from.at("heads").get<int32_t>();
  spec.kv_heads = from.at("kv_heads").get<int32_t>();
  spec.head_dim = from.at("head_dim").get<int32_t>();
  spec.ffn = from.at("ffn").get<int32_t>();
  spec.context = from.at("context").get<int32_t>();
  spec.tied = from.at("tied").get<bool>();
  spec.eos = from.at("eos").get<int32_t>();
  return spec;
}

std::string AnswerDifference(const Answer& want, const Answer& got) {
  if (got.tokens != want.tokens) return "tokens differ";
  if (got.logprobs.size() != want.logprobs.size()) return "logprobs missing";
  for (size_t i = 0; i < want.logprobs.size(); ++i) {
    if (!(std::abs(got.logprobs[i] - want.logprobs[i]) <= kLogprobTolerance)) {
      return absl::StrCat("logprob ", i, " is ", got.logprobs[i], ", want ",
                          want.logprobs[i]);
    }
  }
  if (!(std::abs(got.score - want.score) <= kLogprobTolerance)) {
    return absl::StrCat("the score is ", got.score, ", want ", want.score);
  }
  return "";
}

std::string KeptDifference(std::string_view when,
                           const GoldenCase::Kept& want,
                           const engine::CacheState& got) {
  if (want.size() != got.size()) {
    return absl::StrCat(ToAbsl(when), ": ", got.size(), " layers");
  }
  for (size_t layer = 0; layer < want.size(); ++layer) {
    if (want[layer].size() != got[layer].size()) {
      return absl::StrCat(ToAbsl(when), ": ", got[layer].size(), " heads");
    }
    for (size_t head = 0; head < want[layer].size(); ++head) {
      if (want[layer][head] != got[layer][head].positions) {
        return absl::StrCat("kept ", ToAbsl(when), " differs in layer ", layer,
                            ", head ", head);
      }
    }
  }
  return "";
}

// What FULL and QUEST hold.
GoldenCase::Kept Everything(int32_t tokens, const engine::CacheState& shape) {
  std::vector<int32_t> all(static_cast<size_t>(tokens));
  std::iota(all.begin(), all.end(), 0);
  GoldenCase::Kept kept;
  for (const auto& layer : shape) {
    kept.emplace_back(layer.size(), all);
  }
  return kept;
}

}  // namespace

GoldenFile LoadGolden() {
  const char* const named = std::getenv("KF_GOLDEN_FILE");
  const std::string path =
      named != nullptr ? named : KF_SOURCE_DIR "/tests/golden/cases.json";
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot open " + path);
  const json file = json::parse(in);
  GoldenFile golden;
  for (const json& model : file.at("models")) {
    golden.models.push_back(SpecOf(model));
    golden.model_fnv1a.push_back(
        std::stoull(model.at("fnv1a").get<std::string>(), nullptr, 16));
  }
  for (const json& c : file.at("cases")) {
    golden.cases.push_back(CaseOf(c, golden.cases.size()));
  }
  golden.evicting_much = file.at("header").at("evicting_much").get<size_t>();
  return golden;
}

uint64_t Fnv1a(std::string_view bytes) {
  uint64_t hash = 0xCBF29CE484222325U;
  for (const char byte : bytes) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001B3U;
  }
  return hash;
}

std::string Difference(const GoldenCase& want, const Outcome& got) {
  if (!got.status.ok()) return got.status.ToString();
  const CachePolicy policy = want.request.cache.policy;
  const bool evicts =
      policy != CachePolicy::kFull && policy != CachePolicy::kQuest;
  const uint32_t budget = evicts ? static_cast<uint32_t>(want.budget) : 0U;
  if (got.usage.cache_budget_tokens != budget) {
    return absl::StrCat("the budget is ", got.usage.cache_budget_tokens,
                        ", want ", budget);
  }
  if (got.answers.size() != want.answers.size()) {
    return absl::StrCat(got.answers.size(), " answers, want ",
                        want.answers.size());
  }
  for (size_t i = 0; i < want.answers.size(); ++i) {
    std::string difference = AnswerDifference(want.answers[i], got.answers[i]);
    if (!difference.empty()) return absl::StrCat(difference, ", answer ", i);
  }
  const engine::CacheReport& report = got.report;
  if (report.after_prompt.empty()) return "no cache report";
  const auto n = static_cast<int32_t>(want.request.prompt.size());
  const auto kept = [](const GoldenCase::Kept& listed, int32_t tokens,
                       const engine::CacheState& shape) {
    return listed.empty() ? Everything(tokens, shape) : listed;
  };
  std::string difference = KeptDifference(
      "after the prompt", kept(want.kept_after_prompt, n, report.after_prompt),
      report.after_prompt);
  if (!difference.empty()) return difference;
  return KeptDifference("at the end",
                        kept(want.kept_at_end, want.seen, report.at_end),
                        report.at_end);
}

}  // namespace kf::testing
