#include "tools/client_lib/cache_picture.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "tools/client_lib/text_input.h"

namespace kf::tools {
namespace {

constexpr int kLevels = 8;  // of blue; 0 is the background
constexpr const char* kBlues[kLevels] = {"#dbe9f6", "#bad6eb", "#89bedc",
                                         "#539ecd", "#2b7bba", "#0b559f",
                                         "#083d7f", "#041f45"};
constexpr size_t kPlotWidth = 1024;
constexpr size_t kLeft = 60;
constexpr size_t kTop = 60;        // the document's title
constexpr size_t kPanelHead = 30;  // a panel's title
constexpr size_t kPanelFoot = 50;  // its axis

// A grid of at most kMaxPictureRows x kMaxPictureColumns cells.
struct Grid {
  size_t rows = 0;
  size_t columns = 0;
  size_t layers_per_row = 1;
  size_t positions_per_column = 1;
  std::vector<uint32_t> held;   // [rows, columns]
  std::vector<uint32_t> pairs;  // [rows], (layer, head) pairs of a row
};

size_t CeilDiv(size_t a, size_t b) { return (a + b - 1) / b; }

size_t EndPosition(const HeldPositions& held) {
  size_t end = 0;
  for (const auto& layer : held) {
    for (const auto& head : layer) {
      for (const uint32_t position : head) {
        end = std::max(end, size_t{position} + 1);
      }
    }
  }
  return end;
}

Grid MakeGrid(const HeldPositions& held, size_t positions) {
  Grid grid;
  grid.layers_per_row =
      std::max<size_t>(1, CeilDiv(held.size(), kMaxPictureRows));
  grid.positions_per_column =
      std::max<size_t>(1, CeilDiv(positions, kMaxPictureColumns));
  grid.rows = CeilDiv(held.size(), grid.layers_per_row);
  grid.columns = CeilDiv(positions, grid.positions_per_column);
  grid.held.assign(grid.rows * grid.columns, 0);
  grid.pairs.assign(grid.rows, 0);
  for (size_t layer = 0; layer < held.size(); ++layer) {
    const size_t row = layer / grid.layers_per_row;
    for (const auto& head : held[layer]) {
      ++grid.pairs[row];
      for (const uint32_t position : head) {
        ++grid.held[row * grid.columns + position / grid.positions_per_column];
      }
    }
  }
  return grid;
}

// 0 (nothing is held) to kLevels (everything is).
int LevelOf(const Grid& grid, size_t row, size_t column, size_t positions) {
  const size_t first = column * grid.positions_per_column;
  const size_t width = std::min(grid.positions_per_column, positions - first);
  const auto all = static_cast<double>(grid.pairs[row] * width);
  const uint32_t held = grid.held[row * grid.columns + column];
  if (held == 0) return 0;
  // A list that names a position twice may hold more than all.
  const double share = std::min(held / all, 1.0);
  return std::max(1, static_cast<int>(std::lround(share * kLevels)));
}

std::string Escaped(const std::string& text) {
  if (FindInvalidUtf8(text)) return "(not UTF-8)";
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      default:
        // XML has no other control characters.
        out +=
            static_cast<uint8_t>(c) < 0x20 && c != '\n' && c != '\t' ? '?' : c;
    }
  }
  return out;
}

std::string Text(size_t x,
                 size_t y,
                 const std::string& text,
                 const char* more = "") {
  return absl::StrCat("<text x=\"", x, "\" y=\"", y, "\"", more, ">",
                      Escaped(text), "</text>\n");
}

// One path a level; neighbours in a row are one rectangle of it.
std::string Cells(const Grid& grid, size_t positions) {
  std::vector<std::string> paths(kLevels + 1);
  for (size_t row = 0; row < grid.rows; ++row) {
    for (size_t from = 0; from < grid.columns;) {
      const int level = LevelOf(grid, row, from, positions);
      size_t to = from + 1;
      while (to < grid.columns && LevelOf(grid, row, to, positions) == level) {
        ++to;
      }
      if (level > 0) {
        absl::StrAppend(&paths[static_cast<size_t>(level)], "M", from, " ", row,
                        "h", to - from, "v1H", from, "z");
      }
      from = to;
    }
  }
  std::string out;
  for (int level = 1; level <= kLevels; ++level) {
    const std::string& path = paths[static_cast<size_t>(level)];
    if (path.empty()) continue;
    absl::StrAppend(&out, "<path class=\"l", level, "\" d=\"", path, "\"/>\n");
  }
  return out;
}

std::string Panel(const CachePanel& panel,
                  size_t top,
                  size_t height,
                  size_t positions,
                  uint32_t prompt_tokens) {
  const Grid grid = MakeGrid(panel.held, positions);
  std::string out = Text(kLeft, top + 18, panel.title);
  const size_t plot = top + kPanelHead;
  absl::StrAppend(&out, "<svg x=\"", kLeft, "\" y=\"", plot, "\" width=\"",
                  kPlotWidth, "\" height=\"", height, "\" viewBox=\"0 0 ",
                  std::max<size_t>(grid.columns, 1), " ",
                  std::max<size_t>(grid.rows, 1),
                  "\" preserveAspectRatio=\"none\" "
                  "shape-rendering=\"crispEdges\">\n",
                  "<rect class=\"l0\" width=\"100%\" height=\"100%\"/>\n",
                  Cells(grid, positions), "</svg>\n");
  const size_t foot = plot + height;
  if (prompt_tokens < positions) {
    const size_t x = kLeft + kPlotWidth * prompt_tokens / positions;
    absl::StrAppend(&out, "<line x1=\"", x, "\" y1=\"", plot, "\" x2=\"", x,
                    "\" y2=\"", foot, "\" class=\"end\"/>\n");
    out += Text(x, foot + 32, "answer", " text-anchor=\"middle\"");
  }
  const size_t layers = panel.held.size();
  out += Text(kLeft - 8, plot + 10, "layer 0", " text-anchor=\"end\"");
  if (layers > 1) {
    out += Text(kLeft - 8, foot, std::to_string(layers - 1),
                " text-anchor=\"end\"");
  }
  out += Text(kLeft, foot + 16, "position 0");
  out += Text(kLeft + kPlotWidth, foot + 16,
              std::to_string(positions > 0 ? positions - 1 : 0),
              " text-anchor=\"end\"");
  return out;
}

std::string Style() {
  std::string out =
      "<style>text{font:12px sans-serif;fill:#222}"
      ".end{stroke:#c22;stroke-width:2}.l0{fill:#f3f3f3}";
  for (int level = 1; level <= kLevels; ++level) {
    absl::StrAppend(&out, ".l", level, "{fill:", kBlues[level - 1], "}");
  }
  return out + "</style>\n";
}

std::string Legend(size_t top) {
  std::string out;
  size_t x = kLeft;
  for (int level = 0; level <= kLevels; ++level) {
    absl::StrAppend(&out, "<rect class=\"l", level, "\" x=\"", x, "\" y=\"",
                    top, "\" width=\"24\" height=\"10\"/>\n");
    x += 24;
  }
  return out + Text(x + 8, top + 10,
                    "share of heads and positions held: none to all");
}

}  // namespace

std::string CachePicture(const std::string& title,
                         const std::vector<CachePanel>& panels,
                         uint32_t prompt_tokens) {
  size_t positions = prompt_tokens;
  size_t layers = 1;
  for (const CachePanel& panel : panels) {
    positions = std::max(positions, EndPosition(panel.held));
    layers = std::max(layers, panel.held.size());
  }
  const size_t height = std::clamp<size_t>(layers * 10, 60, 640);
  const size_t step = kPanelHead + height + kPanelFoot;
  const size_t total = kTop + panels.size() * step;
  const size_t width = kLeft + kPlotWidth + 20;
  std::string out = absl::StrCat(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"",
      width, "\" height=\"", total, "\" viewBox=\"0 0 ", width, " ", total,
      "\">\n");
  out += Style();
  out += "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
  out += Text(kLeft, 24, title, " font-weight=\"bold\"");
  out += Legend(36);
  size_t top = kTop;
  for (const CachePanel& panel : panels) {
    out += Panel(panel, top, height, positions, prompt_tokens);
    top += step;
  }
  return out + "</svg>\n";
}

}  // namespace kf::tools
