/* Preloaded into a daemon, this makes the system refuse the program that tells marked connections to a port apart, as
 * some sandboxes do. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/socket.h>

int setsockopt(int descriptor, int level, int name, const void* value, socklen_t bytes) {
  int (*const real)(int, int, int, const void*, socklen_t) =
      (int (*)(int, int, int, const void*, socklen_t))dlsym(RTLD_NEXT, "setsockopt");
  if (level == SOL_SOCKET && name == SO_ATTACH_REUSEPORT_CBPF) {
    errno = ENOPROTOOPT;
    return -1;
  }
  return real(descriptor, level, name, value, bytes);
}
