/*
 * races.c: the real I/O loop in one thread, guests and a device in others, over real rings:
 * publish, arm, sleep, kick and complete race with random delays. A lost wake-up is a request or an
 * interrupt that nobody sees for seconds; built with ThreadSanitizer, any unordered access is one
 * too.
 *
 * usage: races [SECONDS [REQUESTS [ROUNDS]]]
 * Each of the cases runs until one of the first two is reached; ROUNDS are of the duel in which a
 * ring is armed just as something is published. Without numbers a short run.
 * races --mutant: the duel without its fence, which must miss something.
 */
#include "tests/fake/virtio_guest.h"
#include "virtio/blk.h"
#include "vmm/ioloop.h"
#include "arch/platform.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define GUESTS     2u
#define QUEUE_SIZE 64u
#define LOST_S     4.0 /* nobody is this slow */

/* --- platform: a core that sleeps is a thread on a condition variable --------------------------
 */

static pthread_mutex_t core_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t core_cond = PTHREAD_COND_INITIALIZER;
static bool core_interrupted;
static uint64_t core_waits;

uint64_t plat_tsc(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double seconds(void)
{
	return (double)plat_tsc() / 1e9;
}

uint64_t plat_tsc_hz(void)
{
	return 1000000000;
}

/* The deadline is only for devices that die; here it would hide what is lost. */
void plat_wait(const atomic_uint *wake, uint64_t deadline_tsc)
{
	(void)deadline_tsc;
	pthread_mutex_lock(&core_mutex);
	core_waits++;
	while (!atomic_load(wake) && !core_interrupted)
		pthread_cond_wait(&core_cond, &core_mutex);
	core_interrupted = false;
	pthread_mutex_unlock(&core_mutex);
}

static void core_interrupt(void)
{
	pthread_mutex_lock(&core_mutex);
	core_interrupted = true;
	pthread_cond_signal(&core_cond);
	pthread_mutex_unlock(&core_mutex);
}

void plat_wake(unsigned core)
{
	(void)core;
	core_interrupt();
}

void plat_relax(void)
{
	sched_yield();
}

unsigned plat_core(void)
{
	return 0;
}

void *plat_mem_alloc(uint64_t len_bytes, uint64_t align_bytes)
{
	void *mem =
	        aligned_alloc(MAX(align_bytes, 64u), ALIGN_UP(len_bytes, MAX(align_bytes, 64u)));

	return mem ? memset(mem, 0, len_bytes) : NULL;
}

/* --- random delays ------------------------------------------------------------------------------
 */

static uint32_t random_next(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(*state >> 33);
}

/* Mostly none, sometimes some hundred cycles, now and then as long as a wake-up. */
static void dither(uint64_t *state)
{
	uint32_t r = random_next(state);

	if (r % 512 == 0)
		usleep(r >> 9 & 127);
	else if (r % 64 == 0)
		sched_yield();
	else if (r % 4 == 0)
		for (volatile uint32_t i = 0; i < (r >> 8 & 255); i++)
			;
}

/* --- a device with a thread of its own
 * ------------------------------------------------------------ */

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
				core_interrupt();
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

/* --- guests
 * --------------------------------------------------------------------------------------- */

struct guest {
	struct vblk_transport transport; /* first: queue_signal gets it back */
	struct vguest mem;
	struct vguest_queue drv;
	struct vblk *blk;
	gpa_t hdr_gpa, data_gpa, status_gpa;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	unsigned signals;
	unsigned index;
	uint64_t state, published, taken, kicks;
};

static struct guest guests[GUESTS];
static struct ioloop loop;
static atomic_uint guests_stop;
static atomic_uint lost;
static atomic_uint_least64_t requests_left;

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
	until.tv_sec += (time_t)LOST_S;
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

	while (vguest_used_pop(&g->drv, &head, &written_bytes))
		count++;
	g->taken += count;
	return count;
}

/* Until something is taken: by looking, or asleep until an interrupt. */
static bool used_wait(struct guest *g)
{
	double give_up = seconds() + LOST_S;
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

static void publish(struct guest *g)
{
	struct vguest_buf bufs[3] = {
	        {g->hdr_gpa, 16, false},
	        {g->data_gpa, 512, true},
	        {g->status_gpa, 1, true},
	};
	int head = vguest_add(&g->drv, bufs, 3);

	if (head < 0)
		abort();
	vguest_publish(&g->drv, (uint16_t)head);
	g->published++;
}

static void kick_if_needed(struct guest *g)
{
	if (!vguest_kick_needed(&g->drv))
		return;
	g->kicks++;
	ioloop_kick(&g->blk->queue[0].ioq);
}

static void *guest_main(void *arg)
{
	struct guest *g = arg;

	while (!atomic_load_explicit(&guests_stop, memory_order_relaxed) && !atomic_load(&lost)) {
		unsigned burst = 1 + (random_next(&g->state) % 4 ? 0 : random_next(&g->state) % 12);

		for (unsigned i = 0; i < burst; i++) {
			publish(g);
			if (i % 3 == 2)
				kick_if_needed(g);
		}
		kick_if_needed(g);
		while (g->taken != g->published) {
			dither(&g->state);
			if (!used_wait(g)) {
				atomic_store(&lost, 1);
				return NULL;
			}
		}
		if (atomic_fetch_sub(&requests_left, burst) <= burst)
			atomic_store(&guests_stop, 1);
		dither(&g->state);
	}
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
	if (ioloop_queue_add(&loop, &g->blk->queue[0].ioq))
		abort();
	vguest_queue_init(&g->drv, &g->mem, QUEUE_SIZE, event_idx, false);
	vguest_irq_off(&g->drv);
	g->blk->queue[0].setup = (struct vblk_queue_setup){g->drv.size, g->drv.desc_gpa,
	                                                   g->drv.avail_gpa, g->drv.used_gpa};
	ioloop_attach(&g->blk->queue[0].ioq);
}

/* --- cases
 * ------------------------------------------------------------------------------------------ */

static void *loop_main(void *arg)
{
	(void)arg;
	ioloop_run(&loop);
	return NULL;
}

static pthread_t loop_thread, disk_thread;
static uint64_t served; /* requests, by the loop's own count */

static void threads_start(uint64_t poll_ns, bool event_idx)
{
	disk_make();
	ioloop_init(&loop, 0);
	ioloop_dev_add(&loop, &disk.dev);
	atomic_store(&guests_stop, 0);
	atomic_store(&lost, 0);
	core_interrupted = false;
	core_waits = 0;
	for (unsigned i = 0; i < GUESTS; i++)
		guest_make(&guests[i], i, event_idx, poll_ns);
	if (pthread_create(&loop_thread, NULL, loop_main, NULL) ||
	    pthread_create(&disk_thread, NULL, disk_main, NULL))
		abort();
}

static void threads_stop(void)
{
	/* Whatever was lost before, this ends the loop. */
	ioloop_stop(&loop);
	core_interrupt();
	pthread_join(loop_thread, NULL);
	pthread_mutex_lock(&disk.mutex);
	atomic_store(&disk.stop, 1);
	pthread_cond_signal(&disk.cond);
	pthread_mutex_unlock(&disk.mutex);
	pthread_join(disk_thread, NULL);
	served = 0;
	for (unsigned i = 0; i < GUESTS; i++) {
		served += guests[i].blk->queue[0].ioq.counts.requests;
		vguest_free(&guests[i].mem);
		free(guests[i].blk);
	}
}

static void *clock_main(void *arg)
{
	double end = seconds() + *(double *)arg;

	while (!atomic_load(&guests_stop) && !atomic_load(&lost) && seconds() < end)
		usleep(5000);
	atomic_store(&guests_stop, 1);
	return NULL;
}

/* True: nothing was lost, and each request completed exactly once. */
static bool race(uint64_t poll_ns, bool event_idx, double time_s, uint64_t requests,
                 const char *name)
{
	pthread_t thread[GUESTS], clock;
	uint64_t published = 0, taken = 0, kicks = 0;

	atomic_store(&requests_left, requests);
	threads_start(poll_ns, event_idx);
	pthread_create(&clock, NULL, clock_main, &time_s);
	for (unsigned i = 0; i < GUESTS; i++)
		pthread_create(&thread[i], NULL, guest_main, &guests[i]);
	for (unsigned i = 0; i < GUESTS; i++)
		pthread_join(thread[i], NULL);
	pthread_join(clock, NULL);
	for (unsigned i = 0; i < GUESTS; i++) {
		published += guests[i].published;
		taken += guests[i].taken;
		kicks += guests[i].kicks;
	}
	threads_stop();
	printf("  %s: %llu requests, %llu kicks, %llu sleeps, %llu last looks that found "
	       "something\n",
	       name, (unsigned long long)taken, (unsigned long long)kicks,
	       (unsigned long long)core_waits, (unsigned long long)loop.counts.last_look_hits);
	return !atomic_load(&lost) && taken == published && served == published;
}

static const struct {
	const char *name;
	uint64_t poll_ns;
	bool event_idx;
} cases[] = {
        {"races_poll_0_event_idx", 0, true},
        {"races_poll_0_flags", 0, false},
        {"races_poll_1us_event_idx", 1000, true},
        {"races_poll_1us_flags", 1000, false},
        {"races_poll_auto_event_idx", IOQ_POLL_AUTO, true},
        {"races_poll_auto_flags", IOQ_POLL_AUTO, false},
        {"races_poll_always_event_idx", IOQ_POLL_ALWAYS, true},
        {"races_poll_always_flags", IOQ_POLL_ALWAYS, false},
};

static bool sleep_await(void)
{
	double give_up = seconds() + LOST_S;

	while (!atomic_load(&loop.sleeping))
		if (seconds() > give_up)
			return false;
		else
			usleep(1000);
	return true;
}

/* Further than an index has bits, without a kick; then one that needs one. */
static bool long_quiet(bool event_idx)
{
	struct guest *g = &guests[0];
	bool good = true;

	threads_start(500000000, event_idx);
	for (unsigned i = 0; i < 70000 && good; i += 8) {
		for (unsigned n = 0; n < 8; n++)
			publish(g);
		kick_if_needed(g);
		while (good && g->taken != g->published)
			good = used_wait(g);
	}
	good = good && g->kicks == 1 && sleep_await();
	publish(g);
	kick_if_needed(g);
	good = good && g->kicks == 2 && used_wait(g);
	printf("  70,000 requests with %llu kicks\n", (unsigned long long)g->kicks);
	threads_stop();
	return good;
}

/* --- arming against publishing, as densely as two processors can --------------------------------
 */

struct duel {
	struct vguest mem;
	struct vguest_queue drv;
	struct virtq vq;
	CACHE_ALIGN atomic_uint_least64_t guest_at; /* round that each side has come to */
	CACHE_ALIGN atomic_uint_least64_t core_at;
	uint64_t rounds;
	bool fenced, kicked; /* kicked: read by the other side after the round */
};

static struct duel duel;

static void meet(atomic_uint_least64_t *mine, atomic_uint_least64_t *other, uint64_t at)
{
	unsigned spins = 0;

	atomic_store(mine, at);
	while (atomic_load(other) < at)
		if (++spins % 256 == 0)
			sched_yield();
}

static void short_delay(uint64_t *state)
{
	for (volatile uint32_t i = random_next(state) % 12; i > 0; i--)
		;
}

/* Each round: publish one and ask whether to kick, while the other side arms and looks. */
static void *duel_guest(void *arg)
{
	uint64_t state = 5;
	uint32_t head, written_bytes;

	(void)arg;
	for (uint64_t i = 0; i < duel.rounds; i++) {
		struct vguest_buf buf = {VGUEST_BASE_GPA, 64, false};
		int at = vguest_add(&duel.drv, &buf, 1);

		meet(&duel.guest_at, &duel.core_at, 3 * i + 1);
		short_delay(&state);
		vguest_publish(&duel.drv, (uint16_t)at);
		duel.kicked = vguest_kick_needed(&duel.drv);
		meet(&duel.guest_at, &duel.core_at, 3 * i + 2);
		meet(&duel.guest_at, &duel.core_at, 3 * i + 3);
		while (!vguest_used_pop(&duel.drv, &head, &written_bytes))
			;
	}
	return NULL;
}

/* How many requests neither side saw. */
static uint64_t duel_core(void)
{
	static struct virtq_chain chain;
	uint64_t state = 6, missed = 0;

	for (uint64_t i = 0; i < duel.rounds; i++) {
		bool pending;

		ring_disarm(&duel.vq);
		meet(&duel.core_at, &duel.guest_at, 3 * i + 1);
		short_delay(&state);
		ring_arm(&duel.vq);
		if (duel.fenced)
			atomic_thread_fence(memory_order_seq_cst);
		pending = ring_pending(&duel.vq);
		meet(&duel.core_at, &duel.guest_at, 3 * i + 2);
		missed += !pending && !duel.kicked;
		if (ring_pop(&duel.vq, &chain) != 1)
			abort();
		ring_push(&duel.vq, chain.head, 0);
		ring_publish(&duel.vq);
		meet(&duel.core_at, &duel.guest_at, 3 * i + 3);
	}
	return missed;
}

static uint64_t duel_missed(bool event_idx, bool fenced, uint64_t rounds)
{
	pthread_t thread;
	uint64_t missed;

	memset(&duel, 0, sizeof(duel));
	duel.rounds = rounds;
	duel.fenced = fenced;
	vguest_init(&duel.mem, 1, 64 * KIB);
	vguest_queue_init(&duel.drv, &duel.mem, QUEUE_SIZE, event_idx, false);
	if (ring_attach(&duel.vq, &duel.mem.mem, QUEUE_SIZE, duel.drv.desc_gpa, duel.drv.avail_gpa,
	                duel.drv.used_gpa, event_idx, false) ||
	    pthread_create(&thread, NULL, duel_guest, NULL))
		abort();
	missed = duel_core();
	pthread_join(thread, NULL);
	vguest_free(&duel.mem);
	printf("  %llu times armed while something was published, %s: %llu missed\n",
	       (unsigned long long)rounds, fenced ? "with the fence" : "without",
	       (unsigned long long)missed);
	return missed;
}

static int verdict(bool good, const char *name)
{
	printf("%s %s\n", good ? "ok" : "FAIL", name);
	fflush(stdout);
	return !good;
}

/* Without the fence something must be missed, or the duel shows nothing. Store buffers are the
 * processor's own only where no sanitizer stands between, and there have to be two of them. */
static int mutant(void)
{
	double give_up = seconds() + 40;
	uint64_t missed = 0;

	if (sysconf(_SC_NPROCESSORS_ONLN) < 2) {
		puts("SKIP duel_misses_without_fence: one processor");
		return 0;
	}
	while (!missed && seconds() < give_up)
		missed = duel_missed(true, false, 200000);
	return verdict(missed > 0, "duel_misses_without_fence");
}

int main(int argc, char **argv)
{
	double time_s = argc > 1 ? atof(argv[1]) : 0.5;
	uint64_t requests = argc > 2 ? strtoull(argv[2], NULL, 10) : UINT32_MAX;
	uint64_t rounds = argc > 3 ? strtoull(argv[3], NULL, 10) : 100000;
	int failed = 0;

	if (argc > 1 && strcmp(argv[1], "--mutant") == 0)
		return mutant();
	failed |= verdict(duel_missed(true, true, rounds) == 0, "duel_event_idx");
	failed |= verdict(duel_missed(false, true, rounds) == 0, "duel_flags");
	for (unsigned i = 0; i < ARRAY_LEN(cases); i++)
		failed |= verdict(
		        race(cases[i].poll_ns, cases[i].event_idx, time_s, requests, cases[i].name),
		        cases[i].name);
	failed |= verdict(long_quiet(true), "races_70000_then_sleep_event_idx");
	failed |= verdict(long_quiet(false), "races_70000_then_sleep_flags");
	return failed;
}
