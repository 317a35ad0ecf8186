#include "tests/golden/golden_support.h"

#include <chrono>
#include <cmath>
#include <fstream>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "kernels/core/status.h"
#include "nlohmann/json.hpp"

namespace kf::testing {
namespace {

using engine::CachePolicy;
using nlohmann::json;

constexpr std::chrono::minutes kPatience{4};

CachePolicy PolicyOf(const std::string& kind) {
  if (kind == "full") return CachePolicy::kFull;
  if (kind == "h2o") return CachePolicy::kH2O;
  if (kind == "keyformer") return CachePolicy::kKeyformer;
  throw std::runtime_error("cases.json: policy " + kind);
}

NoiseKind NoiseOf(const std::string& noise) {
  if (noise == "gumbel") return NoiseKind::kGumbel;
  if (noise == "gaussian") return NoiseKind::kGaussian;
  if (noise == "constant") return NoiseKind::kConstant;
  if (noise == "none") return NoiseKind::kNone;
  throw std::runtime_error("cases.json: noise " + noise);
}

// The oracle's Policy with its own defaults where a field is left out.
engine::CacheOptions CacheOf(const json& policy) {
  engine::CacheOptions c;
  c.policy = PolicyOf(policy.at("kind").get<std::string>());
  c.ratio = policy.value("ratio", 0.5);
  if (policy.contains("budget")) c.tokens = policy["budget"].get<uint32_t>();
  c.recent_ratio = policy.value("recent", 0.3);
  if (policy.contains("window")) {
    c.recent_tokens = policy["window"].get<uint32_t>();
  }
  c.min_tokens = policy.value("min_tokens", 1U);
  c.basis = policy.value("basis", "prompt") == "total"
                ? engine::BudgetBasis::kTotal
                : engine::BudgetBasis::kPrompt;
  c.tau_init = policy.value("tau_init", 1.0);
  c.tau_end = policy.value("tau_end", 2.0);
  c.noise = NoiseOf(policy.value("noise", "gumbel"));
  c.resample_once = policy.value("resample", "step") == "once";
  c.score_queries = policy.value("score_queries", 0U);
  c.decode_scores = policy.value("decode_scores", true);
  c.noise_seed = policy.value("seed", uint64_t{0});
  return c;
}

GoldenCase CaseOf(const json& from, size_t index) {
  GoldenCase c;
  c.name = absl::StrCat("case ", index, " ", from.at("policy").dump());
  c.model = from.at("model").get<size_t>();
  c.request.prompt = from.at("prompt").get<std::vector<engine::TokenId>>();
  c.request.stopping.max_new_tokens = from.at("max_new").get<uint32_t>();
  c.request.stopping.ignore_eos = from.at("ignore_eos").get<bool>();
  c.request.cache = CacheOf(from.at("policy"));
  c.request.output.logprobs = true;
  c.request.cache_report = engine::CacheReportDetail::kFull;
  if (from.contains("forced")) {
    c.request.forced_tokens =
        from["forced"].get<std::vector<engine::TokenId>>();
  }
  const json& want = from.at("want");
  c.budget = want.at("k").get<int32_t>();
  want.at("tokens").get_to(c.tokens);
  want.at("logprobs").get_to(c.logprobs);
  want.at("kept_after_prompt").get_to(c.kept_after_prompt);
  want.at("kept_at_end").get_to(c.kept_at_end);
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
  return spec;
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

// Under FULL every layer and head holds all that was seen.
GoldenCase::Kept Everything(size_t tokens, const engine::CacheState& shape) {
  std::vector<int32_t> all(tokens);
  std::iota(all.begin(), all.end(), 0);
  GoldenCase::Kept kept;
  for (const auto& layer : shape) {
    kept.emplace_back(layer.size(), all);
  }
  return kept;
}

}  // namespace

void CollectingSink::OnUpdate(engine::Update update) {
  MutexLock lock(mu_);
  Outcome& o = outcome_;
  o.text += update.text;
  o.tokens.insert(o.tokens.end(), update.token_ids.begin(),
                  update.token_ids.end());
  for (const engine::TokenLogprob& p : update.logprobs) {
    o.logprobs.push_back(p.logprob);
  }
  if (update.finish_reason != engine::FinishReason::kNotFinished) {
    o.finish_reason = update.finish_reason;
    o.usage = update.usage;
  }
  if (update.cache_report.has_value()) {
    o.report = *std::move(update.cache_report);
  }
  changed_.NotifyAll();
}

void CollectingSink::OnEnd(const absl::Status& status) {
  MutexLock lock(mu_);
  outcome_.status = status;
  ended_ = true;
  changed_.NotifyAll();
}

Outcome CollectingSink::Wait() {
  MutexLock lock(mu_);
  while (!ended_) {
    if (changed_.WaitFor(mu_, kPatience)) continue;
    Outcome late = outcome_;
    late.status = absl::DeadlineExceededError("the request does not end");
    return late;
  }
  return outcome_;
}

void CollectingSink::WaitForTokens(size_t count) {
  MutexLock lock(mu_);
  while (!ended_ && outcome_.tokens.size() < count) {
    if (!changed_.WaitFor(mu_, kPatience)) return;
  }
}

std::unique_ptr<engine::Engine> MakeEngine(EngineSetup setup) {
  static const engine::SteadyClock clock;
  engine::EngineOptions options;
  options.model_path = setup.model_path;
  options.weight_format = setup.f32 ? WeightFormat::kF32 : WeightFormat::kBF16;
  options.cache_dtype = setup.f32 ? DType::kF32 : DType::kBF16;
  options.backend.simd = setup.simd;
  options.backend.threads = setup.threads;
  options.kv_pool_bytes = setup.kv_pool_bytes;
  auto made = engine::Engine::Create(options, clock, setup.observer,
                                     std::move(setup.backend));
  if (!made.ok()) throw std::runtime_error(made.status().ToString());
  return *std::move(made);
}

std::vector<Outcome> RunTogether(engine::Engine& engine,
                                 const std::vector<engine::Request>& requests) {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::vector<absl::Status> refused(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    refused[i] = engine.Submit(requests[i], sinks.back()).status();
  }
  std::vector<Outcome> outcomes(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    if (refused[i].ok()) {
      outcomes[i] = sinks[i]->Wait();
    } else {
      outcomes[i].status = refused[i];
    }
  }
  return outcomes;
}

GoldenFile LoadGolden() {
  const std::string path = KF_SOURCE_DIR "/tests/golden/cases.json";
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
  if (got.tokens != want.tokens) return "tokens differ";
  const bool full = want.request.cache.policy == CachePolicy::kFull;
  const uint32_t budget = full ? 0U : static_cast<uint32_t>(want.budget);
  if (got.usage.cache_budget_tokens != budget) {
    return absl::StrCat("the budget is ", got.usage.cache_budget_tokens,
                        ", want ", budget);
  }
  if (got.logprobs.size() != want.logprobs.size()) return "logprobs missing";
  for (size_t i = 0; i < want.logprobs.size(); ++i) {
    const double off = std::abs(got.logprobs[i] - want.logprobs[i]);
    if (!(off <= kLogprobTolerance)) {
      return absl::StrCat("logprob ", i, " is ", got.logprobs[i], ", want ",
                          want.logprobs[i]);
    }
  }
  const size_t n = want.request.prompt.size();
  const engine::CacheReport& report = got.report;
  if (report.after_prompt.empty()) return "no cache report";
  std::string difference = KeptDifference(
      "after the prompt",
      full ? Everything(n, report.after_prompt) : want.kept_after_prompt,
      report.after_prompt);
  if (!difference.empty()) return difference;
  // The last token is never fed.
  const size_t seen = n + want.tokens.size() - 1;
  return KeptDifference(
      "at the end", full ? Everything(seen, report.at_end) : want.kept_at_end,
      report.at_end);
}

}  // namespace kf::testing
