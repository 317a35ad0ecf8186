// Bearer tokens from a file.
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/core/mutex.h"

namespace kf::server {

// One token a line, each line ended by a newline; blank lines and lines that
// begin with # do not count. A changed file is noticed within a second, and at
// once by Reload. While a new file is bad, the last good set counts.
// Thread-safe.
class TokenFile {
 public:
  // kInvalidArgument: no token, a token of fewer than 8 or more than 4,096
  // bytes, one with bytes other than printable ASCII, or a last line without
  // its newline; names the line, never the token. kNotFound: cannot be read.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(std::string path);

  // `header` is the value of "authorization". True if it is "Bearer " and one
  // of the tokens. Takes the same time for every token of one length.
  bool Allows(std::string_view header);

  absl::Status Reload();

 private:
  explicit TokenFile(std::string path) : path_(std::move(path)) {}
  absl::Status Read() KF_REQUIRES(mu_);

  const std::string path_;
  Mutex mu_;
  std::vector<std::string> tokens_ KF_GUARDED_BY(mu_);
  struct stat seen_ KF_GUARDED_BY(mu_) = {};
  std::chrono::steady_clock::time_point next_look_ KF_GUARDED_BY(mu_);
};

}  // namespace kf::server
