#include "server/convert.h"

#include <algorithm>
#include <optional>

#include "kernels/core/status.h"
#include "server/convert_cache.h"

namespace kf::server {
namespace {

std::span<const uint32_t> Ids(
    const google::protobuf::RepeatedField<uint32_t>& ids) {
  return {ids.data(), static_cast<size_t>(ids.size())};
}

absl::Status IdOutOfRange(const std::string& field,
                          uint32_t id,
                          int32_t vocabulary) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", id, ", want a token id below ", vocabulary));
}

// Absent: no beams.
absl::StatusOr<std::optional<engine::BeamParams>> ToBeam(
    const v1::GenerateRequest& proto, const ConvertContext& context) {
  if (!proto.sampling().has_beam()) return std::nullopt;
  const v1::BeamOptions& p = proto.sampling().beam();
  // The engine refuses the rest of sampling and stopping; these two it can
  // take.
  for (const auto& [name, is_set] :
       {std::pair("sampling.seed", proto.sampling().has_seed()),
        std::pair("stopping.time_limit_ms",
                  proto.stopping().time_limit_ms() != 0.0)}) {
    if (!is_set) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        name,
        ": set, but sampling.beam is too, which goes with max_new_tokens, "
        "ignore_eos and cache options only"));
  }
  if (p.width() < 1 || p.width() > context.rules.max_beam_width) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.beam.width: ", p.width(), ", want 1 to ",
                     context.rules.max_beam_width));
  }
  engine::BeamParams beam;
  beam.width = p.width();
  if (p.has_length_penalty()) beam.length_penalty = p.length_penalty();
  beam.early_stopping = p.early_stopping();
  return beam;
}

absl::StatusOr<uint32_t> ToSamples(const v1::SamplingOptions& p,
                                   const ConvertContext& context) {
  if (p.n() <= context.rules.max_samples) return std::max(p.n(), 1U);
  return absl::InvalidArgumentError(absl::StrCat(
      "sampling.n: ", p.n(), ", want at most ", context.rules.max_samples));
}

absl::StatusOr<engine::SamplingParams> ToSampling(
    const v1::SamplingOptions& p, const ConvertContext& context) {
  engine::SamplingParams sampling;
  sampling.temperature = p.temperature();
  sampling.top_k = p.top_k();
  sampling.top_p = p.top_p();
  sampling.min_p = p.min_p();
  sampling.typical_p = p.typical_p();
  sampling.repetition_penalty = p.repetition_penalty();
  sampling.presence_penalty = p.presence_penalty();
  sampling.frequency_penalty = p.frequency_penalty();
  if (p.has_seed()) sampling.seed = p.seed();
  for (const auto& [id, bias] : p.logit_bias()) {
    if (id >= static_cast<uint32_t>(context.vocabulary)) {
      return IdOutOfRange("sampling.logit_bias key", id, context.vocabulary);
    }
    sampling.logit_bias[static_cast<engine::TokenId>(id)] = bias;
  }
  return sampling;
}

absl::StatusOr<engine::StoppingParams> ToStopping(
    const v1::StoppingOptions& p, const ConvertContext& context) {
  engine::StoppingParams stopping;
  if (p.has_max_new_tokens()) stopping.max_new_tokens = p.max_new_tokens();
  stopping.min_new_tokens = p.min_new_tokens();
  stopping.stop.assign(p.stop().begin(), p.stop().end());
  KF_ASSIGN_OR_RETURN(stopping.stop_token_ids,
                      ToTokenIds("stopping.stop_token_ids",
                                 Ids(p.stop_token_ids()), context.vocabulary));
  stopping.include_stop = p.include_stop();
  stopping.ignore_eos = p.ignore_eos();
  stopping.time_limit_ms = p.time_limit_ms();
  return stopping;
}

absl::StatusOr<engine::CacheReportDetail> ToReportDetail(
    const v1::OutputOptions& p) {
  switch (p.cache_report()) {
    case v1::CACHE_REPORT_DETAIL_UNSPECIFIED:
      return engine::CacheReportDetail::kNone;
    case v1::CACHE_REPORT_DETAIL_SUMMARY:
      return engine::CacheReportDetail::kSummary;
    case v1::CACHE_REPORT_DETAIL_FULL:
      return engine::CacheReportDetail::kFull;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("output.cache_report: ", int{p.cache_report()},
                       ", want a value that the proto lists"));
  }
}

absl::StatusOr<engine::OutputParams> ToOutput(
    const v1::GenerateRequest& proto) {
  const v1::OutputOptions& p = proto.output();
  if (p.top_logprobs() > 0 && !p.logprobs() && !p.prompt_logprobs() &&
      !proto.has_forced_tokens()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "output.top_logprobs: ", p.top_logprobs(),
        ", but output.logprobs and output.prompt_logprobs are off"));
  }
  engine::OutputParams output;
  output.logprobs = p.logprobs();
  output.top_logprobs = p.top_logprobs();
  output.prompt_logprobs = p.prompt_logprobs();
  output.echo_prompt = p.echo_prompt();
  output.keep_special_tokens = p.keep_special_tokens();
  return output;
}

absl::Status CheckForced(const v1::GenerateRequest& proto) {
  if (!proto.has_forced_tokens()) return absl::OkStatus();
  if (proto.forced_tokens().ids_size() == 0) {
    return absl::InvalidArgumentError("forced_tokens.ids: none, want >= 1");
  }
  return absl::OkStatus();
}

absl::Status SetTextPrompt(const v1::GenerateRequest& proto,
                           const ConvertContext& context,
                           engine::Request* request) {
  const std::string& text = proto.text();
  if (text.empty()) {
    return absl::InvalidArgumentError("text: empty prompt");
  }
  KF_RETURN_IF_ERROR(CheckTextBytes("text", text.size(), context));
  engine::EncodeOptions options;
  options.parse_special = proto.parse_special();
  auto encoding = context.tokenizer->Encode(text, options);
  if (!encoding.ok()) {
    return absl::Status(encoding.status().code(),
                        absl::StrCat("text: ", encoding.status().message()));
  }
  request->prompt = std::move(encoding->ids);
  if (proto.output().echo_prompt()) request->prompt_text = text;
  return absl::OkStatus();
}

absl::Status SetPrompt(const v1::GenerateRequest& proto,
                       const ConvertContext& context,
                       engine::Request* request) {
  switch (proto.input_case()) {
    case v1::GenerateRequest::kText:
      return SetTextPrompt(proto, context, request);
    case v1::GenerateRequest::kTokenIds: {
      if (proto.token_ids().ids_size() == 0) {
        return absl::InvalidArgumentError("token_ids.ids: empty prompt");
      }
      KF_ASSIGN_OR_RETURN(
          request->prompt,
          ToTokenIds("token_ids.ids", Ids(proto.token_ids().ids()),
                     context.vocabulary));
      return absl::OkStatus();
    }
    case v1::GenerateRequest::kChat: {
      KF_ASSIGN_OR_RETURN(engine::Encoding encoding,
                          EncodeChatInput(proto.chat(), context));
      request->prompt = std::move(encoding.ids);
      return absl::OkStatus();
    }
    case v1::GenerateRequest::INPUT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "input: none, want text, token_ids or chat");
}

}  // namespace

ConvertContext MakeConvertContext(const engine::Tokenizer& tokenizer,
                                  std::string model_name,
                                  int32_t context_tokens,
                                  CacheOffer cache,
                                  const RequestRules& rules) {
  ConvertContext context;
  context.tokenizer = &tokenizer;
  context.model_name = std::move(model_name);
  context.vocabulary = tokenizer.size();
  context.context_tokens = context_tokens;
  context.cache = std::move(cache);
  context.rules = rules;
  // An unknown-character token stands for one character of up to 4 bytes.
  context.max_token_bytes = 4;
  for (engine::TokenId id = 0; id < tokenizer.size(); ++id) {
    context.max_token_bytes =
        std::max(context.max_token_bytes, tokenizer.TokenBytes(id).size());
  }
  return context;
}

absl::StatusOr<std::vector<engine::TokenId>> ToTokenIds(
    std::string_view field, std::span<const uint32_t> ids, int32_t vocabulary) {
  std::vector<engine::TokenId> result;
  result.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= static_cast<uint32_t>(vocabulary)) {
      return IdOutOfRange(absl::StrCat(ToAbsl(field), "[", i, "]"), ids[i],
                          vocabulary);
    }
    result.push_back(static_cast<engine::TokenId>(ids[i]));
  }
  return result;
}

absl::Status CheckModel(std::string_view name, const ConvertContext& context) {
  if (name.empty() || name == context.model_name) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("model: \"", ToAbsl(name),
                                          "\" is not served; \"",
                                          context.model_name, "\" is"));
}

absl::Status CheckTextBytes(std::string_view field,
                            size_t bytes,
                            const ConvertContext& context) {
  if (bytes > kMaxTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        ToAbsl(field), ": ", bytes, " bytes, want at most ", kMaxTextBytes));
  }
  const size_t limit =
      static_cast<size_t>(context.context_tokens) * context.max_token_bytes;
  if (bytes <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      ToAbsl(field), ": ", bytes, " bytes, which the context of ",
      context.context_tokens, " tokens cannot hold (a token has at most ",
      context.max_token_bytes, " bytes)"));
}

absl::StatusOr<engine::Encoding> EncodeChatInput(
    const v1::Chat& chat, const ConvertContext& context) {
  if (chat.messages_size() == 0) {
    return absl::InvalidArgumentError("chat.messages: none, want >= 1");
  }
  size_t bytes = 0;
  std::vector<engine::ChatMessage> messages;
  messages.reserve(static_cast<size_t>(chat.messages_size()));
  for (int i = 0; i < chat.messages_size(); ++i) {
    const v1::ChatMessage& message = chat.messages(i);
    if (message.role().empty() || message.role().size() > kMaxRoleBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("chat.messages[", i, "].role: ", message.role().size(),
                       " bytes, want 1 to ", kMaxRoleBytes));
    }
    bytes += message.content().size();
    KF_RETURN_IF_ERROR(
        CheckTextBytes(absl::StrCat("chat.messages[", i, "].content",
                                    i > 0 ? " and those before it" : ""),
                       bytes, context));
    messages.push_back({message.role(), message.content()});
  }
  auto encoding = context.tokenizer->EncodeChat(messages);
  if (absl::IsResourceExhausted(encoding.status())) {
    // No shortage of ours that another try could find gone.
    return absl::InvalidArgumentError(
        absl::StrCat("chat.messages: ", encoding.status().message()));
  }
  if (!encoding.ok()) {
    return absl::Status(encoding.status().code(),
                        absl::StrCat("chat: ", encoding.status().message()));
  }
  if (encoding->ids.empty()) {
    return absl::InvalidArgumentError("chat: the template gives no tokens");
  }
  return encoding;
}

absl::StatusOr<engine::Request> ToEngineRequest(
    const v1::GenerateRequest& proto, const ConvertContext& context) {
  KF_RETURN_IF_ERROR(CheckModel(proto.model(), context));
  if (proto.request_id().size() > kMaxRequestIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("request_id: ", proto.request_id().size(),
                     " bytes, want at most ", kMaxRequestIdBytes));
  }
  engine::Request request;
  KF_RETURN_IF_ERROR(CheckForced(proto));
  KF_ASSIGN_OR_RETURN(request.beam, ToBeam(proto, context));
  KF_ASSIGN_OR_RETURN(request.samples, ToSamples(proto.sampling(), context));
  KF_ASSIGN_OR_RETURN(request.sampling, ToSampling(proto.sampling(), context));
  KF_ASSIGN_OR_RETURN(request.stopping, ToStopping(proto.stopping(), context));
  KF_ASSIGN_OR_RETURN(request.cache,
                      ToCacheOptions(proto.cache(), context.cache));
  KF_ASSIGN_OR_RETURN(request.output, ToOutput(proto));
  KF_ASSIGN_OR_RETURN(request.cache_report, ToReportDetail(proto.output()));
  KF_ASSIGN_OR_RETURN(
      request.forced_tokens,
      ToTokenIds("forced_tokens.ids", Ids(proto.forced_tokens().ids()),
                 context.vocabulary));
  request.priority = proto.priority();
  KF_RETURN_IF_ERROR(SetPrompt(proto, context, &request));
  KF_RETURN_IF_ERROR(CheckReportSize(request, context.report));
  return request;
}

}  // namespace kf::server
