/* What a pass costs that finds nothing, and what idle queues cost a busy one. */
#include "tests/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PASSES_PER_SAMPLE 500u
#define PASS_SAMPLES      300u

/* --- empty passes ------------------------------------------------------------------------------
 */

struct empty {
	struct rig *rig;
	unsigned passes;
};

static void empty_passes(void *arg)
{
	struct empty *e = arg;

	bench_mark(1);
	for (unsigned i = 0; i < e->passes; i++)
		ioloop_pass(&e->rig->loop);
	bench_mark(STAGE_NONE);
}

static double empty_pass(unsigned hot)
{
	static struct samples s;
	struct rig_cfg cfg = {.disk = RIG_NVME,
	                      .poll_ns = hot ? IOQ_POLL_ALWAYS : 0,
	                      .idle_queues = hot ? hot - 1 : 0,
	                      .idle_poll_ns = IOQ_POLL_ALWAYS};
	unsigned mem = bench_mem_mark();
	struct empty e = {rig_make(&cfg), PASSES_PER_SAMPLE};
	uint64_t insns[STAGE_MAX];
	char name[80];
	double ns;

	memset(&s, 0, sizeof(s));
	snprintf(name, sizeof(name), "empty pass, %u hot queues", hot);
	for (unsigned i = 0; i < PASS_SAMPLES; i++) {
		memset(stage_ticks, 0, sizeof(stage_ticks));
		empty_passes(&e);
		samples_add(&s, (tsc_ns(stage_ticks[1]) - tsc_cost_ns()) / PASSES_PER_SAMPLE);
	}
	ns = samples_median(&s);
	report_samples(name, &s, "ns");
	e.passes = 20;
	if (count_instructions(empty_passes, &e, insns))
		report(name, (double)(insns[1] - insns[STAGE_MAX - 1]) / e.passes, "insns", -1, 20);
	rig_free(e.rig);
	bench_mem_release(mem);
	return ns;
}

void bench_passes(void)
{
	static const unsigned hot[] = {0, 1, 2, 4, 8};
	double ns = 0;

	report("time stamp read, once a pass", tsc_cost_ns(), "ns", 0, 2000);
	for (unsigned i = 0; i < ARRAY_LEN(hot); i++)
		ns = empty_pass(hot[i]);
	report_aim("empty pass, 8 hot queues", ns, 60, "ns");
}

/* --- idle queues beside a busy one ---------------------------------------------------------------
 */

#define PAIRS             400u
#define REQUESTS_PER_PAIR 50u

static uint64_t pass_ticks(struct rig *r)
{
	uint64_t t = bench_tsc();

	ioloop_pass(&r->loop);
	return bench_tsc() - t;
}

/* Time of the I/O core per request at queue depth 1: two passes each but after a pause. */
static double depth1(struct rig *r)
{
	uint64_t ticks = 0, passes = 0;

	for (unsigned i = 0; i < REQUESTS_PER_PAIR; i++) {
		rig_publish(r, 1);
		if (vguest_kick_needed(&r->drv))
			ioloop_kick(&rig_queue(r)->ioq);
		do {
			ticks += pass_ticks(r);
			nvme_inline_step(r->ctrl);
			passes++;
		} while (!rig_take(r));
	}
	return (tsc_ns(ticks) - (double)passes * tsc_cost_ns()) / REQUESTS_PER_PAIR;
}

/* A run with and one without idle queues, in turn: what the machine does meets both. */
static double idle_pairs(const char *what, const struct rig_cfg *with)
{
	static struct samples alone, beside, diff;
	struct rig_cfg cfg = *with;
	unsigned mem = bench_mem_mark();
	struct rig *a, *b;
	char name[96];
	double ns;

	memset(&alone, 0, sizeof(alone));
	memset(&beside, 0, sizeof(beside));
	memset(&diff, 0, sizeof(diff));
	cfg.idle_queues = 0;
	a = rig_make(&cfg);
	b = rig_make(with);
	for (unsigned i = 0; i < PAIRS; i++) {
		double without_ns = 0, with_ns = 0;

		for (unsigned side = 0; side < 2; side++) {
			if ((i ^ side) & 1)
				without_ns = depth1(a);
			else
				with_ns = depth1(b);
		}
		samples_add(&alone, without_ns);
		samples_add(&beside, with_ns);
		samples_add(&diff, with_ns - without_ns);
	}
	snprintf(name, sizeof(name), "%s, no idle queues", what);
	report_samples(name, &alone, "ns/request");
	snprintf(name, sizeof(name), "%s, %u idle", what, with->idle_queues);
	report_samples(name, &beside, "ns/request");
	snprintf(name, sizeof(name), "%s, difference", what);
	report_difference(name, &diff, "ns/request");
	ns = samples_median(&diff);
	printf("%-46s : %u hot, %u cold, %llu retired\n", what, b->loop.hot_count,
	       b->loop.cold_count, (unsigned long long)b->loop.counts.retired);
	rig_free(a);
	rig_free(b);
	bench_mem_release(mem);
	return ns;
}

void bench_idle(void)
{
	struct rig_cfg cfg = {.disk = RIG_NVME,
	                      .poll_ns = IOQ_POLL_AUTO,
	                      .idle_queues = 3200,
	                      .idle_poll_ns = IOQ_POLL_AUTO};
	double ns;

	ns = idle_pairs("QD1 polled, never used", &cfg);
	report_aim("QD1 polled, 3200 never used queues", ns, 60, "ns");
	cfg.idle_woken = true;
	ns = idle_pairs("QD1 polled, once used", &cfg);
	report_aim("QD1 polled, 3200 once used queues", ns, 60, "ns");
	cfg.idle_stays_cold = true;
	idle_pairs("QD1 polled, used within 10 ms", &cfg);
	cfg.idle_stays_cold = false;
	cfg.idle_poll_ns = 0;
	ns = idle_pairs("QD1 polled, poll_ns = 0 on idle", &cfg);
	report_aim("QD1 polled, 3200 queues of poll_ns = 0", ns, 60, "ns");
	cfg.poll_ns = 0;
	ns = idle_pairs("QD1 kicked, poll_ns = 0 on all", &cfg);
	report_aim("QD1 kicked, 3200 queues of poll_ns = 0", ns, 60, "ns");
}
