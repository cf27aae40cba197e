#include "vmm/exit_stats.h"

void exit_stats_merge(struct exit_stats *dst, struct tally *kick, const struct exit_stats *src,
                      unsigned queue_count)
{
	for (unsigned r = 0; r < HVM_EXIT_COUNT; r++)
		tally_merge(&dst->reason[r], &src->reason[r]);
	for (unsigned q = 0; q < queue_count; q++) {
		tally_merge(&dst->reason[HVM_EXIT_KICK], &src->kick[q]);
		if (kick)
			tally_merge(&kick[q], &src->kick[q]);
	}
	dst->guest_tsc += src->guest_tsc;
	dst->handling_tsc += src->handling_tsc;
	dst->halted_tsc += src->halted_tsc;
	dst->wall_tsc += src->wall_tsc;
}

uint64_t exit_stats_count(const struct exit_stats *stats, uint64_t *total_tsc)
{
	uint64_t count = 0;

	*total_tsc = 0;
	for (unsigned r = 0; r < HVM_EXIT_COUNT; r++) {
		count += stats->reason[r].count;
		*total_tsc += stats->reason[r].total_tsc;
	}
	return count;
}
