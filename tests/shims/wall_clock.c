/* Preloaded into a program, shows it another date: SKALD_TEST_CLOCK_SECS is added to what the wall clock says. Clocks that
 * only run are left alone. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(clock, now);
  const char *offset = getenv("SKALD_TEST_CLOCK_SECS");
  if (!failed && clock == CLOCK_REALTIME && offset) now->tv_sec += atoll(offset);
  return failed;
}
