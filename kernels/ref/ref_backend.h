// The plain twin of every operation of kernels/backend.h: one thread, scalar
// code, sums in double. Fast back ends are checked against it, and the engine's
// tests run on it. Not for serving.
//
// bf16 means the same here as elsewhere: a kBF16 linear rounds its weights and
// its activations, a kBF16 cache rounds K, V and the rotated query, and all
// sums stay wide.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/backend.h"

namespace kf {

// Faults of the paper's released code (docs/keyformer.md, Known traps) that one
// sequence can show. Tests put one in and must then fail.
enum class Trap : uint8_t {
  kNone,
  // A mask one column too wide: the token that leaves the recent window is
  // dropped before it can compete, in the prompt and in every step.
  kDropLeavingWindow,
  // The key tokens chosen at the prompt are never replaced.
  kFrozenKeys,
  // recent == 0 evicts nothing.
  kRecentZeroOff,
  // Scores are rounded to bf16 after each addition: small ones vanish.
  kBf16Scores,
};

std::unique_ptr<Backend> CreateReferenceBackend(Trap trap = Trap::kNone);

}  // namespace kf
