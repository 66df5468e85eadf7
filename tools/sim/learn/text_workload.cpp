// Predicts the next character of a text from the 12 before it: each is embedded, and a hidden layer and a softmax
// follow (Bengio et al. 2003, "A neural probabilistic language model", over characters). The text is that of the free
// licences on every Debian machine. A document's number is its label, so nodes with sorted shards read different
// licences. Every tenth stretch of 1,000 characters is held out.
//
// One thread.

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tools/sim/commands.hpp"
#include "tools/sim/draw.hpp"
#include "tools/sim/learn/classifier.hpp"
#include "tools/sim/learn/workload.hpp"

namespace gossamer::sim {

namespace {

constexpr std::size_t context = 12;
constexpr std::size_t embedding = 12;
constexpr std::size_t stretch = 1'000;
constexpr std::size_t held_out_stretch_every = 10;
constexpr std::size_t max_text_bytes = 16u << 20;
constexpr std::size_t max_held_out = 2'048;  // positions that are evaluated, evenly spread
constexpr std::size_t max_documents = 255;
constexpr const char* licences = "/usr/share/common-licenses";

struct Text {
  std::vector<std::uint8_t> symbols;
  std::size_t vocabulary = 0;
  std::vector<std::uint32_t> train;  // positions of the characters to predict
  std::vector<std::uint8_t> documents;
  std::vector<std::uint32_t> held_out;
};

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.good() && !file.eof()) throw UsageError("cannot read " + path.string());
  return text;
}

/// Each licence is a document, in the order of their names; a file that the user names is cut into documents of equal
/// length.
std::vector<std::string> documents(const std::string& file) {
  constexpr std::size_t parts = 64;
  std::vector<std::string> texts;
  if (!file.empty()) {
    const std::string text = contents(file);
    if (text.size() > max_text_bytes) throw UsageError(file + " is longer than 16 MiB");
    for (std::size_t n = 0; n < parts; ++n) {
      const std::size_t begin = text.size() * n / parts;
      texts.push_back(text.substr(begin, text.size() * (n + 1) / parts - begin));
    }
    return texts;
  }
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(licences, error)) {
    if (entry.is_regular_file() && !entry.is_symlink()) paths.push_back(entry.path());
  }
  if (paths.empty()) {
    throw UsageError(std::string("no text in ") + licences + "; Debian's package base-files has it, or use --text");
  }
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths)
    texts.push_back(contents(path));
  return texts;
}

Text read_text(const std::string& file) {
  Text text;
  std::array<int, 256> symbol_of{};
  symbol_of.fill(-1);
  std::size_t begin = 0;
  const auto texts = documents(file);
  for (std::size_t document = 0; document < texts.size(); ++document) {
    for (const char character : texts[document]) {
      int& symbol = symbol_of[static_cast<std::uint8_t>(character)];
      if (symbol < 0) symbol = static_cast<int>(text.vocabulary++);
      text.symbols.push_back(static_cast<std::uint8_t>(symbol));
    }
    for (std::size_t at = begin + context; at < text.symbols.size(); ++at) {
      if (at / stretch % held_out_stretch_every == 0) {
        text.held_out.push_back(static_cast<std::uint32_t>(at));
      } else if ((at - context) / stretch % held_out_stretch_every != 0) {  // the context must not be held out, either
        text.train.push_back(static_cast<std::uint32_t>(at));
        text.documents.push_back(static_cast<std::uint8_t>(std::min(document, max_documents)));
      }
    }
    begin = text.symbols.size();
  }
  if (text.train.empty() || text.held_out.empty()) throw UsageError("the text is too short to learn from");
  if (text.held_out.size() > max_held_out) {
    for (std::size_t n = 0; n < max_held_out; ++n)
      text.held_out[n] = text.held_out[text.held_out.size() * n / max_held_out];
    text.held_out.resize(max_held_out);
  }
  return text;
}

/// The model: embeddings (vocabulary × embedding), and then the classifier's parameters.
class TextModel {
 public:
  TextModel(std::size_t vocabulary, std::size_t hidden)
      : table_(vocabulary * embedding), classifier_(context * embedding, hidden, vocabulary) {}

  [[nodiscard]] std::size_t elements() const { return table_ + classifier_.elements(); }

  void initialise(gossip::Random& random, std::span<float> x) const {
    for (float& value : x.first(table_))
      value = static_cast<float>(normal(random)) * 0.3F;
    classifier_.initialise(random, x.subspan(table_));
  }

  double gradient(const Text& text, std::span<const std::uint32_t> positions, std::span<const float> x,
                  std::span<float> g) {
    gather(text, positions, x);
    input_gradient_.resize(inputs_.size());
    const double loss =
        classifier_.gradient(x.subspan(table_), inputs_.data(), labels_, g.subspan(table_), input_gradient_.data());
    std::fill_n(g.data(), table_, 0.0F);
    const float* from = input_gradient_.data();
    for (const std::uint32_t position : positions) {
      for (std::size_t n = 0; n < context; ++n) {
        float* to = g.data() + text.symbols[position - context + n] * embedding;
        for (std::size_t e = 0; e < embedding; ++e)
          to[e] += *from++;
      }
    }
    return loss;
  }

  Classifier::Evaluation evaluate(const Text& text, std::span<const std::uint32_t> positions,
                                  std::span<const float> x) {
    gather(text, positions, x);
    return classifier_.evaluate(x.subspan(table_), inputs_.data(), labels_);
  }

 private:
  void gather(const Text& text, std::span<const std::uint32_t> positions, std::span<const float> x) {
    inputs_.resize(positions.size() * context * embedding);
    labels_.clear();
    float* to = inputs_.data();
    for (const std::uint32_t position : positions) {
      for (std::size_t n = 0; n < context; ++n)
        to = std::copy_n(x.data() + text.symbols[position - context + n] * embedding, embedding, to);
      labels_.push_back(text.symbols[position]);
    }
  }

  std::size_t table_;
  Classifier classifier_;
  std::vector<float> inputs_;
  std::vector<float> input_gradient_;
  std::vector<std::uint8_t> labels_;
};

class TextSource final : public GradientSource {
 public:
  TextSource(const Text& text, TextModel model, std::vector<std::uint32_t> mine, std::size_t batch,
             gossip::Random random)
      : text_(text), model_(std::move(model)), mine_(std::move(mine)), positions_(batch), random_(random) {}

  Batch gradient(std::span<const float> x, std::span<float> g) override {
    for (std::uint32_t& position : positions_)
      position = text_.train[mine_[random_.below(mine_.size())]];
    return {positions_.size(), model_.gradient(text_, positions_, x, g)};
  }

 private:
  const Text& text_;
  TextModel model_;
  std::vector<std::uint32_t> mine_;
  std::vector<std::uint32_t> positions_;
  gossip::Random random_;
};

class TextWorkload final : public Workload {
 public:
  TextWorkload(const std::string& file, std::size_t hidden)
      : text_(read_text(file)), model_(text_.vocabulary, hidden) {}

  [[nodiscard]] std::size_t elements() const override { return model_.elements(); }

  [[nodiscard]] std::vector<float> initial(std::uint64_t seed) const override {
    gossip::Random random(seed);
    std::vector<float> x(elements());
    model_.initialise(random, x);
    return x;
  }

  [[nodiscard]] std::unique_ptr<GradientSource> make_source(const SourceOptions& options) const override {
    if (options.nodes > text_.train.size()) throw UsageError("more nodes than characters to learn from");
    auto all = shards(text_.documents, options.nodes, options.sharding, gossip::Random(options.seed));
    gossip::Random seeds(options.seed + 0x9e37 * (options.node + 1));
    return std::make_unique<TextSource>(text_, model_, std::move(all[options.node]), options.batch,
                                        gossip::Random(seeds.next()));
  }

  [[nodiscard]] Quality quality(std::span<const float> x) const override {
    const auto count = static_cast<double>(text_.held_out.size());
    const auto sums = model_.evaluate(text_, text_.held_out, x);
    return {sums.loss_sum / count, static_cast<double>(sums.right) / count};
  }

 private:
  Text text_;
  mutable TextModel model_;  // its scratch memory
};

}  // namespace

std::unique_ptr<Workload> make_text(const std::string& file, std::size_t hidden) {
  return std::make_unique<TextWorkload>(file, hidden);
}

}  // namespace gossamer::sim
