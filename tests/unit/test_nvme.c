#include "drivers/nvme/nvme.h"
#include "drivers/source.h"
#include "tests/fake/nvme_model.h"
#include "tests/fake/pci_model.h"
#include "tests/fake/platform.h"
#include "tests/unit/test.h"

#include <stdlib.h>
#include <string.h>

#define BIOS 300

/* A bio whose completions are counted. */
struct tracked {
	struct bio bio;
	unsigned done;
	struct bio_seg segs[BIO_SEG_MAX];
};

static struct nvme_model model;
static struct tracked bios[BIOS];
static unsigned done_total;

static void on_done(struct bio *bio)
{
	CONTAINER_OF(bio, struct tracked, bio)->done++;
	done_total++;
}

static void begin(void)
{
	nvme_model_unplug_all();
	fake_reset();
	source_init();
	pci_model_init();
	nvme_model_init(&model);
	memset(bios, 0, sizeof(bios));
	done_total = 0;
}

static void end(void)
{
	CHECK_EQ(model.violations, 0);
	nvme_model_unplug_all();
	fake_reset();
	source_init();
}

static struct bio_dev *disk(const char *name)
{
	struct bio_extent extent;
	char err[200];

	if (source_open(name, NULL, false, &extent, err, sizeof(err))) {
		printf("  %s\n", err);
		return NULL;
	}
	return extent.dev;
}

/* One controller with one namespace of 512-byte blocks; model may have been changed before. */
static struct bio_dev *start(uint8_t lba_shift, uint64_t blocks)
{
	nvme_model_ns_add(&model, 1, lba_shift, blocks);
	nvme_model_plug(&model, 4);
	CHECK_EQ(nvme_probe_all(), 1);
	nvme_irq_route(2);
	return disk("nvme0n1");
}

static struct nvme_ns *ns_of(struct bio_dev *dev)
{
	return CONTAINER_OF(dev, struct nvme_ns, dev);
}

static struct tracked *rw(unsigned i, enum bio_op op, uint64_t sector, void *mem, uint64_t len)
{
	struct tracked *t = &bios[i];

	t->segs[0] = (struct bio_seg){.hpa = (uintptr_t)mem, .len_bytes = len};
	t->bio = (struct bio){
	        .op = op,
	        .seg_count = 1,
	        .sector = sector,
	        .sector_count = len / 512,
	        .segs = t->segs,
	        .done = on_done,
	};
	t->done = 0;
	return t;
}

static struct tracked *plain(unsigned i, enum bio_op op, uint64_t sector, uint64_t sectors)
{
	struct tracked *t = rw(i, op, sector, NULL, sectors * 512);

	t->bio.seg_count = 0;
	return t;
}

/* Passes of an I/O loop until nothing is in flight, at most max. */
static void settle(struct bio_dev *dev, unsigned max)
{
	while (dev->in_flight && max--) {
		if (dev->submitted)
			dev->ops->commit(dev);
		nvme_model_step();
		bio_poll(dev, 64);
		fake_tsc += 1000;
	}
	CHECK_EQ(dev->in_flight, 0);
}

static uint8_t run(struct bio_dev *dev, struct tracked *t)
{
	CHECK_EQ(bio_submit(dev, &t->bio), 0);
	CHECK_EQ(t->done, 0);
	settle(dev, 100000);
	CHECK_EQ(t->done, 1);
	return t->bio.status;
}

/* An hour of virtual time of which the driver sees each second. */
static void wait_seconds(struct bio_dev *dev, unsigned seconds)
{
	for (unsigned i = 0; i < seconds; i++) {
		fake_tsc += 1000000000ull;
		for (unsigned n = 0; n < NVME_CHECK_POLLS; n++) {
			nvme_model_step();
			bio_poll(dev, 64);
		}
	}
}

/* --- start-up --- */

static void test_probe(void)
{
	struct bio_dev *dev;

	begin();
	model.model = "Disk \x1b[2J of doom";
	dev = start(9, 20480);
	CHECK(dev != NULL);
	CHECK(!strcmp(dev->name, "nvme0n1"));
	CHECK_EQ(dev->sector_count, 20480);
	CHECK_EQ(dev->block_bytes, 512);
	CHECK_EQ(dev->max_transfer_bytes, 128 * 1024);
	CHECK(dev->has_cache && dev->has_discard && dev->has_write_zeroes && !dev->read_only);
	CHECK(strstr(fake_log,
	             "nvme0: 00:04.0 Disk ?[2J of doom, serial S123, firmware 1.0, NVMe 1.4"));
	CHECK(strstr(fake_log, "nvme0n1: 10 MiB, blocks of 512 bytes"));
	CHECK_EQ(pci_model_get16(model.config, 4), 0x406); /* memory, master, no INTx */
	end();
}

static void test_probe_4k_and_several(void)
{
	struct bio_dev *dev;

	begin();
	nvme_model_ns_add(&model, 2, 9, 100)->metadata_bytes = 8;
	nvme_model_ns_add(&model, 3, 9, 100)->identify_fails = true;
	nvme_model_ns_add(&model, 5, 12, 100)->write_protected = true;
	nvme_model_ns_add(&model, 6, 10, 100);
	nvme_model_ns_add(&model, 7, 9, 0);
	nvme_model_ns_add(&model, 900, 9, 64);
	nvme_model_plug(&model, 4);
	CHECK_EQ(nvme_probe_all(), 1);
	CHECK(strstr(fake_log, "nvme0n2: left out: formatted with metadata"));
	CHECK(strstr(fake_log, "nvme0n3: left out: cannot be identified"));
	CHECK(strstr(fake_log, "nvme0n6: left out: blocks of neither"));
	CHECK(strstr(fake_log, "nvme0n7: left out: empty"));
	dev = disk("nvme0n5");
	CHECK(dev && dev->block_bytes == 4096 && dev->sector_count == 800 && dev->read_only);
	dev = disk("nvme0n900");
	CHECK(dev && dev->sector_count == 64);
	end();
}

static void test_two_controllers_first_broken(void)
{
	static struct nvme_model other;

	begin();
	model.never_ready = true;
	nvme_model_plug(&model, 3);
	nvme_model_init(&other);
	nvme_model_ns_add(&other, 1, 9, 64);
	nvme_model_plug(&other, 9);
	CHECK_EQ(nvme_probe_all(), 1);
	CHECK(strstr(fake_log, "nvme0: does not get ready: timeout"));
	CHECK(strstr(fake_log, "nvme0: left out"));
	CHECK(disk("nvme1n1") != NULL);
	CHECK_EQ(pci_model_get16(model.config, 4) & 4, 0); /* cut off from memory */
	end();
}

static void test_no_active_list(void)
{
	begin();
	model.no_active_list = true;
	nvme_model_ns_add(&model, 2, 9, 64);
	CHECK(start(9, 64) != NULL);
	CHECK(disk("nvme0n2") != NULL);
	end();
	begin();
	model.vs = 0x00010000;
	CHECK(start(9, 64) != NULL);
	end();
	begin();
	model.stuck_list = true;
	CHECK(start(9, 64) != NULL);
	CHECK(!strstr(strstr(fake_log, "nvme0n1: ") + 1, "nvme0n1: ")); /* once */
	end();
}

/* What each CAP.TO allows, and how long is really waited. */
static void test_ready_timeouts(void)
{
	static const struct {
		uint32_t to, delay_us;
		int started;
	} cases[] = {{0, 400000, 1},   {0, 700000, 0},      {1, 400000, 1},     {15, 7400000, 1},
	             {15, 8000000, 0}, {255, 127000000, 1}, {255, 129000000, 0}};

	for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
		begin();
		model.cap_to = cases[i].to;
		model.ready_delay_us = cases[i].delay_us;
		nvme_model_ns_add(&model, 1, 9, 64);
		nvme_model_plug(&model, 4);
		CHECK_EQ(nvme_probe_all(), cases[i].started);
		model.violations =
		        cases[i].started ? model.violations : 0; /* giving up may be rude */
		end();
	}
}

/* EN and RDY in every state that a firmware may leave. */
static void test_found_states(void)
{
	for (unsigned state = 0; state < 6; state++) {
		begin();
		model.cc = state & 1 ? 0x460001 : 0;
		model.csts = state & 2 ? NVME_CSTS_RDY : 0;
		if (state == 1)
			model.ready_at_tsc = 300000000; /* on its way up */
		if (state == 2)
			model.stopped_at_tsc = 300000000; /* on its way down */
		if (state >= 4)
			model.csts |= NVME_CSTS_CFS, model.cc = 0x460001;
		CHECK(start(9, 64) != NULL);
		end();
	}
}

static void test_refused(void)
{
	for (unsigned i = 0; i < 10; i++) {
		begin();
		model.no_bar = i == 0;
		model.gone = i == 1;
		model.mpsmin = i == 2;
		model.no_css = i == 3;
		model.mqes = i == 4 ? 0 : 1023;
		model.cfs_on_enable = i == 5;
		model.sqes = i == 6 ? 0x77 : 0x66;
		model.cqes = i == 7 ? 0x55 : 0x44;
		model.fails_set_features = i == 8;
		if (i == 9) {
			model.never_stops = true;
			model.csts = NVME_CSTS_RDY;
		}
		nvme_model_ns_add(&model, 1, 9, 64);
		nvme_model_plug(&model, 4);
		CHECK_EQ(nvme_probe_all(), 0);
		CHECK(strstr(fake_log, "nvme0: left out"));
		end();
	}
}

static void test_small_and_odd_queues(void)
{
	static const struct {
		uint32_t mqes, dstrd;
		uint16_t granted;
	} cases[] = {{1, 0, 0}, {2, 0, 0}, {6, 4, 0}, {254, 1, 1}, {65535, 8, 0xfffe}};
	static uint8_t buf[64 * 1024] __attribute__((aligned(4096)));

	for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
		struct bio_dev *dev;

		begin();
		model.mqes = cases[i].mqes;
		model.dstrd = cases[i].dstrd;
		model.queues_granted = cases[i].granted;
		dev = start(9, 4096);
		CHECK_EQ(ns_of(dev)->pair->ring.depth, MIN(cases[i].mqes + 1, 256));
		for (unsigned n = 0; n < 600; n++) {
			memset(buf, (int)n, sizeof(buf));
			CHECK_EQ(run(dev, rw(0, BIO_WRITE, n % 16 * 128, buf, sizeof(buf))),
			         BIO_OK);
		}
		CHECK_EQ(model.ns[0].data[599 % 16 * 65536], 599 & 0xff);
		CHECK_EQ(model.writes, 600);
		end();
	}
}

/* --- operations --- */

static void test_counts(void)
{
	static uint8_t buf[32 * 4096] __attribute__((aligned(4096)));
	struct bio_dev *dev;
	uint64_t reads;

	begin();
	dev = start(9, 4096);
	for (unsigned i = 0; i < 32; i++)
		CHECK_EQ(bio_submit(dev, &rw(i, BIO_READ, i * 8, buf + i * 4096, 4096)->bio), 0);
	CHECK_EQ(model.sq_doorbells, 0);
	CHECK(dev->submitted);
	nvme_model_step();
	CHECK_EQ(model.reads, 0); /* nothing reaches the device before commit */
	reads = model.mmio_reads;
	dev->ops->commit(dev);
	dev->ops->commit(dev);
	CHECK_EQ(model.sq_doorbells, 1);
	CHECK(!dev->submitted);
	nvme_model_step();
	CHECK_EQ(done_total, 0);
	CHECK_EQ(bio_poll(dev, 5), 5); /* a budget is a budget */
	CHECK_EQ(done_total, 5);
	CHECK_EQ(bio_poll(dev, 64), 27);
	CHECK_EQ(bio_poll(dev, 64), 0);
	CHECK_EQ(model.mmio_reads, reads);
	/* The CQ doorbell waits until a quarter of the queue has been read. */
	CHECK_EQ(ns_of(dev)->pair->ring.depth, 256);
	CHECK_EQ(model.cq_doorbells, 0);
	CHECK_EQ(dev->doorbells, 1);
	CHECK_EQ(dev->commands, 32);
	CHECK_EQ(dev->completions, 32);
	CHECK_EQ(dev->in_flight, 0);
	for (unsigned i = 32; i < 65; i++) {
		CHECK_EQ(model.cq_doorbells, 0);
		CHECK_EQ(bio_submit(dev, &rw(i, BIO_READ, 0, buf, 4096)->bio), 0);
		dev->ops->commit(dev);
		nvme_model_step();
		CHECK_EQ(bio_poll(dev, 64), 1);
	}
	CHECK_EQ(model.cq_doorbells, 1);
	CHECK_EQ(dev->doorbells, 1 + 33 + 1);
	CHECK_EQ(ns_of(dev)->pair->bounced, 0);
	end();
}

static void test_flush_discard_zeroes(void)
{
	struct bio_dev *dev;

	begin();
	dev = start(9, 300000);
	memset(model.ns[0].data, 0xaa, 300000 * 512ull);
	CHECK_EQ(run(dev, plain(0, BIO_FLUSH, 0, 0)), BIO_OK);
	CHECK_EQ(model.flushes, 1);
	CHECK_EQ(run(dev, plain(0, BIO_DISCARD, 8, 16)), BIO_OK);
	CHECK_EQ(model.discards, 1);
	CHECK_EQ(model.ns[0].data[8 * 512 - 1], 0xaa);
	CHECK_EQ(model.ns[0].data[8 * 512], 0);
	CHECK_EQ(model.ns[0].data[24 * 512 - 1], 0);
	CHECK_EQ(model.ns[0].data[24 * 512], 0xaa);
	CHECK_EQ(run(dev, plain(0, BIO_WRITE_ZEROES, 1000, 65536 * 3 + 7)), BIO_OK);
	CHECK_EQ(model.write_zeroes, 4); /* NLB has 16 bits */
	CHECK_EQ(model.ns[0].data[1000 * 512 - 1], 0xaa);
	CHECK_EQ(model.ns[0].data[1000 * 512], 0);
	CHECK_EQ(model.ns[0].data[(1000 + 65536 * 3 + 7) * 512 - 1], 0);
	CHECK_EQ(model.ns[0].data[(1000 + 65536 * 3 + 7) * 512], 0xaa);
	CHECK_EQ(run(dev, plain(0, BIO_READ, 5, 0)), BIO_OK); /* nothing to do */
	end();

	begin();
	model.oncs = 0;
	model.vwc = 0;
	dev = start(9, 64);
	CHECK(!dev->has_cache && !dev->has_discard && !dev->has_write_zeroes);
	CHECK_EQ(run(dev, plain(0, BIO_DISCARD, 0, 8)), BIO_ENOTSUP);
	CHECK_EQ(run(dev, plain(0, BIO_WRITE_ZEROES, 0, 8)), BIO_ENOTSUP);
	CHECK_EQ(run(dev, plain(0, BIO_FLUSH, 0, 0)), BIO_OK);
	end();
}

static void test_bad_requests(void)
{
	static uint8_t buf[8192] __attribute__((aligned(4096)));
	struct bio_dev *dev;
	struct tracked *t;

	begin();
	dev = start(12, 64);
	CHECK_EQ(run(dev, rw(0, BIO_READ, 8, buf, 4096)), BIO_OK);
	CHECK_EQ(run(dev, rw(0, BIO_READ, 1, buf, 4096)), BIO_EINVAL);
	CHECK_EQ(run(dev, rw(0, BIO_READ, 8, buf, 512)), BIO_EINVAL);
	CHECK_EQ(run(dev, rw(0, BIO_READ, 504, buf, 4096)), BIO_OK);
	CHECK_EQ(run(dev, rw(0, BIO_READ, 504, buf, 8192)), BIO_EINVAL);
	CHECK_EQ(run(dev, rw(0, BIO_READ, UINT64_MAX - 7, buf, 8192)), BIO_EINVAL);
	CHECK_EQ(run(dev, rw(0, BIO_READ, 512, buf, 4096)), BIO_EINVAL);
	t = rw(0, BIO_READ, 0, buf, 8192);
	t->segs[0].len_bytes = 4096; /* segments shorter than the request */
	CHECK_EQ(run(dev, t), BIO_EINVAL);
	CHECK_EQ(dev->errors, 6);
	end();
}

/* --- data --- */

static uint32_t seed = 1;

static uint32_t rnd(uint32_t below)
{
	seed = seed * 1664525u + 1013904223u;
	return (seed >> 8) % below;
}

#define ARENA (12u << 20)
static uint8_t *arena, *flat;

/* Cuts len bytes into segments of one of several manners within the arena from pos on. */
static uint64_t layout(struct tracked *t, uint64_t len, uint64_t pos, unsigned manner)
{
	unsigned n = 0;

	while (len) {
		uint64_t piece = len;

		if (manner == 1) { /* whole pages, first one perhaps with an offset */
			piece = 4096 * (1 + rnd(4));
			pos = n ? ALIGN_UP(pos, 4096) : pos + rnd(8) * 512;
			if (n == 0)
				piece -= pos & 4095;
		} else if (manner == 2) { /* dword aligned, any length */
			pos = ALIGN_UP(pos + rnd(64), 4);
			piece = 4 + rnd(3000) * 4;
		} else if (manner == 3) { /* anything */
			pos += rnd(64);
			piece = 1 + rnd(9000);
		} else if (manner == 4) { /* pieces that touch, or begin a new page */
			if (rnd(2))
				pos = ALIGN_UP(pos, 4096);
			piece = 512 * (1 + rnd(20));
		} else { /* one piece, dword offset */
			pos = ALIGN_UP(pos + rnd(4096), 4);
		}
		if (n == BIO_SEG_MAX - 1 || piece > len)
			piece = len;
		t->segs[n++] = (struct bio_seg){.hpa = (uintptr_t)arena + pos, .len_bytes = piece};
		pos += piece;
		len -= piece;
	}
	t->bio.seg_count = (uint16_t)n;
	return pos;
}

static void segs_copy(const struct tracked *t, uint8_t *data, bool from_segs)
{
	for (unsigned i = 0; i < t->bio.seg_count; i++) {
		void *mem = (void *)(uintptr_t)t->segs[i].hpa;

		if (from_segs)
			memcpy(data, mem, t->segs[i].len_bytes);
		else
			memcpy(mem, data, t->segs[i].len_bytes);
		data += t->segs[i].len_bytes;
	}
}

static void fill(uint8_t *mem, uint64_t len)
{
	for (uint64_t i = 0; i < len; i++)
		mem[i] = (uint8_t)rnd(256);
}

/* Random writes and reads, several at a time, against a flat copy of the disk. */
static void random_io(struct bio_dev *dev, unsigned rounds, uint64_t max_bytes)
{
	uint64_t disk_bytes = dev->sector_count * 512, slice = disk_bytes / 4;
	uint32_t block = dev->block_bytes;
	static uint8_t expected[ARENA];

	for (unsigned round = 0; round < rounds; round++) {
		uint64_t pos = rnd(4096);

		if (round % 16 == 0)
			fill(arena, 64 * 1024);
		for (unsigned i = 0; i < 4; i++) {
			uint64_t len = block * (1 + rnd((uint32_t)(MIN(slice, max_bytes) / block)));
			uint64_t at =
			        i * slice + block * rnd((uint32_t)((slice - len) / block + 1));
			struct tracked *t =
			        rw(i, rnd(2) ? BIO_READ : BIO_WRITE, at / 512, NULL, len);

			pos = layout(t, len, pos, rnd(5)) + 16;
			CHECK(pos + 4096 < ARENA);
		}
		memcpy(expected, arena, pos + 4096);
		for (unsigned i = 0; i < 4; i++) {
			struct tracked *t = &bios[i];

			if (t->bio.op == BIO_WRITE)
				segs_copy(t, flat + t->bio.sector * 512, true);
			else
				for (unsigned s = 0, done = 0; s < t->bio.seg_count; s++) {
					memcpy(expected + (t->segs[s].hpa - (uintptr_t)arena),
					       flat + t->bio.sector * 512 + done,
					       t->segs[s].len_bytes);
					done += (unsigned)t->segs[s].len_bytes;
				}
			while (bio_submit(dev, &t->bio) == -EAGAIN) {
				dev->ops->commit(dev);
				nvme_model_step();
				bio_poll(dev, 64);
			}
		}
		settle(dev, 100000);
		for (unsigned i = 0; i < 4; i++) {
			CHECK_EQ(bios[i].done, 1);
			CHECK_EQ(bios[i].bio.status, BIO_OK);
		}
		CHECK(!memcmp(arena, expected, pos + 4096)); /* and not a byte beside */
		if (test_case_failed)
			return;
	}
	CHECK(!memcmp(flat, model.ns[0].data, disk_bytes));
}

static void random_case(uint8_t lba_shift, uint8_t mdts, uint32_t mqes, uint64_t max_bytes,
                        unsigned rounds)
{
	uint64_t disk_bytes = ALIGN_UP(max_bytes, MIB) * 4;
	struct bio_dev *dev;

	begin();
	model.mdts = mdts;
	model.mqes = mqes;
	model.reorder = true;
	model.per_step = 7;
	dev = start(lba_shift, disk_bytes >> lba_shift);
	arena = aligned_alloc(4096, ARENA);
	flat = calloc(1, disk_bytes);
	fill(arena, 1 << 20);
	memset(arena + (1 << 20), 0x5a, ARENA - (1 << 20));
	fill(flat, disk_bytes);
	memcpy(model.ns[0].data, flat, disk_bytes);
	random_io(dev, rounds, max_bytes);
	CHECK(ns_of(dev)->pair->bounced > 0);
	CHECK(model.largest_bytes > PAGE_SIZE);
	free(arena);
	free(flat);
	end();
}

static void test_random_512(void)
{
	random_case(9, 5, 1023, 300 * 1024, 60);
}

static void test_random_4096(void)
{
	random_case(12, 5, 1023, 300 * 1024, 60);
}

static void test_random_mdts_1_small_queue(void)
{
	random_case(9, 1, 3, 200 * 1024, 60);
	random_case(12, 1, 1, 200 * 1024, 30);
}

static void test_random_mdts_0(void)
{
	random_case(9, 0, 63, 2500 * 1024, 30);
}

/* One segment with an offset, of every size up to 4 MiB: lists of one, two and three pages. */
static void test_large_lists(void)
{
	struct bio_dev *dev;
	uint8_t *mem = aligned_alloc(4096, (8u << 20) + 4096);

	begin();
	model.mdts = 0;
	dev = start(9, 16384);
	fill(model.ns[0].data, 8u << 20);
	for (unsigned i = 0; i < 24; i++) {
		static const uint32_t sizes[] = {
		        4096, 8192, 12288, 2u << 20, (2u << 20) + 512, 2101248, 4u << 20, 8u << 20};
		uint32_t len = sizes[i % 8], offset = i < 8 ? 0 : i < 16 ? 4 : 4092;

		memset(mem, 0x77, (8u << 20) + 4096);
		CHECK_EQ(run(dev, rw(0, BIO_READ, 0, mem + offset, len)), BIO_OK);
		CHECK(!memcmp(mem + offset, model.ns[0].data, len));
		CHECK_EQ(mem[offset + len], 0x77);
	}
	CHECK_EQ(model.largest_bytes, 4u << 20);
	CHECK(model.list_pages > 0);
	CHECK_EQ(ns_of(dev)->pair->bounced, 0);
	free(mem);
	end();
}

/* What a page-aligned guest buffer costs: no copy and one command. */
static void test_zero_copy(void)
{
	static uint8_t mem[64 * 4096] __attribute__((aligned(4096)));
	struct bio_dev *dev;
	struct tracked *t;
	uint64_t copied = 0;

	begin();
	dev = start(12, 64);
	t = rw(0, BIO_WRITE, 0, mem, 32 * 4096);
	for (unsigned i = 0; i < 32; i++) /* pages in any order */
		t->segs[i] = (struct bio_seg){(uintptr_t)mem + (i * 7 % 32) * 4096, 4096};
	t->bio.seg_count = 32;
	CHECK_EQ(run(dev, t), BIO_OK);
	CHECK_EQ(dev->commands, 1);
	/* A break inside a block costs one block's copy, not more. */
	t = rw(0, BIO_WRITE, 0, mem, 16 * 4096);
	t->segs[0] = (struct bio_seg){(uintptr_t)mem, 7 * 4096 + 512};
	t->segs[1] = (struct bio_seg){(uintptr_t)mem + 40 * 4096 + 512, 9 * 4096 - 512};
	t->bio.seg_count = 2;
	CHECK_EQ(run(dev, t), BIO_OK);
	CHECK_EQ(dev->commands, 4);
	CHECK_EQ(ns_of(dev)->pair->bounced, 1);
	for (unsigned i = 0; i < 255; i++)
		copied += ns_of(dev)->pair->cmd[i].bounce_bytes;
	CHECK_EQ(copied, 4096);
	/* Pieces that touch are one. */
	t = rw(0, BIO_WRITE, 0, mem, 4 * 4096);
	t->segs[0] = (struct bio_seg){(uintptr_t)mem + 512, 5000};
	t->segs[1] = (struct bio_seg){(uintptr_t)mem + 5512, 11384};
	t->bio.seg_count = 2;
	CHECK_EQ(run(dev, t), BIO_OK);
	CHECK_EQ(dev->commands, 5);
	CHECK_EQ(ns_of(dev)->pair->bounced, 1);
	end();
}

/* --- full queues --- */

static void test_queue_full(void)
{
	static uint8_t buf[4096] __attribute__((aligned(4096)));
	struct bio_dev *dev;
	unsigned taken = 0;

	begin();
	model.mqes = 7;
	dev = start(9, 4096);
	while (taken < 20 && !bio_submit(dev, &rw(taken, BIO_READ, taken * 8, buf, 4096)->bio))
		taken++;
	CHECK_EQ(taken, 7);
	CHECK_EQ(dev->in_flight, 7);
	settle(dev, 100);
	CHECK_EQ(done_total, 7);
	CHECK_EQ(bio_submit(dev, &rw(8, BIO_READ, 0, buf, 4096)->bio), 0);
	settle(dev, 100);
	end();
}

/* A bio of more parts than the queue holds goes on from poll; others wait meanwhile. */
static void test_larger_than_queue(void)
{
	uint8_t *mem = aligned_alloc(4096, 1 << 20);
	struct bio_dev *dev;

	begin();
	model.mqes = 3;
	model.mdts = 1;
	model.per_step = 1;
	dev = start(9, 4096);
	fill(mem, 1 << 20);
	CHECK_EQ(bio_submit(dev, &rw(0, BIO_WRITE, 0, mem, 1 << 20)->bio), 0);
	CHECK_EQ(bio_submit(dev, &rw(1, BIO_READ, 0, mem, 512)->bio), -EAGAIN);
	settle(dev, 1000);
	CHECK_EQ(bios[0].done, 1);
	CHECK_EQ(bios[0].bio.status, BIO_OK);
	CHECK_EQ(dev->commands, 128);
	CHECK(!memcmp(mem, model.ns[0].data, 1 << 20));
	free(mem);
	end();
}

static void test_namespaces_share_a_queue(void)
{
	static uint8_t buf[8192] __attribute__((aligned(4096)));
	struct bio_dev *a, *b;

	begin();
	nvme_model_ns_add(&model, 2, 12, 64);
	a = start(9, 64);
	b = disk("nvme0n2");
	memset(model.ns[0].data, 2, 4096);
	memset(model.ns[1].data, 1, 4096);
	bio_submit(a, &rw(0, BIO_READ, 0, buf, 4096)->bio);
	bio_submit(b, &rw(1, BIO_READ, 0, buf + 4096, 4096)->bio);
	CHECK(a->submitted && b->submitted);
	a->ops->commit(a);
	b->ops->commit(b);
	CHECK_EQ(model.sq_doorbells, 1);
	CHECK(!a->submitted && !b->submitted);
	nvme_model_step();
	CHECK_EQ(bio_poll(a, 64), 2); /* one's poll serves both */
	CHECK_EQ(a->in_flight + b->in_flight, 0);
	CHECK_EQ(b->completions, 1);
	CHECK_EQ(buf[0], 1);
	CHECK_EQ(buf[4096], 2);
	end();
}

/* --- interrupts --- */

static void test_irq(void)
{
	static uint8_t buf[4096] __attribute__((aligned(4096)));
	struct bio_dev *dev;

	begin();
	dev = start(9, 64);
	CHECK_EQ(model.msix[0], 0xfee02000u);
	CHECK_EQ(model.msix[2], 0xec);
	CHECK_EQ(model.msix[3] & 1, 1);
	CHECK(dev->ops->irq_set(dev, true)); /* nothing in flight: nothing to unmask */
	CHECK_EQ(model.msix[3] & 1, 1);
	bio_submit(dev, &rw(0, BIO_READ, 0, buf, 4096)->bio);
	dev->ops->commit(dev);
	CHECK(dev->ops->irq_set(dev, true));
	CHECK_EQ(model.msix[3] & 1, 0);
	nvme_model_step();
	CHECK_EQ(model.interrupts, 1);
	CHECK(dev->ops->irq_set(dev, false));
	CHECK_EQ(model.msix[3] & 1, 1);
	settle(dev, 10);
	/* Polling: no interrupt. Completion before the unmasking: told at once. */
	bio_submit(dev, &rw(0, BIO_READ, 0, buf, 4096)->bio);
	dev->ops->commit(dev);
	nvme_model_step();
	CHECK_EQ(model.interrupts, 1);
	CHECK(!dev->ops->irq_set(dev, true));
	CHECK_EQ(model.msix[3] & 1, 1);
	settle(dev, 10);
	/* A bio that never reached the device needs polling, too. */
	bio_submit(dev, &rw(0, BIO_READ, 64, buf, 4096)->bio);
	CHECK(!dev->ops->irq_set(dev, true));
	settle(dev, 10);
	end();

	begin();
	model.no_msix = true;
	dev = start(9, 64);
	CHECK(dev->ops->irq_set == NULL);
	end();
}

/* --- faults --- */

/* Eight writes of which the device treats one as planned. */
static void faulty_round(struct bio_dev *dev, unsigned seconds)
{
	static uint8_t buf[8 * 4096] __attribute__((aligned(4096)));

	for (unsigned i = 0; i < 8; i++)
		CHECK_EQ(bio_submit(dev, &rw(i, BIO_WRITE, i * 8, buf + i * 4096, 4096)->bio), 0);
	dev->ops->commit(dev);
	wait_seconds(dev, seconds);
	for (unsigned i = 0; i < 8; i++)
		CHECK_EQ(bios[i].done, 1);
	CHECK_EQ(dev->in_flight, 0);
}

static unsigned with_status(uint8_t status)
{
	unsigned n = 0;

	for (unsigned i = 0; i < 8; i++)
		n += bios[i].bio.status == status;
	return n;
}

static struct bio_dev *faulty_start(uint64_t at, enum nvme_model_act act, uint16_t value)
{
	begin();
	model.plan[model.plan_count++] = (struct nvme_model_plan){at, act, value};
	return start(9, 4096);
}

static void test_error_status(void)
{
	static const struct {
		uint16_t nvme;
		uint8_t bio;
	} cases[] = {{NVME_SC_INVALID_OPCODE, BIO_ENOTSUP},
	             {NVME_SC_LBA_RANGE, BIO_EINVAL},
	             {NVME_SC_UNRECOVERED_READ, BIO_EIO},
	             {NVME_SC_INVALID_NAMESPACE, BIO_EGONE},
	             {0x7ff, BIO_EIO}};

	for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
		struct bio_dev *dev = faulty_start(3, NVME_MODEL_ERROR, cases[i].nvme);

		faulty_round(dev, 1);
		CHECK_EQ(bios[3].bio.status, cases[i].bio);
		CHECK_EQ(with_status(BIO_OK), 7);
		CHECK(strstr(fake_log, "nvme0n1: write of 8 sectors at 24 failed"));
		end();
	}
}

/* One part of many fails: the bio fails once, after all its parts. */
static void test_error_in_one_part(void)
{
	uint8_t *mem = aligned_alloc(4096, 1 << 20);
	struct bio_dev *dev;

	memset(mem, 0, 1 << 20);
	dev = faulty_start(2, NVME_MODEL_ERROR, NVME_SC_UNRECOVERED_READ);
	CHECK_EQ(run(dev, rw(0, BIO_WRITE, 0, mem, 1 << 20)), BIO_EIO);
	CHECK_EQ(run(dev, rw(0, BIO_WRITE, 0, mem, 1 << 20)), BIO_OK);
	free(mem);
	end();
}

static void test_error_log_bounded(void)
{
	struct bio_dev *dev;
	static uint8_t buf[4096] __attribute__((aligned(4096)));
	unsigned lines = 0;

	begin();
	dev = start(9, 64);
	for (unsigned i = 0; i < 1000; i++) {
		model.plan[0] = (struct nvme_model_plan){i, NVME_MODEL_ERROR, 0x281};
		model.plan_count = 1;
		CHECK_EQ(run(dev, rw(0, BIO_READ, 0, buf, 4096)), BIO_EIO);
	}
	for (const char *p = fake_log; (p = strstr(p, "failed")); p++)
		lines++;
	CHECK(lines > 10 && lines < 100);
	CHECK_EQ(dev->errors, 1000);
	end();
}

static void test_duplicate_cid(void)
{
	struct bio_dev *dev = faulty_start(3, NVME_MODEL_DUP_CID, 0);

	faulty_round(dev, 1);
	CHECK_EQ(with_status(BIO_OK), 8);
	CHECK(strstr(fake_log, "which is not outstanding"));
	faulty_round(dev, 1);
	end();
}

/* Out of range, unused and of an earlier use: ignored; the command itself is then lost. */
static void test_wrong_cid(void)
{
	static const uint16_t flips[] = {0x0080, 0xffff, 0x0100, 0x8000};

	for (unsigned i = 0; i < ARRAY_LEN(flips); i++) {
		struct bio_dev *dev = faulty_start(3, NVME_MODEL_WRONG_CID, flips[i]);

		faulty_round(dev, 20);
		CHECK_EQ(with_status(BIO_OK), 7);
		CHECK_EQ(bios[3].bio.status, BIO_EIO);
		CHECK(strstr(fake_log, "which is not outstanding"));
		CHECK(strstr(fake_log, "resetting the controller"));
		end();
	}
}

/* A lost command: reset, its bio fails, and the disk works again. */
static void test_timeout(void)
{
	struct bio_dev *dev = faulty_start(3, NVME_MODEL_DROP, 0);

	faulty_round(dev, 20);
	CHECK_EQ(with_status(BIO_OK), 7);
	CHECK_EQ(with_status(BIO_EIO), 1);
	CHECK_EQ(model.resets, 2);
	faulty_round(dev, 20);
	CHECK_EQ(with_status(BIO_OK), 8);
	CHECK_EQ(model.resets, 2);
	end();
}

/* Everything hangs, a bio is half issued, others are not yet committed. */
static void test_timeout_with_partial(void)
{
	uint8_t *mem = aligned_alloc(4096, 1 << 20);
	struct bio_dev *dev;

	begin();
	model.mqes = 15;
	model.mdts = 1;
	dev = start(9, 4096);
	model.hold = true;
	CHECK_EQ(bio_submit(dev, &rw(0, BIO_READ, 0, mem, 8192)->bio), 0);
	dev->ops->commit(dev);
	CHECK_EQ(bio_submit(dev, &rw(1, BIO_READ, 4096, mem, 512)->bio), 0); /* out of range */
	CHECK_EQ(bio_submit(dev, &rw(2, BIO_READ, 0, mem, 1 << 20)->bio), 0);
	CHECK_EQ(bio_submit(dev, &rw(3, BIO_READ, 0, mem, 512)->bio), -EAGAIN);
	wait_seconds(dev, 5);
	CHECK_EQ(done_total, 1);
	wait_seconds(dev, 15);
	CHECK_EQ(done_total, 3);
	CHECK_EQ(bios[0].bio.status, BIO_EIO);
	CHECK_EQ(bios[1].bio.status, BIO_EINVAL);
	CHECK_EQ(bios[2].bio.status, BIO_EIO);
	CHECK_EQ(bios[0].done + bios[1].done + bios[2].done, 3);
	model.hold = false;
	CHECK_EQ(run(dev, rw(3, BIO_READ, 0, mem, 1 << 20)), BIO_OK);
	free(mem);
	end();
}

/* However late the core looks, a slow command is not a lost one. */
static void test_stopped_machine(void)
{
	static uint8_t buf[4096] __attribute__((aligned(4096)));
	struct bio_dev *dev;

	begin();
	dev = start(9, 64);
	model.hold = true;
	bio_submit(dev, &rw(0, BIO_READ, 0, buf, 4096)->bio);
	dev->ops->commit(dev);
	wait_seconds(dev, 2);
	fake_tsc += 3600ull * 1000000000;
	wait_seconds(dev, 2);
	for (unsigned i = 0; i < 40 * NVME_CHECK_POLLS; i++)
		bio_poll(dev, 64);
	CHECK_EQ(done_total, 0);
	model.hold = false;
	settle(dev, 10);
	CHECK_EQ(bios[0].bio.status, BIO_OK);
	CHECK_EQ(model.resets, 1);
	end();
}

static void test_timeout_reset_fails(void)
{
	struct bio_dev *dev = faulty_start(3, NVME_MODEL_DROP, 0);
	static uint8_t buf[4096] __attribute__((aligned(4096)));

	model.never_ready = true;
	faulty_round(dev, 20);
	CHECK_EQ(with_status(BIO_OK), 7);
	CHECK_EQ(bios[3].bio.status, BIO_EIO);
	CHECK_EQ(run(dev, rw(9, BIO_READ, 0, buf, 4096)), BIO_EGONE);
	CHECK_EQ(pci_model_get16(model.config, 4) & 4, 0);
	end();
}

static void test_timeout_never_stops(void)
{
	struct bio_dev *dev = faulty_start(3, NVME_MODEL_DROP, 0);

	model.never_stops = true;
	faulty_round(dev, 20);
	CHECK_EQ(bios[3].bio.status, BIO_EGONE);
	CHECK_EQ(pci_model_get16(model.config, 4) & 4, 0);
	end();
}

static void test_fatal(void)
{
	static const enum nvme_model_act acts[] = {NVME_MODEL_CFS, NVME_MODEL_GONE,
	                                           NVME_MODEL_RESET};
	static uint8_t buf[4096] __attribute__((aligned(4096)));

	for (unsigned i = 0; i < ARRAY_LEN(acts); i++) {
		struct bio_dev *dev = faulty_start(3, acts[i], 0);

		faulty_round(dev, 3);
		CHECK_EQ(with_status(BIO_OK), 3);
		CHECK_EQ(with_status(BIO_EGONE), 5);
		CHECK(strstr(fake_log, "given up"));
		CHECK_EQ(run(dev, rw(9, BIO_READ, 0, buf, 4096)), BIO_EGONE);
		CHECK_EQ(run(dev, plain(9, BIO_FLUSH, 0, 0)), BIO_EGONE);
		CHECK_EQ(pci_model_get16(model.config, 4) & 4, 0);
		end();
	}
}

/* The core slept with the interrupt on: the first poll afterwards looks at the clock. */
static void test_clock_after_sleep(void)
{
	struct bio_dev *dev;
	static uint8_t buf[4096] __attribute__((aligned(4096)));

	begin();
	dev = start(9, 64);
	bio_submit(dev, &rw(0, BIO_READ, 0, buf, 4096)->bio);
	dev->ops->commit(dev);
	model.gone = true;
	dev->ops->irq_set(dev, true);
	fake_tsc += 2000000000;
	dev->ops->irq_set(dev, false);
	CHECK_EQ(bio_poll(dev, 64), 1);
	CHECK_EQ(bios[0].bio.status, BIO_EGONE);
	end();
}

/* Many faults at random places: every bio exactly once, and good ones have right data. */
static void test_fault_storm(void)
{
	static uint8_t buf[64 * 4096] __attribute__((aligned(4096)));

	for (unsigned round = 0; round < 40; round++) {
		static const enum nvme_model_act acts[] = {NVME_MODEL_ERROR, NVME_MODEL_DROP,
		                                           NVME_MODEL_DUP_CID,
		                                           NVME_MODEL_WRONG_CID};
		struct bio_dev *dev;
		unsigned submitted = 0;

		begin();
		model.mqes = 5 + rnd(40);
		model.mdts = (uint8_t)(1 + rnd(3));
		model.reorder = true;
		model.per_step = 1 + rnd(5);
		for (unsigned i = 0; i < 8; i++)
			model.plan[model.plan_count++] = (struct nvme_model_plan){
			        rnd(400), acts[rnd(4)], (uint16_t)(1 + rnd(0x7fe))};
		dev = start(9, 4096);
		fill(model.ns[0].data, 4096 * 512);
		while (submitted < 200) {
			struct tracked *t =
			        rw(submitted, BIO_READ, rnd(2048), buf, 512 * (1 + rnd(128)));

			if (!bio_submit(dev, &t->bio)) {
				submitted++;
				if (rnd(3))
					continue;
			}
			dev->ops->commit(dev);
			wait_seconds(dev, rnd(2));
		}
		if (dev->submitted)
			dev->ops->commit(dev);
		wait_seconds(dev, 120);
		for (unsigned i = 0; i < 200; i++)
			CHECK_EQ(bios[i].done, 1);
		CHECK_EQ(dev->in_flight, 0);
		CHECK(with_status(BIO_OK) > 0);
		end();
		if (test_case_failed)
			return;
	}
}

/* A namespace that vanishes takes its own requests along, not its neighbours'. */
static void test_namespace_fails(void)
{
	static uint8_t buf[8192] __attribute__((aligned(4096)));
	struct bio_dev *a, *b;

	begin();
	nvme_model_ns_add(&model, 2, 9, 64);
	a = start(9, 64);
	b = disk("nvme0n2");
	model.ns[0].nsid = 77;
	bio_submit(a, &rw(0, BIO_READ, 0, buf, 4096)->bio);
	bio_submit(b, &rw(1, BIO_READ, 0, buf + 4096, 4096)->bio);
	settle(a, 10);
	settle(b, 10);
	CHECK_EQ(bios[0].bio.status, BIO_OK);
	CHECK_EQ(bios[1].bio.status, BIO_EGONE);
	CHECK_EQ(a->errors, 0);
	CHECK_EQ(b->errors, 1);
	end();
}

static void test_shutdown(void)
{
	begin();
	start(9, 64);
	nvme_shutdown_all();
	CHECK_EQ(model.cc & NVME_CC_SHN_MASK, NVME_CC_SHN_NORMAL);
	CHECK_EQ(model.csts & NVME_CSTS_SHST_MASK, NVME_CSTS_SHST_DONE);
	CHECK(!strstr(fake_log, "does not shut down"));
	CHECK_EQ(nvme_probe_all(), 1); /* the next owner starts it again */
	model.never_shuts = true;
	nvme_shutdown_all();
	CHECK(strstr(fake_log, "nvme0: does not shut down"));
	end();
}

TESTS(T(test_probe), T(test_probe_4k_and_several), T(test_two_controllers_first_broken),
      T(test_no_active_list), T(test_ready_timeouts), T(test_found_states), T(test_refused),
      T(test_small_and_odd_queues), T(test_counts), T(test_flush_discard_zeroes),
      T(test_bad_requests), T(test_random_512), T(test_random_4096),
      T(test_random_mdts_1_small_queue), T(test_random_mdts_0), T(test_large_lists),
      T(test_zero_copy), T(test_queue_full), T(test_larger_than_queue),
      T(test_namespaces_share_a_queue), T(test_irq), T(test_error_status),
      T(test_error_in_one_part), T(test_error_log_bounded), T(test_duplicate_cid),
      T(test_wrong_cid), T(test_timeout), T(test_timeout_with_partial), T(test_stopped_machine),
      T(test_timeout_reset_fails), T(test_timeout_never_stops), T(test_fatal),
      T(test_clock_after_sleep), T(test_fault_storm), T(test_namespace_fails), T(test_shutdown))
