#include "engine/tokenizer/tokenizer.h"

#include "engine/tokenizer/bpe_tokenizer.h"
#include "engine/tokenizer/spm_tokenizer.h"
#include "kernels/core/status.h"

namespace kf::engine {

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(
    const GgufFile& file) {
  KF_ASSIGN_OR_RETURN(const std::string_view model,
                      file.GetString("tokenizer.ggml.model"));
  if (model == "gpt2") return BpeTokenizer::Load(file);
  if (model == "llama") return SpmTokenizer::Load(file);
  return absl::InvalidArgumentError(
      absl::StrCat("tokenizer.ggml.model: \"", ToAbsl(model.substr(0, 64)),
                   "\" is not supported (gpt2, llama)"));
}

std::string Tokenizer::Decode(std::span<const TokenId> ids,
                              bool keep_special) const {
  IncrementalDecoder decoder(*this, keep_special, /*at_text_start=*/true);
  std::string out;
  for (const TokenId id : ids) out += decoder.Push(id);
  out += decoder.Finish();
  return out;
}

}  // namespace kf::engine
