// What a cache report looks like to a person: the prompt with marks, a picture.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "keyformer/v1/generation.pb.h"
#include "tools/client_lib/client.h"
#include "tools/keyformer/session.h"
#include "tools/keyformer/stream_result.h"

namespace kf::tools {

// The prompt of `request` with what the first sequence's cache held of it at
// the end. Asks the server for the prompt's tokens; a prompt of ids is shown as
// ids. Empty if there is no report. With colours if standard error is a
// terminal and NO_COLOR is not set.
absl::StatusOr<std::string> CacheReportText(Client& client,
                                            const Session& session,
                                            const pb::GenerateRequest& request,
                                            const StreamResult& result);

// The first sequence's caches, after the prompt and at the end, as SVG.
absl::Status WriteCachePicture(const std::string& path,
                               const StreamResult& result);

}  // namespace kf::tools
