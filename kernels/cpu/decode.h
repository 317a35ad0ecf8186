// One operation of decode attention: who does what, in which memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_layout.h"
#include "kernels/cpu/decode_row.h"
#include "kernels/cpu/for_each_ahead.h"

namespace kf::cpu {

class Decode {
 public:
  Decode(AttentionContext& context, const DecodeAttentionArgs& args)
      : context_(context),
        args_(args),
        shape_(args.shape),
        layout_(MakeHeadLayout(args.shape)),
        kernels_(KernelsOf(context.level)),
        group_(args.shape.query_heads / args.shape.kv_heads),
        partial_(kPartialHeader + layout_.padded_d) {}

  absl::Status Run();

 private:
  struct Worker {
    int64_t query = -1;  // row and head of q and words
    uint32_t* q;         // [group][query_words]
    NoiseWords* words;
    uint32_t* split;
    float* shares;  // [group][most chunks of a row]
    float* logits;  // [group][kMaxDecodeChunk]
    // Of a head whose chunks all are this thread's, of any row.
    float* partials;
    float* numerators;
    // Where a row needs them:
    uint64_t* keys;          // [most slots or pages of a row]
    unsigned char* rotated;  // K of a chunk
  };

  // What a head's chunks leave for its end.
  struct Results {
    float* partials;    // [chunks][group][partial]
    float* numerators;  // [group][stride], if scored
    bool shared;        // with other threads
  };

  template <typename T>
  absl::StatusOr<std::span<T>> TakeSpan(int64_t count);
  absl::Status Allocate();
  absl::Status AllocateRow(const DecodeAttentionItem& item, DecodeRow& row);
  absl::Status AllocateWorkers();
  void CheckRun(size_t row) const;
  void Prepare(size_t row, int32_t head, const Worker& worker);
  void Append(size_t row, int32_t head);
  void PackQueries(size_t row, int32_t head, uint32_t* q) const;
  void TakeQueries(size_t row, int32_t head, Worker& worker);
  HeadPages RotateChunk(size_t row,
                        int32_t head,
                        int32_t chunk,
                        const HeadPages& pages,
                        const Worker& worker);
  struct Place {
    size_t row;
    int32_t head;
    int32_t chunk;
  };
  Place PlaceOf(int64_t index) const;
  HeadPages PagesOf(const Place& place) const;
  int32_t SlotsOf(const Place& place) const;
  Results ResultsOf(const Place& place,
                    IndexRun run,
                    const Worker& worker) const;
  BlocksAhead AheadOf(int64_t next) const;
  void RunItem(int64_t index, IndexRun run, int64_t next, Worker& worker);
  void RunChunk(const Place& place,
                const Results& results,
                const BlocksAhead& ahead,
                Worker& worker);
  void Combine(const Place& place,
               const Results& results,
               const BlocksAhead& ahead,
               const Worker& worker);

  const float* QkvOf(size_t row) const {
    return args_.qkv + static_cast<int64_t>(row) * shape_.qkv_dim();
  }
  static bool Scored(const DecodeAttentionItem& item) {
    return item.score.enabled && item.add_scores;
  }
  static bool Quest(const DecodeAttentionItem& item) {
    return !item.bounds.pages.empty();
  }
  bool Continued(size_t row) const {
    return row + 1 < args_.items.size() && args_.items[row + 1].continues;
  }
  bool InRun(size_t row) const {
    return args_.items[row].continues || Continued(row);
  }
  // Before the first chunk runs, the token must be in its page.
  bool Prepared(size_t row) const {
    const DecodeAttentionItem& item = args_.items[row];
    return Quest(item) || item.rank_positions || InRun(row);
  }
  int32_t SlotOf(size_t row, int32_t head) const {
    const DecodeAttentionItem& item = args_.items[row];
    return InRun(row) ? item.held : item.free_slot[head];
  }

  AttentionContext& context_;
  const DecodeAttentionArgs& args_;
  const AttentionShape& shape_;
  const HeadLayout layout_;
  const AttentionKernels& kernels_;
  const int32_t group_;
  const int64_t partial_;             // floats of one head's partial result
  const float* rotations_ = nullptr;  // by rank, where a row needs them
  // Of the scratch memory: a step allocates nothing.
  std::span<size_t> prepared_;  // rows
  std::span<size_t> runs_;      // the first of each run of these
  std::span<DecodeRow> rows_;   // [items]
  std::span<Worker> workers_;   // [threads]
};

}  // namespace kf::cpu
