// Wire requests to the engine's structs: what is here is valid proto, but its
// numbers are still anyone's. Checks what only the wire can tell (which fields
// are set, enum numbers, what goes together, ids against the vocabulary);
// ranges are engine/request_validation's. Free of gRPC; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/request.h"
#include "engine/tokenizer/tokenizer.h"
#include "keyformer/v1/generation.pb.h"
#include "server/convert_cache.h"
#include "server/convert_report.h"
#include "server/options.h"

namespace kf::server {

namespace v1 = ::keyformer::v1;

// What requests are read against. The tokenizer outlives it.
struct ConvertContext {
  const engine::Tokenizer* tokenizer = nullptr;
  std::string model_name;
  int32_t vocabulary = 0;
  int32_t context_tokens = 0;
  CacheOffer cache;
  RequestRules rules;
  ReportLimits report;
  // The longest token, in bytes: for CheckTextBytes.
  size_t max_token_bytes = 0;
};

inline constexpr size_t kMaxRequestIdBytes = 256;
inline constexpr size_t kMaxRoleBytes = 64;
// Of text to encode: a token may take a byte of it, and some sixty bytes on the
// way to an answer.
inline constexpr size_t kMaxTextBytes = size_t{4} << 20;

// Fills tokenizer-derived members (one pass over the vocabulary).
ConvertContext MakeConvertContext(const engine::Tokenizer& tokenizer,
                                  std::string model_name,
                                  int32_t context_tokens,
                                  CacheOffer cache,
                                  const RequestRules& rules);

// Every error names its field. The deadline is left to the caller, who knows
// the RPC's. Encodes the prompt.
absl::StatusOr<engine::Request> ToEngineRequest(
    const v1::GenerateRequest& proto, const ConvertContext& context);

// kNotFound unless `name` is empty or the served one.
absl::Status CheckModel(std::string_view name, const ConvertContext& context);

// kInvalidArgument if `bytes` of text are above kMaxTextBytes, or more than a
// context full of the longest token.
absl::Status CheckTextBytes(std::string_view field,
                            size_t bytes,
                            const ConvertContext& context);

// The conversation's ids; kInvalidArgument for no messages, a bad role, too
// much text, or more work than a template may do.
absl::StatusOr<engine::Encoding> EncodeChatInput(const v1::Chat& chat,
                                                 const ConvertContext& context);

// `field[i]: 70000, want a token id below 49152`.
absl::StatusOr<std::vector<engine::TokenId>> ToTokenIds(
    std::string_view field, std::span<const uint32_t> ids, int32_t vocabulary);

}  // namespace kf::server
