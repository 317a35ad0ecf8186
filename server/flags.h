// The only place that reads the command line and the environment. Each flag
// --name is also the environment variable KEYFORMER_NAME; the command line
// wins.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "server/options.h"

namespace kf::server {

struct ParsedFlags {
  // Not empty: print this and exit 0 (--help, --version).
  std::string print;
  ServerOptions options;
};

// `args` are the arguments after the program's name; `environment` looks up a
// variable (null: not set). kInvalidArgument names flag, value and limit.
// Not thread-safe: it goes through absl's flag registry.
absl::StatusOr<ParsedFlags> ParseFlags(
    std::span<const char* const> args,
    const std::function<const char*(const char*)>& environment);

}  // namespace kf::server
