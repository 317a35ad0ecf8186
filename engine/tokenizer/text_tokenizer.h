// What both kinds of tokenizer share: special tokens, BOS, chat, lookups. A
// kind encodes the ordinary text between special tokens.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "engine/tokenizer/chat_template.h"
#include "engine/tokenizer/special_matcher.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/vocab.h"

namespace kf::engine {

class TextTokenizer : public Tokenizer {
 public:
  // Texts are at most this long, so that 32-bit offsets hold.
  static constexpr size_t kMaxTextBytes = size_t{1} << 30;

  // `add_bos`: whether Encode puts BOS in front. kInvalidArgument if it should
  // and the file names no BOS token. A chat template that cannot be parsed is
  // no load error; chat answers with it.
  absl::Status Init(const GgufFile& file, bool add_bos);

  absl::StatusOr<Encoding> Encode(std::string_view text,
                                  const EncodeOptions& options) const override;
  absl::StatusOr<Encoding> EncodeChat(
      std::span<const ChatMessage> messages) const override;
  bool has_chat_template() const override { return template_.ok(); }
  absl::StatusOr<std::string> RenderChat(
      std::span<const ChatMessage> messages) const override;

  int32_t size() const override { return vocab_.size(); }
  std::string_view TokenBytes(TokenId id) const override {
    return vocab_.bytes(id);
  }
  TokenType type(TokenId id) const override { return vocab_.type(id); }
  std::optional<TokenId> bos() const override { return vocab_.bos(); }
  std::optional<TokenId> eos() const override { return vocab_.eos(); }
  bool IsEndOfGeneration(TokenId id) const override {
    return vocab_.IsEndOfGeneration(id);
  }

 protected:
  explicit TextTokenizer(Vocab vocab);

  // Appends the tokens of text[range], which holds no special token; offsets
  // count from the start of `text`. begins_piece: the range is the first of the
  // text or follows a control token; it may then be empty.
  virtual absl::Status EncodeText(std::string_view text,
                                  ByteRange range,
                                  bool begins_piece,
                                  Encoding& out) const = 0;

  // Appends the token for text[pos], which the vocabulary cannot spell;
  // kInvalidArgument without an unknown token.
  absl::Status AppendUnknown(std::string_view text,
                             size_t pos,
                             Encoding& out) const;
  const Vocab& vocab() const { return vocab_; }

 private:
  // `text` is UTF-8. Control tokens are made inside `trusted` alone, which is
  // ascending and disjoint.
  absl::Status EncodeSegments(std::string_view text,
                              std::span<const ByteRange> trusted,
                              Encoding& out) const;
  absl::StatusOr<JinjaString> Render(
      std::span<const ChatMessage> messages) const;

  Vocab vocab_;
  bool add_bos_ = false;
  absl::StatusOr<ChatTemplate> template_;
};

}  // namespace kf::engine
