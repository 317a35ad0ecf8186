// keyformer: the command-line client of the Keyformer server.
#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tools/client_lib/connect_flags.h"
#include "tools/keyformer/session.h"

namespace {

constexpr char kMainExamples[] = R"(Examples:
  keyformer generate "The capital of France is"
  keyformer chat --system "Answer in one sentence."
  keyformer generate --file report.txt --policy keyformer --ratio 0.5
  keyformer generate --help

Exit codes: 0 done, 1 the server or a file said no, 2 wrong usage, 3 cannot
connect, 130 interrupted.)";

}  // namespace

namespace kf::tools {

void RequireOne(CLI::App& sub, std::vector<const CLI::Option*> inputs) {
  sub.parse_complete_callback([inputs = std::move(inputs)] {
    std::string names;
    for (const CLI::Option* input : inputs) {
      if (input->count() > 0) return;
      names += (names.empty() ? "" : ", ") + input->get_name();
    }
    throw CLI::RequiredError("an input: one of " + names);
  });
}

}  // namespace kf::tools

int main(int argc, char** argv) {
  kf::tools::Interrupt interrupt;
  kf::tools::Session session{.interrupt = interrupt};
  CLI::App app(
      "Talks to a Keyformer server: text generation with a KV cache "
      "held at a budget.",
      "keyformer");
  app.footer(kMainExamples);
  app.require_subcommand(1);
  app.fallthrough();  // connection flags may follow the subcommand
  kf::tools::AddConnectFlags(app, session.connect);
  app.add_option("--timeout", session.timeout_s,
                 "Give up on a request after this many seconds; 0: never")
      ->check(CLI::Range(0.0, 1e6))
      ->group("Connection");
  app.add_option("--model", session.model, "Name of the model; empty: any");
  const std::vector<kf::tools::Subcommand> commands = {
      kf::tools::AddGenerate(app, session),
      kf::tools::AddChat(app, session),
      kf::tools::AddTokenize(app, session),
      kf::tools::AddDetokenize(app, session),
      kf::tools::AddInfo(app, session),
      kf::tools::AddLoad(app, session),
      kf::tools::AddHealth(app, session)};
  const int parsed = kf::tools::ParseFlags(app, argc, argv);
  if (parsed >= 0) return parsed;
  for (const kf::tools::Subcommand& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  return kf::tools::kExitUsage;
}
