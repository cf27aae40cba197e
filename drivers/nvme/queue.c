#include "drivers/nvme/nvme.h"
#include "arch/platform.h"

_Static_assert(NVME_DEPTH_MAX <= 256, "a command's index is the low byte of its id");

int nvme_ring_alloc(struct nvme_ring *r, uint32_t depth)
{
	r->depth = depth;
	r->sq = plat_mem_alloc(ALIGN_UP(depth * sizeof(*r->sq), PAGE_SIZE), PAGE_SIZE);
	r->cq = plat_mem_alloc(ALIGN_UP(depth * sizeof(*r->cq), PAGE_SIZE), PAGE_SIZE);
	return r->sq && r->cq ? 0 : -ENOMEM;
}

void nvme_ring_reset(struct nvme_ring *r)
{
	memset(r->cq, 0, r->depth * sizeof(*r->cq));
	r->sq_tail = r->sq_rung = 0;
	r->cq_head = 0;
	r->cq_unrung = 0;
	r->phase = 1;
}

/* A full queue has one entry unused (4.1.2), so there is one command less. */
static void commands_free_all(struct nvme_pair *q)
{
	q->free_count = q->ring.depth - 1;
	for (uint32_t i = 0; i < q->free_count; i++)
		q->free[i] = (uint8_t)(q->free_count - 1 - i);
}

int nvme_pair_alloc(struct nvme_pair *q, struct nvme_ctrl *c, uint16_t id, uint32_t depth)
{
	q->ctrl = c;
	q->id = id;
	q->check_in = NVME_CHECK_POLLS;
	q->tick_tsc = plat_tsc_hz() / 1000000 * NVME_TICK_US;
	q->lists = plat_mem_alloc((uint64_t)depth * NVME_LIST_PAGES * PAGE_SIZE, PAGE_SIZE);
	q->bounces = plat_mem_alloc((uint64_t)depth * NVME_BOUNCE_BYTES, PAGE_SIZE);
	if (nvme_ring_alloc(&q->ring, depth) || !q->lists || !q->bounces)
		return -ENOMEM;
	nvme_ring_reset(&q->ring);
	commands_free_all(q);
	return 0;
}

static struct nvme_ns *ns_of(struct bio_dev *dev)
{
	return CONTAINER_OF(dev, struct nvme_ns, dev);
}

static struct nvme_ns *bio_ns(struct nvme_pair *q, const struct bio *bio)
{
	return &q->ctrl->ns[bio->drv];
}

static void finish(struct nvme_pair *q, struct bio *bio)
{
	bio_list_push(&q->finished, bio);
	q->finished_count++;
}

/* One of a bio's parts, or the issuing of its parts, is over. */
static void part_done(struct nvme_pair *q, struct bio *bio, enum bio_status status)
{
	if (unlikely(status != BIO_OK) && bio->status == BIO_OK)
		bio->status = (uint8_t)status;
	if (--bio->parts_left == 0)
		finish(q, bio);
}

/* --- submission --- */

static uint64_t *list_of(struct nvme_pair *q, unsigned index)
{
	return q->lists + (size_t)index * (NVME_LIST_PAGES * PAGE_SIZE / sizeof(q->lists[0]));
}

static uint8_t *bounce_of(struct nvme_pair *q, unsigned index)
{
	return q->bounces + (size_t)index * NVME_BOUNCE_BYTES;
}

/* Field by field: the compiler then stores eight words, which is quicker than its REP STOS. */
static void sqe_clear(struct nvme_sqe *sqe, uint32_t nsid)
{
	sqe->opcode = 0;
	sqe->flags = 0;
	sqe->cid = 0;
	sqe->nsid = nsid;
	sqe->cdw2 = 0;
	sqe->cdw3 = 0;
	sqe->metadata = 0;
	sqe->prp1 = 0;
	sqe->prp2 = 0;
	sqe->cdw10 = 0;
	sqe->cdw11 = 0;
	sqe->cdw12 = 0;
	sqe->cdw13 = 0;
	sqe->cdw14 = 0;
	sqe->cdw15 = 0;
}

/* The usual request, one piece of memory in two pages at most, without a walk over its segments.
 * False: another one. */
static bool data_attach_piece(struct nvme_cursor *at, uint64_t len_bytes, struct nvme_sqe *sqe)
{
	const struct bio_seg *seg = &at->segs[at->seg];
	hpa_t hpa, second_hpa;

	if (at->seg == at->seg_count || seg->len_bytes - at->seg_offset < len_bytes)
		return false;
	hpa = seg->hpa + at->seg_offset;
	second_hpa = ALIGN_DOWN(hpa, PAGE_SIZE) + PAGE_SIZE;
	if (!IS_ALIGNED(hpa, 4) || hpa + len_bytes > second_hpa + PAGE_SIZE)
		return false;
	sqe->prp1 = hpa;
	if (hpa + len_bytes > second_hpa)
		sqe->prp2 = second_hpa;
	at->seg_offset += len_bytes;
	return true;
}

/* Fills PRPs for as much as one command can take. Bytes, 0: the segments end too early. */
static uint64_t data_attach(struct nvme_pair *q, struct nvme_ns *ns, unsigned index,
                            struct nvme_sqe *sqe)
{
	uint32_t block_bytes = ns->dev.block_bytes;
	uint64_t limit_bytes = MIN(q->blocks_left << ns->block_shift, q->ctrl->max_bytes);
	struct nvme_cmd *cmd = &q->cmd[index];
	uint64_t *list, len_bytes;
	uint8_t *bounce;

	if (likely(data_attach_piece(&q->cursor, limit_bytes, sqe)))
		return limit_bytes;
	list = list_of(q, index);
	len_bytes = nvme_prp_span(&q->cursor, limit_bytes, block_bytes);
	if (likely(len_bytes)) {
		nvme_prp_build(&q->cursor, len_bytes, list, plat_hpa(list), sqe);
		nvme_cursor_advance(&q->cursor, len_bytes);
		return len_bytes;
	}
	cmd->bounce_bytes = nvme_bounce_span(&q->cursor, limit_bytes, block_bytes);
	if (!cmd->bounce_bytes)
		return 0;
	cmd->bounce_at = q->cursor;
	bounce = bounce_of(q, index);
	if (sqe->opcode == NVME_IO_WRITE)
		nvme_bounce_copy(&q->cursor, bounce, cmd->bounce_bytes, false);
	sqe->prp1 = plat_hpa(bounce);
	sqe->prp2 = cmd->bounce_bytes > PAGE_SIZE ? sqe->prp1 + PAGE_SIZE : 0;
	q->bounced++;
	nvme_cursor_advance(&q->cursor, cmd->bounce_bytes);
	return cmd->bounce_bytes;
}

/* Fills the command for the next part of the bio being issued. Blocks it covers, 0: it cannot. */
static uint64_t command_fill(struct nvme_pair *q, struct nvme_ns *ns, struct bio *bio,
                             unsigned index, struct nvme_sqe *sqe)
{
	uint64_t blocks = 0;
	struct nvme_dsm_range *range;

	q->cmd[index].bounce_bytes = 0;
	switch (bio->op) {
	case BIO_READ:
	case BIO_WRITE:
		sqe->opcode = bio->op == BIO_READ ? NVME_IO_READ : NVME_IO_WRITE;
		blocks = data_attach(q, ns, index, sqe) >> ns->block_shift;
		break;
	case BIO_WRITE_ZEROES:
		sqe->opcode = NVME_IO_WRITE_ZEROES;
		blocks = MIN(q->blocks_left, 65536u);
		break;
	case BIO_DISCARD:
		blocks = MIN(q->blocks_left, UINT32_MAX);
		range = (void *)list_of(q, index);
		*range = (struct nvme_dsm_range){.block_count = (uint32_t)blocks, .lba = q->lba};
		sqe->opcode = NVME_IO_DATASET_MANAGEMENT;
		sqe->prp1 = plat_hpa(range);
		sqe->cdw10 = 0; /* one range, 0-based */
		sqe->cdw11 = NVME_DSM_DEALLOCATE;
		return blocks;
	case BIO_FLUSH: sqe->opcode = NVME_IO_FLUSH; return 1;
	}
	sqe->cdw10 = (uint32_t)q->lba;
	sqe->cdw11 = (uint32_t)(q->lba >> 32);
	sqe->cdw12 = (uint32_t)(blocks - 1) & 0xffff;
	return blocks;
}

/*
 * Issues parts of a bio until all are or no command is free. Returns whether anything was queued.
 * A bio holds one part for the issuing itself, so that early completions cannot finish it.
 */
static bool bio_issue(struct nvme_pair *q, struct nvme_ns *ns, struct bio *bio)
{
	bool queued = false;

	while (q->blocks_left && q->free_count && bio->status == BIO_OK) {
		unsigned index = q->free[q->free_count - 1];
		struct nvme_cmd *cmd = &q->cmd[index];
		struct nvme_sqe *sqe = &q->ring.sq[q->ring.sq_tail];
		uint64_t blocks;

		sqe_clear(sqe, ns->nsid);
		blocks = command_fill(q, ns, bio, index, sqe);
		if (unlikely(!blocks)) {
			bio->status = BIO_EINVAL;
			break;
		}
		sqe->cid = (uint16_t)(cmd->generation << 8 | index);
		nvme_ring_next(&q->ring);
		q->free_count--;
		cmd->bio = bio;
		cmd->epoch = q->epoch;
		bio->parts_left++;
		q->lba += blocks;
		q->blocks_left -= blocks;
		ns->dev.commands++;
		queued = true;
	}
	if (q->blocks_left && bio->status == BIO_OK) {
		q->partial = bio;
	} else {
		q->partial = NULL;
		part_done(q, bio, BIO_OK);
	}
	return queued;
}

static enum bio_status bio_check(struct nvme_ns *ns, const struct bio *bio)
{
	uint64_t mask = BIT(ns->sector_shift) - 1;

	if (unlikely(ns->ctrl->dead))
		return BIO_EGONE;
	if (bio->op == BIO_FLUSH)
		return BIO_OK;
	if (bio->sector > ns->dev.sector_count ||
	    bio->sector_count > ns->dev.sector_count - bio->sector)
		return BIO_EINVAL;
	if ((bio->sector | bio->sector_count) & mask)
		return BIO_EINVAL;
	if (bio->op == BIO_DISCARD && !ns->dev.has_discard)
		return BIO_ENOTSUP;
	if (bio->op == BIO_WRITE_ZEROES && !ns->dev.has_write_zeroes)
		return BIO_ENOTSUP;
	if (bio->op != BIO_READ && ns->dev.read_only)
		return BIO_EIO;
	return BIO_OK;
}

static int nvme_submit(struct bio_dev *dev, struct bio *bio)
{
	struct nvme_ns *ns = ns_of(dev);
	struct nvme_pair *q = ns->pair;

	if (q->partial || !q->free_count)
		return -EAGAIN;
	bio->drv = (uint32_t)(ns - ns->ctrl->ns);
	bio->status = (uint8_t)bio_check(ns, bio);
	bio->parts_left = 1;
	dev->in_flight++;
	q->cursor = (struct nvme_cursor){.segs = bio->segs, .seg_count = bio->seg_count};
	q->lba = bio->sector >> ns->sector_shift;
	q->blocks_left = bio->op == BIO_FLUSH ? 1 : bio->sector_count >> ns->sector_shift;
	if (bio_issue(q, ns, bio))
		dev->submitted = true;
	return 0;
}

static void nvme_commit(struct bio_dev *dev)
{
	struct nvme_ring *r = &ns_of(dev)->pair->ring;

	dev->submitted = false;
	if (r->sq_rung == r->sq_tail)
		return;
	r->sq_rung = r->sq_tail;
	atomic_thread_fence(memory_order_release);
	plat_mmio_write32(r->sq_doorbell, r->sq_tail);
	dev->doorbells++;
}

/* --- completion --- */

static enum bio_status status_map(uint16_t status)
{
	switch (status) {
	case NVME_SC_SUCCESS: return BIO_OK;
	case NVME_SC_INVALID_OPCODE: return BIO_ENOTSUP;
	case NVME_SC_LBA_RANGE: return BIO_EINVAL;
	case NVME_SC_INVALID_NAMESPACE: return BIO_EGONE;
	default: return BIO_EIO;
	}
}

static void error_log(struct nvme_pair *q, const struct bio *bio, uint16_t status)
{
	static const char *const op_name[] = {"read", "write", "flush", "discard", "write zeroes"};

	if (nvme_may_log(q->ctrl))
		plat_log("%s: %s of %llu sectors at %llu failed: NVMe status 0x%x",
		         bio_ns(q, bio)->name, op_name[bio->op],
		         (unsigned long long)bio->sector_count, (unsigned long long)bio->sector,
		         status);
}

/* A command id from the device is a claim: its range, its use and its generation are checked. */
static void completion_take(struct nvme_pair *q, uint32_t dw3)
{
	uint16_t cid = NVME_CQE_CID(dw3), status = NVME_CQE_STATUS(dw3);
	unsigned index = cid & 0xff;
	struct nvme_cmd *cmd = &q->cmd[index];
	struct bio *bio = cmd->bio;

	if (unlikely(!bio || cid >> 8 != cmd->generation)) {
		if (nvme_may_log(q->ctrl))
			plat_log("%s: completion for command 0x%x, which is not outstanding: "
			         "ignored",
			         q->ctrl->name, cid);
		return;
	}
	if (unlikely(status))
		error_log(q, bio, status);
	else if (cmd->bounce_bytes && bio->op == BIO_READ)
		nvme_bounce_copy(&cmd->bounce_at, bounce_of(q, index), cmd->bounce_bytes, true);
	cmd->bio = NULL;
	cmd->generation++;
	q->free[q->free_count++] = (uint8_t)index;
	part_done(q, bio, status_map(status));
}

static void cq_ring(struct nvme_pair *q, struct bio_dev *dev)
{
	q->ring.cq_unrung = 0;
	plat_mmio_write32(q->ring.cq_doorbell, q->ring.cq_head);
	dev->doorbells++;
}

/* Takes completions until budget bios are finished; at most a queueful. */
static void completions_reap(struct nvme_pair *q, struct bio_dev *dev, unsigned budget)
{
	struct nvme_ring *r = &q->ring;
	uint32_t taken = 0, dw3;

	while (q->finished_count < budget && taken < r->depth && nvme_ring_peek(r, &dw3)) {
		completion_take(q, dw3);
		nvme_ring_pop(r);
		taken++;
	}
	r->cq_unrung += taken;
	/* The device needs to know only before it runs out of entries: at depth 1 one doorbell in
	 * many requests, under load one for each batch. */
	if (r->cq_unrung > r->depth / 4)
		cq_ring(q, dev);
}

static unsigned nvme_poll(struct bio_dev *dev, unsigned budget)
{
	struct nvme_pair *q = ns_of(dev)->pair;
	unsigned done = 0;
	struct bio *bio;

	if (likely(!q->ctrl->dead))
		completions_reap(q, dev, budget);
	if (unlikely(q->partial) && q->free_count) {
		struct nvme_ns *ns = bio_ns(q, q->partial);

		if (bio_issue(q, ns, q->partial))
			nvme_commit(&ns->dev);
	}
	if (unlikely(--q->check_in == 0)) {
		q->check_in = NVME_CHECK_POLLS;
		nvme_check(q);
	}
	while (done < budget && (bio = bio_list_pop(&q->finished))) {
		struct bio_dev *owner = &bio_ns(q, bio)->dev;

		q->finished_count--;
		done++;
		owner->in_flight--;
		owner->completions++;
		if (bio->status != BIO_OK)
			owner->errors++;
		bio->done(bio);
	}
	return done;
}

void nvme_pair_abort(struct nvme_pair *q, enum bio_status status)
{
	struct bio *partial = q->partial;

	for (uint32_t i = 0; i < q->ring.depth; i++) {
		struct nvme_cmd *cmd = &q->cmd[i];
		struct bio *bio = cmd->bio;

		if (!bio)
			continue;
		cmd->bio = NULL;
		cmd->generation++;
		part_done(q, bio, status);
	}
	q->partial = NULL;
	q->blocks_left = 0;
	if (partial)
		part_done(q, partial, status);
	commands_free_all(q);
	nvme_ring_reset(&q->ring);
}

/* --- interrupt --- */

static void irq_mask(struct nvme_pair *q, bool mask)
{
	if (q->irq_on == !mask)
		return;
	q->irq_on = !mask;
	pci_msix_mask(&q->ctrl->msix, 0, mask);
}

/*
 * A completion that comes while the vector is masked stays pending and fires at the unmasking;
 * the look at the queue afterwards saves that interrupt.
 */
static bool nvme_irq_set(struct bio_dev *dev, bool on)
{
	struct nvme_pair *q = ns_of(dev)->pair;
	uint32_t dw3;

	if (!on) {
		irq_mask(q, true);
		q->check_in = 1; /* the core has slept: look at the clock */
		return true;
	}
	if (q->finished_count)
		return false;
	if (q->free_count == q->ring.depth - 1)
		return true;
	/* Unacknowledged entries could hold back the interrupt for the next one (7.5.1). */
	if (q->ring.cq_unrung)
		cq_ring(q, dev);
	irq_mask(q, false);
	if (nvme_ring_peek(&q->ring, &dw3)) {
		irq_mask(q, true);
		return false;
	}
	return true;
}

const struct bio_ops nvme_bio_ops = {
        .submit = nvme_submit,
        .commit = nvme_commit,
        .poll = nvme_poll,
};

const struct bio_ops nvme_bio_ops_irq = {
        .submit = nvme_submit,
        .commit = nvme_commit,
        .poll = nvme_poll,
        .irq_set = nvme_irq_set,
};
