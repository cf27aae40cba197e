/*
 * Guest and I/O core on two pinned threads: what a request takes as the guest sees it. A request
 * crosses at least twice between the two caches, so the round trip of one line between the same two
 * threads is measured in the same sample.
 */
#include "tests/bench/bench.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES                  60u
#define LINE_ROUNDS              1000u
#define DEPTH1_COUNT             300u
#define DEEP_BATCHES             20u
#define DEEP                     32u
#define STEADY_COUNT             10000000u
#define STEADY_KICKS_PER_MILLION 100 /* a thread may be held up: who else uses the machine? */

struct line {
	CACHE_ALIGN atomic_uint value;
};

struct session {
	const char *name;
	struct rig_cfg cfg;
	struct rig *rig;
	uint64_t requests, kicks;
	struct samples line, one, deep, trips;
};

static struct line ping, pong;

static void *io_core(void *arg)
{
	struct rig *r = arg;

	bench_pin(0);
	for (unsigned i = 1; i <= LINE_ROUNDS; i++) {
		while (atomic_load_explicit(&ping.value, memory_order_acquire) != i)
			;
		atomic_store_explicit(&pong.value, i, memory_order_release);
	}
	ioloop_run(&r->loop);
	return NULL;
}

/* The first rounds wait for the other thread to start, so the second half counts. */
static double line_round_trip(void)
{
	uint64_t t = 0;

	for (unsigned i = 1; i <= LINE_ROUNDS; i++) {
		if (i == LINE_ROUNDS / 2)
			t = bench_tsc();
		atomic_store_explicit(&ping.value, i, memory_order_release);
		while (atomic_load_explicit(&pong.value, memory_order_acquire) != i)
			;
	}
	return tsc_ns(bench_tsc() - t) / (LINE_ROUNDS - LINE_ROUNDS / 2);
}

static void requests(struct session *s, unsigned count)
{
	struct rig *r = s->rig;
	uint32_t head, written_bytes;

	rig_publish(r, count);
	if (vguest_kick_needed(&r->drv))
		ioloop_kick(&rig_queue(r)->ioq);
	for (unsigned left = count; left > 0;)
		left -= vguest_used_pop(&r->drv, &head, &written_bytes);
	s->requests += count;
}

static void sample(struct session *s)
{
	static struct samples one;
	pthread_t thread;
	uint64_t t;

	atomic_store(&ping.value, 0);
	atomic_store(&pong.value, 0);
	atomic_store(&s->rig->loop.stop, 0);
	if (pthread_create(&thread, NULL, io_core, s->rig))
		abort();
	samples_add(&s->line, line_round_trip());
	vguest_irq_off(&s->rig->drv); /* this guest polls too */
	memset(&one, 0, sizeof(one));
	for (unsigned i = 0; i < DEPTH1_COUNT; i++) {
		t = bench_tsc();
		requests(s, 1);
		samples_add(&one, tsc_ns(bench_tsc() - t) - tsc_cost_ns());
	}
	samples_add(&s->one, samples_median(&one));
	samples_add(&s->trips, samples_median(&one) / s->line.value[s->line.count - 1]);
	t = bench_tsc();
	for (unsigned i = 0; i < DEEP_BATCHES; i++)
		requests(s, DEEP);
	samples_add(&s->deep, tsc_ns(bench_tsc() - t) / (DEEP_BATCHES * DEEP));
	ioloop_stop(&s->rig->loop);
	pthread_join(thread, NULL);
}

static void session_report(struct session *s)
{
	uint64_t due;
	char name[96];

	s->kicks = atomic_load(&rig_queue(s->rig)->ioq.kicks);
	snprintf(name, sizeof(name), "two threads, %s, cache-line round trip", s->name);
	report_samples(name, &s->line, "ns");
	snprintf(name, sizeof(name), "two threads, %s, depth 1", s->name);
	report_samples(name, &s->one, "ns/request");
	snprintf(name, sizeof(name), "two threads, %s, depth 1", s->name);
	report_samples(name, &s->trips, "line trips");
	snprintf(name, sizeof(name), "two threads, %s, depth %u", s->name, DEEP);
	report_samples(name, &s->deep, "ns/request");
	snprintf(name, sizeof(name), "two threads, %s, kicks", s->name);
	report(name, (double)s->kicks * 1e6 / (double)s->requests, "per million", -1,
	       (unsigned)s->requests);
	snprintf(name, sizeof(name), "two threads, %s, kicks", s->name);
	report(name, (double)s->kicks / SAMPLES, "per start", -1, SAMPLES);
	if (s->cfg.poll_ns == 0)
		return;
	/* A kick is due when the loop has slept, or was about to. */
	due = s->rig->loop.counts.kick_wakes + s->rig->loop.counts.last_look_hits;
	snprintf(name, sizeof(name), "two threads, %s, kicks beyond idle to active", s->name);
	report_aim(name, s->kicks > due ? (double)(s->kicks - due) : 0, 0, "in all");
}

/*
 * Ten million requests, never more than depth in flight, at the loop that decides when to sleep. It
 * goes idle where the guest's thread is held up longer than a sleep costs, and only then is there a
 * kick.
 */
static void steady(unsigned depth)
{
	struct rig_cfg cfg = {.poll_ns = IOQ_POLL_AUTO, .device_inline = true};
	unsigned mem = bench_mem_mark();
	struct rig *r = rig_make(&cfg);
	struct ioq *q = &rig_queue(r)->ioq;
	const struct ioloop_counts *counts = &r->loop.counts;
	uint64_t begin, kicks, due;
	uint32_t head, written_bytes;
	unsigned published = 0, taken = 0;
	pthread_t thread;
	double ns;
	char name[80];

	atomic_store(&ping.value, 0);
	atomic_store(&pong.value, 0);
	if (pthread_create(&thread, NULL, io_core, r))
		abort();
	line_round_trip();
	vguest_irq_off(&r->drv);
	begin = bench_tsc();
	while (taken < STEADY_COUNT) {
		if (published - taken <= depth / 2) {
			unsigned more = depth - (published - taken);

			rig_publish(r, more);
			published += more;
			if (vguest_kick_needed(&r->drv))
				ioloop_kick(q);
		}
		taken += vguest_used_pop(&r->drv, &head, &written_bytes);
	}
	ns = tsc_ns(bench_tsc() - begin) / taken;
	ioloop_stop(&r->loop);
	pthread_join(thread, NULL);
	kicks = atomic_load(&q->kicks);
	due = counts->kick_wakes + counts->last_look_hits;
	snprintf(name, sizeof(name), "two threads, steady, depth %u", depth);
	report(name, ns, "ns/request", 0, taken);
	snprintf(name, sizeof(name), "two threads, steady, depth %u, kicks", depth);
	report(name, (double)kicks, "in all", -1, taken);
	snprintf(name, sizeof(name), "two threads, steady, depth %u, kicks", depth);
	report_aim(name, (double)kicks * 1e6 / taken, STEADY_KICKS_PER_MILLION, "per million");
	snprintf(name, sizeof(name), "two threads, steady, depth %u, kicks beyond idle to active",
	         depth);
	report_aim(name, kicks > due ? (double)(kicks - due) : 0, 0, "in all");
	rig_free(r);
	bench_mem_release(mem);
}

void bench_threads(void)
{
	static const unsigned depths[] = {1, 8, 64};
	static struct session sessions[] = {
	        {.name = "NVMe", .cfg = {.poll_ns = IOQ_POLL_AUTO, .device_inline = true}},
	        {.name = "NVMe, 3200 idle queues",
	         .cfg = {.poll_ns = IOQ_POLL_AUTO,
	                 .device_inline = true,
	                 .idle_queues = 3200,
	                 .idle_poll_ns = IOQ_POLL_AUTO}},
	        {.name = "poll_ns = 0, NVMe", .cfg = {.device_inline = true}},
	};
	static struct samples idle_diff;
	unsigned mem = bench_mem_mark();
	double ns;

	if (bench_cpus() < 2) {
		printf("two threads: not measured: one processor\n");
		return;
	}
	bench_pin(1);
	for (unsigned i = 0; i < ARRAY_LEN(sessions); i++)
		sessions[i].rig = rig_make(&sessions[i].cfg);
	for (unsigned n = 0; n < SAMPLES; n++) {
		for (unsigned i = 0; i < ARRAY_LEN(sessions); i++)
			sample(&sessions[n & 1 ? ARRAY_LEN(sessions) - 1 - i : i]);
		samples_add(&idle_diff, sessions[1].one.value[n] - sessions[0].one.value[n]);
	}
	ns = samples_median(&idle_diff);
	report_difference("two threads, 3200 idle queues, depth 1", &idle_diff, "ns/request");
	report_aim("two threads, 3200 idle queues, depth 1", ns, 60, "ns");
	for (unsigned i = 0; i < ARRAY_LEN(sessions); i++) {
		session_report(&sessions[i]);
		rig_free(sessions[i].rig);
	}
	bench_mem_release(mem);
	for (unsigned i = 0; i < ARRAY_LEN(depths); i++)
		steady(depths[i]);
}
