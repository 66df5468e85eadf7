// Handwritten digits: 1,797 pictures of 8 × 8 grey values in 10 classes (Alpaydin & Kaynak 1998, UCI "Optical
// Recognition of Handwritten DigitsData", the test part, as scikit-learn ships it). A sixth is held out, the same for
// every seed. The data are small enough to run hundreds of times, and real enough that shards of one label hurt.
//
// One thread.

#include <zlib.h>

#include <algorithm>
#include <charconv>

#include "tools/sim/commands.hpp"
#include "tools/sim/draw.hpp"
#include "tools/sim/learn/classifier.hpp"
#include "tools/sim/learn/workload.hpp"

namespace gossamer::sim {

namespace {

constexpr std::size_t pixels = 64;
constexpr std::size_t classes = 10;
constexpr float largest_pixel = 16;
constexpr std::size_t held_out_image_every = 6;
constexpr std::size_t max_file_bytes = 64u << 20;
constexpr const char* debian_file = "/usr/lib/python3/dist-packages/sklearn/datasets/data/digits.csv.gz";

struct Examples {
  std::vector<float> inputs;
  std::vector<std::uint8_t> labels;
};
struct DigitsData {
  Examples train;
  Examples held_out;
};

std::string decompressed(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) {
    throw UsageError("cannot read " + path + "; Debian's package python3-sklearn has it, or name one with --digits");
  }
  std::string text;
  std::vector<char> part(1 << 16);
  int count = 0;
  while ((count = gzread(file, part.data(), static_cast<unsigned>(part.size()))) > 0 && text.size() < max_file_bytes)
    text.append(part.data(), static_cast<std::size_t>(count));
  gzclose(file);
  if (count != 0) throw UsageError(path + " is damaged or larger than any set of digits");
  return text;
}

/// Reads one line: 64 pixels and the label.
bool parse_line(std::string_view line, Examples& out) {
  const char* next = line.data();
  const char* end = next + line.size();
  for (std::size_t field = 0; field <= pixels; ++field) {
    int value = 0;
    const auto [after, error] = std::from_chars(next, end, value);
    const int limit = field < pixels ? static_cast<int>(largest_pixel) : static_cast<int>(classes) - 1;
    if (error != std::errc() || value < 0 || value > limit) return false;
    if (field == pixels) {
      out.labels.push_back(static_cast<std::uint8_t>(value));
      return after == end;
    }
    out.inputs.push_back(static_cast<float>(value) / largest_pixel);
    if (after == end || *after != ',') return false;
    next = after + 1;
  }
  return false;
}

DigitsData read_digits(const std::string& path) {
  const std::string text = decompressed(path);
  DigitsData digits;
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    Examples& to = number % held_out_image_every == 0 ? digits.held_out : digits.train;
    if (!parse_line(std::string_view(text).substr(begin, end - begin), to)) {
      throw UsageError(path + ": line " + std::to_string(number + 1) + " is not 64 pixels from 0 to 16 and a digit");
    }
    begin = end + 1;
  }
  if (digits.train.labels.empty()) throw UsageError(path + " holds too few examples");
  return digits;
}

class DigitsSource final : public GradientSource {
 public:
  DigitsSource(const Examples& examples, std::vector<std::uint32_t> mine, Classifier classifier, std::size_t batch,
               gossip::Random random)
      : examples_(examples),
        mine_(std::move(mine)),
        classifier_(std::move(classifier)),
        inputs_(batch * pixels),
        labels_(batch),
        random_(random) {}

  Batch gradient(std::span<const float> x, std::span<float> g) override {
    for (std::size_t n = 0; n < labels_.size(); ++n) {
      const std::size_t index = mine_[random_.below(mine_.size())];
      std::copy_n(examples_.inputs.data() + index * pixels, pixels, inputs_.data() + n * pixels);
      labels_[n] = examples_.labels[index];
    }
    return {labels_.size(), classifier_.gradient(x, inputs_.data(), labels_, g)};
  }

 private:
  const Examples& examples_;
  std::vector<std::uint32_t> mine_;
  Classifier classifier_;
  std::vector<float> inputs_;
  std::vector<std::uint8_t> labels_;
  gossip::Random random_;
};

class DigitsWorkload final : public Workload {
 public:
  DigitsWorkload(const std::string& file, std::size_t hidden)
      : digits_(read_digits(file)), classifier_(pixels, hidden, classes) {}

  [[nodiscard]] std::size_t elements() const override { return classifier_.elements(); }

  [[nodiscard]] std::vector<float> initial(std::uint64_t seed) const override {
    gossip::Random random(seed);
    std::vector<float> x(elements());
    classifier_.initialise(random, x);
    return x;
  }

  [[nodiscard]] std::unique_ptr<GradientSource> make_source(const SourceOptions& options) const override {
    if (options.nodes > digits_.train.labels.size()) {
      throw UsageError(std::to_string(digits_.train.labels.size()) + " examples cannot be shared among " +
                       std::to_string(options.nodes) + " nodes");
    }
    auto all = shards(digits_.train.labels, options.nodes, options.sharding, gossip::Random(options.seed));
    gossip::Random seeds(options.seed + 0x9e37 * (options.node + 1));
    return std::make_unique<DigitsSource>(digits_.train, std::move(all[options.node]), classifier_, options.batch,
                                          gossip::Random(seeds.next()));
  }

  [[nodiscard]] Quality quality(std::span<const float> x) const override {
    const auto count = static_cast<double>(digits_.held_out.labels.size());
    const auto sums = classifier_.evaluate(x, digits_.held_out.inputs.data(), digits_.held_out.labels);
    return {sums.loss_sum / count, static_cast<double>(sums.right) / count};
  }

 private:
  DigitsData digits_;
  mutable Classifier classifier_;  // its scratch memory
};

}  // namespace

std::unique_ptr<Workload> make_digits(const std::string& file, std::size_t hidden) {
  return std::make_unique<DigitsWorkload>(file.empty() ? debian_file : file, hidden);
}

}  // namespace gossamer::sim
