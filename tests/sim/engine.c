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
double sim_ln(double x)
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
	return -sim_ln(sim_uniform(rng));
}

struct met {
	uint64_t gap, price;
};

static int met_order(const void *a, const void *b)
{
	const struct met *x = a, *y = b;

	return x->gap < y->gap ? -1 : x->gap > y->gap;
}

static uint64_t best_threshold_cost(struct met *met, uint64_t count)
{
	uint64_t least, caught = 0, prices = 0;

	for (uint64_t i = 0; i < count; i++)
		prices += met[i].price;
	least = prices;
	qsort(met, count, sizeof(*met), met_order);
	for (uint64_t i = 0; i < count; i++) {
		uint64_t cost;

		caught += met[i].gap;
		prices -= met[i].price;
		cost = caught + (count - 1 - i) * met[i].gap + prices;
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
	struct sim_rng
	        rng[SIM_SOURCE_MAX]; /* its own each: what a source does is no other's matter */
};

static uint64_t draw(struct run *r, unsigned source, uint64_t poll_ns)
{
	r->t.rng = &r->rng[source];
	return r->t.gap(&r->t, source, poll_ns);
}

static void think(struct run *r, unsigned source, uint64_t poll_ns)
{
	r->next[source] = (r->t.open ? r->arrived[source] : r->now) + draw(r, source, poll_ns);
}

/*
 * The disk (source 0) holds in_flight requests, one at a time; the guest's slots (the other
 * sources) submit, wait for a completion and think. A disk that still has work goes on whether or
 * not the core has seen its last completion.
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
		r->next[0] = r->in_flight ? r->arrived[0] + draw(r, 0, 0) : SIM_NEVER;
	}
	for (unsigned i = 1; i < r->t.sources; i++)
		if (served[i]) {
			r->in_flight++;
			r->next[i] = SIM_NEVER; /* waits for the disk */
		}
	if (r->in_flight && r->next[0] == SIM_NEVER)
		r->next[0] = r->now + draw(r, 0, 0);
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

static unsigned take(struct run *r, bool *served)
{
	unsigned count = 0;

	for (unsigned i = 0; i < r->t.sources; i++) {
		served[i] = r->next[i] <= r->now;
		r->arrived[i] = served[i] ? r->next[i] : SIM_NEVER;
		count += served[i];
	}
	return count;
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
	for (unsigned i = 0; i < SIM_SOURCE_MAX; i++)
		r->rng[i].state = cfg->seed * 0x2545f4914f6cdd1dull + i * 0xd1342543de82ef95ull;
	r->t.wake_ns = cfg->wake_ns;
	r->t.exit_ns = cfg->exit_ns;
	r->now = 1000;
	for (unsigned i = 0; i < r->t.sources; i++)
		think(r, i, 0);
	if (r->t.depth) {
		/* The guest's slots start one after the other, not all at once. */
		for (unsigned i = 1; i < r->t.sources; i++)
			r->next[i] += i * draw(r, 0, 0);
		r->next[0] = SIM_NEVER;
	}
}

/*
 * The least that count arrivals of an open trace cost: in order, the core either has polled up to
 * arrival i (polled[i + 1]: the next is i + 1, free since i) or was woken by it (woken[i]: free
 * wake_ns later, when those up to after[i] have come).
 */
static uint64_t open_optimum(const struct sim_trace *trace, const struct sim_cfg *cfg,
                             uint64_t count)
{
	static struct run r;
	uint64_t *at = malloc((count + 1) * sizeof(*at)), *sum = malloc((count + 1) * sizeof(*sum));
	uint64_t *polled = malloc((count + 1) * sizeof(*polled)), best = SIM_NEVER;
	uint64_t *woken = malloc((count + 1) * sizeof(*woken)),
	         *after = malloc((count + 1) * sizeof(*after));
	uint64_t wake = cfg->wake_ns, w = 0;

	start(&r, trace, cfg);
	sum[0] = 0;
	for (uint64_t n = 0; n < count; n++) {
		unsigned least = 0;

		for (unsigned i = 1; i < r.t.sources; i++)
			if (r.next[i] < r.next[least])
				least = i;
		at[n] = r.arrived[least] = r.next[least];
		sum[n + 1] = sum[n] + at[n];
		think(&r, least, 0);
	}
	for (uint64_t i = 0, k = 0; i < count; i++) {
		while (k < count && at[k] <= at[i] + wake)
			k++;
		after[i] = k;
		polled[i + 1] = woken[i] = SIM_NEVER;
	}
	polled[0] = 0;
	for (uint64_t i = 0; i <= count; i++) {
		uint64_t awake, sleep;

		if (i == count) {
			best = polled[i];
			for (; w < count; w++)
				best = woken[w] < best ? woken[w] : best;
			break;
		}
		awake = at[i] + wake;
		sleep = wake + cfg->exit_ns + awake * (after[i] - i - 1) -
		        (sum[after[i]] - sum[i + 1]);
		for (bool first = true; first || (w < i && after[w] == i); first = false) {
			uint64_t cost = first ? polled[i] : woken[w];
			uint64_t since = first ? (i ? at[i - 1] : 1000) : at[w] + wake;

			if (!first)
				w++;
			if (cost == SIM_NEVER)
				continue;
			if (cost + at[i] - since < polled[i + 1])
				polled[i + 1] = cost + at[i] - since;
			if (cost + sleep < woken[i])
				woken[i] = cost + sleep;
		}
	}
	free(at);
	free(sum);
	free(polled);
	free(woken);
	free(after);
	return best;
}

void sim_run(const struct sim_trace *trace, struct sim_policy *policy, const struct sim_cfg *cfg,
             struct sim_result *result)
{
	static struct run r;
	struct met *met = malloc(cfg->gaps * sizeof(*met));
	bool served[SIM_SOURCE_MAX] = {false};

	start(&r, trace, cfg);
	memset(result, 0, sizeof(*result));
	policy->init(policy, cfg->wake_ns, cfg->exit_ns, trace->depth ? 2 : trace->sources);
	while (result->gaps < cfg->gaps) {
		uint64_t poll_ns = policy->decide(policy, r.now, r.in_flight != 0);
		uint64_t first, gap, price, slept_at = 0, woke_ns = 0;
		bool kicked;

		/* Those served just now think of what comes next. */
		if (!r.t.depth)
			for (unsigned i = 0; i < r.t.sources; i++)
				if (served[i])
					think(&r, i, poll_ns);
		first = nearest(&r);
		gap = first > r.now ? first - r.now : 0;
		kicked = !(r.t.depth && first == r.next[0]);
		price = r.t.wake_ns + (kicked ? r.t.exit_ns : 0) + others_wait(&r, first);
		if (gap <= poll_ns) {
			result->polled += gap;
			r.now += gap;
		} else {
			slept_at = r.now + poll_ns;
			woke_ns = r.t.wake_ns;
			r.now = first + woke_ns;
			result->polled += poll_ns;
			result->latency += price;
			result->sleeps++;
			result->kicks += kicked;
		}
		result->served += take(&r, served);
		result->optimum += gap < price ? gap : price;
		met[result->gaps++] = (struct met){gap, price};
		if (r.t.depth) {
			disk_serve(&r, served);
			ring_fold(&r);
		}
		policy->learn(policy, r.now, gap, r.arrived, slept_at, woke_ns, kicked);
	}
	result->cost = result->polled + result->latency;
	result->end = r.now;
	if (r.t.open)
		result->optimum = open_optimum(trace, cfg, result->served);
	if (cfg->want_bound)
		result->bound = best_threshold_cost(met, result->gaps);
	free(met);
}
