// Requests to the status page: every one has an answer, and a path is asked for only if the request is sound.

#include "daemon/system/http_server.hpp"
#include "tests/fuzz/fuzz.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gossamer::daemon;
  const HttpAnswer answer = http_answer(gossamer::fuzz::text_of(data, size), [](std::string_view path) {
    GOSSAMER_CHECK(path.starts_with('/') && path.find_first_of(" ?") == std::string_view::npos);
    return text_reply(200, std::string(path));
  });
  GOSSAMER_CHECK(answer.reply.body != nullptr && answer.reply.status >= 200);
  (void)loopback_endpoint(gossamer::fuzz::text_of(data, size));
  return 0;
}
