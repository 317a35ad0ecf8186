// Kernels with a planted fault each, one of every class that the emulator is to
// find. Not planted, the same kernel is right, and no build may say otherwise.
#pragma once

#include <string_view>
#include <vector>

namespace kf::emu {

// What a build makes of a fault. A text: it ends the run and names it so.
inline constexpr const char* kWrong = nullptr;  // the result is wrong
inline constexpr const char* kAny = "";         // it may pass unnoticed

struct Plant {
  std::string_view name;
  // Launches, reads back; true: the result is right.
  bool (*run)(bool planted);
  const char* plain;
  const char* asan;
  const char* check;
};

std::vector<Plant> MemoryPlants();   // memory_plants.cu
std::vector<Plant> MeetingPlants();  // meeting_plants.cu: barriers and warps
std::vector<Plant> CopyPlants();     // copy_plants.cu: cp.async and tiles

}  // namespace kf::emu
