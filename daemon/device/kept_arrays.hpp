// Arrays that were given back, kept for the next ones of the same length. Making and freeing memory that a GPU reaches
// is slow, and makes the driver wait for the work that is under way there. Some users, such as a push
// (gossip/exchange/push.hpp), need arrays for a moment only.
//
// Not synchronised: the owner's mutex guards it. Invariant: nothing is under way in an array that is kept.

#pragma once

#include <cstddef>
#include <map>
#include <vector>

namespace gossamer::device {

class KeptArrays {
 public:
  /// At most this much is kept while nobody uses it.
  static constexpr std::size_t max_idle_bytes = std::size_t{64} << 20;

  /// Adds a new array, which is in use.
  void add(float* array, std::size_t bytes) { arrays_[array] = {.bytes = bytes}; }
  /// Takes an idle array of exactly this length. Null: there is none.
  [[nodiscard]] float* take(std::size_t bytes);
  /// Keeps an array that was in use. False: enough are kept.
  [[nodiscard]] bool keep(float* array);
  [[nodiscard]] bool owns(const float* array) const { return arrays_.contains(array); }
  [[nodiscard]] std::size_t bytes_of(const float* array) const { return arrays_.at(array).bytes; }
  /// Forgets an array in use, which its owner frees. Returns its bytes.
  std::size_t end(const float* array);
  /// Which idle arrays to take: all, or the stale ones, which were already idle when stale ones were taken last.
  enum class Idle { all, stale };
  /// Takes these arrays. They count as in use until the owner calls end() for each.
  [[nodiscard]] std::vector<float*> take_back(Idle which);
  [[nodiscard]] std::size_t idle_bytes() const { return idle_bytes_; }

 private:
  struct Array {
    std::size_t bytes = 0;
    bool idle = false;
    bool stale = false;  ///< was already idle when stale arrays were taken last
  };
  void use(Array& array);

  std::map<const float*, Array> arrays_;
  std::size_t idle_bytes_ = 0;
};

}  // namespace gossamer::device
