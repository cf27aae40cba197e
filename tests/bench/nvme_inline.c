/*
 * The least NVMe controller: one I/O queue pair, every command succeeds, no data moves. The driver
 * in front of it is the real one; only its start-up is skipped.
 */
#include "arch/platform.h"
#include "tests/bench/bench.h"

#include <stdlib.h>
#include <string.h>

#define DEPTH       NVME_DEPTH_MAX
#define SQ_DOORBELL (NVME_REG_DOORBELL + 8)
#define CQ_DOORBELL (NVME_REG_DOORBELL + 12)

struct model {
	struct nvme_ctrl ctrl;
	uint8_t *regs;
	uint32_t sq_head, cq_tail, phase;
};

static struct model *of(struct nvme_ctrl *c)
{
	return CONTAINER_OF(c, struct model, ctrl);
}

void nvme_inline_step(struct nvme_ctrl *c)
{
	struct model *m = of(c);
	uint32_t tail = *(volatile uint32_t *)(m->regs + SQ_DOORBELL);

	while (m->sq_head != tail) {
		const struct nvme_sqe *sqe = &c->io.ring.sq[m->sq_head];
		struct nvme_cqe *cqe = &c->io.ring.cq[m->cq_tail];

		m->sq_head = m->sq_head + 1 == DEPTH ? 0 : m->sq_head + 1;
		cqe->sq_head = (uint16_t)m->sq_head;
		cqe->sq_id = 1;
		atomic_store_explicit(&cqe->cid_status, sqe->cid | m->phase << 16,
		                      memory_order_release);
		if (++m->cq_tail == DEPTH) {
			m->cq_tail = 0;
			m->phase ^= 1;
		}
	}
}

/* Behind the submission doorbell stands which model it belongs to, far from all real registers. */
#define OWNER (NVME_REG_DOORBELL + PAGE_SIZE / 2)

static void on_doorbell(volatile void *reg, uint32_t value)
{
	volatile uint8_t *regs = (volatile uint8_t *)reg - SQ_DOORBELL;

	(void)value;
	/* The completion doorbell is odd in units of 8 bytes. */
	if ((uintptr_t)reg % 8 == 0)
		nvme_inline_step(*(struct nvme_ctrl *volatile *)(regs + OWNER));
}

struct nvme_ctrl *nvme_inline_make(bool at_doorbell)
{
	struct model *m = plat_mem_alloc(sizeof(*m), CACHE_LINE_BYTES);
	struct nvme_ctrl *c = &m->ctrl;
	struct nvme_ns *ns = &c->ns[0];

	m->regs = plat_mem_alloc(NVME_REG_DOORBELL + PAGE_SIZE, PAGE_SIZE);
	m->phase = 1;
	*(uint32_t *)(m->regs + NVME_REG_CSTS) = NVME_CSTS_RDY;
	c->regs = m->regs;
	c->max_bytes = 1u << 20;
	c->ns_count = 1;
	strcpy(c->name, "nvme0");
	if (nvme_pair_alloc(&c->io, c, 1, DEPTH))
		abort();
	c->io.ring.sq_doorbell = c->regs + SQ_DOORBELL;
	c->io.ring.cq_doorbell = c->regs + CQ_DOORBELL;
	ns->pair = &c->io;
	ns->ctrl = c;
	ns->nsid = 1;
	ns->block_shift = 9;
	ns->dev = (struct bio_dev){
	        .ops = &nvme_bio_ops,
	        .name = "nvme0n1",
	        .sector_count = 1u << 24,
	        .block_bytes = 512,
	        .physical_block_bytes = 4096,
	        .max_transfer_bytes = c->max_bytes,
	        .has_cache = true,
	};
	*(struct nvme_ctrl **)(m->regs + OWNER) = c;
	bench_doorbell = at_doorbell ? on_doorbell : NULL;
	return c;
}
