/* A program that loads libgossamer, opens a run, and unloads the library again, with the run closed and with it left
   open: the library's thread is gone before its code is, and nothing is left of it. `unload_test LIBRARY`. In C, so
   that nobody else needs what the library needs. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <gossamer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 20

typedef void (*options_init)(gossamer_options*);
typedef gossamer_status (*open_run)(const gossamer_options*, const gossamer_tensor*, size_t, gossamer_run**, char*,
                                    size_t);
typedef gossamer_status (*step_run)(gossamer_run*, uint64_t);
typedef void (*close_run)(gossamer_run*);

static void fail(const char* what) {
  fprintf(stderr, "%s\n", what);
  exit(1);
}

static int entries(const char* folder) {
  DIR* dir = opendir(folder);
  int count = 0;
  while (readdir(dir) != NULL)
    ++count;
  closedir(dir);
  return count;
}

/* The kernel takes a moment to forget a thread that has been joined. */
static int alone(void) {
  int i;
  for (i = 0; i < 5000 && entries("/proc/self/task") != 3; ++i) /* with "." and ".." */
    usleep(1000);
  return entries("/proc/self/task") == 3;
}

static int mapped(const char* part) {
  char line[1024];
  int found = 0;
  FILE* maps = fopen("/proc/self/maps", "r");
  while (fgets(line, sizeof line, maps) != NULL)
    found += strstr(line, part) != NULL;
  fclose(maps);
  return found;
}

/* dlsym() gives a pointer to data, which ISO C does not convert. */
static void find(void* library, const char* name, void* function) {
  void* address = dlsym(library, name);
  if (address == NULL) fail(name);
  memcpy(function, &address, sizeof address);
}

static void load_and_unload(const char* path, int closes) {
  static float weights[1000];
  const uint64_t shape[] = {1000};
  gossamer_tensor tensor;
  gossamer_options options;
  gossamer_run* run = NULL;
  char error[256] = "";
  options_init init;
  open_run open;
  step_run step;
  close_run close;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) fail(dlerror());
  find(library, "gossamer_options_init", &init);
  find(library, "gossamer_open", &open);
  find(library, "gossamer_step", &step);
  find(library, "gossamer_close", &close);
  init(&options);
  options.job = "unloaded";
  options.socket_path = "/nonexistent/socket";
  memset(&tensor, 0, sizeof tensor);
  tensor.name = "weights";
  tensor.dtype = GOSSAMER_F32;
  tensor.role = GOSSAMER_PARAM;
  tensor.dimensions = 1;
  tensor.shape = shape;
  tensor.data = weights;
  if (open(&options, &tensor, 1, &run, error, sizeof error) != GOSSAMER_OK) fail(error);
  if (step(run, 1) != GOSSAMER_OK) fail("step");
  if (closes) {
    close(run);
    if (!alone()) fail("closing left a thread");
  } else {
    /* A data loader, say: it ends with the run open, and is not kept from it by a thread that is not there. */
    int status = 0;
    const pid_t child = fork();
    if (child == 0) exit(7);
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 7) fail("a child with an open run did not end as it wanted to");
  }
  dlclose(library);
  if (!alone()) fail("unloading left a thread");
  if (mapped("libgossamer") != 0) fail("the library is still there");
}

int main(int argc, char** argv) {
  int i, descriptors = 0;
  if (argc != 2) fail("usage: unload_test LIBRARY");
  for (i = 0; i < ROUNDS; ++i) {
    load_and_unload(argv[1], 1);
    if (i == 0) descriptors = entries("/proc/self/fd");
  }
  if (entries("/proc/self/fd") != descriptors || mapped("memfd:gossamer") != 0) fail("something stayed open");
  for (i = 0; i < ROUNDS; ++i)
    load_and_unload(argv[1], 0);
  alarm(10); /* the end of the program must not wait for anything either */
  return 0;
}
