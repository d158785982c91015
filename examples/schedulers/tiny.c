/* What stands for a scheduler's library: it says that it was loaded, and schedules nothing.
 * cc -shared -fPIC -o libtiny.so tiny.c
 */
#include <stdio.h>
#include <stdlib.h>

int tiny_answer(void) { return 42; }

__attribute__((constructor)) static void loaded(void) {
    const char *priority = getenv("TINY_PRIORITY");
    fprintf(stderr, "tiny scheduler in charge, priority %s\n", priority ? priority : "unknown");
}
