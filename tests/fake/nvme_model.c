#include "tests/fake/nvme_model.h"
#include "tests/fake/pci_model.h"
#include "tests/fake/platform.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL_MAX   4
#define BAR_BYTES   0x100000u
#define MSIX_OFFSET 0x80000u
#define MSIX_CAP    0x60
#define US          1000ull /* fake_tsc runs at 1 GHz */
#define RELAX_TSC   (50 * US)

static struct nvme_model *models[MODEL_MAX];
static unsigned model_count;

#define VIOLATION(m, ...)                                                                          \
	do {                                                                                       \
		(m)->violations++;                                                                 \
		fprintf(stderr, "  nvme model: " __VA_ARGS__);                                     \
		fputc('\n', stderr);                                                               \
	} while (0)

static void *at(uint64_t hpa)
{
	return (void *)(uintptr_t)hpa;
}

static bool dma_allowed(struct nvme_model *m)
{
	return pci_model_get16(m->config, 4) & 4;
}

/* --- completions --- */

static void interrupt(struct nvme_model *m)
{
	bool enabled = pci_model_get16(m->config, MSIX_CAP + 2) & 0x8000;

	if (m->no_msix || !enabled)
		return;
	if (m->msix[3] & 1) {
		m->msix_pending = true;
		return;
	}
	if (m->msix[0] == 0)
		VIOLATION(m, "interrupt to address 0");
	m->interrupts++;
}

static bool complete(struct nvme_model *m, unsigned queue, uint16_t cid, uint16_t status,
                     uint32_t result)
{
	struct nvme_model_queue *sq = &m->sq[queue], *cq = &m->cq[sq->cq];
	struct nvme_cqe *cqe = (struct nvme_cqe *)at(cq->base) + cq->tail;

	if ((cq->tail + 1) % cq->depth == cq->head)
		return false;
	cqe->result = result;
	cqe->sq_head = (uint16_t)sq->head;
	cqe->sq_id = (uint16_t)queue;
	atomic_store_explicit(&cqe->cid_status, cid | (uint32_t)status << 17 | cq->phase << 16,
	                      memory_order_release);
	if (++cq->tail == cq->depth) {
		cq->tail = 0;
		cq->phase ^= 1;
	}
	if (cq->irq)
		interrupt(m);
	return true;
}

/* --- data --- */

struct span {
	uint64_t hpa, len_bytes;
};

/* Walks PRP1, PRP2 and lists (4.3). Returns how many spans, 0 on a violation. */
static unsigned prp_walk(struct nvme_model *m, const struct nvme_sqe *sqe, uint64_t len_bytes,
                         struct span *out, unsigned max)
{
	uint64_t first = MIN(len_bytes, PAGE_SIZE - (sqe->prp1 & (PAGE_SIZE - 1)));
	uint64_t left = len_bytes - first, list_hpa = sqe->prp2;
	unsigned count = 0, slot;

	if (sqe->prp1 & 3 || !sqe->prp1) {
		VIOLATION(m, "PRP1 %#llx", (unsigned long long)sqe->prp1);
		return 0;
	}
	out[count++] = (struct span){sqe->prp1, first};
	if (!left)
		return count;
	if (left <= PAGE_SIZE) {
		if (sqe->prp2 & (PAGE_SIZE - 1) || !sqe->prp2) {
			VIOLATION(m, "PRP2 %#llx", (unsigned long long)sqe->prp2);
			return 0;
		}
		out[count++] = (struct span){sqe->prp2, left};
		return count;
	}
	if (list_hpa & 7 || !list_hpa) {
		VIOLATION(m, "PRP list at %#llx", (unsigned long long)list_hpa);
		return 0;
	}
	slot = (list_hpa & (PAGE_SIZE - 1)) / 8;
	while (left) {
		uint64_t entry;

		memcpy(&entry, at(ALIGN_DOWN(list_hpa, (uint64_t)PAGE_SIZE) + slot * 8), 8);
		if (entry & (PAGE_SIZE - 1) || !entry) {
			VIOLATION(m, "PRP list entry %#llx", (unsigned long long)entry);
			return 0;
		}
		if (slot == 511 && left > PAGE_SIZE) {
			m->list_pages++;
			list_hpa = entry;
			slot = 0;
			continue;
		}
		if (count == max) {
			VIOLATION(m, "PRP list without end");
			return 0;
		}
		out[count++] = (struct span){entry, MIN(left, PAGE_SIZE)};
		left -= out[count - 1].len_bytes;
		slot++;
	}
	return count;
}

static struct nvme_model_ns *ns_find(struct nvme_model *m, uint32_t nsid)
{
	for (uint32_t i = 0; i < m->ns_count; i++)
		if (m->ns[i].nsid == nsid)
			return &m->ns[i];
	return NULL;
}

/* The smallest id above nsid, 0: none. */
static uint32_t ns_after(struct nvme_model *m, uint32_t nsid)
{
	uint32_t next = 0;

	for (uint32_t i = 0; i < m->ns_count; i++)
		if (m->ns[i].nsid > nsid && (!next || m->ns[i].nsid < next))
			next = m->ns[i].nsid;
	return next;
}

static uint16_t execute_rw(struct nvme_model *m, struct nvme_model_ns *ns,
                           const struct nvme_sqe *sqe)
{
	static struct span spans[2048];
	uint64_t lba = sqe->cdw10 | (uint64_t)sqe->cdw11 << 32, blocks = (sqe->cdw12 & 0xffff) + 1;
	uint64_t len_bytes = blocks << ns->lba_shift;
	uint8_t *data = ns->data + (lba << ns->lba_shift);
	unsigned count;

	if (lba >= ns->blocks || blocks > ns->blocks - lba)
		return NVME_SC_LBA_RANGE;
	if (sqe->cdw12 >> 16)
		VIOLATION(m, "cdw12 %#x", sqe->cdw12);
	if (sqe->opcode == NVME_IO_WRITE_ZEROES) {
		m->write_zeroes++;
		memset(data, 0, len_bytes);
		return NVME_SC_SUCCESS;
	}
	if (m->mdts && len_bytes > (uint64_t)PAGE_SIZE << m->mdts) {
		VIOLATION(m, "%llu bytes exceed MDTS", (unsigned long long)len_bytes);
		return NVME_SC_INVALID_FIELD;
	}
	m->largest_bytes = MAX(m->largest_bytes, len_bytes);
	count = prp_walk(m, sqe, len_bytes, spans, ARRAY_LEN(spans));
	if (!count)
		return NVME_SC_INVALID_FIELD;
	for (unsigned i = 0; i < count; i++) {
		if (sqe->opcode == NVME_IO_READ)
			memcpy(at(spans[i].hpa), data, spans[i].len_bytes);
		else
			memcpy(data, at(spans[i].hpa), spans[i].len_bytes);
		data += spans[i].len_bytes;
	}
	if (sqe->opcode == NVME_IO_READ)
		m->reads++;
	else
		m->writes++;
	return NVME_SC_SUCCESS;
}

static uint16_t execute_discard(struct nvme_model *m, struct nvme_model_ns *ns,
                                const struct nvme_sqe *sqe)
{
	const struct nvme_dsm_range *range = at(sqe->prp1);

	if (sqe->cdw10 != 0 || sqe->cdw11 != NVME_DSM_DEALLOCATE)
		VIOLATION(m, "dataset management %#x %#x", sqe->cdw10, sqe->cdw11);
	if (range->lba >= ns->blocks || range->block_count > ns->blocks - range->lba)
		return NVME_SC_LBA_RANGE;
	m->discards++;
	memset(ns->data + (range->lba << ns->lba_shift), 0,
	       (uint64_t)range->block_count << ns->lba_shift);
	return NVME_SC_SUCCESS;
}

static uint16_t execute_io(struct nvme_model *m, const struct nvme_sqe *sqe)
{
	struct nvme_model_ns *ns = ns_find(m, sqe->nsid);

	if (!ns)
		return NVME_SC_INVALID_NAMESPACE;
	if (sqe->flags || sqe->metadata || sqe->cdw2 || sqe->cdw3)
		VIOLATION(m, "reserved fields set");
	switch (sqe->opcode) {
	case NVME_IO_READ:
	case NVME_IO_WRITE: return execute_rw(m, ns, sqe);
	case NVME_IO_WRITE_ZEROES:
		return m->oncs & NVME_ONCS_WRITE_ZEROES ? execute_rw(m, ns, sqe)
		                                        : NVME_SC_INVALID_OPCODE;
	case NVME_IO_DATASET_MANAGEMENT:
		return m->oncs & NVME_ONCS_DSM ? execute_discard(m, ns, sqe)
		                               : NVME_SC_INVALID_OPCODE;
	case NVME_IO_FLUSH: m->flushes++; return NVME_SC_SUCCESS;
	}
	VIOLATION(m, "I/O opcode %#x", sqe->opcode);
	return NVME_SC_INVALID_OPCODE;
}

static const struct nvme_model_plan *planned(const struct nvme_model *m)
{
	for (uint32_t i = 0; i < m->plan_count; i++)
		if (m->plan[i].at == m->io_commands)
			return &m->plan[i];
	return NULL;
}

static void act(struct nvme_model *m, const struct nvme_model_plan *plan,
                const struct nvme_sqe *sqe, unsigned queue)
{
	switch (plan->act) {
	case NVME_MODEL_ERROR: complete(m, queue, sqe->cid, plan->value, 0); break;
	case NVME_MODEL_DROP: break;
	case NVME_MODEL_WRONG_CID: complete(m, queue, sqe->cid ^ plan->value, 0, 0); break;
	case NVME_MODEL_DUP_CID:
		complete(m, queue, sqe->cid, execute_io(m, sqe), 0);
		complete(m, queue, sqe->cid, 0, 0);
		break;
	case NVME_MODEL_CFS: m->csts |= NVME_CSTS_CFS; break;
	case NVME_MODEL_GONE: m->gone = true; break;
	case NVME_MODEL_RESET: m->csts &= ~NVME_CSTS_RDY; break;
	}
}

/* --- admin --- */

static void text_put(char *out, const char *text, size_t len_bytes)
{
	memset(out, ' ', len_bytes);
	memcpy(out, text, MIN(strlen(text), len_bytes));
}

static uint16_t identify(struct nvme_model *m, const struct nvme_sqe *sqe)
{
	static union {
		uint8_t bytes[4096];
		uint32_t list[1024];
		struct nvme_id_ctrl ctrl;
		struct nvme_id_ns ns;
	} page;
	struct nvme_model_ns *ns = ns_find(m, sqe->nsid);
	unsigned n = 0;

	memset(&page, 0, sizeof(page));
	switch (sqe->cdw10 & 0xff) {
	case NVME_CNS_CONTROLLER:
		text_put(page.ctrl.model, m->model, sizeof(page.ctrl.model));
		text_put(page.ctrl.serial, m->serial, sizeof(page.ctrl.serial));
		text_put(page.ctrl.firmware, m->firmware, sizeof(page.ctrl.firmware));
		page.ctrl.mdts = m->mdts;
		page.ctrl.sqes = m->sqes;
		page.ctrl.cqes = m->cqes;
		page.ctrl.oncs = m->oncs;
		page.ctrl.vwc = m->vwc;
		page.ctrl.namespace_count = NVME_MODEL_NS_MAX;
		break;
	case NVME_CNS_ACTIVE_LIST:
		if (m->no_active_list)
			return NVME_SC_INVALID_FIELD;
		for (uint32_t last = sqe->nsid, next; (next = ns_after(m, last)); last = next)
			page.list[n++] = next;
		for (; m->stuck_list && n < ARRAY_LEN(page.list); n++)
			page.list[n] = page.list[0];
		break;
	case NVME_CNS_NAMESPACE:
		if (ns && ns->identify_fails)
			return 0x006;
		if (!ns)
			break; /* all zeros: inactive */
		page.ns.size_blocks = page.ns.capacity_blocks = ns->blocks;
		page.ns.format_count = 1;
		page.ns.format = 1;
		page.ns.formats[0] = (struct nvme_lba_format){.lba_shift = 9};
		page.ns.formats[1] = (struct nvme_lba_format){.metadata_bytes = ns->metadata_bytes,
		                                              .lba_shift = ns->lba_shift};
		page.ns.attributes = ns->write_protected;
		break;
	default: return NVME_SC_INVALID_FIELD;
	}
	if (sqe->prp1 & (PAGE_SIZE - 1))
		VIOLATION(m, "identify into %#llx", (unsigned long long)sqe->prp1);
	memcpy(at(sqe->prp1), &page, sizeof(page));
	return NVME_SC_SUCCESS;
}

static bool phase_is_clear(const struct nvme_model_queue *cq)
{
	const struct nvme_cqe *cqe = at(cq->base);

	for (uint32_t i = 0; i < cq->depth; i++)
		if (NVME_CQE_PHASE(atomic_load(&cqe[i].cid_status)))
			return false;
	return true;
}

static uint16_t queue_create(struct nvme_model *m, const struct nvme_sqe *sqe, bool is_cq)
{
	uint32_t id = sqe->cdw10 & 0xffff, depth = (sqe->cdw10 >> 16) + 1;
	struct nvme_model_queue *q = is_cq ? &m->cq[id] : &m->sq[id];

	if (id == 0 || id >= NVME_MODEL_QUEUE_MAX || q->valid || id > m->queues_granted + 1u)
		return 0x101;
	if (depth < 2 || depth > m->mqes + 1)
		return 0x102;
	if (!(sqe->cdw11 & NVME_QUEUE_CONTIGUOUS) || sqe->prp1 & (PAGE_SIZE - 1))
		VIOLATION(m, "queue at %#llx", (unsigned long long)sqe->prp1);
	if ((m->cc >> 16 & 0xff) != 0x46)
		VIOLATION(m, "queue entry sizes %#x", m->cc);
	*q = (struct nvme_model_queue){
	        .valid = true, .base = sqe->prp1, .depth = depth, .phase = 1};
	if (is_cq) {
		q->irq = sqe->cdw11 & NVME_CQ_IRQ_ENABLE;
		if (!phase_is_clear(q))
			VIOLATION(m, "completion queue memory is not zeroed");
		return NVME_SC_SUCCESS;
	}
	q->cq = sqe->cdw11 >> 16;
	return q->cq < NVME_MODEL_QUEUE_MAX && m->cq[q->cq].valid ? NVME_SC_SUCCESS : 0x100;
}

static void execute_admin(struct nvme_model *m, const struct nvme_sqe *sqe)
{
	uint32_t result = 0;
	uint16_t status = NVME_SC_INVALID_OPCODE;

	switch (sqe->opcode) {
	case NVME_ADMIN_IDENTIFY: status = identify(m, sqe); break;
	case NVME_ADMIN_CREATE_CQ:
	case NVME_ADMIN_CREATE_SQ:
		status = queue_create(m, sqe, sqe->opcode == NVME_ADMIN_CREATE_CQ);
		break;
	case NVME_ADMIN_SET_FEATURES:
		if ((sqe->cdw10 & 0xff) != NVME_FEATURE_NUM_QUEUES)
			VIOLATION(m, "set features %#x", sqe->cdw10);
		if (m->cq[1].valid)
			VIOLATION(m, "number of queues set after their creation");
		result = m->queues_granted | (uint32_t)m->queues_granted << 16;
		status = m->fails_set_features ? NVME_SC_INVALID_FIELD : NVME_SC_SUCCESS;
		break;
	default: VIOLATION(m, "admin opcode %#x", sqe->opcode);
	}
	complete(m, 0, sqe->cid, status, result);
}

/* --- running --- */

static void ready_update(struct nvme_model *m)
{
	if (m->cc & NVME_CC_EN && m->ready_at_tsc && fake_tsc >= m->ready_at_tsc) {
		m->ready_at_tsc = 0;
		m->csts |= NVME_CSTS_RDY;
	}
	if (m->shut_at_tsc && fake_tsc >= m->shut_at_tsc) {
		m->shut_at_tsc = 0;
		m->csts = (m->csts & ~NVME_CSTS_SHST_MASK) | NVME_CSTS_SHST_DONE;
	}
	if (!(m->cc & NVME_CC_EN) && m->stopped_at_tsc && fake_tsc >= m->stopped_at_tsc) {
		m->stopped_at_tsc = 0;
		m->csts &= ~NVME_CSTS_RDY;
	}
}

static void fetch(struct nvme_model *m, unsigned queue)
{
	struct nvme_model_queue *sq = &m->sq[queue];

	while (sq->head != sq->tail && m->cmd_count < NVME_MODEL_CMD_MAX) {
		struct nvme_sqe *sqe = (struct nvme_sqe *)at(sq->base) + sq->head;

		for (unsigned i = 0; i < m->cmd_count; i++)
			if (m->cmd[i].queue == queue && m->cmd[i].sqe.cid == sqe->cid)
				VIOLATION(m, "command id %#x is already in use", sqe->cid);
		m->cmd[m->cmd_count].sqe = *sqe;
		m->cmd[m->cmd_count++].queue = queue;
		memset(sqe, 0xee, sizeof(*sqe)); /* nobody may count on it any more */
		sq->head = (sq->head + 1) % sq->depth;
	}
}

static uint32_t next_random(struct nvme_model *m)
{
	m->random = m->random * 1664525u + 1013904223u;
	return m->random >> 8;
}

static bool cq_has_room(const struct nvme_model *m, unsigned queue)
{
	const struct nvme_model_queue *cq = &m->cq[m->sq[queue].cq];

	return (cq->tail + 1) % cq->depth != cq->head;
}

static void execute_next(struct nvme_model *m, unsigned i)
{
	struct nvme_sqe sqe = m->cmd[i].sqe;
	unsigned queue = m->cmd[i].queue;
	const struct nvme_model_plan *plan;

	memmove(&m->cmd[i], &m->cmd[i + 1], (m->cmd_count - i - 1) * sizeof(m->cmd[0]));
	m->cmd_count--;
	if (queue == 0) {
		execute_admin(m, &sqe);
		return;
	}
	plan = planned(m);
	m->io_commands++;
	if (plan)
		act(m, plan, &sqe, queue);
	else
		complete(m, queue, sqe.cid, execute_io(m, &sqe), 0);
}

static void run(struct nvme_model *m)
{
	uint32_t budget = m->per_step ? m->per_step : UINT32_MAX;

	ready_update(m);
	if (!(m->csts & NVME_CSTS_RDY) || m->csts & NVME_CSTS_CFS || m->gone || !dma_allowed(m))
		return;
	for (unsigned q = 0; q < NVME_MODEL_QUEUE_MAX; q++)
		if (m->sq[q].valid)
			fetch(m, q);
	while (m->cmd_count && budget--) {
		unsigned i = m->reorder ? next_random(m) % m->cmd_count : 0;

		while (m->hold && i < m->cmd_count && m->cmd[i].queue)
			i++;
		if (i == m->cmd_count || !cq_has_room(m, m->cmd[i].queue))
			break;
		execute_next(m, i);
		if (!(m->csts & NVME_CSTS_RDY) || m->csts & NVME_CSTS_CFS || m->gone)
			break;
	}
}

void nvme_model_step(void)
{
	for (unsigned i = 0; i < model_count; i++)
		run(models[i]);
}

static void relax(void)
{
	fake_tsc += RELAX_TSC;
	nvme_model_step();
}

/* --- registers --- */

static void cc_write(struct nvme_model *m, uint32_t value)
{
	bool was = m->cc & NVME_CC_EN, is = value & NVME_CC_EN;

	m->cc = value;
	if (is && (value & NVME_CC_SHN_MASK) == NVME_CC_SHN_NORMAL) {
		m->csts = (m->csts & ~NVME_CSTS_SHST_MASK) | 4;
		m->shut_at_tsc = m->never_shuts ? 0 : fake_tsc + m->stop_delay_us * US + 1;
	}
	if (!was && is) {
		if (m->csts & NVME_CSTS_RDY)
			VIOLATION(m, "enabled before RDY fell");
		if (!m->asq || !m->acq || (m->asq | m->acq) & (PAGE_SIZE - 1) || !m->aqa)
			VIOLATION(m, "enabled without admin queues");
		m->resets++;
		m->sq[0] = (struct nvme_model_queue){
		        .valid = true, .base = m->asq, .depth = (m->aqa & 0xfff) + 1};
		m->cq[0] = (struct nvme_model_queue){.valid = true,
		                                     .base = m->acq,
		                                     .depth = (m->aqa >> 16 & 0xfff) + 1,
		                                     .phase = 1};
		if (!phase_is_clear(&m->cq[0]))
			VIOLATION(m, "admin completion queue memory is not zeroed");
		m->ready_at_tsc = m->never_ready ? 0 : fake_tsc + m->ready_delay_us * US + 1;
		if (m->cfs_on_enable)
			m->csts |= NVME_CSTS_CFS;
	} else if (was && !is) {
		if (!(m->csts & (NVME_CSTS_RDY | NVME_CSTS_CFS)) && !m->never_ready &&
		    m->ready_at_tsc)
			VIOLATION(m, "disabled before RDY rose");
		memset(m->sq, 0, sizeof(m->sq));
		memset(m->cq, 0, sizeof(m->cq));
		m->cmd_count = 0;
		m->csts &= ~(NVME_CSTS_CFS | NVME_CSTS_SHST_MASK);
		m->ready_at_tsc = 0;
		m->stopped_at_tsc = m->never_stops ? 0 : fake_tsc + m->stop_delay_us * US + 1;
	}
}

static void doorbell_write(struct nvme_model *m, uint32_t offset, uint32_t value)
{
	uint32_t stride = 4u << m->dstrd, index = offset / stride, id = index / 2;
	struct nvme_model_queue *q = id >= NVME_MODEL_QUEUE_MAX ? NULL
	                             : index & 1                ? &m->cq[id]
	                                                        : &m->sq[id];

	if (offset % stride || !q || !q->valid || value >= q->depth) {
		VIOLATION(m, "doorbell at %#x: %u", offset, value);
		return;
	}
	if (index & 1) {
		uint32_t posted = (q->tail + q->depth - q->head) % q->depth;

		if ((value + q->depth - q->head) % q->depth > posted)
			VIOLATION(m, "completion doorbell past what was posted");
		q->head = value;
		m->cq_doorbells += id != 0;
		return;
	}
	if (value == q->tail)
		VIOLATION(m, "submission doorbell that says nothing new");
	if ((value + q->depth - q->head) % q->depth < (q->tail + q->depth - q->head) % q->depth)
		VIOLATION(m, "submission queue overrun");
	q->tail = value;
	m->sq_doorbells += id != 0;
}

static void half_write(uint64_t *reg, bool high, uint32_t value)
{
	*reg = high ? (uint32_t)*reg | (uint64_t)value << 32 : (*reg & ~0xffffffffull) | value;
}

static void reg_write(struct nvme_model *m, uint32_t offset, uint32_t value)
{
	if (m->gone)
		return;
	if (offset >= MSIX_OFFSET) {
		uint32_t word = (offset - MSIX_OFFSET) / 4;

		if (word >= ARRAY_LEN(m->msix)) {
			VIOLATION(m, "MSI-X table word %u", word);
			return;
		}
		if (word < 3 && !(m->msix[3] & 1))
			VIOLATION(m, "unmasked MSI-X message changed");
		m->msix[word] = value;
		if (m->msix_pending && !(m->msix[3] & 1)) {
			m->msix_pending = false;
			interrupt(m);
		}
		return;
	}
	if (offset >= NVME_REG_DOORBELL) {
		doorbell_write(m, offset - NVME_REG_DOORBELL, value);
		return;
	}
	switch (offset) {
	case NVME_REG_CC: cc_write(m, value); return;
	case NVME_REG_AQA:
	case NVME_REG_ASQ:
	case NVME_REG_ASQ + 4:
	case NVME_REG_ACQ:
	case NVME_REG_ACQ + 4:
		if (m->cc & NVME_CC_EN)
			VIOLATION(m, "admin queues changed while enabled");
		if (offset == NVME_REG_AQA)
			m->aqa = value;
		else if (offset < NVME_REG_ACQ)
			half_write(&m->asq, offset & 4, value);
		else
			half_write(&m->acq, offset & 4, value);
		return;
	}
	VIOLATION(m, "write to register %#x", offset);
}

static uint32_t reg_read(struct nvme_model *m, uint32_t offset)
{
	uint64_t cap = m->mqes | (uint64_t)m->cap_to << 24 | (uint64_t)m->dstrd << 32 |
	               (m->no_css ? 0 : NVME_CAP_CSS_NVM) | (uint64_t)m->mpsmin << 48 |
	               (uint64_t)4 << 52;

	m->mmio_reads++;
	if (m->gone)
		return UINT32_MAX;
	ready_update(m);
	switch (offset) {
	case NVME_REG_CAP: return (uint32_t)cap;
	case NVME_REG_CAP + 4: return (uint32_t)(cap >> 32);
	case NVME_REG_VS: return m->vs;
	case NVME_REG_CC: return m->cc;
	case NVME_REG_CSTS: return m->csts;
	}
	VIOLATION(m, "read of register %#x", offset);
	return 0;
}

static struct nvme_model *model_of(const volatile void *reg, uint32_t *offset)
{
	for (unsigned i = 0; i < model_count; i++) {
		uintptr_t distance = (uintptr_t)reg - (uintptr_t)models[i]->regs;

		if (distance < BAR_BYTES) {
			*offset = (uint32_t)distance;
			return models[i];
		}
	}
	fprintf(stderr, "  nvme model: access to %p is nobody's\n", (void *)(uintptr_t)reg);
	abort();
}

static uint64_t mmio_read(const volatile void *reg, unsigned width_bytes)
{
	uint32_t offset;
	struct nvme_model *m = model_of(reg, &offset);
	uint64_t low = reg_read(m, offset);

	return width_bytes == 8 ? low | (uint64_t)reg_read(m, offset + 4) << 32 : low;
}

static void mmio_write(volatile void *reg, unsigned width_bytes, uint64_t value)
{
	uint32_t offset;
	struct nvme_model *m = model_of(reg, &offset);

	reg_write(m, offset, (uint32_t)value);
	if (width_bytes == 8)
		reg_write(m, offset + 4, (uint32_t)(value >> 32));
}

/* --- set-up --- */

void nvme_model_init(struct nvme_model *m)
{
	memset(m, 0, sizeof(*m));
	m->cap_to = 15;
	m->mqes = 1023;
	m->vs = 0x00010400;
	m->mdts = 5;
	m->oncs = NVME_ONCS_DSM | NVME_ONCS_WRITE_ZEROES;
	m->vwc = 1;
	m->sqes = 0x66;
	m->cqes = 0x44;
	m->ready_delay_us = m->stop_delay_us = 1000;
	m->queues_granted = 7;
	m->model = "Model of a disk";
	m->serial = "S123";
	m->firmware = "1.0";
	m->random = 1;
	m->msix[3] = 1;
}

struct nvme_model_ns *nvme_model_ns_add(struct nvme_model *m, uint32_t nsid, uint8_t lba_shift,
                                        uint64_t blocks)
{
	struct nvme_model_ns *ns = &m->ns[m->ns_count++];

	*ns = (struct nvme_model_ns){.nsid = nsid, .lba_shift = lba_shift, .blocks = blocks};
	ns->data = calloc(blocks ? blocks : 1, 1u << lba_shift);
	return ns;
}

void nvme_model_plug(struct nvme_model *m, unsigned slot)
{
	uint64_t base;

	if (posix_memalign((void **)&m->regs, PAGE_SIZE, BAR_BYTES))
		abort();
	base = m->no_bar ? 0 : (uintptr_t)m->regs;
	m->config = pci_model_add(0, slot, 0, 0x1b36, 0x0010);
	pci_model_put32(m->config, 0x08, 0x010802u << 8);
	pci_model_put32(m->config, 0x10, (uint32_t)base | 4);
	pci_model_put32(m->config, 0x14, (uint32_t)(base >> 32));
	if (!m->no_msix) {
		pci_model_put16(m->config, 0x06, 0x10);
		m->config[0x34] = 0x40;
		pci_model_put16(m->config, 0x40, MSIX_CAP << 8 | 0x01);
		pci_model_put16(m->config, MSIX_CAP, 0x0011);
		pci_model_put32(m->config, MSIX_CAP + 4, MSIX_OFFSET);
	}
	models[model_count++] = m;
	fake_mmio_read = mmio_read;
	fake_mmio_write = mmio_write;
	fake_relax = relax;
}

void nvme_model_unplug_all(void)
{
	while (model_count) {
		struct nvme_model *m = models[--model_count];

		free(m->regs);
		while (m->ns_count)
			free(m->ns[--m->ns_count].data);
	}
}
