#include "engine/tokenizer/vocab.h"

#include <algorithm>
#include <array>
#include <limits>

#include "engine/model/byte_level.h"
#include "engine/tokenizer/utf8.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";
constexpr std::string_view kTypesKey = "tokenizer.ggml.token_type";
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

// Tokens that end a turn by their text, where the file names no id for them.
constexpr std::string_view kEndTexts[] = {"<|im_end|>",    "<|eot_id|>",
                                          "<|eom_id|>",    "<|end_of_text|>",
                                          "<|endoftext|>", "<end_of_turn>"};

// Index: code point; -1: no byte.
std::array<int16_t, 0x144> MakeByteTable() {
  std::array<int16_t, 0x144> table = {};
  table.fill(-1);
  int16_t byte = 0;
  for (const uint16_t code : ByteLevelCodes()) table[code] = byte++;
  return table;
}

std::string ReplaceSpaceMarks(std::string_view text) {
  std::string out;
  size_t pos = 0;
  while (pos < text.size()) {
    const size_t mark = std::min(text.find(kSpaceMark, pos), text.size());
    out.append(text.substr(pos, mark - pos));
    if (mark == text.size()) break;
    out.push_back(' ');
    pos = mark + kSpaceMark.size();
  }
  return out;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// "<0x0A>" -> 10.
std::optional<uint8_t> ParseByteToken(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') {
    return std::nullopt;
  }
  const int high = HexDigit(text[3]);
  const int low = HexDigit(text[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<uint8_t>(high * 16 + low);
}

}  // namespace

std::optional<std::string> DecodeByteLevel(std::string_view text) {
  static const std::array<int16_t, 0x144> table = MakeByteTable();
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = NextUtf8(text, pos);
    if (step.kind != Utf8Kind::kValid) return std::nullopt;
    const int16_t byte =
        step.code_point < table.size() ? table[step.code_point] : int16_t{-1};
    if (byte >= 0) {
      out.push_back(static_cast<char>(static_cast<uint8_t>(byte)));
    } else {
      out.append(text.substr(pos, step.length));
    }
    pos += step.length;
  }
  return out;
}

absl::StatusOr<Vocab> Vocab::Load(const GgufFile& file,
                                  TokenSpelling spelling) {
  Vocab vocab;
  KF_RETURN_IF_ERROR(vocab.ReadTokens(file, spelling));
  // Keys point into the arena, which is complete and moves with its heap block.
  vocab.byte_ids_.assign(256, -1);
  vocab.ids_.reserve(vocab.types_.size());
  for (TokenId id = 0; id < vocab.size(); ++id) {
    KF_RETURN_IF_ERROR(vocab.IndexToken(id, spelling));
  }
  KF_RETURN_IF_ERROR(vocab.ReadSpecialIds(file));
  return vocab;
}

absl::Status Vocab::ReadTokens(const GgufFile& file, TokenSpelling spelling) {
  KF_ASSIGN_OR_RETURN(const auto texts, file.GetStrings(kTokensKey));
  if (texts.empty() || texts.size() > kMaxTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(kTokensKey), ": ", texts.size(),
                     " tokens; the range is 1 to ", kMaxTokens));
  }
  std::vector<int64_t> types(texts.size(), 1);
  if (file.Has(kTypesKey)) {
    KF_ASSIGN_OR_RETURN(types, file.GetInts(kTypesKey));
    if (types.size() != texts.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(ToAbsl(kTypesKey), ": ", types.size(), " entries for ",
                       texts.size(), " tokens"));
    }
  }
  size_t total = 64;  // more than any inline buffer: moving keeps addresses
  for (const std::string_view text : texts) total += text.size();
  arena_.reserve(total);
  ends_.reserve(texts.size() + 1);
  ends_.push_back(0);
  types_.reserve(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    KF_RETURN_IF_ERROR(AddToken(texts[i], types[i], spelling));
  }
  return absl::OkStatus();
}

absl::Status Vocab::AddToken(std::string_view text,
                             int64_t type,
                             TokenSpelling spelling) {
  const auto error = [this](const auto&... what) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(kTokensKey), "[", types_.size(), "]: ", what...));
  };
  if (type < 1 || type > 6) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(kTypesKey), "[", types_.size(), "]: ", type,
                     " is no token type (1 to 6)"));
  }
  if (text.size() > kMaxTokenBytes) {
    return error(text.size(), " bytes; at most ", kMaxTokenBytes);
  }
  const size_t valid = ValidUtf8Prefix(text);
  if (valid != text.size()) return error("not UTF-8 at byte ", valid);
  const auto token_type = static_cast<TokenType>(type);
  const bool special = token_type == TokenType::kControl ||
                       token_type == TokenType::kUserDefined ||
                       token_type == TokenType::kUnknown;
  if (spelling == TokenSpelling::kByteLevel) {
    arena_ += special ? std::string(text) : DecodeByteLevel(text).value();
  } else if (token_type == TokenType::kByte) {
    const std::optional<uint8_t> byte = ParseByteToken(text);
    if (!byte.has_value()) return error("a byte token that is not <0xXX>");
    arena_.push_back(static_cast<char>(*byte));
  } else {
    arena_ += ReplaceSpaceMarks(text);
  }
  ends_.push_back(arena_.size());
  types_.push_back(token_type);
  return absl::OkStatus();
}

absl::Status Vocab::IndexToken(TokenId id, TokenSpelling spelling) {
  const std::string_view text = bytes(id);
  if (text.empty()) return absl::OkStatus();  // decodes to nothing
  const bool byte_level = spelling == TokenSpelling::kByteLevel;
  switch (type(id)) {
    case TokenType::kControl:
    case TokenType::kUserDefined:
      if (text.size() > SpecialMatcher::kMaxTokenBytes) {
        return absl::InvalidArgumentError(absl::StrCat(
            ToAbsl(kTokensKey), "[", id, "]: a control or user-defined token",
            " of ", text.size(), " bytes; at most ",
            SpecialMatcher::kMaxTokenBytes));
      }
      specials_.Add(text, id, type(id) == TokenType::kControl);
      break;
    case TokenType::kNormal:
      ids_.try_emplace(text, id);
      longest_normal_ = std::max(longest_normal_, text.size());
      if (!byte_level || text.size() != 1) break;
      [[fallthrough]];
    case TokenType::kByte:
      if (text.size() == 1) {
        TokenId& slot = byte_ids_[static_cast<uint8_t>(text[0])];
        if (slot < 0) slot = id;
      }
      break;
    case TokenType::kUnknown:
    case TokenType::kUnused:
      break;
  }
  return absl::OkStatus();
}

absl::Status Vocab::ReadSpecialIds(const GgufFile& file) {
  const auto read = [&](std::string_view key,
                        std::optional<TokenId>& out) -> absl::Status {
    if (!file.Has(key)) return absl::OkStatus();
    KF_ASSIGN_OR_RETURN(const uint64_t id, file.GetUint(key));
    if (id >= types_.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          ToAbsl(key), ": ", id, " is no token; there are ", types_.size()));
    }
    out = static_cast<TokenId>(id);
    return absl::OkStatus();
  };
  std::optional<TokenId> eot;
  std::optional<TokenId> eom;
  KF_RETURN_IF_ERROR(read("tokenizer.ggml.bos_token_id", bos_));
  KF_RETURN_IF_ERROR(read("tokenizer.ggml.eos_token_id", eos_));
  KF_RETURN_IF_ERROR(read("tokenizer.ggml.eot_token_id", eot));
  KF_RETURN_IF_ERROR(read("tokenizer.ggml.eom_token_id", eom));
  KF_RETURN_IF_ERROR(read("tokenizer.ggml.unknown_token_id", unknown_));
  // Ordinary text must not become a control token.
  if (unknown_.has_value() && type(*unknown_) == TokenType::kControl) {
    unknown_.reset();
  }
  for (const std::optional<TokenId>& id : {eos_, eot, eom}) {
    if (id.has_value()) end_ids_.push_back(*id);
  }
  for (TokenId id = 0; id < size(); ++id) {
    if (type(id) != TokenType::kControl &&
        type(id) != TokenType::kUserDefined) {
      continue;
    }
    if (std::ranges::find(kEndTexts, bytes(id)) != std::end(kEndTexts)) {
      end_ids_.push_back(id);
    }
  }
  std::ranges::sort(end_ids_);
  return absl::OkStatus();
}

std::string_view Vocab::bytes(TokenId id) const {
  KF_CHECK(id >= 0 && id < size());
  const auto i = static_cast<size_t>(id);
  return std::string_view(arena_).substr(ends_[i], ends_[i + 1] - ends_[i]);
}

bool Vocab::IsEndOfGeneration(TokenId id) const {
  return std::ranges::binary_search(end_ids_, id);
}

TokenId Vocab::Find(std::string_view text) const {
  const auto it = ids_.find(text);
  return it == ids_.end() ? -1 : it->second;
}

}  // namespace kf::engine
