#include "kernels/cpu/simd_level.h"

#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "kernels/cpu/scratch.h"
#include "tests/testing/matchers.h"

namespace kf {
namespace {

using absl::StatusCode::kInvalidArgument;
using testing::StatusIs;

TEST(SimdLevel, ParsesWhatTheMachineHas) {
  EXPECT_EQ(cpu::ParseSimdLevel("auto").value(), cpu::PreferredSimdLevel());
  EXPECT_LE(cpu::PreferredSimdLevel(), cpu::DetectSimdLevel());
  for (const cpu::SimdLevel level : cpu::AvailableSimdLevels()) {
    EXPECT_EQ(cpu::ParseSimdLevel(cpu::NameOf(level)).value(), level);
  }
  EXPECT_EQ(cpu::AvailableSimdLevels().front(), cpu::SimdLevel::kScalar);
  EXPECT_EQ(cpu::AvailableSimdLevels().back(), cpu::DetectSimdLevel());
}

// Names that no machine has, and those that this one lacks.
TEST(SimdLevel, RefusesWhatItLacks) {
  EXPECT_THAT(cpu::ParseSimdLevel("sse9"),
              StatusIs(kInvalidArgument, "simd: \"sse9\""));
  EXPECT_THAT(cpu::ParseSimdLevel(""), StatusIs(kInvalidArgument, "scalar"));
  const int highest = static_cast<int>(cpu::DetectSimdLevel());
  for (int i = highest + 1; i < cpu::kSimdLevels; ++i) {
    EXPECT_THAT(cpu::ParseSimdLevel(cpu::NameOf(cpu::SimdLevel(i))),
                StatusIs(kInvalidArgument, "this machine offers"));
  }
}

TEST(CreateBackend, NamesWhatIsWrong) {
  EXPECT_THAT(
      CreateBackend({.name = "tpu"}),
      StatusIs(kInvalidArgument, "device: \"tpu\", want auto, cpu, cuda or"));
  EXPECT_THAT(CreateBackend({.threads = -1}),
              StatusIs(kInvalidArgument, "threads: -1"));
  EXPECT_THAT(CreateBackend({.threads = 100000}),
              StatusIs(kInvalidArgument, "threads: 100000"));
  EXPECT_THAT(CreateBackend({.simd = "mmx"}),
              StatusIs(kInvalidArgument, "simd: \"mmx\""));
}

TEST(CreateBackend, SaysWhatItIs) {
  const auto cpu = CreateBackend({.threads = 3, .simd = "scalar"}).value();
  EXPECT_EQ(cpu->name(), "cpu");
  EXPECT_EQ(cpu->description(), "cpu, scalar, 3 threads");
  EXPECT_EQ(CreateBackend({.name = "reference"}).value()->name(), "reference");
  EXPECT_NE(CreateBackend({}).value()->description(), "");
}

TEST(ScratchArena, GrowsThenServesFromOneBlock) {
  cpu::ScratchArena scratch;
  const auto run = [&scratch] {
    scratch.Reset();
    float* a = scratch.Take<float>(1000).value();
    auto* b = scratch.Take<int64_t>(50000).value();
    std::byte* c = scratch.TakeBytes(1).value();
    std::byte* d = scratch.TakeBytes(64).value();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 64, 0U);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b) % 64, 0U);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(d) % 64, 0U);
    EXPECT_NE(c, d);
    // All of it may be written at the same time.
    for (int i = 0; i < 1000; ++i) a[i] = 1.0F;
    for (int i = 0; i < 50000; ++i) b[i] = 2;
    EXPECT_EQ(a[999], 1.0F);
    EXPECT_EQ(b[0], 2);
  };
  run();
  run();
  const size_t steady = scratch.capacity();
  EXPECT_GE(steady, 404000U);
  run();
  EXPECT_EQ(scratch.capacity(), steady);
}

TEST(ScratchArena, AbsurdSizesAreAnError) {
  cpu::ScratchArena scratch;
  EXPECT_THAT(scratch.TakeBytes(SIZE_MAX),
              StatusIs(absl::StatusCode::kResourceExhausted, "scratch"));
  EXPECT_THAT(scratch.TakeBytes(size_t{1} << 50),
              StatusIs(absl::StatusCode::kResourceExhausted, "scratch"));
}

}  // namespace
}  // namespace kf
