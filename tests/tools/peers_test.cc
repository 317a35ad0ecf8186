#include "tools/bench/peers.h"

#include <gtest/gtest.h>

#include "tests/testing/matchers.h"

namespace kf::tools {
namespace {

using absl::StatusCode::kInvalidArgument;
using absl::StatusCode::kUnavailable;
using testing::IsOk;
using testing::StatusIs;

constexpr PeerWork kWork = {.streams = 3,
                            .shape = {.prompt_tokens = 5, .output_tokens = 7}};

TEST(ParsePeer, IsANameAndACommand) {
  const auto peer = ParsePeer("llama.cpp=python3 a.py --x=1");
  ASSERT_THAT(peer, IsOk());
  EXPECT_EQ(peer->name, "llama.cpp");
  EXPECT_EQ(peer->command, "python3 a.py --x=1");
  for (const char* bad : {"", "name", "=command", "name="}) {
    EXPECT_THAT(ParsePeer(bad), StatusIs(kInvalidArgument, "--peer: ")) << bad;
  }
}

TEST(ParseSpeed, ReadsTheLastLine) {
  const auto speed = ParseSpeed(
      "loading\n{\"prompt_tokens_per_second\": 10.5, "
      "\"decode_tokens_per_second\": 2, \"version\": \"1\"}\n\n");
  ASSERT_THAT(speed, IsOk());
  EXPECT_EQ(speed->prompt, 10.5);
  EXPECT_EQ(speed->decode, 2.0);
  constexpr char kText[] =
      R"({"prompt_tokens_per_second": "1", "decode_tokens_per_second": 1})";
  constexpr char kHalf[] = R"({"prompt_tokens_per_second": 1})";
  for (const char* bad : {"", "[]", "no JSON", kHalf, kText}) {
    EXPECT_THAT(ParseSpeed(bad), StatusIs(kInvalidArgument, "last line"))
        << bad;
  }
}

TEST(RunPeer, HandsTheWorkOver) {
  // Answers with its arguments: as many streams as prompt tokens a second.
  const Peer echo = {"echo", R"(f() { [ "$2" = "a 'b" ] && printf '{"prompt_)"
                             R"(tokens_per_second": %s, "decode_tokens_per_)"
                             R"(second": %s%s}' "$6" "$8" "${10}"; }; f)"};
  const auto speed = RunPeer(echo, "a 'b", 2, kWork);
  ASSERT_THAT(speed, IsOk());
  EXPECT_EQ(speed->prompt, 3.0);
  EXPECT_EQ(speed->decode, 57.0);
  EXPECT_GT(speed->whole, 0.0);
  EXPECT_THAT(RunPeer({"false", "false"}, "m", 2, kWork),
              StatusIs(kUnavailable, "failed: false --model 'm' --threads 2"));
}

TEST(Median, OfEachElement) {
  const Speed odd = Median({{1.0, 9.0}, {5.0, 2.0}, {3.0, 4.0}});
  EXPECT_EQ(odd.prompt, 3.0);
  EXPECT_EQ(odd.decode, 4.0);
  const Speed even = Median({{1.0, 9.0}, {5.0, 2.0}});
  EXPECT_EQ(even.prompt, 3.0);
  EXPECT_EQ(even.decode, 5.5);
}

// Two prompts of 100 tokens take 2 s, and two steps of two streams 1 s.
TEST(WholeRate, IsOfPromptsAndSteps) {
  const PeerWork work = {.streams = 2,
                         .shape = {.prompt_tokens = 100, .output_tokens = 3}};
  EXPECT_DOUBLE_EQ(WholeRate({.prompt = 100.0, .decode = 4.0}, work), 2.0);
}

TEST(PeersMarkdown, ComparesUsWithEachOther) {
  const std::string table = PeersMarkdown(
      {"A", "B", "peer"}, 2,
      {{.work = {.streams = 1, .shape = {512, 64}},
        .speeds = {{2000.0, 300.0}, {1000.0, 150.0}, {500.0, 100.0}}},
       {.work = {.streams = 8, .shape = {512, 64}},
        .speeds = {{1.0, 800.0}, {1.0, 500.0}, {1.0, 200.0}}},
       {.work = {.streams = 8, .shape = {990, 256}},
        .whole = true,
        .speeds = {{1.0, 1.0, 140.0, 1.25, 0.75},
                   {1.0, 1.0, 120.0, 2.5, 0.5},
                   {1.0, 1.0, 20.0}}}});
  EXPECT_NE(table.find("A / peer"), table.npos);
  EXPECT_EQ(table.find("A / B"), table.npos);
  EXPECT_NE(table.find("prefill, 1 x 512 + 64"), table.npos);
  EXPECT_EQ(table.find("prefill, 8 x 512"), table.npos);
  EXPECT_EQ(table.find("prefill, 8 x 990"), table.npos);
  EXPECT_NE(table.find("decode, 8 x 512 + 64"), table.npos);
  EXPECT_EQ(table.find("decode, 8 x 990"), table.npos);
  EXPECT_NE(table.find("whole answers, 8 x 990 + 256"), table.npos);
  for (const char* ratio :
       {" 4.0 ", " 2.0 ", " 3.0 ", " 1.5 ", " 2.5 ", " 7.0 ", " 6.0 ",
        "| 1.25 ", "| 0.75 ", "| 2.50 "}) {
    EXPECT_NE(table.find(ratio), table.npos) << ratio << "in\n" << table;
  }
}

}  // namespace
}  // namespace kf::tools
