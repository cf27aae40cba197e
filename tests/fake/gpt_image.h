/*
 * gpt_image.h: a disk in memory with a GUID partition table to be bent by tests, and a bio_dev
 * that reads it in blocks of 512 or 4096 bytes.
 */
#ifndef QUELL_TESTS_FAKE_GPT_IMAGE_H
#define QUELL_TESTS_FAKE_GPT_IMAGE_H

#include "drivers/bio.h"

#define GPT_IMAGE_BLOCKS 2048u

struct gpt_image {
	struct bio_dev dev;
	uint8_t *bytes;
	uint32_t block_bytes, entry_count, entry_bytes;
	struct bio *pending;
	uint64_t fail_sector; /* reads of it fail; 0: none */
	unsigned reads;
};

/* An empty table. Frees with gpt_image_free. */
void gpt_image_init(struct gpt_image *g, const char *name, uint32_t block_bytes,
                    uint32_t entry_count, uint32_t entry_bytes);
void gpt_image_free(struct gpt_image *g);

/* Entry number (from 1): blocks first to last, an ASCII label, uuid bytes all of fill. */
void gpt_image_part(struct gpt_image *g, uint32_t number, uint64_t first, uint64_t last,
                    const char *label, uint8_t fill, bool esp);

/* An entry's bytes in the primary table; a header's (backup: the one at the end). */
uint8_t *gpt_image_entry(struct gpt_image *g, uint32_t number);
uint8_t *gpt_image_header(struct gpt_image *g, bool backup);

/* Copies the entries to the backup and recomputes all CRCs. */
void gpt_image_seal(struct gpt_image *g);
/* Recomputes one header's own CRC. */
void gpt_image_seal_header(struct gpt_image *g, bool backup);

#endif
