// What the plug-in's parts know of an opened GPU.

#pragma once

#include "daemon/device/plugin_abi.hpp"

namespace gossamer::device {

/// Number of the GPU that a context is of.
int device_of(const Context& context);

}  // namespace gossamer::device
