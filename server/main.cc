// keyformer-server: read flags, serve, wait for a signal, drain.
#include <pthread.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "server/flags.h"
#include "server/log.h"
#include "server/server.h"

namespace {

// Before any thread starts, so that all inherit it: signals are then read by
// sigwait alone.
sigset_t BlockSignals() {
  std::signal(SIGPIPE, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

// The next SIGTERM or SIGINT; SIGHUP reloads if there is something to reload.
void WaitForEnd(const sigset_t& signals, kf::server::Server* server) {
  int received = 0;
  do {
    sigwait(&signals, &received);
    if (received == SIGHUP && server != nullptr) server->Reload();
  } while (received == SIGHUP);
}

}  // namespace

int main(int argc, char** argv) {
  const sigset_t signals = BlockSignals();
  const std::vector<const char*> args(argv + 1, argv + argc);
  const auto parsed = kf::server::ParseFlags(
      args, [](const char* name) { return std::getenv(name); });
  if (!parsed.ok()) {
    std::fprintf(stderr, "keyformer-server: %s\n",
                 std::string(parsed.status().message()).c_str());
    return 2;
  }
  if (!parsed->print.empty()) {
    std::fputs(parsed->print.c_str(), stdout);
    return 0;
  }
  kf::server::SetUpLogging(parsed->options.log_format,
                           parsed->options.log_level);
  auto server = kf::server::Server::Start(
      parsed->options, [](const absl::Status& status) {
        if (!status.ok()) kill(getpid(), SIGTERM);  // wakes WaitForEnd
      });
  if (!server.ok()) {
    spdlog::error("{}", std::string(server.status().message()));
    return 1;
  }
  WaitForEnd(signals, server->get());
  // A second signal ends the process at once.
  std::thread([signals] {
    WaitForEnd(signals, nullptr);
    std::_Exit(1);
  }).detach();
  (*server)->Drain();
  // A load cannot be interrupted; nothing depends on its end.
  if ((*server)->loading()) std::_Exit(0);
  const absl::Status status = (*server)->WaitLoaded();
  if (!status.ok()) {
    spdlog::error("{}", std::string(status.message()));
    return 1;
  }
  return 0;
}
