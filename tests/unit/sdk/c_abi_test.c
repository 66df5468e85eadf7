/* That gossamer.h is C99 and the library can be used from it: opens a run without a daemon, steps, asks, closes.
 * Exits with 0 if all is as it should be, else says what is not. */
#include <gossamer.h>
#include <stdio.h>
#include <string.h>

static int failures = 0;

static void check(int condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "failed: %s\n", what);
  ++failures;
}

int main(void) {
  float weights[6] = {1, 2, 3, 4, 5, 6};
  double bias[2] = {0.5, -0.5};
  const uint64_t weights_shape[2] = {2, 3};
  const uint64_t bias_shape[1] = {2};
  gossamer_tensor tensors[2];
  gossamer_options options;
  gossamer_run_info info;
  gossamer_run* run = NULL;
  char message[256] = "";
  int i;

  memset(tensors, 0, sizeof tensors);
  tensors[0].name = "weights";
  tensors[0].dtype = GOSSAMER_F32;
  tensors[0].role = GOSSAMER_PARAM;
  tensors[0].dimensions = 2;
  tensors[0].shape = weights_shape;
  tensors[0].data = weights;
  tensors[1].name = "bias";
  tensors[1].dtype = GOSSAMER_F64;
  tensors[1].role = GOSSAMER_PARAM;
  tensors[1].dimensions = 1;
  tensors[1].shape = bias_shape;
  tensors[1].data = bias;

  gossamer_options_init(&options);
  check(options.size == sizeof options, "options_init sets the size");
  check(gossamer_open(&options, tensors, 2, &run, message, sizeof message) == GOSSAMER_BAD_ARGUMENT, "a job is needed");
  check(strstr(message, "job") != NULL, "the message names the job");
  check(run == NULL, "no run after a failure");

  options.job = "c-abi";
  options.socket_path = "/nonexistent/gossamer.sock";
  check(gossamer_open(&options, tensors, 2, &run, message, sizeof message) == GOSSAMER_OK, "open");
  check(gossamer_wait_ready(run, 10) == GOSSAMER_NO_DAEMON, "no daemon");
  check(strlen(gossamer_last_error(run)) > 0, "last_error explains");
  for (i = 0; i < 100; ++i)
    check(gossamer_step(run, 32) == GOSSAMER_OK, "step");
  memset(&info, 0, sizeof info);
  info.size = sizeof info;
  check(gossamer_info(run, &info) == GOSSAMER_OK, "info");
  check(info.clock_samples == 3200 && info.steps == 100, "the clock counts samples");
  check(info.elements == 8, "elements");
  check(weights[5] == 6 && bias[1] == -0.5, "the tensors are untouched");
  gossamer_close(run);

  check(strcmp(gossamer_status_name(GOSSAMER_BUSY), "GOSSAMER_BUSY") == 0, "status names");
  check(strcmp(gossamer_status_name((gossamer_status)1234), "unknown gossamer_status") == 0, "unknown status");
  check(strlen(gossamer_version()) > 0, "version");
  return failures == 0 ? 0 : 1;
}
