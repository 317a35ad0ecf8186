#include "server/worker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>

namespace kf::server {
namespace {

TEST(Worker, RunsWhatWaitsBeforeItEnds) {
  std::atomic<int> ran = 0;
  {
    Worker worker(2, 100);
    for (int i = 0; i < 100; ++i) {
      while (!worker.Post([&] { ++ran; })) {
      }
    }
  }
  EXPECT_EQ(ran, 100);
}

TEST(Worker, DropsWhatIsTooMuch) {
  std::latch busy(1);
  std::latch go(1);
  std::atomic<int> ran = 0;
  {
    Worker worker(1, 2);
    ASSERT_TRUE(worker.Post([&] {
      busy.count_down();
      go.wait();
    }));
    busy.wait();
    EXPECT_TRUE(worker.Post([&] { ++ran; }));
    EXPECT_TRUE(worker.Post([&] { ++ran; }));
    EXPECT_FALSE(worker.Post([&] { ++ran; }));
    go.count_down();
  }
  EXPECT_EQ(ran, 2);
}

}  // namespace
}  // namespace kf::server
