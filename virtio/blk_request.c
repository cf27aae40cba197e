#include "virtio/blk_request.h"

#include "arch/platform.h"

/* What of a chain has not been consumed yet: segments [first, end). */
struct rest {
	const struct gmem *mem;
	struct virtq_seg *seg;
	unsigned first, end;
};

/* The status byte is the last that the device may write, wherever that is. */
static bool status_take(struct rest *rest, struct vblk_req *req)
{
	struct virtq_seg *last;

	if (rest->end == 0 || !rest->seg[rest->end - 1].device_writes)
		return false;
	last = &rest->seg[rest->end - 1];
	last->len_bytes--;
	req->status = gmem_ptr(rest->mem, last->gpa + last->len_bytes, 1);
	if (last->len_bytes == 0)
		rest->end--;
	return req->status != NULL;
}

/* Copies the next len_bytes of what the device reads, however they are spread. */
static bool bytes_take(struct rest *rest, void *dst, uint32_t len_bytes)
{
	uint8_t *to = dst;

	while (len_bytes) {
		struct virtq_seg *seg = &rest->seg[rest->first];
		uint32_t part_bytes;

		if (rest->first == rest->end || seg->device_writes)
			return false;
		part_bytes = MIN(len_bytes, seg->len_bytes);
		if (gmem_read(rest->mem, seg->gpa, to, part_bytes))
			return false;
		to += part_bytes;
		len_bytes -= part_bytes;
		seg->gpa += part_bytes;
		seg->len_bytes -= part_bytes;
		if (seg->len_bytes == 0)
			rest->first++;
	}
	return true;
}

typedef uint64_t unaligned_u64 __attribute__((aligned(1)));

/* The request's header, which mostly is a segment of its own. Loaded once, then checked. */
static bool hdr_take(struct rest *rest, struct virtio_blk_hdr *hdr)
{
	struct virtq_seg *seg = rest->seg;
	const volatile unaligned_u64 *at = NULL;
	uint64_t type;

	if (likely(rest->end > 0 && !seg->device_writes && seg->len_bytes == sizeof(*hdr)))
		at = gmem_ptr(rest->mem, seg->gpa, sizeof(*hdr));
	if (unlikely(!at))
		return bytes_take(rest, hdr, sizeof(*hdr));
	type = at[0];
	hdr->type = (uint32_t)type;
	hdr->reserved = (uint32_t)(type >> 32);
	hdr->sector = at[1];
	rest->first = 1;
	return true;
}

/* Adds one guest segment as pieces of host memory; what continues the last piece widens it. */
static bool seg_map(const struct gmem *mem, const struct virtq_seg *seg, struct bio *bio)
{
	gpa_t gpa = seg->gpa;
	uint64_t left_bytes = seg->len_bytes;

	while (left_bytes) {
		struct bio_seg *last = bio->seg_count ? &bio->segs[bio->seg_count - 1] : NULL;
		hpa_t hpa;
		uint64_t part_bytes = gmem_find(mem, gpa, left_bytes, NULL, &hpa);

		if (part_bytes == 0)
			return false;
		if (last && last->hpa + last->len_bytes == hpa) {
			last->len_bytes += part_bytes;
		} else {
			if (bio->seg_count == VBLK_SEG_MAX)
				return false;
			bio->segs[bio->seg_count++] = (struct bio_seg){hpa, part_bytes};
		}
		gpa += part_bytes;
		left_bytes -= part_bytes;
	}
	return true;
}

/* All that is left is data, in one direction. Its bytes, or UINT64_MAX. */
static uint64_t data_map(const struct rest *rest, bool device_writes, struct bio *bio)
{
	uint64_t sum_bytes = 0;

	for (unsigned i = rest->first; i < rest->end; i++) {
		if (rest->seg[i].device_writes != device_writes ||
		    !seg_map(rest->mem, &rest->seg[i], bio))
			return UINT64_MAX;
		sum_bytes += rest->seg[i].len_bytes;
	}
	return sum_bytes;
}

/* Checks a range against the disk's end and its blocks, and moves it to the device's sectors. */
static bool range_set(const struct vblk *blk, struct bio *bio, uint64_t sector, uint64_t count)
{
	uint64_t capacity = blk->config.capacity;

	if (sector > capacity || count > capacity - sector)
		return false;
	if ((sector | count) & (blk->block_sectors - 1))
		return false;
	bio->sector = blk->extent.first_sector + sector;
	bio->sector_count = count;
	return true;
}

static enum vblk_verdict transfer_parse(const struct vblk *blk, const struct rest *rest,
                                        uint64_t sector, struct vblk_req *req)
{
	bool read = req->bio.op == BIO_READ;
	uint64_t len_bytes;

	if (!read && blk->read_only)
		return VBLK_IOERR;
	len_bytes = data_map(rest, read, &req->bio);
	if (len_bytes == UINT64_MAX || len_bytes % BIO_SECTOR_BYTES)
		return VBLK_IOERR;
	if (!range_set(blk, &req->bio, sector, len_bytes >> BIO_SECTOR_SHIFT))
		return VBLK_IOERR;
	req->data_bytes = read ? (uint32_t)len_bytes : 0;
	return len_bytes ? VBLK_SUBMIT : VBLK_OK;
}

/* Discard and write zeroes: one range, as the configuration space says. */
static enum vblk_verdict range_parse(const struct vblk *blk, struct rest *rest, uint64_t feature,
                                     struct vblk_req *req)
{
	bool zeroes = req->bio.op == BIO_WRITE_ZEROES;
	uint32_t sectors_max = zeroes ? VBLK_ZEROES_SECTORS_MAX : VBLK_DISCARD_SECTORS_MAX;
	struct virtio_blk_range range;

	if (!(blk->features_offered & feature))
		return blk->read_only ? VBLK_IOERR : VBLK_UNSUPP;
	if (!bytes_take(rest, &range, sizeof(range)) || rest->first != rest->end)
		return VBLK_IOERR;
	/* 5.2.6.2: unknown flags, and unmap for a discard, are not supported. */
	if (range.flags & ~(zeroes ? VIRTIO_BLK_ZEROES_F_UNMAP : 0))
		return VBLK_UNSUPP;
	if (range.num_sectors > sectors_max ||
	    !range_set(blk, &req->bio, range.sector, range.num_sectors))
		return VBLK_IOERR;
	return range.num_sectors ? VBLK_SUBMIT : VBLK_OK;
}

static enum vblk_verdict id_write(const struct vblk *blk, const struct rest *rest,
                                  struct vblk_req *req)
{
	uint32_t done_bytes = 0;

	for (unsigned i = rest->first; i < rest->end && done_bytes < VIRTIO_BLK_ID_BYTES; i++) {
		uint32_t part_bytes = MIN(rest->seg[i].len_bytes, VIRTIO_BLK_ID_BYTES - done_bytes);

		if (!rest->seg[i].device_writes ||
		    gmem_write(rest->mem, rest->seg[i].gpa, blk->serial + done_bytes, part_bytes))
			return VBLK_IOERR;
		done_bytes += part_bytes;
	}
	req->data_bytes = done_bytes;
	return VBLK_OK;
}

enum vblk_verdict vblk_request_parse(struct vblk *blk, struct vblk_req *req)
{
	struct rest rest = {.mem = blk->mem, .seg = blk->chain.seg, .end = blk->chain.count};
	struct virtio_blk_hdr hdr;

	req->data_bytes = 0;
	req->flushing = false;
	req->bio.status = BIO_OK;
	req->bio.seg_count = 0;
	req->bio.sector = req->bio.sector_count = 0;
	if (!status_take(&rest, req))
		return VBLK_NO_STATUS;
	if (!hdr_take(&rest, &hdr))
		return VBLK_IOERR;
	switch (hdr.type) {
	case VIRTIO_BLK_T_IN:
		req->bio.op = BIO_READ;
		return transfer_parse(blk, &rest, hdr.sector, req);
	case VIRTIO_BLK_T_OUT:
		req->bio.op = BIO_WRITE;
		return transfer_parse(blk, &rest, hdr.sector, req);
	case VIRTIO_BLK_T_FLUSH: req->bio.op = BIO_FLUSH; return VBLK_SUBMIT;
	case VIRTIO_BLK_T_DISCARD:
		req->bio.op = BIO_DISCARD;
		return range_parse(blk, &rest, VIRTIO_BLK_F_DISCARD, req);
	case VIRTIO_BLK_T_WRITE_ZEROES:
		req->bio.op = BIO_WRITE_ZEROES;
		return range_parse(blk, &rest, VIRTIO_BLK_F_WRITE_ZEROES, req);
	case VIRTIO_BLK_T_GET_ID: return id_write(blk, &rest, req);
	default: return VBLK_UNSUPP;
	}
}
