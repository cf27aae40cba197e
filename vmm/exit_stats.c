#include "vmm/exit_stats.h"

void exit_stats_add(struct exit_stats *stats, enum hvm_exit_reason reason, uint64_t tsc)
{
	struct exit_stat *s = &stats->reason[reason];
	unsigned bucket = 63u - (unsigned)__builtin_clzll(tsc | 1);

	if (s->count++ == 0 || tsc < s->min_tsc)
		s->min_tsc = tsc;
	if (tsc > s->max_tsc)
		s->max_tsc = tsc;
	s->total_tsc += tsc;
	s->square_tsc += (unsigned __int128)tsc * tsc;
	s->bucket[MIN(bucket, EXIT_STATS_BUCKETS - 1)]++;
}

void exit_stats_merge(struct exit_stats *dst, const struct exit_stats *src)
{
	for (unsigned r = 0; r < HVM_EXIT_COUNT; r++) {
		struct exit_stat *d = &dst->reason[r];
		const struct exit_stat *s = &src->reason[r];

		if (s->count == 0)
			continue;
		if (d->count == 0 || s->min_tsc < d->min_tsc)
			d->min_tsc = s->min_tsc;
		d->max_tsc = MAX(d->max_tsc, s->max_tsc);
		d->count += s->count;
		d->total_tsc += s->total_tsc;
		d->square_tsc += s->square_tsc;
		for (unsigned b = 0; b < EXIT_STATS_BUCKETS; b++)
			d->bucket[b] += s->bucket[b];
	}
	dst->guest_tsc += src->guest_tsc;
	dst->handling_tsc += src->handling_tsc;
	dst->halted_tsc += src->halted_tsc;
	dst->wall_tsc += src->wall_tsc;
}
