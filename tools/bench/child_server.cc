#include "tools/bench/child_server.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "kernels/core/status.h"
#include "tools/client_lib/http_get.h"

extern char** environ;

namespace kf::tools {
namespace {

constexpr double kScrapeTimeoutS = 10.0;

// Its standard error goes to `log`; signals are not blocked in it, whatever
// they are here. 0 or errno.
int Spawn(const std::string& binary,
          const std::vector<std::string>& flags,
          int log,
          pid_t* pid) {
  std::vector<std::string> args = flags;
  args.insert(args.begin(), binary);
  std::vector<char*> argv;
  argv.reserve(args.size() + 1);
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, log, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  const int error = posix_spawn(pid, binary.c_str(), &actions, &attributes,
                                argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

}  // namespace

std::string ServerBesideThisProgram() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return (self.parent_path() / "keyformer-server").string();
}

absl::StatusOr<std::unique_ptr<ChildServer>> ChildServer::Start(
    const std::string& binary, const std::vector<std::string>& flags) {
  std::unique_ptr<ChildServer> server(new ChildServer());
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::UnavailableError("no pipe for the server's log");
  }
  std::vector<std::string> all = flags;
  all.insert(all.end(),
             {"--grpc_address=127.0.0.1:0", "--http_address=127.0.0.1:0",
              "--log_format=text", "--log_level=info"});
  const int error = Spawn(binary, all, ends[1], &server->pid_);
  close(ends[1]);
  server->log_ = fdopen(ends[0], "r");
  if (error != 0) {
    server->pid_ = -1;
    return absl::UnavailableError(absl::StrCat(binary, ": cannot be started"));
  }
  server->reader_ = std::thread([&child = *server] { child.ReadLog(); });
  const MutexLock lock(server->mu_);
  while (!server->serving_ && !server->log_ended_) {
    server->changed_.Wait(server->mu_);
  }
  if (!server->serving_) {
    return absl::UnavailableError(
        absl::StrCat(binary, " did not start: ", server->last_line_));
  }
  server->ports_[0] = server->grpc_port_;
  server->ports_[1] = server->http_port_;
  return server;
}

ChildServer::~ChildServer() {
  if (pid_ > 0) {
    kill(pid_, SIGTERM);
    int status = 0;
    waitpid(pid_, &status, 0);
  }
  if (reader_.joinable()) reader_.join();
  if (log_ != nullptr) std::fclose(log_);
}

// To the end, so that the server never waits for its log to be read.
void ChildServer::ReadLog() {
  char line[4096];
  while (std::fgets(line, sizeof(line), log_) != nullptr) {
    const MutexLock lock(mu_);
    last_line_ = line;
    if (serving_) continue;
    const size_t at = last_line_.find("gRPC port ");
    if (at != std::string::npos) {
      std::sscanf(line + at, "gRPC port %d, HTTP port %d", &grpc_port_,
                  &http_port_);
    }
    serving_ =
        grpc_port_ > 0 && last_line_.find(" serving ") != std::string::npos;
    if (serving_) changed_.NotifyAll();
  }
  const MutexLock lock(mu_);
  log_ended_ = true;
  changed_.NotifyAll();
}

std::string ChildServer::grpc_address() const {
  return absl::StrCat("127.0.0.1:", ports_[0]);
}

absl::StatusOr<MetricsPage> ChildServer::Scrape() const {
  KF_ASSIGN_OR_RETURN(const std::string answer,
                      HttpGet(ports_[1], "/metrics", kScrapeTimeoutS));
  MetricsPage page(answer);
  if (page.empty()) return absl::UnavailableError("/metrics: an empty page");
  return page;
}

ProcessMemory ChildServer::Memory() const {
  ProcessMemory memory;
  std::ifstream status(absl::StrCat("/proc/", pid_, "/status"));
  std::string line;
  while (std::getline(status, line)) {
    unsigned long kibibytes = 0;
    if (std::sscanf(line.c_str(), "VmRSS: %lu kB", &kibibytes) == 1) {
      memory.resident_bytes = uint64_t{kibibytes} << 10U;
    } else if (std::sscanf(line.c_str(), "VmHWM: %lu kB", &kibibytes) == 1) {
      memory.peak_bytes = uint64_t{kibibytes} << 10U;
    }
  }
  return memory;
}

std::map<std::string, double> ChildServer::ThreadSeconds() const {
  std::map<std::string, double> seconds;
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  std::error_code error;
  std::filesystem::directory_iterator tasks(
      absl::StrCat("/proc/", pid_, "/task"), error);
  for (const auto& task : tasks) {
    std::ifstream file(task.path() / "stat");
    const std::string stat{std::istreambuf_iterator<char>(file), {}};
    // "1234 (name) S" and numbers; a name may hold anything.
    const size_t open = stat.find('(');
    const size_t close = stat.rfind(')');
    if (open == stat.npos || close == stat.npos) continue;  // has just ended
    unsigned long user = 0;
    unsigned long system = 0;
    std::sscanf(stat.c_str() + close + 1,
                " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
                &system);
    seconds[stat.substr(open + 1, close - open - 1)] +=
        static_cast<double>(user + system) / ticks;
  }
  return seconds;
}

void ChildServer::Kill() const { kill(pid_, SIGKILL); }

}  // namespace kf::tools
