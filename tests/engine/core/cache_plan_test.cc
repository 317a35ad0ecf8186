#include "engine/cache/cache_plan.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/testing/matchers.h"

namespace kf::engine {
namespace {

using ::kf::testing::IsOk;
using ::kf::testing::StatusIs;

RequestSizes Sizes(int32_t n, int32_t t, int32_t k) {
  return {.prompt_tokens = n,
          .max_new_tokens = t,
          .cut_by_context = false,
          .budget = k,
          .recent = 0,
          .rules = {.sizes = {{k, 0}}}};
}

struct PagesCase {
  const char* name;
  int32_t n, t, k, pages;
};
class TokenPagesTest : public ::testing::TestWithParam<PagesCase> {};
TEST_P(TokenPagesTest, IsTheBudgetAndOneFreeSlot) {
  const PagesCase& c = GetParam();
  EXPECT_EQ(TokenPages(Sizes(c.n, c.t, c.k), 0), c.pages);
}
INSTANTIATE_TEST_SUITE_P(
    Cases,
    TokenPagesTest,
    ::testing::Values(PagesCase{"OneToken", 1, 0, 1, 1},
                      PagesCase{"FifteenAndTheFreeOne", 100, 100, 15, 1},
                      PagesCase{"SixteenNeedsASecond", 100, 100, 16, 2},
                      PagesCase{"Full", 100, 100, 200, 13},
                      PagesCase{"FullToThePage", 100, 91, 191, 12},
                      PagesCase{"BudgetAboveTheLength", 10, 5, 100000, 1}),
    [](const auto& param) { return std::string(param.param.name); });

TEST(CountPagesTest, LayersCountTheirOwnBudgets) {
  RequestSizes sizes = Sizes(100, 100, 64);
  sizes.rules.sizes = {{32, 0}, {96, 0}, {15, 0}};
  const CachePages pages = CountPages(sizes, 3);
  EXPECT_EQ(pages.prompt, 3 + 7 + 1);
  EXPECT_EQ(pages.kept, 11);
  EXPECT_THAT(CheckFitsPool(sizes, 3, 10),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "needs 11 pages (58 tokens in each of 3 layers on "
                       "average), the pool has 10 (48 tokens)"));
}

// All of the prompt, and the slot that its last token leaves free, until its
// end; then the budget.
TEST(CountPagesTest, ScopeModelCountsTheWholePrompt) {
  RequestSizes sizes = Sizes(100, 100, 32);
  sizes.rules.scope = SelectionScope::kModel;
  EXPECT_EQ(CountPages(sizes, 4).prompt, 4 * 7);
  EXPECT_EQ(CountPages(sizes, 4).kept, 4 * 3);
  EXPECT_THAT(CheckFitsPool(sizes, 4, 27),
              StatusIs(absl::StatusCode::kFailedPrecondition, "28 pages"));
  sizes.rules.sizes = {{150, 0}};
  EXPECT_EQ(CountPages(sizes, 4).prompt, 4 * 10);
  EXPECT_EQ(CountPages(sizes, 4).kept, 4 * 10);
}

// A page of bounds for each 16 pages, where they are read.
TEST(CountPagesTest, QuestCountsItsBounds) {
  RequestSizes sizes = Sizes(200, 100, 300);
  sizes.rules.read_pages = 4;
  sizes.rules.full_layers = 1;
  EXPECT_EQ(BoundPages(sizes, 0), 0);
  EXPECT_EQ(BoundPages(sizes, 1), 2);
  EXPECT_EQ(CountPages(sizes, 3).prompt, 19 + 2 * (19 + 2));
  EXPECT_EQ(CountPages(sizes, 3).kept, 61);
}

TEST(CheckFitsTest, PoolNamesBothNumbersInPagesAndTokens) {
  EXPECT_THAT(CheckFitsPool(Sizes(100, 100, 200), 4, 52), IsOk());
  const absl::Status status = CheckFitsPool(Sizes(100, 100, 200), 4, 51);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                               "needs 52 pages (208 tokens in each of 4"));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                               "the pool has 51 (192 tokens)"));
}

// Copies of everything, unless nothing is evicted: then the prompt's whole
// pages, here 6 a layer, are there once.
TEST(CountPagesTest, SeveralSequences) {
  RequestSizes sizes = Sizes(100, 50, 40);
  EXPECT_EQ(CountPages(sizes, 4).kept, 3 * 4);
  sizes.sequences = 5;
  EXPECT_EQ(CountPages(sizes, 4).kept, 5 * 3 * 4);
  EXPECT_EQ(CountPages(sizes, 4).each, 3 * 4);
  sizes = Sizes(100, 50, 150);
  sizes.sequences = 5;
  sizes.shares_prompt = true;
  EXPECT_EQ(CountPages(sizes, 4).kept, (6 + 5 * 4) * 4);
  EXPECT_EQ(CountPages(sizes, 4).each, 4 * 4);
  EXPECT_EQ(CountPages(sizes, 4).prompt, (6 + 5 * 4) * 4);
  // Quest: 19 pages have their bounds in two, of which the prompt fills one.
  sizes = Sizes(270, 30, 300);
  sizes.rules.read_pages = 3;
  sizes.rules.full_layers = 1;
  sizes.sequences = 2;
  sizes.shares_prompt = true;
  EXPECT_EQ(CountPages(sizes, 2).kept, 2 * (16 + 2 * 3) + 1 + 2 * 1);
}

// Scope MODEL holds the whole prompt before; several sequences more after.
TEST(CountPagesTest, ThePromptOrTheSequences) {
  RequestSizes sizes = Sizes(100, 50, 40);
  sizes.rules.scope = SelectionScope::kModel;
  EXPECT_EQ(CountPages(sizes, 2).prompt, 7 * 2);
  EXPECT_EQ(CountPages(sizes, 2).kept, 3 * 2);
  sizes.sequences = 3;
  EXPECT_EQ(CountPages(sizes, 2).prompt, 3 * 3 * 2);
  EXPECT_EQ(CountPages(sizes, 2).kept, 3 * 3 * 2);
}

TEST(CheckFitsTest, BatchNamesBothNumbers) {
  RequestSizes sizes = Sizes(10, 1, 1);
  sizes.sequences = 4;
  EXPECT_THAT(CheckFitsBatch(sizes, 4), IsOk());
  EXPECT_THAT(CheckFitsBatch(sizes, 3),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "has 4 sequences, the batch holds 3"));
}

TEST(CheckFitsTest, WorkspaceNamesBothNumbers) {
  EXPECT_THAT(CheckFitsWorkspace(Sizes(100, 1, 1), 100), IsOk());
  const absl::Status status = CheckFitsWorkspace(Sizes(101, 1, 1), 100);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                               "has 101 tokens, the prefill workspace holds "
                               "100"));
}

PoolSizeInput PoolInput(uint64_t requested, uint64_t chosen) {
  return {.requested_bytes = requested,
          .chosen_bytes = chosen,
          .page_bytes = 1024,
          .layers = 4,
          .context_tokens = 511,
          .max_batch = 8};
}

TEST(PoolPagesTest, RequestedIsTakenAsGiven) {
  EXPECT_EQ(*PoolPages(PoolInput(10 * 1024 + 1023, 0)), 10);
  EXPECT_EQ(*PoolPages(PoolInput(uint64_t{1} << 30, 0)), 1 << 20);
}

TEST(PoolPagesTest, ChosenIsTakenUpToWhatABatchCanFill) {
  EXPECT_EQ(*PoolPages(PoolInput(0, 100 * 1024)), 100);
  // (511 + 1) tokens are 32 pages, times 4 layers and 8 requests.
  EXPECT_EQ(*PoolPages(PoolInput(0, uint64_t{1} << 40)), 1024);
}

TEST(PoolPagesTest, LessThanAPageALayerIsRefused) {
  EXPECT_THAT(PoolPages(PoolInput(4095, 0)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "kv_pool_bytes: 4095, want at least 4096"));
  EXPECT_THAT(PoolPages(PoolInput(0, 0)),
              StatusIs(absl::StatusCode::kInvalidArgument, "kv_pool_bytes"));
}

TEST(RoomForPoolTest, OfADeviceIsWhatItsShareLeaves) {
  const DeviceMemory device = {.total = 1000, .free = 700};
  EXPECT_EQ(RoomForPool(device, 0.9), 600U);
  EXPECT_EQ(RoomForPool(device, 1.0), 700U);
  EXPECT_EQ(RoomForPool(device, 0.25), 0U);
}

TEST(RoomForPoolTest, OfAHostIsAQuarter) {
  const auto quarter = static_cast<double>(AvailableMemoryBytes()) / 4.0;
  EXPECT_NEAR(static_cast<double>(RoomForPool(std::nullopt, 0.9)) / quarter,
              1.0, 0.5);
}

TEST(AvailableMemoryTest, IsKnownHere) {
  EXPECT_GT(AvailableMemoryBytes(), uint64_t{1} << 20);
}

}  // namespace
}  // namespace kf::engine
