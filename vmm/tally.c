#include "vmm/tally.h"

void tally_merge(struct tally *dst, const struct tally *src)
{
	if (src->count == 0)
		return;
	if (dst->count == 0 || src->min_tsc < dst->min_tsc)
		dst->min_tsc = src->min_tsc;
	dst->max_tsc = MAX(dst->max_tsc, src->max_tsc);
	dst->count += src->count;
	dst->total_tsc += src->total_tsc;
	dst->square_tsc += src->square_tsc;
	for (unsigned b = 0; b < TALLY_BUCKETS; b++)
		dst->bucket[b] += src->bucket[b];
}

unsigned __int128 tally_div(unsigned __int128 n, uint64_t d)
{
	unsigned __int128 quotient = 0, rest = 0;

	for (int bit = 127; bit >= 0; bit--) {
		rest = rest << 1 | ((n >> bit) & 1);
		if (rest >= d) {
			rest -= d;
			quotient |= (unsigned __int128)1 << bit;
		}
	}
	return quotient;
}

static uint64_t sqrt128(unsigned __int128 n)
{
	uint64_t root = 0;

	for (int bit = 63; bit >= 0; bit--) {
		uint64_t trial = root | BIT(bit);

		if ((unsigned __int128)trial * trial <= n)
			root = trial;
	}
	return root;
}

uint64_t tally_mean(const struct tally *t)
{
	return t->count ? t->total_tsc / t->count : 0;
}

/*
 * With n samples, sum S and squares Q the variance is (Q - S * S / n) / (n - 1), and the error of
 * the mean the root of variance / n. S * S / n is rounded down to whole cycles of mean first, so
 * that it fits: q = S / n, r = S % n, and S * S / n = S * q + S * r / n.
 */
uint64_t tally_rse(const struct tally *t)
{
	uint64_t n = t->count, mean = tally_mean(t);
	unsigned __int128 expected, spread;

	if (n < 2 || !mean)
		return 0;
	expected = (unsigned __int128)t->total_tsc * mean +
	           tally_div((unsigned __int128)t->total_tsc * (t->total_tsc % n), n);
	if (t->square_tsc <= expected)
		return 0;
	/* 2^20 more than cycles squared: ten bits after the point of the root, where there is room.
	 */
	spread = t->square_tsc - expected;
	if (spread >> 107)
		return (uint64_t)tally_div(
		        (unsigned __int128)sqrt128(tally_div(tally_div(spread, n - 1), n)) * 10000u,
		        mean);
	spread = tally_div(tally_div(spread << 20, n - 1), n);
	return (uint64_t)tally_div((unsigned __int128)sqrt128(spread) * 10000u, mean) >> 10;
}
