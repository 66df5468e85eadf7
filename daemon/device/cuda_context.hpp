// An opened GPU, as the parts of the plug-in know it.

#pragma once

#include "daemon/device/plugin_abi.hpp"

namespace gossamer::device {

/// The number of the GPU that the context belongs to.
int device_of(const Context& context);

}  // namespace gossamer::device
