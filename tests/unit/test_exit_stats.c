/*
 * Tallies and exit records against plain arithmetic in floating point.
 */
#include "tests/unit/test.h"

#include "vmm/exit_stats.h"

#include <stdlib.h>
#include <string.h>

static uint64_t seed = 0x9e3779b97f4a7c15ull;

static uint64_t next(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

static void test_numbers(void)
{
	struct tally t = {0};

	CHECK_EQ(tally_mean(&t), 0);
	CHECK_EQ(tally_rse(&t), 0);
	tally_add(&t, 100);
	CHECK_EQ(t.min_tsc, 100);
	CHECK_EQ(t.max_tsc, 100);
	CHECK_EQ(tally_rse(&t), 0); /* of one sample there is no spread */
	tally_add(&t, 300);
	tally_add(&t, 200);
	CHECK_EQ(t.count, 3);
	CHECK_EQ(t.total_tsc, 600);
	CHECK_EQ(t.min_tsc, 100);
	CHECK_EQ(t.max_tsc, 300);
	CHECK_EQ(t.square_tsc, 140000);
	CHECK_EQ(tally_mean(&t), 200);
	/* s = 100, s / sqrt(3) = 57.735, of 200: 28.87 % */
	CHECK_EQ(tally_rse(&t), 2886);
}

static void test_zero_counts(void)
{
	struct tally t = {0};

	tally_add(&t, 5);
	tally_add(&t, 0);
	CHECK_EQ(t.min_tsc, 0);
	tally_add(&t, 7);
	CHECK_EQ(t.min_tsc, 0);
	CHECK_EQ(t.bucket[0], 1);
	CHECK_EQ(t.bucket[2], 2);
}

static void test_buckets(void)
{
	struct tally t = {0};
	uint64_t sum = 0;

	for (unsigned bit = 0; bit < 64; bit++) {
		tally_add(&t, BIT(bit));
		tally_add(&t, BIT(bit) + (BIT(bit) - 1)); /* the longest of this bucket */
	}
	for (unsigned b = 0; b < TALLY_BUCKETS - 1; b++)
		CHECK_EQ(t.bucket[b], 2);
	CHECK_EQ(t.bucket[TALLY_BUCKETS - 1], 2 * (64 - TALLY_BUCKETS + 1));
	for (unsigned b = 0; b < TALLY_BUCKETS; b++)
		sum += t.bucket[b];
	CHECK_EQ(sum, t.count);
}

/* Newton's; the tests link no mathematics library. */
static long double root(long double x)
{
	long double r = x > 1 ? x : 1;

	for (unsigned i = 0; i < 200 && x > 0; i++)
		r = (r + x / r) / 2;
	return x > 0 ? r : 0;
}

static double reference_rse(const uint64_t *sample, unsigned n)
{
	long double mean = 0, spread = 0;

	for (unsigned i = 0; i < n; i++)
		mean += (long double)sample[i] / n;
	for (unsigned i = 0; i < n; i++)
		spread += ((long double)sample[i] - mean) * ((long double)sample[i] - mean);
	return (double)(root(spread / (n - 1) / n) / mean * 10000);
}

static void test_rse(void)
{
	static uint64_t sample[5000];

	for (unsigned round = 0; round < 400; round++) {
		unsigned n = 2 + (unsigned)(next() % ARRAY_LEN(sample)) % (round + 1) * 10;
		uint64_t base = next() >> (20 + round % 40),
		         width = (next() >> (20 + round % 43)) | 1;
		struct tally t = {0};
		double want;

		n = MIN(n, (unsigned)ARRAY_LEN(sample));
		for (unsigned i = 0; i < n; i++) {
			sample[i] = base + next() % width;
			tally_add(&t, sample[i]);
		}
		want = reference_rse(sample, n);
		/* The mean is rounded down to a cycle. */
		if (t.total_tsc / n > 2000 && ((double)tally_rse(&t) > want * 1.002 + 1.5 ||
		                               (double)tally_rse(&t) < want * 0.998 - 1.5)) {
			printf("  n %u, mean %llu: %llu, not %.3f\n", n,
			       (unsigned long long)tally_mean(&t),
			       (unsigned long long)tally_rse(&t), want);
			CHECK(false);
		}
	}
}

/* Nothing overflows on the way to an answer, whatever was counted. */
static void test_rse_extremes(void)
{
	struct tally t = {0};

	tally_add(&t, 0);
	tally_add(&t, UINT64_MAX);
	CHECK(tally_rse(&t) >= 9999 && tally_rse(&t) <= 10001); /* s / sqrt(2) = mean */
	memset(&t, 0, sizeof(t));
	for (unsigned i = 0; i < 1000; i++)
		tally_add(&t, 0);
	CHECK_EQ(tally_rse(&t), 0);
	memset(&t, 0, sizeof(t));
	for (unsigned i = 0; i < 100000; i++)
		tally_add(&t, 12345);
	CHECK_EQ(tally_rse(&t), 0);
	memset(&t, 0, sizeof(t));
	for (unsigned i = 0; i < 200000; i++)
		tally_add(&t, i % 2 ? 900000000000ull : 1);
	CHECK_EQ(tally_rse(&t), 22); /* 1 / sqrt(200000) */
}

static void test_div(void)
{
	for (unsigned i = 0; i < 20000; i++) {
		unsigned __int128 n = (unsigned __int128)next() << 64 | next();
		uint64_t d = next() >> (i % 64) | 1;

		n >>= i % 128;
		CHECK(tally_div(n, d) == n / d);
	}
}

/* Merging parts is counting all in one. */
static void test_merge(void)
{
	for (unsigned round = 0; round < 200; round++) {
		struct tally whole = {0}, part[3] = {0}, sum = {0};

		for (unsigned i = 0; i < round; i++) {
			uint64_t tsc = next() >> (next() % 64);

			tally_add(&whole, tsc);
			tally_add(&part[next() % 3], tsc);
		}
		for (unsigned i = 0; i < 3; i++)
			tally_merge(&sum, &part[i]);
		CHECK(!memcmp(&whole, &sum, sizeof(sum)));
	}
}

static void test_records(void)
{
	struct exit_stats *a = calloc(1, exit_stats_bytes(2)), *b = calloc(1, exit_stats_bytes(2));
	struct tally by_queue[2] = {0};
	uint64_t total;

	tally_add(&a->reason[HVM_EXIT_HLT], 10);
	tally_add(&a->reason[HVM_EXIT_KICK], 20);
	tally_add(&a->kick[0], 30);
	tally_add(&a->kick[1], 40);
	tally_add(&a->kick[1], 50);
	a->guest_tsc = 1;
	a->handling_tsc = 2;
	a->halted_tsc = 3;
	a->wall_tsc = 7;
	exit_stats_merge(b, by_queue, a, 2);
	exit_stats_merge(b, by_queue, a, 2);
	CHECK_EQ(b->reason[HVM_EXIT_KICK].count, 8);
	CHECK_EQ(b->reason[HVM_EXIT_KICK].total_tsc, 280);
	CHECK_EQ(b->reason[HVM_EXIT_KICK].min_tsc, 20);
	CHECK_EQ(by_queue[0].count, 2);
	CHECK_EQ(by_queue[1].count, 4);
	CHECK_EQ(by_queue[1].max_tsc, 50);
	CHECK_EQ(exit_stats_count(b, &total), 10);
	CHECK_EQ(total, 300);
	CHECK_EQ(b->guest_tsc + b->handling_tsc + b->halted_tsc, 12);
	CHECK_EQ(b->wall_tsc, 14);
	free(a);
	free(b);
}

TESTS(T(test_numbers), T(test_zero_counts), T(test_buckets), T(test_rse), T(test_rse_extremes),
      T(test_div), T(test_merge), T(test_records))
