/* Readiness: what a look and what a kick cost, scan against bitmap, up to 100,000 sources. */
#include "tests/bench/bench.h"

#include <stdio.h>
#include <string.h>

#define SAMPLES 200u
#define LOOPS   200u

/* Looks at nothing for each kick that are assumed where the two are weighed: a hot loop makes
 * many passes between kicks, and one in four is few. */
#define LOOKS_PER_KICK 4u

struct cost {
	double look, kick;
};

static double look_ns(struct ready *r)
{
	uint64_t t = bench_tsc();
	unsigned found = 0;

	for (unsigned i = 0; i < LOOPS; i++) {
		found += ready_any(r);
		__asm__ volatile("" ::: "memory");
	}
	t = bench_tsc() - t;
	return found ? -1 : (tsc_ns(t) - tsc_cost_ns()) / LOOPS;
}

/* Sets one source, sees that something is ready, and takes it. */
static double kick_ns(struct ready *r, uint32_t count)
{
	uint64_t t = bench_tsc();
	uint32_t source = 0, random = 1;

	for (unsigned i = 0; i < LOOPS; i++) {
		struct ready_iter it;

		random = random * 1664525u + 1013904223u;
		ready_set(r, (uint32_t)((uint64_t)random * count >> 32));
		if (!ready_any(r))
			return -1;
		ready_begin(r, &it);
		while (ready_next(r, &it, &source))
			;
	}
	return (tsc_ns(bench_tsc() - t) - tsc_cost_ns()) / LOOPS;
}

/* Both kinds in turn. */
static void costs(uint32_t count, struct cost cost[2], double error[2])
{
	static struct samples look[2], kick[2];
	unsigned mem = bench_mem_mark();
	struct ready r[2];

	memset(look, 0, sizeof(look));
	memset(kick, 0, sizeof(kick));
	for (unsigned k = 0; k < 2; k++) {
		ready_init(&r[k], k ? READY_BITMAP : READY_SCAN);
		ready_grow(&r[k], count);
	}
	for (unsigned i = 0; i < SAMPLES; i++)
		for (unsigned k = 0; k < 2; k++) {
			samples_add(&look[k], look_ns(&r[k]));
			samples_add(&kick[k], kick_ns(&r[k], count));
		}
	for (unsigned k = 0; k < 2; k++) {
		cost[k] = (struct cost){samples_median(&look[k]), samples_median(&kick[k])};
		error[k] = samples_error(&kick[k]) / cost[k].kick;
	}
	bench_mem_release(mem);
}

static void table_print(void)
{
	static const uint32_t counts[] = {10, 20, 64, 600, 3200, 100000};
	static const char *const kind[] = {"scan", "bitmap"};

	for (unsigned i = 0; i < ARRAY_LEN(counts); i++) {
		struct cost cost[2];
		double error[2];
		char name[80];

		costs(counts[i], cost, error);
		for (unsigned k = 0; k < 2; k++) {
			snprintf(name, sizeof(name), "ready, %s of %u, look", kind[k], counts[i]);
			report(name, cost[k].look, "ns", error[k], SAMPLES);
			snprintf(name, sizeof(name), "ready, %s of %u, set and take", kind[k],
			         counts[i]);
			report(name, cost[k].kick, "ns", error[k], SAMPLES);
		}
	}
}

void bench_ready(void)
{
	uint32_t count;

	table_print();
	for (count = 64; count <= 4096; count += 64) {
		struct cost cost[2];
		double error[2];

		costs(count, cost, error);
		if (LOOKS_PER_KICK * cost[1].look + cost[1].kick <
		    LOOKS_PER_KICK * cost[0].look + cost[0].kick)
			break;
	}
	/* A scan of up to 64 is one word; so the first that is dearer is one more than some words.
	 */
	report("ready, bitmap is cheaper from", count - 63, "sources", 0, SAMPLES);
	report("ready, bitmap is used from", READY_SCAN_MAX + 1, "sources", -1, 1);
}
