#include "tools/sim/learn/classifier.hpp"

#include <algorithm>
#include <cmath>

#include "gossip/check.hpp"
#include "tools/sim/learn/matrix.hpp"

namespace gossamer::sim {

namespace {

std::size_t layer_elements(std::size_t in, std::size_t out) {
  return (in + 1) * out;
}

void add_biases(float* rows, const float* biases, std::size_t count, std::size_t width) {
  for (std::size_t row = 0; row < count; ++row) {
    for (std::size_t column = 0; column < width; ++column)
      rows[row * width + column] += biases[column];
  }
}

void initialise_layer(gossip::Random& random, std::size_t in, std::size_t out, float*& x) {
  const double limit = std::sqrt(6.0 / static_cast<double>(in));
  for (std::size_t n = 0; n < in * out; ++n)
    *x++ = static_cast<float>(limit * (2 * random.uniform() - 1));
  x = std::fill_n(x, out, 0.0F);
}

}  // namespace

Classifier::Classifier(std::size_t inputs, std::size_t hidden, std::size_t classes)
    : inputs_(inputs),
      hidden_(hidden),
      classes_(classes),
      elements_(hidden > 0 ? layer_elements(inputs, hidden) + layer_elements(hidden, classes)
                           : layer_elements(inputs, classes)) {}

void Classifier::initialise(gossip::Random& random, std::span<float> x) const {
  GOSSAMER_CHECK(x.size() == elements_);
  float* next = x.data();
  if (hidden_ > 0) initialise_layer(random, inputs_, hidden_, next);
  initialise_layer(random, hidden_ > 0 ? hidden_ : inputs_, classes_, next);
}

void Classifier::forward(std::span<const float> x, const float* inputs, std::size_t batch) {
  GOSSAMER_CHECK(x.size() == elements_);
  const float* layer = x.data();
  const float* from = inputs;
  std::size_t width = inputs_;
  if (hidden_ > 0) {
    activations_.resize(batch * hidden_);
    multiply(inputs, layer, activations_.data(), batch, inputs_, hidden_);
    add_biases(activations_.data(), layer + inputs_ * hidden_, batch, hidden_);
    for (float& value : activations_)
      value = std::max(value, 0.0F);
    layer += layer_elements(inputs_, hidden_);
    from = activations_.data();
    width = hidden_;
  }
  scores_.resize(batch * classes_);
  multiply(from, layer, scores_.data(), batch, width, classes_);
  add_biases(scores_.data(), layer + width * classes_, batch, classes_);
}

double Classifier::softmax(std::span<const std::uint8_t> labels) {
  double loss = 0;
  for (std::size_t row = 0; row < labels.size(); ++row) {
    float* scores = scores_.data() + row * classes_;
    const float largest = *std::max_element(scores, scores + classes_);
    const float of_label = scores[labels[row]];
    float sum = 0;
    for (std::size_t c = 0; c < classes_; ++c) {
      scores[c] = std::exp(scores[c] - largest);
      sum += scores[c];
    }
    loss += std::log(static_cast<double>(sum)) - static_cast<double>(of_label - largest);
    for (std::size_t c = 0; c < classes_; ++c)
      scores[c] /= sum;
    scores[labels[row]] -= 1;
  }
  return loss;
}

void Classifier::backward_layer(const float* inputs, std::size_t in, const float* weights, const float* output_gradient,
                                std::size_t out, std::size_t batch, float* g, float* input_gradient) {
  transposed_.resize(in * std::max(batch, out));
  transpose(inputs, batch, in, transposed_.data());
  multiply(transposed_.data(), output_gradient, g, in, batch, out);
  float* biases = g + in * out;
  std::fill_n(biases, out, 0.0F);
  for (std::size_t row = 0; row < batch; ++row) {
    for (std::size_t c = 0; c < out; ++c)
      biases[c] += output_gradient[row * out + c];
  }
  if (input_gradient == nullptr) return;
  transpose(weights, in, out, transposed_.data());
  multiply(output_gradient, transposed_.data(), input_gradient, batch, out, in);
}

double Classifier::gradient(std::span<const float> x, const float* inputs, std::span<const std::uint8_t> labels,
                            std::span<float> g, float* input_gradient) {
  GOSSAMER_CHECK(g.size() == elements_ && !labels.empty());
  const std::size_t batch = labels.size();
  forward(x, inputs, batch);
  const double loss = softmax(labels) / static_cast<double>(batch);
  const float share = 1.0F / static_cast<float>(batch);
  for (float& value : scores_)
    value *= share;
  if (hidden_ == 0) {
    backward_layer(inputs, inputs_, x.data(), scores_.data(), classes_, batch, g.data(), input_gradient);
    return loss;
  }
  const std::size_t first = layer_elements(inputs_, hidden_);
  activation_gradients_.resize(batch * hidden_);
  backward_layer(activations_.data(), hidden_, x.data() + first, scores_.data(), classes_, batch, g.data() + first,
                 activation_gradients_.data());
  for (std::size_t n = 0; n < activations_.size(); ++n)
    activation_gradients_[n] = activations_[n] > 0 ? activation_gradients_[n] : 0.0F;
  backward_layer(inputs, inputs_, x.data(), activation_gradients_.data(), hidden_, batch, g.data(), input_gradient);
  return loss;
}

Classifier::Evaluation Classifier::evaluate(std::span<const float> x, const float* inputs,
                                            std::span<const std::uint8_t> labels) {
  forward(x, inputs, labels.size());
  Evaluation result;
  for (std::size_t row = 0; row < labels.size(); ++row) {
    const float* scores = scores_.data() + row * classes_;
    if (std::max_element(scores, scores + classes_) - scores == labels[row]) ++result.right;
  }
  result.loss_sum = softmax(labels);
  return result;
}

}  // namespace gossamer::sim
