// Text to token ids and back, as the model file defines it.
//
// Kinds: byte-level BPE (tokenizer.ggml.model "gpt2") with the pre-tokenisers
// gpt-2, smollm, llama-bpe, qwen2, mpt, starcoder; SentencePiece BPE ("llama").
// Anything else is a load error that names it. Immutable after Load,
// thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/gguf.h"
#include "engine/request.h"

namespace kf::engine {

// GGUF token types (tokenizer.ggml.token_type).
enum class TokenType : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct EncodeOptions {
  bool add_bos = true;         // as the file says (add_bos_token); false: never
  bool parse_special = false;  // control tokens in the text become their ids
};

struct Encoding {
  std::vector<TokenId> ids;
  // Byte offset in the text where each token starts; an added BOS has 0.
  std::vector<uint32_t> offsets;
};

struct ChatMessage {
  std::string role;
  std::string content;
};

class Tokenizer {
 public:
  // kInvalidArgument names the missing, malformed or unsupported key. Needs the
  // file's metadata only: it may hold no tensors and be of any architecture.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const GgufFile& file);
  virtual ~Tokenizer() = default;

  // `text` must be UTF-8 (kInvalidArgument gives the byte offset).
  virtual absl::StatusOr<Encoding> Encode(
      std::string_view text, const EncodeOptions& options) const = 0;

  // The conversation through the model's own chat template, with the generation
  // prompt. Control ids come from the template alone: content is always text.
  // kFailedPrecondition: the file has no template, or one of a kind we do not
  // know; kInvalidArgument: the template refuses the messages;
  // kResourceExhausted: they make it work more than a template may, which no
  // other try changes.
  virtual absl::StatusOr<Encoding> EncodeChat(
      std::span<const ChatMessage> messages) const = 0;
  // Whether the file has a chat template that EncodeChat can follow.
  virtual bool has_chat_template() const = 0;
  // The rendered text of EncodeChat, for tools and tests.
  virtual absl::StatusOr<std::string> RenderChat(
      std::span<const ChatMessage> messages) const = 0;

  virtual int32_t size() const = 0;
  // The bytes a token stands for, e.g. " Paris"; may be part of a UTF-8
  // character. Control tokens: their text. id is in [0, size()).
  virtual std::string_view TokenBytes(TokenId id) const = 0;
  virtual TokenType type(TokenId id) const = 0;
  virtual std::optional<TokenId> bos() const = 0;
  virtual std::optional<TokenId> eos() const = 0;
  // True for EOS and the file's end-of-turn/message tokens.
  virtual bool IsEndOfGeneration(TokenId id) const = 0;

  // Whole text of ids. Control tokens are left out unless keep_special. Bytes
  // that are no UTF-8 become U+FFFD. SentencePiece: the space that encoding
  // adds in front is taken off when ids start the text.
  std::string Decode(std::span<const TokenId> ids, bool keep_special) const;

 protected:
  Tokenizer() = default;
  friend class IncrementalDecoder;
  // SentencePiece's artificial leading space applies to the first piece.
  virtual bool strips_leading_space() const { return false; }
};

// Decodes a growing sequence; never emits half a UTF-8 character. One instance
// per sequence; thread-compatible.
class IncrementalDecoder {
 public:
  // at_text_start: the ids begin a text (a Detokenize call), so SentencePiece's
  // leading space is dropped. A generated answer continues a prompt: false.
  IncrementalDecoder(const Tokenizer& tokenizer,
                     bool keep_special,
                     bool at_text_start);

  // The text that token `id` completes; may be empty.
  std::string Push(TokenId id);
  // What is left at the end: an incomplete character becomes U+FFFD.
  std::string Finish();

 private:
  const Tokenizer& tokenizer_;
  bool keep_special_;
  bool whole_text_;
  bool at_start_;        // the next bytes may begin with the artificial space
  std::string pending_;  // < 4 bytes of an unfinished character
};

}  // namespace kf::engine
