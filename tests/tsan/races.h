/*
 * races.h: what the race programs share: cores that are threads, random delays, verdicts.
 */
#ifndef QUELL_TESTS_TSAN_RACES_H
#define QUELL_TESTS_TSAN_RACES_H

#include "arch/types.h"

/* --- cores ------------------------------------------------------------------------------------ */

#define CORES 4u /* core 0 is the I/O core */

/* This thread is that core from now on: plat_core, and who plat_wait waits for. */
void core_begin(unsigned core);

/* An interrupt or IPI: ends the core's wait, or its next one. Any thread. */
void core_interrupt(unsigned core);

/* This core's: waits for an interrupt and takes it. */
void core_interrupt_await(void);

/* Forgets what happened to all cores. No other thread runs. */
void cores_reset(void);

/* How often the core waited, and IPIs sent to it. */
uint64_t core_waits(unsigned core);
uint64_t core_wakes(unsigned core);

/* --- time and chance -------------------------------------------------------------------------- */

/* Nobody is this slow: what takes longer is lost. */
extern double lost_s;

double seconds(void);
uint32_t random_next(uint64_t *state);

/* Mostly none, sometimes some hundred cycles, now and then as long as a wake-up. */
void dither(uint64_t *state);

/* A few cycles. */
void short_delay(uint64_t *state);

/* Where a mutant of the source has opened a gap: now and then long enough for all that others may
 * do in it. Any thread. */
void gap(void);

/* --- cases ------------------------------------------------------------------------------------ */

struct limits {
	double time_s;     /* of one case */
	uint64_t requests; /* of one case that serves requests */
	uint64_t rounds;   /* of one case of arming */
};

/* Should this case run? If so, verdict is due. */
bool case_wanted(const char *name);

/* Prints the case's line. */
void verdict(bool good, const char *name, const char *format, ...) PRINTF(3, 4);

void race_arm(const struct limits *limits);
void race_loop(const struct limits *limits);
void race_mailbox(const struct limits *limits);
void race_irq(const struct limits *limits);

#endif
