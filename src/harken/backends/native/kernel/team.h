/* Threads that work on one call together.
 *
 * A call is a list of phases, each a number of items. Threads take chunks of items as they come, so a thread
 * that the system holds up delays nobody unless it holds a chunk: a phase is over when its items are done, not
 * when all threads have arrived. The thread that calls takes part, and could do everything alone: in a forked
 * process, where the others do not exist, it does. */
#ifndef HARKEN_TEAM_H
#define HARKEN_TEAM_H

#include <stdint.h>

typedef struct harken_team harken_team;

struct harken_phase {
    void (*work)(void *context, int32_t argument, int32_t begin, int32_t end, int32_t thread);
    int32_t argument; /* passed on, such as the number of a layer */
    int32_t items;    /* may be 0 */
    int32_t chunk;    /* items that are taken at once, at least 1; some multiple of it where there are
                       * over 4,095 chunks */
};

/* Return NULL if there is no memory. If fewer threads can be started than asked for, the team has fewer. */
harken_team *harken_team_open(int32_t threads);
void harken_team_close(harken_team *team);
int32_t harken_team_threads(const harken_team *team);

/* Run the phases one after the other; `thread` is 0 for the caller, and below harken_team_threads. */
void harken_team_run(harken_team *team, const struct harken_phase *phases, int32_t n_phases, void *context);

#endif
