// Each planted fault is found by the builds that are to find it, by name and at
// its place; and nothing is found where nothing is planted.
#include "tests/cuda/emulation/plants/plants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <fstream>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/gpu_api.h"

namespace kf::emu {

void PrintTo(const Plant& plant, std::ostream* out) { *out << plant.name; }

namespace {

constexpr std::string_view kMode = KF_EMULATED_MODE;

const char* ExpectedHere(const Plant& plant) {
  if (kMode == "plain") return plant.plain;
  return kMode == "asan" ? plant.asan : plant.check;
}

std::vector<Plant> AllPlants() {
  std::vector<Plant> all = MemoryPlants();
  for (const Plant& p : MeetingPlants()) all.push_back(p);
  for (const Plant& p : CopyPlants()) all.push_back(p);
  return all;
}

// True if some ..._plants.cu:line of the report is marked as a fault's place.
bool NamesItsPlace(const std::string& report) {
  constexpr std::string_view kEnd = "_plants.cu:";
  for (size_t at = report.find(kEnd); at != std::string::npos;
       at = report.find(kEnd, at + 1)) {
    size_t begin = at;
    while (begin > 0 && std::isalpha(report[begin - 1]) != 0) --begin;
    std::ifstream source(std::string(KF_SOURCE_DIR) +
                         "/tests/cuda/emulation/plants/" +
                         report.substr(begin, at - begin) + "_plants.cu");
    std::string line;
    for (int n = std::stoi(report.substr(at + kEnd.size())); n > 0; --n) {
      std::getline(source, line);
    }
    if (line.find("// fault") != std::string::npos) return true;
  }
  return false;
}

std::vector<Plant> PlantsToFind() {
  std::vector<Plant> result;
  for (const Plant& p : AllPlants()) {
    const char* expected = ExpectedHere(p);
    if (expected == kWrong || std::string_view(expected) != kAny) {
      result.push_back(p);
    }
  }
  return result;
}

// In a child process, for a sanitizer ends it. Exit code 1: named, and at its
// place (a sanitizer's report too has this code); 2: a wrong result; 3: at a
// wrong place; 0: nothing was noticed.
[[noreturn]] void RunPlanted(const Plant& plant) {
  const bool right = plant.run(true);
  const std::string report = cudaGetErrorString(cudaErrorLaunchFailure);
  if (report.empty()) _exit(right ? 0 : 2);
  std::fprintf(stderr, "%s\n", report.c_str());
  _exit(NamesItsPlace(report) ? 1 : 3);
}

std::string Name(const testing::TestParamInfo<Plant>& param) {
  return std::string(param.param.name);
}

class NotPlanted : public testing::TestWithParam<Plant> {};

TEST_P(NotPlanted, NothingIsFound) {
  EXPECT_TRUE(GetParam().run(false));
  EXPECT_EQ(gpu::TakeError(), "");
}

INSTANTIATE_TEST_SUITE_P(All, NotPlanted, testing::ValuesIn(AllPlants()), Name);

class Planted : public testing::TestWithParam<Plant> {};

TEST_P(Planted, IsFound) {
  const Plant& plant = GetParam();
  const char* expected = ExpectedHere(plant);
  if (expected == kWrong) {
    EXPECT_EXIT(RunPlanted(plant), testing::ExitedWithCode(2), "");
  } else {
    EXPECT_EXIT(RunPlanted(plant), testing::ExitedWithCode(1),
                testing::AllOf(testing::ContainsRegex(expected),
                               testing::ContainsRegex("_plants.cu:[0-9]+")));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Planted, testing::ValuesIn(PlantsToFind()), Name);

}  // namespace
}  // namespace kf::emu
