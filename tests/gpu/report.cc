#include "tests/gpu/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/core/status.h"

namespace kf::gpu_bench {
namespace {

// Three digits that say something, no exponents.
std::string Shown(double value) {
  if (!std::isfinite(value)) return "-";
  const double size = std::fabs(value);
  const int digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::vector<std::string> Columns(const Section& section) {
  std::vector<std::string> columns;
  for (const Row& row : section.rows) {
    for (const auto& [name, value] : row.values) {
      if (std::find(columns.begin(), columns.end(), name) == columns.end()) {
        columns.push_back(name);
      }
    }
  }
  return columns;
}

bool HasNotes(const Section& section) {
  return std::any_of(section.rows.begin(), section.rows.end(),
                     [](const Row& row) { return !row.note.empty(); });
}

std::string TableOf(const Section& section) {
  if (section.rows.empty()) return "Not measured.\n";
  const std::vector<std::string> columns = Columns(section);
  const bool notes = HasNotes(section);
  std::string head = "| |";
  std::string rule = "|---|";
  for (const std::string& column : columns) {
    head += " " + column + " |";
    rule += "---|";
  }
  if (notes) {
    head += " |";
    rule += "---|";
  }
  std::string text = head + "\n" + rule + "\n";
  for (const Row& row : section.rows) {
    text += "| " + row.name + " |";
    for (const std::string& column : columns) {
      text += " " + Shown(ValueOf(row, column)) + " |";
    }
    if (notes) text += " " + row.note + " |";
    text += "\n";
  }
  return text;
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.flush();
  if (!out) return absl::UnavailableError("cannot write " + path);
  return absl::OkStatus();
}

}  // namespace

double ValueOf(const Row& row, std::string_view name) {
  for (const auto& [key, value] : row.values) {
    if (key == name) return value;
  }
  return kUnknown;
}

void Report::Begin(std::string title, std::vector<std::string> remarks) {
  std::printf("\n== %s\n", title.c_str());
  for (const std::string& remark : remarks) {
    std::printf("   %s\n", remark.c_str());
  }
  std::fflush(stdout);
  sections_.push_back({std::move(title), std::move(remarks), {}});
}

void Report::Add(Row row) {
  KF_CHECK(!sections_.empty());
  std::printf("%-44s", row.name.c_str());
  for (const auto& [name, value] : row.values) {
    std::printf(" %s %s", name.c_str(), Shown(value).c_str());
  }
  if (!row.note.empty()) std::printf(" (%s)", row.note.c_str());
  std::printf("\n");
  std::fflush(stdout);
  sections_.back().rows.push_back(std::move(row));
}

void Report::Fact(std::string name, std::string value) {
  std::printf("%s: %s\n", name.c_str(), value.c_str());
  std::fflush(stdout);
  facts_.emplace_back(std::move(name), std::move(value));
}

std::string Report::Json() const {
  nlohmann::ordered_json json;
  json["facts"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : facts_) json["facts"][name] = value;
  json["sections"] = nlohmann::ordered_json::array();
  for (const Section& section : sections_) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const Row& row : section.rows) {
      nlohmann::ordered_json line = {{"name", row.name}};
      for (const auto& [name, value] : row.values) {
        line[name] = std::isfinite(value) ? nlohmann::ordered_json(value)
                                          : nlohmann::ordered_json(nullptr);
      }
      if (!row.note.empty()) line["note"] = row.note;
      rows.push_back(std::move(line));
    }
    json["sections"].push_back({{"title", section.title},
                                {"remarks", section.remarks},
                                {"rows", std::move(rows)}});
  }
  return json.dump(1) + "\n";
}

std::string Report::Markdown() const {
  std::string text = "# GPU benchmark\n\n";
  for (const auto& [name, value] : facts_) {
    text += "- " + name + ": " + value + "\n";
  }
  for (const Section& section : sections_) {
    text += "\n## " + section.title + "\n";
    for (const std::string& remark : section.remarks) text += remark + "\n";
    text += "\n" + TableOf(section);
  }
  return text;
}

absl::Status Report::Write(const std::string& folder) const {
  KF_RETURN_IF_ERROR(WriteFile(folder + "/results.json", Json()));
  return WriteFile(folder + "/results.md", Markdown());
}

}  // namespace kf::gpu_bench
