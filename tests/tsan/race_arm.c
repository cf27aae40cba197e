/*
 * race_arm.c: a ring is armed while something is published, as densely as two processors can. Of
 * the two sides at least one must see the other: the driver that it has to kick, or the look after
 * arming that something is there.
 */
#include "tests/tsan/races.h"

#include "tests/fake/virtio_guest.h"
#include "virtio/ring.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define QUEUE_SIZE 64u
#define WAIT_MAX   100000u

static struct duel {
	struct vguest mem;
	struct vguest_queue drv;
	struct virtq vq;
	CACHE_ALIGN atomic_uint_least64_t guest_at; /* step that each side has come to */
	CACHE_ALIGN atomic_uint_least64_t core_at;
	uint64_t rounds;
	bool fenced, kicked; /* kicked: read by the other side after the round */
	uint64_t armed, raced, missed;
} duel;

static void meet(atomic_uint_least64_t *mine, atomic_uint_least64_t *other, uint64_t at)
{
	unsigned spins = 0;

	atomic_store(mine, at);
	while (atomic_load(other) < at)
		if (++spins % 256 == 0)
			sched_yield();
}

/* Each round: publish one and ask whether to kick, while the other side arms and looks. */
static void *guest_main(void *arg)
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

static void core_main(void)
{
	static struct virtq_chain chain;
	uint64_t state = 6;
	uint32_t wait = 0;

	for (uint64_t i = 0; i < duel.rounds; i++) {
		bool pending;

		ring_disarm(&duel.vq);
		meet(&duel.core_at, &duel.guest_at, 3 * i + 1);
		short_delay(&state);
		/* So long that either side is first as often as the other. */
		for (volatile uint32_t n = wait; n > 0; n--)
			;
		ring_arm(&duel.vq);
		if (duel.fenced)
			atomic_thread_fence(memory_order_seq_cst);
		pending = ring_pending(&duel.vq);
		meet(&duel.core_at, &duel.guest_at, 3 * i + 2);
		wait = duel.kicked ? MIN(wait + 1, WAIT_MAX) : wait - (wait > 0);
		duel.armed += duel.kicked;
		duel.raced += !duel.kicked && pending;
		duel.missed += !duel.kicked && !pending;
		if (ring_pop(&duel.vq, &chain) != 1)
			abort();
		ring_push(&duel.vq, chain.head, 0);
		ring_publish(&duel.vq);
		meet(&duel.core_at, &duel.guest_at, 3 * i + 3);
	}
}

static void duel_run(bool event_idx, bool fenced, uint64_t rounds)
{
	pthread_t thread;

	memset(&duel, 0, sizeof(duel));
	duel.rounds = rounds;
	duel.fenced = fenced;
	vguest_init(&duel.mem, 1, 64 * KIB);
	vguest_queue_init(&duel.drv, &duel.mem, QUEUE_SIZE, event_idx, false);
	if (ring_attach(&duel.vq, &duel.mem.mem, QUEUE_SIZE, duel.drv.desc_gpa, duel.drv.avail_gpa,
	                duel.drv.used_gpa, event_idx, false) ||
	    pthread_create(&thread, NULL, guest_main, NULL))
		abort();
	core_main();
	pthread_join(thread, NULL);
	vguest_free(&duel.mem);
}

static void arming(const char *name, bool event_idx, uint64_t rounds)
{
	if (!case_wanted(name))
		return;
	duel_run(event_idx, true, rounds);
	verdict(duel.missed == 0 && duel.armed + duel.raced == rounds && duel.raced > 0, name,
	        "%llu interleavings, %llu armed (the guest kicked), %llu raced (the last look "
	        "found "
	        "it), %llu missed",
	        (unsigned long long)rounds, (unsigned long long)duel.armed,
	        (unsigned long long)duel.raced, (unsigned long long)duel.missed);
}

/* Without the fence something must be missed, or the cases above show nothing. Store buffers are
 * the processor's own only where no sanitizer stands between, and there have to be two of them. */
static void mutant(const char *name)
{
	double give_up = seconds() + 40;
	uint64_t rounds = 0;

	if (!case_wanted(name))
		return;
#ifdef __SANITIZE_THREAD__
	return;
#endif
	if (sysconf(_SC_NPROCESSORS_ONLN) < 2) {
		printf("SKIP %s: one processor\n", name);
		return;
	}
	do {
		duel_run(true, false, 200000);
		rounds += duel.rounds;
	} while (!duel.missed && seconds() < give_up);
	verdict(duel.missed > 0, name, "%llu interleavings, %llu missed",
	        (unsigned long long)rounds, (unsigned long long)duel.missed);
}

void race_arm(const struct limits *limits)
{
	arming("arming_event_idx", true, limits->rounds);
	arming("arming_flags", false, limits->rounds);
	mutant("arming_misses_without_fence");
}
