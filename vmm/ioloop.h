/*
 * ioloop.h: the I/O core's loop: adaptive poll and notification over many queues, DESIGN section 4.
 *
 * The I/O core owns everything here but what is marked otherwise. Other cores may do two things:
 * OR a ready bit (ioloop_kick) and post to the mailbox (ioloop_attach, ioloop_detach, ioloop_stop).
 * In a pass that keeps polling there is no lock, no atomic read-modify-write, no full fence but the
 * one a signalled batch needs, and no IPI to this core.
 */
#ifndef QUELL_VMM_IOLOOP_H
#define QUELL_VMM_IOLOOP_H

#include "arch/lock.h"
#include "arch/types.h"
#include "drivers/bio.h"
#include "vmm/poll_policy.h"
#include "vmm/ready.h"

#define IOLOOP_QUEUE_MAX  READY_MAX
#define IOLOOP_DEV_MAX    16u
#define IOLOOP_COLD_SWEEP 32u /* cold queues looked at in a pass that found nothing so far */
#define IOLOOP_BUSY_SWEEP 2u  /* and, in one that did, beside one for each request taken */
#define IOLOOP_SERVE_MAX  64u /* requests taken from one queue in one pass */

struct ioq;

/* What became of the interrupt for what a queue published. */
enum ioq_signal {
	IOQ_SIGNAL_SENT,
	IOQ_SIGNAL_SUPPRESSED, /* the guest wants none */
	IOQ_SIGNAL_DEFERRED,   /* ioq_defer: it waits for more */
	IOQ_SIGNAL_NONE,       /* there was nothing to tell of */
};

/* What a queue's device (virtio/blk.c) does for the loop. All on the I/O core. */
struct ioq_ops {
	/* Pops and submits at most budget requests; returns how many were taken from the ring or
	 * otherwise got further (progress). Must remember a request the driver had no room for. */
	unsigned (*serve)(struct ioq *q, unsigned budget);
	/* Is there something serve would take? A look without side effect. */
	bool (*pending)(struct ioq *q);
	/* Notifications on (no fence inside) and off. */
	void (*arm)(struct ioq *q);
	void (*disarm)(struct ioq *q);
	/* Publishes used elements and interrupts the guest if it wants that. Called once in a pass
	 * for a queue that called ioq_completed, and when an interrupt held back by ioq_defer is
	 * due. */
	enum ioq_signal (*publish)(struct ioq *q);
	/* Attach on the I/O core (maps the ring). -EINVAL leaves the queue unattached. */
	int (*attach)(struct ioq *q);
	/* Nothing of it is in flight any more: may be detached. */
	bool (*drained)(struct ioq *q);
};

/*
 * HOT queues are polled each pass; COLD ones are swept, both with notifications off. ARMED ones have
 * notifications on and cost nothing: they stand in no list until a kick sets their ready bit.
 */
enum ioq_state { IOQ_UNATTACHED, IOQ_ARMED, IOQ_COLD, IOQ_HOT, IOQ_DRAINING };

#define IOQ_POLL_AUTO   POLL_POLICY_AUTO
#define IOQ_POLL_ALWAYS POLL_POLICY_ALWAYS

/* Exact counts, written by the I/O core but for kicks. */
struct ioq_counts {
	uint64_t requests, read_bytes, written_bytes, errors;
	uint64_t interrupts, interrupts_suppressed;
	uint64_t interrupts_deferred; /* batches whose interrupt waited for later ones */
	uint64_t arms, disarms;
};

struct ioq {
	/* Hot. */
	const struct ioq_ops *ops;
	enum ioq_state state;
	bool completed; /* on the publish list of this pass */
	bool deferred;  /* an interrupt is owed, by defer_tsc */
	bool defer_listed;
	uint32_t id;       /* index in the loop and of its ready bit */
	uint32_t list_pos; /* position in the hot or cold list */
	uint64_t last_progress_ticks;
	struct ioloop *loop;
	struct ioq *next_completed;
	uint64_t poll_ns; /* 0: never poll; a number; AUTO; ALWAYS */
	struct bio_dev *dev;
	uint64_t defer_tsc;
	struct ioq *next_deferred;
	struct poll_policy_queue policy; /* mode 0 while unattached */
	struct ioq_counts counts;

	/* Written by vCPU cores. Own cache line. */
	CACHE_ALIGN atomic_uint_least64_t kicks;
	/* Mailbox: what was asked and what has been done. The transport writes want (0 detached, 1
	 * attached); the loop sets is when it got there. */
	atomic_uint want, is;
	/* As poll_ns: asked for, and taken over by the loop between two passes. */
	atomic_uint_least64_t want_poll_ns, is_poll_ns;
};

/* A letter to the I/O core: run is called there, between two passes, once or more after a post. */
struct ioloop_letter {
	void (*run)(struct ioloop_letter *letter);
	atomic_uint posted;
	struct ioloop_letter *next;
};

struct ioloop_counts {
	uint64_t passes, empty_passes, promotions, demotions, sleeps, wakes, last_look_hits;
	uint64_t kick_wakes; /* of the wakes, those by a guest's kick: idle to active */
	uint64_t commits, mailbox_rounds, sleep_tsc;
	uint64_t retired; /* cold queues armed because nothing came */
};

struct ioloop {
	/* Hot. */
	uint32_t hot_count, cold_count, dev_count, sweep_pos, hot_pos;
	struct ioq **hot, **cold;
	uint32_t taken; /* requests, in this pass */
	struct ioq *completed_list, *deferred_list;
	uint64_t now_tsc; /* when this pass began */
	/*
	 * The policy's clock: TSC less the time in which this core evidently did not run, as when a
	 * hypervisor below or firmware took it away. Polling has not failed for so long.
	 */
	uint64_t now_ticks, stolen_tsc, stolen_above_tsc;
	uint64_t arrival_ticks; /* of what this pass finds: when a kick told of it, else now */
	uint64_t kick_ticks;    /* of the kick that ended the sleep before this pass; 0: none */
	uint32_t draining_count;
	/* Rare work for the same core, such as console input: called after each wake-up and every
	 * housekeep_tsc while awake; the core also wakes for it if housekeep_timed. May be NULL. */
	void (*housekeep)(void);
	uint64_t housekeep_tsc, housekeep_last_tsc, cold_idle_ticks;
	bool housekeep_timed;
	struct bio_dev *dev[IOLOOP_DEV_MAX];
	struct ioq **queue; /* by id; queue_room entries, as have the other lists */
	struct ioq **draining;
	uint32_t queue_count, queue_room;
	struct ioloop_letter *letters;
	unsigned core;
	struct ioloop_counts counts;
	struct poll_policy_core policy;

	/* Other cores write below. */
	CACHE_ALIGN struct ready ready;   /* by queue id */
	CACHE_ALIGN struct ready changed; /* queues that mailbox is about */
	CACHE_ALIGN atomic_uint mailbox;  /* non-zero: some queue's want differs from its is */
	atomic_uint stop;
	CACHE_ALIGN atomic_uint sleeping; /* written by the I/O core */
	atomic_uint wake;                 /* non-zero ends plat_wait */
	atomic_uint_least64_t rouse_tsc; /* when the last sleep was ended by another core; 0: not */
};

/* Empty loop bound to a core. Boot core. */
void ioloop_init(struct ioloop *loop, unsigned core);

/* Tells the automatic policy what a VM exit costs a guest here, and what a guest's waiting is worth
 * in time of this core (docs/policy.md). Boot core, before start. */
void ioloop_costs_set(struct ioloop *loop, uint64_t exit_ns, uint32_t weight);

/* Adds a device, or an unattached queue whose ops and poll_ns are set. Boot core, before start.
 * -ENOSPC: too many; -ENOMEM. */
int ioloop_dev_add(struct ioloop *loop, struct bio_dev *dev);
int ioloop_queue_add(struct ioloop *loop, struct ioq *q);

/* The hot exit: says that the driver notified queue q. Any core but the I/O core. */
void ioloop_kick(struct ioq *q);

/* Asks for attach or detach; done when ioq_is_attached agrees. Any core but the I/O core. */
void ioloop_attach(struct ioq *q);
void ioloop_detach(struct ioq *q);
static inline bool ioq_is_attached(struct ioq *q)
{
	return atomic_load_explicit(&q->is, memory_order_acquire) != 0;
}

/* Changes a queue's poll_ns (a number, IOQ_POLL_AUTO, IOQ_POLL_ALWAYS) between two passes; is_poll_ns
 * says when that is done. Any core but the I/O core. */
void ioloop_poll_set(struct ioq *q, uint64_t poll_ns);

/* A letter is added once, on the boot core before start, and then posted on any core. */
void ioloop_letter_add(struct ioloop *loop, struct ioloop_letter *letter);
void ioloop_letter_post(struct ioloop *loop, struct ioloop_letter *letter);

/* From ioq_ops.serve or a bio's done: this queue has used elements to publish. I/O core. */
void ioq_completed(struct ioq *q);

/*
 * From ioq_ops.publish of a HOT queue: the interrupt for what was published waits for more. publish
 * is called again when more is done, and without that in the first pass at or after by_tsc, or at
 * once when the queue is no longer hot. The loop does not sleep meanwhile. I/O core.
 */
void ioq_defer(struct ioq *q, uint64_t by_tsc);

/* One pass; true when it made progress. I/O core. */
bool ioloop_pass(struct ioloop *loop);

/* Runs until ioloop_stop. I/O core. */
void ioloop_run(struct ioloop *loop);
void ioloop_stop(struct ioloop *loop);

#endif
