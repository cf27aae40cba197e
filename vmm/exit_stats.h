/*
 * exit_stats.h: exact exit accounting of one vCPU. Written by the vCPU's core only, no lock, a
 * constant cost per exit.
 */
#ifndef QUELL_VMM_EXIT_STATS_H
#define QUELL_VMM_EXIT_STATS_H

#include "arch/types.h"
#include "arch/x86/hvm.h"

#define EXIT_STATS_BUCKETS 32

struct exit_stat {
	uint64_t count;
	uint64_t total_tsc, min_tsc, max_tsc;
	unsigned __int128 square_tsc; /* for the relative standard error */
	uint64_t bucket[EXIT_STATS_BUCKETS]; /* by log2 of the handling time */
};

struct exit_stats {
	struct exit_stat reason[HVM_EXIT_COUNT];
	/* Where the time went; what is missing to wall_tsc is entry and exit of the run loop. */
	uint64_t guest_tsc, handling_tsc, halted_tsc, wall_tsc;
};

/* Counts one exit of that reason that took tsc cycles to handle. */
void exit_stats_add(struct exit_stats *stats, enum hvm_exit_reason reason, uint64_t tsc);

/* Adds src into dst, reason by reason. */
void exit_stats_merge(struct exit_stats *dst, const struct exit_stats *src);

#endif
