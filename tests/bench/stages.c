/* What a request costs, by stage: time and instructions. */
#include "tests/bench/bench.h"
#include "virtio/blk_request.h"

#include <stdio.h>
#include <string.h>

#define SAMPLES         500u
#define SAMPLE_REQUESTS 128u /* at least, so that the counter's steps average out */
#define COUNT_BATCHES   2u

enum stage {
	POP = 1,
	POP_PARSE, /* one call after the other, as serve does */
	MAP,
	SERVE, /* pop, parse and submit */
	COMMIT,
	COMPLETE,
	PUBLISH,
	PASS_DOWN, /* the whole pass that takes a batch */
	PASS_UP,   /* the whole pass that gives it back */
	MARK_COST = STAGE_MAX - 1,
};

struct work {
	struct rig *rig;
	unsigned depth, batches;
	struct vblk_req req; /* scratch of the parser */
};

static void rewind_to(struct virtq *vq, uint16_t last_avail)
{
	vq->last_avail = vq->avail_seen = last_avail;
}

static void device_step(struct rig *r)
{
	if (r->ctrl)
		nvme_inline_step(r->ctrl);
}

static void pop_stages(struct work *w)
{
	struct vblk *blk = w->rig->blk;
	struct virtq *vq = &rig_queue(w->rig)->vq;
	uint16_t from = vq->last_avail;

	bench_mark(POP);
	for (unsigned i = 0; i < w->depth; i++)
		ring_pop(vq, &blk->chain);
	bench_mark(STAGE_NONE);
	rewind_to(vq, from);
	bench_mark(POP_PARSE);
	for (unsigned i = 0; i < w->depth; i++) {
		ring_pop(vq, &blk->chain);
		vblk_request_parse(blk, &w->req);
	}
	bench_mark(STAGE_NONE);
	rewind_to(vq, from);
}

static void map_stage(struct work *w)
{
	struct rig *r = w->rig;
	volatile uint64_t sink = 0;
	hpa_t hpa;
	void *va;

	bench_mark(MAP);
	for (unsigned i = 0; i < w->depth; i++) {
		sink += (uintptr_t)gmem_ptr(&r->guest.mem, r->status_gpa[i], 1);
		sink += gmem_find(&r->guest.mem, r->hdr_gpa[i], 16, &va, NULL);
		sink += gmem_find(&r->guest.mem, r->data_gpa[i], 4096, NULL, &hpa);
	}
	bench_mark(STAGE_NONE);
}

static void request_stages(struct work *w)
{
	struct rig *r = w->rig;
	struct ioq *q = &rig_queue(r)->ioq;

	bench_mark(SERVE);
	q->ops->serve(q, w->depth);
	bench_mark(COMMIT);
	r->dev->ops->commit(r->dev);
	bench_mark(STAGE_NONE);
	device_step(r);
	bench_mark(COMPLETE);
	bio_poll(r->dev, 256);
	bench_mark(PUBLISH);
	q->ops->publish(q);
	bench_mark(STAGE_NONE);
	ioloop_pass(&r->loop); /* takes it off the list of completed queues */
	rig_take(r);
}

static void whole_passes(struct work *w)
{
	struct rig *r = w->rig;

	rig_publish(r, w->depth);
	bench_mark(PASS_DOWN);
	ioloop_pass(&r->loop);
	bench_mark(STAGE_NONE);
	device_step(r);
	bench_mark(PASS_UP);
	ioloop_pass(&r->loop);
	bench_mark(STAGE_NONE);
	rig_take(r);
}

static void batch(struct work *w)
{
	rig_publish(w->rig, w->depth);
	pop_stages(w);
	map_stage(w);
	request_stages(w);
	whole_passes(w);
}

static void batches(void *arg)
{
	struct work *w = arg;

	for (unsigned i = 0; i < w->batches; i++)
		batch(w);
}

/* A stage's cost for one request, from the costs of what was measured. */
struct row {
	const char *name;
	enum stage plus[2], minus[2];
};

static const struct row rows[] = {
        {"pop", {POP}, {0}},
        {"map", {MAP}, {0}},
        {"parse", {POP_PARSE}, {POP, MAP}},
        {"submit", {SERVE, COMMIT}, {POP_PARSE}},
        {"complete", {COMPLETE}, {0}},
        {"publish", {PUBLISH}, {0}},
        {"total", {PASS_DOWN, PASS_UP}, {0}},
};

static double row_value(const struct row *row, const double cost[STAGE_MAX])
{
	double value = 0;

	for (unsigned i = 0; i < 2; i++)
		value += (row->plus[i] ? cost[row->plus[i]] : 0) -
		         (row->minus[i] ? cost[row->minus[i]] : 0);
	return value;
}

static double stages_time(struct work *w, const char *prefix)
{
	static struct samples s[ARRAY_LEN(rows)];
	double median = 0;
	char name[80];

	memset(s, 0, sizeof(s));
	w->batches = (SAMPLE_REQUESTS + w->depth - 1) / w->depth;
	for (unsigned i = 0; i < SAMPLES; i++) {
		double cost[STAGE_MAX];

		memset(stage_ticks, 0, sizeof(stage_ticks));
		batches(w);
		for (unsigned n = 1; n < STAGE_MAX; n++)
			cost[n] = (tsc_ns(stage_ticks[n]) / w->batches - tsc_cost_ns()) / w->depth;
		for (unsigned n = 0; n < ARRAY_LEN(rows); n++)
			samples_add(&s[n], row_value(&rows[n], cost));
	}
	for (unsigned n = 0; n < ARRAY_LEN(rows); n++) {
		median = samples_median(&s[n]);
		/* A stage of one request is shorter than reading the clock twice. */
		if (w->depth == 1 && n + 1 < ARRAY_LEN(rows))
			continue;
		snprintf(name, sizeof(name), "%s depth %u %s", prefix, w->depth, rows[n].name);
		report_samples(name, &s[n], "ns/request");
	}
	return median;
}

static void stages_count(struct work *w, const char *prefix)
{
	uint64_t insns[STAGE_MAX];
	double cost[STAGE_MAX];
	char name[80];

	w->batches = COUNT_BATCHES;
	if (!count_instructions(batches, w, insns)) {
		printf("%s: instructions not counted: no ptrace here\n", prefix);
		return;
	}
	for (unsigned n = 1; n < STAGE_MAX; n++)
		cost[n] = ((double)insns[n] / COUNT_BATCHES - (double)insns[MARK_COST]) / w->depth;
	for (unsigned n = 0; n < ARRAY_LEN(rows); n++) {
		snprintf(name, sizeof(name), "%s depth %u %s", prefix, w->depth, rows[n].name);
		report(name, row_value(&rows[n], cost), "insns/request", -1, COUNT_BATCHES);
	}
}

static double disk_stages(enum rig_disk disk, const char *prefix, unsigned depth)
{
	static struct work w;
	struct rig_cfg cfg = {.disk = disk, .poll_ns = IOQ_POLL_ALWAYS};
	unsigned mem = bench_mem_mark();
	double total;

	memset(&w, 0, sizeof(w));
	w.rig = rig_make(&cfg);
	w.depth = depth;
	w.req.bio.segs = w.req.segs;
	total = stages_time(&w, prefix);
	stages_count(&w, prefix);
	rig_free(w.rig);
	bench_mem_release(mem);
	return total;
}

void bench_stages(void)
{
	double total;

	total = disk_stages(RIG_NVME, "virtio to NVMe", 32);
	report_aim("virtio to NVMe depth 32 total", total, 125, "ns/request");
	disk_stages(RIG_NVME, "virtio to NVMe", 1);
	disk_stages(RIG_NULL, "virtio to null", 32);
}
