/* Makes waits that poll give the processor away, for processes under a user-mode emulator.
 *
 * A compiled graph of Ray waits for its channels by sched_yield, a waiter for each rank, as long as a cluster is up. A
 * machine with a processor to spare does not notice; where two nodes share the two processors of one machine with the
 * ranks that they wait for, nothing else gets on. So who yields many times in a row sleeps for a moment.
 *
 * Built and preloaded in a node's container, only where an emulator runs it; never part of an image.
 */
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const unsigned FREE = 100;      /* yields in a row: locks that are held for a moment spin less */
static const long APART_NS = 5000000;  /* yields this far apart are not in a row */
static const long NAP_NS = 1000000;

static long since(const struct timespec *then, const struct timespec *now) {
    return (now->tv_sec - then->tv_sec) * 1000000000L + now->tv_nsec - then->tv_nsec;
}

int sched_yield(void) {
    static __thread struct timespec last;
    static __thread unsigned in_a_row;
    const struct timespec nap = {0, NAP_NS};
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    in_a_row = since(&last, &now) > APART_NS ? 0 : in_a_row + 1;
    last = now;
    if (in_a_row < FREE)
        return (int)syscall(SYS_sched_yield);
    nanosleep(&nap, NULL);
    clock_gettime(CLOCK_MONOTONIC, &last);
    return 0;
}
