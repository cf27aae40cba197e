#include "drivers/nvme/nvme.h"
#include "arch/platform.h"

#define ADMIN_TIMEOUT_US 10000000ull
#define CSTS_EVERY       64u /* a register read is slow, a look at memory is not */

/* The completion of command cid, or -EAGAIN. Others are leftovers and are dropped. */
static int completion_find(struct nvme_ctrl *c, uint16_t cid, uint16_t *status, uint32_t *result)
{
	struct nvme_ring *r = &c->admin;
	int rc = -EAGAIN;
	uint32_t dw3;

	for (uint32_t i = 0; rc && i < r->depth && nvme_ring_peek(r, &dw3); i++) {
		if (NVME_CQE_CID(dw3) == cid) {
			*status = NVME_CQE_STATUS(dw3);
			*result = r->cq[r->cq_head].result;
			rc = 0;
		} else if (nvme_may_log(c)) {
			plat_log("%s: completion for admin command 0x%x, which is not outstanding: "
			         "ignored",
			         c->name, NVME_CQE_CID(dw3));
		}
		nvme_ring_pop(r);
		plat_mmio_write32(r->cq_doorbell, r->cq_head);
	}
	return rc;
}

int nvme_admin(struct nvme_ctrl *c, struct nvme_sqe *sqe, uint32_t *result)
{
	uint64_t deadline_tsc = plat_tsc() + plat_tsc_hz() / 1000000 * ADMIN_TIMEOUT_US;
	struct nvme_ring *r = &c->admin;
	uint32_t ignored, csts, looks = 0;
	uint16_t status;

	sqe->cid = ++c->admin_cid;
	*nvme_ring_next(r) = *sqe;
	atomic_thread_fence(memory_order_release);
	plat_mmio_write32(r->sq_doorbell, r->sq_tail);
	while (completion_find(c, sqe->cid, &status, result ? result : &ignored)) {
		plat_relax();
		if (++looks % CSTS_EVERY)
			continue;
		csts = nvme_csts_read(c);
		if (csts == NVME_CSTS_GONE)
			return -ENODEV;
		if (csts & NVME_CSTS_CFS || plat_tsc() > deadline_tsc) {
			if (nvme_may_log(c))
				plat_log("%s: admin command 0x%x: %s", c->name, sqe->opcode,
				         csts & NVME_CSTS_CFS ? "controller fatal status"
				                              : "no answer");
			return csts & NVME_CSTS_CFS ? -EIO : -ETIMEDOUT;
		}
	}
	if (!status)
		return 0;
	if (nvme_may_log(c))
		plat_log("%s: admin command 0x%x failed: NVMe status 0x%x", c->name, sqe->opcode,
		         status);
	return -EIO;
}

int nvme_identify(struct nvme_ctrl *c, enum nvme_identify_cns cns, uint32_t nsid, void *page)
{
	struct nvme_sqe sqe = {
	        .opcode = NVME_ADMIN_IDENTIFY,
	        .nsid = nsid,
	        .prp1 = plat_hpa(page),
	        .cdw10 = cns,
	};

	return nvme_admin(c, &sqe, NULL);
}

int nvme_queues_request(struct nvme_ctrl *c, unsigned want)
{
	struct nvme_sqe sqe = {
	        .opcode = NVME_ADMIN_SET_FEATURES,
	        .cdw10 = NVME_FEATURE_NUM_QUEUES,
	        .cdw11 = (want - 1) << 16 | (want - 1),
	};
	uint32_t granted = 0;
	int rc = nvme_admin(c, &sqe, &granted);

	if (rc)
		return rc;
	/* Both counts are 0-based and may be more or less than asked. */
	return (int)MIN(MIN(granted & 0xffff, granted >> 16) + 1, want);
}

int nvme_pair_create(struct nvme_ctrl *c, struct nvme_pair *q)
{
	uint32_t id_and_size = (q->ring.depth - 1) << 16 | q->id;
	struct nvme_sqe cq = {
	        .opcode = NVME_ADMIN_CREATE_CQ,
	        .prp1 = plat_hpa(q->ring.cq),
	        .cdw10 = id_and_size,
	        /* Vector 0 in the upper half; it stays masked until irq_set. */
	        .cdw11 = NVME_QUEUE_CONTIGUOUS | (c->has_msix ? NVME_CQ_IRQ_ENABLE : 0),
	};
	struct nvme_sqe sq = {
	        .opcode = NVME_ADMIN_CREATE_SQ,
	        .prp1 = plat_hpa(q->ring.sq),
	        .cdw10 = id_and_size,
	        .cdw11 = (uint32_t)q->id << 16 | NVME_QUEUE_CONTIGUOUS,
	};
	int rc = nvme_admin(c, &cq, NULL);

	return rc ? rc : nvme_admin(c, &sq, NULL);
}
