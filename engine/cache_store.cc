#include "engine/cache_store.h"

#include <utility>

#include "engine/cache/cache_plan.h"
#include "engine/cache/page_sharing.h"
#include "kernels/core/status.h"

namespace kf::engine {

size_t CacheStore::Bytes(const ModelConfig& config, int32_t max_batch) {
  return static_cast<size_t>(max_batch) * static_cast<size_t>(config.layers) *
         static_cast<size_t>(config.kv_heads) * sizeof(int32_t);
}

absl::StatusOr<std::unique_ptr<CacheStore>> CacheStore::Create(
    const ModelConfig& config,
    const AttentionShape& shape,
    int32_t max_batch,
    Backend& backend,
    PagePool& pool) {
  KF_ASSIGN_OR_RETURN(auto free_slots,
                      backend.Allocate(Bytes(config, max_batch), "free slots"));
  return std::unique_ptr<CacheStore>(new CacheStore(
      config, shape, max_batch, backend, pool, std::move(free_slots)));
}

CacheStore::CacheStore(const ModelConfig& config,
                       const AttentionShape& shape,
                       int32_t max_batch,
                       Backend& backend,
                       PagePool& pool,
                       std::unique_ptr<Buffer> free_slots)
    : config_(config),
      shape_(shape),
      backend_(backend),
      pool_(pool),
      free_slots_(std::move(free_slots)) {
  for (int32_t slot = max_batch - 1; slot >= 0; --slot) {
    unused_slots_.push_back(slot);
  }
}

void CacheStore::TakeSlots(Sequence& s) {
  KF_CHECK(!unused_slots_.empty());
  s.slot = unused_slots_.back();
  unused_slots_.pop_back();
  s.cache.free_slots = free_slots_->as<int32_t>() +
                       int64_t{s.slot} * config_.layers * config_.kv_heads;
}

void CacheStore::Open(SequenceGroup& group) {
  Sequence& s = group.first();
  TakeSlots(s);
  SequenceCache& cache = s.cache;
  cache.base = pool_.base();
  cache.kv_heads = config_.kv_heads;
  cache.prompt_tokens = group.sizes.prompt_tokens;
  cache.rules = group.sizes.rules;
  if (!group.sizes.grows) {
    TakePages(group.sizes, config_.layers, pool_, cache);
    return;
  }
  const auto layers = static_cast<size_t>(config_.layers);
  cache.pages.resize(layers);
  cache.bound_pages.resize(layers);
  GrowPages(group.sizes.prompt_tokens + 1, pool_, cache);
}

// slots_ = where each (layer, head) of the cache takes its next token.
absl::Status CacheStore::ReadSlots(const SequenceCache& cache) {
  slots_.resize(static_cast<size_t>(config_.layers) *
                static_cast<size_t>(config_.kv_heads));
  return backend_.Download(
      std::as_writable_bytes(std::span(slots_)),
      reinterpret_cast<const std::byte*>(cache.free_slots));
}

absl::Status CacheStore::Fork(SequenceGroup& group) {
  const SequenceCache& from = group.first().cache;
  if (!group.sizes.grows) {
    ReturnPromptPages(group.sizes, pool_, group.first().cache);
  }
  if (group.live() == 1) return absl::OkStatus();
  copies_.clear();
  KF_RETURN_IF_ERROR(ReadSlots(from));
  for (const auto& s : group.sequences) {
    // When the prompt is replayed, some may have ended.
    if (s->finished || s.get() == &group.first()) continue;
    s->cache = from;
    s->cache.pages.clear();
    s->cache.bound_pages.clear();
    if (group.beams != nullptr) {  // one kept set, in the same slots
      SharePages(from, pool_, s->cache);
      continue;
    }
    TakeSlots(*s);
    KF_RETURN_IF_ERROR(
        backend_.Upload(reinterpret_cast<std::byte*>(s->cache.free_slots),
                        std::as_bytes(std::span(slots_))));
    if (group.sizes.shares_prompt) {
      SharePages(from, pool_, s->cache);
    } else {
      // Scores are added, and tokens evicted, in every page.
      ClonePages(from, pool_, s->cache, copies_);
    }
  }
  return Copy();
}

void CacheStore::Reorder(SequenceGroup& group) {
  // Lists of pages whose owners are the sequences.
  std::vector<SequenceCache> before;
  for (const auto& s : group.sequences) before.push_back(s->cache);
  for (size_t i = 0; i < before.size(); ++i) {
    Sequence& s = *group.sequences[i];
    s.cache.pages.clear();
    s.cache.bound_pages.clear();
    SharePages(before[group.beams->parent(i)], pool_, s.cache);
  }
  for (SequenceCache& cache : before) GivePages(pool_, cache);
}

absl::Status CacheStore::PrepareStep(std::span<Sequence* const> sequences,
                                     int32_t tokens) {
  // Of a step that failed half-way: the pages may have other owners by now.
  copies_.clear();
  for (Sequence* s : sequences) {
    SequenceGroup& group = s->group;
    if (group.beams != nullptr) {
      if (s == &group.first()) KF_RETURN_IF_ERROR(PrepareBeams(group));
      continue;
    }
    // What writes here next: room for it, and nobody else's.
    if (group.sizes.grows) GrowPages(s->cache.seen() + tokens, pool_, s->cache);
    if (group.sizes.shares_prompt) {
      // Nothing is evicted: a token's slot is its position. The pages of later
      // tokens of a replay are new.
      for (int32_t layer = 0; layer < config_.layers; ++layer) {
        OwnPageOf(s->cache.seen(), layer, pool_, s->cache, copies_);
      }
    }
  }
  return Copy();
}

// Each head has a free slot of its own, and each may be in another page.
absl::Status CacheStore::PrepareBeams(SequenceGroup& group) {
  KF_RETURN_IF_ERROR(ReadSlots(group.first().cache));
  for (const auto& s : group.sequences) {
    for (size_t i = 0; i < slots_.size(); ++i) {
      OwnPageOf(slots_[i], static_cast<int32_t>(i) / config_.kv_heads, pool_,
                s->cache, copies_);
    }
  }
  return absl::OkStatus();
}

absl::Status CacheStore::Copy() {
  if (copies_.empty()) return absl::OkStatus();
  absl::Status status = backend_.CopyPages(shape_, pool_.base(), copies_);
  copies_.clear();
  return status;
}

void CacheStore::Close(Sequence& s) {
  GivePages(pool_, s.cache);
  if (s.slot >= 0) unused_slots_.push_back(s.slot);
  s.slot = -1;
}

}  // namespace kf::engine
