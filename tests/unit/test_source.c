#include "drivers/source.h"
#include "tests/fake/gpt_image.h"
#include "tests/fake/platform.h"
#include "tests/unit/test.h"

#include <string.h>

static struct gpt_image disk_a, disk_b, plain;
static struct bio_extent extent;
static char err[200];
static uint8_t file_bytes[4096 + 10];

static bool file_find(const char *name, hpa_t *base_hpa, uint64_t *len_bytes)
{
	if (strcmp(name, "disk.img") && strcmp(name, "other.img") && strcmp(name, "tiny"))
		return false;
	*base_hpa = (uintptr_t)file_bytes;
	*len_bytes = strcmp(name, "tiny") ? sizeof(file_bytes) : 511;
	return true;
}

static int open_as(const char *source, bool writable)
{
	memset(&extent, 0, sizeof(extent));
	memset(err, 'x', sizeof(err));
	return source_open(source, file_find, writable, &extent, err, sizeof(err));
}

static int look(const char *source)
{
	return open_as(source, false);
}

static void says(const char *text)
{
	if (strcmp(err, text))
		printf("  it says: %s\n", err);
	CHECK(!strcmp(err, text));
}

/* Two disks with tables, one without. */
static void begin(void)
{
	fake_reset();
	source_init();
	gpt_image_init(&disk_a, "nvme0n1", 512, 128, 128);
	gpt_image_part(&disk_a, 1, 100, 199, "EFI", 0x11, true);
	gpt_image_part(&disk_a, 2, 200, 999, "root", 0x22, false);
	gpt_image_part(&disk_a, 3, 1000, 1099, "data", 0x33, false);
	gpt_image_init(&disk_b, "nvme0n12", 4096, 128, 128);
	gpt_image_part(&disk_b, 1, 300, 399, "data", 0x44, false);
	gpt_image_part(&disk_b, 2, 400, 499, "copy", 0x22, false);
	gpt_image_init(&plain, "nvme1n1", 512, 128, 128);
	memset(plain.bytes, 0, 512 * GPT_IMAGE_BLOCKS);
	CHECK_EQ(source_dev_add(&disk_a.dev), 0);
	CHECK_EQ(source_dev_add(&disk_b.dev), 0);
	CHECK_EQ(source_dev_add(&plain.dev), 0);
}

static void end(void)
{
	gpt_image_free(&disk_a);
	gpt_image_free(&disk_b);
	gpt_image_free(&plain);
	source_init();
	fake_reset();
}

static void test_names(void)
{
	begin();
	CHECK_EQ(look("nvme1n1"), 0); /* whole disks need no table */
	CHECK(extent.dev == &plain.dev && extent.first_sector == 0 && extent.sector_count == 2048);
	CHECK_EQ(look("nvme0n12"), 0);
	CHECK(extent.dev == &disk_b.dev);
	CHECK_EQ(disk_a.reads + disk_b.reads + plain.reads, 0);
	CHECK_EQ(look("nvme0n1p2"), 0);
	CHECK(extent.dev == &disk_a.dev);
	CHECK_EQ(extent.first_sector, 200);
	CHECK_EQ(extent.sector_count, 800);
	CHECK_EQ(look("nvme0n12p1"), 0);
	CHECK(extent.dev == &disk_b.dev);
	CHECK_EQ(extent.first_sector, 2400);
	CHECK_EQ(disk_a.reads, 2); /* header and entries, once */
	CHECK_EQ(look("nvme0n1p3"), 0);
	CHECK_EQ(disk_a.reads, 2);
	end();
}

static void test_wrong_names(void)
{
	begin();
	CHECK_EQ(look("nvme0n1p7"), -ENOENT);
	says("no partition 7 on nvme0n1: it has 1, 2, 3");
	CHECK_EQ(look("nvme3n1"), -ENOENT);
	says("no disk nvme3n1: there is nvme0n1, nvme0n12, nvme1n1");
	CHECK_EQ(look("nvme0n1p"), -ENOENT);
	CHECK_EQ(look("nvme0n1p2x"), -ENOENT);
	CHECK_EQ(look("nvme0n1p4294967298"), -ENOENT); /* not 2 */
	CHECK_EQ(look("nvme0n1px"), -ENOENT);
	CHECK_EQ(look(""), -ENOENT);
	CHECK_EQ(look("null:1G"), 0);
	CHECK_EQ(look("null0"), -ENOENT); /* made disks have no name of their own */
	memset(disk_b.bytes, 0, 8192);
	memset(disk_b.bytes + (GPT_IMAGE_BLOCKS - 1) * 4096, 0, 4096);
	CHECK_EQ(look("nvme0n12p1"), -ENOENT);
	says("no partition 1 on nvme0n12: no GPT");
	end();
	CHECK_EQ(look("nvme0n1"), -ENOENT);
	says("no disk nvme0n1: there is none; is the drive there, and what do the lines above say "
	     "of it?");
}

static void test_search(void)
{
	begin();
	CHECK_EQ(look("PARTLABEL=root"), 0);
	CHECK(extent.dev == &disk_a.dev && extent.first_sector == 200);
	CHECK_EQ(look("PARTLABEL=copy"), 0);
	CHECK(extent.dev == &disk_b.dev && extent.first_sector == 3200);
	CHECK_EQ(look("PARTLABEL=data"), -EINVAL);
	says("PARTLABEL=data is ambiguous: nvme0n1p3 and nvme0n12p1");
	CHECK_EQ(look("PARTLABEL=Root"), -ENOENT);
	says("no partition has PARTLABEL=Root: there is nvme0n1p1 \"EFI\", nvme0n1p2 \"root\", "
	     "nvme0n1p3 \"data\", nvme0n12p1 \"data\", nvme0n12p2 \"copy\"");
	CHECK_EQ(look("PARTUUID=33333333-3333-3333-3333-333333333333"), 0);
	CHECK(extent.dev == &disk_a.dev && extent.first_sector == 1000);
	CHECK_EQ(look("PARTUUID=22222222-2222-2222-2222-222222222222"),
	         -EINVAL); /* a cloned disk */
	CHECK_EQ(look("PARTUUID=55555555-5555-5555-5555-555555555555"), -ENOENT);
	CHECK_EQ(look("PARTUUID=5555"), -EINVAL);
	says("PARTUUID=5555: a PARTUUID has the form 01234567-89ab-cdef-0123-456789abcdef");
	end();
}

static void test_made(void)
{
	struct bio_dev *first;

	begin();
	CHECK_EQ(open_as("ram:disk.img", true), 0);
	CHECK_EQ(extent.sector_count, 8);
	CHECK(strstr(fake_log, "last 10 bytes"));
	first = extent.dev;
	CHECK_EQ(look("ram:disk.img"), 0); /* the same disk */
	CHECK(extent.dev == first);
	CHECK_EQ(open_as("ram:disk.img", true), -EBUSY);
	CHECK_EQ(look("ram:other.img"), 0);
	CHECK(extent.dev != first);
	CHECK_EQ(look("ram:missing"), -ENOENT);
	says("ram:missing: no such file was loaded");
	CHECK_EQ(look("ram:tiny"), -EINVAL);
	CHECK_EQ(source_open("ram:disk.img2", NULL, false, &extent, err, sizeof(err)), -ENOENT);

	CHECK_EQ(open_as("null:1G", true), 0);
	CHECK_EQ(extent.sector_count, 2097152);
	first = extent.dev;
	CHECK_EQ(open_as("null:1G", true), 0); /* another disk */
	CHECK(extent.dev != first);
	CHECK_EQ(look("null:1536"), 0);
	CHECK_EQ(extent.sector_count, 3);
	CHECK_EQ(look("null:2T"), 0);
	CHECK_EQ(extent.sector_count, 4294967296);
	CHECK_EQ(look("null:64K"), 0);
	CHECK_EQ(look("null:7M"), 0);
	CHECK_EQ(extent.sector_count, 14336);
	end();
}

static void test_bad_sizes(void)
{
	static const char *const bad[] = {"null:",
	                                  "null:G",
	                                  "null:-1",
	                                  "null:1g",
	                                  "null:1GB",
	                                  "null:0",
	                                  "null:12",
	                                  "null:0x1000",
	                                  "null:1.5G",
	                                  "null: 1G",
	                                  "null:18446744073709551616",
	                                  "null:99999999999T"};

	begin();
	for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
		CHECK_EQ(look(bad[i]), -EINVAL);
		CHECK(strstr(err, "a size is a number of bytes"));
	}
	end();
}

static void test_writers(void)
{
	begin();
	CHECK_EQ(open_as("nvme0n1p2", true), 0);
	CHECK_EQ(open_as("nvme0n1p2", true), -EBUSY);
	says("nvme0n1p2 overlaps nvme0n1p2, which is already open for writing");
	CHECK_EQ(open_as("PARTLABEL=root", true), -EBUSY);
	says("PARTLABEL=root overlaps nvme0n1p2, which is already open for writing");
	CHECK_EQ(open_as("nvme0n1", true), -EBUSY);
	CHECK_EQ(open_as("nvme0n1p3", true), 0);
	CHECK_EQ(look("nvme0n1p2"), 0); /* readers may look on */
	CHECK_EQ(look("nvme0n1"), 0);
	CHECK_EQ(open_as("nvme0n12", true), 0);
	CHECK_EQ(open_as("nvme0n12p1", true), -EBUSY);
	says("nvme0n12p1 overlaps nvme0n12, which is already open for writing");
	CHECK_EQ(open_as("nvme0n1p1", true), -EROFS);
	says("nvme0n1p1 is an EFI system partition; open it with readonly = true");
	CHECK_EQ(look("nvme0n1p1"), 0);
	plain.dev.read_only = true;
	CHECK_EQ(open_as("nvme1n1", true), -EROFS);
	CHECK_EQ(look("nvme1n1"), 0);
	end();
}

static void test_limits(void)
{
	char longest[400], small[10];

	begin();
	memset(longest, 'n', sizeof(longest));
	longest[399] = 0;
	CHECK_EQ(look(longest), -EINVAL);
	CHECK_EQ(source_open("nvme9n1", file_find, false, &extent, small, sizeof(small)), -ENOENT);
	CHECK(!strcmp(small, "no disk n"));
	CHECK_EQ(source_open("nvme9n1", file_find, false, &extent, NULL, 0), -ENOENT);
	for (unsigned i = 0; i < SOURCE_DISK_MAX - 3; i++)
		CHECK_EQ(look("null:1M"), 0);
	CHECK_EQ(look("null:1M"), -ENOSPC);
	CHECK_EQ(source_dev_add(&plain.dev), -ENOSPC);
	end();
}

TESTS(T(test_names), T(test_wrong_names), T(test_search), T(test_made), T(test_bad_sizes),
      T(test_writers), T(test_limits))
