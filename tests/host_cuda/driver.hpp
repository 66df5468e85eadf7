// The driver's functions for memory that processes share, by name.

#pragma once

namespace host_cuda {

/// Null: there is no function of that name.
[[nodiscard]] void* driver_function(const char* name);

}  // namespace host_cuda
