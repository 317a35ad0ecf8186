#include "server/model_info.h"

#include <algorithm>
#include <limits>
#include <string>

#include "kernels/core/status.h"
#include "kernels/weight_format_name.h"
#include "server/convert_cache.h"

namespace kf::server {
namespace {

// The wire's counts are uint32.
uint32_t Clamp(int64_t value) {
  return static_cast<uint32_t>(
      std::clamp<int64_t>(value, 0, std::numeric_limits<uint32_t>::max()));
}

// Detokenize takes this many ids, or this many contexts full if that is more.
constexpr int64_t kMinDetokenizeLimit = 65536;
constexpr int64_t kDetokenizeContexts = 8;

}  // namespace

absl::Status FillModelInfo(const engine::Engine& engine,
                           const ConvertContext& context,
                           const v1::ModelInfoRequest& request,
                           v1::ModelInfoResponse* response) {
  KF_RETURN_IF_ERROR(CheckModel(request.model(), context));
  const engine::ModelConfig& config = engine.config();
  const engine::EngineOptions& options = engine.options();
  response->set_model(context.model_name);
  response->set_architecture(config.architecture);
  response->set_parameters(config.parameters);
  response->set_layers(Clamp(config.layers));
  response->set_query_heads(Clamp(config.query_heads));
  response->set_kv_heads(Clamp(config.kv_heads));
  response->set_head_dim(Clamp(config.head_dim));
  response->set_vocabulary(Clamp(config.vocabulary));
  response->set_context_tokens(Clamp(config.context_tokens));
  response->set_kv_bytes_per_token(engine.kv_bytes_per_token());
  response->set_backend(engine.backend_description());
  response->set_weight_dtype(NameOf(*options.weight_format));
  response->set_cache_dtype(
      std::string(engine::CacheTypeName(options.cache_dtype)));
  *response->mutable_default_cache() =
      FromCacheOptions(context.cache.defaults, context.cache.default_profile);
  for (const engine::CachePolicy policy : context.cache.policies) {
    response->add_policies(FromPolicy(policy));
  }
  response->set_default_max_new_tokens(options.default_max_new_tokens);
  response->set_has_chat_template(context.tokenizer->has_chat_template());
  response->set_server_version(KF_VERSION);
  response->set_random_weights(options.load_format ==
                               engine::LoadFormat::kDummy);
  for (const auto& [name, weights] : context.cache.profiles) {
    response->add_layer_profiles(name);
  }
  return absl::OkStatus();
}

void FillLoad(const engine::EngineStats& stats, v1::GetLoadResponse* response) {
  response->set_running(Clamp(stats.running));
  response->set_waiting(Clamp(stats.waiting));
  response->set_waiting_prompt_tokens(Clamp(stats.waiting_prompt_tokens));
  response->set_kv_usage_ratio(
      stats.pages_total > 0
          ? static_cast<double>(stats.pages_total - stats.pages_free) /
                static_cast<double>(stats.pages_total)
          : 0.0);
  response->set_kv_pages_total(Clamp(stats.pages_total));
  response->set_kv_pages_free(Clamp(stats.pages_free));
  response->set_generation_tokens_per_second(
      stats.generation_tokens_per_second);
  response->set_draining(stats.draining);
}

absl::Status FillTokenize(const ConvertContext& context,
                          const v1::TokenizeRequest& request,
                          v1::TokenizeResponse* response) {
  KF_RETURN_IF_ERROR(CheckModel(request.model(), context));
  engine::Encoding encoding;
  switch (request.input_case()) {
    case v1::TokenizeRequest::kText: {
      KF_RETURN_IF_ERROR(
          CheckTextBytes("text", request.text().size(), context));
      engine::EncodeOptions options;
      options.parse_special = request.parse_special();
      KF_ASSIGN_OR_RETURN(encoding,
                          context.tokenizer->Encode(request.text(), options));
      break;
    }
    case v1::TokenizeRequest::kChat: {
      KF_ASSIGN_OR_RETURN(encoding, EncodeChatInput(request.chat(), context));
      break;
    }
    case v1::TokenizeRequest::INPUT_NOT_SET:
      return absl::InvalidArgumentError("input: none, want text or chat");
  }
  const int count = static_cast<int>(encoding.ids.size());
  response->mutable_token_ids()->Reserve(count);
  response->mutable_tokens()->Reserve(count);
  for (const engine::TokenId id : encoding.ids) {
    response->add_token_ids(static_cast<uint32_t>(id));
    response->add_tokens(std::string(context.tokenizer->TokenBytes(id)));
  }
  if (request.with_offsets()) {
    response->mutable_offsets()->Add(encoding.offsets.begin(),
                                     encoding.offsets.end());
  }
  return absl::OkStatus();
}

absl::Status FillDetokenize(const ConvertContext& context,
                            const v1::DetokenizeRequest& request,
                            v1::DetokenizeResponse* response) {
  KF_RETURN_IF_ERROR(CheckModel(request.model(), context));
  const int64_t limit =
      std::max(kMinDetokenizeLimit,
               kDetokenizeContexts * int64_t{context.context_tokens});
  if (request.token_ids_size() > limit) {
    return absl::InvalidArgumentError(absl::StrCat(
        "token_ids: ", request.token_ids_size(), " ids, want at most ", limit));
  }
  const std::span<const uint32_t> wire_ids(
      request.token_ids().data(),
      static_cast<size_t>(request.token_ids_size()));
  KF_ASSIGN_OR_RETURN(const std::vector<engine::TokenId> ids,
                      ToTokenIds("token_ids", wire_ids, context.vocabulary));
  response->set_text(
      context.tokenizer->Decode(ids, request.keep_special_tokens()));
  return absl::OkStatus();
}

}  // namespace kf::server
