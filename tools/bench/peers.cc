#include "tools/bench/peers.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "tools/bench/table.h"

namespace kf::tools {
namespace {

std::string Quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::string_view LastLine(std::string_view text) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  const size_t before = text.rfind('\n');
  return before == text.npos ? text : text.substr(before + 1);
}

double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half]
                                : (values[half - 1] + values[half]) / 2.0;
}

std::string WorkText(const PeerWork& work, const char* what) {
  return fmt::format("{}, {} x {}", what, work.streams,
                     work.shape.prompt_tokens);
}

}  // namespace

absl::StatusOr<Peer> ParsePeer(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == text.npos || equals == 0 || equals + 1 == text.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--peer: \"", text, "\", want name=command"));
  }
  return Peer{text.substr(0, equals), text.substr(equals + 1)};
}

absl::StatusOr<Speed> ParseSpeed(std::string_view output) {
  const std::string line(LastLine(output));
  const auto json = nlohmann::json::parse(line, nullptr, false);
  const auto number = [&json](const char* key) {
    return json.is_object() && json.contains(key) && json[key].is_number()
               ? json[key].get<double>()
               : 0.0;
  };
  const Speed speed = {number("prompt_tokens_per_second"),
                       number("decode_tokens_per_second")};
  if (speed.prompt > 0.0 && speed.decode > 0.0) return speed;
  return absl::InvalidArgumentError(
      absl::StrCat("a peer's last line: \"", line,
                   "\", want JSON with prompt_tokens_per_second and "
                   "decode_tokens_per_second"));
}

absl::StatusOr<Speed> RunPeer(const Peer& peer,
                              const std::string& model,
                              int threads,
                              const PeerWork& work) {
  const std::string command = absl::StrCat(
      peer.command, " --model ", Quoted(model), " --threads ", threads,
      " --streams ", work.streams, " --prompt_tokens ",
      work.shape.prompt_tokens, " --output_tokens ", work.shape.output_tokens);
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot run: ", command));
  }
  std::string output;
  std::array<char, 4096> piece;
  while (const size_t count = std::fread(piece.data(), 1, piece.size(), pipe)) {
    output.append(piece.data(), count);
  }
  if (pclose(pipe) != 0) {
    return absl::UnavailableError(absl::StrCat("failed: ", command));
  }
  return ParseSpeed(output);
}

Speed Median(const std::vector<Speed>& rounds) {
  std::vector<double> prompts;
  std::vector<double> decodes;
  for (const Speed& speed : rounds) {
    prompts.push_back(speed.prompt);
    decodes.push_back(speed.decode);
  }
  return {MedianOf(std::move(prompts)), MedianOf(std::move(decodes))};
}

std::string PeersMarkdown(const std::vector<std::string>& engines,
                          size_t ours,
                          const std::vector<PeerRow>& rows) {
  std::vector<std::string> header = {"tokens/s"};
  header.insert(header.end(), engines.begin(), engines.end());
  for (size_t i = 0; i < ours; ++i) {
    for (size_t j = ours; j < engines.size(); ++j) {
      header.push_back(fmt::format("{} / {}", engines[i], engines[j]));
    }
  }
  Table table(header);
  const auto add = [&](const PeerRow& row, const char* what,
                       double Speed::*of) {
    std::vector<std::string> cells = {WorkText(row.work, what)};
    for (const Speed& speed : row.speeds) {
      cells.push_back(fmt::format("{:.0f}", speed.*of));
    }
    for (size_t i = 0; i < ours; ++i) {
      for (size_t j = ours; j < row.speeds.size(); ++j) {
        cells.push_back(
            fmt::format("{:.1f}", row.speeds[i].*of / row.speeds[j].*of));
      }
    }
    table.Add(std::move(cells));
  };
  for (const PeerRow& row : rows) {
    // Of several prompts the servers' steps overlap with others' decoding.
    if (row.work.streams == 1) add(row, "prefill", &Speed::prompt);
  }
  for (const PeerRow& row : rows) add(row, "decode", &Speed::decode);
  return table.Markdown();
}

}  // namespace kf::tools
