// One cache in two forms, the reference backend's and the CUDA backend's, with
// the same tokens in the same slots of the same pages. An operation runs on
// both; then their contents are compared slot by slot. All that no token was
// put into is NaN. Test support.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/page_layout.h"
#include "tests/cuda/device_array.h"

namespace kf::cuda {

struct Token {
  std::vector<float> k;  // [d], as the cache holds it
  std::vector<float> v;
  int32_t position = 0;
  float score = 0.0F;
};

class CacheTwin {
 public:
  // Lists of its pages are drawn at random.
  CacheTwin(const AttentionShape& shape, int32_t pool_pages, uint32_t seed);

  const AttentionShape& shape() const { return shape_; }
  const PageLayout& layout() const { return layout_; }

  // `count` pages that nobody has, in no order.
  std::vector<int32_t> TakePages(int32_t count);

  // A token of random K and V, some of them twenty times larger, if `outliers`.
  Token RandomToken(int32_t position, float score, bool outliers = false);
  void Put(std::span<const int32_t> pages,
           int32_t head,
           int32_t slot,
           const Token& token);
  // Puts random tokens of positions 0 .. tokens - 1 into slots of these.
  void PutPrompt(std::span<const int32_t> pages,
                 int32_t tokens,
                 const std::vector<float>& scores);

  // What was put goes to the device; call it before an operation runs there.
  void Upload();
  // Brings the device's form back; call it before Got.
  void Download();

  Token Want(std::span<const int32_t> pages, int32_t head, int32_t slot);
  Token Got(std::span<const int32_t> pages, int32_t head, int32_t slot) const;
  // Both forms hold the same in slots [0, slots) of all heads: K, V and
  // positions bit for bit, scores within `tolerance` of the reference's, plus
  // one.
  void ExpectSame(std::span<const int32_t> pages,
                  int32_t slots,
                  float tolerance,
                  const std::string& what);

  PageSpan Reference(std::span<const int32_t> pages) {
    return {ref_.data(), pages};
  }
  // The list is copied to the device and lives as long as the twin.
  PageList Device(std::span<const int32_t> pages);

  std::mt19937& random() { return random_; }
  float Normal();

 private:
  unsigned char* ImageAt(std::span<const int32_t> pages,
                         int32_t head,
                         int32_t slot);
  float LoadElement(const unsigned char* from, int32_t channel) const;
  void StoreElement(unsigned char* to, int32_t channel, float x) const;

  AttentionShape shape_;
  PageLayout layout_;
  std::mt19937 random_;
  std::vector<int32_t> unused_;
  std::vector<std::byte> ref_;
  std::vector<unsigned char> image_;  // of device memory
  gpu::DeviceArray<unsigned char> device_;
  std::deque<gpu::DeviceArray<int32_t>> lists_;
};

// Memory of an operation on the device, and the reference's own copy: `T`s that
// start equal.
template <typename T>
struct TwinArray {
  explicit TwinArray(std::vector<T> values)
      : host(std::move(values)), device(host) {}
  std::vector<T> host;
  gpu::DeviceArray<T> device;
};

// |got - want| <= tolerance (1 + |want|); NaN never passes.
void ExpectClose(const std::vector<float>& got,
                 const std::vector<float>& want,
                 float tolerance,
                 const std::string& what);

// The device did its work; else the test fails with the fault's text.
void ExpectNoFault(const std::string& what);

}  // namespace kf::cuda
