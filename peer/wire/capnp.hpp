#pragma once

#include <capnp/common.h>
#include <kj/string.h>

#if defined(__clang__) && CAPNP_VERSION < 1'000'000
// C++20 makes these operators by reversing the members of StringPtr. Newer compilers do not reverse an operator== that
// has an operator!= beside it (P2468), and without these two Cap'n Proto's own headers would not compile.
namespace kj {
inline bool operator==(const char* a, const StringPtr& b) {
  return b == StringPtr(a);
}
inline bool operator!=(const char* a, const StringPtr& b) {
  return !(a == b);
}
}  // namespace kj
#endif

#include <capnp/message.h>
#include <capnp/schema.h>
#include <capnp/serialize.h>

#include "peer/wire/wire.capnp.h"
