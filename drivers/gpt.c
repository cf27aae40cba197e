#include "drivers/gpt.h"
#include "arch/platform.h"
#include "vmm/fmt.h"

#define READ_TIMEOUT_US  60000000ull
#define HEADER_MIN_BYTES 92u
#define ENTRY_MIN_BYTES  128u

struct gpt_header {
	char signature[8];
	uint32_t revision, header_bytes, header_crc, reserved;
	uint64_t my_lba, alternate_lba, first_usable_lba, last_usable_lba;
	uint8_t disk_guid[GPT_GUID_BYTES];
	uint64_t entries_lba;
	uint32_t entry_count, entry_bytes, entries_crc, padding;
};
_Static_assert(offsetof(struct gpt_header, my_lba) == 24, "UEFI 2.9 table 5-5");
_Static_assert(offsetof(struct gpt_header, entries_lba) == 72, "UEFI 2.9 table 5-5");
_Static_assert(offsetof(struct gpt_header, entries_crc) == 88, "UEFI 2.9 table 5-5");

struct gpt_entry {
	uint8_t type[GPT_GUID_BYTES], uuid[GPT_GUID_BYTES];
	uint64_t first_lba, last_lba, attributes;
	uint16_t label[GPT_LABEL_CHARS];
};
_Static_assert(sizeof(struct gpt_entry) == ENTRY_MIN_BYTES, "UEFI 2.9 table 5-6");

uint32_t gpt_crc32(const void *data, size_t len_bytes)
{
	const uint8_t *byte = data;
	uint32_t crc = UINT32_MAX;

	for (size_t i = 0; i < len_bytes; i++) {
		crc ^= byte[i];
		for (unsigned bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
	}
	return ~crc;
}

static int blocks_read(struct bio_dev *dev, struct gpt_scratch *s, uint64_t lba, void *buf,
                       uint64_t len_bytes)
{
	uint32_t block_sectors = dev->block_bytes >> BIO_SECTOR_SHIFT;

	s->seg = (struct bio_seg){.hpa = plat_hpa(buf), .len_bytes = len_bytes};
	s->bio = (struct bio){
	        .op = BIO_READ,
	        .seg_count = 1,
	        .sector = lba * block_sectors,
	        .sector_count = len_bytes >> BIO_SECTOR_SHIFT,
	        .segs = &s->seg,
	};
	return bio_run_sync(dev, &s->bio, READ_TIMEOUT_US);
}

static uint64_t disk_blocks(const struct bio_dev *dev)
{
	return dev->block_bytes == PAGE_SIZE ? dev->sector_count >> 3 : dev->sector_count;
}

/* Why a header read from lba cannot be trusted, or NULL. Its own CRC field is cleared. */
static const char *header_problem(const struct bio_dev *dev, struct gpt_header *h, uint64_t lba)
{
	uint32_t crc = h->header_crc;

	if (h->header_bytes < HEADER_MIN_BYTES || h->header_bytes > dev->block_bytes)
		return "a GPT header of impossible size";
	h->header_crc = 0;
	if (gpt_crc32(h, h->header_bytes) != crc)
		return "a GPT header with a wrong CRC";
	if (h->my_lba != lba)
		return "a GPT header that belongs elsewhere";
	if (h->first_usable_lba > h->last_usable_lba || h->last_usable_lba >= disk_blocks(dev))
		return "a GPT made for a larger disk";
	if (h->entry_bytes < ENTRY_MIN_BYTES || h->entry_bytes > PAGE_SIZE ||
	    (h->entry_bytes & (h->entry_bytes - 1)))
		return "a GPT with entries of impossible size";
	if (h->entry_count == 0 || h->entry_count > GPT_ENTRY_MAX ||
	    h->entry_count * h->entry_bytes > GPT_ARRAY_BYTES)
		return "a GPT with too many entries";
	return NULL;
}

/* Reads and checks one of the two tables. 0, or with *why: -ENOENT, -EINVAL, -EIO. */
static int table_load(struct bio_dev *dev, struct gpt_scratch *s, uint64_t lba, const char **why)
{
	struct gpt_header *h = (void *)s->header;
	uint64_t len_bytes, blocks;

	*why = "the disk cannot be read";
	if (blocks_read(dev, s, lba, s->header, dev->block_bytes))
		return -EIO;
	*why = "no GPT";
	if (memcmp(h->signature, "EFI PART", 8))
		return -ENOENT;
	*why = header_problem(dev, h, lba);
	if (*why)
		return -EINVAL;
	len_bytes = ALIGN_UP((uint64_t)h->entry_count * h->entry_bytes, (uint64_t)dev->block_bytes);
	blocks = dev->block_bytes == PAGE_SIZE ? len_bytes >> 12 : len_bytes >> 9;
	*why = "a GPT whose entries are outside the disk";
	if (h->entries_lba < 2 || h->entries_lba >= disk_blocks(dev) ||
	    blocks > disk_blocks(dev) - h->entries_lba)
		return -EINVAL;
	*why = "the disk cannot be read";
	if (blocks_read(dev, s, h->entries_lba, s->entries, len_bytes))
		return -EIO;
	*why = "GPT entries with a wrong CRC";
	if (gpt_crc32(s->entries, (size_t)h->entry_count * h->entry_bytes) != h->entries_crc)
		return -EINVAL;
	return 0;
}

/* UTF-16LE up to a NUL to UTF-8; control characters and lone halves of pairs become '?'. */
static void label_convert(char *out, const uint16_t *in)
{
	for (unsigned i = 0; i < GPT_LABEL_CHARS && in[i]; i++) {
		uint32_t c = in[i];

		if (c >= 0xd800 && c < 0xdc00 && i + 1 < GPT_LABEL_CHARS && in[i + 1] >= 0xdc00 &&
		    in[i + 1] < 0xe000)
			c = 0x10000 + ((c - 0xd800) << 10) + (in[++i] - 0xdc00u);
		else if ((c >= 0xd800 && c < 0xe000) || c < ' ' || (c >= 0x7f && c < 0xa0))
			c = '?';
		if (c < 0x80) {
			*out++ = (char)c;
			continue;
		}
		if (c < 0x800) {
			*out++ = (char)(0xc0 | c >> 6);
		} else {
			if (c < 0x10000) {
				*out++ = (char)(0xe0 | c >> 12);
			} else {
				*out++ = (char)(0xf0 | c >> 18);
				*out++ = (char)(0x80 | (c >> 12 & 0x3f));
			}
			*out++ = (char)(0x80 | (c >> 6 & 0x3f));
		}
		*out++ = (char)(0x80 | (c & 0x3f));
	}
	*out = 0;
}

static bool overlaps(const struct gpt_part *a, const struct gpt_part *b)
{
	return a->first_sector < b->first_sector + b->sector_count &&
	       b->first_sector < a->first_sector + a->sector_count;
}

/* Adds a used entry. -EINVAL with err: out of range or overlapping. */
static int part_add(const struct bio_dev *dev, const struct gpt_header *h,
                    const struct gpt_entry *e, uint32_t number, struct gpt *out, char *err,
                    size_t err_len)
{
	uint32_t block_sectors = dev->block_bytes >> BIO_SECTOR_SHIFT;
	struct gpt_part *part = &out->part[out->part_count];

	if (out->part_count == GPT_PART_MAX) {
		fmt_snprintf(err, err_len, "more than %u partitions", GPT_PART_MAX);
		return -EINVAL;
	}
	if (e->first_lba < h->first_usable_lba || e->first_lba > e->last_lba ||
	    e->last_lba > h->last_usable_lba) {
		fmt_snprintf(err, err_len, "partition %u lies outside the usable range", number);
		return -EINVAL;
	}
	part->number = number;
	part->first_sector = e->first_lba * block_sectors;
	part->sector_count = (e->last_lba - e->first_lba + 1) * block_sectors;
	memcpy(part->type, e->type, sizeof(part->type));
	memcpy(part->uuid, e->uuid, sizeof(part->uuid));
	label_convert(part->label, e->label);
	for (uint32_t i = 0; i < out->part_count; i++) {
		if (overlaps(part, &out->part[i])) {
			fmt_snprintf(err, err_len, "partitions %u and %u overlap",
			             out->part[i].number, number);
			return -EINVAL;
		}
	}
	out->part_count++;
	return 0;
}

int gpt_read(struct bio_dev *dev, struct gpt_scratch *scratch, struct gpt *out, char *err,
             size_t err_len)
{
	static const uint8_t unused[GPT_GUID_BYTES];
	const struct gpt_header *h = (void *)scratch->header;
	const char *why, *backup_why;
	int rc, backup_rc;

	out->part_count = 0;
	if (disk_blocks(dev) < 4) {
		fmt_snprintf(err, err_len, "no GPT: the disk is too small");
		return -ENOENT;
	}
	rc = table_load(dev, scratch, 1, &why);
	backup_rc = rc ? table_load(dev, scratch, disk_blocks(dev) - 1, &backup_why) : 0;
	if (backup_rc) {
		if (rc == -ENOENT && backup_rc == -ENOENT)
			fmt_snprintf(err, err_len, "no GPT");
		else
			fmt_snprintf(err, err_len, "%s; at the end of the disk: %s", why,
			             backup_why);
		return rc == -ENOENT ? backup_rc : rc;
	}
	if (rc && rc != -ENOENT)
		plat_log("%s: %s; using the table at its end", dev->name, why);
	for (uint32_t i = 0; i < h->entry_count; i++) {
		const struct gpt_entry *e = (void *)(scratch->entries + (size_t)i * h->entry_bytes);

		if (!memcmp(e->type, unused, sizeof(unused)))
			continue;
		rc = part_add(dev, h, e, i + 1, out, err, err_len);
		if (rc)
			return rc;
	}
	return 0;
}

const struct gpt_part *gpt_by_number(const struct gpt *gpt, uint32_t number)
{
	for (uint32_t i = 0; i < gpt->part_count; i++)
		if (gpt->part[i].number == number)
			return &gpt->part[i];
	return NULL;
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The first three groups are stored little-endian, the last two as written (UEFI appendix A). */
int gpt_guid_parse(const char *text, uint8_t guid[GPT_GUID_BYTES])
{
	static const uint8_t place[GPT_GUID_BYTES] = {3, 2, 1,  0,  5,  4,  7,  6,
	                                              8, 9, 10, 11, 12, 13, 14, 15};

	for (unsigned i = 0; i < GPT_GUID_BYTES; i++) {
		int high, low;

		if ((i == 4 || i == 6 || i == 8 || i == 10) && *text++ != '-')
			return -EINVAL;
		high = hex_digit(text[0]);
		low = high < 0 ? -1 : hex_digit(text[1]);
		if (low < 0)
			return -EINVAL;
		guid[place[i]] = (uint8_t)(high << 4 | low);
		text += 2;
	}
	return *text ? -EINVAL : 0;
}

bool gpt_is_esp(const struct gpt_part *part)
{
	/* C12A7328-F81F-11D2-BA4B-00A0C93EC93B */
	static const uint8_t esp[GPT_GUID_BYTES] = {0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11,
	                                            0xba, 0x4b, 0x00, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b};

	return !memcmp(part->type, esp, sizeof(esp));
}
