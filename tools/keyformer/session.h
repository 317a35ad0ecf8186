// What every subcommand of `keyformer` needs, and how they are told apart.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "tools/client_lib/client.h"
#include "tools/client_lib/exit_code.h"
#include "tools/client_lib/interrupt.h"

namespace kf::tools {

struct Session {
  Interrupt& interrupt;
  ConnectOptions connect = {};
  double timeout_s = 0.0;  // deadline of each RPC; 0: none
  std::string model = {};  // empty: the served one
};

// A subcommand's work once the flags are parsed.
using Command = std::function<ExitCode()>;

struct Subcommand {
  CLI::App* app = nullptr;
  Command run;
};

// A usage error unless one of `inputs` is given (that they exclude each other
// is said where they are added).
void RequireOne(CLI::App& sub, std::vector<const CLI::Option*> inputs);

// Each adds one subcommand with its flags and examples. `session` outlives the
// returned command.
Subcommand AddGenerate(CLI::App& app, Session& session);
Subcommand AddChat(CLI::App& app, Session& session);
Subcommand AddTokenize(CLI::App& app, Session& session);
Subcommand AddDetokenize(CLI::App& app, Session& session);
Subcommand AddInfo(CLI::App& app, Session& session);
Subcommand AddLoad(CLI::App& app, Session& session);
Subcommand AddHealth(CLI::App& app, Session& session);

}  // namespace kf::tools
