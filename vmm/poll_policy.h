/*
 * poll_policy.h: how long the I/O core polls without success before it arms all and sleeps, and how
 * long a queue stays hot. docs/policy.md has the reasons and the bounds.
 *
 * Pure: no clock, no globals; time comes in as ticks of any constant rate (the loop passes TSC, the
 * simulator nanoseconds). One core owns the object. Each call takes constant time, without a
 * divide, an allocation or floating point. A gap is the time from the last progress to the next
 * arrival; one that ends before the first empty pass asked for no decision and is not learned from.
 */
#ifndef QUELL_VMM_POLL_POLICY_H
#define QUELL_VMM_POLL_POLICY_H

#include "arch/types.h"

/* Values of a queue's mode as in ioloop.h: 0 is never polled, else a fixed time in ticks. */
#define POLL_POLICY_AUTO   UINT64_MAX
#define POLL_POLICY_ALWAYS (UINT64_MAX - 1)

/* 4 bins an octave from 2^8 to 2^27 ticks, one below and one above. */
#define POLL_POLICY_BINS      78u
#define POLL_POLICY_PERIODIC  16u
#define POLL_POLICY_HISTORIES 8u /* of 3 gaps */

/* Gaps, weighted so that recent ones count for more; and the threshold that costs least on them. */
struct poll_policy_hist {
	uint64_t sum[POLL_POLICY_BINS]; /* of the gaps in the bin */
	uint32_t n[POLL_POLICY_BINS];
	uint32_t total;
	uint32_t unread; /* gaps since best_ticks was computed */
	uint64_t best_ticks;
};

/* Ways to choose; the one that would have cost least lately decides. */
enum poll_policy_way {
	POLL_POLICY_STEADY,  /* best threshold on the last 512 to 1,024 gaps */
	POLL_POLICY_RECENT,  /* on the last 32 to 64 */
	POLL_POLICY_AFTER,   /* on gaps that followed three like the last three, short or long */
	POLL_POLICY_REPEAT,  /* the next gap is like the last */
	POLL_POLICY_NEAREST, /* until the nearest arrival expected of a regular queue */
	POLL_POLICY_WAYS
};

struct poll_policy_cfg {
	uint64_t
	        wake_ticks; /* guess at the time from kick or interrupt to first pass, until known */
	uint64_t exit_ticks; /* what a kick costs the vCPU that sends it */
	uint32_t weight_x16; /* worth of a tick of latency in ticks of polling, in sixteenths */
	bool wake_given;     /* wake_ticks is exact: do not learn */
};

struct poll_policy_queue {
	uint64_t mode;
	uint64_t last_ticks;           /* last progress */
	uint64_t hot_ticks;            /* stays hot for so long after it */
	int64_t mean_ticks, dev_ticks; /* of its own gaps: mean and mean absolute deviation */
	uint32_t samples;
	uint8_t slot; /* 1 + index in core->periodic; 0: not there */
};

struct poll_policy_core {
	/* Read in each empty pass. */
	uint64_t sleep_at_ticks;
	bool decided, slept, missed; /* missed: the gap before ended in a sleep */
	uint32_t always;             /* queues in mode ALWAYS: never sleeps */

	uint64_t last_ticks; /* last progress of an automatic queue */
	uint64_t auto_until_ticks, fixed_until_ticks;
	uint64_t polled_ticks; /* in this gap, before the sleep */
	uint64_t paid_ticks;   /* price of the wake-up that ended the sleep; 0: none yet */
	/* The price of a sleep, (wake + exit) x weight, by requests in flight or not: then it is an
	 * interrupt that ends it, as a rule, and no guest pays an exit. */
	uint64_t price_ticks[2], exit_ticks;
	uint64_t wake_ticks; /* average of what was seen */
	uint32_t weight_x16;
	bool wake_given, wake_seen, busy;
	uint32_t history; /* of the last gaps: 1 for a long one, the latest lowest */
	uint64_t prev_gap_ticks[2];
	/*
	 * 2 x optimum - own cost, so far, within 0 and a few prices. A threshold that may lose so
	 * much against twice the optimum is taken only if the credit covers it.
	 */
	uint64_t credit_ticks;
	uint32_t clipped_gaps; /* for which the credit was too small, since the last loan */
	uint32_t debt;         /* prices lent and not yet paid back */
	bool clipped;
	uint64_t plan_ticks[POLL_POLICY_WAYS];    /* what each way says about the present gap */
	uint8_t way[2];                           /* enum poll_policy_way in use */
	uint64_t cost_ticks[2][POLL_POLICY_WAYS]; /* by requests in flight or not; decayed, x 256 */
	struct poll_policy_queue *periodic[POLL_POLICY_PERIODIC];
	uint32_t periodic_count;
	/* By requests in flight or not; after: and by history. */
	struct poll_policy_hist steady[2], recent[2];
	struct poll_policy_hist after[2][POLL_POLICY_HISTORIES];
};

/* What a look at the rings found: the cases of SEEDS S0. */
enum poll_policy_look {
	POLL_POLICY_DISABLED, /* polling is off: notifications on */
	POLL_POLICY_PENDING,  /* work was already there: one pass, they stay off */
	POLL_POLICY_HIT,      /* success that does not count as progress: they stay off */
	POLL_POLICY_EMPTY,    /* nothing: on when the whole budget has failed */
};

/* Start of a core or queue. A weight of 16 takes a tick of latency for a tick of polling. */
void poll_policy_init(struct poll_policy_core *core, const struct poll_policy_cfg *cfg);
void poll_policy_queue_init(struct poll_policy_core *core, struct poll_policy_queue *q,
                            uint64_t mode);

/* Changes a queue's mode, between passes. */
void poll_policy_mode_set(struct poll_policy_core *core, struct poll_policy_queue *q,
                          uint64_t mode);

/* The queue is gone (detached). */
void poll_policy_queue_drop(struct poll_policy_core *core, struct poll_policy_queue *q);

/*
 * Queue q got further in the pass that began at now: once for each such queue and pass. at is when
 * the work arrived: the time of the kick if one told of it, else now.
 */
void poll_policy_progress(struct poll_policy_core *core, struct poll_policy_queue *q, uint64_t at,
                          uint64_t now);

/* All is armed and the core sleeps from now on. */
void poll_policy_sleeps(struct poll_policy_core *core, uint64_t now);

/*
 * How long a wake-up took, from whoever asked for it to the first pass: whatever ended the sleep.
 * Without effect where wake_given.
 */
void poll_policy_wake_learn(struct poll_policy_core *core, uint64_t wake_ticks);

/*
 * A kick or device interrupt ended the sleep; wake_ticks is from it to the first pass, kicked says
 * that a guest paid an exit for it. Before progress is told. Not to be called for a wake-up by
 * timer or mailbox: the gap goes on, and the core may sleep at once again.
 */
void poll_policy_woke(struct poll_policy_core *core, uint64_t wake_ticks, bool kicked);

/* Decides on the present gap; poll_policy_sleep_at calls it. */
void poll_policy_decide(struct poll_policy_core *core, bool in_flight);

/*
 * When to sleep if no progress comes before. After an empty pass only; in_flight: some device has
 * requests. UINT64_MAX: never.
 */
static inline uint64_t poll_policy_sleep_at(struct poll_policy_core *core, bool in_flight)
{
	if (unlikely(!core->decided))
		poll_policy_decide(core, in_flight);
	return core->sleep_at_ticks;
}

/* Until when a queue without progress stays hot. 0: it is never polled. */
static inline uint64_t poll_policy_hot_until(const struct poll_policy_queue *q)
{
	if (q->mode == POLL_POLICY_ALWAYS)
		return UINT64_MAX;
	return q->mode ? q->last_ticks + q->hot_ticks : 0;
}

/* True: turn notifications on. */
static inline bool poll_policy_notify_on(struct poll_policy_core *core, enum poll_policy_look look,
                                         bool in_flight, uint64_t now)
{
	if (look == POLL_POLICY_EMPTY)
		return now >= poll_policy_sleep_at(core, in_flight);
	return look == POLL_POLICY_DISABLED;
}

#endif
