// A Markdown table that is also aligned for a terminal.
#pragma once

#include <string>
#include <vector>

namespace kf::tools {

class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}

  // As many cells as the header has.
  void Add(std::vector<std::string> row);
  std::string Markdown() const;

 private:
  std::vector<std::vector<std::string>> rows_;  // the header first
};

}  // namespace kf::tools
