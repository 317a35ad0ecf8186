#include "tools/bench/window.h"

#include <gtest/gtest.h>

#include <string>

namespace kf::tools {
namespace {

Sample At(double seconds, const std::string& text) {
  return {.at_s = seconds, .page = MetricsPage(text), .memory = {}};
}

// `ended` of 3 requests; `rows` fed in `steps` steps of 0.5 s.
Sample Decoded(double seconds, int ended, int steps, int rows) {
  return At(seconds,
            "keyformer_requests_received_total 3\n"
            "keyformer_num_requests_running " +
                std::to_string(3 - ended) +
                "\n"
                "keyformer_request_success_total{finish_reason=\"length\"} " +
                std::to_string(ended) +
                "\n"
                "keyformer_batch_size_count " +
                std::to_string(steps) +
                "\n"
                "keyformer_batch_size_sum " +
                std::to_string(rows) +
                "\n"
                "keyformer_generation_tokens_total " +
                std::to_string(rows) +
                "\n"
                "keyformer_decode_step_seconds_sum " +
                std::to_string(0.5 * steps) + "\n");
}

TEST(Window, IsWhatHappenedBetweenTwoSamples) {
  const Window window = Between(Decoded(1.0, 0, 2, 4), Decoded(5.0, 1, 6, 16));
  EXPECT_EQ(window.wall_s, 4.0);
  EXPECT_EQ(window.mean_batch(), 3.0);
  EXPECT_EQ(window.step_s(), 0.5);
  EXPECT_EQ(window.decode_tokens_per_second(), 6.0);
  EXPECT_EQ(window.tokens_per_second(), 3.0);
  EXPECT_EQ(window.slice_s(), 0.0);
}

TEST(Window, TakesAStepApart) {
  const Window window = Between(
      At(0.0, "keyformer_step_seconds_total{part=\"prefill\"} 1\n"),
      At(1.0,
         "keyformer_step_seconds_total{part=\"prefill\"} 2\n"
         "keyformer_step_seconds_total{part=\"replay\"} 0.5\n"
         "keyformer_step_seconds_total{part=\"decode_attention\"} 0.25\n"
         "keyformer_prefill_slice_seconds_count 3\n"));
  EXPECT_EQ(window.prefill_s, 1.0);
  EXPECT_EQ(window.replay_s, 0.5);
  EXPECT_EQ(window.attention_s, 0.25);
  EXPECT_EQ(window.slice_s(), 0.5);
}

TEST(Window, SteadyBeginsWithTheFirstEnd) {
  EXPECT_EQ(Steady({}).wall_s, 0.0);
  EXPECT_EQ(Steady({Decoded(0.0, 1, 0, 0), Decoded(1.0, 1, 2, 2)}).wall_s, 0.0);
  const Window window = Steady({Decoded(0.0, 1, 0, 0), Decoded(1.0, 1, 2, 2),
                                Decoded(2.0, 2, 4, 8), Decoded(9.0, 3, 6, 20)});
  EXPECT_EQ(window.wall_s, 7.0);
  EXPECT_EQ(window.mean_batch(), 6.0);
}

TEST(Window, CountsPagesThatDoNotAddUp) {
  const Sample good = Decoded(0.0, 1, 0, 0);
  const Sample bad = At(1.0, "keyformer_requests_received_total 3\n");
  EXPECT_EQ(CountMismatches({good, bad, good}), 1U);
}

}  // namespace
}  // namespace kf::tools
