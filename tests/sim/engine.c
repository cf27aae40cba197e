#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

uint64_t sim_random(struct sim_rng *rng)
{
	uint64_t x = rng->state += 0x9e3779b97f4a7c15ull;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

double sim_uniform(struct sim_rng *rng)
{
	return ((double)(sim_random(rng) >> 12) + 0.5) / 4503599627370496.0;
}

/* ln without libm, so that a trace is the same wherever it is made. */
static double ln(double x)
{
	uint64_t bits;
	double y, z, sum = 0, power;
	int exponent;

	memcpy(&bits, &x, 8);
	exponent = (int)(bits >> 52) - 1023;
	bits = (bits & 0xfffffffffffffull) | 0x3ffull << 52;
	memcpy(&y, &bits, 8);
	if (y > 1.41421356) {
		y /= 2;
		exponent++;
	}
	z = (y - 1) / (y + 1);
	power = z;
	for (int k = 1; k < 20; k += 2, power *= z * z)
		sum += power / k;
	return 2 * sum + exponent * 0.69314718055994531;
}

double sim_exponential(struct sim_rng *rng)
{
	return -ln(sim_uniform(rng));
}

static int gap_order(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static uint64_t best_threshold_cost(uint64_t *gaps, uint64_t count, uint64_t price)
{
	uint64_t least = count * price, caught = 0;

	qsort(gaps, count, sizeof(*gaps), gap_order);
	for (uint64_t i = 0; i < count; i++) {
		uint64_t cost;

		caught += gaps[i];
		cost = caught + (count - 1 - i) * (gaps[i] + price);
		if (cost < least)
			least = cost;
	}
	return least;
}

struct run {
	struct sim_trace t;
	uint64_t next[SIM_SOURCE_MAX];    /* when a source's next work arrives */
	uint64_t arrived[SIM_SOURCE_MAX]; /* of those served now */
	uint64_t now;
	unsigned in_flight;
};

static void think(struct run *r, unsigned source, uint64_t poll_ns)
{
	uint64_t gap = r->t.gap(&r->t, source, poll_ns);

	r->next[source] = gap == SIM_NEVER ? SIM_NEVER : r->now + gap;
}

/*
 * The disk (source 0) holds in_flight requests, one at a time; the guest's slots (the other sources)
 * submit, wait for a completion and think. A disk that still has work goes on whether or not the core
 * has seen its last completion.
 */
static void disk_serve(struct run *r, const bool *served)
{
	if (served[0]) {
		r->in_flight--;
		for (unsigned i = 1; i < r->t.sources; i++)
			if (!served[i] && r->next[i] == SIM_NEVER) {
				think(r, i, 0);
				break;
			}
		r->next[0] = r->in_flight ? r->arrived[0] + r->t.gap(&r->t, 0, 0) : SIM_NEVER;
	}
	for (unsigned i = 1; i < r->t.sources; i++)
		if (served[i]) {
			r->in_flight++;
			r->next[i] = SIM_NEVER; /* waits for the disk */
		}
	if (r->in_flight && r->next[0] == SIM_NEVER)
		r->next[0] = r->now + r->t.gap(&r->t, 0, 0);
}

static uint64_t nearest(const struct run *r)
{
	uint64_t best = SIM_NEVER;

	for (unsigned i = 0; i < r->t.sources; i++)
		if (r->next[i] < best)
			best = r->next[i];
	return best;
}

/* What sources other than the first would wait, did the first have to wake the core. */
static uint64_t others_wait(const struct run *r, uint64_t first)
{
	uint64_t awake = (first > r->now ? first : r->now) + r->t.wake_ns, sum = 0;
	bool counted = false;

	for (unsigned i = 0; i < r->t.sources; i++) {
		if (r->next[i] == first && !counted)
			counted = true;
		else if (r->next[i] < awake)
			sum += awake - r->next[i];
	}
	return sum;
}

static void take(struct run *r, bool *served)
{
	for (unsigned i = 0; i < r->t.sources; i++) {
		served[i] = r->next[i] <= r->now;
		r->arrived[i] = served[i] ? r->next[i] : SIM_NEVER;
	}
}

/* The slots of a queue are one ring: one source to the policy. */
static void ring_fold(struct run *r)
{
	for (unsigned i = 2; i < r->t.sources; i++)
		if (r->arrived[i] < r->arrived[1])
			r->arrived[1] = r->arrived[i];
}

static void start(struct run *r, const struct sim_trace *trace, const struct sim_cfg *cfg)
{
	memset(r, 0, sizeof(*r));
	r->t = *trace;
	r->t.rng.state = cfg->seed * 0x2545f4914f6cdd1dull + trace->sources;
	r->t.wake_ns = cfg->wake_ns;
	r->t.exit_ns = cfg->exit_ns;
	r->now = 1000;
	for (unsigned i = 0; i < r->t.sources; i++)
		think(r, i, 0);
	if (r->t.depth)
		r->next[0] = SIM_NEVER;
}

void sim_run(const struct sim_trace *trace, struct sim_policy *policy, const struct sim_cfg *cfg,
	     struct sim_result *result)
{
	static struct run r;
	uint64_t *gaps = malloc(cfg->gaps * sizeof(*gaps));
	bool served[SIM_SOURCE_MAX] = {false};

	start(&r, trace, cfg);
	memset(result, 0, sizeof(*result));
	policy->init(policy, cfg->wake_ns, cfg->exit_ns,
		     trace->depth ? 2 : trace->sources);
	while (result->gaps < cfg->gaps) {
		uint64_t poll_ns = policy->decide(policy, r.now, r.in_flight != 0);
		uint64_t first, gap, price, extra, slept_at = 0, woke_ns = 0;
		bool kicked = false;

		/* Those served just now think of what comes next. */
		if (!r.t.depth)
			for (unsigned i = 0; i < r.t.sources; i++)
				if (served[i])
					think(&r, i, poll_ns);
		first = nearest(&r);
		gap = first > r.now ? first - r.now : 0;
		price = r.t.wake_ns + r.t.exit_ns;
		kicked = !(r.t.depth && first == r.next[0]);
		if (!kicked)
			price = r.t.wake_ns;
		extra = others_wait(&r, first);
		if (gap <= poll_ns) {
			result->polled += gap;
			r.now += gap;
		} else {
			slept_at = r.now + poll_ns;
			woke_ns = r.t.wake_ns;
			r.now = first + woke_ns;
			result->polled += poll_ns;
			result->latency += price + extra;
			result->sleeps++;
			result->kicks += kicked;
		}
		take(&r, served);
		result->optimum += gap < price + extra ? gap : price + extra;
		gaps[result->gaps++] = gap;
		if (r.t.depth) {
			disk_serve(&r, served);
			ring_fold(&r);
		}
		policy->learn(policy, r.now, gap, r.arrived, slept_at, woke_ns,
			      kicked);
	}
	result->cost = result->polled + result->latency;
	result->end = r.now;
	if (cfg->want_bound)
		result->bound = best_threshold_cost(gaps, result->gaps, cfg->wake_ns + cfg->exit_ns);
	free(gaps);
}
