#include "tests/tsan/rig.h"

#include "arch/platform.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* --- a device with a thread of its own -----------------------------------------------------------
 */

#define SLOTS 1024u /* more than can be in flight */

struct device {
	struct bio_dev dev;
	struct bio *down[SLOTS], *up[SLOTS];
	uint32_t queued;  /* the I/O core's, published by commit */
	uint32_t up_head; /* the I/O core's */
	CACHE_ALIGN atomic_uint doorbell;
	CACHE_ALIGN atomic_uint up_tail; /* completions posted */
	atomic_uint irq_on, stop;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
};

static struct device disk;

static int disk_submit(struct bio_dev *dev, struct bio *bio)
{
	bio->status = BIO_OK;
	disk.down[disk.queued++ % SLOTS] = bio;
	dev->in_flight++;
	dev->submitted = true;
	return 0;
}

static void disk_commit(struct bio_dev *dev)
{
	dev->submitted = false;
	pthread_mutex_lock(&disk.mutex);
	atomic_store(&disk.doorbell, disk.queued);
	pthread_cond_signal(&disk.cond);
	pthread_mutex_unlock(&disk.mutex);
}

static unsigned disk_poll(struct bio_dev *dev, unsigned budget)
{
	uint32_t tail = atomic_load_explicit(&disk.up_tail, memory_order_acquire);
	unsigned count = 0;

	while (disk.up_head != tail && count < budget) {
		struct bio *bio = disk.up[disk.up_head++ % SLOTS];

		dev->in_flight--;
		count++;
		bio->done(bio);
	}
	return count;
}

/* As an NVMe vector: what is posted while it is masked is found by the look after the unmasking. */
static bool disk_irq_set(struct bio_dev *dev, bool on)
{
	(void)dev;
	atomic_store(&disk.irq_on, on);
	if (!on)
		return true;
	return disk.up_head == atomic_load(&disk.up_tail);
}

static const struct bio_ops disk_ops = {disk_submit, disk_commit, disk_poll, disk_irq_set};

/* Completes in random order and number. */
static void *disk_main(void *arg)
{
	uint64_t state = 99;
	uint32_t taken = 0;

	(void)arg;
	for (;;) {
		uint32_t doorbell;

		pthread_mutex_lock(&disk.mutex);
		while ((doorbell = atomic_load(&disk.doorbell)) == taken &&
		       !atomic_load(&disk.stop))
			pthread_cond_wait(&disk.cond, &disk.mutex);
		pthread_mutex_unlock(&disk.mutex);
		if (doorbell == taken)
			return NULL;
		while (taken != doorbell) {
			dither(&state);
			disk.up[taken % SLOTS] = disk.down[taken % SLOTS];
			atomic_store(&disk.up_tail, ++taken);
			if (atomic_load(&disk.irq_on))
				core_interrupt(0);
		}
	}
}

static void disk_make(void)
{
	memset(&disk, 0, sizeof(disk));
	pthread_mutex_init(&disk.mutex, NULL);
	pthread_cond_init(&disk.cond, NULL);
	disk.dev.ops = &disk_ops;
	disk.dev.name = "disk";
	disk.dev.sector_count = 4096;
	disk.dev.block_bytes = 512;
}

/* --- guests --------------------------------------------------------------------------------------
 */

struct rig rig;

static bool on_signal(struct vblk_transport *t, unsigned queue)
{
	struct guest *g = (struct guest *)t;

	(void)queue;
	pthread_mutex_lock(&g->mutex);
	g->signals++;
	pthread_cond_signal(&g->cond);
	pthread_mutex_unlock(&g->mutex);
	return true;
}

static void on_needs_reset(struct vblk_transport *t)
{
	(void)t;
	puts("FAIL a ring is broken");
	exit(1);
}

static bool signal_wait(struct guest *g, unsigned seen)
{
	struct timespec until;
	bool found = true;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += (long)(lost_s * 1e9);
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	pthread_mutex_lock(&g->mutex);
	while (g->signals == seen && found)
		found = pthread_cond_timedwait(&g->cond, &g->mutex, &until) == 0;
	pthread_mutex_unlock(&g->mutex);
	return found;
}

static unsigned used_take(struct guest *g)
{
	uint32_t head, written_bytes;
	unsigned count = 0;

	while (vguest_used_pop(&g->drv, &head, &written_bytes)) {
		/* Once, and of those that this driver published since it last started. */
		if (head >= QUEUE_SIZE || !g->outstanding[head]) {
			puts("  a request that nobody waits for is complete");
			atomic_store(&rig.lost, 1);
			return count + 1;
		}
		g->outstanding[head] = false;
		count++;
	}
	g->taken += count;
	return count;
}

/* Until something is taken: by looking, or asleep until an interrupt. */
static bool used_look_or_sleep(struct guest *g)
{
	double give_up = seconds() + lost_s;
	unsigned seen;

	if (random_next(&g->state) % 2) {
		while (!used_take(g)) {
			if (seconds() > give_up)
				return false;
			sched_yield();
		}
		return true;
	}
	pthread_mutex_lock(&g->mutex);
	seen = g->signals;
	pthread_mutex_unlock(&g->mutex);
	vguest_irq_on(&g->drv);
	dither(&g->state);
	while (!used_take(g)) {
		if (!signal_wait(g, seen))
			return false;
		/* It may have been for what an earlier look took. */
		pthread_mutex_lock(&g->mutex);
		seen = g->signals;
		pthread_mutex_unlock(&g->mutex);
		vguest_irq_on(&g->drv);
	}
	vguest_irq_off(&g->drv);
	return true;
}

bool guest_used_wait(struct guest *g)
{
	if (used_look_or_sleep(g))
		return !atomic_load(&rig.lost);
	atomic_store(&rig.lost, 1);
	return false;
}

void guest_publish(struct guest *g)
{
	struct vguest_buf bufs[3] = {
	        {g->hdr_gpa, 16, false},
	        {g->data_gpa, 512, true},
	        {g->status_gpa, 1, true},
	};
	int head = vguest_add(&g->drv, bufs, 3);

	if (head < 0)
		abort();
	g->outstanding[head] = true;
	vguest_publish(&g->drv, (uint16_t)head);
	g->published++;
}

void guest_kick_if_needed(struct guest *g)
{
	if (!vguest_kick_needed(&g->drv))
		return;
	g->kicks++;
	ioloop_kick(&g->blk->queue[0].ioq);
}

static unsigned burst_publish(struct guest *g)
{
	unsigned burst = 1 + (random_next(&g->state) % 4 ? 0 : random_next(&g->state) % 12);

	for (unsigned i = 0; i < burst; i++) {
		guest_publish(g);
		if (i % 3 == 2)
			guest_kick_if_needed(g);
	}
	guest_kick_if_needed(g);
	return burst;
}

static bool is_over(void)
{
	return atomic_load_explicit(&rig.stop, memory_order_relaxed) || atomic_load(&rig.lost);
}

bool guest_step(struct guest *g)
{
	unsigned burst = burst_publish(g);

	while (g->taken + g->dropped != g->published) {
		dither(&g->state);
		if (!guest_used_wait(g))
			return false;
	}
	atomic_fetch_add(&g->steps, 1);
	if (atomic_fetch_sub(&rig.left, burst) <= burst)
		atomic_store(&rig.stop, 1);
	dither(&g->state);
	return !is_over();
}

bool rig_await(bool (*cond)(void *arg), void *arg)
{
	double give_up = seconds() + lost_s;

	while (!cond(arg)) {
		if (seconds() > give_up) {
			atomic_store(&rig.lost, 1);
			return false;
		}
		sched_yield();
	}
	return true;
}

static bool is_detached(void *arg)
{
	return !ioq_is_attached(arg);
}

static bool is_attached(void *arg)
{
	return ioq_is_attached(arg);
}

bool guest_reset(struct guest *g)
{
	struct ioq *q = &g->blk->queue[0].ioq;

	burst_publish(g);
	dither(&g->state);
	ioloop_detach(q);
	if (!rig_await(is_detached, q))
		return false;
	/* The pages are the guest's again: what it does with them is between nobody else and it. */
	used_take(g);
	memset(vguest_va(&g->mem, g->drv.avail_gpa), 0xa5, VIRTQ_AVAIL_BYTES(QUEUE_SIZE));
	memset(vguest_va(&g->mem, g->drv.used_gpa), 0xa5, VIRTQ_USED_BYTES(QUEUE_SIZE));
	vguest_queue_empty(&g->drv);
	vguest_irq_off(&g->drv);
	memset(g->outstanding, 0, sizeof(g->outstanding));
	g->resets++;
	g->dropped = g->published - g->taken;
	ioloop_attach(q);
	/* A driver may publish as soon as it has said so; mostly it waits. */
	return random_next(&g->state) % 4 == 0 || rig_await(is_attached, q);
}

void *guest_main(void *arg)
{
	while (!is_over() && guest_step(arg))
		;
	return NULL;
}

void *guest_reset_main(void *arg)
{
	struct guest *g = arg;

	while (!is_over() && guest_step(g))
		if (random_next(&g->state) % 4 == 0 && !guest_reset(g))
			break;
	return NULL;
}

static void guest_make(struct guest *g, unsigned index, bool event_idx, uint64_t poll_ns)
{
	struct manifest_disk cfg = {.num_queues = 1, .queue_size = QUEUE_SIZE};
	struct bio_extent extent = {&disk.dev, 0, disk.dev.sector_count};

	memset(g, 0, sizeof(*g));
	g->transport = (struct vblk_transport){on_signal, on_needs_reset};
	g->index = index;
	g->state = index * 7919 + event_idx;
	pthread_mutex_init(&g->mutex, NULL);
	pthread_cond_init(&g->cond, NULL);
	vguest_init(&g->mem, 1, 64 * KIB);
	g->hdr_gpa = vguest_alloc(&g->mem, 64, 64);
	g->data_gpa = vguest_alloc(&g->mem, 512, 64);
	g->status_gpa = vguest_alloc(&g->mem, 64, 64);
	g->blk = plat_mem_alloc(sizeof(*g->blk), 64);
	if (vblk_create(g->blk, &cfg, extent, &g->mem.mem, "races"))
		abort();
	g->blk->transport = &g->transport;
	g->blk->features = g->blk->features_offered & ~(event_idx ? 0 : VIRTIO_F_EVENT_IDX);
	g->blk->queue[0].ioq.poll_ns = poll_ns;
	if (ioloop_queue_add(&rig.loop, &g->blk->queue[0].ioq))
		abort();
	vguest_queue_init(&g->drv, &g->mem, QUEUE_SIZE, event_idx, false);
	vguest_irq_off(&g->drv);
	g->blk->queue[0].setup = (struct vblk_queue_setup){g->drv.size, g->drv.desc_gpa,
	                                                   g->drv.avail_gpa, g->drv.used_gpa};
	ioloop_attach(&g->blk->queue[0].ioq);
}

/* --- the loop
 * -------------------------------------------------------------------------------------- */

static pthread_t loop_thread, disk_thread;

static void *loop_main(void *arg)
{
	(void)arg;
	core_begin(0);
	ioloop_run(&rig.loop);
	return NULL;
}

void rig_prepare(uint64_t poll_ns, bool event_idx)
{
	memset(&rig, 0, sizeof(rig));
	atomic_store(&rig.left, UINT64_MAX);
	cores_reset();
	disk_make();
	ioloop_init(&rig.loop, 0);
	ioloop_dev_add(&rig.loop, &disk.dev);
	for (unsigned i = 0; i < GUESTS; i++)
		guest_make(&rig.guest[i], i, event_idx, poll_ns);
}

void rig_go(void)
{
	if (pthread_create(&loop_thread, NULL, loop_main, NULL) ||
	    pthread_create(&disk_thread, NULL, disk_main, NULL))
		abort();
}

void rig_start(uint64_t poll_ns, bool event_idx)
{
	rig_prepare(poll_ns, event_idx);
	rig_go();
}

void rig_stop(void)
{
	/* Whatever was lost before, this ends the loop. */
	ioloop_stop(&rig.loop);
	core_interrupt(0);
	pthread_join(loop_thread, NULL);
	pthread_mutex_lock(&disk.mutex);
	atomic_store(&disk.stop, 1);
	pthread_cond_signal(&disk.cond);
	pthread_mutex_unlock(&disk.mutex);
	pthread_join(disk_thread, NULL);
	for (unsigned i = 0; i < GUESTS; i++) {
		rig.served += rig.guest[i].blk->queue[0].ioq.counts.requests;
		vguest_free(&rig.guest[i].mem);
		free(rig.guest[i].blk);
	}
}
