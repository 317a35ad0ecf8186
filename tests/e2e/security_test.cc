// TLS, mutual TLS, reload, and bearer tokens.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "tests/e2e/harness.h"
#include "tests/e2e/raw_rpc.h"
#include "tests/server/tls_files.h"

namespace kf::testing {
namespace {

constexpr char kGetLoad[] = "/keyformer.v1.GenerationService/GetLoad";

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A fresh connection that trusts `root` and, if `own` is given, shows it.
std::shared_ptr<grpc::Channel> Connect(const TestServer& server,
                                       const TlsPair& root,
                                       const TlsPair* own) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = ReadFile(root.cert_path);
  if (own != nullptr) {
    options.pem_private_key = ReadFile(own->key_path);
    options.pem_cert_chain = ReadFile(own->cert_path);
  }
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(server.address(),
                                   grpc::SslCredentials(options), arguments);
}

grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel) {
  return CallRaw(channel, kGetLoad, "").first;
}

TEST(Tls, ServesAndReloads) {
  const TempDir dir;
  const TlsPair first = MakeTlsPair(dir.path(), "first");
  const TlsPair second = MakeTlsPair(dir.path(), "second");
  TestServer server;
  server.options.tls.cert_path = dir.File("cert.pem");
  server.options.tls.key_path = dir.File("key.pem");
  std::filesystem::copy(first.cert_path, server.options.tls.cert_path);
  std::filesystem::copy(first.key_path, server.options.tls.key_path);
  server.Start();
  EXPECT_TRUE(Call(Connect(server, first, nullptr)).ok());
  EXPECT_FALSE(Call(Connect(server, second, nullptr)).ok());
  EXPECT_FALSE(Call(server.channel()).ok());  // no TLS

  std::filesystem::rename(second.cert_path, server.options.tls.cert_path);
  std::filesystem::rename(second.key_path, server.options.tls.key_path);
  const TlsPair now{server.options.tls.key_path, server.options.tls.cert_path};
  // Noticed within a second or two; the test's time limit is the only other.
  while (!Call(Connect(server, now, nullptr)).ok()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_FALSE(Call(Connect(server, first, nullptr)).ok());
}

TEST(Tls, MutualWantsAClientCertificate) {
  const TempDir dir;
  const TlsPair own = MakeTlsPair(dir.path(), "server");
  const TlsPair client = MakeTlsPair(dir.path(), "client");
  const TlsPair stranger = MakeTlsPair(dir.path(), "stranger");
  TestServer server;
  server.options.tls = {own.cert_path, own.key_path, client.cert_path};
  server.Start();
  EXPECT_TRUE(Call(Connect(server, own, &client)).ok());
  EXPECT_FALSE(Call(Connect(server, own, nullptr)).ok());
  EXPECT_FALSE(Call(Connect(server, own, &stranger)).ok());
}

TEST(Tls, BadPairIsAStartError) {
  const TempDir dir;
  const TlsPair a = MakeTlsPair(dir.path(), "a");
  const TlsPair b = MakeTlsPair(dir.path(), "b");
  TestServer server;
  server.options.tls = {a.cert_path, b.key_path, ""};
  EXPECT_THROW(server.Start(), std::runtime_error);
}

TEST(Tokens, GuardEverythingButHealth) {
  const TempDir dir;
  TestServer server;
  server.options.auth_token_file = dir.File("tokens");
  std::ofstream(server.options.auth_token_file) << "right-token\n";
  server.Start();
  const auto channel = server.channel();
  const Metadata right = {"authorization", "Bearer right-token"};
  const Metadata wrong = {"authorization", "Bearer wrong-token"};
  for (const char* rpc : {"Generate", "GenerateStream", "Tokenize",
                          "Detokenize", "ModelInfo", "GetLoad"}) {
    const std::string method =
        std::string("/keyformer.v1.GenerationService/") + rpc;
    EXPECT_EQ(CallRaw(channel, method, "").first.error_code(),
              grpc::StatusCode::UNAUTHENTICATED)
        << rpc;
    EXPECT_EQ(CallRaw(channel, method, "", wrong).first.error_code(),
              grpc::StatusCode::UNAUTHENTICATED)
        << rpc;
  }
  EXPECT_TRUE(CallRaw(channel, kGetLoad, "", right).first.ok());
  EXPECT_EQ(CheckHealth(channel, ""), "SERVING");

  const auto [refused, nothing] = ListServices(channel, wrong);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(nothing.find("GenerationService"), std::string::npos);
  const auto [allowed, services] = ListServices(channel, right);
  EXPECT_TRUE(allowed.ok());
  EXPECT_NE(services.find("GenerationService"), std::string::npos);

  std::ofstream(server.options.auth_token_file) << "other-token\n";
  server.server().Reload();
  EXPECT_EQ(CallRaw(channel, kGetLoad, "", right).first.error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(
      CallRaw(channel, kGetLoad, "", {"authorization", "Bearer other-token"})
          .first.ok());
}

}  // namespace
}  // namespace kf::testing
