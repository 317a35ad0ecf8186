#include "engine/sampling/logit_row.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/core/status.h"

namespace kf::engine {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr float kLeastExponent = -86.0F;  // 2^-126 is e^-87.3
constexpr float kLargestFloat = std::numeric_limits<float>::max();

// 16 bytes: what any x86-64 and any aarch64 has.
using VF = float __attribute__((vector_size(16)));
using VH = float __attribute__((vector_size(8)));
using VI = int32_t __attribute__((vector_size(16)));
using VU = uint32_t __attribute__((vector_size(16)));
using VD = double __attribute__((vector_size(16)));
constexpr size_t kFloats = 4;
constexpr size_t kChains = 4;  // independent sums: one would wait for itself

template <typename V, typename T>
V Load(const T* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}

// exp(x), x <= 0: x = n ln 2 + r, and 2^n times a polynomial of r, |r| <= 0.35
// (Cephes' expf). Exactly 1 at 0.
VF Exp(VF x) {
  constexpr float kShift = 0x1.8p23F;  // rounds to the nearest integer
  const VF shifted = x * 1.44269504F + kShift;
  const VF n = shifted - kShift;
  // ln 2 in two parts, the first with zeros at its end: n times it is exact.
  const VF r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  VF p = r * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = (p * (r * r) + r) + 1.0F;
  // n stands in the lowest bits of `shifted`; it goes to p's exponent. A NaN
  // (-inf over an infinite temperature) gives 0 too.
  // Unsigned: below kLeastExponent the sum wraps, and is not used.
  const VU bits =
      reinterpret_cast<VU>(p) + (reinterpret_cast<VU>(shifted) << 23);
  return x >= kLeastExponent ? reinterpret_cast<VF>(bits) : VF{};
}

// Up to four; what is missing counts as -inf.
VF LoadSome(const float* from, size_t count) {
  VF v = {kLowest, kLowest, kLowest, kLowest};
  for (size_t i = 0; i < count && i < kFloats; ++i) v[i] = from[i];
  return v;
}

// The sums of two and two, in double.
VD Widen(VF v) {
  const auto wide = [&v](size_t half) {
    return __builtin_convertvector(
        Load<VH>(reinterpret_cast<const char*>(&v) + half * sizeof(VH)), VD);
  };
  return wide(0) + wide(1);
}
double Total(const VD* sums) {
  const VD sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return sum[0] + sum[1];
}

struct BlockScan {
  float largest;
  bool bad;
};
// NaN fails every comparison, and +inf is above the largest float.
BlockScan ScanBlock(const float* x, size_t count) {
  constexpr VF kNone = {kLowest, kLowest, kLowest, kLowest};
  VF largest[kChains] = {kNone, kNone, kNone, kNone};
  VI good = {-1, -1, -1, -1};
  size_t i = 0;
  for (; i + kFloats * kChains <= count; i += kFloats * kChains) {
    for (size_t c = 0; c < kChains; ++c) {
      const VF v = Load<VF>(x + i + c * kFloats);
      largest[c] = v > largest[c] ? v : largest[c];
      good &= v <= kLargestFloat;
    }
  }
  BlockScan scan = {kLowest, false};
  for (; i < count; ++i) {
    scan.largest = std::max(scan.largest, x[i]);
    scan.bad = scan.bad || !(x[i] <= kLargestFloat);
  }
  for (size_t lane = 0; lane < kFloats; ++lane) {
    for (const VF& v : largest) scan.largest = std::max(scan.largest, v[lane]);
    scan.bad = scan.bad || good[lane] == 0;
  }
  return scan;
}

}  // namespace

LogitsScan ScanLogits(std::span<const float> logits) {
  constexpr size_t kBlock = 512;
  LogitsScan scan{.largest = kLowest, .best = 0, .bad = false};
  size_t best_block = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const BlockScan block = ScanBlock(logits.data() + begin,
                                      std::min(kBlock, logits.size() - begin));
    scan.bad = scan.bad || block.bad;
    if (block.largest > scan.largest) {
      scan.largest = block.largest;
      best_block = begin;
    }
  }
  scan.bad = scan.bad || scan.largest == kLowest;
  if (scan.bad) return scan;
  const auto best =
      std::find(logits.begin() + static_cast<std::ptrdiff_t>(best_block),
                logits.end(), scan.largest);
  scan.best = static_cast<TokenId>(best - logits.begin());
  return scan;
}

void Exponentials(std::span<const float> x,
                  float largest,
                  double scale,
                  std::span<float> out) {
  // Two factors where one float would not hold it.
  double first = std::clamp(scale, 1e-76, 1e76);
  double second = 1.0;
  if (first < 1e-30 || first > 1e30) first = second = std::sqrt(first);
  const auto a = static_cast<float>(first);
  const auto b = static_cast<float>(second);
  size_t i = 0;
  for (; i + kFloats <= x.size(); i += kFloats) {
    const VF e = Exp((Load<VF>(x.data() + i) - largest) * a * b);
    __builtin_memcpy(out.data() + i, &e, sizeof(e));
  }
  const VF rest = Exp((LoadSome(x.data() + i, x.size() - i) - largest) * a * b);
  for (size_t lane = 0; i + lane < x.size(); ++lane) out[i + lane] = rest[lane];
}

double SumOfExponentials(std::span<const float> x, float largest) {
  VD sums[kChains] = {};
  size_t i = 0;
  for (; i + kFloats * kChains <= x.size(); i += kFloats * kChains) {
    for (size_t c = 0; c < kChains; ++c) {
      sums[c] += Widen(Exp(Load<VF>(x.data() + i + c * kFloats) - largest));
    }
  }
  for (; i < x.size(); i += kFloats) {
    sums[0] += Widen(Exp(LoadSome(x.data() + i, x.size() - i) - largest));
  }
  return Total(sums);
}

double Sum(std::span<const float> x) {
  VD sums[kChains] = {};
  size_t i = 0;
  for (; i + kFloats * kChains <= x.size(); i += kFloats * kChains) {
    for (size_t c = 0; c < kChains; ++c) {
      sums[c] += Widen(Load<VF>(x.data() + i + c * kFloats));
    }
  }
  double sum = Total(sums);
  for (; i < x.size(); ++i) sum += static_cast<double>(x[i]);
  return sum;
}

uint32_t CountBetter(std::span<const float> logits, TokenId id) {
  KF_CHECK(id >= 0 && static_cast<size_t>(id) < logits.size());
  const auto place = static_cast<size_t>(id);
  const float own = logits[place];
  uint32_t better = 0;
  const auto count = [&](size_t begin, size_t end, const auto& before) {
    VI found = {};
    size_t i = begin;
    for (; i + kFloats <= end; i += kFloats) {
      found -= before(Load<VF>(logits.data() + i));
    }
    for (size_t lane = 0; lane < kFloats; ++lane) {
      better += static_cast<uint32_t>(found[lane]);
    }
    for (; i < end; ++i) {
      const VF one = {logits[i], logits[i], logits[i], logits[i]};
      better -= static_cast<uint32_t>(before(one)[0]);
    }
  };
  count(0, place, [own](VF v) { return v >= own; });
  count(place, logits.size(), [own](VF v) { return v > own; });
  return better;
}

std::vector<TokenId> SelectLargest(std::span<const float> logits,
                                   size_t count,
                                   std::vector<TokenId> room) {
  std::vector<TokenId> ids = std::move(room);
  ids.clear();
  if (count == 0) return ids;
  const auto better = [logits](TokenId a, TokenId b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  const auto worst_kept = static_cast<std::ptrdiff_t>(count - 1);
  // Cuts what has been gathered down to `count` each time that it has doubled.
  // Of equal logits a later id loses, so only a larger one can get in then.
  const size_t most = 2 * count + 64;
  bool cut = false;
  float floor = kLowest;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (cut && !(logits[i] > floor)) continue;
    ids.push_back(static_cast<TokenId>(i));
    if (ids.size() < most) continue;
    std::nth_element(ids.begin(), ids.begin() + worst_kept, ids.end(), better);
    ids.resize(count);
    cut = true;
    floor = logits[static_cast<size_t>(ids.back())];
  }
  if (ids.size() > count) {
    std::nth_element(ids.begin(), ids.begin() + worst_kept, ids.end(), better);
    ids.resize(count);
  }
  return ids;
}

}  // namespace kf::engine
