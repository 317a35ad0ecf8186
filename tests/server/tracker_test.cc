#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "server/rpc_tracker.h"
#include "server/status.h"
#include "server/utf8.h"

namespace kf::server {
namespace {

TEST(RpcTracker, WaitsForTheLastHold) {
  RpcTracker tracker(2);
  EXPECT_TRUE(tracker.WaitNone(engine::Duration::zero()));
  std::optional<RpcTracker::Hold> first = tracker.TryHold();
  std::optional<RpcTracker::Hold> second = tracker.TryHold();
  {
    // A moved hold counts once.
    const RpcTracker::Hold moved(*std::move(second));
    EXPECT_FALSE(tracker.WaitNone(engine::Duration::zero()));
  }
  EXPECT_FALSE(tracker.WaitNone(engine::Duration::zero()));
  std::thread releaser([&] { first.reset(); });
  EXPECT_TRUE(tracker.WaitNone(std::chrono::minutes(1)));
  releaser.join();
}

TEST(RpcTracker, HasALimit) {
  RpcTracker tracker(2);
  std::optional<RpcTracker::Hold> first = tracker.TryHold();
  std::optional<RpcTracker::Hold> second = tracker.TryHold();
  ASSERT_TRUE(first.has_value());
  ASSERT_TRUE(second.has_value());
  EXPECT_FALSE(tracker.TryHold().has_value());
  first.reset();
  EXPECT_TRUE(tracker.TryHold().has_value());
}

TEST(Status, CodesMapAndMessagesAreCut) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  const grpc::Status status = ToGrpcStatus(absl::NotFoundError("gone"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(status.error_message(), "gone");
  const std::string euro = "\xE2\x82\xAC";
  std::string text;
  while (text.size() < 5000) text += euro;
  const std::string cut =
      ToGrpcStatus(absl::InternalError(text)).error_message();
  EXPECT_EQ(cut.size(), 1023U);
  EXPECT_EQ(ValidUtf8Prefix(cut), cut.size());
  EXPECT_EQ(ToGrpcStatus(absl::InternalError("a\xFF"
                                             "b"))
                .error_message(),
            "a?b");
}

}  // namespace
}  // namespace kf::server
