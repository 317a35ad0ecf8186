// Other engines, measured by commands of their own, and tables that compare
// them with us.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/bench/workload.h"

namespace kf::tools {

// A command that measures one row of the table, see peer_llama_cpp.py: it takes
// --model, --threads, --streams, --prompt_tokens and --output_tokens, and its
// last line is JSON with "prompt_tokens_per_second" and
// "decode_tokens_per_second".
struct Peer {
  std::string name;
  std::string command;  // for the shell
};

// "name=command". kInvalidArgument.
absl::StatusOr<Peer> ParsePeer(const std::string& text);

// What is asked of every engine: the prompts of all streams at once, then steps
// of all streams.
struct PeerWork {
  uint32_t streams = 1;
  PlannedRequest shape;
};

// Tokens per second.
struct Speed {
  double prompt = 0.0;
  double decode = 0.0;
  // Output tokens over the time from the first request to the last answer.
  double whole = 0.0;
  // Of a server, else 0: seconds to the first token of half of the streams, and
  // the longest between two tokens of one.
  double first_token_s = 0.0;
  double longest_gap_s = 0.0;
};

// `whole` of an engine that evaluates all prompts, then decodes: an upper bound
// of what a server around it would reach.
double WholeRate(const Speed& speed, const PeerWork& work);

double MedianOf(std::vector<double> values);  // not empty

// Of the last line of a command's output. kInvalidArgument quotes it.
absl::StatusOr<Speed> ParseSpeed(std::string_view output);

// kUnavailable: the command failed.
absl::StatusOr<Speed> RunPeer(const Peer& peer,
                              const std::string& model,
                              int threads,
                              const PeerWork& work);

// By element, the median of an odd number of rounds, the mean of the middle two
// of an even one. `rounds` is not empty.
Speed Median(const std::vector<Speed>& rounds);

struct PeerRow {
  PeerWork work;
  bool whole = false;  // compares whole answers, else prefill and decoding
  std::vector<Speed> speeds;  // of each engine
};

// Prefill, decode and whole answers of each engine, ours first, and ours as a
// multiple of each other's; of whole answers also what is known of the times
// that clients wait. `engines` are the names of PeerRow::speeds, of which the
// first `ours` are variants of this server.
std::string PeersMarkdown(const std::vector<std::string>& engines,
                          size_t ours,
                          const std::vector<PeerRow>& rows);

}  // namespace kf::tools
