/* Ten million requests at each depth, guest and loop in turn: exact counts. */
#include "tests/bench/bench.h"

#include <stdio.h>

#define REQUESTS 10000000u

static void steady(unsigned depth)
{
	struct rig_cfg cfg = {.disk = RIG_NVME, .poll_ns = IOQ_POLL_AUTO};
	unsigned mem = bench_mem_mark();
	struct rig *r = rig_make(&cfg);
	struct ioq *q = &rig_queue(r)->ioq;
	uint64_t doorbells = r->dev->doorbells, begin = bench_tsc();
	unsigned published = 0, taken = 0;
	char name[80];

	while (taken < REQUESTS) {
		if (published - taken <= depth / 2) {
			unsigned more = depth - (published - taken);

			rig_publish(r, more);
			published += more;
			if (vguest_kick_needed(&r->drv))
				ioloop_kick(q);
		}
		ioloop_pass(&r->loop);
		nvme_inline_step(r->ctrl);
		taken += rig_take(r);
	}
	snprintf(name, sizeof(name), "steady, depth %u, guest and loop in turn", depth);
	report(name, tsc_ns(bench_tsc() - begin) / taken, "ns/request", 0, taken);
	snprintf(name, sizeof(name), "steady, depth %u, kicks", depth);
	report_aim(name, (double)atomic_load(&q->kicks), 1, "in all");
	snprintf(name, sizeof(name), "steady, depth %u, times armed", depth);
	report(name, (double)q->counts.arms, "in all", -1, taken);
	snprintf(name, sizeof(name), "steady, depth %u, doorbells", depth);
	report(name, (double)(r->dev->doorbells - doorbells) * 1000 / taken, "per 1000", -1, taken);
	snprintf(name, sizeof(name), "steady, depth %u, interrupts", depth);
	report(name, (double)q->counts.interrupts * 1000 / taken, "per 1000", -1, taken);
	rig_free(r);
	bench_mem_release(mem);
}

void bench_steady(void)
{
	static const unsigned depths[] = {1, 8, 64};

	for (unsigned i = 0; i < ARRAY_LEN(depths); i++)
		steady(depths[i]);
}
