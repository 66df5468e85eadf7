#pragma once

#include <capnp/common.h>
#include <kj/string.h>

#if defined(__clang__) && CAPNP_VERSION < 1'000'000
// Since C++20 these come from the members, reversed; newer compilers do not reverse what has an operator!= beside it
// (P2468), and Cap'n Proto's own headers no longer compile.
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
