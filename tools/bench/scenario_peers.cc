// The same work on this server and on other engines, in turn, so that what else
// the machine does meets all of them.
#include <spdlog/fmt/fmt.h>

#include <thread>

#include "kernels/core/status.h"
#include "tools/bench/peers.h"
#include "tools/bench/scenario.h"
#include "tools/bench/session.h"

namespace kf::tools {
namespace {

// This server in one configuration.
struct Variant {
  const char* name;
  std::vector<std::string> flags;
  pb::CacheOptions cache;
};

std::vector<Variant> Variants() {
  return {{"KEYFORMER 50 %, q4", {"--dtype=q4"}, HalfCache()},
          {"KEYFORMER 50 %, bf16", {"--dtype=bf16"}, HalfCache()},
          {"FULL, bf16", {"--dtype=bf16"}, FullCache()}};
}

// Prompt tokens of a step, where others decode: the server's default.
constexpr uint32_t kSliceTokens = 256;

// An engine that evaluates all prompts first decodes all streams at once from
// the first token on. A server begins with some while others' prompts wait, so
// its answers are longer by what it decodes until then: the rate is taken while
// all streams decode.
uint32_t AnswerTokens(const PeerRow& row) {
  const PeerWork& work = row.work;
  if (row.whole) return work.shape.output_tokens;
  const uint32_t slices =
      (work.streams - 1) * work.shape.prompt_tokens / kSliceTokens;
  return work.shape.output_tokens + slices;
}

absl::StatusOr<Speed> RunVariant(const ScenarioOptions& options,
                                 const Variant& variant,
                                 int threads,
                                 const PeerRow& row,
                                 Interrupt& interrupt) {
  const PeerWork& work = row.work;
  std::vector<std::string> flags = variant.flags;
  flags.push_back(absl::StrCat("--threads=", threads));
  KF_ASSIGN_OR_RETURN(
      const auto session,
      Session::Start(options.server_binary, ServerFlags(options, flags),
                     options.seed, interrupt));
  Load load;
  load.plan = UniformPlan(work.streams, work.shape.prompt_tokens,
                          AnswerTokens(row), 0.0, options.seed);
  load.streams = work.streams;
  load.cache = variant.cache;
  KF_ASSIGN_OR_RETURN(const LoadResult result,
                      session->Run(std::move(load), nullptr));
  const Measurements measured = Measure(result.records);
  if (measured.succeeded < work.streams) {
    return absl::InternalError(absl::StrCat(
        "peers: ", work.streams - measured.succeeded, " requests failed"));
  }
  const bool together = measured.steady.streams == work.streams;
  if (!together) {
    Say(fmt::format("peers: {}: only {} streams decoded at once", variant.name,
                    measured.steady.streams));
  }
  return Speed{.prompt = work.shape.prompt_tokens /
                         (measured.first_token_ms.p50 / 1000.0),
               .decode = together ? measured.steady.tokens_per_second : 0.0,
               .whole = measured.output_tokens_per_second,
               .first_token_s = measured.first_token_ms.p50 / 1000.0,
               .longest_gap_s = measured.longest_gap_ms / 1000.0};
}

std::vector<PeerRow> PlannedRows(const ScenarioOptions& options) {
  std::vector<PeerRow> rows;
  const auto add = [&](const PlannedRequest& shape, bool whole) {
    for (const uint32_t streams : options.peer_streams) {
      rows.push_back({.work = {.streams = streams, .shape = shape},
                      .whole = whole,
                      .speeds = {}});
    }
  };
  for (const PlannedRequest& shape : options.peer_shapes) add(shape, false);
  if (options.peer_whole.prompt_tokens > 0) add(options.peer_whole, true);
  return rows;
}

nlohmann::json RowJson(const std::vector<std::string>& engines,
                       const PeerRow& row) {
  nlohmann::json json = {{"streams", row.work.streams},
                         {"whole", row.whole},
                         {"prompt_tokens", row.work.shape.prompt_tokens},
                         {"output_tokens", row.work.shape.output_tokens}};
  for (size_t i = 0; i < engines.size(); ++i) {
    json["engines"].push_back(
        {{"name", engines[i]},
         {"prompt_tokens_per_second", row.speeds[i].prompt},
         {"decode_tokens_per_second", row.speeds[i].decode},
         {"output_tokens_per_second", row.speeds[i].whole},
         {"first_token_s", row.speeds[i].first_token_s},
         {"longest_gap_s", row.speeds[i].longest_gap_s}});
  }
  return json;
}

}  // namespace

absl::StatusOr<ScenarioReport> RunPeers(const ScenarioOptions& options,
                                        Interrupt& interrupt) {
  const int threads = static_cast<int>(std::thread::hardware_concurrency());
  const std::vector<Variant> variants = Variants();
  std::vector<Peer> peers;
  std::vector<std::string> engines;
  engines.reserve(variants.size() + options.peers.size());
  for (const Variant& variant : variants) engines.emplace_back(variant.name);
  for (const std::string& text : options.peers) {
    KF_ASSIGN_OR_RETURN(Peer peer, ParsePeer(text));
    engines.push_back(peer.name);
    peers.push_back(std::move(peer));
  }
  std::vector<PeerRow> rows = PlannedRows(options);
  for (PeerRow& row : rows) {
    std::vector<std::vector<Speed>> rounds(engines.size());
    for (uint32_t round = 0; round < options.rounds; ++round) {
      Say(fmt::format("peers: {}{} x {}, round {} of {}",
                      row.whole ? "whole answers, " : "", row.work.streams,
                      ShapeText(row.work.shape), round + 1, options.rounds));
      for (size_t i = 0; i < engines.size(); ++i) {
        auto speed =
            i < variants.size()
                ? RunVariant(options, variants[i], threads, row, interrupt)
                : RunPeer(peers[i - variants.size()], options.model, threads,
                          row.work);
        if (!speed.ok()) return speed.status();
        rounds[i].push_back(*speed);
      }
    }
    for (const std::vector<Speed>& speeds : rounds) {
      row.speeds.push_back(Median(speeds));
    }
  }
  nlohmann::json json = nlohmann::json::array();
  for (const PeerRow& row : rows) json.push_back(RowJson(engines, row));
  return ScenarioReport{
      .markdown = PeersMarkdown(engines, variants.size(), rows),
      .json = {{"threads", threads}, {"rows", json}}};
}

}  // namespace kf::tools
