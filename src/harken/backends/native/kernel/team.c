/* One atomic word says where the call stands: which phase is in progress, how many of its chunks are taken and how many
 * are done. Finishing a chunk and taking the next one, of the same phase or of the next, is one compare-and-swap.
 *
 * Phases are numbered through all calls. So the word never has the same value twice, and a thread that was held up
 * between looking at it and swapping it can only fail. A thread that holds a chunk keeps its phase, and so the call,
 * from ending: whoever holds one may read the phase, everyone else looks only at the number of its chunks. */
#include "team.h"

#include "os_threads.h"

#include <stdlib.h>

enum {
    CHUNK_BITS = 12, /* 40 bits number the phases: they repeat after half a year of a microsecond each */
    MOST_CHUNKS = (1 << CHUNK_BITS) - 1,
    RING = 256,               /* phases that the team can keep; longer calls are run in parts */
    MOST_PHASES = RING - 2,   /* the ring holds the end of the call before and of this one too */
    LINE_BYTES = 128,         /* two cache lines, as some processors fetch them in pairs */
    SPINS_PER_LOOK = 16,      /* at the clock */
    SPIN_BETWEEN_CALLS_NS = 200 * 1000,
    SPIN_IN_CALL_NS = 50 * 1000,
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

/* Wake the workers if there is something to share, the caller for everything. */
static void announce(harken_team *team, uint32_t chunks)
{
    if (chunks > 1)
        harken_bell_ring(&team->workers_bell);
    if (chunks != 1)
        harken_bell_ring(&team->caller_bell);
}

/* Finish the chunk that is held, if one is, and take the next if there is one. Return whether one was taken: it is the
 * last of those taken in *position, which is the value that the caller saw last on entry.
 *
 * Swaps acquire what the chunks before have written, release what this one has, and are ordered with the bells. */
static bool take_next(harken_team *team, uint64_t *position, bool held)
{
    for (;;) {
        const uint64_t phase = phase_of(*position);
        const uint32_t chunks = chunks_of(team, phase), taken = taken_of(*position);
        const uint32_t done = done_of(*position) + held;
        uint64_t next;
        bool takes = true, ends = false;
        if (taken < chunks) {
            next = position_of(phase, taken + 1, done);
        } else if (!held) {
            return false;
        } else if (done < chunks) {
            next = position_of(phase, taken, done);
            takes = false;
        } else {
            ends = true;
            takes = chunks_of(team, phase + 1) > 0;
            next = position_of(phase + 1, takes, 0);
        }
        if (atomic_compare_exchange_weak(&team->position, position, next)) {
            *position = next;
            if (ends)
                announce(team, chunks_of(team, phase + 1));
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

/* Without a chunk to take, the caller waits for the end of the call, a worker for the end of the team. */
static bool must_wait(harken_team *team, uint64_t position, int32_t thread)
{
    const uint32_t chunks = chunks_of(team, phase_of(position));
    if (taken_of(position) < chunks)
        return false;
    return thread == 0 ? chunks > 0 : !atomic_load_explicit(&team->closing, memory_order_relaxed);
}

static void sleep_by(harken_team *team, struct harken_bell *bell, int32_t thread)
{
    const uint32_t expected = harken_bell_expect(bell);
    if (must_wait(team, atomic_load(&team->position), thread)) /* in one order with swaps and bells */
        harken_bell_wait(bell, expected);
}

/* Return the position as soon as there is something to take or nothing to wait for. */
static uint64_t wait(harken_team *team, int32_t thread)
{
    struct harken_bell *bell = thread == 0 ? &team->caller_bell : &team->workers_bell;
    int64_t start = 0;
    for (uint32_t spins = 0;; ++spins) {
        const uint64_t position = atomic_load_explicit(&team->position, memory_order_acquire);
        if (!must_wait(team, position, thread))
            return position;
        harken_pause();
        if (spins % SPINS_PER_LOOK == 0) {
            const int64_t now = harken_nanoseconds();
            const bool idle = chunks_of(team, phase_of(position)) == 0;
            if (start == 0) {
                start = now;
            } else if (now - start > (idle ? SPIN_BETWEEN_CALLS_NS : SPIN_IN_CALL_NS)) {
                sleep_by(team, bell, thread);
                start = 0;
            }
        }
    }
}

/* Take part until there is nothing to wait for. */
static void take_part(harken_team *team, uint64_t position, bool held, int32_t thread)
{
    for (;;) {
        while (held) {
            work_on_chunk(team, position, thread);
            held = take_next(team, &position, true);
        }
        position = wait(team, thread);
        held = take_next(team, &position, false);
        if (!held && !must_wait(team, position, thread))
            return;
    }
}

static void work(void *argument)
{
    const struct worker *worker = argument;
    take_part(worker->team, atomic_load(&worker->team->position), false, worker->number);
}

/* Write the phases that have items behind the last one; return how many. `shared` is set if workers can help. */
static uint32_t write_phases(harken_team *team, uint64_t first, const struct harken_phase *phases, int32_t n_phases,
                             bool *shared)
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
    team->context = context;
    for (int32_t i = 0; i < n_phases; i += MOST_PHASES)
        run_part(team, phases + i, n_phases - i < MOST_PHASES ? n_phases - i : MOST_PHASES);
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
