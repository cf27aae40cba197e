/*
 * coalesce.h: when the interrupt for completed requests may wait for more of them. Pure: no clock, no
 * loop, no divide, the same few instructions however much is in flight.
 *
 * Who has few requests in flight waits for each one, so each is told at once. Who has many is kept
 * busy by the rest: one interrupt for a quarter of them costs no throughput and at most a quarter of
 * what a request takes anyway (Little: in flight = rate x latency). VMware's vIC (USENIX ATC 2011)
 * goes by commands in flight and rate too; it has no bound on the delay, this has.
 */
#ifndef QUELL_VMM_COALESCE_H
#define QUELL_VMM_COALESCE_H

#include "arch/types.h"

#define COALESCE_FLIGHT_MIN 4u  /* with fewer in flight nothing waits */
#define COALESCE_BATCH_MAX  16u /* completions that one interrupt waits for */
#define COALESCE_HOLD_US    50u /* how long the first of them waits at most */

struct coalesce {
	uint64_t hold_max_tsc;   /* 0: off */
	uint64_t interval_tsc;   /* mean time from one completion to the next */
	uint64_t last_tsc;       /* when the last ones came */
	uint64_t hold_until_tsc; /* while held > 0 */
	uint32_t held;           /* completions whose interrupt waits */
};

/* Nothing held, and a rate not known yet counts as low. hold_max_tsc: COALESCE_HOLD_US, or 0: off. */
void coalesce_init(struct coalesce *c, uint64_t hold_max_tsc);

/*
 * completed more requests are done (0: only time has gone by) and in_flight are not. True: the
 * interrupt waits, ask again when more are done and no later than at hold_until_tsc. False: send
 * now what is owed. may_hold: the caller will come back in time.
 */
bool coalesce_hold(struct coalesce *c, uint32_t completed, uint32_t in_flight, bool may_hold,
                   uint64_t now_tsc);

#endif
