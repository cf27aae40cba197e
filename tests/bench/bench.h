/*
 * bench.h: the I/O core's loop as a host program. The portable code is the hypervisor's own: the
 * very object files that go into quell.efi are linked against a platform, a guest driver and an
 * NVMe controller made for the benchmark.
 */
#ifndef QUELL_TESTS_BENCH_BENCH_H
#define QUELL_TESTS_BENCH_BENCH_H

#include "drivers/nvme/nvme.h"
#include "tests/fake/virtio_guest.h"
#include "virtio/blk.h"
#include "vmm/ioloop.h"

/* --- measure.c: samples and how they are printed --------------------------------------------- */

#define SAMPLES_MAX 20000u

struct samples {
	unsigned count;
	double value[SAMPLES_MAX];
};

void samples_add(struct samples *s, double value);
/* Sorts. */
double samples_median(struct samples *s);
/* Standard error of the median, from the quartiles: those who share this machine make tails. */
double samples_error(struct samples *s);

/* "NAME = VALUE UNIT (...)  [machine ...]", one line. rse < 0: exact. */
void report(const char *name, double value, const char *unit, double rse, unsigned count);
void report_samples(const char *name, struct samples *s, const char *unit);
/* Of pairs: the error is absolute, as the difference may be nothing. */
void report_difference(const char *name, struct samples *s, const char *unit);
/* "met" or "MISSED" against what the issue asks for. */
void report_aim(const char *name, double value, double aim, const char *unit);

uint64_t bench_tsc(void);
double tsc_ns(uint64_t ticks);
/* What bench_tsc itself takes between two calls. */
double tsc_cost_ns(void);
void bench_pin(unsigned cpu);
unsigned bench_cpus(void);

/*
 * Marks the begin of a stage. When timing, the time until the next mark is added to stage; when
 * counting, the tracer counts the instructions until then (count.c).
 */
void bench_mark(unsigned stage);
#define STAGE_NONE 0u
#define STAGE_MAX  16u
extern uint64_t stage_ticks[STAGE_MAX];
extern bool bench_traced; /* in the child that count.c steps through */

/* count.c: runs work in a child, step by step; insns[stage] gets the instructions executed in it,
 * without what a mark costs. False: the machine lets nobody trace. */
bool count_instructions(void (*work)(void *), void *arg, uint64_t insns[STAGE_MAX]);

/* --- rig.c: guest, queue, disk, loop -----------------------------------------------------------
 */

#define RIG_DEPTH_MAX 64u

enum rig_disk { RIG_NVME, RIG_NULL };

struct nvme_inline; /* nvme_inline.c: a controller that always answers "success" at once */

struct rig_cfg {
	enum rig_disk disk;
	uint64_t poll_ns; /* of the busy queue */
	unsigned idle_queues;
	uint64_t idle_poll_ns;
	bool idle_woken;      /* each idle queue has had one request */
	bool idle_stays_cold; /* and is swept for ever, not for its 10 ms */
	bool device_inline;   /* the controller completes at the doorbell */
};

struct rig {
	struct ioloop loop;
	struct vguest guest, idle_guest;
	struct vguest_queue drv, *idle_drv;
	struct vblk *blk; /* queue 0 is the busy one */
	struct vblk **idle_blk;
	unsigned idle_count;
	struct bio_dev *dev;
	struct nvme_ctrl *ctrl; /* NULL: null device */
	gpa_t hdr_gpa[RIG_DEPTH_MAX], data_gpa[RIG_DEPTH_MAX], status_gpa[RIG_DEPTH_MAX];
};

struct rig *rig_make(const struct rig_cfg *cfg);
void rig_free(struct rig *r);

static inline struct vblk_queue *rig_queue(struct rig *r)
{
	return &r->blk->queue[0];
}

/* The driver's side: publishes 4 KiB reads, each an indirect chain of three; takes what is done. */
void rig_publish(struct rig *r, unsigned count);
unsigned rig_take(struct rig *r);

/* nvme_inline.c. */
struct nvme_ctrl *nvme_inline_make(bool at_doorbell);
/* Completes all that the doorbell announced. Several may exist, each behind its own doorbell. */
void nvme_inline_step(struct nvme_ctrl *c);

/* platform.c. What plat_mmio_write32 also does; NULL: nothing. */
extern void (*bench_doorbell)(volatile void *reg, uint32_t value);
/* Gives back what plat_mem_alloc gave since the mark. */
unsigned bench_mem_mark(void);
void bench_mem_release(unsigned mark);

/* --- the benchmarks -----------------------------------------------------------------------------
 */

void bench_stages(void);
void bench_passes(void);
void bench_idle(void);
void bench_steady(void);
void bench_ready(void);
void bench_threads(void);

#endif
