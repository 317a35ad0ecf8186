// What the GPU benchmark measured: rows of named numbers in sections, written
// as one JSON file and as one Markdown page of tables.
#pragma once

#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace kf::gpu_bench {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// kUnknown where `of` is not known, or 0.
inline double Percent(double part, double of) {
  return of > 0.0 ? 100.0 * part / of : kUnknown;
}

// One line of a table. Numbers are in the units that their names end on (_us,
// _ms, _s, _gb_s, _tflops, _pct); a NaN is written as null and as "-".
struct Row {
  std::string name;
  std::vector<std::pair<std::string, double>> values;
  std::string note;  // what the numbers are not: cut short, extrapolated
};

struct Section {
  std::string title;
  std::vector<std::string> remarks;  // above the table
  std::vector<Row> rows;
};

class Report {
 public:
  // Later rows go to this section.
  void Begin(std::string title, std::vector<std::string> remarks);
  // Prints the row to standard output as well: what is done is not lost if the
  // run is cut short.
  void Add(Row row);
  // Facts about the run: device, time.
  void Fact(std::string name, std::string value);

  const std::vector<Section>& sections() const { return sections_; }
  // {"facts": {..}, "sections": [{"title", "remarks", "rows": [{"name", ..}]}]}
  std::string Json() const;
  // Columns in the order in which a section's rows first name them.
  std::string Markdown() const;
  // FOLDER/results.json and FOLDER/results.md; the folder exists.
  absl::Status Write(const std::string& folder) const;

 private:
  std::vector<std::pair<std::string, std::string>> facts_;
  std::vector<Section> sections_;
};

// Of `row`; NaN: it has none.
double ValueOf(const Row& row, std::string_view name);

}  // namespace kf::gpu_bench
