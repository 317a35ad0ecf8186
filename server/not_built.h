// Features that the wire knows and the engine does not have yet.
#pragma once

#include "absl/status/status.h"
#include "engine/request.h"

namespace kf::server {

// kUnimplemented, naming the field. A feature's line goes when it is built.
absl::Status CheckBuilt(const engine::Request& request);

}  // namespace kf::server
