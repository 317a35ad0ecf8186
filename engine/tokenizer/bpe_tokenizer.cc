#include "engine/tokenizer/bpe_tokenizer.h"

#include <utility>

#include "kernels/core/status.h"

namespace kf::engine {
namespace {

constexpr std::string_view kMergesKey = "tokenizer.ggml.merges";
constexpr std::string_view kAddBosKey = "tokenizer.ggml.add_bos_token";
constexpr size_t kMaxMerges = size_t{1} << 23;

uint64_t PairKey(TokenId left, TokenId right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 |
         static_cast<uint32_t>(right);
}

}  // namespace

BpeTokenizer::BpeTokenizer(Vocab vocab, std::unique_ptr<PreTokenizer> pre)
    : TextTokenizer(std::move(vocab)), pre_(std::move(pre)) {}

absl::StatusOr<std::unique_ptr<Tokenizer>> BpeTokenizer::Load(
    const GgufFile& file) {
  KF_ASSIGN_OR_RETURN(const std::string_view name,
                      file.GetString("tokenizer.ggml.pre"));
  KF_ASSIGN_OR_RETURN(auto pre, PreTokenizer::Create(name));
  bool add_bos = pre->default_add_bos();
  if (file.Has(kAddBosKey)) {
    KF_ASSIGN_OR_RETURN(add_bos, file.GetBool(kAddBosKey));
  }
  KF_ASSIGN_OR_RETURN(auto vocab, Vocab::Load(file, TokenSpelling::kByteLevel));
  std::unique_ptr<BpeTokenizer> result(
      new BpeTokenizer(std::move(vocab), std::move(pre)));
  KF_RETURN_IF_ERROR(result->ReadMerges(file));
  KF_RETURN_IF_ERROR(result->Init(file, add_bos));
  return result;
}

absl::Status BpeTokenizer::ReadMerges(const GgufFile& file) {
  KF_ASSIGN_OR_RETURN(const auto merges, file.GetStrings(kMergesKey));
  if (merges.size() > kMaxMerges) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(kMergesKey), ": ", merges.size(),
                     " merges; at most ", kMaxMerges));
  }
  merges_.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    KF_RETURN_IF_ERROR(AddMerge(merges[i], static_cast<uint32_t>(i)));
  }
  return absl::OkStatus();
}

absl::Status BpeTokenizer::AddMerge(std::string_view merge, uint32_t rank) {
  const auto error = [&](std::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(kMergesKey), "[", rank, "]: \"",
                     ToAbsl(merge.substr(0, 64)), "\" ", ToAbsl(what)));
  };
  // The byte-level spelling of a space is another code point.
  const size_t space = merge.find(' ');
  if (space == std::string_view::npos || space == 0 ||
      space + 1 == merge.size()) {
    return error("is not two tokens with a space between them");
  }
  const auto left = DecodeByteLevel(merge.substr(0, space));
  const auto right = DecodeByteLevel(merge.substr(space + 1));
  if (!left.has_value() || !right.has_value()) return error("is not UTF-8");
  const TokenId left_id = vocab().Find(*left);
  const TokenId right_id = vocab().Find(*right);
  const TokenId whole_id = vocab().Find(*left + *right);
  if (left_id < 0 || right_id < 0 || whole_id < 0) {
    return error("names or makes a token that is not in the vocabulary");
  }
  // Of two equal pairs the better rank stays.
  merges_.try_emplace(PairKey(left_id, right_id),
                      Merge<uint32_t>{whole_id, rank});
  return absl::OkStatus();
}

absl::Status BpeTokenizer::EncodeText(std::string_view text,
                                      ByteRange range,
                                      bool /*begins_piece*/,
                                      Encoding& out) const {
  std::vector<ByteRange> words;
  const auto piece = text.substr(range.begin, range.end - range.begin);
  KF_RETURN_IF_ERROR(pre_->Split(piece, words));
  std::vector<Symbol> symbols;
  for (const ByteRange& word : words) {
    KF_RETURN_IF_ERROR(
        EncodeWord(text, {range.begin + word.begin, range.begin + word.end},
                   symbols, out));
  }
  return absl::OkStatus();
}

absl::Status BpeTokenizer::EncodeWord(std::string_view text,
                                      ByteRange word,
                                      std::vector<Symbol>& symbols,
                                      Encoding& out) const {
  if (pre_->ignore_merges()) {
    const TokenId id =
        vocab().Find(text.substr(word.begin, word.end - word.begin));
    if (id >= 0) {
      out.ids.push_back(id);
      out.offsets.push_back(static_cast<uint32_t>(word.begin));
      return absl::OkStatus();
    }
  }
  symbols.clear();
  for (size_t pos = word.begin; pos < word.end; ++pos) {
    const TokenId id = vocab().FindByte(static_cast<uint8_t>(text[pos]));
    symbols.push_back({pos, pos + 1, id});
  }
  MergeSymbols<uint32_t>(
      symbols, [this](const Symbol& left, const Symbol& right) {
        // A byte without a token has id -1, which no merge names.
        const auto it = merges_.find(PairKey(left.id, right.id));
        return it == merges_.end() ? Merge<uint32_t>{} : it->second;
      });
  for (const Symbol& symbol : symbols) {
    if (symbol.id < 0) {
      KF_RETURN_IF_ERROR(AppendUnknown(text, symbol.begin, out));
      continue;
    }
    out.ids.push_back(symbol.id);
    out.offsets.push_back(static_cast<uint32_t>(symbol.begin));
  }
  return absl::OkStatus();
}

}  // namespace kf::engine
