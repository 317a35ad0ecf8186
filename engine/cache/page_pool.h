// The KV pool: one buffer cut into pages of 16 token slots of one layer, the
// list of the free ones, and how many owners each of the others has.
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

  // `count` page numbers, of one owner each; at most free_pages() (admission
  // has counted them).
  std::vector<int32_t> Take(int32_t count);
  // One more owner for each of these pages, which have one already.
  void Share(std::span<const int32_t> pages);
  // One owner fewer for each; without any a page is free again.
  void Give(std::span<const int32_t> pages);
  // 0: free.
  int32_t owners(int32_t page) const {
    return owners_[static_cast<size_t>(page)];
  }

 private:
  PagePool(std::unique_ptr<Buffer> buffer, int32_t pages);

  std::unique_ptr<Buffer> buffer_;
  std::byte* base_;
  int32_t total_;
  std::vector<int32_t> free_;    // a stack; the lowest numbers on top at first
  std::vector<int32_t> owners_;  // [total]
};

}  // namespace kf::engine
