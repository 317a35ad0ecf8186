#include "tools/sim/specs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/testing/matchers.h"

namespace kf::sim {
namespace {

using testing::IsOk;
using testing::StatusIs;

constexpr char kDevice[] =
    R"({"name": "d", "memory_bytes": 8e9, "memory_bytes_per_s": 1e11,
        "tensor_flops_16": 2e12, "vector_flops": 1e11, "efficiency": 0.5})";
constexpr char kModel[] =
    R"({"name": "m", "layers": 4, "hidden": 64, "ffn": 128, "query_heads": 4,
        "kv_heads": 2, "head_dim": 16, "vocabulary": 100,
        "context_tokens": 512})";

// `text` with the first `from` replaced.
std::string With(std::string text,
                 const std::string& from,
                 const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(SpecsTest, ReadsADevice) {
  const auto device = ParseDevice(kDevice);
  ASSERT_THAT(device, IsOk());
  EXPECT_EQ(device->memory_bytes, 8e9);
  EXPECT_EQ(device->tensor_flops_8, 2e12);  // the 16-bit rate
  EXPECT_EQ(device->efficiency, 0.5);
}

TEST(SpecsTest, ReadsAModel) {
  const auto model = ParseModel(kModel);
  ASSERT_THAT(model, IsOk());
  EXPECT_EQ(model->ffn_matrices, 3);
  EXPECT_EQ(model->weight_bytes, 2);
  EXPECT_FALSE(model->tied_output);
  EXPECT_EQ(model->context_tokens, 512);
}

TEST(SpecsTest, RefusesABadDevice) {
  const auto refused = [](const std::string& text, const char* message) {
    EXPECT_THAT(ParseDevice(text),
                StatusIs(absl::StatusCode::kInvalidArgument, message));
  };
  refused("", "device: no JSON object");
  refused("[1]", "device: no JSON object");
  refused("{", "device: no JSON object");
  refused(With(kDevice, "\"memory_bytes\": 8e9,", ""), "memory_bytes: missing");
  refused(With(kDevice, "8e9", "\"x\""), "memory_bytes: want a number");
  refused(With(kDevice, "8e9", "0"), "memory_bytes: 0, want 1 to 1e+18");
  refused(With(kDevice, "0.5", "1.5"), "efficiency: 1.5, want 1e-06 to 1");
  refused(With(kDevice, "0.5", "0"), "efficiency: 0, want 1e-06 to 1");
  refused(With(kDevice, "\"d\"", "7"), "name: want a string");
  refused(With(kDevice, "{", "{\"memry\": 1,"), "\"memry\": unknown field");
}

TEST(SpecsTest, RefusesABadModel) {
  const auto refused = [](const std::string& text, const char* message) {
    EXPECT_THAT(ParseModel(text),
                StatusIs(absl::StatusCode::kInvalidArgument, message));
  };
  refused(With(kModel, "\"kv_heads\": 2", "\"kv_heads\": 3"),
          "query_heads: 4, want a multiple of kv_heads, 3");
  refused(With(kModel, "\"kv_heads\": 2", "\"kv_heads\": 0"),
          "kv_heads: 0, want 1 to 4096");
  refused(With(kModel, "\"layers\": 4", "\"layers\": 2.5"),
          "layers: 2.5, want a whole number");
  refused(With(kModel, "\"layers\": 4", "\"layers\": 1e12"), "layers: 1e+12");
  refused(With(kModel, "{", "{\"cache_bytes\": 3,"),
          "cache_bytes: 3, want 1, 2 or 4");
  refused(With(kModel, "{", "{\"tied_output\": 1,"),
          "tied_output: want true or false");
}

TEST(SpecsTest, KnowsItsOwnByName) {
  for (const std::string& name : DeviceNames()) {
    EXPECT_THAT(FindDevice(name), IsOk());
  }
  for (const std::string& name : ModelNames()) {
    EXPECT_THAT(FindModel(name), IsOk());
  }
  EXPECT_THAT(FindDevice("b200"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "device: \"b200\", want a100-80gb, h200, or a file"));
  EXPECT_FALSE(FindModel("/no/such/file.json").ok());
}

}  // namespace
}  // namespace kf::sim
