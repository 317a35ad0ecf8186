#include "tools/bench/window.h"

#include <algorithm>
#include <string>

namespace kf::tools {

Window Between(const Sample& begin, const Sample& end) {
  const auto delta = [&](const std::string& series) {
    return end.page.Value(series) - begin.page.Value(series);
  };
  const auto part = [&](const std::string& name) {
    return delta("step_seconds_total{part=\"" + name + "\"}");
  };
  return {.wall_s = end.at_s - begin.at_s,
          .steps = delta("batch_size_count"),
          .rows = delta("batch_size_sum"),
          .decode_s = delta("decode_step_seconds_sum"),
          .attention_s = part("decode_attention"),
          .products_s = part("decode_products"),
          .sampling_s = part("decode_sampling"),
          .slices = delta("prefill_slice_seconds_count"),
          .prefill_s = part("prefill"),
          .replay_s = part("replay"),
          .other_s = part("other"),
          .generated = delta("generation_tokens_total"),
          .preempted = delta("num_preemptions_total")};
}

Window Steady(const std::vector<Sample>& samples) {
  if (samples.empty()) return {};
  const double before = samples.front().page.Requests().succeeded;
  const auto first =
      std::find_if(samples.begin(), samples.end(), [&](const Sample& sample) {
        return sample.page.Requests().succeeded > before;
      });
  return first == samples.end() ? Window() : Between(*first, samples.back());
}

size_t CountMismatches(const std::vector<Sample>& samples) {
  return static_cast<size_t>(
      std::count_if(samples.begin(), samples.end(), [](const Sample& sample) {
        const RequestCounts counts = sample.page.Requests();
        return counts.received != counts.accounted_for();
      }));
}

}  // namespace kf::tools
