#include "engine/tokenizer/text_tokenizer.h"

#include <utility>

#include "engine/tokenizer/utf8.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

constexpr std::string_view kTemplateKey = "tokenizer.chat_template";

absl::Status CheckText(std::string_view field, std::string_view text) {
  if (text.size() > TextTokenizer::kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(field), ": ", text.size(), " bytes; at most ",
                     TextTokenizer::kMaxTextBytes));
  }
  const size_t valid = ValidUtf8Prefix(text);
  if (valid != text.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(field), ": not UTF-8 at byte ", valid));
  }
  return absl::OkStatus();
}

}  // namespace

TextTokenizer::TextTokenizer(Vocab vocab)
    : vocab_(std::move(vocab)),
      template_(absl::FailedPreconditionError(
          "the model file has no chat template (tokenizer.chat_template)")) {}

absl::Status TextTokenizer::Init(const GgufFile& file, bool add_bos) {
  add_bos_ = add_bos;
  if (add_bos && !vocab_.bos().has_value()) {
    return absl::InvalidArgumentError(
        "tokenizer.ggml.bos_token_id: missing, and the tokenizer adds BOS");
  }
  if (file.Has(kTemplateKey)) {
    KF_ASSIGN_OR_RETURN(const std::string_view source,
                        file.GetString(kTemplateKey));
    const auto text_of = [this](std::optional<TokenId> id) {
      return id.has_value() ? std::string(vocab_.bytes(*id)) : std::string();
    };
    template_ = ChatTemplate::Parse(source, text_of(vocab_.bos()),
                                    text_of(vocab_.eos()));
  }
  return absl::OkStatus();
}

absl::StatusOr<Encoding> TextTokenizer::Encode(
    std::string_view text, const EncodeOptions& options) const {
  KF_RETURN_IF_ERROR(CheckText("text", text));
  Encoding out;
  if (add_bos_ && options.add_bos) {
    out.ids.push_back(*vocab_.bos());
    out.offsets.push_back(0);
  }
  const ByteRange whole = {0, text.size()};
  const auto trusted = options.parse_special
                           ? std::span<const ByteRange>(&whole, 1)
                           : std::span<const ByteRange>();
  KF_RETURN_IF_ERROR(EncodeSegments(text, trusted, out));
  return out;
}

absl::StatusOr<JinjaString> TextTokenizer::Render(
    std::span<const ChatMessage> messages) const {
  KF_RETURN_IF_ERROR(template_.status());
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string field = absl::StrCat("messages[", i, "]");
    KF_RETURN_IF_ERROR(CheckText(field + ".role", messages[i].role));
    KF_RETURN_IF_ERROR(CheckText(field + ".content", messages[i].content));
  }
  return template_->Render(messages);
}

absl::StatusOr<Encoding> TextTokenizer::EncodeChat(
    std::span<const ChatMessage> messages) const {
  KF_ASSIGN_OR_RETURN(const JinjaString rendered, Render(messages));
  KF_RETURN_IF_ERROR(CheckText("rendered chat", rendered.text()));
  Encoding out;
  KF_RETURN_IF_ERROR(
      EncodeSegments(rendered.text(), rendered.TrustedRanges(), out));
  return out;
}

absl::StatusOr<std::string> TextTokenizer::RenderChat(
    std::span<const ChatMessage> messages) const {
  KF_ASSIGN_OR_RETURN(const JinjaString rendered, Render(messages));
  return std::string(rendered.text());
}

absl::Status TextTokenizer::EncodeSegments(std::string_view text,
                                           std::span<const ByteRange> trusted,
                                           Encoding& out) const {
  bool begins_piece = true;
  size_t begin = 0;  // of the ordinary text not yet encoded
  size_t range = 0;  // the first trusted range that ends after pos
  for (size_t pos = 0; pos < text.size();) {
    while (range < trusted.size() && trusted[range].end <= pos) ++range;
    const bool inside = range < trusted.size() && trusted[range].begin <= pos;
    const size_t control_end = inside ? trusted[range].end : 0;
    const auto match = vocab_.specials().MatchAt(text, pos, control_end);
    if (!match.has_value()) {
      ++pos;
      continue;
    }
    if (pos > begin || (begins_piece && !match->control)) {
      KF_RETURN_IF_ERROR(EncodeText(text, {begin, pos}, begins_piece, out));
    }
    out.ids.push_back(match->id);
    out.offsets.push_back(static_cast<uint32_t>(pos));
    pos += match->length;
    begin = pos;
    begins_piece = match->control;
  }
  if (begin < text.size()) {
    return EncodeText(text, {begin, text.size()}, begins_piece, out);
  }
  return absl::OkStatus();
}

absl::Status TextTokenizer::AppendUnknown(std::string_view text,
                                          size_t pos,
                                          Encoding& out) const {
  if (!vocab_.unknown().has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "text: the vocabulary has no token for the byte ",
        absl::Hex(static_cast<uint8_t>(text[pos]), absl::kZeroPad2),
        " (hexadecimal) at byte ", pos));
  }
  out.ids.push_back(*vocab_.unknown());
  out.offsets.push_back(static_cast<uint32_t>(pos));
  return absl::OkStatus();
}

}  // namespace kf::engine
