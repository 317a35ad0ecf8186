// What decode attention keeps about one sequence during a step.
#pragma once

#include <atomic>
#include <cstdint>

namespace kf::cpu {

// Memory is the step's scratch memory.
struct DecodeRow {
  int32_t slots;  // that are read, of each head
  int32_t chunk_slots;
  int32_t chunks;
  int64_t first_item;          // of the work items
  const float* cos_sin;        // [rotary_dim], of the position
  const float* query_cos_sin;  // the same, or of the last rank
  // Quest, where not all pages are read: [kv_heads][read_pages], page numbers.
  int32_t read_pages;
  int32_t* pages;
  int32_t* ranks;     // rank positions: [kv_heads][slots]; else null
  float* partials;    // [kv_heads][chunks][group][partial]
  float* numerators;  // [query_heads][stride], if scored
  int64_t numerators_stride;
  std::atomic<int32_t>* open_chunks;  // [kv_heads]
};

}  // namespace kf::cpu
