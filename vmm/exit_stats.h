/*
 * exit_stats.h: exact exit accounting of one vCPU in one phase. Written by the vCPU's core only, no
 * lock, a constant cost per exit. vmm/phase.h says which record is the current one.
 */
#ifndef QUELL_VMM_EXIT_STATS_H
#define QUELL_VMM_EXIT_STATS_H

#include "arch/types.h"
#include "arch/x86/hvm.h"
#include "vmm/tally.h"

struct exit_stats {
	uint64_t start_tsc; /* when this phase began on this vCPU */
	/* Where the time went. In the guest includes the world switches; what is missing to
	 * wall_tsc is the edges of sleeps. wall_tsc is set at the phase's end. */
	uint64_t guest_tsc, handling_tsc, halted_tsc, wall_tsc;
	struct tally
	        reason[HVM_EXIT_COUNT]; /* kicks that found their queue are not in here but in */
	struct tally kick[];            /* by the guest's queue number */
};

/* Bytes of a record for so many queues. */
static inline uint64_t exit_stats_bytes(unsigned queue_count)
{
	return sizeof(struct exit_stats) + queue_count * sizeof(struct tally);
}

/* Adds src into dst, kicks into their reason and, if kick is not NULL, there by queue as well. */
void exit_stats_merge(struct exit_stats *dst, struct tally *kick, const struct exit_stats *src,
                      unsigned queue_count);

/* Exits in all, and the time they took to handle. */
uint64_t exit_stats_count(const struct exit_stats *stats, uint64_t *total_tsc);

#endif
