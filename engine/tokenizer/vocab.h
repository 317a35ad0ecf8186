// The vocabulary of a model file: each token's bytes and type, the special ids,
// and the index from bytes to ids that encoding looks words up in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/gguf.h"
#include "engine/tokenizer/special_matcher.h"
#include "engine/tokenizer/tokenizer.h"

namespace kf::engine {

// How token texts are written in the file.
enum class TokenSpelling : uint8_t {
  kByteLevel,      // GPT-2's printable code point per byte
  kSentencePiece,  // U+2581 for a space, <0xXX> for a byte
};

// Immutable after Load, thread-safe. Owns its bytes: the file may go.
class Vocab {
 public:
  static constexpr size_t kMaxTokens = size_t{1} << 22;
  static constexpr size_t kMaxTokenBytes = size_t{1} << 16;

  // kInvalidArgument names the key, the token and what is wrong with it.
  static absl::StatusOr<Vocab> Load(const GgufFile& file,
                                    TokenSpelling spelling);
  Vocab(Vocab&&) = default;
  Vocab& operator=(Vocab&&) = delete;

  int32_t size() const { return static_cast<int32_t>(types_.size()); }
  std::string_view bytes(TokenId id) const;
  TokenType type(TokenId id) const { return types_[static_cast<size_t>(id)]; }
  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }
  // The token that stands for text the vocabulary lacks; never a control token.
  std::optional<TokenId> unknown() const { return unknown_; }
  bool IsEndOfGeneration(TokenId id) const;

  // The normal token of these bytes, or -1. Of several the lowest id; control,
  // user-defined, unknown and unused tokens are never found. Byte-level BPE:
  // byte tokens are those of one byte.
  TokenId Find(std::string_view bytes) const;
  // The token of one byte, or -1.
  TokenId FindByte(uint8_t byte) const { return byte_ids_[byte]; }
  size_t longest_normal_bytes() const { return longest_normal_; }

  // User-defined and control tokens.
  const SpecialMatcher& specials() const { return specials_; }

 private:
  Vocab() = default;
  absl::Status ReadTokens(const GgufFile& file, TokenSpelling spelling);
  absl::Status AddToken(std::string_view text,
                        int64_t type,
                        TokenSpelling spelling);
  absl::Status IndexToken(TokenId id, TokenSpelling spelling);
  absl::Status ReadSpecialIds(const GgufFile& file);

  std::string arena_;         // all tokens' bytes
  std::vector<size_t> ends_;  // token i is [ends_[i], ends_[i + 1])
  std::vector<TokenType> types_;
  absl::flat_hash_map<std::string_view, TokenId> ids_;  // keys in arena_
  std::vector<TokenId> byte_ids_;                       // 256
  size_t longest_normal_ = 0;
  SpecialMatcher specials_;
  std::optional<TokenId> bos_;
  std::optional<TokenId> eos_;
  std::optional<TokenId> unknown_;
  std::vector<TokenId> end_ids_;  // ascending
};

// The bytes that byte-level text spells, or nothing if it is not UTF-8. Code
// points outside GPT-2's table stand for themselves.
std::optional<std::string> DecodeByteLevel(std::string_view text);

}  // namespace kf::engine
