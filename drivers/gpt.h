/*
 * gpt.h: reads a GUID partition table (UEFI 2.9 5.3). Nothing in it is believed before its CRCs,
 * its ranges and its overlaps are checked. Boot core, before the I/O core starts.
 */
#ifndef QUELL_DRIVERS_GPT_H
#define QUELL_DRIVERS_GPT_H

#include "drivers/bio.h"

#define GPT_PART_MAX    128u /* used partitions of one disk */
#define GPT_ENTRY_MAX   1024u
#define GPT_ARRAY_BYTES (128u * 1024u)
#define GPT_GUID_BYTES  16u
#define GPT_LABEL_CHARS 36u

struct gpt_part {
	uint32_t number; /* from 1, the entry's position */
	uint64_t first_sector, sector_count;
	uint8_t type[GPT_GUID_BYTES], uuid[GPT_GUID_BYTES];
	char label[GPT_LABEL_CHARS * 3 + 1]; /* UTF-8 */
};

struct gpt {
	uint32_t part_count; /* ascending numbers */
	struct gpt_part part[GPT_PART_MAX];
};

/* Memory for reading, given by the caller; page-aligned, from plat_mem_alloc. */
struct gpt_scratch {
	uint8_t entries[GPT_ARRAY_BYTES];
	uint8_t header[PAGE_SIZE];
	struct bio bio;
	struct bio_seg seg;
};

/*
 * Reads the table at block 1, or where that is damaged the one at the last block. 0; -ENOENT: no
 * table; -EINVAL: tables that cannot be trusted; -EIO. err says why, without the disk's name.
 */
int gpt_read(struct bio_dev *dev, struct gpt_scratch *scratch, struct gpt *out, char *err,
             size_t err_len);

/* The partition of that number, or NULL. */
const struct gpt_part *gpt_by_number(const struct gpt *gpt, uint32_t number);

/* Is this an EFI system partition by type. */
bool gpt_is_esp(const struct gpt_part *part);

/* GUID text, 8-4-4-4-12 hex digits of either case, to its bytes on disk. -EINVAL. */
int gpt_guid_parse(const char *text, uint8_t guid[GPT_GUID_BYTES]);

/* CRC-32 of ISO 3309, as UEFI uses it. */
uint32_t gpt_crc32(const void *data, size_t len_bytes);

#endif
