// Streams one answer to standard output, with Ctrl-C cancelling it.
#pragma once

#include "keyformer/v1/generation.pb.h"
#include "tools/client_lib/client.h"
#include "tools/keyformer/session.h"
#include "tools/keyformer/stream_result.h"

namespace kf::tools {

// kWhole: each sequence under a line of its own once it is finished, where
// several would run into each other.
enum class Show : uint8_t { kText, kWhole, kNothing };

struct StreamRun {
  StreamResult result;
  absl::Status status;       // of the RPC
  bool interrupted = false;  // by a signal, or by a reader of our output gone
};

StreamRun RunStream(Client& client,
                    Session& session,
                    const keyformer::v1::GenerateRequest& request,
                    Show show);

}  // namespace kf::tools
