// What a benchmark asks for: how long each prompt and answer is, when each
// request arrives, and what the prompts say. The same seed gives the same
// workload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace kf::tools {

struct PlannedRequest {
  uint32_t prompt_tokens = 0;  // >= 1
  uint32_t output_tokens = 0;  // >= 1
  // Seconds after the start; absent: as soon as a stream is free.
  std::optional<double> arrival_s = std::nullopt;
  // Or: as long after all that come before it in the plan have begun to answer,
  // or have ended.
  std::optional<double> settle_s = std::nullopt;
};

// JSON lines, each {"arrival_ms": x, "prompt_tokens": n, "output_tokens": m};
// arrivals do not go back. kInvalidArgument names line, field and value.
absl::StatusOr<std::vector<PlannedRequest>> ParseTrace(std::string_view text);

// `count` requests of one shape. With rate > 0 (requests a second) they arrive
// as a Poisson process, else none has an arrival.
std::vector<PlannedRequest> UniformPlan(size_t count,
                                        uint32_t prompt_tokens,
                                        uint32_t output_tokens,
                                        double rate,
                                        uint64_t seed);

// Makes prompts of an exact number of tokens. Thread-compatible.
class PromptMaker {
 public:
  // Without `text_ids` each id is drawn from [0, vocabulary); with them a
  // prompt is a stretch of the text from a drawn place, wrapping around.
  PromptMaker(uint32_t vocabulary,
              std::vector<uint32_t> text_ids,
              uint64_t seed);

  std::vector<uint32_t> Make(uint32_t tokens);

 private:
  const uint32_t vocabulary_;
  const std::vector<uint32_t> text_ids_;
  std::mt19937_64 random_;
};

}  // namespace kf::tools
