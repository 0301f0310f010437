/* Small numbers of things. */
#ifndef HARKEN_COUNTS_H
#define HARKEN_COUNTS_H

#include <stdint.h>

enum { HARKEN_BLOCK_ROWS = 48 }; /* positions of an item: whole tiles of rows, which share each weight that is read */

static inline int32_t min(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static inline int32_t max(int32_t a, int32_t b) {
    return a > b ? a : b;
}

/* The number of parts of some size, of which the last may be smaller. */
static inline int32_t parts(int32_t n, int32_t size) {
    return (n + size - 1) / size;
}

#endif
