// Checks of the program's own invariants, in every build. A broken invariant is a fault of the program, not of its
// input. It ends the program with a message, since going on would put wrong numbers into other nodes' models.

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
