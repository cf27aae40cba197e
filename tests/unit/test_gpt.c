#include "drivers/gpt.h"
#include "tests/fake/gpt_image.h"
#include "tests/fake/platform.h"
#include "tests/unit/test.h"

#include <string.h>

static struct gpt_image image;
static struct gpt gpt;
static char err[200];

static int read_table(void)
{
	static struct gpt_scratch scratch __attribute__((aligned(4096)));

	memset(&gpt, 0xee, sizeof(gpt));
	memset(err, 0, sizeof(err));
	return gpt_read(&image.dev, &scratch, &gpt, err, sizeof(err));
}

static void begin(uint32_t block_bytes)
{
	fake_reset();
	gpt_image_init(&image, "disk", block_bytes, 128, 128);
	gpt_image_part(&image, 1, 100, 199, "EFI", 0x11, true);
	gpt_image_part(&image, 2, 200, 999, "root", 0x22, false);
	gpt_image_part(&image, 7, 1000, 1000, "one block", 0x77, false);
}

static void end(void)
{
	gpt_image_free(&image);
	fake_reset();
}

static void put32(uint8_t *at, uint32_t value)
{
	memcpy(at, &value, 4);
}

static void put64(uint8_t *at, uint64_t value)
{
	memcpy(at, &value, 8);
}

static void test_crc(void)
{
	CHECK_EQ(gpt_crc32("123456789", 9), 0xcbf43926);
	CHECK_EQ(gpt_crc32("", 0), 0);
}

static void test_read(void)
{
	for (uint32_t block = 512; block <= 4096; block *= 8) {
		begin(block);
		CHECK_EQ(read_table(), 0);
		CHECK_EQ(gpt.part_count, 3);
		CHECK_EQ(gpt.part[0].number, 1);
		CHECK(gpt_is_esp(&gpt.part[0]) && !gpt_is_esp(&gpt.part[1]));
		CHECK_EQ(gpt.part[1].first_sector, 200 * (block / 512));
		CHECK_EQ(gpt.part[1].sector_count, 800 * (block / 512));
		CHECK_EQ(gpt.part[1].uuid[15], 0x22);
		CHECK(!strcmp(gpt.part[2].label, "one block"));
		CHECK_EQ(gpt.part[2].sector_count, block / 512);
		CHECK(gpt_by_number(&gpt, 7) == &gpt.part[2]);
		CHECK(gpt_by_number(&gpt, 3) == NULL);
		CHECK_EQ(strlen(fake_log), 0);
		end();
	}
}

static void test_backup(void)
{
	begin(512);
	gpt_image_header(&image, false)[40] ^= 1;
	CHECK_EQ(read_table(), 0);
	CHECK_EQ(gpt.part_count, 3);
	CHECK(strstr(fake_log, "disk: a GPT header with a wrong CRC; using the table at its end"));
	end();
	begin(512);
	gpt_image_entry(&image, 2)[60] ^= 1; /* the primary entries only */
	CHECK_EQ(read_table(), 0);
	CHECK(!strcmp(gpt.part[1].label, "root"));
	end();
	begin(4096);
	image.fail_sector = 8;
	CHECK_EQ(read_table(), 0);
	CHECK_EQ(gpt.part_count, 3);
	end();
	begin(512);
	memset(gpt_image_header(&image, false), 0, 512);
	CHECK_EQ(read_table(), 0); /* wiped start, table at the end */
	end();
}

static void test_none(void)
{
	begin(512);
	memset(image.bytes, 0, GPT_IMAGE_BLOCKS * 512);
	CHECK_EQ(read_table(), -ENOENT);
	CHECK(!strcmp(err, "no GPT"));
	end();
	begin(512);
	gpt_image_header(&image, false)[20] ^= 1;
	gpt_image_header(&image, true)[20] ^= 1;
	CHECK_EQ(read_table(), -EINVAL);
	CHECK(!strcmp(err,
	              "a GPT header with a wrong CRC; at the end of the disk: a GPT header with "
	              "a wrong CRC"));
	end();
	begin(512);
	image.dev.sector_count = 3;
	CHECK_EQ(read_table(), -ENOENT);
	end();
	begin(512);
	image.fail_sector = 1;
	memset(gpt_image_header(&image, true), 0, 512);
	CHECK_EQ(read_table(), -EIO);
	end();
}

/* Headers whose CRC is right and whose contents are not. */
static void test_bad_headers(void)
{
	static const struct {
		unsigned offset;
		uint64_t value;
		bool wide;
		const char *says;
	} cases[] = {
	        {12, 91, false, "impossible size"},
	        {12, 513, false, "impossible size"},
	        {24, 2, true, "belongs elsewhere"},
	        {40, 2020, true, "larger disk"},
	        {48, GPT_IMAGE_BLOCKS, true, "larger disk"},
	        {48, UINT64_MAX, true, "larger disk"},
	        {72, 1, true, "outside the disk"},
	        {72, GPT_IMAGE_BLOCKS - 31, true, "outside the disk"},
	        {72, UINT64_MAX, true, "outside the disk"},
	        {80, 0, false, "too many entries"},
	        {80, 1025, false, "too many entries"},
	        {80, UINT32_MAX, false, "too many entries"},
	        {84, 64, false, "entries of impossible size"},
	        {84, 0, false, "entries of impossible size"},
	        {84, 192, false, "entries of impossible size"},
	        {84, 8192, false, "entries of impossible size"},
	        {84, 4096, false, "too many entries"}, /* 128 of them */
	        {88, 1, false, "entries with a wrong CRC"},
	};

	for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
		begin(512);
		memset(gpt_image_header(&image, true), 0, 512);
		if (cases[i].wide)
			put64(gpt_image_header(&image, false) + cases[i].offset, cases[i].value);
		else
			put32(gpt_image_header(&image, false) + cases[i].offset,
			      (uint32_t)cases[i].value);
		if (cases[i].offset != 12)
			gpt_image_seal_header(&image, false);
		CHECK_EQ(read_table(), -EINVAL);
		if (!strstr(err, cases[i].says))
			printf("  case %u: %s\n", i, err);
		CHECK(strstr(err, cases[i].says));
		end();
	}
}

static void test_bad_entries(void)
{
	begin(512);
	gpt_image_part(&image, 3, 33, 40, "in the table", 3, false);
	CHECK_EQ(read_table(), -EINVAL);
	CHECK(!strcmp(err, "partition 3 lies outside the usable range"));
	gpt_image_part(&image, 3, 2000, 2040, "in the backup", 3, false);
	CHECK_EQ(read_table(), -EINVAL);
	gpt_image_part(&image, 3, 1500, 1400, "backwards", 3, false);
	CHECK_EQ(read_table(), -EINVAL);
	gpt_image_part(&image, 3, 1500, UINT64_MAX, "endless", 3, false);
	CHECK_EQ(read_table(), -EINVAL);
	gpt_image_part(&image, 3, 999, 1100, "over 2 and 7", 3, false);
	CHECK_EQ(read_table(), -EINVAL);
	CHECK(!strcmp(err, "partitions 2 and 3 overlap"));
	gpt_image_part(&image, 3, 1001, 1100, "between", 3, false);
	CHECK_EQ(read_table(), 0);
	CHECK_EQ(gpt.part_count, 4);
	end();
}

static void test_many_and_large_entries(void)
{
	fake_reset();
	gpt_image_init(&image, "disk", 512, 1024, 128);
	for (unsigned i = 0; i < 128; i++)
		gpt_image_part(&image, 897 + i, 300 + i, 300 + i, "x", (uint8_t)i, false);
	CHECK_EQ(read_table(), 0);
	CHECK_EQ(gpt.part_count, 128);
	CHECK_EQ(gpt.part[127].number, 1024);
	gpt_image_part(&image, 1, 500, 500, "x", 1, false);
	CHECK_EQ(read_table(), -EINVAL);
	CHECK(!strcmp(err, "more than 128 partitions"));
	end();
	gpt_image_init(&image, "disk", 4096, 16, 512);
	gpt_image_part(&image, 16, 300, 301, "wide entry", 1, false);
	CHECK_EQ(read_table(), 0);
	CHECK_EQ(gpt.part[0].number, 16);
	CHECK(!strcmp(gpt.part[0].label, "wide entry"));
	end();
}

static void test_labels(void)
{
	static const uint16_t text[] = {0xe4, 0x20ac, 0xd83d, 0xde00, 'x', 0xd800,
	                                'y',  0xdc00, 0x1b,   0x7f,   0};
	uint8_t *label;

	begin(512);
	label = gpt_image_entry(&image, 1) + 56;
	memcpy(label, text, sizeof(text));
	for (unsigned i = 0; i < 72; i += 2) { /* no NUL: all 36 characters, three bytes each */
		gpt_image_entry(&image, 2)[56 + i] = 0xac;
		gpt_image_entry(&image, 2)[57 + i] = 0x20;
	}
	gpt_image_seal(&image);
	CHECK_EQ(read_table(), 0);
	CHECK(!strcmp(gpt.part[0].label, "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80x?y???"));
	CHECK_EQ(strlen(gpt.part[1].label), 108);
	end();
}

static void test_guid(void)
{
	static const uint8_t expected[] = {0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11,
	                                   0xba, 0x4b, 0x00, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b};
	static const char *const bad[] = {
	        "",
	        "C12A7328",
	        "C12A7328-F81F-11D2-BA4B-00A0C93EC93",
	        "C12A7328-F81F-11D2-BA4B-00A0C93EC93B0",
	        "C12A7328F81F-11D2-BA4B-00A0C93EC93B0",
	        "C12A7328-F81F-11D2-BA4B-00A0C93EC93G",
	        "{12A7328-F81F-11D2-BA4B-00A0C93EC93B",
	};
	uint8_t guid[16];

	CHECK_EQ(gpt_guid_parse("C12A7328-F81F-11D2-BA4B-00A0C93EC93B", guid), 0);
	CHECK(!memcmp(guid, expected, 16));
	CHECK_EQ(gpt_guid_parse("c12a7328-f81f-11d2-ba4b-00a0c93ec93b", guid), 0);
	CHECK(!memcmp(guid, expected, 16));
	for (unsigned i = 0; i < ARRAY_LEN(bad); i++)
		CHECK_EQ(gpt_guid_parse(bad[i], guid), -EINVAL);
}

TESTS(T(test_crc), T(test_read), T(test_backup), T(test_none), T(test_bad_headers),
      T(test_bad_entries), T(test_many_and_large_entries), T(test_labels), T(test_guid))
