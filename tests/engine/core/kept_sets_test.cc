// Who is held, step by step, under every policy, scope and number of beams.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <ostream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/engine/core/decoder_rig.h"
#include "tests/engine/core/engine_harness.h"

namespace kf::engine {
namespace {

testing::TinyModelSpec Model(int32_t kv_heads) {
  testing::TinyModelSpec spec;
  spec.layers = 3;
  spec.kv_heads = kv_heads;
  return spec;
}

std::vector<RigSequence*> Pointers(
    const std::vector<std::unique_ptr<RigSequence>>& sequences) {
  std::vector<RigSequence*> pointers;
  pointers.reserve(sequences.size());
  for (const auto& s : sequences) pointers.push_back(s.get());
  return pointers;
}

void ExpectSameHeld(const HeldTokens& a, const HeldTokens& b) {
  EXPECT_EQ(a.positions, b.positions);
  EXPECT_EQ(a.scores, b.scores);
}

// What holds of every kept set (docs/keyformer.md, Identities 7).
void CheckHeld(const RigSequence& s, const CacheState& state) {
  const CacheRules& rules = s.sizes.rules;
  const CachePolicy policy = s.request.cache.policy;
  const int32_t seen = s.cache.seen();
  for (size_t layer = 0; layer < state.size(); ++layer) {
    const LayerSize size = rules.size(static_cast<int32_t>(layer));
    for (const HeldTokens& head : state[layer]) {
      const std::set<int32_t> held(head.positions.begin(),
                                   head.positions.end());
      ASSERT_EQ(std::ssize(held), std::ssize(head.positions)) << "twice";
      ASSERT_EQ(std::ssize(held), std::min(size.budget, seen));
      for (int32_t p = std::max(seen - size.recent, 0); p < seen; ++p) {
        ASSERT_TRUE(held.contains(p)) << "recent token " << p;
      }
      ASSERT_GE(*held.begin(), 0);
      ASSERT_LT(*held.rbegin(), seen);
      if (policy == CachePolicy::kWindow) {
        const int32_t sinks =
            std::min(size.budget - size.recent, std::min(size.budget, seen));
        for (int32_t p = 0; p < sinks; ++p) {
          ASSERT_TRUE(held.contains(p)) << "sink " << p;
        }
      }
      const HeldTokens& first =
          rules.scope == SelectionScope::kModel ? state[0][0] : state[layer][0];
      if (rules.scope != SelectionScope::kHead) {
        ASSERT_EQ(head.positions, first.positions);
      }
    }
  }
}

// Beams go with no sampling or output options.
void AskForBeams(Request& r, uint32_t width) {
  r.beam = BeamParams{.width = width};
  r.sampling = {};
  r.output = {};
}

class RandomOptions {
 public:
  explicit RandomOptions(uint32_t seed) : random_(seed) {}

  int32_t Upto(int32_t most) {
    return std::uniform_int_distribution<int32_t>(0, most)(random_);
  }
  bool Coin() { return Upto(1) == 1; }

  Request Make(uint32_t seed, int32_t layers) {
    const int32_t n = 1 + Upto(Coin() ? 70 : 20);
    Request r = MakeRequest(seed, n, static_cast<uint32_t>(1 + Upto(30)));
    CacheOptions& c = r.cache;
    c.policy = static_cast<CachePolicy>(Upto(4));
    c.tokens = static_cast<uint32_t>(1 + Upto(n));
    if (Coin())
      c.recent_tokens =
          static_cast<uint32_t>(Upto(static_cast<int32_t>(*c.tokens)));
    c.sinks = static_cast<uint32_t>(Upto(6));
    c.noise = static_cast<NoiseKind>(Upto(3));
    c.scope = static_cast<SelectionScope>(Upto(2));
    c.positions = static_cast<CachePositions>(Upto(1));
    c.score_norm = static_cast<ScoreNorm>(Upto(1));
    c.score_queries = static_cast<uint32_t>(Coin() ? 0 : 1 + Upto(40));
    c.decode_scores = Upto(3) > 0;
    c.full_layers = static_cast<uint32_t>(Upto(3));
    const bool evicts =
        c.policy != CachePolicy::kFull && c.policy != CachePolicy::kQuest;
    if (evicts && Coin()) {
      if (c.scope == SelectionScope::kModel) c.scope = SelectionScope::kHead;
      c.layer_weights.assign(static_cast<size_t>(layers), 1.0);
      const double shift = 0.1 * Upto(9);
      c.layer_weights.front() += shift;
      c.layer_weights.back() -= shift;
    }
    if (c.policy != CachePolicy::kQuest && Coin()) {
      AskForBeams(r, static_cast<uint32_t>(1 + Upto(3)));
    }
    return r;
  }

 private:
  std::mt19937 random_;
};

std::string Describe(const Request& r) {
  const CacheOptions& c = r.cache;
  return "policy " + std::to_string(static_cast<int>(c.policy)) + ", scope " +
         std::to_string(static_cast<int>(c.scope)) + ", n " +
         std::to_string(r.prompt.size()) + ", k " + std::to_string(*c.tokens) +
         ", width " + std::to_string(r.beam ? r.beam->width : 1);
}

// Exact counts, unique positions, recent tokens and sinks held, one set where
// one is shared: after the prompt and after every step.
class KeptSetsTest : public ::testing::TestWithParam<const char*> {};

TEST_P(KeptSetsTest, HoldWhatTheRulesSayAfterEveryPass) {
  for (const int32_t kv_heads : {1, 2, 4}) {
    DecoderRig rig(Model(kv_heads), GetParam());
    for (uint32_t seed = 0; seed < 40; ++seed) {
      RandomOptions random(seed * 3 + static_cast<uint32_t>(kv_heads));
      const Request request = random.Make(seed, rig.layers());
      SCOPED_TRACE(Describe(request));
      std::vector<std::unique_ptr<RigSequence>> rows;
      rows.push_back(rig.Prompt(request));
      CheckHeld(*rows[0], rig.Held(*rows[0]));
      for (int32_t i = 1; i < rows[0]->sizes.rules.width; ++i) {
        rows.push_back(rig.Fork(*rows[0], /*beam=*/true));
      }
      for (int32_t t = 1; t < rows[0]->sizes.max_new_tokens; ++t) {
        std::vector<int32_t> tokens;
        for (size_t i = 0; i < rows.size(); ++i) {
          tokens.push_back(random.Upto(255));
        }
        rig.Step(Pointers(rows), tokens);
        const CacheState held = rig.Held(*rows[0]);
        CheckHeld(*rows[0], held);
        for (const auto& row : rows) {
          const CacheState other = rig.Held(*row);
          for (size_t l = 0; l < held.size(); ++l) {
            for (size_t g = 0; g < held[l].size(); ++g) {
              ExpectSameHeld(other[l][g], held[l][g]);
            }
          }
        }
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

Request BeamRequest(SelectionScope scope, uint32_t width) {
  Request r = MakeKeyformerRequest(5, 40, 20, 12, 3);
  r.cache.scope = scope;
  AskForBeams(r, width);
  return r;
}

struct ScopeCase {
  const char* name;
  const char* backend;
  SelectionScope scope;
};
void PrintTo(const ScopeCase& c, std::ostream* os) { *os << c.name; }

class BeamScopeTest : public ::testing::TestWithParam<ScopeCase> {
 protected:
  DecoderRig rig_{Model(2), GetParam().backend};
  const SelectionScope scope_ = GetParam().scope;
};

// The prompt's scores count once for every beam.
TEST_P(BeamScopeTest, PromptScoresCountWidthTimes) {
  const CacheState one = rig_.Held(*rig_.Prompt(BeamRequest(scope_, 1)));
  const CacheState four = rig_.Held(*rig_.Prompt(BeamRequest(scope_, 4)));
  for (size_t l = 0; l < one.size(); ++l) {
    for (size_t g = 0; g < one[l].size(); ++g) {
      EXPECT_EQ(one[l][g].positions, four[l][g].positions);
      for (size_t i = 0; i < one[l][g].scores.size(); ++i) {
        EXPECT_EQ(4 * one[l][g].scores[i], four[l][g].scores[i]);
      }
    }
  }
}

float ScoreAt(const HeldTokens& held, int32_t position) {
  const auto at =
      std::lower_bound(held.positions.begin(), held.positions.end(), position);
  if (at == held.positions.end() || *at != position) return -1.0F;
  return held.scores[static_cast<size_t>(at - held.positions.begin())];
}

// A step adds what each beam's row would add alone, and a beam's logits are
// those of a sequence alone: neither hears of the others but through who stays.
TEST_P(BeamScopeTest, AStepAddsEveryBeamsRow) {
  Request request = BeamRequest(scope_, 2);
  request.cache.tokens = 41;  // holds the prompt, and the step's token
  std::vector<std::unique_ptr<RigSequence>> beams;
  beams.push_back(rig_.Prompt(request));
  const CacheState before = rig_.Held(*beams[0]);
  std::vector<CacheState> alone;
  std::vector<std::vector<float>> logits;
  const std::vector<int32_t> tokens = {7, 99};
  for (const int32_t token : tokens) {
    const auto copy = rig_.Fork(*beams[0], /*beam=*/false);
    RigSequence* const row = copy.get();
    logits.push_back(rig_.Step({&row, 1}, {&token, 1})[0]);
    alone.push_back(rig_.Held(*copy));
  }
  beams.push_back(rig_.Fork(*beams[0], /*beam=*/true));
  EXPECT_EQ(rig_.Step(Pointers(beams), tokens), logits);
  const CacheState after = rig_.Held(*beams[0]);
  for (size_t l = 0; l < after.size(); ++l) {
    for (size_t g = 0; g < after[l].size(); ++g) {
      ASSERT_EQ(after[l][g].positions.size(), 41U);
      for (const int32_t p : after[l][g].positions) {
        const float base = p < 40 ? ScoreAt(before[l][g], p) : 0.0F;
        const float added =
            ScoreAt(alone[0][l][g], p) + ScoreAt(alone[1][l][g], p) - 2 * base;
        EXPECT_NEAR(ScoreAt(after[l][g], p), base + added, 1e-5F);
        EXPECT_GT(added, 0.0F);
      }
    }
  }
}

// Beams that feed the same tokens are a sequence with all scores doubled: what
// leaves is the same.
TEST_P(BeamScopeTest, EqualBeamsEvictAsOneSequenceDoes) {
  const auto alone = rig_.Prompt(BeamRequest(scope_, 1));
  std::vector<std::unique_ptr<RigSequence>> rows;
  rows.push_back(rig_.Prompt(BeamRequest(scope_, 2)));
  rows.push_back(rig_.Fork(*rows[0], /*beam=*/true));
  rows.push_back(rig_.Prompt(BeamRequest(scope_, 1)));  // a neighbour
  for (int32_t t = 1; t < 20; ++t) {
    const int32_t token = 13 * t;
    RigSequence* const row = alone.get();
    const auto want = rig_.Step({&row, 1}, {&token, 1})[0];
    const std::vector<int32_t> tokens(3, token);
    for (const auto& logits : rig_.Step(Pointers(rows), tokens)) {
      ASSERT_EQ(logits, want);
    }
  }
  const CacheState one = rig_.Held(*alone);
  for (const auto& row : rows) {
    const CacheState state = rig_.Held(*row);
    for (size_t l = 0; l < one.size(); ++l) {
      for (size_t g = 0; g < one[l].size(); ++g) {
        EXPECT_EQ(state[l][g].positions, one[l][g].positions);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Scopes,
    BeamScopeTest,
    ::testing::Values(
        ScopeCase{"ReferenceHead", "reference", SelectionScope::kHead},
        ScopeCase{"ReferenceLayer", "reference", SelectionScope::kLayer},
        ScopeCase{"ReferenceModel", "reference", SelectionScope::kModel},
        ScopeCase{"CpuHead", "cpu", SelectionScope::kHead},
        ScopeCase{"CpuLayer", "cpu", SelectionScope::kLayer},
        ScopeCase{"CpuModel", "cpu", SelectionScope::kModel}),
    [](const auto& param) { return std::string(param.param.name); });

// Scope MODEL keeps all of a prompt until its end, and then the budget alone.
TEST_P(KeptSetsTest, ScopeModelGivesItsPromptPagesBack) {
  DecoderRig rig(Model(2), GetParam());
  const int64_t free = rig.free_pages();
  Request request = MakeKeyformerRequest(1, 100, 20, 12, 3);
  request.cache.scope = SelectionScope::kModel;
  const auto sequence = rig.Prompt(request);
  EXPECT_EQ(free - rig.free_pages(), 3);
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         KeptSetsTest,
                         ::testing::Values("reference", "cpu"),
                         [](const auto& param) {
                           return std::string(param.param);
                         });

}  // namespace
}  // namespace kf::engine
