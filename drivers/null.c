#include "drivers/null.h"
#include "arch/platform.h"
#include "drivers/bio_list.h"
#include "vmm/fmt.h"

struct null_dev {
	struct bio_dev dev;
	struct bio_list submitted, committed;
	char name[16];
};

static struct null_dev *null_of(struct bio_dev *dev)
{
	return CONTAINER_OF(dev, struct null_dev, dev);
}

static int null_submit(struct bio_dev *dev, struct bio *bio)
{
	bool in_range = bio->sector <= dev->sector_count &&
	                bio->sector_count <= dev->sector_count - bio->sector;

	bio->status = in_range ? BIO_OK : BIO_EINVAL;
	bio_list_push(&null_of(dev)->submitted, bio);
	dev->in_flight++;
	dev->submitted = true;
	return 0;
}

static void null_commit(struct bio_dev *dev)
{
	if (!dev->submitted)
		return;
	dev->submitted = false;
	dev->doorbells++;
	bio_list_splice(&null_of(dev)->committed, &null_of(dev)->submitted);
}

static unsigned null_poll(struct bio_dev *dev, unsigned budget)
{
	unsigned done = 0;
	struct bio *bio;

	while (done < budget && (bio = bio_list_pop(&null_of(dev)->committed))) {
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
static bool null_irq_set(struct bio_dev *dev, bool on)
{
	return !on || dev->in_flight == 0;
}

static const struct bio_ops null_ops = {
        .submit = null_submit,
        .commit = null_commit,
        .poll = null_poll,
        .irq_set = null_irq_set,
};

struct bio_dev *null_create(uint64_t len_bytes)
{
	static unsigned count;
	struct null_dev *n;

	if (len_bytes < BIO_SECTOR_BYTES)
		return NULL;
	n = plat_mem_alloc(sizeof(*n), CACHE_LINE_BYTES);
	if (!n)
		return NULL;
	fmt_snprintf(n->name, sizeof(n->name), "null%u", count++);
	n->dev = (struct bio_dev){
	        .ops = &null_ops,
	        .name = n->name,
	        .sector_count = len_bytes >> BIO_SECTOR_SHIFT,
	        .block_bytes = BIO_SECTOR_BYTES,
	        .physical_block_bytes = PAGE_SIZE,
	        .max_transfer_bytes = MIB,
	        .has_discard = true,
	        .has_write_zeroes = true,
	};
	return &n->dev;
}
