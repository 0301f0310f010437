/* One atomic word says where the call stands: which phase is in progress, how many of its chunks are taken and
 * how many are done. Finishing a chunk and taking the next one, of the same phase or of the next, is one
 * compare-and-swap.
 *
 * Phases are numbered through all calls. So the word never has the same value twice, and a thread that was held
 * up between looking at it and swapping it can only fail. A thread that holds a chunk keeps its phase, and so
 * the call, from ending: whoever holds one may read the phase, everyone else looks only at the number of its
 * chunks. */
#include "os_threads.h" /* first: it asks for more of the system's headers */

#include <stdlib.h>

#include "team.h"

enum {
    CHUNK_BITS = 12, /* 40 bits number the phases: of ten microseconds each, they last four months */
    MOST_CHUNKS = (1 << CHUNK_BITS) - 1,
    RING = 256,             /* phases that the team can keep; longer calls are run in parts */
    MOST_PHASES = RING - 2, /* the ring also holds the end of the call before, and of this one */
    LINE_BYTES = 128,       /* two cache lines, as some processors fetch them in pairs */
    SPINS_PER_LOOK = 16,    /* at the clock */
    SPIN_NS = 3 * 1000,     /* then yield: whoever is waited for may be waiting for this core */
    AWAKE_NS = 3000 * 1000, /* then sleep: longer than a caller takes from one call to the next, also beside other work */
};

struct worker {
    harken_team *team;
    int32_t number;
    struct harken_thread thread;
};

struct harken_team {
    char before[LINE_BYTES];
    _Atomic uint64_t position;
    atomic_bool closing;
    char between[LINE_BYTES];
    struct harken_bell workers_bell, caller_bell;
    char behind[LINE_BYTES];

    /* The phase of number n is at n % RING. No chunks: there is no such phase yet, all before it are over. */
    _Atomic uint16_t chunks[RING];
    struct harken_phase phases[RING];
    void *context;

    int32_t n_workers;
    struct worker *workers;
};

/* The team that began a call last. Workers of another leave it the cores when their own call is over: those of a model,
 * while its assistant drafts. */
static _Atomic(const harken_team *) team_at_work;

static uint64_t position_of(uint64_t phase, uint32_t taken, uint32_t done)
{
    return phase << 2 * CHUNK_BITS | (uint64_t)taken << CHUNK_BITS | done;
}

static uint64_t phase_of(uint64_t position)
{
    return position >> 2 * CHUNK_BITS;
}

static uint32_t taken_of(uint64_t position)
{
    return position >> CHUNK_BITS & MOST_CHUNKS;
}

static uint32_t done_of(uint64_t position)
{
    return position & MOST_CHUNKS;
}

/* Relaxed: a count of a later call can be read only where the swap of the position is going to fail. */
static uint32_t chunks_of(harken_team *team, uint64_t phase)
{
    return atomic_load_explicit(&team->chunks[phase % RING], memory_order_relaxed);
}

/* Wake those who sleep through a call: for chunks to share, and the caller for the end. */
static void announce(harken_team *team, uint32_t chunks)
{
    if (chunks > 1)
        harken_bell_ring(&team->workers_bell);
    if (chunks != 1)
        harken_bell_ring(&team->caller_bell);
}

/* Finish the chunk that is held, if one is, and take the next if there is one. Return whether one was taken: it
 * is the last of those taken in *position, which is on entry the position as this thread saw it last.
 *
 * Swaps acquire what earlier chunks have written, release what this one has, and are in one order with the
 * bells. */
static bool take_next(harken_team *team, uint64_t *position, bool held)
{
    for (;;) {
        const uint64_t phase = phase_of(*position);
        const uint32_t chunks = chunks_of(team, phase), following = chunks_of(team, phase + 1);
        const uint32_t taken = taken_of(*position), done = done_of(*position) + held;
        const bool ends = held && done == chunks;
        const bool takes = ends ? following > 0 : taken < chunks;
        if (!held && !takes)
            return false;
        const uint64_t next = ends ? position_of(phase + 1, takes, 0) : position_of(phase, taken + takes, done);
        if (atomic_compare_exchange_weak(&team->position, position, next)) {
            *position = next;
            if (ends)
                announce(team, following);
            return takes;
        }
    }
}

static void work_on_chunk(harken_team *team, uint64_t position, int32_t thread)
{
    const struct harken_phase *phase = &team->phases[phase_of(position) % RING];
    const int32_t begin = (int32_t)(taken_of(position) - 1) * phase->chunk;
    const int32_t end = phase->items - begin > phase->chunk ? begin + phase->chunk : phase->items;
    phase->work(team->context, phase->argument, begin, end, thread);
}

/* The caller stays until the call is over, a worker until the team is closed (in one order with the bells). */
static bool may_leave(harken_team *team, uint64_t position, int32_t thread)
{
    return thread == 0 ? chunks_of(team, phase_of(position)) == 0 : atomic_load(&team->closing);
}

static bool must_wait(harken_team *team, uint64_t position, int32_t thread)
{
    return taken_of(position) >= chunks_of(team, phase_of(position)) && !may_leave(team, position, thread);
}

static void sleep_until_rung(harken_team *team, int32_t thread)
{
    struct harken_bell *bell = thread == 0 ? &team->caller_bell : &team->workers_bell;
    const uint32_t expected = harken_bell_expect(bell);
    if (must_wait(team, atomic_load(&team->position), thread)) /* in one order with swaps and bells */
        harken_bell_wait(bell, expected);
}

/* Return the position once there is a chunk to take, or nothing to stay for. Spin, then yield, then sleep. */
static uint64_t wait_for_chunk(harken_team *team, int32_t thread)
{
    int64_t start = harken_nanoseconds();
    for (uint32_t spins = 1;; ++spins) {
        const uint64_t position = atomic_load_explicit(&team->position, memory_order_acquire);
        if (!must_wait(team, position, thread))
            return position;
        harken_pause();
        if (spins % SPINS_PER_LOOK != 0)
            continue;
        const int64_t waited = harken_nanoseconds() - start;
        const bool idle = chunks_of(team, phase_of(position)) == 0; /* between two calls */
        if (waited > AWAKE_NS || (idle && atomic_load_explicit(&team_at_work, memory_order_relaxed) != team)) {
            sleep_until_rung(team, thread);
            start = harken_nanoseconds();
        } else if (waited > SPIN_NS) {
            harken_yield();
        }
    }
}

static void take_part(harken_team *team, uint64_t position, bool held, int32_t thread)
{
    for (;;) {
        while (held) {
            work_on_chunk(team, position, thread);
            held = take_next(team, &position, true);
        }
        position = wait_for_chunk(team, thread);
        held = take_next(team, &position, false);
        if (!held && may_leave(team, position, thread))
            return;
    }
}

static void work(void *argument)
{
    const struct worker *worker = argument;
    harken_set_float_mode(HARKEN_STANDARD_FLOATS);
    take_part(worker->team, atomic_load(&worker->team->position), false, worker->number);
}

/* Write the phases that have items to the ring and return their number. Set *shared if workers can help. */
static uint32_t write_phases(harken_team *team, uint64_t first, const struct harken_phase *phases,
                             int32_t n_phases, bool *shared)
{
    uint32_t n = 0;
    for (int32_t i = 0; i < n_phases; ++i) {
        struct harken_phase phase = phases[i];
        if (phase.items <= 0)
            continue;
        /* Chunks that would be too many to count are made a multiple of what was asked for. */
        const int64_t most = (int64_t)phase.chunk * MOST_CHUNKS;
        phase.chunk *= (int32_t)((phase.items + most - 1) / most);
        const uint32_t chunks = (uint32_t)((phase.items - 1) / phase.chunk) + 1;
        *shared |= chunks > 1;
        team->phases[(first + n) % RING] = phase;
        atomic_store_explicit(&team->chunks[(first + n) % RING], (uint16_t)chunks, memory_order_relaxed);
        ++n;
    }
    atomic_store_explicit(&team->chunks[(first + n) % RING], 0, memory_order_relaxed);
    return n;
}

static void run_part(harken_team *team, const struct harken_phase *phases, int32_t n_phases)
{
    const uint64_t first = phase_of(atomic_load_explicit(&team->position, memory_order_relaxed)) + 1;
    bool shared = false;
    if (write_phases(team, first, phases, n_phases, &shared) == 0)
        return;
    const uint64_t position = position_of(first, 1, 0); /* the first chunk is taken with it */
    atomic_exchange(&team->position, position);         /* releases the phases; in one order with the bells */
    if (shared)
        harken_bell_ring(&team->workers_bell);
    take_part(team, position, true, 0);
}

void harken_team_run(harken_team *team, const struct harken_phase *phases, int32_t n_phases, void *context)
{
    const uint64_t mode_of_caller = harken_float_mode();
    harken_set_float_mode(HARKEN_STANDARD_FLOATS);
    atomic_store_explicit(&team_at_work, team, memory_order_relaxed);
    team->context = context;
    for (int32_t i = 0; i < n_phases; i += MOST_PHASES)
        run_part(team, phases + i, n_phases - i < MOST_PHASES ? n_phases - i : MOST_PHASES);
    harken_set_float_mode(mode_of_caller);
}

int32_t harken_team_threads(const harken_team *team)
{
    return team->n_workers + 1;
}

harken_team *harken_team_open(int32_t threads)
{
    harken_team *team = calloc(1, sizeof *team);
    struct worker *workers = calloc((size_t)(threads > 1 ? threads : 1), sizeof *workers);
    if (team == NULL || workers == NULL || !harken_bell_open(&team->workers_bell)) {
        free(workers);
        free(team);
        return NULL;
    }
    if (!harken_bell_open(&team->caller_bell)) {
        harken_bell_close(&team->workers_bell);
        free(workers);
        free(team);
        return NULL;
    }
    team->workers = workers;
    for (int32_t number = 1; number < threads; ++number) {
        struct worker *worker = &workers[number - 1];
        *worker = (struct worker){.team = team, .number = number};
        if (!harken_thread_start(&worker->thread, work, worker))
            break;
        team->n_workers = number;
    }
    return team;
}

void harken_team_close(harken_team *team)
{
    if (team == NULL)
        return;
    atomic_store(&team->closing, true);
    harken_bell_ring(&team->workers_bell);
    for (int32_t i = 0; i < team->n_workers; ++i)
        harken_thread_join(&team->workers[i].thread);
    harken_bell_close(&team->workers_bell);
    harken_bell_close(&team->caller_bell);
    free(team->workers);
    free(team);
}
