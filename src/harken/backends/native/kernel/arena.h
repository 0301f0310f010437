/* Memory that grows and is used again by the next call. */
#ifndef HARKEN_ARENA_H
#define HARKEN_ARENA_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "harken.h"

struct harken_arena {
    char *memory;
    size_t size, used;
};

/* Takes a piece, aligned to 64 bytes; while the arena has no memory it only adds up sizes. */
static inline void *harken_take(struct harken_arena *arena, size_t n, size_t size) {
    void *piece = arena->memory ? arena->memory + arena->used : NULL;
    arena->used += (n * size + 63) / 64 * 64;
    return piece;
}

/* Makes room, and writes an empty arena of that memory to `empty`. Returns 0 or HARKEN_NO_MEMORY. */
static inline int32_t harken_arena_grow(struct harken_arena *arena, size_t needed, struct harken_arena *empty) {
    if (needed > arena->size) {
        char *memory = malloc(needed + 63);
        if (!memory)
            return HARKEN_NO_MEMORY;
        free(arena->memory);
        arena->memory = memory;
        arena->size = needed;
    }
    *empty = *arena;
    empty->memory += -(uintptr_t)arena->memory % 64;
    empty->used = 0;
    return 0;
}

#endif
