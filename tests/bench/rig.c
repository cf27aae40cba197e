#include "arch/platform.h"
#include "drivers/null.h"
#include "tests/bench/bench.h"
#include "vmm/manifest_check.h"

#include <stdlib.h>

#define BUSY_SIZE    256u
#define EXIT_NS      2000u /* of a kick on hardware: only the policy's prices come from it */
#define IDLE_SIZE    16u
#define IDLE_PER_BLK 32u
#define DISK_BYTES   (8 * GIB)
#define GUEST_BYTES  (24 * MIB)
#define IDLE_BYTES   4096u /* of memory for one idle queue's ring */

static bool on_signal(struct vblk_transport *t, unsigned queue)
{
	(void)t;
	(void)queue;
	return true;
}

static void on_needs_reset(struct vblk_transport *t)
{
	(void)t;
	abort();
}

static struct vblk_transport transport = {on_signal, on_needs_reset};

static struct vblk *blk_make(struct rig *r, const struct gmem *mem, uint16_t queues, uint16_t size,
                             uint64_t poll_ns)
{
	struct manifest_disk cfg = {.num_queues = queues, .queue_size = size};
	struct bio_extent extent = {r->dev, 0, r->dev->sector_count};
	struct vblk *blk = plat_mem_alloc(sizeof(*blk), CACHE_LINE_BYTES);

	if (!blk || vblk_create(blk, &cfg, extent, mem, "bench"))
		abort();
	blk->transport = &transport;
	blk->features = blk->features_offered;
	for (unsigned i = 0; i < queues; i++) {
		blk->queue[i].ioq.poll_ns = poll_ns;
		if (ioloop_queue_add(&r->loop, &blk->queue[i].ioq))
			abort();
	}
	return blk;
}

static void attach(struct vblk_queue *q, const struct vguest_queue *drv)
{
	q->setup =
	        (struct vblk_queue_setup){drv->size, drv->desc_gpa, drv->avail_gpa, drv->used_gpa};
	ioloop_attach(&q->ioq);
}

static void publish_one(struct rig *r, struct vguest_queue *drv, unsigned i, bool indirect)
{
	struct vguest_buf bufs[3] = {
	        {r->hdr_gpa[i], 16, false},
	        {r->data_gpa[i], 4096, true},
	        {r->status_gpa[i], 1, true},
	};
	int head = indirect ? vguest_add_indirect(drv, bufs, 3) : vguest_add(drv, bufs, 3);

	if (head < 0)
		abort();
	vguest_publish(drv, (uint16_t)head);
}

void rig_publish(struct rig *r, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		publish_one(r, &r->drv, i, true);
}

static unsigned take(struct vguest_queue *drv)
{
	uint32_t head, written_bytes;
	unsigned count = 0;

	while (vguest_used_pop(drv, &head, &written_bytes))
		count++;
	if (count && drv->event_idx)
		vguest_irq_on(drv);
	return count;
}

unsigned rig_take(struct rig *r)
{
	return take(&r->drv);
}

/* One request through each idle queue, so that all have been active. Their headers and data are
 * the busy guest's addresses, which are the same in the idle guest's memory. */
static void idle_wake(struct rig *r)
{
	for (unsigned i = 0; i < r->idle_count; i++) {
		publish_one(r, &r->idle_drv[i], 0, false);
		ioloop_kick(&r->idle_blk[i / IDLE_PER_BLK]->queue[i % IDLE_PER_BLK].ioq);
	}
	for (unsigned left = r->idle_count; left > 0;) {
		ioloop_pass(&r->loop);
		if (r->ctrl)
			nvme_inline_step(r->ctrl);
		for (unsigned i = 0; i < r->idle_count; i++)
			left -= take(&r->idle_drv[i]);
	}
}

static void idle_make(struct rig *r, const struct rig_cfg *cfg)
{
	unsigned blks = (cfg->idle_queues + IDLE_PER_BLK - 1) / IDLE_PER_BLK;

	r->idle_count = cfg->idle_queues;
	r->idle_blk = calloc(blks, sizeof(r->idle_blk[0]));
	r->idle_drv = calloc(r->idle_count, sizeof(r->idle_drv[0]));
	vguest_init(&r->idle_guest, 2, 4 * MIB + (uint64_t)r->idle_count * IDLE_BYTES);
	r->idle_guest.next_gpa += MIB; /* the busy guest's buffers, in case */
	for (unsigned i = 0; i < blks; i++)
		r->idle_blk[i] =
		        blk_make(r, &r->idle_guest.mem, IDLE_PER_BLK, IDLE_SIZE, cfg->idle_poll_ns);
	for (unsigned i = 0; i < r->idle_count; i++) {
		vguest_queue_init(&r->idle_drv[i], &r->idle_guest, IDLE_SIZE, true, false);
		attach(&r->idle_blk[i / IDLE_PER_BLK]->queue[i % IDLE_PER_BLK], &r->idle_drv[i]);
	}
}

struct rig *rig_make(const struct rig_cfg *cfg)
{
	struct rig *r = plat_mem_alloc(sizeof(*r), CACHE_LINE_BYTES);

	if (cfg->disk == RIG_NVME) {
		r->ctrl = nvme_inline_make(cfg->device_inline);
		r->dev = &r->ctrl->ns[0].dev;
	} else {
		r->dev = null_create(DISK_BYTES);
	}
	ioloop_init(&r->loop, 0);
	ioloop_costs_set(&r->loop, EXIT_NS, MANIFEST_POLL_WEIGHT);
	if (ioloop_dev_add(&r->loop, r->dev))
		abort();
	vguest_init(&r->guest, 2, GUEST_BYTES);
	for (unsigned i = 0; i < RIG_DEPTH_MAX; i++) {
		/* As Linux has them: header and status in one line of the request. */
		r->hdr_gpa[i] = vguest_alloc(&r->guest, 64, 64);
		r->status_gpa[i] = r->hdr_gpa[i] + 16;
		r->data_gpa[i] = vguest_alloc(&r->guest, 4096, 4096);
		*(struct virtio_blk_hdr *)vguest_va(&r->guest, r->hdr_gpa[i]) =
		        (struct virtio_blk_hdr){VIRTIO_BLK_T_IN, 0, i * 8u};
	}
	r->blk = blk_make(r, &r->guest.mem, 1, BUSY_SIZE, cfg->poll_ns);
	vguest_queue_init(&r->drv, &r->guest, BUSY_SIZE, true, true);
	attach(rig_queue(r), &r->drv);
	if (cfg->idle_queues)
		idle_make(r, cfg);
	ioloop_pass(&r->loop);
	if (cfg->idle_stays_cold)
		r->loop.cold_idle_ticks = UINT64_MAX;
	if (cfg->idle_woken)
		idle_wake(r);
	/* As after 10 ms of others' work: what was used once is armed again. */
	while (cfg->idle_woken && !cfg->idle_stays_cold && r->loop.hot_count + r->loop.cold_count)
		ioloop_pass(&r->loop);
	return r;
}

void rig_free(struct rig *r)
{
	vguest_free(&r->guest);
	vguest_free(&r->idle_guest);
	free(r->idle_blk);
	free(r->idle_drv);
	bench_doorbell = NULL;
}
