#include "engine/cache/page_pool.h"

#include <utility>

#include "kernels/core/status.h"

namespace kf::engine {

absl::StatusOr<std::unique_ptr<PagePool>> PagePool::Create(
    Backend& backend, size_t page_bytes, int32_t pages, std::string_view what) {
  KF_CHECK(pages >= 1);
  KF_ASSIGN_OR_RETURN(
      auto buffer,
      backend.Allocate(page_bytes * static_cast<size_t>(pages), what));
  return std::unique_ptr<PagePool>(new PagePool(std::move(buffer), pages));
}

PagePool::PagePool(std::unique_ptr<Buffer> buffer, int32_t pages)
    : buffer_(std::move(buffer)),
      base_(buffer_->data()),
      total_(pages),
      owners_(static_cast<size_t>(pages), 0) {
  free_.reserve(static_cast<size_t>(pages));
  for (int32_t page = pages - 1; page >= 0; --page) free_.push_back(page);
}

std::vector<int32_t> PagePool::Take(int32_t count) {
  KF_CHECK(count >= 0 && count <= free_pages());
  std::vector<int32_t> pages;
  pages.reserve(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) {
    pages.push_back(free_.back());
    free_.pop_back();
    owners_[static_cast<size_t>(pages.back())] = 1;
  }
  return pages;
}

void PagePool::Share(std::span<const int32_t> pages) {
  for (const int32_t page : pages) {
    KF_CHECK(page >= 0 && page < total_ && owners(page) > 0);
    ++owners_[static_cast<size_t>(page)];
  }
}

void PagePool::Give(std::span<const int32_t> pages) {
  for (const int32_t page : pages) {
    KF_CHECK(page >= 0 && page < total_ && owners(page) > 0);
    if (--owners_[static_cast<size_t>(page)] == 0) free_.push_back(page);
  }
}

}  // namespace kf::engine
