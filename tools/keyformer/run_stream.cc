#include "tools/keyformer/run_stream.h"

#include <cstdio>
#include <utility>

namespace kf::tools {

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
        result.Add(chunk, StreamResult::Clock::now());
        if (show == Show::kNothing) return true;
        std::fwrite(chunk.text().data(), 1, chunk.text().size(), stdout);
        output_gone = output_gone || std::fflush(stdout) != 0;
        return !output_gone;
      });
  session.interrupt.Disarm();
  return {.result = std::move(result),
          .status = std::move(status),
          .interrupted = session.interrupt.Fired() || output_gone};
}

}  // namespace kf::tools
