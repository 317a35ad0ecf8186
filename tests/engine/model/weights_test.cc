#include "engine/model/weights.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "tests/testing/gguf_writer.h"
#include "tests/testing/matchers.h"

namespace kf::engine {
namespace {

using testing::AsBytes;
using testing::GgufWriter;
using testing::IsOk;

struct Matrix {
  const char* name;
  DType type;
  uint64_t rows;
};

// A file of matrices with 256 columns.
WeightFormat ChoiceFor(const std::vector<Matrix>& matrices) {
  GgufWriter writer;
  for (const Matrix& matrix : matrices) {
    const std::array<uint64_t, 2> dims = {256, matrix.rows};
    const BlockLayout layout = LayoutOf(matrix.type);
    const uint64_t blocks =
        256 / static_cast<uint64_t>(layout.elements) * matrix.rows;
    writer.AddTensor(
        matrix.name, dims, static_cast<uint32_t>(matrix.type),
        std::string(blocks * static_cast<uint64_t>(layout.bytes), '\0'));
  }
  const std::string bytes = writer.File();
  const auto file = GgufFile::Parse(AsBytes(bytes));
  EXPECT_THAT(file, IsOk());
  return AutoWeightFormat(**file);
}

TEST(AutoWeightFormat, FollowsMostOfTheLayers) {
  EXPECT_EQ(ChoiceFor({{"blk.0.ffn_up.weight", DType::kQ4_1, 8}}),
            WeightFormat::kQ4);
  EXPECT_EQ(ChoiceFor({{"blk.0.ffn_up.weight", DType::kQ4_K, 8},
                       {"blk.0.ffn_down.weight", DType::kQ6_K, 4}}),
            WeightFormat::kQ4);
  EXPECT_EQ(ChoiceFor({{"blk.0.ffn_up.weight", DType::kQ4_K, 4},
                       {"blk.0.ffn_down.weight", DType::kQ6_K, 8}}),
            WeightFormat::kQ8);
  EXPECT_EQ(ChoiceFor({{"blk.0.ffn_up.weight", DType::kQ8_0, 4}}),
            WeightFormat::kQ8);
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    EXPECT_EQ(ChoiceFor({{"blk.0.ffn_up.weight", type, 4}}),
              WeightFormat::kBF16);
  }
}

TEST(AutoWeightFormat, LooksAtLayersAlone) {
  EXPECT_EQ(ChoiceFor({{"token_embd.weight", DType::kQ8_0, 100},
                       {"blk.0.attn_norm.weight", DType::kF32, 1},
                       {"blk.0.attn_q.weight", DType::kQ4_0, 2}}),
            WeightFormat::kQ4);
  EXPECT_EQ(ChoiceFor({{"token_embd.weight", DType::kQ4_0, 100},
                       {"blk.0.attn_q.weight", DType::kBF16, 2}}),
            WeightFormat::kBF16);
}

}  // namespace
}  // namespace kf::engine
