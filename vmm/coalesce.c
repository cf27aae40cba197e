#include "vmm/coalesce.h"

#include "arch/platform.h"

/* A pause counts no more than this many longest holds, so that a burst after it is soon seen. */
#define PAUSE_HOLDS 8u
#define EWMA_SHIFT  3u

void coalesce_init(struct coalesce *c, uint64_t hold_max_tsc)
{
	memset(c, 0, sizeof(*c));
	c->hold_max_tsc = hold_max_tsc;
	c->interval_tsc = hold_max_tsc * PAUSE_HOLDS;
}

/* Least power of two not below n, as a shift; n > 0. */
static unsigned log2_ceil(uint32_t n)
{
	return n == 1 ? 0 : 32u - (unsigned)__builtin_clz(n - 1);
}

/* n completions in one time: the error of n intervals moves the mean by at most an eighth of it. */
static void interval_learn(struct coalesce *c, uint32_t completed, uint64_t now_tsc)
{
	uint64_t gap_tsc = MIN(now_tsc - c->last_tsc, c->hold_max_tsc * PAUSE_HOLDS);
	int64_t error_tsc = (int64_t)gap_tsc - (int64_t)(completed * c->interval_tsc);

	c->interval_tsc += (uint64_t)(error_tsc >> (log2_ceil(completed) + EWMA_SHIFT));
	c->last_tsc = now_tsc;
}

bool coalesce_hold(struct coalesce *c, uint32_t completed, uint32_t in_flight, bool may_hold,
                   uint64_t now_tsc)
{
	uint32_t batch = MIN(in_flight / 4, COALESCE_BATCH_MAX);

	if (completed)
		interval_learn(c, completed, now_tsc);
	if (!may_hold || in_flight < COALESCE_FLIGHT_MIN || c->held + completed >= batch ||
	    c->held + completed == 0)
		goto send;
	if (c->held) {
		if ((int64_t)(now_tsc - c->hold_until_tsc) >= 0)
			goto send;
	} else {
		/* Holding pays only if another may be expected meanwhile, with one to spare. */
		if (2 * c->interval_tsc >= c->hold_max_tsc)
			goto send;
		c->hold_until_tsc = now_tsc + MIN(batch * c->interval_tsc, c->hold_max_tsc);
	}
	c->held += completed;
	return true;
send:
	c->held = 0;
	return false;
}
