#include "engine/model/weights.h"

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"
#include "kernels/core/weight_groups.h"

namespace kf::engine {
namespace {

class Loader {
 public:
  Loader(const GgufFile& file, WeightFormat format, Backend& backend)
      : file_(file), format_(format), backend_(backend) {}

  absl::StatusOr<WeightView> View(std::string_view name) const {
    KF_ASSIGN_OR_RETURN(const GgufTensor* tensor, file_.Tensor(name));
    return tensor->view();
  }

  // Matrices of one input, stacked by rows.
  absl::StatusOr<std::unique_ptr<LinearWeights>> Linear(
      std::string_view prefix,
      std::initializer_list<std::string_view> names) const {
    std::vector<WeightView> stacked;
    for (const std::string_view name : names) {
      KF_ASSIGN_OR_RETURN(
          const WeightView view,
          View(absl::StrCat(ToAbsl(prefix), ToAbsl(name), ".weight")));
      stacked.push_back(view);
    }
    return backend_.LoadLinear(stacked, format_);
  }

  // A vector, as f32.
  absl::StatusOr<std::unique_ptr<Buffer>> Norm(std::string_view name) const {
    KF_ASSIGN_OR_RETURN(const WeightView view, View(name));
    std::vector<float> values(static_cast<size_t>(view.rows * view.cols));
    Dequantize(view.type, view.data, view.rows * view.cols, values.data());
    const auto bytes = std::as_bytes(std::span<const float>(values));
    KF_ASSIGN_OR_RETURN(auto buffer, backend_.Allocate(bytes.size(), name));
    KF_RETURN_IF_ERROR(backend_.Upload(buffer->data(), bytes));
    return buffer;
  }

  absl::StatusOr<LayerWeights> Layer(int32_t index) const {
    const std::string prefix = absl::StrCat("blk.", index, ".");
    LayerWeights layer;
    KF_ASSIGN_OR_RETURN(layer.attention_norm,
                        Norm(absl::StrCat(prefix, "attn_norm.weight")));
    KF_ASSIGN_OR_RETURN(layer.qkv,
                        Linear(prefix, {"attn_q", "attn_k", "attn_v"}));
    KF_ASSIGN_OR_RETURN(layer.output, Linear(prefix, {"attn_output"}));
    KF_ASSIGN_OR_RETURN(layer.ffn_norm,
                        Norm(absl::StrCat(prefix, "ffn_norm.weight")));
    KF_ASSIGN_OR_RETURN(layer.gate_up, Linear(prefix, {"ffn_gate", "ffn_up"}));
    KF_ASSIGN_OR_RETURN(layer.down, Linear(prefix, {"ffn_down"}));
    return layer;
  }

 private:
  const GgufFile& file_;
  WeightFormat format_;
  Backend& backend_;
};

}  // namespace

WeightFormat AutoWeightFormat(const GgufFile& file) {
  int64_t floats = 0;
  int64_t groups_of_4 = 0;
  int64_t others = 0;
  for (const GgufTensor& tensor : file.tensors()) {
    if (!tensor.name.starts_with("blk.") || tensor.data == nullptr) continue;
    const WeightView view = tensor.view();
    if (view.rows == 1) continue;  // norms
    const int64_t weights = view.rows * view.cols;
    if (HasGroupsOf4Bits(view.type)) {
      groups_of_4 += weights;
    } else if (LayoutOf(view.type).elements > 1) {
      others += weights;
    } else {
      floats += weights;
    }
  }
  if (floats >= groups_of_4 + others) return WeightFormat::kBF16;
  return groups_of_4 >= others ? WeightFormat::kQ4 : WeightFormat::kQ8;
}

absl::StatusOr<ModelWeights> LoadWeights(const GgufFile& file,
                                         const ModelConfig& config,
                                         WeightFormat format,
                                         Backend& backend) {
  const Loader load(file, format, backend);
  ModelWeights weights;
  KF_ASSIGN_OR_RETURN(const WeightView table, load.View("token_embd.weight"));
  KF_ASSIGN_OR_RETURN(weights.embedding, backend.LoadEmbedding(table));
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    KF_ASSIGN_OR_RETURN(auto loaded, load.Layer(layer));
    weights.layers.push_back(std::move(loaded));
  }
  KF_ASSIGN_OR_RETURN(weights.final_norm, load.Norm("output_norm.weight"));
  KF_ASSIGN_OR_RETURN(
      weights.head,
      load.Linear("", {config.tied_output ? "token_embd" : "output"}));
  return weights;
}

}  // namespace kf::engine
