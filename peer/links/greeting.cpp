#include "peer/links/greeting.hpp"

#include <asio/buffer.hpp>
#include <utility>

#include "peer/links/interface.hpp"

namespace gossamer::peer {
namespace {

/// ZMTP's signature: 0xff, eight bytes of padding, and a byte whose lowest bit is set.
constexpr std::size_t signature_bytes = 10;
constexpr std::uint8_t signature_first = 0xff;
/// How many bytes of what another program says are shown.
constexpr std::size_t shown_bytes = 24;

std::string printable(std::span<const std::uint8_t> bytes) {
  std::string text;
  for (const std::uint8_t byte : bytes.first(std::min(bytes.size(), shown_bytes))) {
    if (byte == '\r' || byte == '\n') break;
    text.push_back(byte >= 0x20 && byte < 0x7f ? static_cast<char>(byte) : '.');
  }
  return text;
}

}  // namespace

Greeting greeting_of(std::span<const std::uint8_t> bytes) {
  if (bytes.empty()) return {.speaker = Greeting::Speaker::silent};
  if (bytes[0] != signature_first || (bytes.size() >= signature_bytes && (bytes[signature_bytes - 1] & 1U) == 0))
    return {.speaker = Greeting::Speaker::other, .beginning = printable(bytes)};
  return {.speaker = bytes.size() < signature_bytes ? Greeting::Speaker::unknown : Greeting::Speaker::zeromq};
}

std::string not_a_node(const Greeting& greeting, const Address& address) {
  const std::string look =
      "; look at the address (a node's usual port is " + std::to_string(default_port) + "), and what listens there";
  if (greeting.speaker == Greeting::Speaker::other)
    return "another program has the port at " + address.text() + ": it answers with \"" + greeting.beginning + "\"" +
           look;
  if (greeting.speaker == Greeting::Speaker::silent)
    return "the port at " + address.text() +
           " takes connections and says nothing that a node would say: another program has it, which waits to be "
           "spoken to (as web servers, Serf and Docker Swarm do), or gossamerd hangs there" +
           look;
  return {};
}

std::string broken_handshake(const std::string& where) {
  return "the connection to " + where +
         " ended before its handshake was done: the node there stalls or has no room for more connections, or "
         "something on the way cuts them; the next attempt may show more";
}

void GreetingProbe::start(const Address& endpoint, const std::string& interface) {
  const auto weak = weak_from_this();
  timer_.expires_after(greeting_patience);
  timer_.async_wait([weak](const asio::error_code& error) {
    const auto self = weak.lock();
    if (!error && self) self->end(self->heard());
  });
  asio::error_code error;
  const auto host = asio::ip::make_address(endpoint.host, error);
  const asio::ip::tcp::endpoint to(host, endpoint.port);
  if (!error) (void)socket_.open(to.protocol(), error);
  if (error || hold_to_interface(socket_.native_handle(), interface) != 0) return;  // the timer ends it
  socket_.async_connect(to, [weak](const asio::error_code& failed) {
    const auto self = weak.lock();
    if (!self || !self->handler_) return;
    if (failed) return self->end({});
    self->connected_ = true;
    self->read();
  });
}

void GreetingProbe::read() {
  const auto rest = asio::buffer(bytes_.data() + read_bytes_, bytes_.size() - read_bytes_);
  socket_.async_read_some(rest, [weak = weak_from_this()](const asio::error_code& ended, std::size_t count) {
    const auto self = weak.lock();
    if (!self || !self->handler_) return;
    // A node that has no room for another stranger resets the connection.
    if (ended == asio::error::connection_reset) return self->end({});
    self->read_bytes_ += count;
    const Greeting greeting = self->heard();
    const bool is_clear = greeting.speaker == Greeting::Speaker::zeromq || greeting.speaker == Greeting::Speaker::other;
    return ended || is_clear ? self->end(greeting) : self->read();
  });
}

Greeting GreetingProbe::heard() const {
  return connected_ ? greeting_of({bytes_.data(), read_bytes_}) : Greeting{};
}

void GreetingProbe::end(const Greeting& greeting) {
  const Handler handler = std::exchange(handler_, nullptr);
  cancel();
  if (handler) handler(greeting);
}

void GreetingProbe::cancel() {
  handler_ = nullptr;
  timer_.cancel();
  asio::error_code ignored;
  (void)socket_.close(ignored);
}

}  // namespace gossamer::peer
