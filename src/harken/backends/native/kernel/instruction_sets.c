/* The kernels that this processor can run, by name; and what only the best of them does. */
#define _GNU_SOURCE /* syscall */
#include <string.h>

#include "kernels.h"

extern const struct harken_kernels harken_kernels_portable[2];

#if defined(__x86_64__)

#include <cpuid.h>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

extern const struct harken_kernels harken_kernels_amx[2], harken_kernels_avx512vnni[2], harken_kernels_avxvnni[2],
    harken_kernels_avx2[2];

struct cpu {
    uint32_t leaf_1_ecx, leaf_7_ebx, leaf_7_ecx, leaf_7_edx, leaf_7_1_eax, saved; /* saved: registers that the system saves */
};

static struct cpu read_cpu(void) {
    struct cpu cpu = {0};
    uint32_t eax, ebx, ecx, edx;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx))
        cpu.leaf_1_ecx = ecx;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
        cpu.leaf_7_ebx = ebx, cpu.leaf_7_ecx = ecx, cpu.leaf_7_edx = edx;
        if (eax >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx))
            cpu.leaf_7_1_eax = eax;
    }
    if (cpu.leaf_1_ecx & 1u << 27) { /* XGETBV can be used */
        uint32_t lower, upper;
        __asm__("xgetbv" : "=a"(lower), "=d"(upper) : "c"(0));
        cpu.saved = lower;
    }
    return cpu;
}

static int has_avx2(const struct cpu *cpu) {
    uint32_t fma_f16c_avx = 1u << 12 | 1u << 29 | 1u << 28, ymm = 0x6;
    return (cpu->leaf_1_ecx & fma_f16c_avx) == fma_f16c_avx && cpu->leaf_7_ebx & 1u << 5 && (cpu->saved & ymm) == ymm;
}

static int has_avxvnni(const struct cpu *cpu) {
    return has_avx2(cpu) && cpu->leaf_7_1_eax & 1u << 4;
}

static int has_avx512vnni(const struct cpu *cpu) {
    uint32_t f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31, zmm = 0xe6;
    return has_avx2(cpu) && (cpu->leaf_7_ebx & f_dq_bw_vl) == f_dq_bw_vl && cpu->leaf_7_ecx & 1u << 11 &&
           (cpu->saved & zmm) == zmm;
}

/* Linux saves a process's tiles only once it has asked for it; how other systems do is not known here.
 * Source: kernel.org, Documentation/arch/x86/xstate.rst. */
static int has_amx(const struct cpu *cpu) {
    uint32_t tile_int8 = 1u << 24 | 1u << 25, tiles = 3u << 17;
    if (!has_avx512vnni(cpu) || (cpu->leaf_7_edx & tile_int8) != tile_int8 || (cpu->saved & tiles) != tiles)
        return 0;
#if defined(__linux__)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return 0;
#endif
}

static int32_t collect(const struct harken_kernels **to) {
    struct cpu cpu = read_cpu();
    int32_t n = 0;
    if (has_amx(&cpu))
        to[n++] = harken_kernels_amx;
    if (has_avx512vnni(&cpu))
        to[n++] = harken_kernels_avx512vnni;
    if (has_avxvnni(&cpu))
        to[n++] = harken_kernels_avxvnni;
    if (has_avx2(&cpu))
        to[n++] = harken_kernels_avx2;
    return n;
}

#elif defined(__aarch64__)

extern const struct harken_kernels harken_kernels_i8mm[2], harken_kernels_dotprod[2];

#if defined(__linux__)
#include <sys/auxv.h>

static int has_dotprod(void) {
    return (getauxval(AT_HWCAP) & 1ul << 20) != 0; /* HWCAP_ASIMDDP */
}

static int has_i8mm(void) {
    return (getauxval(AT_HWCAP2) & 1ul << 13) != 0; /* HWCAP2_I8MM */
}
#elif defined(__APPLE__)
#include <sys/sysctl.h>

static int has_feature(const char *name) {
    int has = 0;
    size_t size = sizeof has;
    return sysctlbyname(name, &has, &size, NULL, 0) == 0 && has;
}

static int has_dotprod(void) {
    return has_feature("hw.optional.arm.FEAT_DotProd");
}

static int has_i8mm(void) {
    return has_feature("hw.optional.arm.FEAT_I8MM");
}
#elif defined(_WIN32)
#include <windows.h>

static int has_dotprod(void) {
    return IsProcessorFeaturePresent(PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE) != 0;
}

static int has_i8mm(void) {
    return IsProcessorFeaturePresent(PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE) != 0;
}
#else
static int has_dotprod(void) {
    return 0;
}

static int has_i8mm(void) {
    return 0;
}
#endif

static int32_t collect(const struct harken_kernels **to) {
    int32_t n = 0;
    if (has_dotprod() && has_i8mm())
        to[n++] = harken_kernels_i8mm;
    if (has_dotprod())
        to[n++] = harken_kernels_dotprod;
    return n;
}

#else

static int32_t collect(const struct harken_kernels **to) {
    (void)to;
    return 0;
}

#endif

struct harken_supported harken_supported_kernels(void) {
    struct harken_supported supported = {0};
    supported.n = collect(supported.list);
    supported.list[supported.n++] = harken_kernels_portable;
    return supported;
}

void harken_instruction_sets(char names[HARKEN_NAMES_BYTES]) {
    struct harken_supported supported = harken_supported_kernels();
    *names = 0;
    for (int32_t i = 0; i < supported.n; i++) {
        strcat(names, i ? " " : "");
        strcat(names, supported.list[i]->name);
    }
}

/* Log-mel spectrograms need no decoder. Nothing is fused, so all instruction sets give the same bits. */
void harken_log_mel(const struct harken_mel_tables *tables, const float *samples, int32_t n_frames, float *log_mel,
                    int64_t stride) {
    harken_supported_kernels().list[0]->log_mel(tables, samples, n_frames, log_mel, stride);
}

void harken_silero_probabilities(const struct harken_silero *weights, const float *samples, int32_t n_chunks,
                                 float *state, float *probabilities) {
    harken_supported_kernels().list[0]->silero_probabilities(weights, samples, n_chunks, state, probabilities);
}
