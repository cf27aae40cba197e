/*
 * No byte that a guest wrote is read twice for one request: ring, block device and guest memory
 * under fake/fetch_watch.h, over every named request and headers cut in every way. What would read
 * twice gets another value the second time.
 */
#include "tests/unit/test.h"

#include "tests/fake/bio_fake.h"
#include "tests/fake/fetch_watch.h"
#include "tests/fake/platform.h"
#include "tests/fake/virtio_cases.h"
#include "tests/unit/fetch_mutant.h"
#include "virtio/blk.h"

#include <stdlib.h>
#include <string.h>

#define PIECE   (256 * KIB)
#define SECTORS 256u
#define SIZE    16u

static struct vguest guest;
static struct vguest_queue drv;
static struct bio_fake disk;
static struct vblk *blk;
static struct ioloop loop;
static struct vguest_io io;

static bool on_signal(struct vblk_transport *transport, unsigned queue)
{
	(void)transport;
	(void)queue;
	return true;
}

static void on_needs_reset(struct vblk_transport *transport)
{
	(void)transport;
}

static struct vblk_transport transport = {on_signal, on_needs_reset};

static void watch(void)
{
	struct virtq_avail *avail = vguest_va(&guest, drv.avail_gpa);
	struct virtq_used *used = vguest_va(&guest, drv.used_gpa);

	fetch_watch_end();
	for (unsigned i = 0; i < 2; i++)
		fetch_watch_add(guest.piece[i], PIECE);
	/* Flags, idx and used_event are the driver's word of this moment. */
	fetch_watch_live(avail, 4);
	fetch_watch_live(&avail->ring[SIZE], 2);
	fetch_watch_begins(avail->ring, 2 * SIZE);
	/* The used ring is the device's own. */
	fetch_watch_live(used, VIRTQ_USED_BYTES(SIZE));
}

static void setup(unsigned on, bool event_idx)
{
	struct manifest_disk config = {.num_queues = 1, .queue_size = SIZE};
	struct bio_extent extent = {&disk.dev, 0, SECTORS};

	fake_reset();
	fake_tsc = 1000000000;
	vguest_init(&guest, 2, PIECE);
	bio_fake_init(&disk, SECTORS, on & VGUEST_ON_4K ? 4096 : 512);
	disk.dev.has_discard = disk.dev.has_write_zeroes = !(on & VGUEST_ON_BARE);
	config.readonly = on & VGUEST_ON_READ_ONLY;
	blk = plat_mem_alloc(sizeof(*blk), CACHE_LINE_BYTES);
	if (vblk_create(blk, &config, extent, &guest.mem, "disk"))
		abort();
	blk->transport = &transport;
	blk->features = blk->features_offered;
	if (!event_idx)
		blk->features &= ~VIRTIO_F_EVENT_IDX;
	if (on & VGUEST_ON_NO_INDIRECT)
		blk->features &= ~VIRTIO_F_INDIRECT_DESC;
	vguest_queue_init(&drv, &guest, SIZE, event_idx, true);
	io.hdr_gpa = vguest_alloc(&guest, 16, 16);
	io.data_gpa = vguest_alloc(&guest, VGUEST_IO_DATA_BYTES, 4096);
	io.status_gpa = vguest_alloc(&guest, 1, 1);
	io.capacity_sectors = SECTORS;
	ioloop_init(&loop, 0);
	ioloop_dev_add(&loop, &disk.dev);
	blk->queue[0].ioq.poll_ns = IOQ_POLL_AUTO;
	ioloop_queue_add(&loop, &blk->queue[0].ioq);
	blk->queue[0].setup =
	        (struct vblk_queue_setup){drv.size, drv.desc_gpa, drv.avail_gpa, drv.used_gpa};
	ioloop_attach(&blk->queue[0].ioq);
	ioloop_pass(&loop);
	watch();
}

static void teardown(void)
{
	fetch_watch_end();
	bio_fake_free(&disk);
	vguest_free(&guest);
}

/* Runs what is published, takes what comes back; says what was read twice. */
static void served_once(const char *name)
{
	unsigned long loads = fetch_watch_loads(), doubles = fetch_watch_doubles();
	uint32_t head, len_bytes;

	ioloop_kick(&blk->queue[0].ioq);
	for (unsigned i = 0; i < 6; i++) {
		fake_tsc += 1000;
		ioloop_pass(&loop);
	}
	while (vguest_used_pop(&drv, &head, &len_bytes))
		;
	CHECK(fetch_watch_loads() > loads + 3);
	CHECK_EQ(fetch_watch_doubles(), doubles);
	if (fetch_watch_doubles() != doubles)
		printf("  %s: byte %#zx of memory, by code at %p\n", name, fetch_watch_offset(),
		       fetch_watch_code());
}

static void named_requests(void)
{
	static const unsigned disks[] = {0, VGUEST_ON_READ_ONLY, VGUEST_ON_4K, VGUEST_ON_BARE};

	for (unsigned i = 0; i < ARRAY_LEN(disks) * 4; i++) {
		unsigned on = disks[i / 4] | (i & 1 ? VGUEST_ON_NO_INDIRECT : VGUEST_ON_INDIRECT);

		setup(on, i & 2);
		for (unsigned n = 0; n < vguest_case_count; n++) {
			const struct vguest_case *c = &vguest_cases[n];

			/* A loop is the same descriptors again by the driver's own wish. */
			if (!vguest_case_fits(c, on) || !c->build || strstr(c->name, "loop"))
				continue;
			CHECK(vguest_case_publish(c, &drv, &io) >= 0);
			served_once(c->name);
		}
		teardown();
	}
}

/* A header in two pieces cut anywhere, glued to its data, and a range in two pieces. */
static void frames(void)
{
	struct virtio_blk_hdr hdr = {VIRTIO_BLK_T_OUT, 0, 8};

	setup(VGUEST_ON_INDIRECT, true);
	for (uint32_t cut = 1; cut < 16; cut++) {
		struct vguest_buf bufs[] = {{io.hdr_gpa, cut, false},
		                            {io.hdr_gpa + cut, 16 - cut, false},
		                            {io.data_gpa, 512, false},
		                            {io.status_gpa, 1, true}};

		memcpy(vguest_va(&guest, io.hdr_gpa), &hdr, 16);
		vguest_publish(&drv, (uint16_t)(cut & 1 ? vguest_add(&drv, bufs, 4)
		                                        : vguest_add_indirect(&drv, bufs, 4)));
		served_once("cut header");
	}
	hdr.type = VIRTIO_BLK_T_DISCARD;
	for (uint32_t cut = 1; cut < 16; cut++) {
		struct virtio_blk_range range = {8, 8, 0};
		struct vguest_buf bufs[] = {{io.hdr_gpa, 16, false},
		                            {io.data_gpa, cut, false},
		                            {io.data_gpa + cut, 16 - cut, false},
		                            {io.status_gpa, 1, true}};

		memcpy(vguest_va(&guest, io.hdr_gpa), &hdr, 16);
		memcpy(vguest_va(&guest, io.data_gpa), &range, 16);
		vguest_publish(&drv, (uint16_t)vguest_add(&drv, bufs, 4));
		served_once("cut range");
	}
	teardown();
}

/* An indirect table that lies across the break between two pieces of host memory. */
static void table_in_pieces(void)
{
	gpa_t edge_gpa = VGUEST_BASE_GPA + PIECE;
	struct virtio_blk_hdr hdr = {VIRTIO_BLK_T_IN, 0, 8};
	struct virtq_desc table[] = {{0, 16, VIRTQ_DESC_F_NEXT, 1},
	                             {0, 512, VIRTQ_DESC_F_NEXT | VIRTQ_DESC_F_WRITE, 2},
	                             {0, 1, VIRTQ_DESC_F_WRITE, 0}};

	setup(VGUEST_ON_INDIRECT, true);
	table[0].addr_gpa = io.hdr_gpa;
	table[1].addr_gpa = io.data_gpa;
	table[2].addr_gpa = io.status_gpa;
	for (unsigned before = 1; before < sizeof(table); before += 5) {
		struct vguest_buf any = {io.hdr_gpa, 16, false};
		int head = vguest_add(&drv, &any, 1);

		memcpy(vguest_va(&guest, io.hdr_gpa), &hdr, 16);
		CHECK_EQ(gmem_write(&guest.mem, edge_gpa - before, table, sizeof(table)), 0);
		vguest_desc_set(&drv, (uint16_t)head, edge_gpa - before, sizeof(table),
		                VIRTQ_DESC_F_INDIRECT, 0);
		vguest_publish(&drv, (uint16_t)head);
		served_once("table in pieces");
	}
	teardown();
}

/* Code with the mistake in it is caught, and gets two values. */
static void the_mistake_is_found(void)
{
	static uint32_t memory[4] = {16};

	fetch_watch_end();
	fetch_watch_add(memory, sizeof(memory));
	CHECK_EQ(fetch_mutant_read_once(&memory[0]), 16);
	CHECK_EQ(fetch_watch_loads(), 1);
	CHECK_EQ(fetch_watch_doubles(), 0);
	fetch_watch_anew();
	CHECK(fetch_mutant_check_then_use(&memory[0], 16) != 16);
	CHECK_EQ(fetch_watch_doubles(), 4);
	CHECK_EQ(fetch_watch_offset(), 3);
	/* Copied by the library. */
	fetch_watch_anew();
	fetch_mutant_copy_twice(&memory[1]);
	CHECK_EQ(fetch_watch_doubles(), 8);
	fetch_watch_end();
}

TESTS(T(the_mistake_is_found), T(named_requests), T(frames), T(table_in_pieces))
