/*
 * nvme.h: the NVMe driver behind bio.h. Portable, polled, without copies where the device can
 * reach the data itself.
 *
 *   init.c     finds controllers, brings them up, makes a bio_dev of each namespace
 *   admin.c    the admin queue and its commands
 *   queue.c    bio to commands to completions: the hot path
 *   prp.c      which part of a bio one command can take, and its PRP list
 *   recover.c  timeouts, fatal status, removal
 *
 * All namespaces of a controller share its I/O queue pair. The boot core owns everything until
 * the I/O core starts, then the I/O core does. The hot path reads no register: it writes the SQ
 * doorbell once per commit and the CQ doorbell once per poll that found something. Both count in
 * bio_dev.doorbells; bio_dev.commands counts SQEs, completions counts bios.
 *
 * A bio is taken whenever one command is free and no other bio is half issued. What does not fit
 * then (it is larger than the free part of the queue) follows from poll as commands come free, so
 * a bio of any size progresses; until then submit says -EAGAIN to others.
 */
#ifndef QUELL_DRIVERS_NVME_H
#define QUELL_DRIVERS_NVME_H

#include "drivers/bio.h"
#include "drivers/bio_list.h"
#include "drivers/nvme/nvme_abi.h"
#include "drivers/pci.h"

#define NVME_CTRL_MAX    8u
#define NVME_NS_MAX      16u  /* namespaces of one controller */
#define NVME_DEPTH_MAX   256u /* entries of an I/O queue; a command index fits 8 bits */
#define NVME_ADMIN_DEPTH 16u

#define NVME_TRANSFER_MAX (4u * 1024u * 1024u) /* bytes of one command */
#define NVME_LIST_PAGES   3u                   /* PRP list of 1024 entries and its links */
#define NVME_BOUNCE_BYTES (2u * PAGE_SIZE)     /* fits PRP1 and PRP2 */

#define NVME_TICK_US       1000000ull /* how often timeouts and CSTS are looked at */
#define NVME_TIMEOUT_TICKS 10u        /* a command this old is lost */
#define NVME_CHECK_POLLS   256u       /* polls between looks at the clock */

struct nvme_ctrl;

/* A submission and a completion queue and their doorbells (4.1). */
struct nvme_ring {
	struct nvme_sqe *sq;
	struct nvme_cqe *cq;
	volatile void *sq_doorbell, *cq_doorbell;
	uint32_t depth;
	uint32_t sq_tail, sq_rung; /* next to fill, and what the device knows */
	uint32_t cq_head, phase;
	uint32_t cq_unrung; /* entries taken that the device has not heard of */
};

/* A place in a bio's segments. */
struct nvme_cursor {
	const struct bio_seg *segs;
	uint32_t seg_count, seg;
	uint64_t seg_offset;
};

/* A command id's low byte is its index here; the high byte changes at each use. */
struct nvme_cmd {
	struct bio *bio; /* NULL: free */
	uint8_t generation;
	uint8_t epoch;         /* tick it was issued in */
	uint32_t bounce_bytes; /* 0: the device reaches the data itself */
	struct nvme_cursor bounce_at;
};

struct nvme_pair {
	/* Hot. */
	struct nvme_ring ring;
	uint32_t free_count;
	uint8_t free[NVME_DEPTH_MAX];
	struct bio_list finished; /* wait for poll to call done */
	uint32_t finished_count;
	uint32_t check_in; /* polls until the next look at the clock */
	uint8_t epoch;
	bool irq_on;

	/* The bio being issued; partial: it waits for free commands. */
	struct bio *partial;
	struct nvme_cursor cursor;
	uint64_t lba, blocks_left;

	struct nvme_ctrl *ctrl;
	uint64_t *lists;  /* NVME_LIST_PAGES pages per command */
	uint8_t *bounces; /* NVME_BOUNCE_BYTES per command */
	uint16_t id;
	uint64_t next_tick_tsc, tick_tsc;
	uint64_t bounced; /* commands that went through a copy */
	struct nvme_cmd cmd[NVME_DEPTH_MAX];
};

struct nvme_ns {
	struct bio_dev dev;
	struct nvme_pair *pair;
	struct nvme_ctrl *ctrl;
	uint32_t nsid;
	uint8_t block_shift;  /* 9 or 12 */
	uint8_t sector_shift; /* block_shift - 9 */
	char name[16];
};

struct nvme_ctrl {
	struct pci_dev pci;
	volatile uint8_t *regs;
	uint64_t cap;
	uint32_t max_bytes; /* of one command: MDTS and ours */
	uint32_t ns_count;
	bool dead; /* bios complete with BIO_EGONE */
	bool has_msix;
	uint32_t log_left; /* lines it may still write */
	uint64_t ready_timeout_us;
	struct nvme_ring admin;
	uint16_t admin_cid;
	struct pci_msix msix;
	struct nvme_pair io;
	struct nvme_ns ns[NVME_NS_MAX];
	char name[8];
	char model[41], serial[21], firmware[9];
};

/*
 * Finds every NVMe controller, starts it, logs it and its namespaces, and registers their bio_devs
 * with source.c. A controller that does not work is logged and left out, but keeps its number:
 * nvme0, nvme1, ... in PCI order, then n and the namespace id. Boot core, once. Returns how many
 * controllers started.
 */
int nvme_probe_all(void);

/*
 * Lets completions end plat_wait on that core, where the machine and the controller can (MSI-X);
 * without this call, and where they cannot, bio_dev.ops->irq_set is NULL. Boot core, after
 * nvme_probe_all, before the I/O core starts.
 */
void nvme_irq_route(unsigned core);

/*
 * Tells every controller that power goes off and waits up to 5 s for each to have written its
 * cache (7.6.2). Nothing may be in flight or be submitted afterwards. Boot core, at the very end.
 */
void nvme_shutdown_all(void);

/* --- inside the driver --- */

enum nvme_fault { NVME_FAULT_TIMEOUT, NVME_FAULT_FATAL, NVME_FAULT_GONE };

/* init.c. CC.EN to 0 and CSTS.RDY with it (7.3.2). -ETIMEDOUT, -ENODEV. */
int nvme_ctrl_disable(struct nvme_ctrl *c);
/* Reset, admin queue, enable, number of queues, I/O queue pair. Negative errno, logged. */
int nvme_ctrl_up(struct nvme_ctrl *c);
uint32_t nvme_csts_read(struct nvme_ctrl *c);
/* A line about this controller may be logged: true some 64 times, then never. */
bool nvme_may_log(struct nvme_ctrl *c);

/* admin.c. One admin command, polled. 0, -EIO (logged), -ETIMEDOUT, -ENODEV. */
int nvme_admin(struct nvme_ctrl *c, struct nvme_sqe *sqe, uint32_t *result);
/* page receives 4096 bytes (5.15). */
int nvme_identify(struct nvme_ctrl *c, enum nvme_identify_cns cns, uint32_t nsid, void *page);
/* Asks for want I/O queue pairs; how many there are, >= 1, or negative (5.21.1.7). */
int nvme_queues_request(struct nvme_ctrl *c, unsigned want);
/* Creates the completion, then the submission queue of a pair (5.3, 5.4). */
int nvme_pair_create(struct nvme_ctrl *c, struct nvme_pair *q);

/* queue.c. Memory for a queue or a pair of depth entries. -ENOMEM. */
int nvme_ring_alloc(struct nvme_ring *r, uint32_t depth);
int nvme_pair_alloc(struct nvme_pair *q, struct nvme_ctrl *c, uint16_t id, uint32_t depth);
/* Both queues empty, CQ zeroed (4.6: no old phase may look new). */
void nvme_ring_reset(struct nvme_ring *r);
/* The device has been stopped: every outstanding bio finishes with status, all commands are free.
 */
void nvme_pair_abort(struct nvme_pair *q, enum bio_status status);
extern const struct bio_ops nvme_bio_ops, nvme_bio_ops_irq;

/* recover.c. From poll, every NVME_CHECK_POLLS: clock, CSTS, old commands. */
void nvme_check(struct nvme_pair *q);
void nvme_recover(struct nvme_ctrl *c, enum nvme_fault fault);

/* prp.c. Bytes from here on that one command can take, a multiple of block_bytes up to limit. */
uint64_t nvme_prp_span(const struct nvme_cursor *at, uint64_t limit_bytes, uint32_t block_bytes);
/* PRP1 and PRP2 for len_bytes that nvme_prp_span allowed; list has NVME_LIST_PAGES (4.3). */
void nvme_prp_build(const struct nvme_cursor *at, uint64_t len_bytes, uint64_t *list,
                    hpa_t list_hpa, struct nvme_sqe *sqe);
/* Bytes to bounce where nvme_prp_span is 0; 0: the segments end too early. */
uint32_t nvme_bounce_span(const struct nvme_cursor *at, uint64_t limit_bytes, uint32_t block_bytes);
void nvme_bounce_copy(const struct nvme_cursor *at, void *bounce, uint32_t len_bytes, bool to_segs);
void nvme_cursor_advance(struct nvme_cursor *at, uint64_t len_bytes);

/* The next free SQE, zeroed by its user. */
static inline struct nvme_sqe *nvme_ring_next(struct nvme_ring *r)
{
	struct nvme_sqe *sqe = &r->sq[r->sq_tail];

	r->sq_tail = r->sq_tail + 1 == r->depth ? 0 : r->sq_tail + 1;
	return sqe;
}

/* The oldest unread completion's last dword when there is one. */
static inline bool nvme_ring_peek(struct nvme_ring *r, uint32_t *dw3)
{
	*dw3 = atomic_load_explicit(&r->cq[r->cq_head].cid_status, memory_order_acquire);
	return NVME_CQE_PHASE(*dw3) == r->phase;
}

static inline void nvme_ring_pop(struct nvme_ring *r)
{
	if (++r->cq_head == r->depth) {
		r->cq_head = 0;
		r->phase ^= 1;
	}
}

#endif
