#include "tools/keyformer/run_stream.h"

#include <spdlog/fmt/fmt.h>

#include <cstdio>
#include <string>
#include <utility>

namespace kf::tools {
namespace {

bool Print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  return std::fflush(stdout) == 0;
}

std::string Whole(const SequenceResult& s) {
  const std::string score =
      s.score == 0.0 ? "" : fmt::format(", score {:.4f}", s.score);
  return fmt::format("--- {}{}, {} ---\n{}\n", s.index, score,
                     FinishReasonText(s.finish_reason), s.text);
}

}  // namespace

StreamRun RunStream(Client& client,
                    Session& session,
                    const pb::GenerateRequest& request,
                    Show show) {
  CancelToken cancel;
  session.interrupt.Arm([&cancel] { cancel.Cancel(); });
  StreamResult result(StreamResult::Clock::now());
  bool output_gone = false;
  absl::Status status = client.Stream(
      request, {.timeout_s = session.timeout_s, .cancel = &cancel},
      [&](const pb::GenerateChunk& chunk) {
        const SequenceResult& sequence =
            result.Add(chunk, StreamResult::Clock::now());
        const bool finished =
            chunk.finish_reason() != pb::FINISH_REASON_NOT_FINISHED;
        if (show == Show::kText) output_gone |= !Print(chunk.text());
        if (show == Show::kWhole && finished) {
          output_gone |= !Print(Whole(sequence));
        }
        return !output_gone;
      });
  session.interrupt.Disarm();
  return {.result = std::move(result),
          .status = std::move(status),
          .interrupted = session.interrupt.Fired() || output_gone};
}

}  // namespace kf::tools
