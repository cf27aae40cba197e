/*
 * The partition table: a disk whose header, entries and checksums the input bends and, if it likes,
 * seals again so that what lies behind the checksums is reached. What is accepted lies inside the
 * disk, in order, and overlaps nothing.
 */
#include "tests/fuzz/fuzz.h"

#include "drivers/gpt.h"
#include "tests/fake/gpt_image.h"
#include "tests/fake/platform.h"

const char fuzz_name[] = "gpt";
const unsigned fuzz_rounds = 1500;

/* First byte: shape. Then steps. */
#define SHAPE_4K        1u
#define SHAPE_256_BYTES 2u
#define SHAPE_MANY      4u

enum step {
	STEP_PART,         /* number, first, last (16 bits each, first and last in blocks) */
	STEP_LABEL,        /* number, character, its place */
	STEP_HEADER_BYTE,  /* backup, offset, value */
	STEP_HEADER_FIELD, /* backup, which, 64 bits */
	STEP_ENTRY_BYTE,   /* number, offset, value */
	STEP_FAIL,         /* sector, 16 bits */
	STEP_DISK_SIZE,    /* sectors, 16 bits */
	STEP_SEAL,
	STEP_COUNT,
};

size_t fuzz_seed(unsigned index, uint8_t *out)
{
	struct fuzz_out o = {out, 0};

	switch (index) {
	case 0: /* three partitions, the last one reaching the end */
		FUZZ_PUT(&o, 0, STEP_PART, 0, 64, 0, 128, 0, STEP_PART, 1, 129, 0, 255, 1);
		FUZZ_PUT(&o, STEP_PART, 4, 0, 2, 0xd0, 7, STEP_SEAL);
		break;
	case 1: /* overlapping */
		FUZZ_PUT(&o, 0, STEP_PART, 0, 64, 0, 128, 0, STEP_PART, 1, 128, 0, 130, 0,
		         STEP_SEAL);
		break;
	case 2: /* 4 KiB blocks, larger entries, a label with a pair */
		FUZZ_PUT(&o, SHAPE_4K | SHAPE_256_BYTES, STEP_PART, 2, 100, 0, 200, 0);
		FUZZ_PUT(&o, STEP_LABEL, 2, 0x3d, 0xd8, 0, STEP_LABEL, 2, 0x00, 0xde, 1, STEP_SEAL);
		break;
	case 3: /* the primary is damaged, the backup serves */
		FUZZ_PUT(&o, 0, STEP_PART, 0, 64, 0, 128, 0, STEP_SEAL, STEP_HEADER_BYTE, 0, 40, 7);
		break;
	case 4: /* entry counts and places as they should not be */
		FUZZ_PUT(&o, SHAPE_MANY, STEP_HEADER_FIELD, 0, 4, 0, 0x10, 0, 0, 0, 0, 0, 0,
		         STEP_SEAL);
		break;
	case 5: /* a header that cannot be read */
		FUZZ_PUT(&o, 0, STEP_FAIL, 1, 0, STEP_SEAL);
		break;
	case 6: /* a smaller disk than the table was made for */
		FUZZ_PUT(&o, 0, STEP_PART, 0, 64, 0, 128, 0, STEP_DISK_SIZE, 0, 4, STEP_SEAL);
		break;
	default: return 0;
	}
	return o.len_bytes;
}

#define TOUCHED_BYTES (64 * KIB) /* at each end: as much as a step can reach */

static struct gpt_image image;

/* A fresh disk. Disks are large: each shape's is made once, and then made good again. */
static void image_take(unsigned shape)
{
	static struct {
		struct gpt_image image;
		uint8_t *first, *last;
	} kept[8], *k;
	size_t end;

	k = &kept[shape % ARRAY_LEN(kept)];
	if (!k->first) {
		gpt_image_init(&k->image, "disk", shape & SHAPE_4K ? 4096 : 512,
		               shape & SHAPE_MANY ? 130 : 8, shape & SHAPE_256_BYTES ? 256 : 128);
		end = (size_t)GPT_IMAGE_BLOCKS * k->image.block_bytes - TOUCHED_BYTES;
		k->first = malloc(TOUCHED_BYTES);
		k->last = malloc(TOUCHED_BYTES);
		memcpy(k->first, k->image.bytes, TOUCHED_BYTES);
		memcpy(k->last, k->image.bytes + end, TOUCHED_BYTES);
	}
	image = k->image;
	end = (size_t)GPT_IMAGE_BLOCKS * image.block_bytes - TOUCHED_BYTES;
	memcpy(image.bytes, k->first, TOUCHED_BYTES);
	memcpy(image.bytes + end, k->last, TOUCHED_BYTES);
}

static uint64_t get(const uint8_t *at, unsigned width_bytes)
{
	uint64_t value = 0;

	memcpy(&value, at, width_bytes);
	return value;
}

/* Both headers' checksums as they would have to be for what they say now. */
static void seal(void)
{
	for (unsigned backup = 0; backup < 2; backup++) {
		uint8_t *h = gpt_image_header(&image, backup);
		uint64_t at = get(h + 72, 8) * image.block_bytes;
		uint64_t len_bytes = get(h + 80, 4) * get(h + 84, 4);
		uint64_t disk_bytes = (uint64_t)GPT_IMAGE_BLOCKS * image.block_bytes;
		uint32_t crc;

		if (get(h + 72, 8) < GPT_IMAGE_BLOCKS && len_bytes <= MIN(disk_bytes - at, 65536)) {
			crc = gpt_crc32(image.bytes + at, len_bytes);
			memcpy(h + 88, &crc, 4);
		}
		if (get(h + 12, 4) <= image.block_bytes)
			gpt_image_seal_header(&image, backup);
	}
}

static void field_set(struct fuzz_in *in)
{
	/* MyLBA, first and last usable, entries' LBA; their count and size together; the header's. */
	static const uint8_t offset[] = {24, 40, 48, 72, 80, 12};
	uint8_t *h = gpt_image_header(&image, fuzz_u8(in) & 1);
	unsigned which = fuzz_below(in, ARRAY_LEN(offset));
	uint64_t value = fuzz_u64(in);

	memcpy(h + offset[which], &value, which == 5 ? 4 : 8);
}

static unsigned seals_left; /* checksums take nearly all of the time */

static void step(struct fuzz_in *in)
{
	unsigned number;
	uint64_t value;
	uint8_t *at;

	switch (fuzz_below(in, STEP_COUNT)) {
	case STEP_PART:
		at = gpt_image_entry(&image, 1 + fuzz_below(in, image.entry_count));
		memset(at, 0x44, 32);
		value = fuzz_u16(in);
		memcpy(at + 32, &value, 8);
		value = fuzz_u16(in);
		memcpy(at + 40, &value, 8);
		break;
	case STEP_LABEL:
		number = 1 + fuzz_below(in, image.entry_count);
		value = fuzz_u16(in);
		memcpy(gpt_image_entry(&image, number) + 56 + 2 * fuzz_below(in, GPT_LABEL_CHARS),
		       &value, 2);
		break;
	case STEP_HEADER_BYTE:
		at = gpt_image_header(&image, fuzz_u8(in) & 1);
		at += fuzz_below(in, 96);
		*at = fuzz_u8(in);
		break;
	case STEP_HEADER_FIELD: field_set(in); break;
	case STEP_ENTRY_BYTE:
		at = gpt_image_entry(&image, 1 + fuzz_below(in, image.entry_count));
		at += fuzz_below(in, 128);
		*at = fuzz_u8(in);
		break;
	case STEP_FAIL: image.fail_sector = fuzz_u16(in); break;
	case STEP_DISK_SIZE:
		value = fuzz_u16(in);
		image.dev.sector_count = MIN(value, GPT_IMAGE_BLOCKS * image.block_bytes / 512);
		break;
	case STEP_SEAL:
		if (seals_left && seals_left--)
			seal();
		break;
	}
}

/* UTF-8 of printable characters only, and its NUL inside the field. */
static void label_check(const char *label, size_t room)
{
	const uint8_t *at = (const uint8_t *)label;

	FUZZ_CHECK(memchr(label, 0, room));
	while (*at) {
		unsigned more = *at < 0x80 ? 0 : *at >= 0xf0 ? 3 : *at >= 0xe0 ? 2 : 1;

		FUZZ_CHECK(*at >= ' ' && *at != 0x7f && (*at < 0x80 || *at >= 0xc2) && *at <= 0xf4);
		for (at++; more; more--, at++)
			FUZZ_CHECK((*at & 0xc0) == 0x80);
	}
}

static void table_check(const struct gpt *gpt)
{
	uint32_t block_sectors = image.block_bytes / 512, last = 0;

	FUZZ_CHECK(gpt->part_count <= GPT_PART_MAX);
	for (uint32_t i = 0; i < gpt->part_count; i++) {
		const struct gpt_part *p = &gpt->part[i];

		FUZZ_CHECK(p->number > last && p->number <= GPT_ENTRY_MAX);
		last = p->number;
		FUZZ_CHECK(p->sector_count && p->first_sector < image.dev.sector_count);
		FUZZ_CHECK(p->sector_count <= image.dev.sector_count - p->first_sector);
		FUZZ_CHECK((p->first_sector | p->sector_count) % block_sectors == 0);
		FUZZ_CHECK(gpt_by_number(gpt, p->number) == p);
		label_check(p->label, sizeof(p->label));
		for (uint32_t k = 0; k < i; k++)
			FUZZ_CHECK(p->first_sector >=
			                   gpt->part[k].first_sector + gpt->part[k].sector_count ||
			           gpt->part[k].first_sector >= p->first_sector + p->sector_count);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	struct fuzz_in in = {data, data + len_bytes};
	struct gpt_scratch *scratch;
	static struct gpt gpt;
	char err[64];
	int rc;

	fake_reset();
	image_take(fuzz_u8(&in));
	seals_left = 2;
	while (fuzz_more(&in))
		step(&in);
	scratch = plat_mem_alloc(sizeof(*scratch), PAGE_SIZE);
	memset(err, 0, sizeof(err));
	rc = gpt_read(&image.dev, scratch, &gpt, err, sizeof(err));
	FUZZ_CHECK(rc == 0 || rc == -ENOENT || rc == -EINVAL || rc == -EIO);
	if (rc)
		FUZZ_CHECK(err[0] && memchr(err, 0, sizeof(err)));
	else
		table_check(&gpt);
	return 0;
}
