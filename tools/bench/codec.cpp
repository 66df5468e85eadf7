// gossamer-bench codec measures the kernels of gossip/codec/lattice.hpp on one core, over arrays far larger than the
// caches. A kernel's figures are the bytes per second that it must read and write, and their ratio to STREAM's triad
// and copy. In a round each kernel goes through all fragments. The median of the fragments' times counts, because other
// programs also use the machine.

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <stdexcept>

#include "gossip/codec/lattice.hpp"
#include "tools/bench/commands.hpp"
#include "tools/bench/measure.hpp"
#include "tools/bench/memory_traffic.hpp"

namespace gossamer::bench {
namespace {

struct CodecOptions {
  std::size_t mebi_elements = 64;
  std::size_t rounds = 9;
  bool json = false;
};

constexpr std::size_t fragment_elements = default_fragment_elements;
constexpr std::size_t fragment_blocks = fragment_elements / block_elements;
constexpr std::int8_t step_exponent = -8;
constexpr std::uint64_t seed = 0x5eed;

/// All that one codec's kernels read and write, for all fragments.
struct CodecFrames {
  CodecFrames(Codec used, std::size_t elements)
      : codec(used),
        exponents(elements / block_elements, step_exponent),
        checks(elements / block_elements),
        values(elements / block_elements * codec_block_bytes(used)),
        differences(values.size()),
        outcomes(elements / block_elements) {}

  Codec codec;
  std::vector<std::int8_t> exponents;
  std::vector<std::uint16_t> checks;
  std::vector<std::byte> values;
  std::vector<std::byte> differences;
  std::vector<gossip::BlockOutcome> outcomes;
};

/// The models of the two ends of an exchange, and the corrections that are still to be added to them.
struct Models {
  explicit Models(std::size_t elements)
      : initiator(elements), responder(elements), correction(elements), out(elements) {
    for (std::size_t n = 0; n < elements; ++n) {
      const auto word = gossip::dither_word(1, static_cast<std::uint32_t>(n));
      initiator[n] = static_cast<float>(word >> 8) * 0x1p-24F - 0.5F;
      responder[n] = initiator[n] + static_cast<float>(word & 255U) * 0x1p-13F - 0x1p-6F;  // within a q4 range
    }
  }
  std::vector<float> initiator, responder, correction, out;
};

/// A kernel to time: its work on one fragment, and the seconds that this took, with one number for each round.
struct Subject {
  std::string kernel, codec;
  double bytes_per_element;
  std::function<void(std::size_t)> work;
  std::vector<double> seconds = {};
};

void expect(bool finite) {
  if (!finite) throw std::logic_error("a kernel found a number that is not finite");
}

class CodecBench {
 public:
  explicit CodecBench(const CodecOptions& options)
      : elements_(options.mebi_elements << 20), options_(options), models_(elements_) {
    for (std::size_t n = 0; n < fragment_blocks; ++n)
      blocks_.push_back(static_cast<std::uint32_t>(n));
    for (const Codec codec : {Codec::f32, Codec::q8, Codec::q4}) {
      frames_.push_back(std::make_unique<CodecFrames>(codec, elements_));
    }
  }

  void run() {
    add_references();
    for (const auto& frames : frames_)
      add_kernels(*frames);
    for (Subject& subject : subjects_)
      (void)seconds_a_fragment(subject);  // touches every page
    for (std::size_t round = 0; round < options_.rounds; ++round) {
      for (Subject& subject : subjects_)
        subject.seconds.push_back(seconds_a_fragment(subject));
      sign_ = -sign_;  // the next round takes back what this one added, so the values do not drift
    }
    report();
  }

 private:
  [[nodiscard]] double seconds_a_fragment(const Subject& subject) const {
    std::vector<double> seconds;
    for (std::size_t n = 0; n < elements_ / fragment_elements; ++n) {
      seconds.push_back(seconds_of([&] { subject.work(n); }));
    }
    return spread_of(std::move(seconds)).median;
  }

  void add_references() {
    subjects_.push_back({"STREAM triad", "", 12, [this](std::size_t n) {
                           stream_triad(at(models_.out, n), at(models_.initiator, n), at(models_.responder, n), 0.5F,
                                        fragment_elements);
                         }});
    subjects_.push_back({"STREAM copy", "", 8, [this](std::size_t n) {
                           stream_copy(at(models_.out, n), at(models_.initiator, n), fragment_elements);
                         }});
  }

  void add_kernels(CodecFrames& f) {
    const double packed = codec_bits(f.codec) / 8.0;
    const auto add = [&](const char* kernel, double bytes_per_element, std::function<void(std::size_t)> work) {
      subjects_.push_back({kernel, codec_name(f.codec), bytes_per_element, std::move(work)});
    };
    add("encode", 4 + packed, [&](std::size_t n) { encode_fragment(f, n, false); });
    add("encode, with correction", 8 + packed, [&](std::size_t n) { encode_fragment(f, n, true); });
    add("difference", 4 + 2 * packed, [&](std::size_t n) { difference_of_fragment(f, n, false); });
    add("difference, with correction", 8 + 2 * packed, [&](std::size_t n) { difference_of_fragment(f, n, true); });
    add("apply, in place", 8 + packed,
        [&](std::size_t n) { apply_fragment(f, n, at(models_.initiator, n), at(models_.initiator, n)); });
    add("apply, elsewhere", 8 + packed,
        [&](std::size_t n) { apply_fragment(f, n, at(models_.initiator, n), at(models_.out, n)); });
    add("apply, to nothing", 4 + packed, [&](std::size_t n) { apply_fragment(f, n, nullptr, at(models_.out, n)); });
  }

  [[nodiscard]] static float* at(std::vector<float>& model, std::size_t fragment) {
    return model.data() + fragment * fragment_elements;
  }
  [[nodiscard]] gossip::FragmentView view(const std::vector<float>& model, std::size_t fragment, bool corrected) const {
    const std::size_t first = fragment * fragment_elements;
    return {model.data() + first, corrected ? models_.correction.data() + first : nullptr};
  }
  template <class T>
  [[nodiscard]] static std::span<T> part(std::vector<T>& all, std::size_t fragment, std::size_t block_size = 1) {
    return std::span<T>(all).subspan(fragment * fragment_blocks * block_size, fragment_blocks * block_size);
  }

  void encode_fragment(CodecFrames& f, std::size_t n, bool corrected) {
    expect(encode(f.codec, view(models_.initiator, n, corrected), blocks_, seed, part(f.exponents, n),
                  part(f.checks, n), part(f.values, n, codec_block_bytes(f.codec))));
  }

  void difference_of_fragment(CodecFrames& f, std::size_t n, bool corrected) {
    const std::size_t bytes = codec_block_bytes(f.codec);
    expect(difference(f.codec, view(models_.responder, n, corrected), blocks_, seed, part(f.exponents, n),
                      part(f.checks, n), part(f.values, n, bytes), part(f.differences, n, bytes), part(f.outcomes, n)));
  }

  void apply_fragment(CodecFrames& f, std::size_t n, const float* in, float* out) const {
    gossip::apply(f.codec, 1, sign_, blocks_, part(f.exponents, n), part(f.differences, n, codec_block_bytes(f.codec)),
                  fragment_blocks, in, out);
  }

  [[nodiscard]] RepeatSpread gigabytes_per_s(const Subject& subject) const {
    std::vector<double> rates;
    for (const double seconds : subject.seconds) {
      rates.push_back(static_cast<double>(fragment_elements) * subject.bytes_per_element / seconds / 1e9);
    }
    return spread_of(std::move(rates));
  }

  void report() const {
    std::size_t wide = 0;
    for (const auto& frames : frames_) {
      for (const gossip::BlockOutcome& outcome : frames->outcomes)
        wide += outcome.wide ? 1U : 0U;
    }
    const double triad = gigabytes_per_s(subjects_[0]).median;
    const double copy = gigabytes_per_s(subjects_[1]).median;
    nlohmann::json rows = nlohmann::json::array();
    for (const Subject& subject : subjects_) {
      const RepeatSpread rate = gigabytes_per_s(subject);
      rows.push_back({{"kernel", subject.kernel},
                      {"codec", subject.codec},
                      {"bytes_per_element", subject.bytes_per_element},
                      {"gigabytes_per_s", to_json(rate)},
                      {"elements_per_s", rate.median * 1e9 / subject.bytes_per_element},
                      {"of_triad", rate.median / triad},
                      {"of_copy", rate.median / copy}});
    }
    if (options_.json) {
      fmt::print(
          "{}\n",
          nlohmann::json{
              {"elements", elements_}, {"rounds", options_.rounds}, {"wide_blocks", wide}, {"rows", std::move(rows)}}
              .dump());
      return;
    }
    fmt::print("{} Mi elements in fragments of 1 Mi, one core, {} rounds; min / median / max; {} wide blocks\n\n",
               options_.mebi_elements, options_.rounds, wide);
    fmt::print("{:<28}{:<6}{:>24}{:>14}{:>10}{:>9}\n", "kernel", "codec", "GB/s", "G elements/s", "of triad",
               "of copy");
    for (const auto& row : rows) {
      const auto& rate = row["gigabytes_per_s"];
      fmt::print("{:<28}{:<6}{:>24}{:>14.2f}{:>10.2f}{:>9.2f}\n", row["kernel"].get<std::string>(),
                 row["codec"].get<std::string>(), text_of({rate["min"], rate["median"], rate["max"]}, 1),
                 row["elements_per_s"].get<double>() / 1e9, row["of_triad"].get<double>(),
                 row["of_copy"].get<double>());
    }
  }

  std::size_t elements_;
  CodecOptions options_;
  Models models_;
  std::vector<std::uint32_t> blocks_;
  std::vector<std::unique_ptr<CodecFrames>> frames_;
  std::vector<Subject> subjects_;
  int sign_ = 1;
};

}  // namespace

void add_codec_command(CLI::App& app) {
  auto options = std::make_shared<CodecOptions>();
  CLI::App* const command = app.add_subcommand("codec", "Encode, difference and apply, beside STREAM's triad and copy");
  add_number(command, "--mebi-elements", options->mebi_elements, 1, 1024,
             "Elements of the model in Mi; memory: about 50 bytes each");
  add_number(command, "--rounds", options->rounds, 1, 1000, "How often each is measured, in turn");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options] { CodecBench(*options).run(); });
}

}  // namespace gossamer::bench
