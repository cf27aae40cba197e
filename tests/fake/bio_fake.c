#include "tests/fake/bio_fake.h"

#include <stdlib.h>
#include <string.h>

static struct bio_fake *fake_of(struct bio_dev *dev)
{
	return CONTAINER_OF(dev, struct bio_fake, dev);
}

static int fake_submit(struct bio_dev *dev, struct bio *bio)
{
	struct bio_fake *fake = fake_of(dev);

	if (dev->in_flight >= fake->room)
		return -EAGAIN;
	fake->log[fake->log_count++ % BIO_FAKE_LOG_MAX] =
	        (struct bio_fake_log){bio->op, bio->sector, bio->sector_count, bio->seg_count};
	fake->submitted[fake->submitted_count++] = bio;
	dev->in_flight++;
	dev->submitted = true;
	return 0;
}

static void fake_commit(struct bio_dev *dev)
{
	struct bio_fake *fake = fake_of(dev);

	dev->submitted = false;
	dev->doorbells++;
	for (unsigned i = 0; i < fake->submitted_count; i++)
		fake->committed[fake->committed_count++] = fake->submitted[i];
	fake->submitted_count = 0;
}

/* Copies, and aborts on what no driver may be given. */
static void transfer(struct bio_fake *fake, const struct bio *bio)
{
	uint8_t *at = fake->data + bio->sector * BIO_SECTOR_BYTES;
	uint64_t sum_bytes = 0;

	if (bio->seg_count == 0 || bio->seg_count > BIO_SEG_MAX)
		abort();
	for (unsigned i = 0; i < bio->seg_count; i++) {
		void *mem = (void *)(uintptr_t)bio->segs[i].hpa;

		if (bio->op == BIO_READ)
			memcpy(mem, at + sum_bytes, bio->segs[i].len_bytes);
		else
			memcpy(at + sum_bytes, mem, bio->segs[i].len_bytes);
		sum_bytes += bio->segs[i].len_bytes;
	}
	if (sum_bytes != bio->sector_count * BIO_SECTOR_BYTES)
		abort();
}

static uint8_t execute(struct bio_fake *fake, const struct bio *bio)
{
	if (bio->op != BIO_FLUSH && (bio->sector > fake->dev.sector_count ||
	                             bio->sector_count > fake->dev.sector_count - bio->sector))
		abort();
	if (fake->next_status != BIO_OK)
		return fake->next_status;
	switch (bio->op) {
	case BIO_READ:
	case BIO_WRITE: transfer(fake, bio); break;
	case BIO_FLUSH: fake->flushes++; break;
	case BIO_DISCARD:
	case BIO_WRITE_ZEROES:
		memset(fake->data + bio->sector * BIO_SECTOR_BYTES, 0,
		       bio->sector_count * BIO_SECTOR_BYTES);
		break;
	}
	return BIO_OK;
}

static unsigned fake_poll(struct bio_dev *dev, unsigned budget)
{
	struct bio_fake *fake = fake_of(dev);
	unsigned n = 0;

	while (!fake->hold && n < budget && n < fake->committed_count) {
		struct bio *bio = fake->committed[n++];

		bio->status = execute(fake, bio);
		dev->in_flight--;
		dev->completions++;
		bio->done(bio);
	}
	fake->committed_count -= n;
	memmove(fake->committed, fake->committed + n,
	        fake->committed_count * sizeof(fake->committed[0]));
	return n;
}

static const struct bio_ops fake_ops = {
        .submit = fake_submit,
        .commit = fake_commit,
        .poll = fake_poll,
};

void bio_fake_init(struct bio_fake *fake, uint64_t sector_count, uint32_t block_bytes)
{
	memset(fake, 0, sizeof(*fake));
	fake->data = calloc(sector_count, BIO_SECTOR_BYTES);
	if (!fake->data)
		abort();
	fake->room = 4096;
	fake->dev.ops = &fake_ops;
	fake->dev.name = "fake0";
	fake->dev.sector_count = sector_count;
	fake->dev.block_bytes = block_bytes;
	fake->dev.physical_block_bytes = MAX(block_bytes, PAGE_SIZE);
	fake->dev.max_transfer_bytes = MIB;
	fake->dev.has_cache = fake->dev.has_discard = fake->dev.has_write_zeroes = true;
}

void bio_fake_free(struct bio_fake *fake)
{
	free(fake->data);
	memset(fake, 0, sizeof(*fake));
}

const struct bio_fake_log *bio_fake_last(const struct bio_fake *fake)
{
	return &fake->log[(fake->log_count - 1) % BIO_FAKE_LOG_MAX];
}
