// The vectors of cases.json: what the numpy oracle says of tiny models, prompts
// and cache policies (make_golden.py).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "tests/golden/golden_support.h"
#include "tests/testing/tiny_model.h"

namespace kf::testing {

struct GoldenCase {
  std::string name;
  size_t model = 0;
  engine::Request request;  // asks for logprobs and the cache report
  int32_t budget = 0;       // k
  int32_t seen = 0;         // prompt tokens, and those that were fed
  // One sequence, with logprobs; or beams with scores, best first.
  std::vector<Answer> answers;
  // [layers][kv heads]: ascending positions. Empty: everything.
  using Kept = std::vector<std::vector<std::vector<int32_t>>>;
  Kept kept_after_prompt;
  Kept kept_at_end;
};

struct GoldenFile {
  std::vector<TinyModelSpec> models;
  std::vector<uint64_t> model_fnv1a;  // of each file's bytes
  std::vector<GoldenCase> cases;
  size_t evicting_much = 0;
};

// The file that the environment's KF_GOLDEN_FILE names, else the one beside
// this source. Throws on a malformed file.
GoldenFile LoadGolden();

uint64_t Fnv1a(std::string_view bytes);

// Empty, or the first difference between what came and what the oracle says:
// tokens and kept positions exactly, logprobs and scores within
// kLogprobTolerance.
std::string Difference(const GoldenCase& want, const Outcome& got);

inline constexpr double kLogprobTolerance = 1e-4;

}  // namespace kf::testing
