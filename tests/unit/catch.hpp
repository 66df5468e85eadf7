// Catch2 under one name: version 3 (catch_all.hpp) or Debian 12's version 2 (catch.hpp).
#pragma once
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif
