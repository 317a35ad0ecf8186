#include "tools/bench/table.h"

#include <algorithm>

#include "kernels/core/status.h"

namespace kf::tools {

void Table::Add(std::vector<std::string> row) {
  KF_CHECK(row.size() == rows_.front().size());
  rows_.push_back(std::move(row));
}

std::string Table::Markdown() const {
  std::vector<size_t> widths(rows_.front().size(), 3);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text = "|";
    for (size_t i = 0; i < cells.size(); ++i) {
      text +=
          " " + cells[i] + std::string(widths[i] - cells[i].size(), ' ') + " |";
    }
    return text + "\n";
  };
  std::string text = line(rows_.front()) + "|";
  for (const size_t width : widths) text += std::string(width + 2, '-') + "|";
  text += "\n";
  for (size_t i = 1; i < rows_.size(); ++i) text += line(rows_[i]);
  return text;
}

}  // namespace kf::tools
