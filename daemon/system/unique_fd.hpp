// The daemon's name for the owner of one file descriptor.

#pragma once

#include "sdk/layout/file_descriptor.hpp"

namespace gossamer::daemon {

using UniqueFd = FileDescriptor;

}  // namespace gossamer::daemon
