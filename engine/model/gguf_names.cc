// Names of GGUF's value and tensor types, for messages.
#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "engine/model/gguf_parse.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

struct ValueTypeRow {
  std::string_view name;
  size_t bytes;
};

// Indexed by GgufType.
constexpr ValueTypeRow kValueTypes[] = {
    {"uint8", 1},  {"int8", 1},    {"uint16", 2},  {"int16", 2},  {"uint32", 4},
    {"int32", 4},  {"float32", 4}, {"bool", 1},    {"string", 0}, {"array", 0},
    {"uint64", 8}, {"int64", 8},   {"float64", 8},
};

struct TensorTypeRow {
  uint32_t type;
  std::string_view name;
};

// GGML's types that we do not read (ggml.h, enum ggml_type).
constexpr TensorTypeRow kOtherTensorTypes[] = {
    {4, "Q4_2"},        {5, "Q4_3"},        {9, "Q8_1"},
    {10, "Q2_K"},       {11, "Q3_K"},       {15, "Q8_K"},
    {16, "IQ2_XXS"},    {17, "IQ2_XS"},     {18, "IQ3_XXS"},
    {19, "IQ1_S"},      {20, "IQ4_NL"},     {21, "IQ3_S"},
    {22, "IQ2_S"},      {23, "IQ4_XS"},     {24, "I8"},
    {25, "I16"},        {26, "I32"},        {27, "I64"},
    {28, "F64"},        {29, "IQ1_M"},      {31, "Q4_0_4_4"},
    {32, "Q4_0_4_8"},   {33, "Q4_0_8_8"},   {34, "TQ1_0"},
    {35, "TQ2_0"},      {36, "IQ4_NL_4_4"}, {37, "IQ4_NL_4_8"},
    {38, "IQ4_NL_8_8"}, {39, "MXFP4"},
};

}  // namespace

std::string GgufTypeName(GgufType type) {
  const uint32_t number = static_cast<uint32_t>(type);
  if (number >= std::size(kValueTypes)) return absl::StrCat("type ", number);
  return std::string(kValueTypes[number].name);
}

size_t GgufTypeBytes(GgufType type) {
  const uint32_t number = static_cast<uint32_t>(type);
  return number < std::size(kValueTypes) ? kValueTypes[number].bytes : 0;
}

std::string GgufTensorTypeName(uint32_t type) {
  if (IsKnownDType(type)) return std::string(NameOf(static_cast<DType>(type)));
  for (const TensorTypeRow& row : kOtherTensorTypes) {
    if (row.type == type)
      return absl::StrCat(type, " (", ToAbsl(row.name), ")");
  }
  return absl::StrCat(type);
}

std::string GgufQuote(std::string_view text) {
  constexpr size_t kMaxBytes = 64;
  const std::string cut = absl::CHexEscape(ToAbsl(text.substr(0, kMaxBytes)));
  return text.size() > kMaxBytes ? absl::StrCat(cut, "...") : cut;
}

}  // namespace kf::engine
