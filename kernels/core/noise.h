// Counter-based randomness, Keyformer's noise first: u is a function of its
// place alone, the same bits on every backend, batch, chunking and replay
// (docs/keyformer.md, Noise).
// Plain integer code that also compiles for devices.
//
// Source: Philox4x32-10 of Salmon et al., SC'11; lowbias32 by C. Wellons.
#pragma once

#include <cmath>
#include <cstdint>

namespace kf {

enum class NoiseKind : uint8_t { kNone, kConstant, kGumbel, kGaussian };

inline constexpr float kGumbelMean = 0.57721566490153286F;
inline constexpr float kGumbelStd = 1.28254983016186409F;  // pi / sqrt(6)
inline constexpr uint32_t kEveryQuery = 0xFFFFFFFFU;       // resample "once"

struct Philox4 {
  uint32_t word[4];
};

// Ten rounds; key = {k0, k1}, counter = {c0, c1, c2, c3}.
constexpr Philox4 Philox4x32(uint32_t c0,
                             uint32_t c1,
                             uint32_t c2,
                             uint32_t c3,
                             uint32_t k0,
                             uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53U} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57U} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return {{c0, c1, c2, c3}};
}

// lowbias32: a bijection of uint32.
constexpr uint32_t MixBits(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7FEB352DU;
  x = (x ^ (x >> 15)) * 0x846CA68BU;
  return x ^ (x >> 16);
}

// Strictly inside (0, 1), exact in fp32.
constexpr float UnitInterval(uint32_t bits) {
  return (static_cast<float>(bits >> 9) + 0.5F) * 0x1p-23F;
}

// The two words of one row (query position, layer, query head) of a request.
struct NoiseRow {
  uint32_t a;
  uint32_t b;
};

// `query` is the query's position, or kEveryQuery. `stream` is 0 in the prompt;
// in decode the index of the sequence inside its request. layer < 2^16.
constexpr NoiseRow MakeNoiseRow(uint64_t seed,
                                uint32_t query,
                                uint32_t layer,
                                uint32_t query_head,
                                uint32_t stream) {
  const Philox4 r = Philox4x32(query, (layer << 16) | query_head, stream, 0,
                               static_cast<uint32_t>(seed),
                               static_cast<uint32_t>(seed >> 32));
  return {r.word[0], r.word[1]};
}

// u of one key, and u2 (used by gaussian alone).
constexpr float NoiseU(NoiseRow row, uint32_t key) {
  return UnitInterval(MixBits(MixBits(key ^ row.a) + row.b));
}
constexpr float NoiseU2(NoiseRow row, uint32_t key) {
  return UnitInterval(MixBits(MixBits(key ^ row.b) + row.a));
}

// Keeps draws of tokens apart from cache noise of the same seed, whose fourth
// counter word is 0.
inline constexpr uint32_t kDrawTag = 0x5A3D1E01U;

// What a sequence draws its next token with (docs/sampling.md): [0, 1), 53
// bits. `step` tokens were generated before.
constexpr double DrawUniform(uint64_t seed, uint32_t step, uint32_t stream) {
  const Philox4 r =
      Philox4x32(step, stream, 0, kDrawTag, static_cast<uint32_t>(seed),
                 static_cast<uint32_t>(seed >> 32));
  const uint64_t bits = (uint64_t{r.word[0]} << 32) | r.word[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// zeta in double: the reference value; fast kernels stay within 1e-5 of it.
inline double NoiseZeta(NoiseKind kind, NoiseRow row, uint32_t key) {
  switch (kind) {
    case NoiseKind::kNone:
      return 0.0;
    case NoiseKind::kConstant:
      return 0.5772156649015329;
    case NoiseKind::kGumbel:
      return -std::log(-std::log(static_cast<double>(NoiseU(row, key))));
    case NoiseKind::kGaussian:
      return 0.5772156649015329 +
             1.2825498301618641 *
                 std::sqrt(-2.0 *
                           std::log(static_cast<double>(NoiseU(row, key)))) *
                 std::cos(6.283185307179586 *
                          static_cast<double>(NoiseU2(row, key)));
  }
  return 0.0;
}

}  // namespace kf
