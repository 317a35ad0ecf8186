// The attention calls of the CUDA backend against the plain reference, through
// prompts, cuts and decode steps of every policy, and against themselves: a
// row's bits are the same in any slice and any batch.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/ref/ref_backend.h"
#include "tests/kernels/attention_rig.h"
#include "tests/testing/matchers.h"

namespace kf::testing {
namespace {

std::unique_ptr<Backend> MakeCuda() {
  auto backend = CreateCudaBackend({.name = "cuda"});
  EXPECT_THAT(backend, IsOk());
  return *std::move(backend);
}

struct AttentionCase {
  std::string name;
  SequenceOptions options;
  int32_t slice = 64;
  int32_t steps = 6;
};
void PrintTo(const AttentionCase& c, std::ostream* os) { *os << c.name; }

// Small, since every thread is a fiber: what a case has beyond this is its
// name.
SequenceOptions Base(int32_t prompt, int32_t budget, int32_t recent) {
  SequenceOptions o = SmallOptions(prompt, budget, recent);
  o.shape.cache_dtype = DType::kF32;
  o.max_steps = 12;
  return o;
}

std::vector<AttentionCase> Cases() {
  std::vector<AttentionCase> cases;
  const auto add = [&](const char* name, const SequenceOptions& o,
                       int32_t slice = 64, int32_t steps = 6) {
    cases.push_back({name, o, slice, steps});
  };
  add("OneToken", Base(1, 8, 2));
  add("Keyformer", Base(70, 30, 9));
  SequenceOptions o = Base(70, 30, 9);
  o.score.noise = NoiseKind::kNone;
  add("WithoutNoise", o);
  o = Base(40, 20, 0);
  o.score.noise = NoiseKind::kGaussian;
  o.score.resample_once = true;
  add("GaussianOnce", o);
  o = Base(50, 24, 20);
  o.score.enabled = false;
  add("Window", o);
  o = Base(40, 100, 0);
  o.score.enabled = false;
  add("Full", o);
  o = Base(70, 17, 4);
  o.age = true;
  o.score_first_row = 40;
  add("AgeOfSomeRows", o);
  o = Base(33, 16, 16);
  o.add_scores = false;
  add("PromptScoresAlone", o);
  o = Base(64, 31, 8);
  o.defer = true;
  o.shared = true;
  add("SharedByHeads", o);
  o = Base(65, 32, 8);
  o.rank_positions = true;
  add("RankPositions", o);
  o = Base(60, 80, 0);
  o.score.enabled = false;
  o.quest = true;
  o.read_pages = 3;
  add("Quest", o);
  o = Base(129, 128, 30);
  o.in_place = true;
  o.score_factor = 3.0F;
  add("InPlaceTimesThree", o, 32, 2);
  o = Base(48, 20, 5);
  o.shape.query_heads = 8;
  o.shape.kv_heads = 1;
  o.outliers = 20.0F;
  add("EightHeadsOnOneWithOutliers", o);
  o = Base(35, 20, 5);
  o.shape.head_dim = 24;  // padded
  o.shape.rotary_dim = 16;
  add("PaddedHeads", o);
  o = Base(34, 20, 5);
  o.shape.head_dim = 80;
  o.shape.rotary_dim = 80;
  add("HeadsOf80", o, 64, 2);
  return cases;
}

class BackendAttentionTest : public ::testing::TestWithParam<AttentionCase> {};

void ExpectSameHeld(const std::vector<HeldTokens>& got,
                    const std::vector<HeldTokens>& want,
                    double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t head = 0; head < want.size(); ++head) {
    ASSERT_EQ(got[head].positions, want[head].positions) << "head " << head;
    ASSERT_THAT(got[head].scores,
                NearRef(want[head].scores, tolerance, tolerance))
        << "head " << head;
  }
}

TEST_P(BackendAttentionTest, AgreesWithReference) {
  const AttentionCase& c = GetParam();
  SequenceOptions options = c.options;
  options.max_steps = c.steps;
  const auto cuda = MakeCuda();
  const auto reference = CreateReferenceBackend();
  const Trace got = RunAlone(*cuda, options, c.slice);
  const Trace want = RunAlone(*reference, options, c.slice);
  EXPECT_THAT(got.prompt_out, NearRef(want.prompt_out, 1e-5, 1e-5));
  ASSERT_EQ(got.step_out.size(), want.step_out.size());
  for (size_t i = 0; i < want.step_out.size(); ++i) {
    EXPECT_THAT(got.step_out[i], NearRef(want.step_out[i], 1e-5, 1e-5)) << i;
  }
  ASSERT_EQ(got.held.size(), want.held.size());
  for (size_t i = 0; i < want.held.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectSameHeld(got.held[i], want.held[i], 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         BackendAttentionTest,
                         ::testing::ValuesIn(Cases()),
                         [](const auto& p) { return p.param.name; });

// bf16 all through: logits and values are rounded, sets are the same where
// scores are as far apart as these.
TEST(BackendAttention, Bf16IsNearTheReference) {
  SequenceOptions options = Base(70, 40, 12);
  options.shape.cache_dtype = DType::kBF16;
  options.score.noise = NoiseKind::kNone;
  options.max_steps = 4;
  const auto cuda = MakeCuda();
  const auto reference = CreateReferenceBackend();
  const Trace got = RunAlone(*cuda, options, 64);
  const Trace want = RunAlone(*reference, options, 64);
  EXPECT_THAT(got.prompt_out, NearRef(want.prompt_out, 0.02, 0.02));
  for (size_t i = 0; i < want.step_out.size(); ++i) {
    EXPECT_THAT(got.step_out[i], NearRef(want.step_out[i], 0.02, 0.02)) << i;
  }
  for (size_t i = 0; i < want.held.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectSameHeld(got.held[i], want.held[i], 0.02);
  }
}

bool SameHeld(const Trace& a, const Trace& b) {
  for (size_t i = 0; i < a.held.size(); ++i) {
    for (size_t head = 0; head < a.held[i].size(); ++head) {
      if (a.held[i][head].positions != b.held[i][head].positions) return false;
      if (a.held[i][head].scores != b.held[i][head].scores) return false;
    }
  }
  return a.held.size() == b.held.size();
}

// Sequences of different kinds prefill and step in one call; each alone gives
// the same bits, in other slices too.
TEST(BackendAttention, BitsDependOnTheRowAlone) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(NameOf(dtype));
    std::vector<SequenceOptions> all = {Base(70, 30, 9), Base(33, 40, 10),
                                        Base(64, 16, 16), Base(1, 5, 1)};
    all[1].score.enabled = false;
    all[2].rank_positions = true;
    all[3].score.noise = NoiseKind::kGaussian;
    const auto cuda = MakeCuda();
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<Sequence*> batch;
    uint32_t seed = 1;
    for (SequenceOptions& o : all) {
      o.shape.cache_dtype = dtype;
      o.data_seed = seed++;
      o.max_steps = 3;
      sequences.push_back(std::make_unique<Sequence>(*cuda, o));
      batch.push_back(sequences.back().get());
    }
    while (!batch.empty()) {
      Sequence::Prefill(batch, 32);
      std::erase_if(batch, [](const Sequence* s) {
        return s->seen() == s->options().prompt;
      });
    }
    for (auto& s : sequences) {
      s->Compact();
      batch.push_back(s.get());
    }
    for (int32_t step = 0; step < 3; ++step) Sequence::Step(batch);
    for (size_t i = 0; i < all.size(); ++i) {
      SCOPED_TRACE(i);
      const Trace alone = RunAlone(*cuda, all[i], 96);
      EXPECT_EQ(sequences[i]->prompt_out(), alone.prompt_out);
      EXPECT_EQ(sequences[i]->step_out(), alone.step_out);
      EXPECT_TRUE(SameHeld(sequences[i]->trace(), alone));
    }
  }
}

// Tokens of one sequence in one call come to what they do one by one.
TEST(BackendAttention, ARunIsWhatItsRowsAreOneByOne) {
  SequenceOptions options = Base(20, 64, 0);
  options.score.enabled = false;
  options.max_steps = 8;
  const auto cuda = MakeCuda();
  Sequence run(*cuda, options);
  Sequence single(*cuda, options);
  for (Sequence* s : {&run, &single}) {
    s->PrefillAll(32);
    s->Compact();
  }
  Sequence* const batch[] = {&run};
  Sequence::Attend(batch, 8);
  for (int32_t i = 0; i < 8; ++i) single.StepAlone();
  EXPECT_EQ(run.step_out(), single.step_out());
  ExpectSameHeld(run.trace().held.back(), single.trace().held.back(), 0.0);
}

}  // namespace
}  // namespace kf::testing
