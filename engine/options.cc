#include <string_view>

#include "engine/engine.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

absl::Status AtLeast(std::string_view field, int64_t value, int64_t limit) {
  if (value >= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(field), ": ", value, ", want at least ", limit));
}

absl::Status CheckSource(const EngineOptions& o) {
  if (o.load_format == LoadFormat::kDummy) {
    if (o.model_config.empty()) {
      return absl::InvalidArgumentError(
          "model_config: empty, want a shape for load_format dummy: llama-8b, "
          "mpt-7b-shape, smollm2-135m or a file");
    }
    if (!o.model_path.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "model: \"", o.model_path,
          "\", want none with load_format dummy, which reads no weights"));
    }
    return absl::OkStatus();
  }
  if (!o.model_config.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("model_config: \"", o.model_config,
                     "\", want none without load_format dummy"));
  }
  if (o.model_path.empty()) {
    return absl::InvalidArgumentError("model: empty, want a GGUF file");
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view CacheTypeName(DType cache_dtype) {
  switch (cache_dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kI8:
      return "q8";
    default:
      return NameOf(cache_dtype);
  }
}

absl::Status ValidateOptions(const EngineOptions& o) {
  KF_RETURN_IF_ERROR(CheckSource(o));
  if (o.cache_dtype != DType::kF32 && o.cache_dtype != DType::kBF16 &&
      o.cache_dtype != DType::kI8) {
    return absl::InvalidArgumentError(
        absl::StrCat("cache_dtype: ", ToAbsl(CacheTypeName(o.cache_dtype)),
                     ", want f32, bf16 or q8"));
  }
  if (!(o.gpu_memory_share > 0.0 && o.gpu_memory_share <= 1.0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gpu_memory_share: ", o.gpu_memory_share, ", want (0, 1]"));
  }
  KF_RETURN_IF_ERROR(AtLeast("max_batch", o.max_batch, 1));
  // Rows of a decode step, and of the tables that grow with it.
  if (o.max_batch > kMaxBatch) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_batch: ", o.max_batch, ", want at most ", kMaxBatch));
  }
  KF_RETURN_IF_ERROR(AtLeast("max_queue_requests", o.max_queue_requests, 1));
  KF_RETURN_IF_ERROR(AtLeast("max_queue_tokens", o.max_queue_tokens, 1));
  KF_RETURN_IF_ERROR(AtLeast("max_skips", o.max_skips, 0));
  KF_RETURN_IF_ERROR(
      AtLeast("prefill_workspace_tokens", o.prefill_workspace_tokens, 0));
  KF_RETURN_IF_ERROR(AtLeast("prefill_slice_ms", o.prefill_slice_ms, 0));
  return AtLeast("prefill_slice_tokens", o.prefill_slice_tokens,
                 kPromptRowTile);
}

}  // namespace kf::engine
