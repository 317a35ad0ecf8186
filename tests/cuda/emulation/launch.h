// Starting a kernel: its arguments are copied, as a real launch does.
#pragma once

#include <cstddef>
#include <tuple>
#include <utility>

#include "tests/cuda/emulation/machine.h"
#include "tests/cuda/emulation/runtime_api.h"

namespace kf::emu {

// A grid that knows where its launch stands.
struct Grid {
  dim3 dim;
  Site site;
  // NOLINTNEXTLINE(google-explicit-constructor): stands for dim3
  Grid(dim3 dim_, KF_EMU_HERE) : dim(dim_), site(here) {}
  template <typename Int>
  // NOLINTNEXTLINE(google-explicit-constructor): stands for dim3
  Grid(Int x, KF_EMU_HERE) : dim(static_cast<unsigned>(x)), site(here) {}
};

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  Site site;
};

// Runs all blocks; `call(arguments)` is one thread's work. Returns the fault,
// or nothing.
std::string RunGrid(const LaunchShape& shape,
                    void (*call)(void*),
                    void* arguments,
                    size_t argument_bytes);

template <typename... P, typename... A>
void Launch(cudaStream_t stream,
            Grid grid,
            dim3 block_dim,
            size_t shared_bytes,
            void (*kernel)(P...),
            A&&... args) {
  struct Call {
    void (*kernel)(P...);
    std::tuple<P...> arguments;
  };
  const LaunchShape shape{grid.dim, block_dim, shared_bytes, grid.site};
  Enqueue(stream, [shape, call = Call{kernel, {static_cast<P>(args)...}}] {
    Call copy = call;
    return RunGrid(
        shape,
        [](void* p) {
          Call& c = *static_cast<Call*>(p);
          std::apply(c.kernel, c.arguments);
        },
        &copy, sizeof copy);
  });
}

}  // namespace kf::emu
