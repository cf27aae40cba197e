/*
 * rig.h: the I/O loop in one thread, a device in another, and guests whose threads the cases make.
 */
#ifndef QUELL_TESTS_TSAN_RIG_H
#define QUELL_TESTS_TSAN_RIG_H

#include "tests/fake/virtio_guest.h"
#include "tests/tsan/races.h"
#include "virtio/blk.h"
#include "vmm/ioloop.h"

#include <pthread.h>

#define GUESTS     2u
#define QUEUE_SIZE 64u

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
	bool outstanding[QUEUE_SIZE]; /* by head: published, not yet taken */
	uint64_t state, published, taken, kicks;
	uint64_t resets, dropped;    /* the driver started again; requests it gave up so */
	atomic_uint_least64_t steps; /* guest_step's, begun and ended */
	uint64_t steps_aim;          /* the main thread's */
};

struct rig {
	struct ioloop loop;
	struct guest guest[GUESTS];
	atomic_uint lost;           /* something was waited for in vain, or came twice */
	atomic_uint stop;           /* guests: enough */
	atomic_uint_least64_t left; /* requests; at 0 guests stop */
	uint64_t served;            /* after rig_stop: requests, by the loop's own count */
};

extern struct rig rig;

/* Loop, device, and guests with one queue each, about to be attached; and their threads. */
void rig_prepare(uint64_t poll_ns, bool event_idx);
void rig_go(void);
void rig_start(uint64_t poll_ns, bool event_idx); /* both */

/* Joins loop and device. The guests' threads have ended. */
void rig_stop(void);

/* The guest's side; each on the guest's own thread. Waits that fail set rig.lost. */
void guest_publish(struct guest *g);
void guest_kick_if_needed(struct guest *g);
bool guest_used_wait(struct guest *g); /* takes at least one */

/* A burst of requests, and until all are taken. False: over or lost. */
bool guest_step(struct guest *g);

/* Detaches with requests on their way, spoils the ring once told that it is its own again, and
 * attaches anew. */
bool guest_reset(struct guest *g);

/* pthread: steps until rig.stop; guest_reset_main with resets in between. arg: struct guest. */
void *guest_main(void *arg);
void *guest_reset_main(void *arg);

/* True when cond() comes to hold within lost_s; else rig.lost is set. */
bool rig_await(bool (*cond)(void *arg), void *arg);

#endif
