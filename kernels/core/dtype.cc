#include "kernels/core/dtype.h"

namespace kf {
namespace {

struct DTypeRow {
  DType type;
  BlockLayout layout;
  std::string_view name;
};

// Bytes are sizeof(block_*) of ggml-common.h.
constexpr DTypeRow kTypes[] = {
    {DType::kF32, {1, 4}, "F32"},       {DType::kF16, {1, 2}, "F16"},
    {DType::kQ4_0, {32, 18}, "Q4_0"},   {DType::kQ4_1, {32, 20}, "Q4_1"},
    {DType::kQ5_0, {32, 22}, "Q5_0"},   {DType::kQ5_1, {32, 24}, "Q5_1"},
    {DType::kQ8_0, {32, 34}, "Q8_0"},   {DType::kQ4_K, {256, 144}, "Q4_K"},
    {DType::kQ5_K, {256, 176}, "Q5_K"}, {DType::kQ6_K, {256, 210}, "Q6_K"},
    {DType::kI8, {1, 1}, "I8"},         {DType::kBF16, {1, 2}, "BF16"},
};

constexpr const DTypeRow* Find(DType type) {
  for (const DTypeRow& row : kTypes) {
    if (row.type == type) return &row;
  }
  return nullptr;
}

}  // namespace

BlockLayout LayoutOf(DType type) {
  const DTypeRow* row = Find(type);
  return row == nullptr ? BlockLayout{} : row->layout;
}

std::string_view NameOf(DType type) {
  const DTypeRow* row = Find(type);
  return row == nullptr ? std::string_view("unknown") : row->name;
}

bool IsKnownDType(uint32_t value) {
  const auto type = static_cast<DType>(value);
  return type != DType::kI8 && Find(type) != nullptr;
}

}  // namespace kf
