// The client library's plug-in on each GPU that is there: every kind of piece against the loops of the processor, bit
// for bit, at all alignments; words that are stored last; more passes than there are tables for; memory that is taken
// and given back; and the bandwidth of a pass beside the GPU's own copy in the same run. Prints a table; the exit
// status is 0 if all of it passed, 1 if something did not, and 77, loudly, where there is no GPU to run it on.
//
//   client_check PLUGIN [--small]
//
// The program itself calls nothing of CUDA: the plug-in provides memory and copies. A test runs the program with the
// fake plug-in on host memory (--small: no bandwidth), so that the program is known to work.

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "sdk/c/fused_pass.hpp"
#include "sdk/cuda/plugin_abi.hpp"

namespace {

using namespace gossamer::client;
using cuda::ClientPluginTable;
using cuda::Element;
using cuda::Mode;
using cuda::PassStatus;
using cuda::Piece;
using cuda::Publication;

constexpr int exit_skipped = 77;
constexpr std::chrono::seconds patience{60};
constexpr std::size_t page_bytes = 4096;

int failures = 0;

void row(const std::string& what, const std::string& wrong) {
  std::printf("%-70s %s\n", what.c_str(), wrong.empty() ? "passed" : ("FAILED: " + wrong).c_str());
  if (!wrong.empty()) ++failures;
}

template <class Function, class... Arguments>
void must(Function function, Arguments... arguments) {
  char text[512] = "";
  if (function(arguments..., text, sizeof text) != PassStatus::done) throw std::runtime_error(text);
}

/// Pinned host memory.
class Pinned {
 public:
  Pinned(const ClientPluginTable& plugin, cuda::Context* context, std::size_t bytes)
      : plugin_(plugin), context_(context), bytes_((bytes + page_bytes - 1) / page_bytes * page_bytes) {
    host_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (host_ == MAP_FAILED) throw std::runtime_error("no memory");
    must(plugin.pin, context, host_, std::uint64_t{bytes_}, &device_);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned() {
    plugin_.unpin(context_, host_);
    munmap(host_, bytes_);
  }
  [[nodiscard]] std::byte* host() const { return static_cast<std::byte*>(host_); }
  [[nodiscard]] std::byte* device() const { return static_cast<std::byte*>(device_); }

 private:
  const ClientPluginTable& plugin_;
  cuda::Context* context_;
  std::size_t bytes_;
  void* host_ = nullptr;
  void* device_ = nullptr;
};

/// GPU memory.
class Shared {
 public:
  Shared(const ClientPluginTable& plugin, cuda::Context* context, std::size_t bytes)
      : plugin_(plugin), context_(context) {
    must(plugin.share, context, std::uint64_t{bytes}, &memory_);
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() {
    close(memory_.descriptor);
    plugin_.unshare(context_, &memory_);
  }
  [[nodiscard]] std::byte* base() const { return static_cast<std::byte*>(memory_.base); }

 private:
  const ClientPluginTable& plugin_;
  cuda::Context* context_;
  cuda::SharedMemory memory_{};
};

class Gpu {
 public:
  static constexpr cuda::PassLimits limits{4'096, 64};

  Gpu(const ClientPluginTable& plugin, cuda::Context* context) : plugin(plugin), context(context) {}

  void wait() const {
    const auto until = std::chrono::steady_clock::now() + patience;
    for (bool idle = false; !idle;) {
      must(plugin.idle, context, &idle);
      if (std::chrono::steady_clock::now() > until) throw std::runtime_error("the GPU is not done in time");
      if (!idle) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  void copy(void* to, const void* from, std::size_t bytes) const {
    must(plugin.copy, context, to, from, std::uint64_t{bytes});
    wait();
  }
  [[nodiscard]] PassStatus launch(const std::vector<Piece>& pieces,
                                  const std::vector<Publication>& publications) const {
    char text[512] = "";
    const PassStatus status =
        plugin.launch(context, nullptr, pieces.data(), static_cast<std::uint32_t>(pieces.size()), publications.data(),
                      static_cast<std::uint32_t>(publications.size()), text, sizeof text);
    if (status != PassStatus::done && status != PassStatus::busy) throw std::runtime_error(text);
    return status;
  }

  const ClientPluginTable& plugin;
  cuda::Context* context;
};

// ---- one pass of every kind of piece

/// Floats of all sizes, NaN and infinity.
float any_float(std::mt19937& random) {
  constexpr std::array special = {0.0F, -0.0F, 1e-42F, -1e-42F, 3.4e38F, -3.4e38F, INFINITY, -INFINITY, NAN};
  if (random() % 16 == 0) return special[random() % special.size()];
  return std::ldexp(std::uniform_real_distribution<float>(-1, 1)(random), static_cast<int>(random() % 60) - 30);
}

struct Case {
  Element element;
  Mode mode;
  std::uint32_t count;
  std::size_t x_at, c_at, b_at, s_at;  ///< offsets in bytes
  std::uint32_t dither;
};

[[nodiscard]] std::size_t size_of(Element element) {
  return element == Element::f64 ? sizeof(double) : element == Element::bf16 ? sizeof(Bfloat16) : sizeof(float);
}

template <class T>
void on_processor(const Case& piece, std::byte* memory) {
  T* const x = reinterpret_cast<T*>(memory + piece.x_at);
  const auto* const c = reinterpret_cast<const float*>(memory + piece.c_at);
  const auto* const b = reinterpret_cast<const float*>(memory + piece.b_at);
  auto* const s = reinterpret_cast<float*>(memory + piece.s_at);
  if (piece.mode == Mode::none) return publish(x, s, piece.count);
  if constexpr (std::is_same_v<T, Bfloat16>) {
    if (piece.mode == Mode::add) return add_and_publish(x, c, s, piece.count, piece.dither);
    if (piece.mode == Mode::add_within) return add_within_and_publish(x, c, b, s, piece.count, piece.dither);
    return replace_and_publish(x, c, s, piece.count, piece.dither);
  } else {
    if (piece.mode == Mode::add) return add_and_publish(x, c, s, piece.count);
    if (piece.mode == Mode::add_within) return add_within_and_publish(x, c, b, s, piece.count);
    return replace_and_publish(x, c, s, piece.count);
  }
}

/// Makes cases of all kinds, sizes and alignments, one after the other. Returns the bytes that they take.
std::size_t make_cases(std::vector<Case>& cases, std::mt19937& random, bool small) {
  std::size_t at = 0;
  const std::vector<std::uint32_t> counts = small ? std::vector<std::uint32_t>{1, 3, 4, 255, 4'097}
                                                  : std::vector<std::uint32_t>{1, 3, 4, 255, 4'096, 4'097, 300'001};
  const auto place = [&](std::size_t element_bytes, std::uint32_t count, std::size_t off_by) {
    at = (at + 15) / 16 * 16 + off_by * element_bytes;
    const std::size_t begin = at;
    at += count * element_bytes;
    return begin;
  };
  for (const Element element : {Element::f32, Element::f64, Element::bf16}) {
    for (const Mode mode : {Mode::none, Mode::add, Mode::replace, Mode::add_within}) {
      for (const std::uint32_t count : counts) {
        for (const std::size_t off_by : {0, 1, 2, 3}) {
          Case piece{.element = element,
                     .mode = mode,
                     .count = count,
                     .x_at = 0,
                     .c_at = 0,
                     .b_at = 0,
                     .s_at = 0,
                     .dither = static_cast<std::uint32_t>(random())};
          piece.x_at = place(size_of(element), count, off_by);
          piece.c_at = place(sizeof(float), count, off_by == 3 ? 0 : off_by);
          piece.b_at = place(sizeof(float), count, off_by == 1 ? 0 : off_by);
          piece.s_at = place(sizeof(float), count, off_by == 2 ? 0 : off_by);
          cases.push_back(piece);
        }
      }
    }
  }
  return at;
}

void fill(const Case& piece, std::byte* memory, std::mt19937& random) {
  for (std::uint32_t i = 0; i < piece.count; ++i) {
    const float c = any_float(random);
    std::memcpy(memory + piece.c_at + i * sizeof c, &c, sizeof c);
    const float b = any_float(random);
    std::memcpy(memory + piece.b_at + i * sizeof b, &b, sizeof b);
    std::byte* const x = memory + piece.x_at + i * size_of(piece.element);
    if (piece.element == Element::f64) {
      const double value = double{any_float(random)} * (1 + 1e-12);
      std::memcpy(x, &value, sizeof value);
    } else {
      const float value = any_float(random);
      // A bfloat16 is the upper half of a float.
      const std::size_t skipped = piece.element == Element::bf16 ? 2 : 0;
      std::memcpy(x, reinterpret_cast<const std::byte*>(&value) + skipped, sizeof value - skipped);
    }
  }
}

/// The bits of element i. All NaN give the same bits, because processors may choose among them.
template <class T, class Bits>
[[nodiscard]] Bits bits_of(const std::byte* at) {
  Bits bits{};
  std::memcpy(&bits, at, sizeof bits);
  if constexpr (std::is_same_v<T, Bfloat16>) {
    return (bits & 0x7fff) > 0x7f80 ? Bits{0x7fff} : bits;
  } else {
    return std::isnan(std::bit_cast<T>(bits)) ? ~Bits{0} : bits;
  }
}
template <class T, class Bits>
[[nodiscard]] bool same(const std::byte* a, const std::byte* b, std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) {
    if (bits_of<T, Bits>(a + i * sizeof(T)) != bits_of<T, Bits>(b + i * sizeof(T))) return false;
  }
  return true;
}
[[nodiscard]] bool same(const Case& piece, const std::byte* a, const std::byte* b) {
  const bool snapshots = same<float, std::uint32_t>(a + piece.s_at, b + piece.s_at, piece.count);
  const std::byte* const x = a + piece.x_at;
  const std::byte* const y = b + piece.x_at;
  switch (piece.element) {
    case Element::f32:
      return snapshots && same<float, std::uint32_t>(x, y, piece.count);
    case Element::f64:
      return snapshots && same<double, std::uint64_t>(x, y, piece.count);
    case Element::bf16:
      return snapshots && same<Bfloat16, std::uint16_t>(x, y, piece.count);
  }
  return false;
}

/// Checks all cases in one launch, in GPU memory or in pinned memory.
std::string pieces_are_as_on_the_processor(const Gpu& gpu, bool in_gpu_memory, bool small) {
  std::mt19937 random(in_gpu_memory ? 1 : 2);
  std::vector<Case> cases;
  const std::size_t bytes = make_cases(cases, random, small);
  const Pinned staging(gpu.plugin, gpu.context, bytes);
  const Pinned words(gpu.plugin, gpu.context, Gpu::limits.publications * sizeof(std::uint64_t));
  const Shared there(gpu.plugin, gpu.context, bytes);
  for (const Case& piece : cases)
    fill(piece, staging.host(), random);
  std::vector<std::byte> expected(staging.host(), staging.host() + bytes);
  for (const Case& piece : cases) {
    if (piece.element == Element::f32) on_processor<float>(piece, expected.data());
    if (piece.element == Element::f64) on_processor<double>(piece, expected.data());
    if (piece.element == Element::bf16) on_processor<Bfloat16>(piece, expected.data());
  }
  std::byte* const memory = in_gpu_memory ? there.base() : staging.device();
  if (in_gpu_memory) gpu.copy(there.base(), staging.device(), bytes);
  std::vector<Piece> pieces;
  std::vector<Publication> publications;
  for (const Case& piece : cases) {
    // Each fragment has several pieces.
    const auto fragment = static_cast<std::uint32_t>(pieces.size() * Gpu::limits.publications / cases.size());
    if (fragment == publications.size())
      publications.push_back({reinterpret_cast<std::uint64_t*>(words.device()) + fragment, 1'000 + fragment});
    pieces.push_back(
        {.x = memory + piece.x_at,
         .correction = piece.mode == Mode::none ? nullptr : reinterpret_cast<const float*>(memory + piece.c_at),
         .snapshot = reinterpret_cast<float*>(memory + piece.s_at),
         .count = piece.count,
         .dither = piece.dither,
         .fragment = fragment,
         .element = piece.element,
         .mode = piece.mode,
         .before = piece.mode == Mode::add_within ? reinterpret_cast<const float*>(memory + piece.b_at) : nullptr});
  }
  if (gpu.launch(pieces, publications) != PassStatus::done) return "busy";
  gpu.wait();
  if (in_gpu_memory) gpu.copy(staging.device(), there.base(), bytes);
  for (std::size_t f = 0; f < publications.size(); ++f) {
    if (reinterpret_cast<const std::uint64_t*>(words.host())[f] != 1'000 + f) return "a word was not stored";
  }
  for (const Case& piece : cases) {
    if (same(piece, staging.host(), expected.data())) continue;
    return "element type " + std::to_string(static_cast<int>(piece.element)) + ", mode " +
           std::to_string(static_cast<int>(piece.mode)) + ", " + std::to_string(piece.count) + " elements at " +
           std::to_string(piece.x_at % 16);
  }
  return "";
}

// ---- many passes

/// When a word is visible, its values are visible, too, although the test waits for the word only.
std::string words_are_stored_last(const Gpu& gpu, bool small) {
  constexpr std::uint32_t count = 50'000;
  const int rounds = small ? 50 : 1'000;
  const Pinned memory(gpu.plugin, gpu.context, page_bytes + 3 * count * sizeof(float));
  auto* const word = reinterpret_cast<std::atomic<std::uint64_t>*>(memory.host());
  const std::size_t x_at = page_bytes;
  const std::size_t c_at = x_at + count * sizeof(float);
  const std::size_t s_at = c_at + count * sizeof(float);
  auto* const correction = reinterpret_cast<float*>(memory.host() + c_at);
  const auto* const snapshot = reinterpret_cast<const float*>(memory.host() + s_at);
  for (int round = 1; round <= rounds; ++round) {
    std::fill(correction, correction + count, static_cast<float>(round));
    const std::vector<Piece> pieces = {{.x = memory.device() + x_at,
                                        .correction = reinterpret_cast<const float*>(memory.device() + c_at),
                                        .snapshot = reinterpret_cast<float*>(memory.device() + s_at),
                                        .count = count,
                                        .dither = 0,
                                        .fragment = 0,
                                        .element = Element::f32,
                                        .mode = Mode::replace}};
    while (gpu.launch(pieces, {{reinterpret_cast<std::uint64_t*>(memory.device()),
                                static_cast<std::uint64_t>(round)}}) == PassStatus::busy)
      std::this_thread::yield();
    const auto until = std::chrono::steady_clock::now() + patience;
    while (word->load(std::memory_order_acquire) != static_cast<std::uint64_t>(round)) {
      if (std::chrono::steady_clock::now() > until) return "a word was not stored in time";
    }
    if (std::any_of(snapshot, snapshot + count, [&](float s) { return s != static_cast<float>(round); }))
      return "a snapshot is older than its word, in round " + std::to_string(round);
  }
  gpu.wait();
  return "";
}

/// More passes than can be under way: some are refused, and none is lost.
std::string a_lack_of_tables_is_told(const Gpu& gpu) {
  constexpr int wanted = 200;
  constexpr std::uint32_t count = 100'000;
  const Shared memory(gpu.plugin, gpu.context, 3 * count * sizeof(float));
  const Pinned result(gpu.plugin, gpu.context, page_bytes + sizeof(float));
  auto* const ones = reinterpret_cast<float*>(result.host());
  *ones = 1;
  for (std::uint32_t i = 0; i < 2; ++i)  // x and its correction begin with 1
    gpu.copy(memory.base() + i * count * sizeof(float), result.device(), sizeof(float));
  for (int launched = 0; launched < wanted;) {
    const std::vector<Piece> pieces = {
        {.x = memory.base(),
         .correction = reinterpret_cast<const float*>(memory.base() + count * sizeof(float)),
         .snapshot = reinterpret_cast<float*>(memory.base() + 2 * count * sizeof(float)),
         .count = count,
         .dither = 0,
         .fragment = 0,
         .element = Element::f32,
         .mode = Mode::add}};
    const std::vector<Publication> publications = {
        {reinterpret_cast<std::uint64_t*>(result.device() + 8), static_cast<std::uint64_t>(launched)}};
    if (gpu.launch(pieces, publications) == PassStatus::done) ++launched;
  }
  gpu.wait();
  gpu.copy(result.device(), memory.base(), sizeof(float));
  return *ones == 1 + wanted ? "" : "the sum is " + std::to_string(*ones);
}

// ---- bandwidth

[[nodiscard]] double seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// A kind of piece that is timed.
struct Kind {
  const char* name;
  Element element;
  std::uint32_t x_bytes;       ///< bytes of an element of x
  std::uint32_t first;         ///< the element of each array that the piece begins with
  double least_share_of_copy;  ///< 0: the share is shown, not judged
};
/// Elements are read one by one where pieces do not begin at a multiple of 16 bytes.
constexpr Kind kinds[] = {
    {"float", Element::f32, 4, 0, 0.85},
    {"float, addresses of 4 bytes", Element::f32, 4, 1, 0},
    {"bfloat16", Element::bf16, 2, 0, 0},
    {"double", Element::f64, 8, 0, 0},
};

void measure(const Gpu& gpu) {
  constexpr std::uint32_t count = 128u << 20;
  constexpr std::size_t bytes = std::size_t{count} * sizeof(float);
  constexpr int rounds = 10;
  // x takes two of the four parts, because its elements may be doubles.
  const Shared memory(gpu.plugin, gpu.context, 4 * bytes);
  const Pinned word(gpu.plugin, gpu.context, page_bytes);
  const auto pass = [&](const Kind& kind) {
    for (int i = 0; i < rounds; ++i) {
      const std::vector<Piece> pieces = {
          {.x = memory.base() + kind.first * kind.x_bytes,
           .correction = reinterpret_cast<const float*>(memory.base() + 2 * bytes) + kind.first,
           .snapshot = reinterpret_cast<float*>(memory.base() + 3 * bytes) + kind.first,
           .count = count - 4,
           .dither = 7,
           .fragment = 0,
           .element = kind.element,
           .mode = Mode::add}};
      while (gpu.launch(pieces, {{reinterpret_cast<std::uint64_t*>(word.device()), 1}}) == PassStatus::busy)
        std::this_thread::yield();
    }
    gpu.wait();
  };
  const auto copy = [&] {
    for (int i = 0; i < rounds; ++i)
      must(gpu.plugin.copy, gpu.context, static_cast<void*>(memory.base()),
           static_cast<const void*>(memory.base() + bytes), std::uint64_t{bytes});
    gpu.wait();
  };
  copy();
  for (const Kind& kind : kinds) {
    pass(kind);
    const std::uint64_t before_ns = gpu.plugin.pass_ns(gpu.context);
    pass(kind);
    const double pass_s = static_cast<double>(gpu.plugin.pass_ns(gpu.context) - before_ns) / 1e9;
    // x is read and written, the correction read, and the snapshot written.
    const double pass_rate = (2.0 * kind.x_bytes + 2 * sizeof(float)) * rounds * count / pass_s / 1e9;
    const double copy_rate = 2.0 * rounds * bytes / seconds(copy) / 1e9;
    std::printf("a pass over %u M elements, %s: %.0f GB/s; the GPU's copy: %.0f GB/s\n", count >> 20, kind.name,
                pass_rate, copy_rate);
    if (kind.least_share_of_copy > 0) {
      row("its bandwidth beside the copy's",
          pass_rate >= kind.least_share_of_copy * copy_rate ? "" : "less than 85 %: the kernel loses time");
    }
  }
}

void check(const Gpu& gpu, bool small) {
  row("all kinds of pieces in GPU memory, bit for bit", pieces_are_as_on_the_processor(gpu, true, small));
  row("all kinds of pieces in pinned memory, bit for bit", pieces_are_as_on_the_processor(gpu, false, small));
  row("words are stored last", words_are_stored_last(gpu, small));
  row("more passes than tables", a_lack_of_tables_is_told(gpu));
  if (!small) measure(gpu);
}

const ClientPluginTable* load(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto entry = reinterpret_cast<cuda::ClientPluginEntry>(dlsym(library, cuda::plugin_symbol));
  if (entry == nullptr || entry()->version != cuda::plugin_version) throw std::runtime_error("not the plug-in");
  return entry();
}

}  // namespace

int main(int argument_count, char** arguments) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // each line is written at once: a hang shows where it is
  const bool small = argument_count == 3 && std::string_view(arguments[2]) == "--small";
  if (argument_count != 2 && !small) {
    std::fprintf(stderr, "usage: client_check PLUGIN [--small]\n");
    return 2;
  }
  try {
    const ClientPluginTable& plugin = *load(arguments[1]);
    int devices = 0;
    for (;; ++devices) {
      char text[512] = "";
      cuda::Context* context = nullptr;
      if (small && devices == 1) break;  // a second fake GPU would show nothing new
      if (plugin.open(devices, Gpu::limits, &context, text, sizeof text) != PassStatus::done) {
        if (devices > 0) break;
        std::printf("SKIPPED: no GPU to check the client's plug-in on: %s\n", text);
        return exit_skipped;
      }
      std::printf("GPU %d\n", devices);
      check(Gpu(plugin, context), small);
      plugin.close(context);
    }
    std::printf(failures == 0 ? "all passed\n" : "%d FAILED\n", failures);
  } catch (const std::exception& error) {
    std::printf("FAILED: %s\n", error.what());
    return 1;
  }
  return failures == 0 ? 0 : 1;
}
