// The life of a fragment's three buffers: what is valid when, and that a death between any two steps loses a commit
// whole or not at all.

#include <optional>

#include "catch.hpp"
#include "gossip/exchange/fragment_buffers.hpp"
#include "gossip/random.hpp"
#include "gossip/test_device.hpp"

using namespace gossamer;
using namespace gossamer::gossip;

namespace {

constexpr std::size_t blocks = 1;
constexpr std::size_t elements = blocks * block_elements;

/// A fragment with its memory and the client that trains on it.
struct Life {
  std::vector<std::vector<float>> memory{3, std::vector<float>(elements)};
  FragmentBuffers buffers{
      {there(memory[0]), there(memory[1]), there(memory[2])}, blocks, {.generation = 1}, test_device()};
  std::vector<float> x = std::vector<float>(elements);  // the client's live values

  float y(std::size_t i = 0) const {
    const FragmentView view = here(buffers.y());
    float value = view.publication[i];
    if (view.correction != nullptr) value += view.correction[i];
    return value;
  }
  /// Adds a correction to every element, as an exchange does.
  void commit(float move) {
    write(move);
    buffers.finish_commit();
  }
  void write(float move) {
    const auto target = buffers.begin_commit();
    std::vector<float> values(elements);
    if (target.in != nullptr) REQUIRE(test_device().download(values, target.in));
    for (float& value : values)
      value += move;
    REQUIRE(test_device().upload(target.out, values));
  }
  /// What the client does at a step with the fragment due: x += c (or x = c), s = x, and the word flips.
  void client_step() {
    const FragmentParts& parts = buffers.parts();
    REQUIRE(parts.with_client);
    for (std::size_t i = 0; i < elements; ++i) {
      if (parts.correction_valid) x[i] = (parts.replace ? 0.0F : x[i]) + memory[parts.correction][i];
      memory[parts.spare()][i] = x[i];
    }
    buffers.take_back(parts.generation + 1);
  }
  /// The live value with the correction that is on its way to it.
  float whole() const {
    const FragmentView view = here(buffers.y());
    float value = x[0];
    if (view.correction != nullptr) value += view.correction[0];
    return value;
  }
};

}  // namespace

TEST_CASE("the spare buffer is the one that plays no part", "[fragment_buffers]") {
  for (std::uint8_t s = 0; s < 3; ++s) {
    for (std::uint8_t c = 0; c < 3; ++c) {
      if (s == c) continue;
      const FragmentParts parts{.publication = s, .correction = c};
      CHECK(parts.spare() < 3);
      CHECK(parts.spare() != s);
      CHECK(parts.spare() != c);
    }
  }
}

TEST_CASE("commits pile up in the correction, which the client adds", "[fragment_buffers]") {
  Life life;
  CHECK_FALSE(life.buffers.has_correction());
  CHECK(life.buffers.y().correction == nullptr);
  life.commit(1);
  life.commit(2);
  CHECK(life.buffers.has_correction());
  CHECK(life.buffers.parts().correction_valid);
  CHECK(life.buffers.pending_bytes() == 0);
  CHECK(life.y() == 3);
  life.x[0] += 10;  // training that no publication has seen
  life.buffers.hand_over();
  CHECK(life.buffers.parts().with_client);
  CHECK(life.y() == 3);
  life.client_step();
  CHECK(life.x[0] == 13);
  CHECK(life.y() == 13);
  CHECK(life.y(1) == 3);
  CHECK_FALSE(life.buffers.has_correction());
  CHECK(life.buffers.parts().generation == 2);
}

TEST_CASE("what the client has not begun to serve is recalled, and its correction stays what it was",
          "[fragment_buffers]") {
  Life life;
  CHECK_FALSE(life.buffers.out_of_hand());
  life.commit(1);
  life.buffers.hand_over();
  CHECK(life.buffers.out_of_hand());
  const FragmentParts handed = life.buffers.parts();
  life.buffers.recall();
  CHECK_FALSE(life.buffers.out_of_hand());
  CHECK(life.buffers.parts().correction == handed.correction);
  CHECK(life.buffers.parts().generation == handed.generation);
  CHECK(life.y() == 1);
  life.commit(2);
  life.commit(4);
  CHECK(life.y() == 7);
  life.buffers.hand_over();
  life.client_step();
  CHECK(life.x[0] == 7);
  CHECK(life.y() == 7);
  CHECK(life.buffers.pending_bytes() == 0);
}

TEST_CASE("commits are counted, so that each can be named", "[fragment_buffers]") {
  Life life;
  life.commit(1);
  life.commit(1);
  CHECK(life.buffers.parts().commits == 2);
  life.buffers.hand_over();
  life.client_step();
  CHECK(life.buffers.parts().commits == 2);
  CHECK(reached(2, 2));
  CHECK(reached(5, 2));
  CHECK_FALSE(reached(1, 2));
  CHECK(reached(3, commits_modulus - 2));  // the count wraps
  CHECK_FALSE(reached(commits_modulus - 2, 3));
}

TEST_CASE("a commit changes the parts only when it finishes", "[fragment_buffers]") {
  Life life;
  life.commit(1);
  const FragmentParts before = life.buffers.parts();
  const auto publication = life.memory[before.publication];
  const auto correction = life.memory[before.correction];
  life.write(2);
  // A daemon that dies here leaves these parts in shared memory: the parts and their buffers are unchanged.
  CHECK(life.buffers.parts() == before);
  CHECK(life.memory[before.publication] == publication);
  CHECK(life.memory[before.correction] == correction);
  life.buffers.finish_commit();
  CHECK(life.buffers.parts().correction == before.spare());
  CHECK(life.memory[before.publication] == publication);
  CHECK(life.memory[before.correction] == correction);
  CHECK(life.buffers.parts().generation == before.generation);
}

TEST_CASE("values that replace the client's are taken over whole", "[fragment_buffers]") {
  Life life;
  life.x[0] = 5;
  float* const target = life.buffers.begin_replace();
  const FragmentParts before = life.buffers.parts();
  REQUIRE(test_device().upload(target, std::vector<float>(elements, 42.0F)));
  CHECK(life.buffers.parts() == before);
  life.buffers.finish_replace();
  CHECK(life.buffers.parts().replace);
  life.buffers.hand_over();
  life.client_step();
  CHECK(life.x[0] == 42);
  CHECK(life.y() == 42);
  CHECK_FALSE(life.buffers.parts().replace);
  CHECK_FALSE(life.buffers.has_correction());
}

TEST_CASE("any order of commits, hand-overs, recalls and publications adds each commit once", "[fragment_buffers]") {
  Random random(41);
  for (int round = 0; round < 200; ++round) {
    Life life;
    float expected = 0;  // small integers: exact in floats
    std::uint32_t generation = 1;
    for (int event = 0; event < 200; ++event) {
      const bool with_client = life.buffers.parts().with_client;
      switch (random.below(4)) {
        case 0:
          life.x[0] += 1;
          expected += 1;
          break;
        case 1: {
          if (with_client) life.buffers.recall();
          const auto move = static_cast<float>(random.below(9)) - 4;
          life.commit(move);
          expected += move;
          break;
        }
        case 2:
          if (!with_client) life.buffers.hand_over();
          break;
        case 3:
          if (!with_client) break;
          life.client_step();
          ++generation;
          break;
      }
      REQUIRE(life.whole() == expected);
      REQUIRE(life.buffers.parts().generation == generation);
      REQUIRE(life.buffers.parts().publication != life.buffers.parts().correction);
    }
  }
}
