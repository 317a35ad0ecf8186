// Command-line flags that say which server to talk to, the same in every tool.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "tools/client_lib/client.h"
#include "tools/client_lib/exit_code.h"

namespace kf::tools {

// --server, --tls_ca, --tls_cert, --tls_key, --token_file, --wait; each but the
// last also from the environment, KEYFORMER_SERVER and so on. `app` must not
// outlive `options`.
void AddConnectFlags(CLI::App& app, ConnectOptions& options);

// Parses argv; flags may be spelt with - for _. On help, or on a mistake,
// prints it and returns the exit code to end with; -1: go on.
int ParseFlags(CLI::App& app, int argc, char** argv);

// Connects, or prints why not and sets `exit_code` (kExitUnreachable,
// kExitUsage or kExitError).
std::unique_ptr<Client> ConnectOrExplain(const ConnectOptions& options,
                                         ExitCode& exit_code);

// "error: INVALID_ARGUMENT: ..." on standard error; kExitError.
ExitCode Fail(const absl::Status& status);

}  // namespace kf::tools
