/* Random calls of a team of threads, checked item by item. Usage: team_stress CALLS SEED BUSY_PROCESSES
 *
 * Every item is computed from items of the phase before, in memory without locks or atomics: a phase that
 * starts too early, or an item that is done twice or never, changes the result (and is a data race for
 * -fsanitize=thread). */
#include "os_threads.h"
#include "team.h"

#include <float.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#include <windows.h>
#else
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#endif

enum { MOST_THREADS = 8, MOST_PHASES = 700, MOST_ITEMS = 40000 };

/* The checks must not order the threads: that is what is tested. */
#define RELAXED memory_order_relaxed

static uint64_t random_state;

static uint32_t random_below(uint32_t limit)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % limit);
}

static void fail(const char *what)
{
    printf("FAILED: %s\n", what);
    exit(1);
}

static void sleep_two_milliseconds(void)
{
#if defined(_WIN32)
    Sleep(2);
#else
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
#endif
}

/* Do what libraries built with -ffast-math do to the thread that loads them. */
static uint64_t flush_subnormals(void)
{
#if defined(__x86_64__)
    const uint64_t mode = harken_float_mode() | 0x8040;
#elif defined(__aarch64__)
    const uint64_t mode = harken_float_mode() | 1 << 24;
#else
    const uint64_t mode = harken_float_mode();
#endif
    harken_set_float_mode(mode);
    return mode;
}

static void spend_time(uint32_t loops)
{
    for (volatile uint32_t i = 0; i < loops; ++i)
        ;
}

struct call {
    struct harken_phase phases[MOST_PHASES];
    int32_t starts[MOST_PHASES]; /* of a phase's items in the arrays below */
    int32_t n_phases, n_threads;
    uint32_t slowness;
    uint32_t values[MOST_ITEMS], expected[MOST_ITEMS], runs[MOST_ITEMS];
    _Atomic int32_t done[MOST_PHASES];
    atomic_bool busy[MOST_THREADS];
};

static uint32_t item_value(const struct call *call, const uint32_t *values, int32_t phase, int32_t item)
{
    uint32_t value = (uint32_t)(phase * 1000003 + item);
    const int32_t before = phase > 0 ? call->phases[phase - 1].items : 0;
    for (int32_t i = 0; i < 3 && before > 0; ++i)
        value = value * 31 + values[call->starts[phase - 1] + (item * 7 + i * 13) % before];
    return value;
}

static void work(void *context, int32_t number, int32_t begin, int32_t end, int32_t thread)
{
    struct call *call = context;
    const struct harken_phase *phase = &call->phases[number];
    if (thread < 0 || thread >= call->n_threads || atomic_exchange_explicit(&call->busy[thread], true, RELAXED))
        fail("the number of a thread is its own");
    if (begin < 0 || begin >= end || end > phase->items || begin % phase->chunk != 0)
        fail("chunks lie within the items");
    if (number > 0 && atomic_load_explicit(&call->done[number - 1], RELAXED) != call->phases[number - 1].items)
        fail("a phase starts when the one before is over");
    volatile const float smallest_normal = FLT_MIN;
    if (smallest_normal / 2 == 0)
        fail("no thread flushes subnormal numbers to 0");
    for (int32_t item = begin; item < end; ++item) {
        call->values[call->starts[number] + item] = item_value(call, call->values, number, item);
        ++call->runs[call->starts[number] + item];
        if (call->slowness > 0)
            spend_time((uint32_t)(item * 7919 + number) % call->slowness);
    }
    atomic_fetch_add_explicit(&call->done[number], end - begin, RELAXED);
    atomic_store_explicit(&call->busy[thread], false, RELAXED);
}

static void make_call(struct call *call, int32_t n_threads)
{
    const uint32_t kind = random_below(50);
    const uint32_t most_phases = kind == 0 ? MOST_PHASES : 40, most_items = kind == 1 ? 20000 : 50;
    call->n_threads = n_threads;
    call->n_phases = (int32_t)random_below(most_phases + 1);
    call->slowness = kind < 40 ? random_below(200) : random_below(20000) / (1 + (uint32_t)call->n_phases / 4);
    int32_t n_items = 0;
    for (int32_t i = 0; i < call->n_phases; ++i) {
        const uint32_t choice = random_below(10);
        int32_t items = (int32_t)(choice == 0 ? 0 : choice == 1 ? 1 : 1 + random_below(most_items));
        if (items > MOST_ITEMS - n_items)
            items = MOST_ITEMS - n_items;
        const int32_t chunk = (int32_t)(1 + random_below(random_below(2) ? 3 : 60));
        call->phases[i] = (struct harken_phase){.work = work, .argument = i, .items = items, .chunk = chunk};
        call->starts[i] = n_items;
        n_items += items;
        atomic_store(&call->done[i], 0);
        for (int32_t item = 0; item < items; ++item)
            call->expected[call->starts[i] + item] = item_value(call, call->expected, i, item);
    }
    memset(call->values, 0, sizeof call->values[0] * (size_t)n_items);
    memset(call->runs, 0, sizeof call->runs[0] * (size_t)n_items);
}

static void check_call(const struct call *call)
{
    for (int32_t i = 0; i < call->n_phases; ++i)
        for (int32_t item = 0; item < call->phases[i].items; ++item) {
            if (call->runs[call->starts[i] + item] != 1)
                fail("every item is done once");
            if (call->values[call->starts[i] + item] != call->expected[call->starts[i] + item])
                fail("results are those of one thread");
        }
}

static void run_calls(harken_team *team, struct call *call, uint32_t n_calls)
{
    for (uint32_t i = 0; i < n_calls; ++i) {
        make_call(call, harken_team_threads(team));
        harken_team_run(team, call->phases, call->n_phases, call);
        check_call(call);
        if (random_below(20) == 0)
            spend_time(random_below(400000)); /* workers fall asleep */
    }
}

static void note_thread(void *context, int32_t argument, int32_t begin, int32_t end, int32_t thread)
{
    (void)argument, (void)begin, (void)end;
    atomic_bool *seen = context;
    atomic_store(&seen[thread], true);
    sleep_two_milliseconds();
}

/* No thread is lost on the way: all of them take part in calls that are long enough. */
static void find_all_threads(harken_team *team)
{
    atomic_bool seen[MOST_THREADS] = {false};
    const int32_t n_threads = harken_team_threads(team);
    const struct harken_phase phase = {.work = note_thread, .items = 3 * n_threads, .chunk = 1};
    for (int32_t attempt = 0, n_seen = 0; n_seen < n_threads; ++attempt) {
        if (attempt == 200)
            fail("all threads take part");
        harken_team_run(team, &phase, 1, seen);
        n_seen = 0;
        for (int32_t i = 0; i < n_threads; ++i)
            n_seen += atomic_load(&seen[i]);
    }
}

#if defined(_WIN32)

static void run_calls_after_fork(harken_team *team, struct call *call)
{
    (void)team, (void)call;
}

static void start_busy_processes(int32_t n)
{
    (void)n;
}

static void stop_busy_processes(void)
{
}

#else

static void run_calls_after_fork(harken_team *team, struct call *call)
{
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        alarm(20);
        run_calls(team, call, 20);
        harken_team_close(team);
        _exit(0);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        fail("a forked process finishes its calls alone");
}

static pid_t busy_processes[MOST_THREADS];

static void start_busy_processes(int32_t n)
{
    for (int32_t i = 0; i < n && i < MOST_THREADS; ++i) {
        busy_processes[i] = fork();
        if (busy_processes[i] == 0) {
            alarm(60);
            for (;;)
                spend_time(1000000);
        }
    }
}

static void stop_busy_processes(void)
{
    for (int32_t i = 0; i < MOST_THREADS; ++i)
        if (busy_processes[i] > 0) {
            kill(busy_processes[i], SIGKILL);
            waitpid(busy_processes[i], NULL, 0);
        }
}

#endif

int main(int argc, char **argv)
{
    if (argc != 4)
        fail("usage: team_stress CALLS SEED BUSY_PROCESSES");
    const uint32_t n_calls = (uint32_t)atoi(argv[1]);
    random_state = (uint64_t)atoll(argv[2]);
    start_busy_processes(atoi(argv[3]));
    struct call *call = calloc(1, sizeof *call);
    const uint64_t mode = flush_subnormals();
    for (int32_t threads = 1; threads <= MOST_THREADS; ++threads) {
        harken_team_close(harken_team_open(threads)); /* before the workers have run */
        harken_team *team = harken_team_open(threads);
        if (call == NULL || team == NULL || harken_team_threads(team) != threads)
            fail("the team opens");
        run_calls(team, call, n_calls);
        run_calls_after_fork(team, call);
        run_calls(team, call, 5);
        find_all_threads(team);
        harken_team_close(team);
        if (harken_float_mode() != mode)
            fail("the mode of the caller comes back");
    }
    free(call);
    stop_busy_processes();
    printf("passed\n");
    return 0;
}
