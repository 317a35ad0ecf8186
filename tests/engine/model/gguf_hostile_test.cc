// Files that are cut, flipped or lie. Nothing may crash (run under ASan, each
// input lies in a heap block of exactly its size), and errors must be clear.
#include <array>
#include <functional>
#include <string>
#include <vector>

#include "engine/model/gguf.h"
#include "tests/engine/model/gguf_probe.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/matchers.h"
#include "tests/testing/tiny_model.h"

namespace kf::engine {
namespace {

using absl::StatusCode;
using ::kf::testing::AsBytes;
using ::kf::testing::GgufWriter;
using ::kf::testing::IsOk;
using ::kf::testing::RawBytes;
using ::kf::testing::RawString;
using ::kf::testing::StatusIs;

constexpr uint64_t kHuge = ~uint64_t{0};

// Parses and probes a copy of exactly these bytes.
absl::Status ParseCopy(std::string_view bytes) {
  const std::span<const std::byte> from = AsBytes(bytes);
  const std::vector<std::byte> copy(from.begin(), from.end());
  const auto file = GgufFile::Parse(copy);
  return file.ok() ? ProbeGguf(**file) : file.status();
}

struct SmallModel {
  SmallModel() {
    GgufWriter writer;
    const kf::testing::TinyModelSpec spec = {
        .layers = 1, .heads = 2, .kv_heads = 1, .head_dim = 4, .ffn = 8};
    AddTinyMetadata(spec, writer);
    AddTinyTensors(spec, writer);
    header_bytes = writer.Header().size();
    file = writer.File();
  }
  size_t header_bytes = 0;
  std::string file;
};

TEST(GgufHostileTest, EveryTruncationIsAnError) {
  const SmallModel model;
  ASSERT_THAT(ParseCopy(model.file), IsOk());
  for (size_t bytes = 0; bytes < model.file.size(); ++bytes) {
    // All of the header; of the data every 37th byte and the last ones. The
    // padding behind the last tensor is no part of it.
    const bool in_data = bytes > model.header_bytes;
    if (in_data && bytes % 37 != 0) continue;
    const absl::Status status =
        ParseCopy(std::string_view(model.file).substr(0, bytes));
    ASSERT_EQ(status.code(), StatusCode::kInvalidArgument) << bytes;
    ASSERT_FALSE(status.message().empty());
  }
}

TEST(GgufHostileTest, NoFlippedBitOfTheHeaderCrashes) {
  SmallModel model;
  std::vector<std::byte> bytes(AsBytes(model.file).begin(),
                               AsBytes(model.file).end());
  int refused = 0;
  int accepted = 0;
  for (size_t at = 0; at < model.header_bytes; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      const std::byte before = bytes[at];
      bytes[at] ^= static_cast<std::byte>(1 << bit);
      const auto file = GgufFile::Parse(bytes);
      const absl::Status status = file.ok() ? ProbeGguf(**file) : file.status();
      bytes[at] = before;
      if (status.ok()) {
        ++accepted;
        continue;
      }
      ++refused;
      ASSERT_EQ(status.code(), StatusCode::kInvalidArgument)
          << "byte " << at << " bit " << bit << ": " << status.ToString();
      ASSERT_FALSE(status.message().empty());
    }
  }
  // A flip in a token's text is another text; one in a count is a lie.
  EXPECT_GT(refused, 1000);
  EXPECT_GT(accepted, 1000);
}

struct LieCase {
  std::string name;
  std::string part;  // of the message
  std::function<std::string()> make;
};

void PrintTo(const LieCase& lie, std::ostream* out) { *out << lie.name; }

class GgufLieTest : public ::testing::TestWithParam<LieCase> {};

TEST_P(GgufLieTest, IsRefusedWithTheReason) {
  EXPECT_THAT(ParseCopy(GetParam().make()),
              StatusIs(StatusCode::kInvalidArgument, GetParam().part));
}

// A file of one call to the writer.
LieCase Written(std::string name,
                std::string part,
                const std::function<void(GgufWriter&)>& write) {
  return {std::move(name), std::move(part), [write] {
            GgufWriter writer;
            write(writer);
            return writer.File();
          }};
}

LieCase Bytes(std::string name, std::string part, const std::string& bytes) {
  return {std::move(name), std::move(part), [bytes] { return bytes; }};
}

std::string Start(uint32_t version, uint64_t tensors, uint64_t keys) {
  return std::string("GGUF") + RawBytes(version) + RawBytes(tensors) +
         RawBytes(keys);
}

constexpr std::array<uint64_t, 1> kOne = {8};

std::vector<LieCase> FileLies() {
  return {
      Bytes("Empty", "magic", ""),
      Bytes("NotGguf", "not a GGUF file: it starts with \"GGML\"",
            std::string("GGML") + std::string(60, '\0')),
      Bytes("Version1", "version 1 is not supported", Start(1, 0, 0)),
      Bytes("Version4", "version 4 is not supported", Start(4, 0, 0)),
      Bytes("Version0", "version 0 is not supported", Start(0, 0, 0)),
      Bytes("BigEndian", "big-endian", Start(0x03000000, 0, 0)),
      Bytes("KeyCount", "number of keys: 18446744073709551615",
            Start(3, 0, kHuge)),
      Bytes("TensorCount", "number of tensors: 18446744073709551615",
            Start(3, kHuge, 0)),
      Bytes("KeyCountOneMore", "key name: 8 bytes wanted", Start(3, 0, 1)),
      Bytes("TensorCountOneMore", "tensor name: 8 bytes wanted",
            Start(3, 1, 0)),
      Bytes("KeyLength", "key name: length 18446744073709551615",
            Start(3, 0, 1) + RawBytes(kHuge)),
      Bytes("KeyPastEnd", "key name: 1000 bytes wanted",
            Start(3, 0, 1) + RawBytes(uint64_t{1000}) + "abc"),
  };
}

std::vector<LieCase> KeyLies() {
  return {
      Written("EmptyKey", "empty key name",
              [](GgufWriter& w) { w.AddUint32("", 1); }),
      Written("DuplicateKey", "key x appears again",
              [](GgufWriter& w) {
                w.AddUint32("x", 1);
                w.AddString("x", "y");
              }),
      Written("UnknownValueType", "unknown value type 13",
              [](GgufWriter& w) { w.AddRaw("x", 13, "abcdefgh"); }),
      Written("UnknownElementType", "unknown value type 99",
              [](GgufWriter& w) { w.AddRawArray("x", 99, 1, "abcdefgh"); }),
      Written("NestedArray", "array of arrays",
              [](GgufWriter& w) { w.AddRawArray("x", 9, 1, "abcdefghijkl"); }),
      Written("StringLength", "key x: 18446744073709551615 bytes wanted",
              [](GgufWriter& w) { w.AddRaw("x", 8, RawBytes(kHuge)); }),
      Written("ArrayCount", "18446744073709551615 values of 4 bytes",
              [](GgufWriter& w) { w.AddRawArray("x", 4, kHuge, "abcd"); }),
      Written("ArrayCountOverflow", "4611686018427387905 values of 4 bytes",
              [](GgufWriter& w) {
                w.AddRawArray("x", 4, (uint64_t{1} << 62) + 1, "abcd");
              }),
      Written("StringCount", "1152921504606846976 strings",
              [](GgufWriter& w) {
                w.AddRawArray("x", 8, uint64_t{1} << 60, RawString("a"));
              }),
      Written("AlignmentZero", "general.alignment: 0, want a power of two",
              [](GgufWriter& w) { w.AddUint32("general.alignment", 0); }),
      Written("AlignmentOdd", "general.alignment: 24, want a power of two",
              [](GgufWriter& w) { w.AddUint32("general.alignment", 24); }),
      Written(
          "AlignmentHuge", "general.alignment: 2147483648",
          [](GgufWriter& w) { w.AddUint32("general.alignment", 1U << 31); }),
      Written("AlignmentText", "general.alignment: type string, want uint32",
              [](GgufWriter& w) { w.AddString("general.alignment", "32"); }),
  };
}

std::vector<LieCase> TensorLies() {
  using Dims2 = std::array<uint64_t, 2>;
  const std::string data(32, 'x');
  return {
      Written("NameTooLong", "tensor name: length 65",
              [data](GgufWriter& w) {
                w.AddTensor(std::string(65, 'n'), kOne, 0, data);
              }),
      Written("EmptyName", "empty tensor name",
              [data](GgufWriter& w) { w.AddTensor("", kOne, 0, data); }),
      Written("DuplicateTensor", "tensor t appears again",
              [data](GgufWriter& w) {
                w.AddTensor("t", kOne, 0, data);
                w.AddTensor("t", kOne, 0, data);
              }),
      Written("NoDimensions", "tensor t: 0 dimensions",
              [](GgufWriter& w) { w.AddTensorInfo("t", {}, 0, 0); }),
      Written(
          "FiveDimensions", "tensor t: 5 dimensions",
          [](GgufWriter& w) {
            w.AddTensorInfo("t", std::array<uint64_t, 5>{1, 1, 1, 1, 1}, 0, 0);
          }),
      Written("ZeroDimension", "dimension 1 is 0",
              [](GgufWriter& w) {
                w.AddTensorInfo("t", Dims2{8, 0}, 0, 0);
              }),
      Written("ProductOverflow", "dimension 1 is 4294967296",
              [](GgufWriter& w) {
                w.AddTensorInfo("t", Dims2{1ULL << 32, 1ULL << 32}, 0, 0);
              }),
      Written("HugeDimension", "dimension 0 is 18446744073709551615",
              [](GgufWriter& w) {
                w.AddTensorInfo("t", std::array<uint64_t, 1>{kHuge}, 0, 0);
              }),
      Written("HugeUnknownType", "dimension 0 is 18446744073709551615",
              [](GgufWriter& w) {
                w.AddTensorInfo("t", std::array<uint64_t, 1>{kHuge}, 19, 0);
              }),
      Written("PartBlock", "40 columns, want a multiple of 32 for type Q4_1",
              [](GgufWriter& w) {
                w.AddTensorInfo("t", std::array<uint64_t, 1>{40}, 3, 0);
              }),
      Written("PastEnd", "tensor t: 36 bytes at offset 0",
              [data](GgufWriter& w) {
                w.AddTensor("t", std::array<uint64_t, 1>{9}, 0, data);
              }),
      Written("OffsetPastEnd", "32 bytes at offset 64 of the data section",
              [](GgufWriter& w) { w.AddTensorInfo("t", kOne, 0, 64); }),
      Written("OffsetHuge", "at offset 18446744073709551584",
              [](GgufWriter& w) { w.AddTensorInfo("t", kOne, 0, kHuge - 31); }),
      Written("OffsetUnaligned", "offset 4 is no multiple of 32",
              [](GgufWriter& w) { w.AddTensorInfo("t", kOne, 0, 4); }),
      Written("UnknownTypePastEnd", "tensor t: 0 bytes at offset 4096",
              [](GgufWriter& w) { w.AddTensorInfo("t", kOne, 19, 4096); }),
      Written("Overlap", "tensor b overlaps the data of tensor a",
              [data](GgufWriter& w) {
                w.AddTensor("a", std::array<uint64_t, 1>{16}, 0, data + data);
                w.AddTensorInfo("b", kOne, 0, 32);
              }),
  };
}

std::string NameOfLie(const ::testing::TestParamInfo<LieCase>& lie) {
  return lie.param.name;
}

INSTANTIATE_TEST_SUITE_P(File,
                         GgufLieTest,
                         ::testing::ValuesIn(FileLies()),
                         NameOfLie);
INSTANTIATE_TEST_SUITE_P(Keys,
                         GgufLieTest,
                         ::testing::ValuesIn(KeyLies()),
                         NameOfLie);
INSTANTIATE_TEST_SUITE_P(Tensors,
                         GgufLieTest,
                         ::testing::ValuesIn(TensorLies()),
                         NameOfLie);

TEST(GgufHostileTest, NamesInMessagesAreEscapedAndCut) {
  GgufWriter writer;
  const std::string name = "\x1b[31m\xff" + std::string(200, 'k');
  writer.AddRaw(name, 77, "");
  const absl::Status status = ParseCopy(writer.File());
  EXPECT_THAT(status,
              StatusIs(StatusCode::kInvalidArgument, "key \\x1b[31m\\xffkkk"));
  EXPECT_LT(status.message().size(), 200U);
}

}  // namespace
}  // namespace kf::engine
