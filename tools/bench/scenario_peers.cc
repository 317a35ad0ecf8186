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

absl::StatusOr<Speed> RunVariant(const ScenarioOptions& options,
                                 const Variant& variant,
                                 int threads,
                                 const PeerWork& work,
                                 Interrupt& interrupt) {
  std::vector<std::string> flags = variant.flags;
  flags.push_back(absl::StrCat("--threads=", threads));
  KF_ASSIGN_OR_RETURN(
      const auto session,
      Session::Start(options.server_binary, ServerFlags(options, flags),
                     options.seed, interrupt));
  Load load;
  load.plan = UniformPlan(work.streams, work.shape.prompt_tokens,
                          work.shape.output_tokens, 0.0, options.seed);
  load.streams = work.streams;
  load.cache = variant.cache;
  KF_ASSIGN_OR_RETURN(const LoadResult result,
                      session->Run(std::move(load), nullptr));
  const Measurements measured = Measure(result.records);
  if (measured.succeeded < work.streams) {
    return absl::InternalError(absl::StrCat(
        "peers: ", work.streams - measured.succeeded, " requests failed"));
  }
  return Speed{.prompt = work.shape.prompt_tokens /
                         (measured.first_token_ms.p50 / 1000.0),
               .decode = measured.steady.tokens_per_second};
}

nlohmann::json RowJson(const std::vector<std::string>& engines,
                       const PeerRow& row) {
  nlohmann::json json = {{"streams", row.work.streams},
                         {"prompt_tokens", row.work.shape.prompt_tokens},
                         {"output_tokens", row.work.shape.output_tokens}};
  for (size_t i = 0; i < engines.size(); ++i) {
    json["engines"].push_back(
        {{"name", engines[i]},
         {"prompt_tokens_per_second", row.speeds[i].prompt},
         {"decode_tokens_per_second", row.speeds[i].decode}});
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
  std::vector<PeerRow> rows;
  for (const PlannedRequest& shape : options.peer_shapes) {
    for (const uint32_t streams : options.peer_streams) {
      PeerRow row = {.work = {.streams = streams, .shape = shape},
                     .speeds = {}};
      std::vector<std::vector<Speed>> rounds(engines.size());
      for (uint32_t round = 0; round < options.rounds; ++round) {
        Say(fmt::format("peers: {} x {}, round {} of {}", streams,
                        ShapeText(shape), round + 1, options.rounds));
        for (size_t i = 0; i < engines.size(); ++i) {
          auto speed = i < variants.size()
                           ? RunVariant(options, variants[i], threads, row.work,
                                        interrupt)
                           : RunPeer(peers[i - variants.size()], options.model,
                                     threads, row.work);
          if (!speed.ok()) return speed.status();
          rounds[i].push_back(*speed);
        }
      }
      for (const std::vector<Speed>& speeds : rounds) {
        row.speeds.push_back(Median(speeds));
      }
      rows.push_back(std::move(row));
    }
  }
  nlohmann::json json = nlohmann::json::array();
  for (const PeerRow& row : rows) json.push_back(RowJson(engines, row));
  return ScenarioReport{
      .markdown = PeersMarkdown(engines, variants.size(), rows),
      .json = {{"threads", threads}, {"rows", json}}};
}

}  // namespace kf::tools
