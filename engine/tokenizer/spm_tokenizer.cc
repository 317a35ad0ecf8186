#include "engine/tokenizer/spm_tokenizer.h"

#include <cmath>
#include <utility>

#include "engine/tokenizer/utf8.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

constexpr std::string_view kScoresKey = "tokenizer.ggml.scores";
constexpr std::string_view kAddBosKey = "tokenizer.ggml.add_bos_token";
constexpr std::string_view kAddSpaceKey = "tokenizer.ggml.add_space_prefix";

bool HasSpaceInside(std::string_view token) {
  const size_t first = token.find_first_not_of(' ');
  return first != std::string_view::npos &&
         token.find(' ', first) != std::string_view::npos;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> SpmTokenizer::Load(
    const GgufFile& file) {
  bool add_bos = true;
  if (file.Has(kAddBosKey)) {
    KF_ASSIGN_OR_RETURN(add_bos, file.GetBool(kAddBosKey));
  }
  KF_ASSIGN_OR_RETURN(auto vocab,
                      Vocab::Load(file, TokenSpelling::kSentencePiece));
  std::unique_ptr<SpmTokenizer> result(new SpmTokenizer(std::move(vocab)));
  if (file.Has(kAddSpaceKey)) {
    KF_ASSIGN_OR_RETURN(result->add_space_prefix_, file.GetBool(kAddSpaceKey));
  }
  KF_RETURN_IF_ERROR(result->ReadScores(file));
  KF_RETURN_IF_ERROR(result->Init(file, add_bos));
  return result;
}

absl::Status SpmTokenizer::ReadScores(const GgufFile& file) {
  KF_ASSIGN_OR_RETURN(scores_, file.GetFloats(kScoresKey));
  if (scores_.size() != static_cast<size_t>(size())) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(kScoresKey), ": ", scores_.size(), " entries for ",
                     size(), " tokens"));
  }
  for (TokenId id = 0; id < size(); ++id) {
    if (std::isnan(scores_[static_cast<size_t>(id)])) {
      return absl::InvalidArgumentError(
          absl::StrCat(ToAbsl(kScoresKey), "[", id, "]: not a number"));
    }
    if (type(id) == TokenType::kNormal && HasSpaceInside(TokenBytes(id))) {
      cuts_at_spaces_ = false;
    }
  }
  return absl::OkStatus();
}

absl::Status SpmTokenizer::EncodeText(std::string_view text,
                                      ByteRange range,
                                      bool begins_piece,
                                      Encoding& out) const {
  // The artificial space is a byte of the symbols' text that the caller's text
  // lacks; offsets are moved back by it.
  const size_t prefix = begins_piece && add_space_prefix_ ? 1 : 0;
  std::string piece(prefix, ' ');
  piece += text.substr(range.begin, range.end - range.begin);
  const size_t first = out.offsets.size();
  std::vector<Symbol> symbols;
  for (size_t pos = 0; pos < piece.size();) {
    const Utf8Step step = NextUtf8(piece, pos);
    if (cuts_at_spaces_ && piece[pos] == ' ' && !symbols.empty() &&
        piece[pos - 1] != ' ') {
      KF_RETURN_IF_ERROR(EncodeChunk(piece, symbols, out));
    }
    const size_t end = pos + step.length;
    symbols.push_back(
        {pos, end,
         vocab().Find(std::string_view(piece).substr(pos, end - pos))});
    pos = end;
  }
  KF_RETURN_IF_ERROR(EncodeChunk(piece, symbols, out));
  for (size_t i = first; i < out.offsets.size(); ++i) {
    const size_t offset = out.offsets[i];
    out.offsets[i] = static_cast<uint32_t>(
        range.begin + (offset < prefix ? 0 : offset - prefix));
  }
  return absl::OkStatus();
}

// Encodes and clears `symbols`; offsets count from the start of `text`.
absl::Status SpmTokenizer::EncodeChunk(std::string_view text,
                                       std::vector<Symbol>& symbols,
                                       Encoding& out) const {
  const size_t longest = vocab().longest_normal_bytes();
  MergeSymbols<float>(symbols, [&](const Symbol& left, const Symbol& right) {
    const size_t length = right.end - left.begin;
    if (length > longest) return Merge<float>{};
    const TokenId id = vocab().Find(text.substr(left.begin, length));
    if (id < 0) return Merge<float>{};
    return Merge<float>{id, -scores_[static_cast<size_t>(id)]};
  });
  for (const Symbol& symbol : symbols) {
    if (symbol.id >= 0) {
      out.ids.push_back(symbol.id);
      out.offsets.push_back(static_cast<uint32_t>(symbol.begin));
      continue;
    }
    bool spelt = true;
    for (size_t pos = symbol.begin; pos < symbol.end; ++pos) {
      spelt &= vocab().FindByte(static_cast<uint8_t>(text[pos])) >= 0;
    }
    if (!spelt) {
      KF_RETURN_IF_ERROR(AppendUnknown(text, symbol.begin, out));
      continue;
    }
    for (size_t pos = symbol.begin; pos < symbol.end; ++pos) {
      out.ids.push_back(vocab().FindByte(static_cast<uint8_t>(text[pos])));
      out.offsets.push_back(static_cast<uint32_t>(pos));
    }
  }
  symbols.clear();
  return absl::OkStatus();
}

}  // namespace kf::engine
