// The names of weight formats, as flags and clients have them.
#pragma once

#include "kernels/backend.h"

namespace kf {

constexpr const char* NameOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kBF16:
      return "bf16";
    case WeightFormat::kQ8:
      return "q8";
    case WeightFormat::kQ4:
      return "q4";
  }
  return "unknown";
}

}  // namespace kf
