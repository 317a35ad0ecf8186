#include "tests/cuda/cache_twin.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/core/bf16.h"
#include "kernels/core/status.h"
#include "kernels/cuda/gpu_api.h"
#include "kernels/ref/ref_page.h"

namespace kf::cuda {
namespace {

int32_t ElementBytes(const AttentionShape& shape) {
  return shape.cache_dtype == DType::kBF16 ? 2 : 4;
}

}  // namespace

CacheTwin::CacheTwin(const AttentionShape& shape,
                     int32_t pool_pages,
                     uint32_t seed)
    : shape_(shape),
      layout_(
          MakePageLayout(shape.kv_heads, shape.head_dim, ElementBytes(shape))),
      random_(seed),
      unused_(static_cast<size_t>(pool_pages)),
      ref_(static_cast<size_t>(pool_pages * shape.kv_heads) *
               ref::HeadBytes(shape),
           std::byte{0xFF}),
      image_(static_cast<size_t>(pool_pages * layout_.page_bytes), 0xFF),
      device_(image_) {
  std::iota(unused_.begin(), unused_.end(), 0);
  std::shuffle(unused_.begin(), unused_.end(), random_);
}

std::vector<int32_t> CacheTwin::TakePages(int32_t count) {
  KF_CHECK(count <= std::ssize(unused_));
  std::vector<int32_t> pages(unused_.end() - count, unused_.end());
  unused_.resize(unused_.size() - static_cast<size_t>(count));
  return pages;
}

float CacheTwin::Normal() { return std::normal_distribution<float>()(random_); }

Token CacheTwin::RandomToken(int32_t position, float score, bool outliers) {
  Token token;
  token.position = position;
  token.score = score;
  for (std::vector<float>* row : {&token.k, &token.v}) {
    for (int32_t c = 0; c < shape_.head_dim; ++c) {
      float x = Normal();
      if (outliers && random_() % 37 == 0) x *= 20.0F;
      row->push_back(ref::Stored(x, shape_.cache_dtype));
    }
  }
  return token;
}

unsigned char* CacheTwin::ImageAt(std::span<const int32_t> pages,
                                  int32_t head,
                                  int32_t slot) {
  const int32_t page = pages[static_cast<size_t>(slot / kSlots)];
  return image_.data() + page * layout_.page_bytes + head * layout_.head_bytes;
}

float CacheTwin::LoadElement(const unsigned char* from, int32_t channel) const {
  if (layout_.element_bytes == 2) {
    Bf16 x;
    std::memcpy(&x, from + int64_t{channel} * 2, sizeof x);
    return Bf16ToFloat(x);
  }
  float x;
  std::memcpy(&x, from + int64_t{channel} * 4, sizeof x);
  return x;
}

void CacheTwin::StoreElement(unsigned char* to,
                             int32_t channel,
                             float x) const {
  if (layout_.element_bytes == 2) {
    const Bf16 bits = FloatToBf16(x);
    std::memcpy(to + int64_t{channel} * 2, &bits, sizeof bits);
    return;
  }
  std::memcpy(to + int64_t{channel} * 4, &x, sizeof x);
}

void CacheTwin::Put(std::span<const int32_t> pages,
                    int32_t head,
                    int32_t slot,
                    const Token& token) {
  const ref::Slot at = ref::SlotAt(shape_, Reference(pages), head, slot);
  std::copy(token.k.begin(), token.k.end(), at.k);
  std::copy(token.v.begin(), token.v.end(), at.v);
  *at.position = token.position;
  *at.score = token.score;
  unsigned char* block = ImageAt(pages, head, slot);
  const int32_t s = slot % kSlots;
  const int64_t row = int64_t{s} * layout_.padded_dim * layout_.element_bytes;
  for (int32_t c = 0; c < layout_.padded_dim; ++c) {
    const auto i = static_cast<size_t>(c);
    const bool real = c < shape_.head_dim;
    StoreElement(block + row, c, real ? token.k[i] : 0.0F);
    StoreElement(block + layout_.v_offset + row, c, real ? token.v[i] : 0.0F);
  }
  std::memcpy(block + layout_.position_offset + 4 * s, &token.position, 4);
  std::memcpy(block + layout_.score_offset + 4 * s, &token.score, 4);
}

void CacheTwin::PutPrompt(std::span<const int32_t> pages,
                          int32_t tokens,
                          const std::vector<float>& scores) {
  size_t next = 0;
  for (int32_t head = 0; head < shape_.kv_heads; ++head) {
    for (int32_t p = 0; p < tokens; ++p) {
      Put(pages, head, p, RandomToken(p, scores[next++ % scores.size()]));
    }
  }
}

void CacheTwin::Upload() { device_.Upload(image_); }

void CacheTwin::Download() { image_ = device_.Download(); }

Token CacheTwin::Want(std::span<const int32_t> pages,
                      int32_t head,
                      int32_t slot) {
  const ref::Slot at = ref::SlotAt(shape_, Reference(pages), head, slot);
  return {{at.k, at.k + shape_.head_dim},
          {at.v, at.v + shape_.head_dim},
          *at.position,
          *at.score};
}

Token CacheTwin::Got(std::span<const int32_t> pages,
                     int32_t head,
                     int32_t slot) const {
  Token token;
  const unsigned char* block =
      const_cast<CacheTwin*>(this)->ImageAt(pages, head, slot);
  const int32_t s = slot % kSlots;
  const int64_t row = int64_t{s} * layout_.padded_dim * layout_.element_bytes;
  for (int32_t c = 0; c < shape_.head_dim; ++c) {
    token.k.push_back(LoadElement(block + row, c));
    token.v.push_back(LoadElement(block + layout_.v_offset + row, c));
  }
  for (int32_t c = shape_.head_dim; c < layout_.padded_dim; ++c) {
    EXPECT_EQ(LoadElement(block + row, c), 0.0F) << "padding of K";
    EXPECT_EQ(LoadElement(block + layout_.v_offset + row, c), 0.0F)
        << "padding of V";
  }
  std::memcpy(&token.position, block + layout_.position_offset + 4 * s, 4);
  std::memcpy(&token.score, block + layout_.score_offset + 4 * s, 4);
  return token;
}

void CacheTwin::ExpectSame(std::span<const int32_t> pages,
                           int32_t slots,
                           float tolerance,
                           const std::string& what) {
  for (int32_t head = 0; head < shape_.kv_heads; ++head) {
    for (int32_t slot = 0; slot < slots; ++slot) {
      const Token want = Want(pages, head, slot);
      const Token got = Got(pages, head, slot);
      const bool close = std::abs(got.score - want.score) <=
                             tolerance * (1.0F + std::abs(want.score)) ||
                         got.score == want.score;  // infinities, too
      const bool both_nan = std::isnan(want.score) && std::isnan(got.score);
      ASSERT_TRUE(got.position == want.position && got.k == want.k &&
                  got.v == want.v && (close || both_nan))
          << what << ": head " << head << ", slot " << slot << ": position "
          << got.position << ", want " << want.position << "; score "
          << got.score << ", want " << want.score << "; K "
          << (got.k == want.k ? "same" : "differs") << ", V "
          << (got.v == want.v ? "same" : "differs");
    }
  }
}

PageList CacheTwin::Device(std::span<const int32_t> pages) {
  lists_.emplace_back(std::vector<int32_t>(pages.begin(), pages.end()));
  return {device_.data(), lists_.back().data()};
}

void ExpectClose(const std::vector<float>& got,
                 const std::vector<float>& want,
                 float tolerance,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(std::abs(got[i] - want[i]) <=
                tolerance * (1.0F + std::abs(want[i])))
        << what << ": " << i << " is " << got[i] << ", want " << want[i];
  }
}

void ExpectNoFault(const std::string& what) {
  ASSERT_EQ(gpu::TakeError(), "") << what;
}

}  // namespace kf::cuda
