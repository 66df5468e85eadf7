// Loading the plug-in: the message where it is missing or is another library. Where the plug-in was built, it also
// loads without a GPU and says what it has found.

#include "catch.hpp"
#include "daemon/device/cuda_device.hpp"

using namespace gossamer::device;

TEST_CASE("a plug-in that is missing is told, with what to install", "[plugin]") {
  const auto plugin = Plugin::load("/nowhere/libgossamer_cuda.so");
  REQUIRE_FALSE(plugin);
  CHECK(plugin.error().find("/nowhere/libgossamer_cuda.so") != std::string::npos);
  CHECK(plugin.error().find("gossamer-cuda") != std::string::npos);
}

TEST_CASE("a library that is not the plug-in is refused", "[plugin]") {
  const auto plugin = Plugin::load("libm.so.6");
  REQUIRE_FALSE(plugin);
  CHECK(plugin.error().find("libm.so.6 is not the plug-in") != std::string::npos);
}

#ifdef GOSSAMER_PLUGIN

TEST_CASE("the plug-in loads where there is no GPU, and says what there is", "[plugin]") {
  const auto plugin = Plugin::load(GOSSAMER_PLUGIN);
  if (!plugin) FAIL(plugin.error());
  const auto count = plugin->count();
  if (!count) {
    CHECK(count.error().find("driver") != std::string::npos);
  } else {
    CHECK(*count >= 0);
  }
  const int beyond = count ? *count : 0;
  const auto device = CudaDevice::open(*plugin, beyond);
  REQUIRE_FALSE(device);
  CHECK_FALSE(device.error().empty());
}

#endif
