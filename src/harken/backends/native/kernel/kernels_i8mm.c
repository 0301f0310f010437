/* ARM64 with the matrix multiplication instructions of ARMv8.6: two rows times two vectors, eight columns at a time. */
#define WITH_MATRIX_PRODUCTS
#include "kernels_dotprod.c"
