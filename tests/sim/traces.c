/*
 * The set of traces. Times are ns; p[] are each generator's parameters, a to d in the comments.
 */
#include "tests/sim/sim.h"

#define US 1000.0
#define MS 1000000.0

static uint64_t ns(double x)
{
	return x < 1 ? 1 : (uint64_t)(x + 0.5);
}

/* Source s of several: its parameters are the means of sources 0 to 3, in turn. */
static double mean_of(const struct sim_trace *t, unsigned s)
{
	return t->p[s % 4] > 0 ? t->p[s % 4] : t->p[0];
}

static uint64_t constant(struct sim_trace *t, unsigned s, uint64_t poll_ns)
{
	(void)poll_ns;
	return ns(mean_of(t, s));
}

static uint64_t jittered(struct sim_trace *t, unsigned s, uint64_t poll_ns)
{
	(void)s;
	(void)poll_ns;
	return ns(t->p[0] * (1 + t->p[1] * (2 * sim_uniform(t->rng) - 1)));
}

static uint64_t poisson(struct sim_trace *t, unsigned s, uint64_t poll_ns)
{
	(void)poll_ns;
	return ns(mean_of(t, s) * sim_exponential(t->rng));
}

/* Eight queues, each half as fast again as the one before. */
static uint64_t spread(struct sim_trace *t, unsigned s, uint64_t poll_ns)
{
	double mean = t->p[0];

	(void)poll_ns;
	while (s-- > 0)
		mean *= 1.5;
	return ns(mean);
}

/* One fast source (mean a), the others slow (mean b). */
static uint64_t one_fast(struct sim_trace *t, unsigned s, uint64_t poll_ns)
{
	(void)poll_ns;
	return ns((s == 0 ? t->p[0] : t->p[1]) * sim_exponential(t->rng));
}

/* Either a or b, at random, the first with probability c. */
static uint64_t mixed(struct sim_trace *t, unsigned s, uint64_t poll_ns)
{
	(void)s;
	(void)poll_ns;
	return ns((sim_uniform(t->rng) < t->p[2] ? t->p[0] : t->p[1]) *
	          (t->p[3] > 0 ? sim_exponential(t->rng) : 1));
}

/* c gaps of a, then d of b. */
static uint64_t phases(struct sim_trace *t, unsigned s, uint64_t poll_ns)
{
	uint64_t period = (uint64_t)(t->p[2] + t->p[3]);

	(void)s;
	(void)poll_ns;
	return ns(t->count++ % period < (uint64_t)t->p[2] ? t->p[0] : t->p[1]);
}

static uint64_t phases_random(struct sim_trace *t, unsigned s, uint64_t poll_ns)
{
	return ns((double)phases(t, s, poll_ns) * sim_exponential(t->rng));
}

/* Bursts of c gaps of mean a, on average; between them pauses of mean b. */
static uint64_t bursty(struct sim_trace *t, unsigned s, uint64_t poll_ns)
{
	(void)s;
	(void)poll_ns;
	return ns((sim_uniform(t->rng) * t->p[2] < 1 ? t->p[1] : t->p[0]) *
	          sim_exponential(t->rng));
}

/* Heavy tail (Pareto, exponent 1 or 2 as b says) from a. */
static uint64_t heavy(struct sim_trace *t, unsigned s, uint64_t poll_ns)
{
	double u = sim_uniform(t->rng), x = t->p[0] / u;

	(void)s;
	(void)poll_ns;
	if (t->p[1] > 1) {
		double y = sim_uniform(t->rng); /* the larger of two uniforms is sqrt(u) in law */

		x = t->p[0] / (u > y ? u : y);
	}
	return ns(x > 100 * MS ? 100 * MS : x);
}

/* On for a (arrivals each c, exponential), off for b. */
static uint64_t on_off(struct sim_trace *t, unsigned s, uint64_t poll_ns)
{
	double gap = t->p[2] * sim_exponential(t->rng);

	(void)s;
	(void)poll_ns;
	t->level += gap;
	if (t->level < t->p[0])
		return ns(gap);
	t->level = 0;
	return ns(gap + t->p[1]);
}

/* The mean climbs from a to b and falls again, by the same factor each gap; period c. */
static uint64_t diurnal(struct sim_trace *t, unsigned s, uint64_t poll_ns)
{
	(void)s;
	(void)poll_ns;
	if (t->level < t->p[0])
		t->level = t->p[0];
	if (t->count % (uint64_t)t->p[2] < (uint64_t)(t->p[2] / 2)) {
		if (t->level < t->p[1])
			t->level *= 1 + t->p[3];
	} else if (t->level > t->p[0]) {
		t->level /= 1 + t->p[3];
	}
	t->count++;
	return ns(t->level * sim_exponential(t->rng));
}

/* Gaps of mean a; the wake-up becomes c times as dear halfway, and varies by a quarter. */
static uint64_t dearer(struct sim_trace *t, unsigned s, uint64_t poll_ns)
{
	static const double often = 10000;

	(void)s;
	(void)poll_ns;
	if (t->count++ == 0)
		t->level = (double)t->wake_ns;
	t->wake_ns = ns(t->level * (t->count > (uint64_t)often ? t->p[2] : 1) *
	                (0.75 + 0.5 * sim_uniform(t->rng)));
	return ns((sim_uniform(t->rng) < t->p[1] ? t->p[0] : 40 * t->p[0]) *
	          sim_exponential(t->rng));
}

/* Disk (source 0): b; thinking guest: a; each varies by c; d: the disk's tail, one in d is ten
 * times as slow. */
static uint64_t disk(struct sim_trace *t, unsigned s, uint64_t poll_ns)
{
	double x = (s == 0 ? t->p[1] : t->p[0]) * (1 + t->p[2] * (2 * sim_uniform(t->rng) - 1));

	(void)poll_ns;
	if (s == 0 && t->p[3] > 0 && sim_uniform(t->rng) * t->p[3] < 1)
		x *= 10;
	return ns(x);
}

/* --- made to hurt ---------------------------------------------------------------------------- */

/* Just beyond each step of QEMU's ladder. */
static uint64_t ladder(struct sim_trace *t, unsigned s, uint64_t poll_ns)
{
	static const uint64_t step[] = {1, 4001, 8001, 16001, 32769};

	(void)s;
	(void)poll_ns;
	return step[t->count++ % 5];
}

/* From a to b in steps of a, again and again. */
static uint64_t sawtooth(struct sim_trace *t, unsigned s, uint64_t poll_ns)
{
	(void)s;
	(void)poll_ns;
	t->level = t->level + t->p[0] > t->p[1] ? t->p[0] : t->level + t->p[0];
	return ns(t->level);
}

/* A constant gap from 1 us to 1 ms, which changes after at most a gaps. */
static uint64_t regimes(struct sim_trace *t, unsigned s, uint64_t poll_ns)
{
	(void)s;
	(void)poll_ns;
	if (t->count == 0) {
		t->count = 1 + sim_random(t->rng) % (uint64_t)t->p[0];
		t->level = US;
		for (uint64_t n = sim_random(t->rng) % 20; n > 0; n--)
			t->level *= 1.4142;
	}
	t->count--;
	return ns(t->level);
}

/* Online: always just after the policy has given up. */
static uint64_t just_after(struct sim_trace *t, unsigned s, uint64_t poll_ns)
{
	(void)t;
	(void)s;
	return poll_ns > 10 * MS ? ns(10 * MS) : poll_ns + 1;
}

/* Online: a gaps of b to teach, then c gaps just after the policy has given up. */
static uint64_t betray(struct sim_trace *t, unsigned s, uint64_t poll_ns)
{
	uint64_t i = t->count++ % (uint64_t)(t->p[0] + t->p[2]);

	return i < (uint64_t)t->p[0] ? ns(t->p[1]) : just_after(t, s, poll_ns);
}

/* Online: short gaps of a earn trust; when the policy polls for less than the price, just after;
 * when for longer, never within. */
static uint64_t greedy(struct sim_trace *t, unsigned s, uint64_t poll_ns)
{
	uint64_t price = t->wake_ns + t->exit_ns;

	if (poll_ns < price || sim_random(t->rng) % 8 == 0)
		return just_after(t, s, poll_ns);
	return poll_ns > price ? just_after(t, s, poll_ns) : ns(t->p[0]);
}

#define S SIM_STEADY
#define C SIM_CHANGE
#define A SIM_ADVERSE
#define O SIM_ONLINE
/* Sources, depth, parameters. */
#define TRACE(trace, kind, generator, count, queue_depth, ...)                                     \
	{                                                                                          \
		.name = trace, .class = kind, .gap = generator, .sources = count,                  \
		.depth = queue_depth, .open = count > 1 && queue_depth == 0,                       \
		.p = { __VA_ARGS__ }                                                               \
	}

struct sim_trace sim_traces[] = {
        TRACE("const-1us", S, constant, 1, 0, 1 * US),
        TRACE("const-2us", S, constant, 1, 0, 2 * US),
        TRACE("const-5us", S, constant, 1, 0, 5 * US),
        TRACE("const-10us", S, constant, 1, 0, 10 * US),
        TRACE("const-19us", S, constant, 1, 0, 19 * US),
        TRACE("const-21us", S, constant, 1, 0, 21 * US),
        TRACE("const-30us", S, constant, 1, 0, 30 * US),
        TRACE("const-40us", S, constant, 1, 0, 40 * US),
        TRACE("const-100us", S, constant, 1, 0, 100 * US),
        TRACE("const-1ms", S, constant, 1, 0, 1 * MS),
        TRACE("const-10ms", S, constant, 1, 0, 10 * MS),
        TRACE("jitter-10us", S, jittered, 1, 0, 10 * US, 0.1),
        TRACE("jitter-19us", S, jittered, 1, 0, 19 * US, 0.1),
        TRACE("jitter-21us", S, jittered, 1, 0, 21 * US, 0.1),
        TRACE("jitter-30us", S, jittered, 1, 0, 30 * US, 0.5),
        TRACE("poisson-1us", S, poisson, 1, 0, 1 * US),
        TRACE("poisson-2us", S, poisson, 1, 0, 2 * US),
        TRACE("poisson-5us", S, poisson, 1, 0, 5 * US),
        TRACE("poisson-10us", S, poisson, 1, 0, 10 * US),
        TRACE("poisson-18us", S, poisson, 1, 0, 18 * US),
        TRACE("poisson-22us", S, poisson, 1, 0, 22 * US),
        TRACE("poisson-40us", S, poisson, 1, 0, 40 * US),
        TRACE("poisson-100us", S, poisson, 1, 0, 100 * US),
        TRACE("poisson-1ms", S, poisson, 1, 0, 1 * MS),
        TRACE("poisson-10ms", S, poisson, 1, 0, 10 * MS),
        TRACE("mix-2us-200us", S, mixed, 1, 0, 2 * US, 200 * US, 0.5),
        TRACE("mix-5us-25us", S, mixed, 1, 0, 5 * US, 25 * US, 0.5),
        TRACE("mix-exp-3us-1ms", S, mixed, 1, 0, 3 * US, 1 * MS, 0.8, 1),
        TRACE("alternate-5us-50us", S, phases, 1, 0, 5 * US, 50 * US, 1, 1),
        TRACE("2const-50us-70us", S, constant, 2, 0, 50 * US, 70 * US),
        TRACE("4const-100us-1ms", S, constant, 4, 0, 100 * US, 230 * US, 510 * US, 1 * MS),
        TRACE("8const-60us-1ms", S, spread, 8, 0, 60 * US),
        TRACE("4poisson-100us-10ms", S, poisson, 4, 0, 100 * US, 200 * US, 1 * MS, 10 * MS),
        TRACE("16poisson-160us", S, poisson, 16, 0, 160 * US),
        TRACE("1fast-7slow", S, one_fast, 8, 0, 3 * US, 1 * MS),
        TRACE("disk-80us-qd1", S, disk, 2, 1, 5 * US, 80 * US, 0.1),
        TRACE("disk-10us-qd1", S, disk, 2, 1, 3 * US, 10 * US, 0.1),
        TRACE("disk-12us-tail-qd1", S, disk, 2, 1, 3 * US, 12 * US, 0.1, 50),
        TRACE("disk-4ms-qd1", S, disk, 2, 1, 50 * US, 4 * MS, 0.3),
        TRACE("disk-20us-qd64", S, disk, 65, 64, 5 * US, 20 * US, 0.5),
        TRACE("disk-2us-qd64", S, disk, 65, 64, 5 * US, 2 * US, 0.5),
        TRACE("disk-100us-qd64", S, disk, 65, 64, 5 * US, 100 * US, 0.5),
        TRACE("2const-30us-40us", C, constant, 2, 0, 30 * US, 40 * US),
        TRACE("bursty-2us-500us", C, bursty, 1, 0, 2 * US, 500 * US, 50),
        TRACE("bursty-3us-10ms", C, bursty, 1, 0, 3 * US, 10 * MS, 8),
        TRACE("heavy-1us", C, heavy, 1, 0, 1 * US, 1),
        TRACE("heavy-10us", C, heavy, 1, 0, 10 * US, 2),
        TRACE("onoff-200us-50us", C, on_off, 1, 0, 200 * US, 50 * US, 5 * US),
        TRACE("onoff-1ms-1ms", C, on_off, 1, 0, 1 * MS, 1 * MS, 5 * US),
        TRACE("onoff-100ms-900ms", C, on_off, 1, 0, 100 * MS, 900 * MS, 15 * US),
        TRACE("onoff-2ms-9s", C, on_off, 1, 0, 2 * MS, 9000 * MS, 10 * US),
        TRACE("phases-5us-40us", C, phases, 1, 0, 5 * US, 40 * US, 1000, 1000),
        TRACE("phases-exp-3us-60us", C, phases_random, 1, 0, 3 * US, 60 * US, 300, 300),
        TRACE("phases-2us-1ms-20", C, phases, 1, 0, 2 * US, 1 * MS, 20, 20),
        TRACE("diurnal-2us-2ms", C, diurnal, 1, 0, 2 * US, 2 * MS, 16000, 0.001),
        TRACE("wake-3x-dearer", C, dearer, 1, 0, 8 * US, 0.7, 3),
        TRACE("adv-ladder", A, ladder, 1, 0, 0),
        TRACE("adv-sawtooth", A, sawtooth, 1, 0, 1 * US, 45 * US),
        TRACE("adv-regimes-50", A, regimes, 1, 0, 50),
        TRACE("adv-regimes-5", A, regimes, 1, 0, 5),
        TRACE("adv-just-after", O, just_after, 1, 0, 0),
        TRACE("adv-betray-long", O, betray, 1, 0, 200, 1 * MS, 20),
        TRACE("adv-betray-short", O, betray, 1, 0, 200, 3 * US, 20),
        TRACE("adv-greedy", O, greedy, 1, 0, 2 * US),
};
const unsigned sim_trace_count = sizeof(sim_traces) / sizeof(sim_traces[0]);
