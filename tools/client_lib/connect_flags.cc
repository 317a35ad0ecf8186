#include "tools/client_lib/connect_flags.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

namespace kf::tools {

void AddConnectFlags(CLI::App& app, ConnectOptions& options) {
  const auto add = [&app](const std::string& flag, std::string& value,
                          const std::string& env, const std::string& help) {
    return app.add_option(flag, value, help)->envname(env)->group("Connection");
  };
  add("--server", options.server, "KEYFORMER_SERVER", "host:port of the server")
      ->capture_default_str();
  add("--tls_ca", options.tls_ca, "KEYFORMER_TLS_CA",
      "PEM file of the authority that signed the server's certificate; "
      "turns TLS on");
  add("--tls_cert", options.tls_cert, "KEYFORMER_CLIENT_CERT",
      "PEM certificate of this client, for mutual TLS");
  add("--tls_key", options.tls_key, "KEYFORMER_CLIENT_KEY",
      "PEM key of --tls_cert");
  add("--token_file", options.token_file, "KEYFORMER_TOKEN_FILE",
      "File whose first line is the bearer token");
  app.add_option("--wait", options.wait_s,
                 "Keep trying to connect for this many seconds")
      ->check(CLI::Range(0.0, 86400.0))
      ->group("Connection");
}

namespace {

// --top-p is --top_p. Values, and all that follows "--", stay as they are.
void SpellFlags(int argc, char** argv, std::vector<std::string>& words) {
  bool flags = true;
  // CLI11 takes them from the back.
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    flags = flags && word != "--";
    if (flags && word.rfind("--", 0) == 0) {
      const size_t end = std::min(word.find('='), word.size());
      std::replace(word.begin() + 2,
                   word.begin() + static_cast<std::ptrdiff_t>(end), '-', '_');
    }
    words.insert(words.begin(), std::move(word));
  }
}

}  // namespace

int ParseFlags(CLI::App& app, int argc, char** argv) {
  std::vector<std::string> words;
  SpellFlags(argc, argv, words);
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  return -1;
}

std::unique_ptr<Client> ConnectOrExplain(const ConnectOptions& options,
                                         ExitCode& exit_code) {
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(options);
  if (client.ok()) return *std::move(client);
  exit_code = Fail(client.status());
  if (absl::IsUnavailable(client.status())) exit_code = kExitUnreachable;
  if (absl::IsInvalidArgument(client.status())) exit_code = kExitUsage;
  return nullptr;
}

ExitCode Fail(const absl::Status& status) {
  std::fflush(stdout);
  std::fprintf(stderr, "error: %s\n", StatusText(status).c_str());
  return kExitError;
}

}  // namespace kf::tools
