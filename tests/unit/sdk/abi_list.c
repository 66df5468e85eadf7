/* Prints the binary interface of gossamer.h as text: sizes and offsets of its structures, numbers of its enumerations.
 * Compared with the recorded gossamer_1.abi, which may grow at its end and otherwise never changes. */
#include <gossamer.h>
#include <stdio.h>

#define STRUCTURE(type) printf(#type " %zu\n", sizeof(type))
#define FIELD(type, field) printf("  " #field " %zu %zu\n", offsetof(type, field), sizeof(((type*)0)->field))
#define NUMBER(name) printf(#name " %d\n", (int)name)

int main(void) {
  STRUCTURE(gossamer_options);
  FIELD(gossamer_options, size);
  FIELD(gossamer_options, job);
  FIELD(gossamer_options, socket_path);
  FIELD(gossamer_options, fragment_elements);
  FIELD(gossamer_options, flags);
  FIELD(gossamer_options, step_budget_bytes);
  FIELD(gossamer_options, initial_clock_samples);
  FIELD(gossamer_options, memory);
  FIELD(gossamer_options, device);
  FIELD(gossamer_options, stream);
  FIELD(gossamer_options, settings);
  STRUCTURE(gossamer_tensor);
  FIELD(gossamer_tensor, name);
  FIELD(gossamer_tensor, dtype);
  FIELD(gossamer_tensor, role);
  FIELD(gossamer_tensor, dimensions);
  FIELD(gossamer_tensor, reserved);
  FIELD(gossamer_tensor, shape);
  FIELD(gossamer_tensor, data);
  FIELD(gossamer_tensor, reserved_more);
  STRUCTURE(gossamer_run_info);
  FIELD(gossamer_run_info, size);
  FIELD(gossamer_run_info, state);
  FIELD(gossamer_run_info, attached);
  FIELD(gossamer_run_info, clock_samples);
  FIELD(gossamer_run_info, global_clock_samples);
  FIELD(gossamer_run_info, steps);
  FIELD(gossamer_run_info, exchanges);
  FIELD(gossamer_run_info, publications);
  FIELD(gossamer_run_info, neighbours);
  FIELD(gossamer_run_info, fragments_pulled);
  FIELD(gossamer_run_info, fragments);
  FIELD(gossamer_run_info, fragment_elements);
  FIELD(gossamer_run_info, elements);
  FIELD(gossamer_run_info, layout_hash);
  FIELD(gossamer_run_info, attachments);
  FIELD(gossamer_run_info, node_id);
  FIELD(gossamer_run_info, message);
  FIELD(gossamer_run_info, bytes_sent);
  FIELD(gossamer_run_info, bytes_received);
  FIELD(gossamer_run_info, consensus);
  FIELD(gossamer_run_info, age_samples);
  FIELD(gossamer_run_info, unresolved);
  FIELD(gossamer_run_info, quarantines);
  FIELD(gossamer_run_info, period_us);
  FIELD(gossamer_run_info, pulled_bytes);
  FIELD(gossamer_run_info, serving_ns);
  FIELD(gossamer_run_info, client_index);
  FIELD(gossamer_run_info, clients);
  FIELD(gossamer_run_info, window_bytes);
  FIELD(gossamer_run_info, path);
  FIELD(gossamer_run_info, reserved);
  FIELD(gossamer_run_info, trained_samples);
  STRUCTURE(gossamer_finish_info);
  FIELD(gossamer_finish_info, size);
  FIELD(gossamer_finish_info, agreed);
  FIELD(gossamer_finish_info, saver);
  FIELD(gossamer_finish_info, members);
  FIELD(gossamer_finish_info, reserved);
  FIELD(gossamer_finish_info, distance);
  FIELD(gossamer_finish_info, clock_samples);
  STRUCTURE(gossamer_average_options);
  FIELD(gossamer_average_options, size);
  FIELD(gossamer_average_options, name);
  FIELD(gossamer_average_options, at_least);
  FIELD(gossamer_average_options, grace_ms);
  FIELD(gossamer_average_options, timeout_ms);
  STRUCTURE(gossamer_average_info);
  FIELD(gossamer_average_info, size);
  FIELD(gossamer_average_info, of);
  FIELD(gossamer_average_info, joined);
  FIELD(gossamer_average_info, round);

  NUMBER(GOSSAMER_OK);
  NUMBER(GOSSAMER_BAD_ARGUMENT);
  NUMBER(GOSSAMER_UNSUPPORTED);
  NUMBER(GOSSAMER_NO_MEMORY);
  NUMBER(GOSSAMER_SYSTEM_ERROR);
  NUMBER(GOSSAMER_NO_DAEMON);
  NUMBER(GOSSAMER_REJECTED);
  NUMBER(GOSSAMER_TIMEOUT);
  NUMBER(GOSSAMER_BAD_MEMORY);
  NUMBER(GOSSAMER_FORKED);
  NUMBER(GOSSAMER_BUSY);
  NUMBER(GOSSAMER_NOT_LOADED);
  NUMBER(GOSSAMER_NO_DEVICE);
  NUMBER(GOSSAMER_NOT_FINITE);
  NUMBER(GOSSAMER_F32);
  NUMBER(GOSSAMER_F64);
  NUMBER(GOSSAMER_F16);
  NUMBER(GOSSAMER_BF16);
  NUMBER(GOSSAMER_I8);
  NUMBER(GOSSAMER_I16);
  NUMBER(GOSSAMER_I32);
  NUMBER(GOSSAMER_I64);
  NUMBER(GOSSAMER_U8);
  NUMBER(GOSSAMER_BOOL);
  NUMBER(GOSSAMER_PARAM);
  NUMBER(GOSSAMER_BUFFER);
  NUMBER(GOSSAMER_LOCAL);
  NUMBER(GOSSAMER_MEMORY_AUTO);
  NUMBER(GOSSAMER_MEMORY_RESIDENT);
  NUMBER(GOSSAMER_MEMORY_LEAN);
  NUMBER(GOSSAMER_HOST);
  NUMBER(GOSSAMER_CUDA);
  NUMBER(GOSSAMER_PATH_HOST);
  NUMBER(GOSSAMER_PATH_DEVICE);
  NUMBER(GOSSAMER_PATH_PINNED);
  NUMBER(GOSSAMER_DETACHED);
  NUMBER(GOSSAMER_JOINING);
  NUMBER(GOSSAMER_RUNNING);
  NUMBER(GOSSAMER_DRAINING);
  NUMBER(GOSSAMER_QUARANTINED);
  return 0;
}
