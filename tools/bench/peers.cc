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

std::string WorkText(const PeerWork& work, const char* what) {
  return fmt::format("{}, {} x {} + {}", what, work.streams,
                     work.shape.prompt_tokens, work.shape.output_tokens);
}

// What clients of our servers wait for whole answers.
std::string WaitsMarkdown(const std::vector<std::string>& engines,
                          size_t ours,
                          const std::vector<PeerRow>& rows) {
  std::vector<std::string> header = {"seconds"};
  for (size_t i = 0; i < ours; ++i) {
    header.push_back(engines[i] + ": first token p50");
    header.push_back("longest gap");
  }
  Table table(header);
  bool any = false;
  for (const PeerRow& row : rows) {
    if (!row.whole) continue;
    any = true;
    std::vector<std::string> cells = {WorkText(row.work, "whole answers")};
    for (size_t i = 0; i < ours; ++i) {
      cells.push_back(fmt::format("{:.2f}", row.speeds[i].first_token_s));
      cells.push_back(fmt::format("{:.2f}", row.speeds[i].longest_gap_s));
    }
    table.Add(std::move(cells));
  }
  return any ? absl::StrCat("\n", table.Markdown()) : std::string();
}

}  // namespace

double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half]
                                : (values[half - 1] + values[half]) / 2.0;
}

double WholeRate(const Speed& speed, const PeerWork& work) {
  // The prompts' last rows give the first tokens.
  const double seconds =
      work.streams * (work.shape.prompt_tokens / speed.prompt +
                      (work.shape.output_tokens - 1) / speed.decode);
  return work.streams * work.shape.output_tokens / seconds;
}

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
  const Speed speed = {.prompt = number("prompt_tokens_per_second"),
                       .decode = number("decode_tokens_per_second")};
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
  absl::StatusOr<Speed> speed = ParseSpeed(output);
  if (speed.ok()) speed->whole = WholeRate(*speed, work);
  return speed;
}

Speed Median(const std::vector<Speed>& rounds) {
  Speed median;
  for (double Speed::*const of :
       {&Speed::prompt, &Speed::decode, &Speed::whole, &Speed::first_token_s,
        &Speed::longest_gap_s}) {
    std::vector<double> values;
    values.reserve(rounds.size());
    for (const Speed& speed : rounds) values.push_back(speed.*of);
    median.*of = MedianOf(std::move(values));
  }
  return median;
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
    if (row.work.streams == 1 && !row.whole) {
      add(row, "prefill", &Speed::prompt);
    }
  }
  for (const PeerRow& row : rows) {
    if (!row.whole) add(row, "decode", &Speed::decode);
  }
  for (const PeerRow& row : rows) {
    if (row.whole) add(row, "whole answers", &Speed::whole);
  }
  return table.Markdown() + WaitsMarkdown(engines, ours, rows);
}

}  // namespace kf::tools
