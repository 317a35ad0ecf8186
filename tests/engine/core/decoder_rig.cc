#include "tests/engine/core/decoder_rig.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/cache/cache_plan.h"
#include "engine/request_validation.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

constexpr int32_t kPoolPages = 4096;

// For what cannot fail but by a fault of ours.
template <typename T>
T Must(absl::StatusOr<T> result) {
  EXPECT_TRUE(result.ok()) << result.status();
  return std::move(result).value();
}

void Must(const absl::Status& status) { ASSERT_TRUE(status.ok()) << status; }

}  // namespace

DecoderRig::DecoderRig(const testing::TinyModelSpec& spec,
                       const std::string& backend)
    : spec_(spec),
      backend_(Must(
          CreateBackend({.name = backend, .threads = 2, .simd = "auto"}))) {
  file_ = Must(GgufFile::Open(WriteTinyModel(spec, dir_.File("tiny.gguf"))));
  config_ = Must(ReadModelConfig(*file_));
  decoder_ = Must(Decoder::Create(*file_, config_,
                                  {.weight_format = WeightFormat::kF32,
                                   .cache_dtype = DType::kF32,
                                   .max_batch = 16,
                                   .workspace_tokens = spec.context,
                                   .max_workspace_prompts = 1},
                                  *backend_));
  pool_ = Must(PagePool::Create(
      *backend_, backend_->PageBytes(decoder_->shape()), kPoolPages, "pages"));
}

DecoderRig::~DecoderRig() = default;

int32_t* DecoderRig::NewFreeSlots() {
  const auto count =
      static_cast<size_t>(spec_.layers) * static_cast<size_t>(spec_.kv_heads);
  free_slots_.push_back(
      Must(backend_->Allocate(count * sizeof(int32_t), "free slots")));
  return free_slots_.back()->as<int32_t>();
}

ScoreOptions DecoderRig::Score(const RigSequence& sequence) const {
  ScoreOptions score{.enabled = sequence.sizes.rules.scored};
  if (sequence.request.cache.policy == CachePolicy::kKeyformer) {
    score.noise = sequence.request.cache.noise;
    score.seed = sequence.request.cache.noise_seed.value_or(0);
  } else {
    score.noise = NoiseKind::kNone;
  }
  return score;
}

std::unique_ptr<RigSequence> DecoderRig::Prompt(Request request) {
  auto sequence = std::make_unique<RigSequence>();
  sequence->sizes =
      Must(ValidateRequest(request, {.vocabulary = config_.vocabulary,
                                     .context_tokens = config_.context_tokens,
                                     .layers = config_.layers}));
  sequence->request = std::move(request);
  SequenceCache& cache = sequence->cache;
  cache.base = pool_->base();
  cache.kv_heads = spec_.kv_heads;
  cache.free_slots = NewFreeSlots();
  cache.prompt_tokens = sequence->sizes.prompt_tokens;
  cache.rules = sequence->sizes.rules;
  TakePages(sequence->sizes, spec_.layers, *pool_, cache);
  const int32_t n = cache.prompt_tokens;
  const std::vector<int32_t> workspace =
      decoder_->workspace_pool().Take(CeilDiv(n, kPageTokens));
  for (int32_t layer = 0; layer < spec_.layers; ++layer) {
    for (int32_t row = 0; row < n; row += kPromptRowTile) {
      const PromptPiece piece = {
          .prompt = sequence->request.prompt,
          .first_row = row,
          .rows = std::min(kPromptRowTile, n - row),
          .workspace = workspace,
          .cache = &cache,
          .score = Score(*sequence),
          .score_first_row = n - cache.rules.prompt_rows};
      Must(decoder_->PromptSlice(layer, {&piece, 1}));
    }
  }
  decoder_->workspace_pool().Give(workspace);
  ReturnPromptPages(sequence->sizes, *pool_, cache);
  return sequence;
}

std::unique_ptr<RigSequence> DecoderRig::Fork(const RigSequence& from,
                                              bool beam) {
  auto to = std::make_unique<RigSequence>(from);
  std::vector<PageCopy> copies;
  for (size_t layer = 0; layer < from.cache.pages.size(); ++layer) {
    auto& pages = to->cache.pages[layer];
    pages = pool_->Take(static_cast<int32_t>(pages.size()));
    for (size_t i = 0; i < pages.size(); ++i) {
      copies.push_back({from.cache.pages[layer][i], pages[i]});
    }
  }
  Must(backend_->CopyPages(decoder_->shape(), pool_->base(), copies));
  if (!beam) {
    to->cache.free_slots = NewFreeSlots();
    std::copy_n(from.cache.free_slots, spec_.layers * spec_.kv_heads,
                to->cache.free_slots);
  }
  return to;
}

std::vector<std::vector<float>> DecoderRig::Step(
    std::span<RigSequence* const> sequences, std::span<const int32_t> tokens) {
  std::vector<DecodeRow> rows;
  for (size_t i = 0; i < sequences.size(); ++i) {
    ScoreOptions score = Score(*sequences[i]);
    score.tau = 1.5F;
    rows.push_back({.token = tokens[i],
                    .cache = &sequences[i]->cache,
                    .score = score,
                    .add_scores = sequences[i]->request.cache.decode_scores});
  }
  Must(decoder_->DecodeStep(rows));
  for (RigSequence* sequence : sequences) ++sequence->cache.fed;
  const auto count = static_cast<int64_t>(rows.size());
  Must(decoder_->ComputeLogits(0, count));
  const auto logits = Must(decoder_->ReadLogits(count));
  std::vector<std::vector<float>> result;
  const auto width = static_cast<size_t>(config_.vocabulary);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto row = logits.subspan(i * width, width);
    result.emplace_back(row.begin(), row.end());
  }
  return result;
}

CacheState DecoderRig::Held(const RigSequence& sequence) {
  const SequenceCache& cache = sequence.cache;
  CacheState state;
  for (int32_t layer = 0; layer < spec_.layers; ++layer) {
    state.push_back(
        Must(backend_->ReadHeld(decoder_->shape(), cache.span(layer),
                                cache.held(layer), cache.free_slot(layer))));
  }
  return state;
}

}  // namespace kf::engine
