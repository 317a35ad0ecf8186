#include "engine/model/dummy_model.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/model/byte_level.h"
#include "engine/model/dummy_shape.h"
#include "engine/model/gguf_writer.h"
#include "kernels/core/bf16.h"
#include "kernels/core/noise.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

constexpr uint64_t kAlignment = 32;  // GGUF's default, of tensor data
constexpr uint64_t kMapping = 4096;  // mappings begin on multiples of it
// A prime number of mappings: no row of a power of two of values comes again
// in the same column before its matrix has thousands.
constexpr uint64_t kBlockBytes = 16381 * kMapping;
constexpr double kDeviation = 0.02;
constexpr int32_t kBos = 256;
constexpr int32_t kEos = 257;

uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Fills `block` with bf16 numbers, uniform around 0.
void FillRandom(std::span<uint16_t> block) {
  const double step = kDeviation * std::sqrt(12.0) / 65536.0;
  for (size_t i = 0; i < block.size(); ++i) {
    const uint32_t word = MixBits(static_cast<uint32_t>(i)) >> 16;
    block[i] = FloatToBf16(
        static_cast<float>((static_cast<double>(word) - 32767.5) * step));
  }
}

// Address space that looks like the file: own memory at the front, then one
// block mapped again and again.
class FileMemory {
 public:
  FileMemory() = default;
  ~FileMemory() {
    if (base_ != nullptr) munmap(base_, bytes_);
    if (block_ >= 0) close(block_);
  }
  FileMemory(const FileMemory&) = delete;
  FileMemory& operator=(const FileMemory&) = delete;

  // Both multiples of kMapping.
  absl::Status Map(uint64_t front_bytes, uint64_t random_bytes) {
    bytes_ = front_bytes + random_bytes;
    void* base = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return Failed("address space", bytes_);
    base_ = static_cast<std::byte*>(base);
    const uint64_t block_bytes = std::min(kBlockBytes, random_bytes);
    KF_RETURN_IF_ERROR(MakeBlock(block_bytes));
    for (uint64_t at = 0; at < random_bytes; at += block_bytes) {
      void* const place = base_ + front_bytes + at;
      if (mmap(place, std::min(block_bytes, random_bytes - at), PROT_READ,
               MAP_SHARED | MAP_FIXED, block_, 0) == MAP_FAILED) {
        return Failed("mappings of", block_bytes);
      }
    }
    return absl::OkStatus();
  }

  std::span<std::byte> bytes() { return {base_, bytes_}; }

 private:
  static absl::Status Failed(const char* what, uint64_t bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("load_format dummy: no ", what, " ", bytes,
                     " bytes: ", std::strerror(errno)));
  }

  absl::Status MakeBlock(uint64_t bytes) {
    block_ = memfd_create("random_weights", MFD_CLOEXEC);
    if (block_ < 0 || ftruncate(block_, static_cast<off_t>(bytes)) != 0) {
      return Failed("memory of", bytes);
    }
    void* block =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, block_, 0);
    if (block == MAP_FAILED) return Failed("memory of", bytes);
    FillRandom({static_cast<uint16_t*>(block), bytes / sizeof(uint16_t)});
    munmap(block, bytes);
    return absl::OkStatus();
  }

  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
  int block_ = -1;
};

// GPT-2's printable stand-ins for the bytes, then two control tokens, then
// tokens that no merge makes.
void AddVocabulary(int32_t vocabulary, GgufWriter& writer) {
  std::vector<std::string> tokens = ByteLevelTokens();
  tokens.emplace_back("<s>");
  tokens.emplace_back("</s>");
  constexpr char kSpace[] = "\xC4\xA0";  // what a space is written as
  for (int32_t id = kEos + 1; id < vocabulary; ++id) {
    tokens.push_back(absl::StrCat(kSpace, id));
  }
  std::vector<int32_t> types(tokens.size(), 1);  // normal
  types[kBos] = 3;                               // control
  types[kEos] = 3;
  writer.AddString("tokenizer.ggml.model", "gpt2");
  writer.AddString("tokenizer.ggml.pre", "gpt-2");
  writer.AddStrings("tokenizer.ggml.tokens", tokens);
  writer.AddInt32s("tokenizer.ggml.token_type", types);
  writer.AddStrings("tokenizer.ggml.merges", {});
  writer.AddUint32("tokenizer.ggml.bos_token_id", kBos);
  writer.AddUint32("tokenizer.ggml.eos_token_id", kEos);
  writer.AddBool("tokenizer.ggml.add_bos_token", false);
}

void AddShape(const ModelConfig& shape, GgufWriter& writer) {
  const auto u32 = [&](std::string_view key, int32_t value) {
    writer.AddUint32(key, static_cast<uint32_t>(value));
  };
  writer.AddString("general.architecture", "llama");
  writer.AddString("general.name", "random weights");
  u32("llama.context_length", shape.context_tokens);
  u32("llama.embedding_length", shape.hidden);
  u32("llama.block_count", shape.layers);
  u32("llama.feed_forward_length", shape.ffn);
  u32("llama.attention.head_count", shape.query_heads);
  u32("llama.attention.head_count_kv", shape.kv_heads);
  u32("llama.attention.key_length", shape.head_dim);
  u32("llama.attention.value_length", shape.head_dim);
  writer.AddFloat32("llama.attention.layer_norm_rms_epsilon", shape.norm_eps);
  writer.AddFloat32("llama.rope.freq_base",
                    static_cast<float>(shape.rope_base));
  u32("llama.rope.dimension_count", shape.rotary_dim);
  u32("llama.vocab_size", shape.vocabulary);
}

struct Tensor {
  std::string name;
  uint64_t cols = 0;
  uint64_t rows = 0;  // 0: a norm, of `cols` values

  uint64_t bytes() const {
    return rows == 0 ? cols * sizeof(float) : cols * rows * sizeof(uint16_t);
  }
};

// The norms first.
std::vector<Tensor> Tensors(const ModelConfig& shape) {
  const auto hidden = static_cast<uint64_t>(shape.hidden);
  const auto ffn = static_cast<uint64_t>(shape.ffn);
  const auto vocabulary = static_cast<uint64_t>(shape.vocabulary);
  const auto head_dim = static_cast<uint64_t>(shape.head_dim);
  const uint64_t q_dim = static_cast<uint64_t>(shape.query_heads) * head_dim;
  const uint64_t kv_dim = static_cast<uint64_t>(shape.kv_heads) * head_dim;
  std::vector<Tensor> tensors = {{"output_norm.weight", hidden}};
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    const std::string prefix = absl::StrCat("blk.", layer, ".");
    tensors.push_back({prefix + "attn_norm.weight", hidden});
    tensors.push_back({prefix + "ffn_norm.weight", hidden});
  }
  tensors.push_back({"token_embd.weight", hidden, vocabulary});
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    const std::string prefix = absl::StrCat("blk.", layer, ".");
    tensors.push_back({prefix + "attn_q.weight", hidden, q_dim});
    tensors.push_back({prefix + "attn_k.weight", hidden, kv_dim});
    tensors.push_back({prefix + "attn_v.weight", hidden, kv_dim});
    tensors.push_back({prefix + "attn_output.weight", q_dim, hidden});
    tensors.push_back({prefix + "ffn_gate.weight", hidden, ffn});
    tensors.push_back({prefix + "ffn_up.weight", hidden, ffn});
    tensors.push_back({prefix + "ffn_down.weight", ffn, hidden});
  }
  if (!shape.tied_output) {
    tensors.push_back({"output.weight", hidden, vocabulary});
  }
  return tensors;
}

// Writes the header and the norms, and maps the rest.
absl::Status WriteFile(const ModelConfig& shape,
                       bool vocabulary,
                       FileMemory& memory) {
  GgufWriter writer;
  AddShape(shape, writer);
  if (vocabulary) AddVocabulary(shape.vocabulary, writer);
  const std::vector<Tensor> tensors = Tensors(shape);
  const auto is_matrix = [](const Tensor& tensor) { return tensor.rows > 0; };
  // Where the data starts depends on the header's size, and that on the
  // number of offsets alone: lay out with an empty front first.
  const auto place = [&](uint64_t matrices_begin, GgufWriter& into) {
    uint64_t at = 0;
    for (const Tensor& tensor : tensors) {
      if (is_matrix(tensor)) at = std::max(at, matrices_begin);
      std::vector<uint64_t> dims = {tensor.cols};
      if (is_matrix(tensor)) dims.push_back(tensor.rows);
      into.AddTensorInfo(
          tensor.name, dims,
          static_cast<uint32_t>(is_matrix(tensor) ? DType::kBF16 : DType::kF32),
          at);
      at = RoundUp(at + tensor.bytes(), kAlignment);
    }
    return at;
  };
  GgufWriter sizing = writer;
  place(0, sizing);
  const uint64_t data_begin = RoundUp(sizing.Header().size(), kAlignment);
  uint64_t norms_end = data_begin;
  for (const Tensor& tensor : tensors) {
    if (is_matrix(tensor)) break;
    norms_end = RoundUp(norms_end + tensor.bytes(), kAlignment);
  }
  const uint64_t front = RoundUp(norms_end, kMapping);
  const uint64_t data_bytes = place(front - data_begin, writer);
  KF_RETURN_IF_ERROR(
      memory.Map(front, RoundUp(data_begin + data_bytes - front, kMapping)));
  const std::string header = writer.Header();
  std::memcpy(memory.bytes().data(), header.data(), header.size());
  for (uint64_t at = data_begin; at < norms_end; at += sizeof(float)) {
    constexpr float kOne = 1.0F;
    std::memcpy(memory.bytes().data() + at, &kOne, sizeof(kOne));
  }
  return absl::OkStatus();
}

}  // namespace

struct DummyModel::Impl {
  FileMemory memory;
  std::unique_ptr<GgufFile> file;
  std::unique_ptr<GgufFile> tokenizer_file;  // null: `file` is
};

DummyModel::DummyModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DummyModel::~DummyModel() = default;

const GgufFile& DummyModel::file() const { return *impl_->file; }
const GgufFile& DummyModel::tokenizer_file() const {
  return impl_->tokenizer_file != nullptr ? *impl_->tokenizer_file
                                          : *impl_->file;
}

absl::StatusOr<std::unique_ptr<DummyModel>> DummyModel::Open(
    const std::string& model_config) {
  KF_ASSIGN_OR_RETURN(const ModelConfig shape, ReadDummyShape(model_config));
  auto impl = std::make_unique<Impl>();
  // A path that is no GGUF file is a preset or JSON, and has no vocabulary.
  if (auto file = GgufFile::Open(model_config);
      file.ok() && (*file)->Has("tokenizer.ggml.tokens")) {
    impl->tokenizer_file = *std::move(file);
  }
  const bool own_vocabulary = impl->tokenizer_file == nullptr;
  if (own_vocabulary && shape.vocabulary <= kEos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model_config: ", model_config, ": vocab_size: ", shape.vocabulary,
        ", want at least ", kEos + 1, " (the bytes, <s> and </s>)"));
  }
  KF_RETURN_IF_ERROR(WriteFile(shape, own_vocabulary, impl->memory));
  KF_ASSIGN_OR_RETURN(impl->file, GgufFile::Parse(impl->memory.bytes()));
  return std::unique_ptr<DummyModel>(new DummyModel(std::move(impl)));
}

}  // namespace kf::engine
