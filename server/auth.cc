#include "server/auth.h"

#include <spdlog/spdlog.h>

#include <cctype>
#include <cstdint>
#include <fstream>

#include "kernels/core/status.h"

namespace kf::server {
namespace {

constexpr size_t kMinTokenBytes = 8;
constexpr size_t kMaxTokenBytes = 4096;
constexpr size_t kMaxTokens = 10000;
constexpr auto kLookInterval = std::chrono::seconds(1);

// Looks at every byte whatever the first difference is.
bool EqualInConstantTime(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  volatile uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = static_cast<uint8_t>(
        difference | (static_cast<uint8_t>(a[i]) ^ static_cast<uint8_t>(b[i])));
  }
  return difference == 0;
}

absl::StatusOr<std::vector<std::string>> ReadTokens(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return absl::NotFoundError(
        absl::StrCat("--auth_token_file: cannot read ", path));
  }
  std::vector<std::string> tokens;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const auto where = [&] {
      return absl::StrCat("--auth_token_file: ", path, " line ", number, ": ");
    };
    // Half a token would pass for a whole one.
    if (file.eof()) {
      return absl::InvalidArgumentError(absl::StrCat(
          where(), "no newline at its end, the file may be half written"));
    }
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || line.front() == '#') continue;
    if (line.size() < kMinTokenBytes || line.size() > kMaxTokenBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(where(), line.size(), " bytes, want ", kMinTokenBytes,
                       " to ", kMaxTokenBytes));
    }
    for (const char c : line) {
      if (std::isgraph(static_cast<unsigned char>(c)) == 0) {
        return absl::InvalidArgumentError(
            absl::StrCat(where(), "want printable ASCII without spaces"));
      }
    }
    if (tokens.size() == kMaxTokens) {
      return absl::InvalidArgumentError(
          absl::StrCat(where(), "more than ", kMaxTokens, " tokens"));
    }
    tokens.push_back(line);
  }
  if (tokens.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--auth_token_file: ", path, " holds no token"));
  }
  return tokens;
}

bool SameFile(const struct stat& a, const struct stat& b) {
  return a.st_ino == b.st_ino && a.st_size == b.st_size &&
         a.st_mtim.tv_sec == b.st_mtim.tv_sec &&
         a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Open(std::string path) {
  std::unique_ptr<TokenFile> file(new TokenFile(std::move(path)));
  KF_RETURN_IF_ERROR(file->Reload());
  return file;
}

absl::Status TokenFile::Reload() {
  MutexLock lock(mu_);
  return Read();
}

absl::Status TokenFile::Read() {
  // Before the content: a change in between is then seen next time.
  struct stat now = {};
  if (stat(path_.c_str(), &now) == 0) seen_ = now;
  next_look_ = std::chrono::steady_clock::now() + kLookInterval;
  KF_ASSIGN_OR_RETURN(tokens_, ReadTokens(path_));
  return absl::OkStatus();
}

bool TokenFile::Allows(std::string_view header) {
  constexpr std::string_view kScheme = "Bearer ";
  MutexLock lock(mu_);
  if (std::chrono::steady_clock::now() >= next_look_) {
    next_look_ = std::chrono::steady_clock::now() + kLookInterval;
    struct stat now = {};
    if (stat(path_.c_str(), &now) != 0 || !SameFile(now, seen_)) {
      const absl::Status status = Read();
      if (status.ok()) {
        spdlog::info("tokens reloaded");
      } else {
        spdlog::error("tokens not reloaded, the last good set counts: {}",
                      std::string(status.message()));
      }
    }
  }
  if (header.substr(0, kScheme.size()) != kScheme) return false;
  const std::string_view shown = header.substr(kScheme.size());
  bool allowed = false;
  for (const std::string& token : tokens_) {
    if (EqualInConstantTime(shown, token)) allowed = true;
  }
  return allowed;
}

}  // namespace kf::server
