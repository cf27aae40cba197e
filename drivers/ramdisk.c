#include "drivers/ramdisk.h"
#include "arch/platform.h"
#include "drivers/bio_list.h"
#include "vmm/fmt.h"

struct ramdisk {
	struct bio_dev dev;
	uint8_t *base;
	struct bio_list submitted, committed;
	char name[16];
};

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

static uint8_t ramdisk_copy(const struct bio *bio, uint8_t *data)
{
	uint64_t left_bytes = bio->sector_count << BIO_SECTOR_SHIFT;

	for (unsigned i = 0; i < bio->seg_count && left_bytes; i++) {
		void *mem = (void *)(uintptr_t)bio->segs[i].hpa;
		uint64_t len_bytes = MIN(bio->segs[i].len_bytes, left_bytes);

		if (bio->op == BIO_READ)
			memcpy(mem, data, len_bytes);
		else
			memcpy(data, mem, len_bytes);
		data += len_bytes;
		left_bytes -= len_bytes;
	}
	return left_bytes ? BIO_EINVAL : BIO_OK;
}

static uint8_t ramdisk_execute(struct ramdisk *r, const struct bio *bio)
{
	uint8_t *data;

	if (bio->op == BIO_FLUSH)
		return BIO_OK;
	if (bio->sector > r->dev.sector_count ||
	    bio->sector_count > r->dev.sector_count - bio->sector)
		return BIO_EINVAL;
	data = r->base + (bio->sector << BIO_SECTOR_SHIFT);
	switch (bio->op) {
	case BIO_READ:
	case BIO_WRITE:
		return ramdisk_copy(bio, data);
	case BIO_DISCARD:
	case BIO_WRITE_ZEROES:
		memset(data, 0, bio->sector_count << BIO_SECTOR_SHIFT);
		return BIO_OK;
	default:
		return BIO_ENOTSUP;
	}
}

static unsigned ramdisk_poll(struct bio_dev *dev, unsigned budget)
{
	struct ramdisk *r = ramdisk_of(dev);
	unsigned done = 0;
	struct bio *bio;

	while (done < budget && (bio = bio_list_pop(&r->committed))) {
		bio->status = ramdisk_execute(r, bio);
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
