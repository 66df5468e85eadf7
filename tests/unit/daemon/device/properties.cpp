#include "daemon/device/properties.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "gossip/codec/lattice.hpp"
#include "gossip/exchange/outer.hpp"
#include "gossip/messages.hpp"
#include "gossip/values.hpp"

namespace properties {
namespace {

using namespace gossamer;
using namespace gossamer::gossip;
using namespace values;

constexpr std::size_t count = 7;
constexpr std::size_t elements = count * block_elements;
constexpr Codec all_codecs[] = {Codec::f32, Codec::q8, Codec::q4};
constexpr int wanted_exponents[] = {-128, -100, -30, -12, -6, 0, 9, 90, 127};
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float bad_values[] = {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity};
const std::vector<std::uint32_t> some_blocks{0, 2, 3, 6};

/// The two arrays of a fragment, in the host's memory and the device's.
struct Fragment {
  Fragment(Memory& memory, const Values& publication, const Values& correction)
      : host{publication, correction}, there{memory.with(publication), memory.with(correction)} {}
  [[nodiscard]] FragmentView on_host(bool corrected) const {
    return {host[0].data(), corrected ? host[1].data() : nullptr};
  }
  [[nodiscard]] FragmentView on_device(bool corrected) const {
    return {there[0].get(), corrected ? there[1].get() : nullptr};
  }

  Values host[2];
  std::shared_ptr<float> there[2];
};

Fragment fragment_of(Memory& memory, const Kind& kind, Random& random) {
  return {memory, make(kind, random, elements), sampled(random, elements, [](Random& r) { return 0.01F * normal(r); })};
}

struct Sent {
  std::vector<std::int8_t> exponents;
  std::vector<std::uint16_t> checks;
  std::vector<std::byte> values;
  bool finite = false;

  bool operator==(const Sent&) const = default;
};

template <class Encode>
Sent encoded(Encode encode, Codec codec, const std::vector<std::uint32_t>& blocks, int wanted) {
  Sent sent{std::vector<std::int8_t>(blocks.size(), static_cast<std::int8_t>(wanted)),
            std::vector<std::uint16_t>(blocks.size()),
            std::vector<std::byte>(blocks.size() * codec_block_bytes(codec), std::byte{0x55})};
  sent.finite = encode(sent);
  return sent;
}

struct Answer {
  std::vector<std::byte> differences;
  std::vector<BlockOutcome> outcomes;
  bool finite = false;
};

bool same(const std::vector<BlockOutcome>& a, const std::vector<BlockOutcome>& b) {
  for (std::size_t n = 0; n < a.size(); ++n) {
    if (!same_bits({a[n].mean_abs, a[n].mean_square}, {b[n].mean_abs, b[n].mean_square})) return false;
    if (a[n].wide != b[n].wide) return false;
  }
  return a.size() == b.size();
}

std::string told(const char* what, const std::string& kind, Codec codec, int wanted, bool corrected) {
  return std::string(what) + " differs: values " + kind + ", " + codec_name(codec) + ", wanted exponent " +
         std::to_string(wanted) + (corrected ? ", corrected" : "");
}

/// One exchange's work, as the device does it and by the definition.
struct Exchange {
  const Device& device;
  Memory& memory;
  Codec codec;
  int wanted;
  const std::vector<std::uint32_t>& blocks;
  std::uint64_t seed;

  [[nodiscard]] Sent encode_there(const Fragment& y, bool corrected) const {
    return encoded(
        [&](Sent& sent) {
          return device.encode(codec, y.on_device(corrected), blocks, seed, sent.exponents, sent.checks, sent.values);
        },
        codec, blocks, wanted);
  }
  [[nodiscard]] Sent encode_here(const Fragment& y, bool corrected) const {
    return encoded(
        [&](Sent& sent) {
          return scalar::encode(codec, y.on_host(corrected), blocks, seed, sent.exponents, sent.checks, sent.values);
        },
        codec, blocks, wanted);
  }
  [[nodiscard]] Answer blank() const {
    return {std::vector<std::byte>(blocks.size() * codec_block_bytes(codec), std::byte{0x55}),
            std::vector<BlockOutcome>(blocks.size())};
  }
  [[nodiscard]] Answer answer_there(const Fragment& y, bool corrected, const Sent& sent) const {
    Answer answer = blank();
    answer.finite = device.difference(codec, y.on_device(corrected), blocks, seed, sent.exponents, sent.checks,
                                      sent.values, answer.differences, answer.outcomes);
    return answer;
  }
  [[nodiscard]] Answer answer_here(const Fragment& y, bool corrected, const Sent& sent) const {
    Answer answer = blank();
    answer.finite = scalar::difference(codec, y.on_host(corrected), blocks, seed, sent.exponents, sent.checks,
                                       sent.values, answer.differences, answer.outcomes);
    return answer;
  }
};

/// Goes through kinds of values, codecs, exponents, lists of blocks and views.
template <class Body>
std::string on_every_exchange(const Device& device, Memory& memory, Body body) {
  Random random(1);
  for (const Kind& kind : kinds) {
    const Fragment y = fragment_of(memory, kind, random);
    const Fragment far = fragment_of(memory, kind, random);
    for (const Codec codec : all_codecs) {
      for (const int wanted : wanted_exponents) {
        for (const auto& blocks : {all_blocks(count), some_blocks}) {
          const Exchange exchange{device, memory, codec, wanted, blocks, random()};
          for (const bool corrected : {false, true}) {
            const char* const wrong = body(exchange, y, far, corrected);
            if (wrong != nullptr) return told(wrong, kind.name, codec, wanted, corrected);
          }
        }
      }
    }
  }
  return {};
}

std::string encode_is_the_definition(const Device& device, Memory& memory) {
  return on_every_exchange(
      device, memory, [](const Exchange& exchange, const Fragment& y, const Fragment&, bool corrected) -> const char* {
        const Sent expected = exchange.encode_here(y, corrected);
        const Sent got = exchange.encode_there(y, corrected);
        if (got.finite != expected.finite) return "whether it is finite";
        return got.finite && got != expected ? "what is sent" : nullptr;
      });
}

const char* compare(const Exchange& exchange, const Fragment& y, bool corrected, const Sent& sent) {
  const Answer expected = exchange.answer_here(y, corrected, sent);
  const Answer got = exchange.answer_there(y, corrected, sent);
  if (got.finite != expected.finite) return "whether a difference is finite";
  if (!got.finite) return nullptr;
  if (got.differences != expected.differences) return "a difference";
  return same(got.outcomes, expected.outcomes) ? nullptr : "an outcome";
}

std::string difference_is_the_definition(const Device& device, Memory& memory) {
  return on_every_exchange(
      device, memory,
      [](const Exchange& exchange, const Fragment& y, const Fragment& far, bool corrected) -> const char* {
        Sent sent = exchange.encode_here(y, false);
        if (const char* const wrong = compare(exchange, y, corrected, sent)) return wrong;
        if (const char* const wrong = compare(exchange, far, corrected, sent)) return wrong;  // out of range, mostly
        if (exchange.codec == Codec::f32) return nullptr;
        for (std::uint16_t& check : sent.checks)
          check ^= 1;
        return compare(exchange, y, corrected, sent);
      });
}

std::string outcomes_are_the_definition(const Device& device, Memory& memory) {
  return on_every_exchange(
      device, memory,
      [](const Exchange& exchange, const Fragment& y, const Fragment& far, bool corrected) -> const char* {
        const Sent sent = exchange.encode_here(y, corrected);
        const Answer answer = exchange.answer_here(far, corrected, sent);
        const std::vector<std::byte> wide(bitmap_bytes(exchange.blocks.size()), std::byte{0b0010});
        for (const auto& bitmap : {wide, std::vector<std::byte>()}) {
          std::vector<BlockOutcome> got(exchange.blocks.size());
          std::vector<BlockOutcome> expected(exchange.blocks.size());
          const bool finite =
              exchange.device.outcomes_of(exchange.codec, sent.exponents, answer.differences, bitmap, got);
          if (finite != scalar::outcomes_of(exchange.codec, sent.exponents, answer.differences, bitmap, expected)) {
            return "whether an outcome is finite";
          }
          if (finite && !same(got, expected)) return "an outcome of a reply";
        }
        return nullptr;
      });
}

std::string apply_is_the_definition(const Device& device, Memory& memory) {
  return on_every_exchange(
      device, memory,
      [](const Exchange& exchange, const Fragment& y, const Fragment& far, bool corrected) -> const char* {
        const Sent sent = exchange.encode_here(y, false);
        const Answer answer = exchange.answer_here(corrected ? y : far, true, sent);
        if (!answer.finite) return nullptr;
        const int sign = exchange.seed % 2 == 0 ? 1 : -1;
        const auto here = [&](const float* in, Values& out) {
          scalar::apply(exchange.codec, 3, sign, exchange.blocks, sent.exponents, answer.differences, count, in,
                        out.data());
        };
        const auto there = [&](const float* in, float* out) {
          return exchange.device.apply(exchange.codec, 3, sign, exchange.blocks, sent.exponents, answer.differences,
                                       count, in, out);
        };
        Values expected(elements, 8);
        const auto out = exchange.memory.with(Values(elements, 7));
        here(nullptr, expected);
        if (!there(nullptr, out.get()) || !same_bits(exchange.memory.read(out.get(), elements), expected)) {
          return "a commit to nothing";
        }
        here(y.host[1].data(), expected);
        if (!there(y.there[1].get(), out.get()) || !same_bits(exchange.memory.read(out.get(), elements), expected)) {
          return "a commit elsewhere";
        }
        expected = y.host[1];
        const auto in_place = exchange.memory.with(y.host[1]);
        here(expected.data(), expected);
        if (!there(in_place.get(), in_place.get())) return "a commit in place";
        return same_bits(exchange.memory.read(in_place.get(), elements), expected) ? nullptr : "a commit in place";
      });
}

std::string sum_is_the_definition(const Device& device, Memory& memory) {
  Random random(2);
  for (const Kind& kind : kinds) {
    const Fragment y = fragment_of(memory, kind, random);
    for (const bool corrected : {false, true}) {
      Values expected(elements);
      const auto out = memory.with(expected);
      const bool finite = scalar::sum(y.on_host(corrected), count, expected.data());
      if (device.sum(y.on_device(corrected), count, out.get()) != finite)
        return std::string("whether a sum is finite: ") + kind.name;
      if (!same_bits(memory.read(out.get(), elements), expected))
        return std::string("a sum differs: values ") + kind.name;
    }
  }
  return {};
}

std::string bad_numbers_are_found(const Device& device, Memory& memory) {
  Random random(3);
  const Values good = sampled(random, elements, normal);
  for (const float bad : bad_values) {
    for (int attempt = 0; attempt < 20; ++attempt) {
      Values publication = good;
      publication[random() % elements] = bad;
      const auto there = memory.with(publication);
      const auto out = memory.with(publication);
      if (device.sum({there.get()}, count, out.get())) return "a sum takes a number that is not finite";
      const auto blocks = all_blocks(count);
      for (const Codec codec : all_codecs) {
        const auto encode = [&](Sent& sent) {
          return device.encode(codec, {there.get()}, blocks, 5, sent.exponents, sent.checks, sent.values);
        };
        if (encoded(encode, codec, blocks, -10).finite) return "encode takes a number that is not finite";
        const Fragment sound(memory, good, good);
        const Exchange exchange{device, memory, codec, -10, blocks, 5};
        const Sent sent = exchange.encode_here(sound, false);
        const Fragment broken(memory, publication, good);
        if (exchange.answer_there(broken, false, sent).finite) return "difference takes a number that is not finite";
      }
    }
  }
  return {};
}

/// An outer step's arrays.
struct Outer {
  Values publication, in, anchor, momentum;
};

std::string compare(const Device& device, Memory& memory, const Outer& arrays, bool with_in,
                    std::span<const ElementRange> left_out) {
  const OuterOptions options{.momentum = 0.7F, .rate = 0.6F};
  Outer here = arrays;
  Values out(elements, 3);
  const bool finite = outer_step(options, {.y = {here.publication.data()},
                                           .block_count = count,
                                           .in = with_in ? here.in.data() : nullptr,
                                           .out = out.data(),
                                           .anchor = here.anchor.data(),
                                           .momentum = here.momentum.data(),
                                           .left_out = left_out});
  const auto publication = memory.with(arrays.publication);
  const auto in = memory.with(arrays.in);
  const auto anchor = memory.with(arrays.anchor);
  const auto momentum = memory.with(arrays.momentum);
  const auto written = memory.with(Values(elements, 3));
  const bool there = device.outer_step(options, {.y = {publication.get()},
                                                 .block_count = count,
                                                 .in = with_in ? in.get() : nullptr,
                                                 .out = written.get(),
                                                 .anchor = anchor.get(),
                                                 .momentum = momentum.get(),
                                                 .left_out = left_out});
  if (there != finite) return "whether an outer step is finite";
  if (!same_bits(memory.read(written.get(), elements), out)) return "an outer step's correction differs";
  if (!same_bits(memory.read(anchor.get(), elements), here.anchor)) return "an outer step's anchor differs";
  if (!same_bits(memory.read(momentum.get(), elements), here.momentum)) return "an outer step's momentum differs";
  return {};
}

std::string outer_step_is_the_definition(const Device& device, Memory& memory) {
  Random random(4);
  const std::vector<ElementRange> ranges{{3, 4}, {250, 300}, {elements - 10, elements}};
  for (const Kind& kind : kinds) {
    Outer arrays{make(kind, random, elements), sampled(random, elements, normal), make(kind, random, elements),
                 sampled(random, elements, normal)};
    for (const bool with_in : {false, true}) {
      for (const auto& left_out : {ranges, std::vector<ElementRange>()}) {
        const std::string wrong = compare(device, memory, arrays, with_in, left_out);
        if (!wrong.empty()) return wrong + ": values " + kind.name;
      }
    }
    for (const float bad : bad_values) {
      Outer broken = arrays;
      broken.publication[random() % elements] = bad;
      const std::string wrong = compare(device, memory, broken, true, ranges);
      if (!wrong.empty()) return wrong + ": values " + kind.name + ", one of them not finite";
    }
  }
  return {};
}

/// The arrays of a client, and what the mean takes from it.
struct Client {
  Values snapshot, base, base_correction, correction;
  Take take = Take::progress;
  bool has_base_correction = true;
  bool has_correction = true;
  bool replace = false;
  float weight = 0.25F;
};

std::vector<Client> clients_of(const Kind& kind, Random& random) {
  std::vector<Client> clients;
  for (int n = 0; n < 6; ++n) {
    const Values base = make(kind, random, elements);
    Client client{sampled(random, elements, normal), base, sampled(random, elements, normal), Values(elements, 9)};
    if (n < 4) client.snapshot = base;  // it has moved only by its correction, or not at all
    clients.push_back(std::move(client));
  }
  clients[0].has_base_correction = false;
  clients[1].replace = true;
  clients[2].take = Take::nothing;
  clients[3].has_correction = false;
  clients[4].snapshot[random() % elements] = bad_values[random() % 3];
  clients[5].take = Take::check;
  clients[5].snapshot[random() % elements] = 0x1p120F;
  return clients;
}

std::string memory_keeps_what_it_is_given(const Device& device, Memory& memory) {
  Random random(6);
  for (const Kind& kind : kinds) {
    const Values values = make(kind, random, elements);
    const auto first = memory.with(values);
    const auto second = memory.with(Values(elements, 1.0F));
    if (!same_bits(memory.read(first.get(), elements), values)) return std::string("memory differs: ") + kind.name;
    if (!device.copy(second.get() + 1, first.get(), elements - 2)) return "copying failed";
    Values expected = values;
    std::copy(values.begin(), values.end() - 2, expected.begin() + 1);
    expected.front() = expected.back() = 1.0F;
    if (!same_bits(memory.read(second.get(), elements), expected)) return std::string("a copy differs: ") + kind.name;
    if (!device.clear(second.get() + 2, elements - 4)) return "clearing failed";
    std::fill(expected.begin() + 2, expected.end() - 2, 0.0F);
    if (!same_bits(memory.read(second.get(), elements), expected)) return std::string("is not clear: ") + kind.name;
  }
  return {};
}

std::string local_mean_is_the_definition(const Device& device, Memory& memory) {
  Random random(5);
  for (const Kind& kind : kinds) {
    std::vector<Client> clients = clients_of(kind, random);
    const Values before = sampled(random, elements, normal);
    Values y = before;
    const auto y_there = memory.with(y);
    std::vector<ClientFragment> here, there;
    std::vector<std::shared_ptr<float>> held;
    const auto put = [&](const Values& values) { return held.emplace_back(memory.with(values)).get(); };
    for (Client& client : clients) {
      const ClientFragment asked{.take = client.take, .weight = client.weight, .replace = client.replace};
      here.push_back(asked);
      there.push_back(asked);
      here.back().snapshot = client.snapshot.data();
      there.back().snapshot = put(client.snapshot);
      here.back().base = client.base.data();
      there.back().base = put(client.base);
      if (client.has_base_correction) here.back().base_correction = client.base_correction.data();
      if (client.has_base_correction) there.back().base_correction = put(client.base_correction);
      if (client.has_correction) here.back().correction = client.correction.data();
      if (client.has_correction) there.back().correction = put(client.correction);
    }
    std::vector<LocalMeanOutcome> expected(clients.size()), got(clients.size());
    local_mean(here, y, expected);
    if (!device.local_mean(there, {y_there.get(), elements}, got)) return "the mean of the clients failed";
    if (!same_bits(memory.read(y_there.get(), elements), y))
      return std::string("the mean of the clients differs: ") + kind.name;
    for (std::size_t c = 0; c < clients.size(); ++c) {
      const bool told_alike = got[c].finite == expected[c].finite && got[c].moved == expected[c].moved &&
                              got[c].differs == expected[c].differs;
      if (!told_alike) return "what was found of client " + std::to_string(c) + " differs: " + kind.name;
      if (!clients[c].has_correction) continue;
      if (!same_bits(memory.read(there[c].correction, elements), clients[c].correction)) {
        return "the correction of client " + std::to_string(c) + " differs: " + kind.name;
      }
    }
  }
  return {};
}

}  // namespace

std::shared_ptr<float> Memory::with(const std::vector<float>& values) {
  Device::Floats memory = device_.allocate(values.size());
  if (memory == nullptr || !device_.upload(memory.get(), values)) {
    throw std::runtime_error("the device's memory: " + device_.failure());
  }
  const Device::Release release = memory.get_deleter();
  return {memory.release(), release};
}

std::vector<float> Memory::read(const float* from, std::size_t elements) {
  std::vector<float> values(elements);
  if (!device_.download(values, from)) throw std::runtime_error("reading back: " + device_.failure());
  return values;
}

const std::vector<Property>& all() {
  static const std::vector<Property> properties = {
      {"encode", encode_is_the_definition},
      {"difference", difference_is_the_definition},
      {"outcomes of a reply", outcomes_are_the_definition},
      {"apply", apply_is_the_definition},
      {"sum", sum_is_the_definition},
      {"numbers that are not finite", bad_numbers_are_found},
      {"outer step", outer_step_is_the_definition},
      {"mean of a node's clients", local_mean_is_the_definition},
      {"memory", memory_keeps_what_it_is_given},
  };
  return properties;
}

}  // namespace properties
