#include "virtio/blk.h"

#include "arch/platform.h"
#include "virtio/blk_request.h"

_Static_assert(VBLK_SEG_MAX <= BIO_SEG_MAX, "a request fits a bio");

static struct vblk_queue *queue_of(struct ioq *ioq)
{
	return CONTAINER_OF(ioq, struct vblk_queue, ioq);
}

static void req_free(struct vblk_queue *q, struct vblk_req *req)
{
	req->next = q->free;
	q->free = req;
	q->in_flight--;
}

/* --- completing ------------------------------------------------------------------------------- */

/* Gives the chain back. The status byte is visible before it: used.idx is a release store. */
static void req_complete(struct vblk_queue *q, struct vblk_req *req, uint8_t status)
{
	uint32_t written_bytes = 1;

	*req->status = status;
	if (likely(status == VIRTIO_BLK_S_OK))
		written_bytes += req->data_bytes;
	else
		q->ioq.counts.errors++;
	q->ioq.counts.requests++;
	ring_push(&q->vq, req->head, written_bytes);
	ioq_completed(&q->ioq);
	req_free(q, req);
}

/* A chain that cannot even be told of its failure. */
static void chain_refuse(struct vblk_queue *q, uint16_t head)
{
	q->ioq.counts.requests++;
	q->ioq.counts.errors++;
	ring_push(&q->vq, head, 0);
	ioq_completed(&q->ioq);
}

static uint8_t status_of(const struct bio *bio)
{
	switch (bio->status) {
	case BIO_OK: return VIRTIO_BLK_S_OK;
	case BIO_ENOTSUP: return VIRTIO_BLK_S_UNSUPP;
	default: return VIRTIO_BLK_S_IOERR;
	}
}

static void bytes_count(struct vblk_queue *q, const struct bio *bio)
{
	uint64_t len_bytes = bio->sector_count << BIO_SECTOR_SHIFT;

	if (bio->op == BIO_READ)
		q->ioq.counts.read_bytes += len_bytes;
	else if (bio->op == BIO_WRITE)
		q->ioq.counts.written_bytes += len_bytes;
}

/* Must this write reach stable storage before the driver hears of it? */
static bool wants_flush(const struct vblk_queue *q, const struct vblk_req *req)
{
	return q->write_through && !req->flushing && req->bio.status == BIO_OK &&
	       (req->bio.op == BIO_WRITE || req->bio.op == BIO_WRITE_ZEROES);
}

static void req_done(struct bio *bio)
{
	struct vblk_req *req = CONTAINER_OF(bio, struct vblk_req, bio);
	struct vblk_queue *q = req->queue;

	/* The driver has reset: its ring and status byte may be other data by now. */
	if (unlikely(q->ioq.state == IOQ_DRAINING)) {
		req_free(q, req);
		return;
	}
	if (likely(bio->status == BIO_OK))
		bytes_count(q, bio);
	if (unlikely(wants_flush(q, req))) {
		req->next = q->unflushed;
		q->unflushed = req;
		ioq_completed(&q->ioq);
		return;
	}
	req_complete(q, req, status_of(bio));
}

/* --- taking ----------------------------------------------------------------------------------- */

/* False: the device has no room now. */
static bool req_submit(struct vblk_queue *q, struct vblk_req *req)
{
	int error = bio_submit(q->blk->extent.dev, &req->bio);

	if (likely(!error))
		return true;
	if (error == -EAGAIN)
		return false;
	req_complete(q, req, VIRTIO_BLK_S_IOERR);
	return true;
}

/* Starts the request in blk->chain. False: it is held, the device has no room. */
static bool req_start(struct vblk_queue *q)
{
	struct vblk_req *req = q->free;

	q->free = req->next;
	q->in_flight++;
	req->head = q->blk->chain.head;
	switch (vblk_request_parse(q->blk, req)) {
	case VBLK_SUBMIT:
		if (likely(req_submit(q, req)))
			return true;
		q->held = req;
		return false;
	case VBLK_OK: req_complete(q, req, VIRTIO_BLK_S_OK); return true;
	case VBLK_IOERR: req_complete(q, req, VIRTIO_BLK_S_IOERR); return true;
	case VBLK_UNSUPP: req_complete(q, req, VIRTIO_BLK_S_UNSUPP); return true;
	case VBLK_NO_STATUS: break;
	}
	chain_refuse(q, req->head);
	req_free(q, req);
	return true;
}

static NOINLINE unsigned requests_take(struct vblk_queue *q, unsigned budget)
{
	unsigned taken = 0;

	if (unlikely(q->held)) {
		if (!req_submit(q, q->held))
			return 0;
		q->held = NULL;
		taken++;
	}
	while (taken < budget && q->free && !q->vq.broken) {
		int popped = ring_pop(&q->vq, &q->blk->chain);

		if (popped == 0)
			break;
		if (unlikely(popped == -EIO)) {
			q->blk->transport->needs_reset(q->blk->transport);
			break;
		}
		taken++;
		if (unlikely(popped < 0))
			chain_refuse(q, q->blk->chain.head);
		else if (unlikely(!req_start(q)))
			break;
	}
	return taken;
}

/* Most looks find nothing; apart from the rest, such a one is a dozen instructions. */
static unsigned vblk_serve(struct ioq *ioq, unsigned budget)
{
	struct vblk_queue *q = queue_of(ioq);

	if (likely(!q->held && !ring_pending(&q->vq)))
		return 0;
	return requests_take(q, budget);
}

static bool vblk_pending(struct ioq *ioq)
{
	const struct vblk_queue *q = queue_of(ioq);

	return q->held || ring_pending(&q->vq);
}

/* --- notifications ---------------------------------------------------------------------------- */

static void vblk_arm(struct ioq *ioq)
{
	struct vblk_queue *q = queue_of(ioq);

	if (likely(!q->vq.broken))
		ring_arm(&q->vq);
}

static void vblk_disarm(struct ioq *ioq)
{
	struct vblk_queue *q = queue_of(ioq);

	if (likely(!q->vq.broken))
		ring_disarm(&q->vq);
}

/* Flushes what a driver without FLUSH wrote; what finds no room is tried again next pass. */
static void unflushed_submit(struct vblk_queue *q)
{
	while (q->unflushed) {
		struct vblk_req *req = q->unflushed;

		req->bio.op = BIO_FLUSH;
		req->bio.seg_count = 0;
		req->bio.sector = req->bio.sector_count = 0;
		req->flushing = true;
		if (bio_submit(q->blk->extent.dev, &req->bio)) {
			ioq_completed(&q->ioq);
			return;
		}
		q->unflushed = req->next;
	}
}

/*
 * Used elements are published in any case; only the question whether the driver wants an interrupt
 * may be put off. It is asked once for all that was published since it was last asked, so a driver
 * that has seen them all by then gets none.
 */
static bool interrupt_waits(struct vblk_queue *q, uint16_t completed)
{
	bool hot = q->ioq.state == IOQ_HOT;

	if (!coalesce_hold(&q->coalesce, completed, q->in_flight, hot, q->ioq.loop->now_tsc))
		return false;
	ioq_defer(&q->ioq, q->coalesce.hold_until_tsc);
	return true;
}

static enum ioq_signal vblk_publish(struct ioq *ioq)
{
	struct vblk_queue *q = queue_of(ioq);
	uint16_t completed = (uint16_t)(q->vq.used_idx - q->vq.used_published);
	uint64_t before_tsc;

	if (unlikely(q->unflushed))
		unflushed_submit(q);
	if (likely(completed))
		ring_publish(&q->vq);
	else if (!ring_has_untold(&q->vq))
		return IOQ_SIGNAL_NONE;
	if (q->coalesce.hold_max_tsc && interrupt_waits(q, completed))
		return IOQ_SIGNAL_DEFERRED;
	if (!ring_should_signal(&q->vq))
		return IOQ_SIGNAL_SUPPRESSED;
	before_tsc = plat_tsc();
	if (!q->blk->transport->queue_signal(q->blk->transport, q->index))
		return IOQ_SIGNAL_SUPPRESSED;
	tally_add(&q->interrupt, plat_tsc() - before_tsc);
	return IOQ_SIGNAL_SENT;
}

/* --- attach and detach ------------------------------------------------------------------------ */

/*
 * Always attaches, so that a detach has one meaning for the transport: a ring that is none is
 * attached broken, and the driver is told to reset.
 */
static int vblk_attach(struct ioq *ioq)
{
	struct vblk_queue *q = queue_of(ioq);
	const struct vblk_queue_setup *setup = &q->setup;
	uint64_t features = q->blk->features;

	coalesce_init(&q->coalesce, q->blk->hold_max_tsc);
	q->write_through =
	        !(features & VIRTIO_BLK_F_FLUSH) && (q->blk->features_offered & VIRTIO_BLK_F_FLUSH);
	if (ring_attach(&q->vq, q->blk->mem, setup->size, setup->desc_gpa, setup->avail_gpa,
	                setup->used_gpa, features & VIRTIO_F_EVENT_IDX,
	                features & VIRTIO_F_INDIRECT_DESC)) {
		q->vq.broken = true;
		q->blk->transport->needs_reset(q->blk->transport);
	}
	return 0;
}

/* Requests the device has not seen are dropped; those it has must come back first. */
static bool vblk_drained(struct ioq *ioq)
{
	struct vblk_queue *q = queue_of(ioq);

	if (q->held)
		req_free(q, q->held);
	q->held = NULL;
	while (q->unflushed) {
		struct vblk_req *req = q->unflushed;

		q->unflushed = req->next;
		req_free(q, req);
	}
	return q->in_flight == 0;
}

static const struct ioq_ops vblk_ioq_ops = {
        .serve = vblk_serve,
        .pending = vblk_pending,
        .arm = vblk_arm,
        .disarm = vblk_disarm,
        .publish = vblk_publish,
        .attach = vblk_attach,
        .drained = vblk_drained,
};

/* --- creation --------------------------------------------------------------------------------- */

static int queue_create(struct vblk *blk, uint16_t index)
{
	struct vblk_queue *q = &blk->queue[index];

	q->blk = blk;
	q->index = index;
	q->ioq.ops = &vblk_ioq_ops;
	q->ioq.dev = blk->extent.dev;
	q->reqs =
	        plat_mem_alloc((uint64_t)blk->queue_size_max * sizeof(*q->reqs), CACHE_LINE_BYTES);
	if (!q->reqs)
		return -ENOMEM;
	for (unsigned i = blk->queue_size_max; i-- > 0;) {
		struct vblk_req *req = &q->reqs[i];

		req->queue = q;
		req->bio.segs = req->segs;
		req->bio.done = req_done;
		req->next = q->free;
		q->free = req;
	}
	return 0;
}

static void features_set(struct vblk *blk)
{
	const struct bio_dev *dev = blk->extent.dev;

	blk->features_offered = VIRTIO_F_VERSION_1 | VIRTIO_F_EVENT_IDX | VIRTIO_F_INDIRECT_DESC |
	                        VIRTIO_BLK_F_SEG_MAX | VIRTIO_BLK_F_BLK_SIZE |
	                        VIRTIO_BLK_F_TOPOLOGY | VIRTIO_BLK_F_MQ;
	/* Without a cache each completed write is stable, and a guest need not ask. */
	if (dev->has_cache)
		blk->features_offered |= VIRTIO_BLK_F_FLUSH;
	if (blk->read_only) {
		blk->features_offered |= VIRTIO_BLK_F_RO;
		return;
	}
	if (dev->has_discard)
		blk->features_offered |= VIRTIO_BLK_F_DISCARD;
	if (dev->has_write_zeroes)
		blk->features_offered |= VIRTIO_BLK_F_WRITE_ZEROES;
}

static uint8_t log2_of(uint32_t power_of_two)
{
	return (uint8_t)__builtin_ctz(power_of_two);
}

static void topology_set(struct vblk *blk)
{
	const struct bio_dev *dev = blk->extent.dev;
	uint32_t physical_bytes = MAX(dev->physical_block_bytes, dev->block_bytes);
	uint32_t physical_sectors, first;

	if (physical_bytes & (physical_bytes - 1))
		return;
	physical_sectors = physical_bytes >> BIO_SECTOR_SHIFT;
	first = (uint32_t)blk->extent.first_sector & (physical_sectors - 1);
	blk->config.topology.physical_block_exp =
	        log2_of(physical_sectors) - log2_of(blk->block_sectors);
	/* Logical blocks up to the first that starts a physical one. */
	first = ((physical_sectors - first) & (physical_sectors - 1)) >>
	        log2_of(blk->block_sectors);
	if (first <= UINT8_MAX)
		blk->config.topology.alignment_offset = (uint8_t)first;
	blk->config.topology.min_io_size =
	        (uint16_t)MIN(physical_sectors >> log2_of(blk->block_sectors), UINT16_MAX);
}

static void config_set(struct vblk *blk)
{
	struct virtio_blk_config *config = &blk->config;

	config->capacity = blk->extent.sector_count;
	/* A driver without indirect descriptors needs two of the ring for header and status. */
	config->seg_max = MAX(MIN(VIRTQ_CHAIN_MAX, blk->queue_size_max), 3u) - 2u;
	config->blk_size = blk->block_sectors << BIO_SECTOR_SHIFT;
	config->num_queues = blk->queue_count;
	topology_set(blk);
	if (blk->features_offered & VIRTIO_BLK_F_DISCARD) {
		config->max_discard_sectors = VBLK_DISCARD_SECTORS_MAX;
		config->max_discard_seg = 1;
		config->discard_sector_alignment = blk->block_sectors;
	}
	if (blk->features_offered & VIRTIO_BLK_F_WRITE_ZEROES) {
		config->max_write_zeroes_sectors = VBLK_ZEROES_SECTORS_MAX;
		config->max_write_zeroes_seg = 1;
	}
}

static bool extent_is_valid(const struct bio_extent *extent)
{
	uint32_t block_bytes = extent->dev->block_bytes;
	uint64_t in_block = (block_bytes >> BIO_SECTOR_SHIFT) - 1;

	if (block_bytes < BIO_SECTOR_BYTES || (block_bytes & (block_bytes - 1)))
		return false;
	if (extent->sector_count == 0 || extent->first_sector > extent->dev->sector_count ||
	    extent->sector_count > extent->dev->sector_count - extent->first_sector)
		return false;
	return ((extent->first_sector | extent->sector_count) & in_block) == 0;
}

int vblk_create(struct vblk *blk, const struct manifest_disk *cfg, struct bio_extent extent,
                const struct gmem *mem, const char *serial)
{
	uint16_t size = cfg->queue_size;

	if (cfg->num_queues == 0 || cfg->num_queues > VBLK_QUEUE_MAX)
		return -EINVAL;
	if (size < 2 || size > VIRTQ_SIZE_MAX || (size & (size - 1)) || !extent_is_valid(&extent))
		return -EINVAL;
	blk->extent = extent;
	blk->mem = mem;
	blk->block_sectors = extent.dev->block_bytes >> BIO_SECTOR_SHIFT;
	blk->queue_count = cfg->num_queues;
	blk->queue_size_max = size;
	blk->hold_max_tsc = cfg->coalesce ? plat_tsc_hz() / (1000000u / COALESCE_HOLD_US) : 0;
	blk->read_only = cfg->readonly || extent.dev->read_only;
	memcpy(blk->serial, serial, MIN(strlen(serial), sizeof(blk->serial)));
	features_set(blk);
	config_set(blk);
	for (uint16_t i = 0; i < blk->queue_count; i++)
		if (queue_create(blk, i))
			return -ENOMEM;
	return 0;
}
