// Drives a backend's attention as the engine does: prompt slices, compaction,
// decode steps, several sequences in one call. Test support.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/thread_pool.h"

namespace kf::testing {

// ThreadSanitizer slows the kernels more than ten times. A test that repeats
// the same code over a long table then takes a part of it, and says which.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
// AddressSanitizer slows them three times: the longest table alone is cut.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitizer = true;
#else
inline constexpr bool kSanitizer = false;
#endif

// One backend per SIMD level of this machine; `threads` as BackendOptions.
std::vector<std::string> SimdLevelNames();
std::unique_ptr<Backend> MakeCpu(const std::string& simd, int threads = 2);

// The levels, and "reference".
std::vector<std::string> BackendNames();
std::unique_ptr<Backend> MakeBackend(const std::string& name);

// The score of a slot, wherever the backend keeps it.
float& ScoreOf(const Backend& backend,
               const AttentionShape& shape,
               const PageSpan& pages,
               int32_t head,
               int32_t slot);

struct SequenceOptions {
  AttentionShape shape;
  int32_t prompt = 1;  // n
  int32_t budget = 1;  // k
  int32_t recent = 0;  // w
  int32_t layer = 0;
  ScoreOptions score;  // of the prompt
  int32_t score_first_row = 0;
  float decode_tau = 1.25F;
  bool add_scores = true;
  int32_t max_steps = 0;
  uint32_t data_seed = 1;
  float outliers = 1.0F;  // factor of a few channels of some tokens
  float query_scale = 1.0F;
  bool shared = false;  // one set for all heads; needs `defer`
  bool age = false;
  float score_factor = 1.0F;
  // The cache takes the prompt's pages; of 8 bits, it has all of the prompt
  // first.
  bool in_place = false;
  bool rank_positions = false;
  bool defer = false;      // Step evicts in a call of its own
  bool quest = false;      // budget >= prompt + max_steps, nothing scored
  int32_t read_pages = 0;  // of quest
  // Row [Q | K | V] of a position; none: random ones.
  std::function<std::vector<float>(int32_t position)> rows;
};

// Two kv heads of four, d 16, bf16, Gumbel noise; room for 100 steps.
SequenceOptions SmallOptions(int32_t prompt, int32_t budget, int32_t recent);

// What a sequence gave.
struct Trace {
  std::vector<float> prompt_out;
  std::vector<std::vector<float>> step_out;
  std::vector<std::vector<HeldTokens>> held;  // after the prompt, each step
};

// One layer of one sequence. Its qkv rows depend on its options and the
// position alone; all memory starts as NaN, and its pages are scattered over
// the pool.
class Sequence {
 public:
  Sequence(Backend& backend, const SequenceOptions& options);

  // Runs prompt rows [done, done + rows) of each sequence in one call.
  static void Prefill(std::span<Sequence* const> batch, int32_t rows);
  void PrefillAll(int32_t slice);
  void Compact();
  // Layers of one sequence, in one call.
  static void Compact(std::span<Sequence* const> layers);
  // Feeds the next token of each sequence in one call; those that defer it
  // evict in calls of their own.
  static void Step(std::span<Sequence* const> batch);
  void StepAlone();
  // The parts of Step: layers of one sequence are attended one by one, then
  // evict in one call.
  // `tokens` > 1: so many of each, in one call, as a replay does.
  static void Attend(std::span<Sequence* const> batch, int32_t tokens = 1);
  static void Evict(std::span<Sequence* const> layers);

  std::vector<HeldTokens> Held();
  const Trace& trace() const { return trace_; }
  const std::vector<float>& prompt_out() const { return trace_.prompt_out; }
  const std::vector<std::vector<float>>& step_out() const {
    return trace_.step_out;
  }

  const SequenceOptions& options() const { return options_; }
  int32_t seen() const { return seen_; }
  int32_t held() const { return held_; }
  // Of shape.prompt(): where the cache is of 8 bits, of a pool of their own.
  PageSpan prompt_pages() {
    Buffer& pool = prompt_pool_ != nullptr ? *prompt_pool_ : *pool_;
    return {pool.data(), prompt_list_};
  }
  PageSpan cache_pages() { return {pool_->data(), cache_list_}; }
  std::span<const std::byte> pool() const {
    return {pool_->data(), pool_->bytes()};
  }
  int32_t* free_slot() { return free_slot_->as<int32_t>(); }

  // The unrotated row [Q | K | V] of a position.
  std::vector<float> RowAt(int32_t position) const;

 private:
  static Backend& BackendOf(std::span<Sequence* const> batch) {
    return batch.front()->backend_;
  }

  Backend& backend_;
  SequenceOptions options_;
  ScoreAge Age(int32_t decode_rows) const;
  PageSpan bound_pages() { return {pool_->data(), bound_list_}; }

  std::unique_ptr<Buffer> pool_;
  std::unique_ptr<Buffer> prompt_pool_;  // or null
  std::unique_ptr<Buffer> free_slot_;
  std::vector<int32_t> prompt_list_;
  std::vector<int32_t> cache_list_;
  std::vector<int32_t> bound_list_;  // quest
  int32_t seen_ = 0;
  int32_t held_ = 0;
  Trace trace_;
};

// A prompt in slices of at most `slice` rows, then max_steps steps.
Trace RunAlone(Backend& backend, const SequenceOptions& options, int32_t slice);

// A buffer filled with NaN of every type.
std::unique_ptr<Buffer> NanBuffer(Backend& backend, size_t bytes);

}  // namespace kf::testing
