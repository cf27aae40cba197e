/*
 * nvme_model.h: a strict NVMe 1.4 controller for hosted tests: registers through the fake
 * platform's MMIO hooks, queues and PRPs in host memory, and a plan of faults. Everything the
 * driver must not do counts as a violation, with a line on stderr.
 *
 * It works when stepped: by nvme_model_step, and by plat_relax, which also moves the clock.
 */
#ifndef QUELL_TESTS_FAKE_NVME_MODEL_H
#define QUELL_TESTS_FAKE_NVME_MODEL_H

#include "arch/types.h"
#include "drivers/nvme/nvme_abi.h"

#define NVME_MODEL_NS_MAX    20
#define NVME_MODEL_QUEUE_MAX 4
#define NVME_MODEL_PLAN_MAX  16
#define NVME_MODEL_CMD_MAX   1024

struct nvme_model_ns {
	uint32_t nsid;
	uint8_t lba_shift;
	uint16_t metadata_bytes;
	uint64_t blocks;
	uint8_t *data;
	bool identify_fails, write_protected;
};

enum nvme_model_act {
	NVME_MODEL_ERROR,     /* completes with status */
	NVME_MODEL_DROP,      /* never completes */
	NVME_MODEL_WRONG_CID, /* completes only under xor-ed command id */
	NVME_MODEL_DUP_CID,   /* completes twice */
	NVME_MODEL_CFS,       /* controller fatal status, nothing completes from here on */
	NVME_MODEL_GONE,      /* every register reads as ones */
	NVME_MODEL_RESET,     /* RDY falls by itself */
};

struct nvme_model_plan {
	uint64_t at; /* number of the I/O command since the start, from 0 */
	enum nvme_model_act act;
	uint16_t value; /* status, or xor for the command id */
};

struct nvme_model_queue {
	bool valid;
	uint64_t base;
	uint32_t depth, head, tail;
	uint32_t phase, cq; /* of a CQ; a SQ's CQ */
	bool irq;
	bool phantom; /* CQ memory had the new phase when it was created */
};

struct nvme_model {
	/* The test sets these before nvme_model_plug. */
	uint32_t cap_to, mqes, dstrd, mpsmin, vs;
	uint8_t mdts;
	uint16_t oncs;
	uint8_t vwc, sqes, cqes;
	uint32_t ready_delay_us, stop_delay_us;
	bool never_ready, never_stops, cfs_on_enable, no_msix, no_bar, no_active_list, no_css,
	        never_shuts;
	bool stuck_list; /* the active list repeats its first id for ever */
	bool fails_set_features;
	uint16_t queues_granted; /* 0-based, what set features answers */
	uint32_t cc, csts;       /* state that the firmware left */
	const char *model, *serial, *firmware;
	uint32_t ns_count;
	struct nvme_model_ns ns[NVME_MODEL_NS_MAX];

	/* At any time. */
	bool gone, reorder, hold; /* hold: fetches I/O commands but executes none */
	uint32_t per_step;        /* I/O commands executed per step, 0: all */
	uint32_t plan_count;
	struct nvme_model_plan plan[NVME_MODEL_PLAN_MAX];

	/* What happened. */
	uint64_t violations;
	uint64_t io_commands, flushes, discards, reads, writes, write_zeroes;
	uint64_t sq_doorbells, cq_doorbells, mmio_reads, interrupts, resets;
	uint64_t largest_bytes; /* of one data command */
	uint64_t list_pages;    /* PRP list pages walked beyond a first one */

	/* Its own. */
	uint8_t *config, *regs;
	uint32_t aqa;
	uint64_t asq, acq, ready_at_tsc, stopped_at_tsc, shut_at_tsc;
	uint32_t msix[4];
	bool msix_pending;
	struct nvme_model_queue sq[NVME_MODEL_QUEUE_MAX], cq[NVME_MODEL_QUEUE_MAX];
	struct {
		struct nvme_sqe sqe;
		unsigned queue;
	} cmd[NVME_MODEL_CMD_MAX];
	unsigned cmd_count;
	uint32_t random;
};

/* Ordinary values: MQES 1023, MDTS 5, dataset management, write zeroes, write cache, MSI-X. */
void nvme_model_init(struct nvme_model *m);

/* Adds a zeroed namespace. */
struct nvme_model_ns *nvme_model_ns_add(struct nvme_model *m, uint32_t nsid, uint8_t lba_shift,
                                        uint64_t blocks);

/* Puts it into bus 0 and behind the fake platform. After pci_model_init. */
void nvme_model_plug(struct nvme_model *m, unsigned slot);

/* One step of every plugged controller. */
void nvme_model_step(void);

/* Takes all out and frees their memory. */
void nvme_model_unplug_all(void);

#endif
