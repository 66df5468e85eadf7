// The C ABI of gossamer.h. Arguments are checked here, and nothing thrown leaves this file. The run itself is in
// client_run.hpp.

#include <gossamer.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "sdk/c/average_memory.hpp"
#include "sdk/c/client_run.hpp"

using namespace gossamer::client;

namespace {

/// The size of a structure's first version, which every program passes at least.
constexpr std::size_t first_options_bytes = offsetof(gossamer_options, memory);
constexpr std::size_t first_average_bytes = offsetof(gossamer_average_options, layout);
constexpr std::size_t first_average_info_bytes = offsetof(gossamer_average_info, waits_for);
constexpr std::size_t first_info_bytes = offsetof(gossamer_run_info, bytes_sent);

/// A program that was built with an earlier version gets the defaults for the options that it does not know.
[[nodiscard]] gossamer_options whole_options(const gossamer_options& options) {
  gossamer_options whole{};
  std::memcpy(&whole, &options, options.size);
  return whole;
}

/// The program knows a ClientRun as an opaque gossamer_run.
[[nodiscard]] ClientRun& run_of(gossamer_run* run) {
  return *reinterpret_cast<ClientRun*>(run);
}

/// Calls `function` with the run unless the run belongs to another process, and turns exceptions into a status.
template <class Function>
gossamer_status call(gossamer_run* run, Function&& function) noexcept {
  if (run == nullptr) return GOSSAMER_BAD_ARGUMENT;
  ClientRun& own = run_of(run);
  if (own.in_child()) [[unlikely]]
    return GOSSAMER_FORKED;
  try {
    return own.report(function(own));
  } catch (const std::bad_alloc&) {
    return GOSSAMER_NO_MEMORY;
  } catch (...) {
    return GOSSAMER_SYSTEM_ERROR;
  }
}

}  // namespace

extern "C" {

void gossamer_options_init(gossamer_options* options) {
  if (options == nullptr) return;
  *options = {};
  options->size = sizeof *options;
}

gossamer_status gossamer_open(const gossamer_options* options, const gossamer_tensor* tensors, size_t tensor_count,
                              gossamer_run** run, char* error, size_t error_bytes) {
  if (run == nullptr) return GOSSAMER_BAD_ARGUMENT;
  *run = nullptr;
  ClientError problem{GOSSAMER_BAD_ARGUMENT, ""};
  try {
    if (options == nullptr || options->size < first_options_bytes || options->size > sizeof *options) {
      problem.message = "options are missing or of another version of this library: call gossamer_options_init() first";
    } else if (tensors == nullptr) {
      problem.message = "no tensors given";
    } else if (auto opened = ClientRun::open(whole_options(*options), {tensors, tensor_count}); opened) {
      *run = reinterpret_cast<gossamer_run*>(opened->release());
      return GOSSAMER_OK;
    } else {
      problem = std::move(opened.error());
    }
  } catch (const std::bad_alloc&) {
    problem = {GOSSAMER_NO_MEMORY, "out of memory"};
  } catch (const std::exception& exception) {
    problem = {GOSSAMER_SYSTEM_ERROR, exception.what()};
  }
  copy_text(problem.message, error, error_bytes);
  return problem.status;
}

gossamer_status gossamer_wait_ready(gossamer_run* run, int64_t timeout_ms) {
  return call(run, [&](ClientRun& own) { return own.wait_ready(timeout_ms); });
}

gossamer_status gossamer_step(gossamer_run* run, uint64_t samples) {
  return call(run, [&](ClientRun& own) { return own.step(samples); });
}

gossamer_status gossamer_count_step(gossamer_run* run, uint64_t samples) {
  bool due = false;
  const gossamer_status status = call(run, [&](ClientRun& own) -> Result<void> {
    const auto counted = own.count_step(samples);
    if (!counted) return std::unexpected(counted.error());
    due = *counted;
    return {};
  });
  return due ? GOSSAMER_DUE : status;
}

gossamer_status gossamer_serve_due(gossamer_run* run) {
  return call(run, [](ClientRun& own) { return own.serve_due(); });
}

gossamer_status gossamer_info(gossamer_run* run, gossamer_run_info* info) {
  return call(run, [&](ClientRun& own) -> Result<void> {
    if (info == nullptr || info->size < first_info_bytes || info->size > sizeof *info) {
      return fail(GOSSAMER_BAD_ARGUMENT, "set info.size to sizeof(gossamer_run_info) before the call");
    }
    gossamer_run_info whole{};
    whole.size = info->size;
    own.info(whole);
    std::memcpy(info, &whole, info->size);
    return {};
  });
}

gossamer_status gossamer_set_tensor_data(gossamer_run* run, size_t index, void* data) {
  return call(run, [&](ClientRun& own) { return own.set_tensor_data(index, data); });
}

gossamer_status gossamer_set_stream(gossamer_run* run, void* stream) {
  return call(run, [&](ClientRun& own) { return own.set_stream(stream); });
}

gossamer_status gossamer_set_transfer(gossamer_run* run, gossamer_load load, gossamer_store store, void* context) {
  return call(run, [&](ClientRun& own) { return own.set_transfer(load, store, context); });
}

gossamer_status gossamer_set_cursor(gossamer_run* run, const void* bytes, size_t length) {
  return call(run, [&](ClientRun& own) -> Result<void> {
    if (bytes == nullptr && length > 0) return fail(GOSSAMER_BAD_ARGUMENT, "the cursor is NULL");
    return own.set_cursor({static_cast<const std::byte*>(bytes), length});
  });
}

gossamer_status gossamer_get_cursor(gossamer_run* run, void* buffer, size_t size, size_t* length) {
  return call(run, [&](ClientRun& own) -> Result<void> {
    if (length == nullptr) return fail(GOSSAMER_BAD_ARGUMENT, "length is NULL");
    return own.get_cursor({static_cast<std::byte*>(buffer), size}, *length);
  });
}

gossamer_status gossamer_log(gossamer_run* run, const char* name, double value) {
  return call(run, [&](ClientRun& own) -> Result<void> {
    if (name == nullptr) return fail(GOSSAMER_BAD_ARGUMENT, "the name is NULL");
    return own.log(name, value);
  });
}

gossamer_status gossamer_logged(gossamer_run* run, const char* name, double* value, double* mean, uint32_t* nodes) {
  return call(run, [&](ClientRun& own) -> Result<void> {
    if (name == nullptr || value == nullptr || mean == nullptr || nodes == nullptr)
      return fail(GOSSAMER_BAD_ARGUMENT, "an argument is NULL");
    return own.logged(name, *value, *mean, *nodes);
  });
}

gossamer_status gossamer_members(gossamer_run* run, uint8_t (*ids)[16], size_t capacity, size_t* count) {
  return call(run, [&](ClientRun& own) -> Result<void> {
    if (count == nullptr || (ids == nullptr && capacity > 0))
      return fail(GOSSAMER_BAD_ARGUMENT, "ids or count is NULL");
    const std::vector<std::byte> members = own.members();
    *count = members.size() / sizeof *ids;
    const std::size_t told_bytes = std::min(*count, capacity) * sizeof *ids;
    if (told_bytes > 0) std::memcpy(ids, members.data(), told_bytes);
    return {};
  });
}

gossamer_status gossamer_finish(gossamer_run* run, int64_t timeout_ms, gossamer_finish_info* info) {
  return call(run, [&](ClientRun& own) -> Result<void> {
    if (info != nullptr && info->size != sizeof *info) {
      return fail(GOSSAMER_BAD_ARGUMENT, "set info.size to sizeof(gossamer_finish_info) before the call");
    }
    gossamer_finish_info found{};
    auto result = own.finish(timeout_ms, found);
    if (info != nullptr) {
      *info = found;
      info->size = sizeof *info;
    }
    return result;
  });
}

gossamer_status gossamer_average(gossamer_run* run, float* values, size_t count,
                                 const gossamer_average_options* options, gossamer_average_info* info) {
  return call(run, [&](ClientRun& own) -> Result<void> {
    if (values == nullptr || count == 0) return fail(GOSSAMER_BAD_ARGUMENT, "there are no values to average");
    gossamer_average_options given{};
    given.timeout_ms = -1;
    const bool known = options == nullptr || options->size == sizeof given || options->size == first_average_bytes;
    const bool knows_info = info == nullptr || info->size == sizeof *info || info->size == first_average_info_bytes;
    if (!known || !knows_info) return fail(GOSSAMER_BAD_ARGUMENT, "set `size` to the structure's before the call");
    if (options != nullptr) std::memcpy(&given, options, options->size);
    if (given.reserved != 0) return fail(GOSSAMER_BAD_ARGUMENT, "the reserved field must be zero");
    gossamer_average_info found{};
    auto result = own.average({values, count}, given, found);
    if (info != nullptr) {
      if (!result && result.error().status != GOSSAMER_TIMEOUT) found = {};
      found.size = info->size;
      std::memcpy(info, &found, info->size);
    }
    return result;
  });
}

gossamer_status gossamer_average_leave(gossamer_run* run, const char* name) {
  return call(run, [&](ClientRun& own) -> Result<void> {
    own.leave_average(name);
    return {};
  });
}

float* gossamer_average_memory(size_t count) {
  try {
    constexpr std::size_t most = gossamer::layout::max_average_elements;
    auto memory = count == 0 || count > most ? fail(GOSSAMER_BAD_ARGUMENT, "") : AverageMemory::make(count);
    if (!memory) return nullptr;
    AverageMemory::keep(*memory);
    return (*memory)->values().data();
  } catch (...) {
    return nullptr;
  }
}

void gossamer_average_memory_free(float* values) {
  AverageMemory::forget(values);
}

void gossamer_close(gossamer_run* run) {
  if (run == nullptr) return;
  if (run_of(run).in_child()) {
    run_of(run).abandon();
  } else {
    (void)call(run, [&](ClientRun& own) -> Result<void> {
      own.serve_the_last();
      return {};
    });
  }
  delete &run_of(run);
}

const char* gossamer_last_error(const gossamer_run* run) {
  return run == nullptr ? "" : reinterpret_cast<const ClientRun*>(run)->last_error();
}

const char* gossamer_status_name(gossamer_status status) {
  switch (status) {
    case GOSSAMER_OK:
      return "GOSSAMER_OK";
    case GOSSAMER_BAD_ARGUMENT:
      return "GOSSAMER_BAD_ARGUMENT";
    case GOSSAMER_UNSUPPORTED:
      return "GOSSAMER_UNSUPPORTED";
    case GOSSAMER_NO_MEMORY:
      return "GOSSAMER_NO_MEMORY";
    case GOSSAMER_SYSTEM_ERROR:
      return "GOSSAMER_SYSTEM_ERROR";
    case GOSSAMER_NO_DAEMON:
      return "GOSSAMER_NO_DAEMON";
    case GOSSAMER_REJECTED:
      return "GOSSAMER_REJECTED";
    case GOSSAMER_TIMEOUT:
      return "GOSSAMER_TIMEOUT";
    case GOSSAMER_BAD_MEMORY:
      return "GOSSAMER_BAD_MEMORY";
    case GOSSAMER_FORKED:
      return "GOSSAMER_FORKED";
    case GOSSAMER_BUSY:
      return "GOSSAMER_BUSY";
    case GOSSAMER_NOT_LOADED:
      return "GOSSAMER_NOT_LOADED";
    case GOSSAMER_NO_DEVICE:
      return "GOSSAMER_NO_DEVICE";
    case GOSSAMER_NOT_FINITE:
      return "GOSSAMER_NOT_FINITE";
    case GOSSAMER_INTERRUPTED:
      return "GOSSAMER_INTERRUPTED";
    case GOSSAMER_DUE:
      return "GOSSAMER_DUE";
  }
  return "unknown gossamer_status";
}

const char* gossamer_version(void) {
  return GOSSAMER_VERSION_TEXT;
}

}  // extern "C"
