#include "engine/tokenizer/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <span>

#include "kernels/core/status.h"

namespace kf::engine {
namespace {

// \s spelt out as Unicode's White_Space: PCRE2's own \s has U+180E besides.
#define KF_SPACE                                                        \
  "\\x09-\\x0D\\x20\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}" \
  "\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define KF_SPACES_AT_END "[" KF_SPACE "]+(?![^" KF_SPACE "])"

// Possessive (++) where what follows cannot take a character back, so that long
// words need no backtracking.
constexpr const char* kGpt2 =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}++| ?\\p{N}++| ?[^" KF_SPACE
    "\\p{L}\\p{N}]++|" KF_SPACES_AT_END "|[" KF_SPACE "]++";
constexpr const char* kDigit = "\\p{N}";

#define KF_CONTRACTIONS "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
#define KF_LLAMA3(numbers)                                               \
  KF_CONTRACTIONS                                                        \
  "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}++|" numbers "| ?[^" KF_SPACE            \
  "\\p{L}\\p{N}]++[\\r\\n]*+|[" KF_SPACE "]*[\\r\\n]+|" KF_SPACES_AT_END \
  "|[" KF_SPACE "]++"
constexpr const char* kLlama3 = KF_LLAMA3("\\p{N}{1,3}+");
constexpr const char* kQwen2 = KF_LLAMA3("\\p{N}");

struct Rule {
  std::string_view name;
  const char* stages[2];  // the second may be null
  bool ignore_merges;
  bool default_add_bos;
};

// Names that share a line's rules in llama.cpp are listed beside each other.
constexpr Rule kRules[] = {
    {"gpt-2", {kGpt2, nullptr}, false, false},
    {"phi-2", {kGpt2, nullptr}, false, false},
    {"mpt", {kGpt2, nullptr}, false, false},
    {"smollm", {kDigit, kGpt2}, false, false},
    {"starcoder", {kDigit, kGpt2}, false, false},
    {"llama-bpe", {kLlama3, nullptr}, true, true},
    {"llama3", {kLlama3, nullptr}, true, true},
    {"llama-v3", {kLlama3, nullptr}, true, true},
    {"qwen2", {kQwen2, nullptr}, false, false},
    {"deepseek-r1-qwen", {kQwen2, nullptr}, false, false},
};

// Backtracking steps of one match; a run of white space costs one each.
constexpr uint32_t kMatchLimit = 50'000'000;

struct CodeDeleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct MatchContextDeleter {
  void operator()(pcre2_match_context* context) const {
    pcre2_match_context_free(context);
  }
};
using Code = std::unique_ptr<pcre2_code, CodeDeleter>;

Code Compile(const char* pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern),
                          PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error,
                          &offset, nullptr));
  KF_CHECK(code != nullptr);
  // Where there is no JIT the interpreter gives the same matches.
  static_cast<void>(pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE));
  return code;
}

// One Split call: the match state, which threads must not share.
class Splitter {
 public:
  Splitter(std::span<const Code> stages, std::vector<ByteRange>& words)
      : stages_(stages),
        words_(words),
        data_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)) {
    KF_CHECK(data_ != nullptr && context_ != nullptr);
    pcre2_set_match_limit(context_.get(), kMatchLimit);
  }

  // Splits `piece`, which starts at byte `base` of the text, from `stage` on.
  // Each stage sees a piece of the one before as a whole text: look-ahead ends
  // with it. Recursion ends with the stages.
  absl::Status Run(size_t stage, std::string_view piece, size_t base) {
    if (piece.empty()) return absl::OkStatus();
    if (stage == stages_.size()) {
      words_.push_back({base, base + piece.size()});
      return absl::OkStatus();
    }
    size_t pos = 0;
    while (pos < piece.size()) {
      const int rc = MatchFrom(stage, piece, pos);
      if (rc == PCRE2_ERROR_NOMATCH) break;
      if (rc < 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "text: splitting into words at byte ", base + pos,
            " needs more than ", kMatchLimit, " steps (pcre2 error ", rc, ")"));
      }
      const PCRE2_SIZE* found = pcre2_get_ovector_pointer(data_.get());
      const size_t begin = found[0];
      const size_t end = found[1];
      KF_CHECK(begin >= pos && end > begin && end <= piece.size());
      KF_RETURN_IF_ERROR(
          Run(stage + 1, piece.substr(pos, begin - pos), base + pos));
      KF_RETURN_IF_ERROR(
          Run(stage + 1, piece.substr(begin, end - begin), base + begin));
      pos = end;
    }
    return Run(stage + 1, piece.substr(pos), base + pos);
  }

 private:
  int MatchFrom(size_t stage, std::string_view piece, size_t pos) {
    // The text was checked once; checking again per match would be quadratic.
    const auto match = [&](uint32_t options) {
      return pcre2_match(stages_[stage].get(),
                         reinterpret_cast<PCRE2_SPTR>(piece.data()),
                         piece.size(), pos, PCRE2_NO_UTF_CHECK | options,
                         data_.get(), context_.get());
    };
    const int rc = match(0);
    return rc == PCRE2_ERROR_JIT_STACKLIMIT ? match(PCRE2_NO_JIT) : rc;
  }

  std::span<const Code> stages_;
  std::vector<ByteRange>& words_;
  std::unique_ptr<pcre2_match_data, MatchDataDeleter> data_;
  std::unique_ptr<pcre2_match_context, MatchContextDeleter> context_;
};

}  // namespace

struct PreTokenizer::Stages {
  std::vector<Code> codes;
};

PreTokenizer::PreTokenizer() : stages_(std::make_unique<Stages>()) {}
PreTokenizer::~PreTokenizer() = default;

absl::StatusOr<std::unique_ptr<PreTokenizer>> PreTokenizer::Create(
    std::string_view name) {
  for (const Rule& rule : kRules) {
    if (rule.name != name) continue;
    std::unique_ptr<PreTokenizer> result(new PreTokenizer());
    for (const char* pattern : rule.stages) {
      if (pattern != nullptr) {
        result->stages_->codes.push_back(Compile(pattern));
      }
    }
    result->ignore_merges_ = rule.ignore_merges;
    result->default_add_bos_ = rule.default_add_bos;
    return result;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "tokenizer.ggml.pre: \"", ToAbsl(name.substr(0, 64)),
      "\" is not supported (gpt-2, smollm, llama-bpe, qwen2, mpt, starcoder)"));
}

absl::Status PreTokenizer::Split(std::string_view text,
                                 std::vector<ByteRange>& words) const {
  return Splitter(stages_->codes, words).Run(0, text, 0);
}

}  // namespace kf::engine
