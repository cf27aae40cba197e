#include "drivers/ramdisk.h"
#include "arch/platform.h"
#include "drivers/bio_list.h"
#include "vmm/fmt.h"

struct ramdisk {
	struct bio_dev dev;
	uint8_t *base;
	struct bio_list submitted, committed;
	uint64_t done_bytes;          /* of the first of committed, */
	uint64_t seg, seg_done_bytes; /* and where in its segments that is */
	char name[16];
};

#define POLL_BYTES MIB

static struct ramdisk *ramdisk_of(struct bio_dev *dev)
{
	return CONTAINER_OF(dev, struct ramdisk, dev);
}

static int ramdisk_submit(struct bio_dev *dev, struct bio *bio)
{
	bio_list_push(&ramdisk_of(dev)->submitted, bio);
	dev->in_flight++;
	dev->submitted = true;
	return 0;
}

static void ramdisk_commit(struct bio_dev *dev)
{
	if (!dev->submitted)
		return;
	dev->submitted = false;
	dev->doorbells++;
	bio_list_splice(&ramdisk_of(dev)->committed, &ramdisk_of(dev)->submitted);
}

/* The next bytes of a transfer, at most room_bytes. Returns how many; 0: too few segments. */
static uint64_t transfer_step(struct ramdisk *r, const struct bio *bio, uint8_t *data,
                              uint64_t room_bytes)
{
	const struct bio_seg *seg = &bio->segs[r->seg];
	uint64_t len_bytes;
	void *mem;

	if (r->seg == bio->seg_count)
		return 0;
	len_bytes = MIN(seg->len_bytes - r->seg_done_bytes, room_bytes);
	mem = (void *)(uintptr_t)(seg->hpa + r->seg_done_bytes);
	if (bio->op == BIO_READ)
		memcpy(mem, data, len_bytes);
	else
		memcpy(data, mem, len_bytes);
	r->seg_done_bytes += len_bytes;
	if (r->seg_done_bytes == seg->len_bytes) {
		r->seg++;
		r->seg_done_bytes = 0;
	}
	return len_bytes;
}

static uint8_t bio_check(const struct ramdisk *r, const struct bio *bio)
{
	if (bio->op == BIO_FLUSH)
		return BIO_OK;
	if (bio->sector > r->dev.sector_count ||
	    bio->sector_count > r->dev.sector_count - bio->sector)
		return BIO_EINVAL;
	return bio->op <= BIO_WRITE_ZEROES ? BIO_OK : BIO_ENOTSUP;
}

/* Goes on with the oldest bio as far as *room_bytes reach, and takes from them. True: done. */
static bool bio_step(struct ramdisk *r, struct bio *bio, uint64_t *room_bytes)
{
	uint64_t all_bytes = bio->op == BIO_FLUSH ? 0 : bio->sector_count << BIO_SECTOR_SHIFT;
	uint8_t *base = r->base + (bio->sector << BIO_SECTOR_SHIFT);

	bio->status = bio_check(r, bio);
	while (bio->status == BIO_OK && r->done_bytes < all_bytes) {
		uint64_t len_bytes = MIN(all_bytes - r->done_bytes, *room_bytes);

		if (!len_bytes)
			return false;
		if (bio->op == BIO_READ || bio->op == BIO_WRITE) {
			bool last = r->seg == bio->seg_count;

			len_bytes = transfer_step(r, bio, base + r->done_bytes, len_bytes);
			if (last)
				bio->status = BIO_EINVAL;
		} else {
			memset(base + r->done_bytes, 0, len_bytes);
		}
		r->done_bytes += len_bytes;
		*room_bytes -= len_bytes;
	}
	r->done_bytes = r->seg_done_bytes = r->seg = 0;
	return true;
}

/* A poll moves no more than POLL_BYTES, however large the requests are: others wait meanwhile. */
static unsigned ramdisk_poll(struct bio_dev *dev, unsigned budget)
{
	struct ramdisk *r = ramdisk_of(dev);
	uint64_t room_bytes = POLL_BYTES;
	unsigned done = 0;
	struct bio *bio;

	while (done < budget && (bio = r->committed.head) && bio_step(r, bio, &room_bytes)) {
		bio_list_pop(&r->committed);
		done++;
		dev->in_flight--;
		dev->commands++;
		dev->completions++;
		if (bio->status != BIO_OK)
			dev->errors++;
		bio->done(bio);
	}
	return done;
}

/* Nothing completes but by a poll. */
static bool ramdisk_irq_set(struct bio_dev *dev, bool on)
{
	return !on || dev->in_flight == 0;
}

static const struct bio_ops ramdisk_ops = {
        .submit = ramdisk_submit,
        .commit = ramdisk_commit,
        .poll = ramdisk_poll,
        .irq_set = ramdisk_irq_set,
};

struct bio_dev *ramdisk_create(hpa_t base_hpa, uint64_t len_bytes)
{
	static unsigned count;
	struct ramdisk *r;

	if (len_bytes < BIO_SECTOR_BYTES)
		return NULL;
	r = plat_mem_alloc(sizeof(*r), CACHE_LINE_BYTES);
	if (!r)
		return NULL;
	fmt_snprintf(r->name, sizeof(r->name), "ram%u", count++);
	r->base = (uint8_t *)(uintptr_t)base_hpa;
	r->dev = (struct bio_dev){
	        .ops = &ramdisk_ops,
	        .name = r->name,
	        .sector_count = len_bytes >> BIO_SECTOR_SHIFT,
	        .block_bytes = BIO_SECTOR_BYTES,
	        .physical_block_bytes = PAGE_SIZE,
	        .max_transfer_bytes = MIB,
	        .has_discard = true,
	        .has_write_zeroes = true,
	};
	if (len_bytes % BIO_SECTOR_BYTES)
		plat_log("%s: the file's last %u bytes are no whole sector and are left out",
		         r->name, (unsigned)(len_bytes % BIO_SECTOR_BYTES));
	return &r->dev;
}
