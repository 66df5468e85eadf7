// One function object made of several: for std::visit, a lambda expression for each alternative.

#pragma once

namespace gossamer {

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};

}  // namespace gossamer
