#include "drivers/source.h"
#include "arch/platform.h"
#include "drivers/gpt.h"
#include "drivers/null.h"
#include "drivers/ramdisk.h"
#include "vmm/fmt.h"

#define NAME_MAX_BYTES 160

struct disk {
	struct bio_dev *dev;
	char file[NAME_MAX_BYTES]; /* of a ramdisk; such a disk has no other name */
	struct gpt *gpt;           /* read at first need */
	int gpt_rc;
	char gpt_err[128];
};

struct opened {
	struct bio_extent extent;
	char source[NAME_MAX_BYTES];
};

static struct disk disks[SOURCE_DISK_MAX];
static struct opened writers[SOURCE_OPEN_MAX];
static uint32_t disk_count, writer_count;
static struct gpt_scratch *scratch;

void source_init(void)
{
	memset(disks, 0, sizeof(disks));
	memset(writers, 0, sizeof(writers));
	disk_count = writer_count = 0;
	scratch = NULL;
}

static struct disk *disk_add(struct bio_dev *dev, const char *file)
{
	struct disk *d;

	if (disk_count == SOURCE_DISK_MAX)
		return NULL;
	d = &disks[disk_count++];
	d->dev = dev;
	fmt_snprintf(d->file, sizeof(d->file), "%s", file);
	return d;
}

int source_dev_add(struct bio_dev *dev)
{
	return disk_add(dev, "") ? 0 : -ENOSPC;
}

/* Text that grows; what does not fit is cut off. */
struct text {
	char *buf;
	size_t size, len;
};

static void text_add(struct text *t, const char *fmt, ...) PRINTF(2, 3);
static void text_add(struct text *t, const char *fmt, ...)
{
	va_list args;

	if (t->len >= t->size)
		return;
	va_start(args, fmt);
	t->len += (size_t)fmt_vsnprintf(t->buf + t->len, t->size - t->len, fmt, args);
	va_end(args);
}

static bool has_name(const struct disk *d)
{
	return !d->file[0];
}

/* "text that starts": its rest, or NULL. */
static const char *after(const char *text, const char *prefix)
{
	size_t len = strlen(prefix);

	return strncmp(text, prefix, len) ? NULL : text + len;
}

/* A whole decimal number of at most 9 digits. */
static bool number_parse(const char *text, uint32_t *out)
{
	uint32_t n = 0, digits = 0;

	for (; *text >= '0' && *text <= '9' && digits < 9; text++, digits++)
		n = n * 10 + (uint32_t)(*text - '0');
	*out = n;
	return digits && !*text;
}

static bool size_parse(const char *text, uint64_t *out)
{
	static const char units[] = "KMGT";
	uint64_t n = 0;
	unsigned shift = 0;

	if (*text < '0' || *text > '9')
		return false;
	for (; *text >= '0' && *text <= '9'; text++) {
		if (n > UINT64_MAX / 16)
			return false;
		n = n * 10 + (uint64_t)(*text - '0');
	}
	for (unsigned i = 0; units[i]; i++)
		if (*text == units[i])
			shift = 10 * (i + 1);
	if (shift)
		text++;
	*out = n << shift;
	return !*text && *out >> shift == n;
}

/* --- partitions --- */

/* The disk's partition table, read once; NULL: none, see gpt_err. */
static const struct gpt *disk_gpt(struct disk *d)
{
	if (d->gpt || d->gpt_rc)
		return d->gpt_rc ? NULL : d->gpt;
	if (!scratch)
		scratch = plat_mem_alloc(sizeof(*scratch), PAGE_SIZE);
	d->gpt = plat_mem_alloc(sizeof(*d->gpt), CACHE_LINE_BYTES);
	if (!scratch || !d->gpt) {
		fmt_snprintf(d->gpt_err, sizeof(d->gpt_err), "no memory");
		d->gpt_rc = -ENOMEM;
	} else {
		d->gpt_rc = gpt_read(d->dev, scratch, d->gpt, d->gpt_err, sizeof(d->gpt_err));
	}
	return d->gpt_rc ? NULL : d->gpt;
}

/* A source on its way to an extent; part NULL: the whole disk. */
struct target {
	struct disk *disk;
	const struct gpt_part *part;
};

static int by_number(struct disk *d, uint32_t number, struct target *out, struct text *err)
{
	const struct gpt *gpt = disk_gpt(d);

	if (!gpt) {
		text_add(err, "no partition %u on %s: %s%s", number, d->dev->name, d->gpt_err,
		         d->gpt_rc == -EINVAL ? ": repair its table first" : "");
		return d->gpt_rc;
	}
	*out = (struct target){.disk = d, .part = gpt_by_number(gpt, number)};
	if (out->part)
		return 0;
	text_add(err, "no partition %u on %s: it has ", number, d->dev->name);
	for (uint32_t i = 0; i < gpt->part_count; i++)
		text_add(err, "%s%u", i ? ", " : "", gpt->part[i].number);
	if (!gpt->part_count)
		text_add(err, "none");
	return -ENOENT;
}

static int by_name(const char *source, struct target *out, struct text *err)
{
	unsigned named = 0;
	uint32_t number;

	for (uint32_t i = 0; i < disk_count; i++) {
		const char *rest = has_name(&disks[i]) ? after(source, disks[i].dev->name) : NULL;

		if (!rest)
			continue;
		*out = (struct target){.disk = &disks[i]};
		if (!*rest)
			return 0;
		if (*rest == 'p' && number_parse(rest + 1, &number))
			return by_number(&disks[i], number, out, err);
	}
	text_add(err, "no disk %s: there is ", source);
	for (uint32_t i = 0; i < disk_count; i++)
		if (has_name(&disks[i]))
			text_add(err, "%s%s", named++ ? ", " : "", disks[i].dev->name);
	if (!named)
		text_add(err, "none; is the drive there, and what do the lines above say of it?");
	return -ENOENT;
}

/* By PARTUUID where guid is given, else by PARTLABEL: on every disk, and it must be unique. */
static int by_search(const char *source, const uint8_t *guid, const char *label, struct target *out,
                     struct text *err)
{
	unsigned listed = 0;

	*out = (struct target){0};
	for (uint32_t i = 0; i < disk_count; i++) {
		const struct gpt *gpt = has_name(&disks[i]) ? disk_gpt(&disks[i]) : NULL;

		for (uint32_t n = 0; gpt && n < gpt->part_count; n++) {
			const struct gpt_part *part = &gpt->part[n];

			if (guid ? memcmp(part->uuid, guid, GPT_GUID_BYTES)
			         : strcmp(part->label, label))
				continue;
			if (out->part) {
				text_add(err, "%s is ambiguous: %sp%u and %sp%u", source,
				         out->disk->dev->name, out->part->number,
				         disks[i].dev->name, part->number);
				return -EINVAL;
			}
			*out = (struct target){.disk = &disks[i], .part = part};
		}
	}
	if (out->part)
		return 0;
	text_add(err, "no partition has %s: there is ", source);
	for (uint32_t i = 0; i < disk_count; i++) {
		const struct gpt *gpt = has_name(&disks[i]) ? disk_gpt(&disks[i]) : NULL;

		for (uint32_t n = 0; gpt && n < gpt->part_count; n++)
			text_add(err, "%s%sp%u \"%s\"", listed++ ? ", " : "", disks[i].dev->name,
			         gpt->part[n].number, gpt->part[n].label);
	}
	if (!listed)
		text_add(err, "none");
	return -ENOENT;
}

/* --- disks made for the occasion --- */

static int made(struct bio_dev *dev, const char *file, const char *source, struct target *out,
                struct text *err)
{
	if (!dev) {
		text_add(err, "%s: no memory", source);
		return -ENOMEM;
	}
	*out = (struct target){.disk = disk_add(dev, file)};
	if (out->disk)
		return 0;
	text_add(err, "%s: more than %u disks", source, SOURCE_DISK_MAX);
	return -ENOSPC;
}

static int by_file(const char *source, const char *name, source_file_fn file, struct target *out,
                   struct text *err)
{
	hpa_t base_hpa;
	uint64_t len_bytes;

	for (uint32_t i = 0; i < disk_count; i++) {
		if (!has_name(&disks[i]) && !strcmp(disks[i].file, source)) {
			*out = (struct target){.disk = &disks[i]};
			return 0;
		}
	}
	if (!file || !file(name, &base_hpa, &len_bytes)) {
		text_add(err, "%s: no such file was loaded", source);
		return -ENOENT;
	}
	if (len_bytes < BIO_SECTOR_BYTES) {
		text_add(err, "%s: the file is smaller than one sector of %u bytes", source,
		         BIO_SECTOR_BYTES);
		return -EINVAL;
	}
	return made(ramdisk_create(base_hpa, len_bytes), source, source, out, err);
}

static int by_size(const char *source, const char *size, struct target *out, struct text *err)
{
	uint64_t len_bytes;

	if (!size_parse(size, &len_bytes) || len_bytes < BIO_SECTOR_BYTES) {
		text_add(err,
		         "%s: a size is a number of bytes from %u on, or one with K, M, G or T",
		         source, BIO_SECTOR_BYTES);
		return -EINVAL;
	}
	return made(null_create(len_bytes), source, source, out, err);
}

static int target_find(const char *source, source_file_fn file, struct target *out,
                       struct text *err)
{
	uint8_t guid[GPT_GUID_BYTES];
	const char *rest;

	if ((rest = after(source, "ram:")))
		return by_file(source, rest, file, out, err);
	if ((rest = after(source, "null:")))
		return by_size(source, rest, out, err);
	if ((rest = after(source, "PARTLABEL=")))
		return by_search(source, NULL, rest, out, err);
	if (!(rest = after(source, "PARTUUID=")))
		return by_name(source, out, err);
	if (!gpt_guid_parse(rest, guid))
		return by_search(source, guid, NULL, out, err);
	text_add(err, "%s: a PARTUUID has the form 01234567-89ab-cdef-0123-456789abcdef", source);
	return -EINVAL;
}

/* --- who may write --- */

static bool overlaps(const struct bio_extent *a, const struct bio_extent *b)
{
	return a->dev == b->dev && a->first_sector < b->first_sector + b->sector_count &&
	       b->first_sector < a->first_sector + a->sector_count;
}

static int writer_add(const char *source, const struct target *t, const struct bio_extent *extent,
                      struct text *err)
{
	if (t->disk->dev->read_only) {
		text_add(err, "%s: %s is write-protected; open it with readonly = true", source,
		         t->disk->dev->name);
		return -EROFS;
	}
	if (t->part && gpt_is_esp(t->part)) {
		text_add(err, "%s is an EFI system partition; open it with readonly = true",
		         source);
		return -EROFS;
	}
	for (uint32_t i = 0; i < writer_count; i++) {
		if (overlaps(extent, &writers[i].extent)) {
			text_add(err, "%s overlaps %s, which is already open for writing", source,
			         writers[i].source);
			return -EBUSY;
		}
	}
	if (writer_count == SOURCE_OPEN_MAX) {
		text_add(err, "%s: more than %u disks open for writing", source, SOURCE_OPEN_MAX);
		return -ENOSPC;
	}
	writers[writer_count].extent = *extent;
	fmt_snprintf(writers[writer_count].source, NAME_MAX_BYTES, "%s", source);
	writer_count++;
	return 0;
}

int source_open(const char *source, source_file_fn file, bool writable, struct bio_extent *out,
                char *err, size_t err_len)
{
	struct text text = {.buf = err, .size = err_len};
	struct target t = {0};
	int rc;

	if (err_len)
		err[0] = 0;
	if (strlen(source) >= NAME_MAX_BYTES) {
		text_add(&text, "a source of more than %u characters", NAME_MAX_BYTES - 1);
		return -EINVAL;
	}
	rc = target_find(source, file, &t, &text);
	if (rc)
		return rc;
	*out = (struct bio_extent){
	        .dev = t.disk->dev,
	        .first_sector = t.part ? t.part->first_sector : 0,
	        .sector_count = t.part ? t.part->sector_count : t.disk->dev->sector_count,
	};
	return writable ? writer_add(source, &t, out, &text) : 0;
}
