// The KV pool: one buffer cut into pages of 16 token slots of one layer, and
// the list of the free ones.
//
// Pages are all alike, so there is no fragmentation: any free page will do.
// Thread-compatible: driven by the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace kf::engine {

class PagePool {
 public:
  // kResourceExhausted names `what` and the size. pages >= 1.
  static absl::StatusOr<std::unique_ptr<PagePool>> Create(
      Backend& backend,
      size_t page_bytes,
      int32_t pages,
      std::string_view what);

  int32_t total() const { return total_; }
  int32_t free_pages() const { return static_cast<int32_t>(free_.size()); }
  std::byte* base() const { return base_; }

  // `count` page numbers; at most free_pages() (admission has counted them).
  std::vector<int32_t> Take(int32_t count);
  // Pages that Take gave out, each once.
  void Give(std::span<const int32_t> pages);

 private:
  PagePool(std::unique_ptr<Buffer> buffer, int32_t pages);

  std::unique_ptr<Buffer> buffer_;
  std::byte* base_;
  int32_t total_;
  std::vector<int32_t> free_;  // a stack; the lowest numbers on top at first
  std::vector<bool> taken_;    // [total]
};

}  // namespace kf::engine
