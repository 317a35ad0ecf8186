// The program itself: its flags' exit codes, and what signals do to it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <regex>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/e2e/harness.h"
#include "tests/server/http_client.h"
#include "tests/testing/tiny_model.h"

extern char** environ;

namespace kf::testing {
namespace {

// keyformer-server as a child, its standard error read line by line.
class Process {
 public:
  explicit Process(std::vector<std::string> args) {
    args.insert(args.begin(), KF_SERVER_BINARY);
    std::vector<char*> argv;
    argv.reserve(args.size() + 1);
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    const int error = posix_spawn(&pid_, KF_SERVER_BINARY, &actions, nullptr,
                                  argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (error != 0) throw std::runtime_error("cannot start the server");
    log_.reset(fdopen(ends[0], "r"));
  }
  ~Process() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      Wait();
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // The first line from here on that holds `text`; empty if the log ends.
  std::string LineWith(const std::string& text) {
    char line[4096];
    while (std::fgets(line, sizeof(line), log_.get()) != nullptr) {
      if (std::string(line).find(text) != std::string::npos) return line;
    }
    return "";
  }
  void Signal(int number) { kill(pid_, number); }
  // The exit code, or minus the signal that ended it.
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  std::unique_ptr<FILE, int (*)(FILE*)> log_{nullptr, std::fclose};
};

class Program : public ::testing::Test {
 protected:
  // Serving, its ports read from the log.
  std::unique_ptr<Process> Serve(const std::string& drain_timeout) {
    TinyModelSpec spec;
    spec.context = 400000;  // a stream that long outlives any signal
    auto process = std::make_unique<Process>(std::vector<std::string>{
        "--model=" + WriteTinyModel(spec, dir_.File("tiny.gguf")),
        "--grpc_address=127.0.0.1:0", "--http_address=127.0.0.1:0",
        "--kv_pool_bytes=64MiB", "--prefill_workspace_tokens=512",
        "--threads=1", "--drain_timeout=" + drain_timeout});
    const std::string line = process->LineWith("listening");
    std::smatch ports;
    EXPECT_TRUE(std::regex_search(
        line, ports, std::regex("gRPC port ([0-9]+), HTTP port ([0-9]+)")));
    grpc_address_ = "127.0.0.1:" + ports[1].str();
    http_port_ = std::stoi(ports[2].str());
    EXPECT_FALSE(process->LineWith("serving tiny").empty());
    return process;
  }

  // A stream that is under way.
  std::unique_ptr<grpc::ClientReader<v1::GenerateChunk>> LongStream() {
    SetPatience(context_);
    const auto stub = v1::GenerationService::NewStub(
        grpc::CreateChannel(grpc_address_, grpc::InsecureChannelCredentials()));
    auto reader = stub->GenerateStream(&context_, TextRequest("go", 390000));
    v1::GenerateChunk chunk;
    EXPECT_TRUE(reader->Read(&chunk));
    return reader;
  }

  TempDir dir_;
  std::string grpc_address_;
  int http_port_ = 0;
  grpc::ClientContext context_;
};

TEST_F(Program, BadFlagsExitWith2) {
  Process process({"--model=x", "--max_batch=0"});
  EXPECT_FALSE(process.LineWith("--max_batch: 0, want at least 1").empty());
  EXPECT_EQ(process.Wait(), 2);
}

TEST_F(Program, ModelsThatCannotBeLoadedExitWith1) {
  Process process({"--model=" + dir_.File("missing.gguf"),
                   "--grpc_address=127.0.0.1:0", "--http_address="});
  EXPECT_FALSE(process.LineWith("missing.gguf: ").empty());
  EXPECT_EQ(process.Wait(), 1);
}

TEST_F(Program, ServesThenDrainsOnSigterm) {
  const auto process = Serve("30");
  EXPECT_NE(GetHttp(http_port_, "/readyz").find("200 OK"), std::string::npos);
  process->Signal(SIGHUP);  // no reason to end
  process->Signal(SIGTERM);
  EXPECT_EQ(process->Wait(), 0);
}

TEST_F(Program, DrainTimeoutEndsStreamsWithUnavailable) {
  const auto process = Serve("0");
  const auto reader = LongStream();
  process->Signal(SIGINT);
  EXPECT_EQ(ReadAll(*reader).status.error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(process->Wait(), 0);
}

TEST_F(Program, SecondSignalExitsAtOnce) {
  const auto process = Serve("3600");
  const auto reader = LongStream();
  process->Signal(SIGTERM);
  EXPECT_FALSE(process->LineWith("draining").empty());
  process->Signal(SIGTERM);
  EXPECT_EQ(process->Wait(), 1);
  EXPECT_FALSE(ReadAll(*reader).status.ok());
}

}  // namespace
}  // namespace kf::testing
