// Files of layer profiles: what is read, and what a bad one is told.
#include "engine/cache/layer_profile.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/core/status.h"
#include "tests/testing/matchers.h"
#include "tests/testing/temp_dir.h"

namespace kf::engine {
namespace {

using ::kf::testing::StatusIs;

class LayerProfileTest : public ::testing::Test {
 protected:
  absl::StatusOr<LayerProfiles> Load(const std::string& text) {
    std::ofstream(path_) << text;
    return LoadLayerProfiles(path_, 3, /*optional=*/true);
  }

  testing::TempDir dir_;
  const std::string path_ = LayerProfilesPath(dir_.File("model.gguf"));
};

TEST_F(LayerProfileTest, StandsBesideTheModel) {
  EXPECT_EQ(LayerProfilesPath("a/m.gguf"), "a/m.gguf.profiles.json");
}

TEST_F(LayerProfileTest, NoFileIsUniformAlone) {
  const auto profiles = LoadLayerProfiles(path_, 3, /*optional=*/true);
  ASSERT_TRUE(profiles.ok()) << profiles.status();
  EXPECT_EQ(*profiles, (LayerProfiles{{"uniform", {}}}));
  // But not where the file was asked for.
  EXPECT_THAT(
      LoadLayerProfiles(path_, 3, /*optional=*/false),
      StatusIs(absl::StatusCode::kInvalidArgument, path_ + ": no such file"));
}

TEST_F(LayerProfileTest, ReadsWeightsAndIgnoresTheRest) {
  const auto profiles = Load(R"({
    "model": "tiny",
    "profiles": {
      "retrieval-1.0": {"weights": [0.5, 2, 0.5],
                        "evidence": {"needles": [14, 20]}},
      "first": {"weights": [3, 0, 0]}}})");
  ASSERT_TRUE(profiles.ok()) << profiles.status();
  EXPECT_EQ(*profiles, (LayerProfiles{{"first", {3, 0, 0}},
                                      {"retrieval-1.0", {0.5, 2, 0.5}},
                                      {"uniform", {}}}));
}

struct BadFile {
  const char* name;
  std::string text;
  const char* message;  // after the path
};

class BadProfileTest : public LayerProfileTest,
                       public ::testing::WithParamInterface<BadFile> {};

TEST_P(BadProfileTest, IsToldByFileProfileAndField) {
  const auto profiles = Load(GetParam().text);
  EXPECT_THAT(profiles.status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                          path_ + ": " + GetParam().message));
}

std::string ManyProfiles() {
  std::string text = R"({"profiles": {)";
  for (int i = 0; i < 257; ++i) {
    text += (i == 0 ? "\"p" : ",\"p") + std::to_string(i) +
            R"(": {"weights": [1, 1, 1]})";
  }
  return text + "}}";
}

INSTANTIATE_TEST_SUITE_P(
    All,
    BadProfileTest,
    ::testing::Values(
        BadFile{"Empty", "", "the file: not JSON"},
        BadFile{"CutOff", R"({"profiles": {"a": {"weights": [1, 1)",
                "the file: not JSON"},
        BadFile{"DeepNesting", std::string(1 << 19, '['), "the file: not JSON"},
        BadFile{"TooLarge", std::string((1 << 20) + 1, ' '),
                "the file: larger than 1 MiB"},
        BadFile{"List", "[]", "profiles: missing"},
        BadFile{"NoProfiles", "{}", "profiles: missing"},
        BadFile{"ProfilesAreAList", R"({"profiles": []})", "profiles: missing"},
        BadFile{"TooMany", ManyProfiles(), "profiles: 257, want at most 256"},
        BadFile{"NoWeights", R"({"profiles": {"a": {}}})",
                "profiles.a.weights: missing, want a list of numbers"},
        BadFile{"ProfileIsANumber", R"({"profiles": {"a": 1}})",
                "profiles.a.weights: missing"},
        BadFile{"WeightIsText", R"({"profiles": {"a": {"weights": [1, "1"]}}})",
                "profiles.a.weights[1]: not a number"},
        BadFile{"TooFew", R"({"profiles": {"a": {"weights": [1, 1]}}})",
                "profiles.a.weights: 2 numbers, want one for each of the 3"},
        BadFile{"Negative", R"({"profiles": {"a": {"weights": [-1, 2, 2]}}})",
                "profiles.a.weights[0]: -1, want a finite number >= 0"},
        BadFile{"Mean", R"({"profiles": {"a": {"weights": [1, 1, 2]}}})",
                "profiles.a.weights: their mean is 1.33333, want 1"},
        BadFile{"OwnUniform",
                R"({"profiles": {"uniform": {"weights": [1, 1, 1]}}})",
                "profiles.uniform: built in, want another name"},
        BadFile{"EmptyName", R"({"profiles": {"": {"weights": [1, 1, 1]}}})",
                "profiles: a name is 1 to 64"},
        BadFile{"ControlInName",
                R"({"profiles": {"a\nb": {"weights": [1, 1, 1]}}})",
                "profiles: a name is 1 to 64"}),
    [](const auto& param) { return std::string(param.param.name); });

TEST_F(LayerProfileTest, AFolderIsNoFile) {
  std::filesystem::create_directory(path_);
  EXPECT_THAT(LoadLayerProfiles(path_, 3, /*optional=*/true),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       path_ + ": the file: not a regular file"));
}

}  // namespace
}  // namespace kf::engine
