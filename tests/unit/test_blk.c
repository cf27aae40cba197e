/*
 * The virtio-blk device between a driver's rings and a fake disk, fed by the real I/O loop.
 */
#include "tests/unit/test.h"

#include "tests/fake/bio_fake.h"
#include "tests/fake/platform.h"
#include "tests/fake/virtio_guest.h"
#include "virtio/blk.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SECTORS      4096u
#define PIECE        (8 * MIB)
#define EDGE         (VGUEST_BASE_GPA + PIECE) /* where the host's memory breaks */
#define GUARD        0xee
#define ALL_FEATURES UINT64_MAX

static struct vguest guest;
static struct vguest_queue drv;
static struct bio_fake disk;
static struct vblk *blk;
static struct ioloop loop;
static struct manifest_disk config;
static unsigned signals, resets;
static gpa_t hdr_gpa, status_gpa, data_gpa;
static uint32_t written_bytes; /* used.len of the last request */

static bool on_signal(struct vblk_transport *transport, unsigned queue)
{
	(void)transport;
	CHECK_EQ(queue, 0);
	signals++;
	return true;
}

static void on_needs_reset(struct vblk_transport *transport)
{
	(void)transport;
	resets++;
}

static struct vblk_transport transport = {on_signal, on_needs_reset};

static void passes(unsigned count)
{
	while (count-- > 0) {
		fake_tsc += 1000;
		ioloop_pass(&loop);
	}
}

static void attach(uint64_t features)
{
	blk->features = features & blk->features_offered;
	vguest_queue_init(&drv, &guest, config.queue_size, features & VIRTIO_F_EVENT_IDX,
	                  features & VIRTIO_F_INDIRECT_DESC);
	blk->queue[0].setup =
	        (struct vblk_queue_setup){drv.size, drv.desc_gpa, drv.avail_gpa, drv.used_gpa};
	ioloop_attach(&blk->queue[0].ioq);
	passes(1);
}

static void create(uint64_t poll_ns, uint32_t first_sector, uint32_t sectors)
{
	struct bio_extent extent = {&disk.dev, first_sector, sectors};

	blk = plat_mem_alloc(sizeof(*blk), CACHE_LINE_BYTES);
	if (vblk_create(blk, &config, extent, &guest.mem, "quell-0-0"))
		abort();
	blk->transport = &transport;
	ioloop_init(&loop, 0);
	ioloop_dev_add(&loop, &disk.dev);
	blk->queue[0].ioq.poll_ns = poll_ns;
	if (ioloop_queue_add(&loop, &blk->queue[0].ioq))
		abort();
}

/* A disk of SECTORS - 64 from sector 64 on. */
static void prepare(uint32_t block_bytes)
{
	fake_reset();
	fake_tsc = 1000000000;
	signals = resets = 0;
	vguest_init(&guest, 2, PIECE);
	bio_fake_init(&disk, SECTORS, block_bytes);
	for (unsigned i = 0; i < SECTORS; i++)
		memset(disk.data + i * 512, (int)(i % 251), 512);
	memset(&config, 0, sizeof(config));
	config.num_queues = 1;
	config.queue_size = 64;
	hdr_gpa = vguest_alloc(&guest, 64, 64);
	status_gpa = vguest_alloc(&guest, 64, 64) + 8;
	data_gpa = vguest_alloc(&guest, MIB, 4096);
}

static void setup(void)
{
	prepare(512);
	create(IOQ_POLL_ALWAYS, 64, SECTORS - 64);
	attach(ALL_FEATURES);
}

static void teardown(void)
{
	bio_fake_free(&disk);
	vguest_free(&guest);
}

static uint8_t *va(gpa_t gpa)
{
	return vguest_va(&guest, gpa);
}

static void hdr_set(uint32_t type, uint64_t sector)
{
	*(struct virtio_blk_hdr *)va(hdr_gpa) = (struct virtio_blk_hdr){type, 0, sector};
	memset(va(status_gpa) - 8, GUARD, 17);
}

/* Publishes, kicks if asked to, and runs passes until it is done. True: it came back. */
static bool run(int head)
{
	uint32_t id = UINT32_MAX;

	if (head < 0)
		abort();
	vguest_irq_on(&drv);
	vguest_publish(&drv, (uint16_t)head);
	if (vguest_kick_needed(&drv))
		ioloop_kick(&blk->queue[0].ioq);
	for (unsigned i = 0; i < 20; i++) {
		passes(1);
		if (vguest_used_pop(&drv, &id, &written_bytes)) {
			CHECK_EQ(id, (unsigned)head);
			return true;
		}
	}
	return false;
}

/* The status byte; the bytes around it must be as they were. */
static uint8_t status_check(void)
{
	for (int i = -8; i < 9; i++)
		if (i != 0)
			CHECK_EQ(va(status_gpa)[i], GUARD);
	return *va(status_gpa);
}

/* Header, data in one piece, status. */
static uint8_t request(uint32_t type, uint64_t sector, uint32_t len_bytes)
{
	bool device_writes = type == VIRTIO_BLK_T_IN || type == VIRTIO_BLK_T_GET_ID;
	struct vguest_buf bufs[3] = {
	        {hdr_gpa, 16, false}, {data_gpa, len_bytes, device_writes}, {status_gpa, 1, true}};

	hdr_set(type, sector);
	if (len_bytes == 0)
		bufs[1] = bufs[2];
	CHECK(run(vguest_add(&drv, bufs, len_bytes ? 3 : 2)));
	return status_check();
}

static uint8_t range_request(uint32_t type, uint64_t sector, uint32_t num_sectors, uint32_t flags)
{
	*(struct virtio_blk_range *)va(data_gpa) =
	        (struct virtio_blk_range){sector, num_sectors, flags};
	return request(type, 0, sizeof(struct virtio_blk_range));
}

/* --- the straight path ------------------------------------------------------------------------ */

static void test_read_write(void)
{
	setup();
	CHECK_EQ(request(VIRTIO_BLK_T_IN, 7, 1024), VIRTIO_BLK_S_OK);
	CHECK_EQ(written_bytes, 1025);
	CHECK_EQ(va(data_gpa)[0], 71); /* the extent begins at sector 64 */
	CHECK_EQ(va(data_gpa)[512], 72);
	CHECK_EQ(bio_fake_last(&disk)->sector, 71);
	CHECK_EQ(bio_fake_last(&disk)->sector_count, 2);
	memset(va(data_gpa), 0xa5, 512);
	CHECK_EQ(request(VIRTIO_BLK_T_OUT, 9, 512), VIRTIO_BLK_S_OK);
	CHECK_EQ(written_bytes, 1);
	CHECK_EQ(disk.data[73 * 512], 0xa5);
	CHECK_EQ(disk.data[73 * 512 + 511], 0xa5);
	CHECK_EQ(disk.data[74 * 512], 74);
	CHECK_EQ(signals, 2);
	CHECK_EQ(blk->queue[0].ioq.counts.requests, 2);
	CHECK_EQ(blk->queue[0].ioq.counts.read_bytes, 1024);
	CHECK_EQ(blk->queue[0].ioq.counts.written_bytes, 512);
	CHECK_EQ(blk->queue[0].ioq.counts.errors, 0);
	CHECK_EQ(blk->queue[0].in_flight, 0);
	teardown();
}

static void test_indirect_read(void)
{
	struct vguest_buf bufs[130] = {{0}};

	setup();
	hdr_set(VIRTIO_BLK_T_IN, 0);
	bufs[0] = (struct vguest_buf){hdr_gpa, 16, false};
	/* Every other page, so that nothing merges. */
	for (unsigned i = 0; i < 128; i++)
		bufs[1 + i] = (struct vguest_buf){data_gpa + i * 8192, 4096, true};
	bufs[129] = (struct vguest_buf){status_gpa, 1, true};
	CHECK(run(vguest_add_indirect(&drv, bufs, 130)));
	CHECK_EQ(status_check(), VIRTIO_BLK_S_OK);
	CHECK_EQ(written_bytes, 128 * 4096 + 1);
	CHECK_EQ(bio_fake_last(&disk)->seg_count, 128);
	CHECK_EQ(va(data_gpa + 127 * 8192)[0], (64 + 127 * 8) % 251);
	teardown();
}

static void test_get_id(void)
{
	setup();
	memset(va(data_gpa), GUARD, 32);
	CHECK_EQ(request(VIRTIO_BLK_T_GET_ID, 0, 20), VIRTIO_BLK_S_OK);
	CHECK_EQ(written_bytes, 21);
	CHECK_EQ(memcmp(va(data_gpa), "quell-0-0\0\0\0\0\0\0\0\0\0\0\0", 20), 0);
	CHECK_EQ(va(data_gpa)[20], GUARD);
	memset(va(data_gpa), GUARD, 32);
	CHECK_EQ(request(VIRTIO_BLK_T_GET_ID, 0, 3), VIRTIO_BLK_S_OK);
	CHECK_EQ(written_bytes, 4);
	CHECK_EQ(va(data_gpa)[3], GUARD);
	CHECK_EQ(request(VIRTIO_BLK_T_GET_ID, 0, 512), VIRTIO_BLK_S_OK);
	CHECK_EQ(written_bytes, 21);
	CHECK_EQ(request(2, 0, 512), VIRTIO_BLK_S_UNSUPP);
	CHECK_EQ(request(0xffffffff, 0, 512), VIRTIO_BLK_S_UNSUPP);
	CHECK_EQ(disk.log_count, 0);
	teardown();
}

/* Flush reaches the device. */
static void test_flush(void)
{
	setup();
	CHECK_EQ(request(VIRTIO_BLK_T_FLUSH, 0, 0), VIRTIO_BLK_S_OK);
	CHECK_EQ(disk.flushes, 1);
	CHECK_EQ(written_bytes, 1);
	teardown();
}

/* --- framing (2.7.4.1) ------------------------------------------------------------------------ */

static void test_header_in_bytes(void)
{
	struct vguest_buf bufs[18];

	setup();
	hdr_set(VIRTIO_BLK_T_IN, 5);
	for (unsigned i = 0; i < 16; i++)
		bufs[i] = (struct vguest_buf){hdr_gpa + i, 1, false};
	bufs[16] = (struct vguest_buf){data_gpa, 512, true};
	bufs[17] = (struct vguest_buf){status_gpa, 1, true};
	CHECK(run(vguest_add(&drv, bufs, 18)));
	CHECK_EQ(status_check(), VIRTIO_BLK_S_OK);
	CHECK_EQ(va(data_gpa)[0], 69);
	teardown();
}

/* Header and data in one buffer; data and status in one buffer. */
static void test_glued(void)
{
	struct vguest_buf write[2], read[2];

	setup();
	hdr_set(VIRTIO_BLK_T_OUT, 5);
	memcpy(va(data_gpa), va(hdr_gpa), 16);
	memset(va(data_gpa) + 16, 0x3c, 1024);
	write[0] = (struct vguest_buf){data_gpa, 16 + 1024, false};
	write[1] = (struct vguest_buf){status_gpa, 1, true};
	CHECK(run(vguest_add(&drv, write, 2)));
	CHECK_EQ(status_check(), VIRTIO_BLK_S_OK);
	CHECK_EQ(disk.data[69 * 512], 0x3c);
	CHECK_EQ(disk.data[70 * 512 + 511], 0x3c);
	CHECK_EQ(disk.data[71 * 512], 71);

	hdr_set(VIRTIO_BLK_T_IN, 6);
	memset(va(data_gpa), GUARD, 1024);
	read[0] = (struct vguest_buf){hdr_gpa, 16, false};
	read[1] = (struct vguest_buf){data_gpa, 513, true};
	CHECK(run(vguest_add(&drv, read, 2)));
	CHECK_EQ(va(data_gpa)[511], 0x3c);
	CHECK_EQ(va(data_gpa)[512], VIRTIO_BLK_S_OK);
	CHECK_EQ(va(data_gpa)[513], GUARD);
	CHECK_EQ(written_bytes, 513);
	teardown();
}

/* Data in pieces that are no sectors, header cut in the middle, across the break in host memory. */
static void test_odd_pieces(void)
{
	gpa_t hdr = EDGE - 5, data = EDGE - 200;
	struct virtio_blk_hdr copy = {VIRTIO_BLK_T_IN, 0, 3};
	struct vguest_buf bufs[] = {{hdr, 16, false},           {data, 60, true},
	                            {data + 300, 400, true},    {data_gpa, 52, true},
	                            {data_gpa + 52, 512, true}, /* continues the last one */
	                            {status_gpa, 1, true}};

	setup();
	CHECK_EQ(gmem_write(&guest.mem, hdr, &copy, 16), 0);
	memset(va(status_gpa) - 8, GUARD, 17);
	CHECK(run(vguest_add(&drv, bufs, 6)));
	CHECK_EQ(status_check(), VIRTIO_BLK_S_OK);
	CHECK_EQ(written_bytes, 1025);
	CHECK_EQ(bio_fake_last(&disk)->seg_count, 3); /* the last two are one in host memory */
	CHECK_EQ(va(data_gpa)[51], 67);
	CHECK_EQ(va(data_gpa)[52], 68);
	teardown();
}

static void test_segment_across_break(void)
{
	struct vguest_buf bufs[] = {
	        {hdr_gpa, 16, false}, {EDGE - 1024, 4096, true}, {status_gpa, 1, true}};
	uint8_t back[4096];

	setup();
	hdr_set(VIRTIO_BLK_T_IN, 0);
	CHECK(run(vguest_add(&drv, bufs, 3)));
	CHECK_EQ(status_check(), VIRTIO_BLK_S_OK);
	CHECK_EQ(bio_fake_last(&disk)->seg_count, 2);
	CHECK_EQ(gmem_read(&guest.mem, EDGE - 1024, back, 4096), 0);
	for (unsigned i = 0; i < 8; i++)
		CHECK_EQ(back[i * 512], 64 + i);
	teardown();
}

/* --- what is refused -------------------------------------------------------------------------- */

static void test_capacity_edge(void)
{
	uint64_t capacity = SECTORS - 64;

	setup();
	CHECK_EQ(blk->config.capacity, capacity);
	CHECK_EQ(request(VIRTIO_BLK_T_IN, capacity - 1, 512), VIRTIO_BLK_S_OK);
	CHECK_EQ(va(data_gpa)[0], (SECTORS - 1) % 251);
	CHECK_EQ(request(VIRTIO_BLK_T_IN, capacity - 1, 1024), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(written_bytes, 1);
	CHECK_EQ(request(VIRTIO_BLK_T_IN, capacity, 512), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(request(VIRTIO_BLK_T_IN, UINT64_MAX, 512), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(request(VIRTIO_BLK_T_IN, UINT64_MAX - 1, 1024), VIRTIO_BLK_S_IOERR);
	/* Times 512 this wraps to a small number. */
	CHECK_EQ(request(VIRTIO_BLK_T_IN, 1ull << 55, 512), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(request(VIRTIO_BLK_T_OUT, capacity, 512), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(disk.log_count, 1);
	CHECK_EQ(blk->queue[0].ioq.counts.errors, 6);
	teardown();
}

static void test_lengths(void)
{
	setup();
	CHECK_EQ(request(VIRTIO_BLK_T_IN, 0, 511), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(request(VIRTIO_BLK_T_IN, 0, 513), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(request(VIRTIO_BLK_T_OUT, 0, 1), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(disk.log_count, 0);
	/* Nothing to transfer is no error, but the sector still has to be one. */
	CHECK_EQ(request(VIRTIO_BLK_T_IN, 0, 0), VIRTIO_BLK_S_OK);
	CHECK_EQ(written_bytes, 1);
	CHECK_EQ(request(VIRTIO_BLK_T_OUT, SECTORS - 64, 0), VIRTIO_BLK_S_OK);
	CHECK_EQ(request(VIRTIO_BLK_T_OUT, SECTORS - 63, 0), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(disk.log_count, 0);
	teardown();
}

static void test_4k_blocks(void)
{
	prepare(4096);
	create(IOQ_POLL_ALWAYS, 64, SECTORS - 64);
	attach(ALL_FEATURES);
	CHECK_EQ(blk->config.blk_size, 4096);
	CHECK_EQ(request(VIRTIO_BLK_T_IN, 8, 4096), VIRTIO_BLK_S_OK);
	CHECK_EQ(va(data_gpa)[0], 72);
	CHECK_EQ(request(VIRTIO_BLK_T_IN, 1, 4096), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(request(VIRTIO_BLK_T_IN, 8, 512), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(request(VIRTIO_BLK_T_OUT, 0, 4096 + 512), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(range_request(VIRTIO_BLK_T_DISCARD, 4, 8, 0), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(range_request(VIRTIO_BLK_T_DISCARD, 8, 8, 0), VIRTIO_BLK_S_OK);
	CHECK_EQ(disk.log_count, 2);
	teardown();
}

static void test_read_only(void)
{
	prepare(512);
	config.readonly = true;
	create(IOQ_POLL_ALWAYS, 64, SECTORS - 64);
	attach(ALL_FEATURES);
	CHECK(blk->features_offered & VIRTIO_BLK_F_RO);
	CHECK(!(blk->features_offered & (VIRTIO_BLK_F_DISCARD | VIRTIO_BLK_F_WRITE_ZEROES)));
	CHECK_EQ(request(VIRTIO_BLK_T_OUT, 0, 512), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(request(VIRTIO_BLK_T_OUT, 0, 0), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(range_request(VIRTIO_BLK_T_DISCARD, 0, 8, 0), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(range_request(VIRTIO_BLK_T_WRITE_ZEROES, 0, 8, 0), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(disk.log_count, 0);
	CHECK_EQ(request(VIRTIO_BLK_T_FLUSH, 0, 0), VIRTIO_BLK_S_OK);
	CHECK_EQ(disk.flushes, 1);
	CHECK_EQ(request(VIRTIO_BLK_T_IN, 0, 512), VIRTIO_BLK_S_OK);
	CHECK_EQ(disk.data[64 * 512], 64);
	teardown();
}

static void test_discard(void)
{
	setup();
	CHECK_EQ(range_request(VIRTIO_BLK_T_DISCARD, 10, 4, 0), VIRTIO_BLK_S_OK);
	CHECK_EQ(bio_fake_last(&disk)->op, BIO_DISCARD);
	CHECK_EQ(bio_fake_last(&disk)->sector, 74);
	CHECK_EQ(bio_fake_last(&disk)->sector_count, 4);
	CHECK_EQ(disk.data[73 * 512 + 511], 73);
	CHECK_EQ(disk.data[74 * 512], 0);
	CHECK_EQ(disk.data[78 * 512], 78);
	/* Zeroes may come with unmap; a discard may not; other flags never. */
	CHECK_EQ(range_request(VIRTIO_BLK_T_WRITE_ZEROES, 20, 1, 1), VIRTIO_BLK_S_OK);
	CHECK_EQ(disk.data[84 * 512], 0);
	CHECK_EQ(range_request(VIRTIO_BLK_T_DISCARD, 10, 4, 1), VIRTIO_BLK_S_UNSUPP);
	CHECK_EQ(range_request(VIRTIO_BLK_T_DISCARD, 10, 4, 2), VIRTIO_BLK_S_UNSUPP);
	CHECK_EQ(range_request(VIRTIO_BLK_T_WRITE_ZEROES, 10, 4, 2), VIRTIO_BLK_S_UNSUPP);
	/* Beyond the end, beyond the limit, none at all. */
	CHECK_EQ(range_request(VIRTIO_BLK_T_DISCARD, SECTORS - 64, 1, 0), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(range_request(VIRTIO_BLK_T_DISCARD, UINT64_MAX, 2, 0), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(range_request(VIRTIO_BLK_T_DISCARD, 0, UINT32_MAX, 0), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(range_request(VIRTIO_BLK_T_WRITE_ZEROES, 0, VBLK_ZEROES_SECTORS_MAX + 1, 0),
	         VIRTIO_BLK_S_IOERR);
	CHECK_EQ(range_request(VIRTIO_BLK_T_DISCARD, 0, 0, 0), VIRTIO_BLK_S_OK);
	/* No segment, half a segment, two. */
	CHECK_EQ(request(VIRTIO_BLK_T_DISCARD, 0, 0), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(request(VIRTIO_BLK_T_DISCARD, 0, 8), VIRTIO_BLK_S_IOERR);
	memset(va(data_gpa), 0, 64);
	CHECK_EQ(request(VIRTIO_BLK_T_DISCARD, 0, 32), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(disk.log_count, 2);
	teardown();
}

/* The limits of the configuration space, on a disk that is larger than they are. */
static void test_range_limits(void)
{
	const uint32_t sectors = 2 * VBLK_DISCARD_SECTORS_MAX;

	prepare(512);
	bio_fake_free(&disk);
	bio_fake_init(&disk, sectors, 512);
	create(IOQ_POLL_ALWAYS, 0, sectors);
	attach(ALL_FEATURES);
	CHECK_EQ(blk->config.max_discard_sectors, VBLK_DISCARD_SECTORS_MAX);
	CHECK_EQ(blk->config.max_write_zeroes_sectors, VBLK_ZEROES_SECTORS_MAX);
	CHECK_EQ(range_request(VIRTIO_BLK_T_DISCARD, 1, VBLK_DISCARD_SECTORS_MAX + 1, 0),
	         VIRTIO_BLK_S_IOERR);
	CHECK_EQ(range_request(VIRTIO_BLK_T_WRITE_ZEROES, 1, VBLK_ZEROES_SECTORS_MAX + 1, 0),
	         VIRTIO_BLK_S_IOERR);
	CHECK_EQ(disk.log_count, 0);
	CHECK_EQ(range_request(VIRTIO_BLK_T_WRITE_ZEROES, 1, VBLK_ZEROES_SECTORS_MAX, 0),
	         VIRTIO_BLK_S_OK);
	CHECK_EQ(bio_fake_last(&disk)->sector_count, VBLK_ZEROES_SECTORS_MAX);
	teardown();
}

/* A device that cannot: not offered, limits of zero, and not supported when asked anyway. */
static void test_no_discard(void)
{
	prepare(512);
	disk.dev.has_discard = disk.dev.has_write_zeroes = false;
	create(IOQ_POLL_ALWAYS, 64, SECTORS - 64);
	attach(ALL_FEATURES);
	CHECK_EQ(blk->config.max_discard_sectors, 0);
	CHECK_EQ(blk->config.max_write_zeroes_sectors, 0);
	CHECK_EQ(range_request(VIRTIO_BLK_T_DISCARD, 0, 8, 0), VIRTIO_BLK_S_UNSUPP);
	CHECK_EQ(range_request(VIRTIO_BLK_T_WRITE_ZEROES, 0, 8, 0), VIRTIO_BLK_S_UNSUPP);
	CHECK_EQ(disk.log_count, 0);
	teardown();
}

/* Chains that cannot be answered come back with length 0, all else with a status. */
static void test_bad_frames(void)
{
	gpa_t nowhere = VGUEST_BASE_GPA + 2 * PIECE;
	struct vguest_buf bufs[4];

	setup();
	hdr_set(VIRTIO_BLK_T_IN, 0);
	bufs[0] = (struct vguest_buf){hdr_gpa, 16, false};
	CHECK(run(vguest_add(&drv, bufs, 1))); /* no status */
	CHECK_EQ(written_bytes, 0);
	bufs[0] = (struct vguest_buf){0, 0, false};
	CHECK(run(vguest_add(&drv, bufs, 1))); /* nothing at all */
	CHECK_EQ(written_bytes, 0);
	bufs[0] = (struct vguest_buf){hdr_gpa, 16, false};
	bufs[1] = (struct vguest_buf){nowhere, 1, true};
	CHECK(run(vguest_add(&drv, bufs, 2))); /* a status outside memory */
	CHECK_EQ(written_bytes, 0);
	bufs[1] = (struct vguest_buf){UINT64_MAX, 2, true};
	CHECK(run(vguest_add(&drv, bufs, 2))); /* around the top, to gpa 0 */
	CHECK_EQ(written_bytes, 0);
	CHECK_EQ(status_check(), GUARD);

	bufs[0] = (struct vguest_buf){hdr_gpa, 15, false};
	bufs[1] = (struct vguest_buf){status_gpa, 1, true};
	CHECK(run(vguest_add(&drv, bufs, 2))); /* a short header */
	CHECK_EQ(written_bytes, 1);
	CHECK_EQ(status_check(), VIRTIO_BLK_S_IOERR);
	hdr_set(VIRTIO_BLK_T_IN, 0);
	CHECK(run(vguest_add(&drv, bufs + 1, 1))); /* a status alone */
	CHECK_EQ(status_check(), VIRTIO_BLK_S_IOERR);
	hdr_set(VIRTIO_BLK_T_IN, 0);
	bufs[0] = (struct vguest_buf){nowhere - 8, 16, false};
	CHECK(run(vguest_add(&drv, bufs, 2))); /* a header half outside memory */
	CHECK_EQ(status_check(), VIRTIO_BLK_S_IOERR);
	/* Data outside memory, data that leaves it, data of the other direction. */
	bufs[0] = (struct vguest_buf){hdr_gpa, 16, false};
	bufs[2] = bufs[1];
	bufs[1] = (struct vguest_buf){nowhere, 512, true};
	hdr_set(VIRTIO_BLK_T_IN, 0);
	CHECK(run(vguest_add(&drv, bufs, 3)));
	CHECK_EQ(status_check(), VIRTIO_BLK_S_IOERR);
	bufs[1] = (struct vguest_buf){nowhere - 512, 1024, true};
	hdr_set(VIRTIO_BLK_T_IN, 0);
	CHECK(run(vguest_add(&drv, bufs, 3)));
	CHECK_EQ(status_check(), VIRTIO_BLK_S_IOERR);
	bufs[1] = (struct vguest_buf){data_gpa, 512, false};
	hdr_set(VIRTIO_BLK_T_IN, 0);
	CHECK(run(vguest_add(&drv, bufs, 3)));
	CHECK_EQ(status_check(), VIRTIO_BLK_S_IOERR);
	bufs[1] = (struct vguest_buf){data_gpa, 512, true};
	hdr_set(VIRTIO_BLK_T_OUT, 0);
	CHECK(run(vguest_add(&drv, bufs, 3)));
	CHECK_EQ(status_check(), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(disk.log_count, 0);
	CHECK_EQ(blk->queue[0].in_flight, 0);
	CHECK_EQ(resets, 0);
	teardown();
}

static void test_bad_chain_comes_back(void)
{
	setup();
	vguest_desc_set(&drv, 3, 1, 16, VIRTQ_DESC_F_NEXT, 3);
	CHECK(run(3));
	CHECK_EQ(written_bytes, 0);
	CHECK_EQ(request(VIRTIO_BLK_T_IN, 0, 512), VIRTIO_BLK_S_OK);
	CHECK_EQ(blk->queue[0].ioq.counts.errors, 1);
	teardown();
}

static void test_device_errors(void)
{
	setup();
	disk.next_status = BIO_EIO;
	CHECK_EQ(request(VIRTIO_BLK_T_IN, 0, 512), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(written_bytes, 1);
	disk.next_status = BIO_EINVAL;
	CHECK_EQ(request(VIRTIO_BLK_T_OUT, 0, 512), VIRTIO_BLK_S_IOERR);
	disk.next_status = BIO_EGONE;
	CHECK_EQ(request(VIRTIO_BLK_T_FLUSH, 0, 0), VIRTIO_BLK_S_IOERR);
	disk.next_status = BIO_ENOTSUP;
	CHECK_EQ(range_request(VIRTIO_BLK_T_DISCARD, 0, 8, 0), VIRTIO_BLK_S_UNSUPP);
	disk.next_status = BIO_OK;
	CHECK_EQ(request(VIRTIO_BLK_T_IN, 0, 512), VIRTIO_BLK_S_OK);
	CHECK_EQ(blk->queue[0].ioq.counts.errors, 4);
	CHECK_EQ(blk->queue[0].ioq.counts.read_bytes, 512);
	CHECK_EQ(blk->queue[0].ioq.counts.written_bytes, 0);
	teardown();
}

/* --- many ------------------------------------------------------------------------------------- */

/* Publishes count reads, sector n into page n of the data, each with its own status byte. */
static void reads_publish(unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		struct vguest_buf bufs[] = {{0, 16, false},
		                            {data_gpa + i * 4096, 512, true},
		                            {data_gpa + i * 4096 + 1024, 1, true}};
		int head;

		bufs[0].gpa = data_gpa + i * 4096 + 2048;
		*(struct virtio_blk_hdr *)va(bufs[0].gpa) =
		        (struct virtio_blk_hdr){VIRTIO_BLK_T_IN, 0, i};
		*va(bufs[2].gpa) = GUARD;
		head = vguest_add_indirect(&drv, bufs, 3);
		if (head < 0)
			abort();
		vguest_publish(&drv, (uint16_t)head);
	}
}

static void reads_check(unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		CHECK_EQ(va(data_gpa + i * 4096)[0], 64 + i);
		CHECK_EQ(va(data_gpa + i * 4096)[1024], VIRTIO_BLK_S_OK);
	}
}

static unsigned used_take(void)
{
	uint32_t head, len_bytes;
	unsigned count = 0;

	while (vguest_used_pop(&drv, &head, &len_bytes))
		count++;
	return count;
}

/* A batch: one doorbell, one used.idx, one interrupt. */
static void test_batch(void)
{
	setup();
	vguest_irq_on(&drv);
	reads_publish(40);
	CHECK(!vguest_kick_needed(&drv)); /* it is being polled */
	passes(1);
	CHECK_EQ(used_take(), 40);
	reads_check(40);
	CHECK_EQ(disk.dev.doorbells, 1);
	CHECK_EQ(signals, 1);
	CHECK_EQ(atomic_load(&blk->queue[0].ioq.kicks), 0);
	teardown();
}

/* The device has room for three: each request is done once, and in whatever number of passes. */
static void device_full(uint64_t poll_ns, unsigned count)
{
	prepare(512);
	create(poll_ns, 64, SECTORS - 64);
	attach(ALL_FEATURES);
	disk.room = 3;
	reads_publish(count);
	if (vguest_kick_needed(&drv))
		ioloop_kick(&blk->queue[0].ioq);
	for (unsigned i = 0; i < 100 && vguest_used_idx(&drv) != count; i++)
		passes(1);
	CHECK_EQ(used_take(), count);
	reads_check(count);
	CHECK_EQ(disk.log_count, count);
	CHECK_EQ(atomic_load(&blk->queue[0].ioq.kicks), poll_ns == IOQ_POLL_ALWAYS ? 0 : 1);
	teardown();
}

static void test_device_full(void)
{
	device_full(IOQ_POLL_ALWAYS, 50);
	device_full(IOQ_POLL_AUTO, 50);
	device_full(0, 50);
	device_full(0, 4); /* never polled, and nothing but the held one left */
}

/* The same head again and again: more in flight than the ring has entries cannot be. */
static void test_flood(void)
{
	struct vguest_buf bufs[] = {{0, 16, false}, {0, 512, true}, {0, 1, true}};
	int head;

	setup();
	bufs[0].gpa = hdr_gpa;
	bufs[1].gpa = data_gpa;
	bufs[2].gpa = status_gpa;
	hdr_set(VIRTIO_BLK_T_IN, 0);
	disk.hold = 1;
	head = vguest_add(&drv, bufs, 3);
	for (unsigned i = 0; i < 40; i++) {
		for (unsigned k = 0; k < 64; k++)
			vguest_publish(&drv, (uint16_t)head);
		passes(2);
	}
	/* The first 64 are taken; the next 64 wait; after that avail.idx is out of reach. */
	CHECK_EQ(blk->queue[0].in_flight, 64);
	CHECK_EQ(disk.dev.in_flight, 64);
	disk.hold = 0;
	passes(10);
	CHECK_EQ(blk->queue[0].in_flight, 0);
	CHECK(blk->queue[0].vq.broken);
	CHECK_EQ(resets, 1);
	teardown();
}

static void test_100000(void)
{
	prepare(512);
	create(IOQ_POLL_ALWAYS, 64, SECTORS - 64);
	attach(ALL_FEATURES);
	vguest_irq_off(&drv);
	for (unsigned round = 0; round < 2000 && !test_case_failed; round++) {
		reads_publish(50);
		CHECK(!vguest_kick_needed(&drv));
		passes(1);
		CHECK_EQ(used_take(), 50);
		vguest_irq_off(&drv);
	}
	CHECK_EQ(signals, 0);
	CHECK_EQ(blk->queue[0].ioq.counts.requests, 100000);
	CHECK_EQ(blk->queue[0].ioq.counts.interrupts_suppressed, 2000);
	teardown();
}

/* Never polled: one kick each, and none is lost. */
static void test_unpolled(void)
{
	prepare(512);
	create(0, 64, SECTORS - 64);
	attach(ALL_FEATURES);
	for (unsigned i = 0; i < 200; i++)
		CHECK_EQ(request(VIRTIO_BLK_T_IN, i, 512), VIRTIO_BLK_S_OK);
	CHECK_EQ(atomic_load(&blk->queue[0].ioq.kicks), 200);
	CHECK_EQ(signals, 200);
	teardown();
}

/* The same with flags in place of EVENT_IDX. */
static void test_without_event_idx(void)
{
	prepare(512);
	create(0, 64, SECTORS - 64);
	attach(ALL_FEATURES & ~VIRTIO_F_EVENT_IDX);
	for (unsigned i = 0; i < 200; i++)
		CHECK_EQ(request(VIRTIO_BLK_T_IN, i, 512), VIRTIO_BLK_S_OK);
	CHECK_EQ(atomic_load(&blk->queue[0].ioq.kicks), 200);
	CHECK_EQ(signals, 200);
	vguest_irq_off(&drv);
	reads_publish(5);
	ioloop_kick(&blk->queue[0].ioq);
	passes(2);
	CHECK_EQ(used_take(), 5);
	CHECK_EQ(signals, 200);
	teardown();
}

/* --- flush for drivers that cannot (5.2.6.2) -------------------------------------------------- */

static void test_write_through(void)
{
	prepare(512);
	create(0, 64, SECTORS - 64);
	attach(ALL_FEATURES & ~VIRTIO_BLK_F_FLUSH);
	CHECK_EQ(request(VIRTIO_BLK_T_OUT, 0, 512), VIRTIO_BLK_S_OK);
	CHECK_EQ(disk.flushes, 1);
	CHECK_EQ(disk.log_count, 2);
	CHECK_EQ(request(VIRTIO_BLK_T_IN, 0, 512), VIRTIO_BLK_S_OK);
	CHECK_EQ(disk.flushes, 1);
	CHECK_EQ(range_request(VIRTIO_BLK_T_WRITE_ZEROES, 0, 1, 0), VIRTIO_BLK_S_OK);
	CHECK_EQ(disk.flushes, 2);
	CHECK_EQ(blk->queue[0].ioq.counts.written_bytes, 512);
	CHECK_EQ(blk->queue[0].ioq.counts.requests, 3);
	/* The pass that submits a flush has nothing to tell the driver. */
	CHECK_EQ(blk->queue[0].ioq.counts.interrupts, signals);
	CHECK_EQ(blk->queue[0].ioq.counts.interrupts_suppressed, 0);
	/* The flush fails: so does the write. */
	disk.hold = 1;
	vguest_publish(&drv, (uint16_t)vguest_add(&drv,
	                                          (struct vguest_buf[]){{hdr_gpa, 16, false},
	                                                                {data_gpa, 512, false},
	                                                                {status_gpa, 1, true}},
	                                          3));
	hdr_set(VIRTIO_BLK_T_OUT, 0);
	ioloop_kick(&blk->queue[0].ioq);
	passes(2);
	disk.hold = 0;
	passes(1); /* written; the flush was submitted and waits for its commit */
	CHECK_EQ(status_check(), GUARD);
	disk.next_status = BIO_EIO;
	passes(2);
	CHECK_EQ(status_check(), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(blk->queue[0].in_flight, 0);
	teardown();
}

/* No room for the flush: tried again each pass, without a kick. */
static void test_write_through_full(void)
{
	prepare(512);
	create(0, 64, SECTORS - 64);
	attach(ALL_FEATURES & ~VIRTIO_BLK_F_FLUSH);
	vguest_publish(&drv, (uint16_t)vguest_add(&drv,
	                                          (struct vguest_buf[]){{hdr_gpa, 16, false},
	                                                                {data_gpa, 512, false},
	                                                                {status_gpa, 1, true}},
	                                          3));
	hdr_set(VIRTIO_BLK_T_OUT, 0);
	ioloop_kick(&blk->queue[0].ioq);
	disk.hold = 1;
	passes(1);
	CHECK_EQ(disk.log_count, 1);
	disk.hold = 0;
	disk.room = 0;
	passes(5);
	CHECK_EQ(status_check(), GUARD);
	CHECK_EQ(disk.log_count, 1);
	disk.room = 1;
	passes(3);
	CHECK_EQ(status_check(), VIRTIO_BLK_S_OK);
	CHECK_EQ(disk.flushes, 1);
	CHECK_EQ(used_take(), 1);
	teardown();
}

/* --- reset ------------------------------------------------------------------------------------ */

/* In flight and held at a reset: guest memory is left alone, and all can be done again. */
static void test_reset_in_flight(void)
{
	struct vblk_queue *q;
	uint8_t *ring;

	setup();
	q = &blk->queue[0];
	disk.hold = 1;
	disk.room = 10;
	reads_publish(20);
	passes(3);
	CHECK_EQ(q->in_flight, 11); /* ten at the device, one held */
	ioloop_detach(&q->ioq);
	passes(3);
	CHECK(ioq_is_attached(&q->ioq)); /* the device still writes to guest memory */
	ring = va(drv.used_gpa);
	memset(ring, GUARD, VIRTQ_USED_BYTES(64));
	for (unsigned i = 0; i < 20; i++)
		CHECK_EQ(va(data_gpa + i * 4096)[1024], GUARD);
	disk.hold = 0;
	passes(3);
	CHECK(!ioq_is_attached(&q->ioq));
	CHECK_EQ(q->in_flight, 0);
	CHECK_EQ(disk.dev.in_flight, 0);
	CHECK_EQ(disk.log_count, 10); /* the held one never went out */
	for (unsigned i = 0; i < VIRTQ_USED_BYTES(64); i++)
		CHECK_EQ(ring[i], GUARD);
	for (unsigned i = 0; i < 20; i++)
		CHECK_EQ(va(data_gpa + i * 4096)[1024], GUARD);
	CHECK_EQ(signals, 0);
	/* A second driver, a new ring, all requests available. */
	disk.room = 4096;
	attach(ALL_FEATURES);
	CHECK(ioq_is_attached(&q->ioq));
	vguest_irq_on(&drv);
	reads_publish(64);
	passes(2);
	CHECK_EQ(used_take(), 64);
	reads_check(64);
	CHECK_EQ(signals, 1);
	teardown();
}

static void test_reset_unflushed(void)
{
	struct vblk_queue *q;

	prepare(512);
	create(0, 64, SECTORS - 64);
	attach(ALL_FEATURES & ~VIRTIO_BLK_F_FLUSH);
	q = &blk->queue[0];
	vguest_publish(&drv, (uint16_t)vguest_add(&drv,
	                                          (struct vguest_buf[]){{hdr_gpa, 16, false},
	                                                                {data_gpa, 512, false},
	                                                                {status_gpa, 1, true}},
	                                          3));
	hdr_set(VIRTIO_BLK_T_OUT, 0);
	ioloop_kick(&q->ioq);
	disk.hold = 1;
	passes(1);
	disk.hold = disk.room = 0;
	passes(3);
	CHECK_EQ(q->in_flight, 1);
	ioloop_detach(&q->ioq);
	passes(2);
	CHECK(!ioq_is_attached(&q->ioq));
	CHECK_EQ(q->in_flight, 0);
	CHECK_EQ(status_check(), GUARD);
	teardown();
}

/* A ring that is none: attached all the same, silent, and the driver hears of it. */
static void test_attach_bad_ring(void)
{
	struct vblk_queue *q;

	prepare(512);
	create(IOQ_POLL_ALWAYS, 64, SECTORS - 64);
	q = &blk->queue[0];
	q->setup = (struct vblk_queue_setup){64, 0, 0, 0};
	ioloop_attach(&q->ioq);
	passes(3);
	CHECK(ioq_is_attached(&q->ioq));
	CHECK_EQ(resets, 1);
	ioloop_kick(&q->ioq);
	passes(3);
	ioloop_detach(&q->ioq);
	passes(2);
	CHECK(!ioq_is_attached(&q->ioq));
	attach(ALL_FEATURES);
	CHECK_EQ(request(VIRTIO_BLK_T_IN, 0, 512), VIRTIO_BLK_S_OK);
	CHECK_EQ(resets, 1);
	teardown();
}

static void test_broken_ring(void)
{
	setup();
	CHECK_EQ(request(VIRTIO_BLK_T_IN, 0, 512), VIRTIO_BLK_S_OK);
	vguest_publish(&drv, 64);
	passes(5);
	CHECK_EQ(resets, 1);
	ioloop_kick(&blk->queue[0].ioq);
	passes(5);
	CHECK_EQ(resets, 1);
	ioloop_detach(&blk->queue[0].ioq);
	passes(2);
	attach(ALL_FEATURES);
	CHECK_EQ(request(VIRTIO_BLK_T_IN, 0, 512), VIRTIO_BLK_S_OK);
	teardown();
}

/* --- creation --------------------------------------------------------------------------------- */

static void test_config(void)
{
	prepare(512);
	config.num_queues = 3;
	config.queue_size = 16;
	create(0, 63, 1000);
	CHECK_EQ(blk->queue_count, 3);
	CHECK_EQ(blk->config.num_queues, 3);
	CHECK_EQ(blk->config.seg_max, 14);
	CHECK_EQ(blk->config.capacity, 1000);
	CHECK_EQ(blk->config.topology.physical_block_exp, 3);
	CHECK_EQ(blk->config.topology.alignment_offset, 1); /* sector 64 starts a physical block */
	CHECK_EQ(blk->config.topology.min_io_size, 8);
	CHECK_EQ(blk->config.max_discard_seg, 1);
	CHECK(blk->features_offered & VIRTIO_BLK_F_FLUSH);
	CHECK(!(blk->features_offered & VIRTIO_BLK_F_RO));
	teardown();
}

static int create_fails(uint16_t queues, uint16_t size, uint64_t first, uint64_t count)
{
	struct bio_extent extent = {&disk.dev, first, count};

	config.num_queues = queues;
	config.queue_size = size;
	blk = plat_mem_alloc(sizeof(*blk), CACHE_LINE_BYTES);
	return vblk_create(blk, &config, extent, &guest.mem, "a serial that is longer than twenty");
}

static void test_create_checks(void)
{
	prepare(4096);
	CHECK_EQ(create_fails(0, 64, 0, 64), -EINVAL);
	CHECK_EQ(create_fails(VBLK_QUEUE_MAX + 1, 64, 0, 64), -EINVAL);
	CHECK_EQ(create_fails(1, 0, 0, 64), -EINVAL);
	CHECK_EQ(create_fails(1, 48, 0, 64), -EINVAL);
	CHECK_EQ(create_fails(1, 2048, 0, 64), -EINVAL);
	CHECK_EQ(create_fails(1, 64, 0, 0), -EINVAL);
	CHECK_EQ(create_fails(1, 64, 4, 64), -EINVAL); /* half a block */
	CHECK_EQ(create_fails(1, 64, 0, 63), -EINVAL);
	CHECK_EQ(create_fails(1, 64, SECTORS - 8, 16), -EINVAL);
	CHECK_EQ(create_fails(1, 64, UINT64_MAX - 7, 16), -EINVAL);
	CHECK_EQ(create_fails(1, 64, SECTORS - 8, 8), 0);
	CHECK_EQ(memcmp(blk->serial, "a serial that is longer", 20), 0);
	teardown();
}

/* --- driver and I/O core on two threads ------------------------------------------------------- */

#define THREAD_REQUESTS 4000u

static atomic_uint thread_signals;

static bool on_thread_signal(struct vblk_transport *t, unsigned queue)
{
	(void)t;
	(void)queue;
	atomic_fetch_add(&thread_signals, 1);
	return true;
}

static struct vblk_transport thread_transport = {on_thread_signal, on_needs_reset};

/* Sleeps until woken; with a deadline it is over at once. */
static void thread_wait(const atomic_uint *wake, uint64_t deadline_tsc)
{
	while (deadline_tsc == UINT64_MAX && !atomic_load(wake))
		sched_yield();
}

static void *thread_main(void *arg)
{
	(void)arg;
	ioloop_run(&loop);
	return NULL;
}

/* Waits for an interrupt after seen of them. False: none within seconds. */
static bool signal_wait(unsigned seen)
{
	time_t give_up = time(NULL) + 20;

	while (atomic_load(&thread_signals) == seen) {
		if (time(NULL) > give_up)
			return false;
		sched_yield();
	}
	return true;
}

/* Takes what is done; if nothing, asks for an interrupt, looks again, and waits for it. */
static unsigned thread_used_take(bool *lost)
{
	unsigned seen = atomic_load(&thread_signals), count = used_take();

	if (count)
		return count;
	vguest_irq_on(&drv);
	count = used_take();
	if (!count && !signal_wait(seen))
		*lost = true;
	return count;
}

/* No kick and no interrupt gets lost, whatever the policy; sleeps and polls alternate. */
static void threads(uint64_t poll_ns, uint64_t features)
{
	unsigned published = 0, taken = 0, burst = 1;
	bool lost = false;
	pthread_t thread;

	prepare(512);
	create(poll_ns, 64, SECTORS - 64);
	blk->transport = &thread_transport;
	attach(features);
	fake_wait = thread_wait;
	if (pthread_create(&thread, NULL, thread_main, NULL))
		abort();
	while (taken < THREAD_REQUESTS && !lost) {
		burst = burst * 5 % 13;
		reads_publish(burst);
		published += burst;
		if (vguest_kick_needed(&drv))
			ioloop_kick(&blk->queue[0].ioq);
		while (taken < published && !lost)
			taken += thread_used_take(&lost);
	}
	CHECK(!lost);
	CHECK_EQ(taken, published);
	ioloop_stop(&loop);
	pthread_join(thread, NULL);
	CHECK_EQ(blk->queue[0].ioq.counts.requests, published);
	CHECK_EQ(resets, 0);
	teardown();
}

static void test_threads(void)
{
	threads(0, ALL_FEATURES);
	threads(0, ALL_FEATURES & ~VIRTIO_F_EVENT_IDX);
	threads(100, ALL_FEATURES);
	threads(100, ALL_FEATURES & ~VIRTIO_F_EVENT_IDX);
	threads(IOQ_POLL_AUTO, ALL_FEATURES);
}

TESTS(T(test_read_write), T(test_indirect_read), T(test_get_id), T(test_flush),
      T(test_header_in_bytes), T(test_glued), T(test_odd_pieces), T(test_segment_across_break),
      T(test_capacity_edge), T(test_lengths), T(test_4k_blocks), T(test_read_only), T(test_discard),
      T(test_range_limits), T(test_no_discard), T(test_bad_frames), T(test_bad_chain_comes_back),
      T(test_device_errors), T(test_batch), T(test_device_full), T(test_flood), T(test_100000),
      T(test_unpolled), T(test_without_event_idx), T(test_write_through),
      T(test_write_through_full), T(test_reset_in_flight), T(test_reset_unflushed),
      T(test_attach_bad_ring), T(test_broken_ring), T(test_config), T(test_create_checks),
      T(test_threads))
