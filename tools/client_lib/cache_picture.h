// What a cache holds as a picture: layers down, positions across.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kf::tools {

// [layers][heads] lists of positions that are held.
using HeldPositions = std::vector<std::vector<std::vector<uint32_t>>>;

struct CachePanel {
  std::string title;
  HeldPositions held;
};

// A bound of the picture's size, whatever the prompt: so many columns and rows
// at most; each cell then stands for several positions or layers.
inline constexpr size_t kMaxPictureColumns = 512;
inline constexpr size_t kMaxPictureRows = 128;

// An SVG document, one heat map a panel: a cell is as dark as the share of its
// (head, position) pairs that are held. `prompt_tokens` is where the answer
// begins. Titles may be any text.
std::string CachePicture(const std::string& title,
                         const std::vector<CachePanel>& panels,
                         uint32_t prompt_tokens);

}  // namespace kf::tools
