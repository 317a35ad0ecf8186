// The devices and models that the simulator knows by name.
#pragma once

#include <vector>

#include "tools/sim/specs.h"

namespace kf::sim {

const std::vector<DeviceSpec>& BuiltInDevices();
const std::vector<ModelSpec>& BuiltInModels();

}  // namespace kf::sim
