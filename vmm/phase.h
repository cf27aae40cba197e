/*
 * phase.h: a guest's run in phases. A mark begins a new one. Nothing is subtracted and the hot path
 * pays nothing: each vCPU, when it next looks at its events, moves on to a fresh record, and the
 * I/O core notes its queues' counts between two passes. So minima, maxima and spread are each
 * phase's own. Only guests with control = true have more than one phase.
 */
#ifndef QUELL_VMM_PHASE_H
#define QUELL_VMM_PHASE_H

#include "arch/lock.h"
#include "vmm/exit_stats.h"
#include "vmm/ioloop.h"

#define PHASE_MAX        64u
#define PHASE_NAME_BYTES 32u /* with its NUL */

struct vm;
struct vcpu;

/* What one queue did. */
struct phase_queue {
	struct ioq_counts counts;
	uint64_t kicks;
	struct tally interrupt; /* those sent: what sending took */
};

/* What the I/O core noted at a phase's end: counts since the start, interrupts of this phase. */
struct phase_io {
	struct ioloop_counts loop; /* of all guests */
	uint64_t doorbells;        /* of all devices */
	struct phase_queue queue[];
};

struct phases {
	unsigned max;                   /* records there are */
	unsigned queue_count;           /* the guest's, over its disks */
	uint64_t exits_bytes, io_bytes; /* one record */
	struct ioloop *loop;
	struct ioloop_letter letter;
	uint8_t *io;
	struct tally *sum_kick; /* room for the report's sums, by queue number */
	struct phase_queue *sum_queue;
	struct spinlock lock; /* name, begin_tsc and who counts on */
	atomic_uint count;    /* phases begun; the current one is count - 1 */
	atomic_uint io_taken; /* phases whose end the I/O core has noted */
	uint64_t begin_tsc[PHASE_MAX];
	char name[PHASE_MAX][PHASE_NAME_BYTES];
};

/* Records for a guest whose vCPUs and disks exist; its first phase is "start". Boot core. -ENOMEM.
 */
int phases_create(struct vm *vm, struct ioloop *loop);

/* Begins a phase; returns its number at once, while other cores still get there (phase_settled).
 * Any vCPU core. -ENOSPC: too many; the current one goes on. */
int phase_mark(struct vm *vm, const char name[PHASE_NAME_BYTES]);

/* Every vCPU and the I/O core count in the current phase. Any core. */
bool phase_settled(struct vm *vm);

/* The vCPU follows its guest's marks; now_tsc: up to when its time is accounted. The vCPU's core.
 */
void phase_follow(struct vcpu *v, uint64_t now_tsc);

/* A vCPU's record of a phase. Any core may look; it is steady once the phase is settled and past.
 */
struct exit_stats *phase_exits(const struct vcpu *v, unsigned phase);

/* What a queue (the guest's number over all disks) or the loop did in a phase. Any core; the
 * current phase's numbers are as of now. */
void phase_queue_get(struct vm *vm, unsigned phase, unsigned queue, struct phase_queue *out);
void phase_loop_get(struct vm *vm, unsigned phase, struct ioloop_counts *out, uint64_t *doorbells);

/* Number of a disk's first queue among all of the guest's; of disk_count: how many there are. */
unsigned phase_queue_number(const struct vm *vm, unsigned disk);

#endif
