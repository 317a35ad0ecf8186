// A keyformer-server of this process's own, on ports that the system chooses.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/mutex.h"
#include "tools/bench/window.h"
#include "tools/client_lib/metrics_page.h"

namespace kf::tools {

// keyformer-server in the folder of the running program.
std::string ServerBesideThisProgram();

class ChildServer {
 public:
  // Returns once the model is loaded. kUnavailable: it cannot be started, with
  // the last line that it wrote.
  static absl::StatusOr<std::unique_ptr<ChildServer>> Start(
      const std::string& binary, const std::vector<std::string>& flags);
  // Lets it drain, and waits for its end.
  ~ChildServer();
  ChildServer(const ChildServer&) = delete;
  ChildServer& operator=(const ChildServer&) = delete;

  std::string grpc_address() const;
  absl::StatusOr<MetricsPage> Scrape() const;
  ProcessMemory Memory() const;
  // CPU time of its threads so far, in seconds, summed by their name.
  std::map<std::string, double> ThreadSeconds() const;
  // Ends it at once; from any thread.
  void Kill() const;

 private:
  ChildServer() = default;
  void ReadLog();

  pid_t pid_ = -1;
  FILE* log_ = nullptr;
  std::thread reader_;
  Mutex mu_;
  CondVar changed_;
  std::string last_line_ KF_GUARDED_BY(mu_);
  int grpc_port_ KF_GUARDED_BY(mu_) = 0;
  int http_port_ KF_GUARDED_BY(mu_) = 0;
  bool serving_ KF_GUARDED_BY(mu_) = false;
  bool log_ended_ KF_GUARDED_BY(mu_) = false;
  int ports_[2] = {0, 0};  // gRPC, HTTP; of a server that has started
};

}  // namespace kf::tools
