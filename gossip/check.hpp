// Our own invariants: checked in every build. A broken one is a fault of the program, not of its input, and ends it
// with a message, since going on would put wrong numbers into other nodes' models.

#pragma once

#include <cstdio>
#include <cstdlib>

#define GOSSAMER_CHECK(condition)                                                            \
  do {                                                                                       \
    if (!(condition)) [[unlikely]] {                                                         \
      std::fprintf(stderr, "%s:%d: broken invariant: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)
