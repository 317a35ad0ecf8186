// From a head size to the kernel that is compiled for it. Host code.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/core/status.h"
#include "kernels/cuda/page_layout.h"

namespace kf::cuda {

// Calls f(std::integral_constant<int, padded_dim>), of kHeadDims.
template <typename F>
void WithHeadDim(int32_t padded_dim, const F& f) {
  switch (padded_dim) {
    case 16:
      return f(std::integral_constant<int, 16>{});
    case 32:
      return f(std::integral_constant<int, 32>{});
    case 64:
      return f(std::integral_constant<int, 64>{});
    case 80:
      return f(std::integral_constant<int, 80>{});
    case 96:
      return f(std::integral_constant<int, 96>{});
    case 128:
      return f(std::integral_constant<int, 128>{});
    case 256:
      return f(std::integral_constant<int, 256>{});
    default:
      KF_CHECK(false);  // PaddedHeadDim gives no other
  }
}

}  // namespace kf::cuda
