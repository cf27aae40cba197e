/*
 * platform.h: all that portable code asks of the machine. arch/x86/platform.c implements it on
 * hardware, tests/fake/platform.c in hosted tests; the linker chooses, never the preprocessor.
 * Every function may be called on any core unless it says otherwise.
 */
#ifndef QUELL_ARCH_PLATFORM_H
#define QUELL_ARCH_PLATFORM_H

#include "arch/types.h"
#include <stdarg.h>

/* Device registers at a host-physical (identity-mapped) address; exactly one access of that width. */
uint32_t plat_mmio_read32(const volatile void *reg);
uint64_t plat_mmio_read64(const volatile void *reg);
void plat_mmio_write32(volatile void *reg, uint32_t value);
void plat_mmio_write64(volatile void *reg, uint64_t value);

/* Maps a device's register window uncached. Boot core, before other cores start. NULL: no memory. */
volatile void *plat_mmio_map(hpa_t base_hpa, uint64_t len_bytes);

/* I/O ports, width_bytes 1, 2 or 4. */
uint32_t plat_io_read(uint16_t port, unsigned width_bytes);
void plat_io_write(uint16_t port, unsigned width_bytes, uint32_t value);

/*
 * Zeroed memory that lives until power-off, contiguous in host-physical space, aligned to
 * align_bytes (a power of two, >= 8). Boot core, start-up only. NULL: none left.
 */
void *plat_mem_alloc(uint64_t len_bytes, uint64_t align_bytes);

/* Host-physical address of memory that plat_mem_alloc gave; a device can be told of it. */
hpa_t plat_hpa(const void *va);

/* This core's cycle counter, and its rate. All cores' counters agree. */
uint64_t plat_tsc(void);
uint64_t plat_tsc_hz(void);

/* CPUID on this core; out = EAX, EBX, ECX, EDX. */
void plat_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t out[4]);

/* Index of the core this runs on: position in boot_info.cpus. */
unsigned plat_core(void);

/* A pause in a spin loop. */
void plat_relax(void);

/* Takes the interrupts that have come to this core; elsewhere they wait for a guest or plat_wait. */
void plat_irq_take(void);

/*
 * Sleeps until plat_wake(this core), a device interrupt, or deadline_tsc (UINT64_MAX: none), unless
 * *wake is already set, which is checked with interrupts off so that no wake-up is lost. The caller
 * publishes "I sleep" and fences before. May return early for no reason; callers loop.
 */
void plat_wait(const atomic_uint *wake, uint64_t deadline_tsc);

/* Ends a plat_wait on that core, whose word the caller has set, and makes a running guest there
 * exit. At most one IPI. */
void plat_wake(unsigned core);

/*
 * Message address and data that make a device's MSI end plat_wait on that core. Boot core.
 * -EOPNOTSUPP: no such way here.
 */
int plat_msi(unsigned core, uint64_t *address, uint32_t *data);

/*
 * One line to the log, prefixed and ended here; any core, serialised. Formats: %s %c %d %u %x %p
 * %% with l, ll, z, width, '-', '0' and precision for %s (vmm/fmt.h).
 */
void plat_log(const char *fmt, ...) PRINTF(1, 2);

/* Raw bytes to the host console, serialised with plat_log. */
void plat_console_write(const char *bytes, size_t len_bytes);

/* One byte of host console input, or -1. I/O core only. */
int plat_console_read(void);

/* For a broken invariant of our own, never for a guest's doing. Prints, stops every core. */
void plat_panic(const char *fmt, ...) PRINTF(1, 2) NORETURN;

/* From the C library's contract; the compiler emits calls to them too. */
void *memcpy(void *restrict dst, const void *restrict src, size_t len_bytes);
void *memmove(void *dst, const void *src, size_t len_bytes);
void *memset(void *dst, int byte, size_t len_bytes);
int memcmp(const void *a, const void *b, size_t len_bytes);
size_t strlen(const char *s);
int strcmp(const char *a, const char *b);
int strncmp(const char *a, const char *b, size_t len_bytes);

#endif
