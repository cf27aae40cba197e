/*
 * fake/platform.h: what a hosted test may ask of its stand-in for the machine, beside
 * arch/platform.h. Time is virtual: plat_tsc returns fake_tsc, 1 GHz, and plat_relax advances it
 * by 10. Memory comes from the host's heap; its host-physical address is its address.
 */
#ifndef QUELL_TESTS_FAKE_PLATFORM_H
#define QUELL_TESTS_FAKE_PLATFORM_H

#include "arch/platform.h"

extern uint64_t fake_tsc;
extern unsigned fake_core;       /* what plat_core returns */
extern unsigned fake_wakes[256]; /* plat_wake calls per core */
extern char fake_log[65536];     /* what plat_log said since fake_reset */
extern char fake_console[65536];
extern const char *fake_console_input; /* bytes plat_console_read gives, then -1 */

/* Hooks; NULL: reads give all ones, writes vanish. MMIO without a hook is plain memory. */
extern uint32_t (*fake_io_read)(uint16_t port, unsigned width_bytes);
extern void (*fake_io_write)(uint16_t port, unsigned width_bytes, uint32_t value);
extern uint64_t (*fake_mmio_read)(const volatile void *reg, unsigned width_bytes);
extern void (*fake_mmio_write)(volatile void *reg, unsigned width_bytes, uint64_t value);
extern void (*fake_cpuid)(uint32_t leaf, uint32_t subleaf, uint32_t out[4]);
extern void (*fake_relax)(void); /* also called by plat_relax */
extern void (*fake_wait)(const atomic_uint *wake, uint64_t deadline_tsc);

/* All of the above to their defaults; what plat_mem_alloc gave is gone. */
void fake_reset(void);

#endif
