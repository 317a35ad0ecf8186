// keyformer chat: a conversation through the model's own chat template.
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "tools/client_lib/connect_flags.h"
#include "tools/client_lib/text_input.h"
#include "tools/keyformer/request_flags.h"
#include "tools/keyformer/run_stream.h"
#include "tools/keyformer/session.h"

namespace kf::tools {
namespace {

constexpr char kChatExamples[] = R"(Examples:
  keyformer chat
  keyformer chat --system "You are a poet." --temperature 0.8
  printf 'Hello!\nAnd in French?\n' | keyformer chat --quiet

A line is a message. /reset forgets the conversation, /quit or Ctrl-D ends it;
Ctrl-C stops an answer, and ends the program between two answers.)";

struct ChatFlags {
  std::string system;
  bool quiet = false;
  RequestFlags request;
};

class Conversation {
 public:
  Conversation(const ChatFlags& flags, Session& session, Client& client)
      : flags_(flags), session_(session), client_(client) {
    Reset();
  }

  void Reset() {
    chat_.Clear();
    if (!flags_.system.empty()) Append("system", flags_.system);
  }

  // One message and its answer. An error leaves the conversation as it was, so
  // that the next message can be another try.
  ExitCode Say(const std::string& message) {
    if (const absl::Status valid = CheckUtf8(message, "message"); !valid.ok()) {
      return Fail(valid);
    }
    pb::GenerateRequest request;
    request.set_model(session_.model);
    if (const absl::Status ok = flags_.request.FillIn(request); !ok.ok()) {
      Fail(ok);
      return kExitUsage;
    }
    Append("user", message);
    *request.mutable_chat() = chat_;
    const StreamRun run = RunStream(client_, session_, request, Show::kText);
    std::printf("\n");
    std::fflush(stdout);
    if (!run.status.ok() && !run.interrupted) {
      chat_.mutable_messages()->RemoveLast();
      return Fail(run.status);
    }
    if (!flags_.quiet) {
      std::fprintf(stderr, "%s%s", run.result.LogprobTable().c_str(),
                   run.result.ShortSummary().c_str());
    }
    Append("assistant", run.result.text());
    return run.interrupted ? kExitInterrupted : kExitOk;
  }

 private:
  void Append(const std::string& role, const std::string& content) {
    pb::ChatMessage& message = *chat_.add_messages();
    message.set_role(role);
    message.set_content(content);
  }

  const ChatFlags& flags_;
  Session& session_;
  Client& client_;
  pb::Chat chat_;
};

ExitCode RunChat(const ChatFlags& flags, Session& session) {
  if (const absl::Status ok = CheckUtf8(flags.system, "--system"); !ok.ok()) {
    Fail(ok);
    return kExitUsage;
  }
  ExitCode code = kExitOk;
  const std::unique_ptr<Client> client =
      ConnectOrExplain(session.connect, code);
  if (client == nullptr) return code;
  const bool interactive = isatty(STDIN_FILENO) != 0;
  Conversation conversation(flags, session, *client);
  std::string line;
  while (true) {
    if (interactive) {
      std::printf("> ");
      std::fflush(stdout);
    }
    if (!std::getline(std::cin, line)) break;
    if (line.empty()) continue;
    if (line == "/quit") break;
    if (line == "/reset") {
      conversation.Reset();
      continue;
    }
    code = conversation.Say(line);
    // A script must not run on past a failed turn; a person can try again.
    if (code != kExitOk && !interactive) return code;
  }
  if (interactive) std::printf("\n");
  return kExitOk;
}

}  // namespace

Subcommand AddChat(CLI::App& app, Session& session) {
  CLI::App* const sub =
      app.add_subcommand("chat", "Hold a conversation (a line is a message)");
  sub->footer(kChatExamples);
  const auto flags = std::make_shared<ChatFlags>();
  sub->add_option("--system", flags->system, "What the model is told first");
  sub->add_flag("-q,--quiet", flags->quiet, "No summary after each answer");
  flags->request.AddTo(*sub);
  return {sub, [flags, &session] { return RunChat(*flags, session); }};
}

}  // namespace kf::tools
