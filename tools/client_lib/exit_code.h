// Exit codes of the command-line tools: scripts tell a server's answer from a
// server that is not there, and both from a mistyped flag.
#pragma once

namespace kf::tools {

enum ExitCode : int {
  kExitOk = 0,
  kExitError = 1,        // the server or an RPC said no; a file is unreadable
  kExitUsage = 2,        // a flag or argument is wrong; nothing was sent
  kExitUnreachable = 3,  // no connection to the server
  kExitInterrupted = 130,
};

}  // namespace kf::tools
