#include "tests/fake/gpt_image.h"
#include "drivers/gpt.h"

#include <stdlib.h>
#include <string.h>

static void put32(uint8_t *at, uint32_t value)
{
	memcpy(at, &value, 4);
}

static void put64(uint8_t *at, uint64_t value)
{
	memcpy(at, &value, 8);
}

static int image_submit(struct bio_dev *dev, struct bio *bio)
{
	struct gpt_image *g = CONTAINER_OF(dev, struct gpt_image, dev);
	uint64_t block_sectors = g->block_bytes / 512, end = bio->sector + bio->sector_count;

	bio->status = BIO_OK;
	if (bio->op != BIO_READ || (bio->sector | bio->sector_count) % block_sectors ||
	    end > dev->sector_count || bio->segs[0].len_bytes != bio->sector_count * 512)
		bio->status = BIO_EINVAL;
	else if (g->fail_sector && g->fail_sector >= bio->sector && g->fail_sector < end)
		bio->status = BIO_EIO;
	else
		memcpy((void *)(uintptr_t)bio->segs[0].hpa, g->bytes + bio->sector * 512,
		       bio->segs[0].len_bytes);
	g->pending = bio;
	g->reads++;
	return 0;
}

static void image_commit(struct bio_dev *dev)
{
	(void)dev;
}

static unsigned image_poll(struct bio_dev *dev, unsigned budget)
{
	struct gpt_image *g = CONTAINER_OF(dev, struct gpt_image, dev);
	struct bio *bio = g->pending;

	(void)budget;
	g->pending = NULL;
	if (bio)
		bio->done(bio);
	return bio != NULL;
}

uint8_t *gpt_image_header(struct gpt_image *g, bool backup)
{
	return g->bytes + (size_t)(backup ? GPT_IMAGE_BLOCKS - 1 : 1) * g->block_bytes;
}

static uint32_t array_blocks(const struct gpt_image *g)
{
	return (g->entry_count * g->entry_bytes + g->block_bytes - 1) / g->block_bytes;
}

static void header_make(struct gpt_image *g, bool backup)
{
	uint8_t *h = gpt_image_header(g, backup);
	uint64_t my = backup ? GPT_IMAGE_BLOCKS - 1 : 1, other = backup ? 1 : GPT_IMAGE_BLOCKS - 1;

	memcpy(h, "EFI PART", 8);
	put32(h + 8, 0x10000);
	put32(h + 12, 92);
	put64(h + 24, my);
	put64(h + 32, other);
	put64(h + 40, 2 + array_blocks(g));
	put64(h + 48, GPT_IMAGE_BLOCKS - 2 - array_blocks(g));
	memset(h + 56, 0xd1, 16);
	put64(h + 72, backup ? GPT_IMAGE_BLOCKS - 1 - array_blocks(g) : 2);
	put32(h + 80, g->entry_count);
	put32(h + 84, g->entry_bytes);
}

void gpt_image_init(struct gpt_image *g, const char *name, uint32_t block_bytes,
                    uint32_t entry_count, uint32_t entry_bytes)
{
	static const struct bio_ops ops = {image_submit, image_commit, image_poll, NULL};

	*g = (struct gpt_image){
	        .bytes = calloc(GPT_IMAGE_BLOCKS, block_bytes),
	        .block_bytes = block_bytes,
	        .entry_count = entry_count,
	        .entry_bytes = entry_bytes,
	        .dev = {.ops = &ops,
	                .name = name,
	                .block_bytes = block_bytes,
	                .sector_count = (uint64_t)GPT_IMAGE_BLOCKS * block_bytes / 512},
	};
	header_make(g, false);
	header_make(g, true);
	gpt_image_seal(g);
}

void gpt_image_free(struct gpt_image *g)
{
	free(g->bytes);
	g->bytes = NULL;
}

uint8_t *gpt_image_entry(struct gpt_image *g, uint32_t number)
{
	return g->bytes + (size_t)2 * g->block_bytes + (size_t)(number - 1) * g->entry_bytes;
}

void gpt_image_part(struct gpt_image *g, uint32_t number, uint64_t first, uint64_t last,
                    const char *label, uint8_t fill, bool esp)
{
	static const uint8_t esp_type[] = {0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11,
	                                   0xba, 0x4b, 0x00, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b};
	uint8_t *e = gpt_image_entry(g, number);

	memset(e, 0, g->entry_bytes);
	memset(e, 0x44, 16);
	if (esp)
		memcpy(e, esp_type, 16);
	memset(e + 16, fill, 16);
	put64(e + 32, first);
	put64(e + 40, last);
	for (unsigned i = 0; label[i]; i++)
		e[56 + 2 * i] = (uint8_t)label[i];
	gpt_image_seal(g);
}

void gpt_image_seal_header(struct gpt_image *g, bool backup)
{
	uint8_t *h = gpt_image_header(g, backup);
	uint32_t header_bytes;

	memcpy(&header_bytes, h + 12, 4);
	put32(h + 16, 0);
	put32(h + 16, gpt_crc32(h, header_bytes));
}

void gpt_image_seal(struct gpt_image *g)
{
	size_t array = (size_t)g->entry_count * g->entry_bytes;

	memcpy(gpt_image_header(g, true) - (size_t)array_blocks(g) * g->block_bytes,
	       gpt_image_entry(g, 1), array);
	for (int backup = 0; backup < 2; backup++) {
		put32(gpt_image_header(g, backup) + 88, gpt_crc32(gpt_image_entry(g, 1), array));
		gpt_image_seal_header(g, backup);
	}
}
