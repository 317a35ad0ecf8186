// A libcublasLt.so for tests: host arithmetic over the emulator's device
// memory, algorithms that keep or break the promises we ask of them, and a
// record of all that it was asked.
//
// The test opens the file first, sets the control up, and gives the same file
// to the code under test, which then gets the same instance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/cuda/cublaslt_api.h"

namespace kf::testing {

// How an algorithm sums an output's products.
enum class FakeOrder {
  kForward,
  kBackward,  // other bits than kForward
  kByRows,    // forward up to 16 rows, backward above
  kByPlace,   // backward in odd places
};

struct FakeAlgorithm {
  int32_t id = 0;
  FakeOrder order = FakeOrder::kForward;
  int32_t split_k = 1;         // as the heuristic offers it
  bool fixed_split_k = false;  // it cannot be set
  size_t workspace_bytes = 0;
  int64_t most_rows = INT64_MAX;  // refuses more
};

struct FakeQuery {  // of the heuristic
  int64_t rows = 0, in = 0, out = 0;
  uint64_t workspace_bytes = 0;
  uint32_t reductions = 0;
  uint32_t alignment[4] = {};  // A, B, C, D
};

struct FakeProduct {
  int32_t id = 0;
  int32_t split_k = 0;
  uint32_t reduction = 0;
  int64_t rows = 0, in = 0, out = 0;
  float beta = 0.0F;
  bool in_place = false;  // C is D
  size_t workspace_bytes = 0;
};

struct FakeControl {
  size_t version = 130100;
  cuda::lt::Status create_status = cuda::lt::kSuccess;
  bool refuse = false;              // products from now on
  std::vector<FakeAlgorithm> few;   // offered up to 1,024 rows
  std::vector<FakeAlgorithm> many;  // and above; the best first
  // Runs `work` as the stream's; it writes `bytes` from `to` on.
  std::function<void(
      gpu::Stream stream, std::function<void()> work, void* to, size_t bytes)>
      run;

  std::vector<FakeQuery> queries;
  std::vector<FakeProduct> products;
  int live = 0;  // handles and descriptors that were not destroyed
};

// "fake_cublaslt_control" of the library.
using FakeControlFn = FakeControl* (*)();

}  // namespace kf::testing
