// Values and tensors of valid files, and the errors of look-ups.
#include "engine/model/gguf.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <limits>

#include "tests/testing/default_model.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/tiny_model.h"

namespace kf::engine {
namespace {

using absl::StatusCode;
using ::kf::testing::AsBytes;
using ::kf::testing::GgufWriter;
using ::kf::testing::IsOk;
using ::kf::testing::RawBytes;
using ::kf::testing::StatusIs;
using ::testing::ElementsAre;

// Keeps the bytes alive beside the file that points into them.
struct Parsed {
  explicit Parsed(const GgufWriter& writer) : bytes(writer.File()) {
    auto result = GgufFile::Parse(AsBytes(bytes));
    if (!result.ok()) throw std::runtime_error(result.status().ToString());
    file = *std::move(result);
  }
  std::string bytes;
  std::unique_ptr<GgufFile> file;
};

TEST(GgufTest, ReadsScalarsOfEveryType) {
  GgufWriter writer;
  writer.AddRaw("u8", 0, RawBytes(uint8_t{200}));
  writer.AddRaw("i8", 1, RawBytes(int8_t{-5}));
  writer.AddRaw("u16", 2, RawBytes(uint16_t{60000}));
  writer.AddRaw("i16", 3, RawBytes(int16_t{-30000}));
  writer.AddUint32("u32", 4000000000U);
  writer.AddInt32("i32", -7);
  writer.AddFloat32("f32", 0.5F);
  writer.AddBool("yes", true);
  writer.AddBool("no", false);
  writer.AddString("s", "text");
  writer.AddString("empty", "");
  writer.AddRaw("u64", 10, RawBytes(std::numeric_limits<uint64_t>::max()));
  writer.AddRaw("i64", 11, RawBytes(std::numeric_limits<int64_t>::min()));
  writer.AddRaw("f64", 12, RawBytes(0.1));
  const Parsed parsed(writer);
  const GgufFile& file = *parsed.file;
  EXPECT_EQ(*file.GetUint("u8"), 200U);
  EXPECT_EQ(*file.GetInt("i8"), -5);
  EXPECT_EQ(*file.GetUint("u16"), 60000U);
  EXPECT_EQ(*file.GetInt("i16"), -30000);
  EXPECT_EQ(*file.GetInt("u32"), 4000000000);
  EXPECT_EQ(*file.GetInt("i32"), -7);
  EXPECT_EQ(*file.GetFloat("f32"), 0.5);
  EXPECT_TRUE(*file.GetBool("yes"));
  EXPECT_FALSE(*file.GetBool("no"));
  EXPECT_EQ(*file.GetString("s"), "text");
  EXPECT_EQ(*file.GetString("empty"), "");
  EXPECT_EQ(*file.GetUint("u64"), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(*file.GetInt("i64"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(*file.GetFloat("f64"), 0.1);
  EXPECT_TRUE(file.Has("empty"));
  EXPECT_FALSE(file.Has("other"));
  EXPECT_EQ(file.tensor_count(), 0U);
  EXPECT_EQ(file.file_bytes(), parsed.bytes.size());
}

TEST(GgufTest, ReadsArrays) {
  GgufWriter writer;
  writer.AddStrings("strings", std::array<std::string, 3>{"a", "", "bcd"});
  writer.AddInt32s("ints", std::array<int32_t, 2>{-1, 7});
  writer.AddFloat32s("floats", std::array<float, 2>{0.5F, -2.0F});
  writer.AddRawArray("bytes", 0, 2, RawBytes(uint16_t{0x0201}));
  writer.AddRawArray("big", 10, 1, RawBytes(~uint64_t{0}));
  const Parsed parsed(writer);
  const GgufFile& file = *parsed.file;
  EXPECT_THAT(*file.GetStrings("strings"), ElementsAre("a", "", "bcd"));
  EXPECT_THAT(*file.GetInts("ints"), ElementsAre(-1, 7));
  EXPECT_THAT(*file.GetFloats("floats"), ElementsAre(0.5F, -2.0F));
  EXPECT_THAT(*file.GetInts("bytes"), ElementsAre(1, 2));
  EXPECT_THAT(file.GetInts("big"),
              StatusIs(StatusCode::kInvalidArgument, "18446744073709551615"));
}

TEST(GgufTest, WrongTypesAndValuesAreNamed) {
  GgufWriter writer;
  writer.AddInt32("negative", -7);
  writer.AddRaw("huge", 10, RawBytes(~uint64_t{0}));
  writer.AddString("text", "x");
  writer.AddRaw("two", 7, RawBytes(uint8_t{2}));
  writer.AddInt32s("ints", std::array<int32_t, 1>{3});
  const Parsed parsed(writer);
  const GgufFile& file = *parsed.file;
  const auto invalid = [](const std::string& part) {
    return StatusIs(StatusCode::kInvalidArgument, part);
  };
  EXPECT_THAT(file.GetUint("absent"), invalid("key absent is missing"));
  EXPECT_THAT(file.GetUint("negative"), invalid("key negative: -7, want"));
  EXPECT_THAT(file.GetInt("huge"), invalid("key huge: 18446744073709551615"));
  EXPECT_THAT(file.GetUint("text"), invalid("type string, want an integer"));
  EXPECT_THAT(file.GetFloat("negative"), invalid("type int32, want float32"));
  EXPECT_THAT(file.GetBool("text"), invalid("type string, want bool"));
  EXPECT_THAT(file.GetBool("two"), invalid("bool of value 2"));
  EXPECT_THAT(file.GetString("two"), invalid("type bool, want string"));
  EXPECT_THAT(file.GetInt("ints"),
              invalid("type int32 array, want a single value"));
  EXPECT_THAT(file.GetInts("text"), invalid("type string, want an array"));
  EXPECT_THAT(file.GetStrings("ints"), invalid("want string array"));
  EXPECT_THAT(file.GetFloats("ints"), invalid("want float32 array"));
}

TEST(GgufTest, TensorsHaveTheirShapeAndData) {
  GgufWriter writer;
  writer.set_alignment(64);
  writer.AddUint32("general.alignment", 64);
  const std::array<float, 6> values = {1, 2, 3, 4, 5, 6};
  writer.AddTensorF32("first", std::array<uint64_t, 1>{2},
                      std::array<float, 2>{-1, -2});
  writer.AddTensorF32("second", std::array<uint64_t, 2>{3, 2}, values);
  const Parsed parsed(writer);
  const auto tensor = parsed.file->Tensor("second");
  ASSERT_THAT(tensor, IsOk());
  EXPECT_EQ((*tensor)->elements(), 6);
  EXPECT_EQ((*tensor)->bytes, 24U);
  const WeightView view = (*tensor)->view();
  EXPECT_EQ(view.rows, 2);
  EXPECT_EQ(view.cols, 3);
  std::array<float, 6> got = {};
  Dequantize(view.type, view.data, 6, got.data());
  EXPECT_EQ(got, values);
  EXPECT_EQ((view.data - AsBytes(parsed.bytes).data()) % 64, 0);
  EXPECT_THAT(parsed.file->Tensor("third"),
              StatusIs(StatusCode::kNotFound, "tensor third is missing"));
}

TEST(GgufTest, UnsupportedTypesFailOnlyWhenAskedFor) {
  GgufWriter writer;
  writer.AddTensor("rare", std::array<uint64_t, 1>{256}, 19, "");
  writer.AddTensor("strange", std::array<uint64_t, 1>{5}, 12345, "");
  const Parsed parsed(writer);
  EXPECT_TRUE(parsed.file->HasTensor("rare"));
  EXPECT_EQ(parsed.file->tensor_count(), 2U);
  EXPECT_THAT(parsed.file->Tensor("rare"),
              StatusIs(StatusCode::kInvalidArgument,
                       "tensor rare: type 19 (IQ1_S) is not supported"));
  EXPECT_THAT(parsed.file->Tensor("strange"),
              StatusIs(StatusCode::kInvalidArgument, "type 12345 is not"));
}

TEST(GgufTest, VersionTwoIsRead) {
  GgufWriter writer;
  writer.set_version(2);
  writer.AddUint32("x", 3);
  EXPECT_EQ(*Parsed(writer).file->GetUint("x"), 3U);
}

TEST(GgufTest, OpensVocabularyOnlyFiles) {
  int opened = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(KF_SOURCE_DIR "/tests/data/vocab")) {
    if (entry.path().extension() != ".gguf") continue;
    const auto file = GgufFile::Open(entry.path().string());
    ASSERT_THAT(file, IsOk());
    EXPECT_EQ((*file)->tensor_count(), 0U);
    const auto tokens = (*file)->GetStrings("tokenizer.ggml.tokens");
    ASSERT_THAT(tokens, IsOk());
    EXPECT_GT(tokens->size(), 30000U) << entry.path();
    ++opened;
  }
  EXPECT_GE(opened, 6);
}

TEST(GgufTest, FileErrorsSayWhichFile) {
  const kf::testing::TempDir dir;
  EXPECT_THAT(GgufFile::Open(dir.File("none.gguf")),
              StatusIs(StatusCode::kNotFound, "none.gguf"));
  EXPECT_THAT(GgufFile::Open(dir.path()),
              StatusIs(StatusCode::kInvalidArgument, "not a regular file"));
  std::ofstream(dir.File("empty.gguf")).close();
  EXPECT_THAT(GgufFile::Open(dir.File("empty.gguf")),
              StatusIs(StatusCode::kInvalidArgument, "empty file"));
  std::ofstream(dir.File("text.gguf")) << "hello, this is text";
  EXPECT_THAT(
      GgufFile::Open(dir.File("text.gguf")),
      StatusIs(StatusCode::kInvalidArgument, "text.gguf: not a GGUF file"));
}

TEST(GgufTest, AMappedFileReadsAsItsBytes) {
  const kf::testing::TempDir dir;
  const kf::testing::TinyModelSpec spec;
  const std::string path =
      kf::testing::WriteTinyModel(spec, dir.File("tiny.gguf"));
  const auto file = GgufFile::Open(path);
  ASSERT_THAT(file, IsOk());
  const std::string bytes = kf::testing::TinyModelBytes(spec);
  EXPECT_EQ((*file)->file_bytes(), bytes.size());
  const auto mapped = (*file)->Tensor("output.weight");
  const auto parsed = GgufFile::Parse(AsBytes(bytes));
  const auto borrowed = (*parsed)->Tensor("output.weight");
  ASSERT_THAT(mapped, IsOk());
  ASSERT_THAT(borrowed, IsOk());
  ASSERT_EQ((*mapped)->bytes, (*borrowed)->bytes);
  EXPECT_EQ(std::memcmp((*mapped)->data, (*borrowed)->data, (*mapped)->bytes),
            0);
}

}  // namespace
}  // namespace kf::engine
