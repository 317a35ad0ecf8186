// A decoder over a tiny model, driven directly: one
// prompt, one step at a time, with a look into the caches after each.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/cache/page_pool.h"
#include "engine/cache/request_sizes.h"
#include "engine/cache/sequence_cache.h"
#include "engine/model/decoder.h"
#include "engine/request.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/tiny_model.h"

namespace kf::engine {

// One sequence, or one beam of several, between Prompt and the end of the rig.
struct RigSequence {
  Request request;
  RequestSizes sizes;
  SequenceCache cache;
};

// Errors fail the test.
class DecoderRig {
 public:
  // `backend`: a name of BackendOptions.
  DecoderRig(const testing::TinyModelSpec& spec, const std::string& backend);
  ~DecoderRig();

  int32_t layers() const { return spec_.layers; }
  int32_t kv_heads() const { return spec_.kv_heads; }
  int64_t free_pages() const { return pool_->free_pages(); }

  // Sizes, pages, and the whole prompt, in slices of 32 rows.
  std::unique_ptr<RigSequence> Prompt(Request request);
  // A copy with its own pages and free slots; or, as `beam`, with the same free
  // slots.
  std::unique_ptr<RigSequence> Fork(const RigSequence& from, bool beam);
  // Sequence i feeds tokens[i]. Returns each one's logits.
  std::vector<std::vector<float>> Step(std::span<RigSequence* const> sequences,
                                       std::span<const int32_t> tokens);
  CacheState Held(const RigSequence& sequence);

 private:
  ScoreOptions Score(const RigSequence& sequence) const;
  int32_t* NewFreeSlots();

  testing::TempDir dir_;
  const testing::TinyModelSpec spec_;
  std::unique_ptr<GgufFile> file_;
  ModelConfig config_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<PagePool> pool_;
  std::vector<std::unique_ptr<Buffer>> free_slots_;
};

}  // namespace kf::engine
