#include "tools/calibrate/profile_file.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/core/status.h"

namespace kf::tools {
namespace {

// Keeps the order of the keys: a file that people read.
using Json = nlohmann::ordered_json;

// Four digits: more is noise, and diffs stay readable.
double Short(double value) { return std::round(value * 1e4) / 1e4; }

Json ToJson(const Losses& losses) {
  return {{"facts_right", losses.facts_right},
          {"fact_nll", Short(losses.fact_nll)},
          {"text_nll", Short(losses.text_nll)},
          {"evicted", Short(losses.evicted)}};
}

Json Evidence(const ProfileNote& note,
              const SearchOptions& options,
              const SearchResult& result) {
  Json cut = Json::array();
  for (const Losses& losses : result.cut) {
    cut.push_back({{"facts_right", losses.facts_right},
                   {"fact_nll", Short(losses.fact_nll)},
                   {"text_nll", Short(losses.text_nll)}});
  }
  Json gains = Json::array();
  for (const double gain : result.gains) gains.push_back(Short(gain));
  Json tried = Json::array();
  for (const Candidate& candidate : result.tried) {
    Json entry = {{"how", candidate.how}};
    entry.update(ToJson(candidate.losses));
    tried.push_back(std::move(entry));
  }
  return {{"model", note.model},
          {"made_by", note.command},
          {"date", note.date},
          {"texts", note.texts},
          {"facts", result.full.facts},
          {"ratio", options.ratio},
          {"share_where_cut", options.share},
          {"full", ToJson(result.full)},
          {"uniform", ToJson(result.tried.front().losses)},
          {"this_profile", ToJson(result.tried[result.best].losses)},
          {"one_layer_cut", std::move(cut)},
          {"gain_where_spared", std::move(gains)},
          {"tried", std::move(tried)}};
}

bool IsProfileFile(const Json& file) {
  return file.is_object() && file.contains("profiles") &&
         file["profiles"].is_object();
}

// Nothing unless it is [layers] numbers.
std::vector<double> Weights(const Json& profile, size_t layers) {
  std::vector<double> weights;
  if (!profile.is_object() || !profile.contains("weights") ||
      !profile["weights"].is_array() || profile["weights"].size() != layers) {
    return weights;
  }
  for (const Json& weight : profile["weights"]) {
    if (!weight.is_number()) return {};
    weights.push_back(weight.get<double>());
  }
  return weights;
}

}  // namespace

absl::StatusOr<std::map<std::string, std::vector<double>>> ReadProfiles(
    const std::string& text, size_t layers) {
  const Json file = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!IsProfileFile(file)) {
    return absl::InvalidArgumentError("the file has no \"profiles\" object");
  }
  std::map<std::string, std::vector<double>> found;
  for (const auto& [name, profile] : file["profiles"].items()) {
    found[name] = Weights(profile, layers);
    if (found[name].empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("profile ", name, ": \"weights\" is not a list of ",
                       layers, " numbers, one a layer"));
    }
  }
  return found;
}

absl::StatusOr<std::string> WithProfile(const std::string& before,
                                        const ProfileNote& note,
                                        const SearchOptions& options,
                                        const SearchResult& result) {
  Json file = {{"profiles", Json::object()}};
  if (!before.empty()) {
    file = Json::parse(before, nullptr, /*allow_exceptions=*/false);
    if (!IsProfileFile(file)) {
      return absl::InvalidArgumentError(
          "the file to write is there and has no \"profiles\" object");
    }
  }
  file["profiles"][note.name] = {{"weights", result.tried[result.best].weights},
                                 {"evidence", Evidence(note, options, result)}};
  return file.dump(1) + "\n";
}

}  // namespace kf::tools
