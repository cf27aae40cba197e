/* ramdisk and null: the two disks without hardware, and bio_run_sync. */
#include "drivers/null.h"
#include "drivers/ramdisk.h"
#include "tests/fake/platform.h"
#include "tests/unit/test.h"

#include <stdlib.h>
#include <string.h>

static unsigned done_count;
static struct bio *done_last;

static void on_done(struct bio *bio)
{
	done_count++;
	done_last = bio;
}

static struct bio bio_of(enum bio_op op, uint64_t sector, uint64_t sectors, struct bio_seg *segs,
                         unsigned count)
{
	return (struct bio){.op = op,
	                    .sector = sector,
	                    .sector_count = sectors,
	                    .segs = segs,
	                    .seg_count = (uint16_t)count,
	                    .done = on_done};
}

static uint8_t run(struct bio_dev *dev, struct bio bio)
{
	static struct bio b;

	b = bio;
	done_count = 0;
	CHECK_EQ(bio_submit(dev, &b), 0);
	CHECK_EQ(bio_poll(dev, 8), 0); /* not before commit */
	dev->ops->commit(dev);
	CHECK_EQ(done_count, 0);
	CHECK_EQ(bio_poll(dev, 8), 1);
	CHECK_EQ(done_count, 1);
	return b.status;
}

static void test_ramdisk_data(void)
{
	static uint8_t disk[8 * 512 + 100], mem[4096];
	struct bio_seg segs[3];
	struct bio_dev *dev;

	fake_reset();
	for (unsigned i = 0; i < sizeof(disk); i++)
		disk[i] = (uint8_t)(i * 7);
	dev = ramdisk_create((uintptr_t)disk, sizeof(disk));
	CHECK_EQ(dev->sector_count, 8);
	CHECK(strstr(fake_log, "last 100 bytes"));
	CHECK(!strncmp(dev->name, "ram", 3));

	/* Three odd pieces. */
	segs[0] = (struct bio_seg){(uintptr_t)mem + 1, 5};
	segs[1] = (struct bio_seg){(uintptr_t)mem + 100, 1000};
	segs[2] = (struct bio_seg){(uintptr_t)mem + 2000, 19};
	CHECK_EQ(run(dev, bio_of(BIO_READ, 3, 2, segs, 3)), BIO_OK);
	CHECK(!memcmp(mem + 1, disk + 1536, 5));
	CHECK(!memcmp(mem + 100, disk + 1541, 1000));
	CHECK(!memcmp(mem + 2000, disk + 2541, 19));
	CHECK_EQ(mem[0] | mem[6] | mem[99] | mem[1100] | mem[2019], 0);

	memset(mem, 0xcd, sizeof(mem));
	segs[0] = (struct bio_seg){(uintptr_t)mem, 512};
	CHECK_EQ(run(dev, bio_of(BIO_WRITE, 7, 1, segs, 1)), BIO_OK);
	CHECK_EQ(disk[7 * 512 - 1], (uint8_t)((7 * 512 - 1) * 7));
	CHECK_EQ(disk[7 * 512], 0xcd);
	CHECK_EQ(disk[8 * 512 - 1], 0xcd);
	CHECK_EQ(disk[8 * 512], (uint8_t)(8 * 512 * 7));

	CHECK_EQ(run(dev, bio_of(BIO_WRITE_ZEROES, 7, 1, NULL, 0)), BIO_OK);
	CHECK_EQ(disk[7 * 512] | disk[8 * 512 - 1], 0);
	CHECK_EQ(run(dev, bio_of(BIO_DISCARD, 0, 2, NULL, 0)), BIO_OK);
	CHECK_EQ(disk[1] | disk[1023], 0);
	CHECK_EQ(disk[1024], (uint8_t)(1024 * 7));
	CHECK_EQ(run(dev, bio_of(BIO_FLUSH, 0, 0, NULL, 0)), BIO_OK);
	fake_reset();
}

/* One guest's large requests must not hold up the core that serves the others. */
static void test_ramdisk_slices(void)
{
	uint64_t len = 8 * MIB;
	uint8_t *disk = calloc(1, len), *mem = calloc(1, len);
	struct bio_seg segs[] = {{(uintptr_t)mem, 3 * MIB + 1},
	                         {(uintptr_t)mem + 3 * MIB + 1, 0},
	                         {(uintptr_t)mem + 3 * MIB + 1, 5 * MIB - 1}};
	struct bio bios[3];
	struct bio_dev *dev;
	unsigned polls = 0;

	fake_reset();
	done_count = 0;
	dev = ramdisk_create((uintptr_t)disk, len);
	for (uint64_t i = 0; i < len; i++)
		mem[i] = (uint8_t)(i % 251 + 1);
	bios[0] = bio_of(BIO_WRITE, 0, len >> 9, segs, 3);
	bios[1] = bio_of(BIO_WRITE_ZEROES, 8, (2 * MIB >> 9), NULL, 0);
	bios[2] = bio_of(BIO_FLUSH, 0, 0, NULL, 0);
	for (unsigned i = 0; i < 3; i++)
		CHECK_EQ(bio_submit(dev, &bios[i]), 0);
	dev->ops->commit(dev);
	while (done_count < 3 && polls++ < 100) {
		bio_poll(dev, 8);
		if (polls < 7) {
			CHECK_EQ(disk[polls * MIB - 1], mem[polls * MIB - 1]);
			CHECK_EQ(disk[polls * MIB], 0);
			CHECK_EQ(done_count, 0);
		}
	}
	CHECK_EQ(polls, 10);
	CHECK_EQ(dev->in_flight, 0);
	for (unsigned i = 0; i < 3; i++)
		CHECK_EQ(bios[i].status, BIO_OK);
	CHECK(!memcmp(disk, mem, 4096));
	CHECK(!memcmp(disk + 4096 + 2 * MIB, mem + 4096 + 2 * MIB, len - 4096 - 2 * MIB));
	for (uint64_t i = 0; i < 2 * MIB; i++)
		if (disk[4096 + i]) {
			CHECK_EQ(i, 2 * MIB);
			break;
		}
	free(disk);
	free(mem);
}

static void test_ramdisk_refusals(void)
{
	static uint8_t disk[4096], mem[1024];
	struct bio_seg seg = {(uintptr_t)mem, 1024};
	struct bio_dev *dev;

	fake_reset();
	dev = ramdisk_create((uintptr_t)disk, sizeof(disk));
	CHECK_EQ(run(dev, bio_of(BIO_READ, 6, 2, &seg, 1)), BIO_OK);
	CHECK_EQ(run(dev, bio_of(BIO_READ, 7, 2, &seg, 1)), BIO_EINVAL);
	CHECK_EQ(run(dev, bio_of(BIO_WRITE, 9, 1, &seg, 1)), BIO_EINVAL);
	CHECK_EQ(run(dev, bio_of(BIO_WRITE, UINT64_MAX, 2, &seg, 1)), BIO_EINVAL);
	CHECK_EQ(run(dev, bio_of(BIO_DISCARD, 1, UINT64_MAX, NULL, 0)), BIO_EINVAL);
	CHECK_EQ(run(dev, bio_of(BIO_READ, 0, 3, &seg, 1)), BIO_EINVAL); /* segments too short */
	CHECK_EQ(dev->errors, 5);
	CHECK(ramdisk_create((uintptr_t)disk, 511) == NULL);
	fake_reset();
}

static void test_batch(struct bio_dev *dev)
{
	static uint8_t mem[512];
	static struct bio bios[20];
	struct bio_seg seg = {(uintptr_t)mem, 512};

	done_count = 0;
	for (unsigned i = 0; i < 20; i++) {
		bios[i] = bio_of(BIO_READ, i % 8, 1, &seg, 1);
		CHECK_EQ(bio_submit(dev, &bios[i]), 0);
		if (i == 9)
			dev->ops->commit(dev);
	}
	CHECK_EQ(dev->in_flight, 20);
	CHECK(dev->submitted);
	CHECK(!dev->ops->irq_set(dev, true)); /* only a poll completes anything */
	CHECK_EQ(bio_poll(dev, 7), 7);
	CHECK_EQ(bio_poll(dev, 7), 3); /* the committed ones */
	CHECK_EQ(bio_poll(dev, 7), 0);
	CHECK(done_last == &bios[9]);
	dev->ops->commit(dev);
	CHECK_EQ(bio_poll(dev, 64), 10);
	CHECK_EQ(done_count, 20);
	CHECK(done_last == &bios[19]);
	CHECK_EQ(dev->in_flight, 0);
	CHECK_EQ(dev->doorbells, 2);
	CHECK(dev->ops->irq_set(dev, true));
}

static void test_ramdisk_batch(void)
{
	static uint8_t disk[4096];

	fake_reset();
	test_batch(ramdisk_create((uintptr_t)disk, sizeof(disk)));
	fake_reset();
}

static void test_null(void)
{
	static uint8_t mem[512];
	struct bio_seg seg = {(uintptr_t)mem, 512};
	struct bio_dev *dev;

	fake_reset();
	memset(mem, 0x33, sizeof(mem));
	dev = null_create(1 * GIB + 511);
	CHECK_EQ(dev->sector_count, 2097152);
	test_batch(dev);
	CHECK_EQ(run(dev, bio_of(BIO_READ, 2097151, 1, &seg, 1)), BIO_OK);
	CHECK_EQ(mem[0], 0x33); /* no data moves */
	CHECK_EQ(run(dev, bio_of(BIO_READ, 2097152, 1, &seg, 1)), BIO_EINVAL);
	CHECK_EQ(run(dev, bio_of(BIO_WRITE, UINT64_MAX, 2, &seg, 1)), BIO_EINVAL);
	CHECK_EQ(run(dev, bio_of(BIO_FLUSH, 0, 0, NULL, 0)), BIO_OK);
	CHECK_EQ(run(dev, bio_of(BIO_DISCARD, 0, 2097152, NULL, 0)), BIO_OK);
	CHECK(null_create(100) == NULL);
	fake_reset();
}

/* --- bio_run_sync --- */

static unsigned refusals;
static struct bio *kept;

static int stubborn_submit(struct bio_dev *dev, struct bio *bio)
{
	if (refusals) {
		refusals--;
		return -EAGAIN;
	}
	dev->in_flight++;
	kept = bio;
	return 0;
}

static void stubborn_commit(struct bio_dev *dev)
{
	dev->doorbells++;
}

static unsigned stubborn_poll(struct bio_dev *dev, unsigned budget)
{
	struct bio *bio = kept;

	(void)budget;
	if (!bio || fake_tsc < 5000)
		return 0;
	kept = NULL;
	dev->in_flight--;
	bio->done(bio);
	return 1;
}

static void test_run_sync(void)
{
	static const struct bio_ops ops = {stubborn_submit, stubborn_commit, stubborn_poll, NULL};
	struct bio_dev dev = {.ops = &ops};
	struct bio bio = {.op = BIO_FLUSH};

	fake_reset();
	refusals = 3;
	CHECK_EQ(bio_run_sync(&dev, &bio, 1000), 0);
	CHECK_EQ(refusals, 0);
	CHECK_EQ(dev.doorbells, 1);
	bio.status = BIO_EIO;
	CHECK_EQ(bio_run_sync(&dev, &bio, 1000), -EIO);
	bio.status = BIO_OK;
	fake_tsc = 0;
	CHECK_EQ(bio_run_sync(&dev, &bio, 2), -ETIMEDOUT); /* answers after 5 us */
	fake_tsc = 10000;
	CHECK_EQ(bio_poll(&dev, 1), 1); /* late, and harmless */
	refusals = 1000000;
	CHECK_EQ(bio_run_sync(&dev, &bio, 2), -ETIMEDOUT);
	fake_reset();
}

TESTS(T(test_ramdisk_data), T(test_ramdisk_slices), T(test_ramdisk_refusals), T(test_ramdisk_batch),
      T(test_null), T(test_run_sync))
