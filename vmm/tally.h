/*
 * tally.h: how often something happened and how long it took: count, sum, extremes, squares for the
 * spread, and a histogram by powers of two. One writer, no lock, the same few instructions each
 * time.
 */
#ifndef QUELL_VMM_TALLY_H
#define QUELL_VMM_TALLY_H

#include "arch/types.h"

#define TALLY_BUCKETS 32u

/* All zero: empty. */
struct tally {
	uint64_t count;
	uint64_t total_tsc, min_tsc, max_tsc; /* min and max: only with a count */
	unsigned __int128 square_tsc;
	uint64_t bucket[TALLY_BUCKETS]; /* [n]: 2^n to 2^(n+1) - 1 cycles; the last has all longer
	                                 * ones, the first 0 as well */
};

/* Counts one that took tsc cycles. The writer's core. */
static inline void tally_add(struct tally *t, uint64_t tsc)
{
	unsigned bucket = 63u - (unsigned)__builtin_clzll(tsc | 1);

	if (t->count++ == 0 || tsc < t->min_tsc)
		t->min_tsc = tsc;
	if (tsc > t->max_tsc)
		t->max_tsc = tsc;
	t->total_tsc += tsc;
	t->square_tsc += (unsigned __int128)tsc * tsc;
	t->bucket[MIN(bucket, TALLY_BUCKETS - 1)]++;
}

/* Adds src into dst, as if all had been counted in one. */
void tally_merge(struct tally *dst, const struct tally *src);

/* The mean, rounded down; 0 of nothing. */
uint64_t tally_mean(const struct tally *t);

/* Relative standard error of the mean in 1/10000; 0 with fewer than two. */
uint64_t tally_rse(const struct tally *t);

/* n / d, rounded down, without the compiler's library; d is not 0. Slow: reports only. */
unsigned __int128 tally_div(unsigned __int128 n, uint64_t d);

#endif
