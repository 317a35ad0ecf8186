// Cuts a prompt's layers to their budget.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "kernels/core/bf16.h"
#include "kernels/core/status.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_layout.h"
#include "kernels/cpu/rank_key.h"
#include "kernels/cpu/rank_positions.h"

namespace kf::cpu {
namespace {

// Positions of a work item that sums the scores of all heads.
constexpr int32_t kSumBlock = 256;

class Cut {
 public:
  Cut(AttentionContext& context, const CompactArgs& args)
      : context_(context),
        args_(args),
        layout_(MakeHeadLayout(args.shape)),
        from_shape_(args.from_prompt ? args.shape.prompt() : args.shape),
        from_layout_(MakeHeadLayout(from_shape_)),
        tokens_(args.prompt_tokens),
        kept_(std::min(args.budget, args.prompt_tokens)),
        // A budget of the whole prompt keeps it: every token counts as recent.
        recent_(kept_ < tokens_ ? args.recent : tokens_) {}

  absl::Status Run();

 private:
  // Memory of one worker.
  struct Worker {
    uint64_t* keys;  // [tokens]
    int32_t* kept;   // [kept]
  };

  absl::StatusOr<Worker> NewWorker();
  absl::StatusOr<const int32_t*> ChooseShared(const Worker& worker);
  template <typename ScoreAt>
  void Choose(const ScoreAt& score_at, const Worker& worker) const;
  float ScoreOf(const HeadPages& from, int32_t p) const {
    return ScoresOf(from_layout_,
                    BlockOf(from, p / kPageTokens))[p % kPageTokens] *
           args_.score_factor;
  }
  void FillPage(const HeadPages& from,
                const int32_t* positions,
                int32_t count,
                unsigned char* to) const;
  void RoundPage(const HeadPages& from,
                 const int32_t* positions,
                 int32_t count,
                 unsigned char* to) const;

  AttentionContext& context_;
  const CompactArgs& args_;
  const HeadLayout layout_;
  const AttentionShape from_shape_;
  const HeadLayout from_layout_;
  const int32_t tokens_;
  const int32_t kept_;
  const int32_t recent_;
};

absl::StatusOr<Cut::Worker> Cut::NewWorker() {
  Worker worker = {};
  KF_ASSIGN_OR_RETURN(worker.keys, context_.scratch.Take<uint64_t>(tokens_));
  KF_ASSIGN_OR_RETURN(worker.kept, context_.scratch.Take<int32_t>(kept_));
  return worker;
}

// Writes the kept positions, ascending, to worker.kept.
template <typename ScoreAt>
void Cut::Choose(const ScoreAt& score_at, const Worker& worker) const {
  const int32_t older = tokens_ - recent_;
  const int32_t best = kept_ - recent_;
  uint64_t* keys = worker.keys;
  for (int32_t p = 0; p < older; ++p) {
    const float score = score_at(p);
    keys[p] = RankKey(args_.age.enabled
                          ? score / static_cast<float>(args_.age.RowsThatSaw(p))
                          : score,
                      p);
  }
  if (best > 0) std::nth_element(keys, keys + best - 1, keys + older);
  for (int32_t i = 0; i < best; ++i) {
    worker.kept[i] = PositionOfKey(keys[i]);
  }
  std::sort(worker.kept, worker.kept + best);
  for (int32_t i = 0; i < recent_; ++i) worker.kept[best + i] = older + i;
}

// One choice by the sum over layers and heads, in order.
absl::StatusOr<const int32_t*> Cut::ChooseShared(const Worker& worker) {
  KF_ASSIGN_OR_RETURN(float* sums, context_.scratch.Take<float>(tokens_));
  const int32_t blocks = (tokens_ + kSumBlock - 1) / kSumBlock;
  context_.pool.ParallelFor(blocks, [&](int64_t block, int /*worker*/) {
    const auto first = static_cast<int32_t>(block) * kSumBlock;
    const int32_t end = std::min(tokens_, first + kSumBlock);
    std::fill(sums + first, sums + end, 0.0F);
    for (const CompactLayer& layer : args_.layers) {
      for (int32_t g = 0; g < args_.shape.kv_heads; ++g) {
        const HeadPages from = MakeHeadPages(from_shape_, layer.from, g);
        for (int32_t p = first; p < end; ++p) sums[p] += ScoreOf(from, p);
      }
    }
  });
  Choose([sums](int32_t p) { return sums[p]; }, worker);
  return worker.kept;
}

// Fills one page of the new list with `count` tokens of the old one. In place
// too: positions ascend, so nothing is overwritten before it is read.
void Cut::FillPage(const HeadPages& from,
                   const int32_t* positions,
                   int32_t count,
                   unsigned char* to) const {
  std::array<const unsigned char*, kPageTokens> source = {};
  const int64_t row_bytes =
      int64_t{layout_.value_stride} * (layout_.bytes  ? 1
                                       : layout_.bf16 ? 2
                                                      : 4);
  for (int32_t j = 0; j < count; ++j) {
    const int32_t p = positions[j];
    unsigned char* block = BlockOf(from, p / kPageTokens);
    const int32_t slot = p % kPageTokens;
    source[static_cast<size_t>(j)] = block + slot * 4;
    unsigned char* v = to + layout_.v_offset + j * row_bytes;
    const unsigned char* old_v = block + layout_.v_offset + slot * row_bytes;
    if (v != old_v) std::memcpy(v, old_v, static_cast<size_t>(row_bytes));
    PositionsOf(layout_, to)[j] = PositionsOf(layout_, block)[slot];
    ScoresOf(layout_, to)[j] = ScoreOf(from, p);
    if (layout_.bytes) {
      for (const int64_t offset :
           {layout_.k_scale_offset, layout_.v_scale_offset}) {
        std::memcpy(to + offset + j * 4, block + offset + slot * 4, 4);
      }
    }
  }
  // K is stored by steps; a slot's word of each step moves on its own.
  for (int64_t step = 0; step < layout_.steps; ++step) {
    for (int32_t j = 0; j < count; ++j) {
      uint32_t word;
      std::memcpy(&word,
                  source[static_cast<size_t>(j)] + step * kPageTokens * 4, 4);
      std::memcpy(to + (step * kPageTokens + j) * 4, &word, 4);
    }
  }
}

// As FillPage, from bf16 pages to one of 8 bits.
void Cut::RoundPage(const HeadPages& from,
                    const int32_t* positions,
                    int32_t count,
                    unsigned char* to) const {
  const AttentionKernels& kernels = KernelsOf(context_.level);
  const HeadLayout layout = Unrotated(layout_);
  for (int32_t j = 0; j < count; ++j) {
    const int32_t p = positions[j];
    unsigned char* block = BlockOf(from, p / kPageTokens);
    const int32_t slot = p % kPageTokens;
    std::array<float, kMaxByteRow> k;
    std::array<float, kMaxByteRow> v;
    for (int64_t c = 0; c < layout_.d; c += 2) {
      std::array<Bf16, 2> pair;
      std::memcpy(pair.data(), block + (c / 2 * kPageTokens + slot) * 4, 4);
      for (size_t i = 0; i < 2; ++i) {
        k[static_cast<size_t>(c) + i] = Bf16ToFloat(pair[i]);
      }
      std::memcpy(pair.data(),
                  block + from_layout_.v_offset + (slot * layout_.d + c) * 2,
                  4);
      for (size_t i = 0; i < 2; ++i) {
        v[static_cast<size_t>(c) + i] = Bf16ToFloat(pair[i]);
      }
    }
    kernels.append({&layout, k.data(), v.data(), nullptr, to, j,
                    PositionsOf(from_layout_, block)[slot]});
    ScoresOf(layout_, to)[j] = ScoreOf(from, p);
  }
}

absl::Status Cut::Run() {
  const AttentionShape& shape = args_.shape;
  KF_CHECK(tokens_ >= 1 && args_.budget >= 1 && !args_.layers.empty());
  KF_CHECK(args_.recent >= 0 && args_.recent <= args_.budget);
  for (const CompactLayer& layer : args_.layers) {
    KF_CHECK(std::ssize(layer.from.pages) >= PagesFor(tokens_));
    KF_CHECK(std::ssize(layer.to.pages) >= PagesFor(kept_));
  }
  context_.scratch.Reset();
  std::vector<Worker> workers;
  for (int i = 0; i < (args_.shared ? 1 : context_.pool.threads()); ++i) {
    KF_ASSIGN_OR_RETURN(workers.emplace_back(), NewWorker());
  }
  const int32_t* shared = nullptr;
  if (args_.shared) {
    KF_ASSIGN_OR_RETURN(shared, ChooseShared(workers[0]));
  }
  const int64_t heads = std::ssize(args_.layers) * shape.kv_heads;
  context_.pool.ParallelFor(heads, [&](int64_t i, int worker) {
    const CompactLayer& layer =
        args_.layers[static_cast<size_t>(i / shape.kv_heads)];
    const auto head = static_cast<int32_t>(i % shape.kv_heads);
    const HeadPages from = MakeHeadPages(from_shape_, layer.from, head);
    const HeadPages to = MakeHeadPages(shape, layer.to, head);
    const int32_t* chosen = shared;
    if (chosen == nullptr) {
      const Worker& memory = workers[static_cast<size_t>(worker)];
      Choose([&](int32_t p) { return ScoreOf(from, p); }, memory);
      chosen = memory.kept;
    }
    for (int32_t slot = 0; slot < kept_; slot += kPageTokens) {
      const int32_t count = std::min(kPageTokens, kept_ - slot);
      unsigned char* page = BlockOf(to, slot / kPageTokens);
      if (from_layout_.bf16 && layout_.bytes) {
        RoundPage(from, chosen + slot, count, page);
      } else {
        FillPage(from, chosen + slot, count, page);
      }
    }
    layer.free_slot[head] = kept_;
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status Compact(AttentionContext& context, const CompactArgs& args) {
  return Cut(context, args).Run();
}

}  // namespace kf::cpu
