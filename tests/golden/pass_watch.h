// A backend in front of another one that looks at what every pass of every
// layer leaves in the caches (docs/keyformer.md, Identities 7 and 8):
//  - each head holds min(k, seen) tokens, positions unique, what is new among
//    them and the last w too;
//  - the columns of one decode step's noisy softmax add up to H/G per kv head.
//
// To see a step's columns before a token leaves, it lets no step evict: it
// defers, looks, and calls Evict. Equal bits with and without the watch are
// therefore a check of the two ways to evict. Host memory only.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/engine/core/hook_backend.h"

namespace kf::testing {

// What was seen; read it when the engine is idle.
struct PassCounts {
  int64_t prompts = 0;  // layers of prompts cut
  int64_t columns = 0;  // heads of decode steps whose columns were added up
  int64_t evicted = 0;  // heads of decode steps that lost a token
  std::vector<std::string> violations;  // the first few
};

class PassWatch final : public engine::HookBackend {
 public:
  // `counts` outlives the backend.
  PassWatch(std::unique_ptr<Backend> inner, PassCounts& counts)
      : HookBackend(std::move(inner), {}), counts_(counts) {}

  absl::Status Compact(const CompactArgs& args) override;
  absl::Status DecodeAttention(const DecodeAttentionArgs& args) override;
  absl::Status Evict(const EvictArgs& args) override;

 private:
  using Heads = std::vector<HeldTokens>;

  // Slots {0 .. held} less `free_slot`'s; null: all of them.
  Heads Read(const AttentionShape& shape,
             const PageSpan& cache,
             int32_t held,
             const int32_t* free_slot);
  void CheckColumns(const DecodeAttentionArgs& args,
                    const DecodeAttentionItem& item,
                    const Heads& before);
  void CheckHeld(const Heads& heads,
                 int32_t held,
                 int32_t seen,
                 int32_t recent);
  void Violate(std::string what);

  PassCounts& counts_;
};

}  // namespace kf::testing
