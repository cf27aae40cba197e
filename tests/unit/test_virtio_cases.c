/*
 * Every named request of fake/virtio_cases.h against ring and block device: each gets the answer
 * the device owes it, once; not a byte changes that the driver did not offer; and an ordinary
 * request is served afterwards.
 */
#include "tests/unit/test.h"

#include "tests/fake/bio_fake.h"
#include "tests/fake/platform.h"
#include "tests/fake/virtio_cases.h"
#include "virtio/blk.h"

#include <stdlib.h>
#include <string.h>

#define PIECE   (256 * KIB)
#define SECTORS 256u
#define GUARD   0xcc

static struct vguest guest;
static struct vguest_queue drv;
static struct bio_fake disk;
static struct vblk *blk;
static struct ioloop loop;
static struct vguest_io io;
static uint8_t *before[2];
static unsigned resets;

static bool on_signal(struct vblk_transport *transport, unsigned queue)
{
	(void)transport;
	(void)queue;
	return true;
}

static void on_needs_reset(struct vblk_transport *transport)
{
	(void)transport;
	resets++;
}

static struct vblk_transport transport = {on_signal, on_needs_reset};

static void setup(unsigned on, bool event_idx)
{
	struct manifest_disk config = {.num_queues = 1, .queue_size = 16};
	struct bio_extent extent = {&disk.dev, 0, SECTORS};

	fake_reset();
	fake_tsc = 1000000000;
	resets = 0;
	vguest_init(&guest, 2, PIECE);
	guest.fenced = true;
	bio_fake_init(&disk, SECTORS, on & VGUEST_ON_4K ? 4096 : 512);
	memset(disk.data, 0x5e, SECTORS * 512);
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
	vguest_queue_init(&drv, &guest, 16, event_idx, !(on & VGUEST_ON_NO_INDIRECT));
	io.hdr_gpa = vguest_alloc_fenced(&guest, 16, 16);
	io.data_gpa = vguest_alloc_fenced(&guest, VGUEST_IO_DATA_BYTES, 4096);
	io.status_gpa = vguest_alloc_fenced(&guest, 1, 1);
	io.capacity_sectors = SECTORS;
	ioloop_init(&loop, 0);
	ioloop_dev_add(&loop, &disk.dev);
	blk->queue[0].ioq.poll_ns = IOQ_POLL_AUTO;
	ioloop_queue_add(&loop, &blk->queue[0].ioq);
	blk->queue[0].setup =
	        (struct vblk_queue_setup){drv.size, drv.desc_gpa, drv.avail_gpa, drv.used_gpa};
	ioloop_attach(&blk->queue[0].ioq);
	ioloop_pass(&loop);
	for (unsigned i = 0; i < 2; i++)
		before[i] = malloc(PIECE);
}

static void teardown(void)
{
	for (unsigned i = 0; i < 2; i++)
		free(before[i]);
	bio_fake_free(&disk);
	vguest_free(&guest);
}

static bool inside(gpa_t gpa, gpa_t base_gpa, uint64_t len_bytes)
{
	return gpa >= base_gpa && gpa - base_gpa < len_bytes;
}

static bool may_change(gpa_t gpa, bool reads)
{
	return gpa == io.status_gpa || inside(gpa, drv.used_gpa, VIRTQ_USED_BYTES(drv.size)) ||
	       (reads && inside(gpa, io.data_gpa, VGUEST_IO_DATA_BYTES));
}

/* Everything but the used ring, the status, and data that a read was offered. */
static void check_unchanged(bool reads)
{
	for (gpa_t gpa = VGUEST_BASE_GPA; gpa < guest.end_gpa; gpa += PAGE_SIZE) {
		const uint8_t *now = vguest_va(&guest, gpa);
		const uint8_t *then =
		        before[(gpa - VGUEST_BASE_GPA) / PIECE] + (gpa - VGUEST_BASE_GPA) % PIECE;

		if (!memcmp(now, then, PAGE_SIZE))
			continue;
		for (unsigned n = 0; n < PAGE_SIZE; n++) {
			if (now[n] == then[n] || may_change(gpa + n, reads))
				continue;
			printf("  byte at %#llx has changed\n", (unsigned long long)(gpa + n));
			CHECK(!"only what was offered changes");
			return;
		}
	}
}

/* True: it was as the case says. */
static void answer_check(const struct vguest_case *c, int head)
{
	static const uint8_t status[] = {
	        [VGUEST_OK] = VIRTIO_BLK_S_OK,         [VGUEST_IOERR] = VIRTIO_BLK_S_IOERR,
	        [VGUEST_UNSUPP] = VIRTIO_BLK_S_UNSUPP, [VGUEST_REFUSED] = GUARD,
	        [VGUEST_NEEDS_RESET] = GUARD,
	};
	uint32_t id = UINT32_MAX, written_bytes = UINT32_MAX;
	bool reads = c->answer == VGUEST_OK &&
	             (c->type == VIRTIO_BLK_T_IN || c->type == VIRTIO_BLK_T_GET_ID);

	CHECK_EQ(*(uint8_t *)vguest_va(&guest, io.status_gpa), status[c->answer]);
	CHECK_EQ(resets, c->answer == VGUEST_NEEDS_RESET);
	CHECK_EQ(vguest_zone_damaged(&guest), 0);
	CHECK_EQ(blk->queue[0].in_flight, 0);
	check_unchanged(reads);
	if (c->answer == VGUEST_NEEDS_RESET) {
		CHECK(!vguest_used_pop(&drv, &id, &written_bytes));
		return;
	}
	CHECK(vguest_used_pop(&drv, &id, &written_bytes));
	CHECK_EQ(id, (unsigned)head);
	CHECK_EQ(written_bytes, c->answer == VGUEST_REFUSED ? 0 : 1 + (reads ? c->len_bytes : 0));
	CHECK(!vguest_used_pop(&drv, &id, &written_bytes));
}

static void case_run(const struct vguest_case *c)
{
	int head, failed_before = test_case_failed;

	*(uint8_t *)vguest_va(&guest, io.status_gpa) = GUARD;
	vguest_irq_on(&drv);
	head = vguest_case_publish(c, &drv, &io);
	CHECK(head >= 0);
	for (unsigned i = 0; i < 2; i++)
		memcpy(before[i], guest.piece[i], PIECE);
	ioloop_kick(&blk->queue[0].ioq);
	for (unsigned i = 0; i < 8; i++) {
		fake_tsc += 1000;
		ioloop_pass(&loop);
	}
	answer_check(c, head);
	if (test_case_failed != failed_before)
		printf("  case %s\n", c->name);
}

/* Each case on a machine of its own, then an ordinary request; and all in a row on one machine. */
static void cases_run(unsigned on, const char *ordinary)
{
	unsigned count = 0;

	for (unsigned i = 0; i < 2 * vguest_case_count; i++) {
		const struct vguest_case *c = &vguest_cases[i / 2];

		if (!vguest_case_fits(c, on))
			continue;
		setup(on, i % 2);
		case_run(c);
		if (c->answer != VGUEST_NEEDS_RESET)
			case_run(vguest_case_named(ordinary));
		teardown();
		count++;
	}
	CHECK(count >= 4);
	setup(on, true);
	for (unsigned i = 0; i < 10 * vguest_case_count; i++) {
		const struct vguest_case *c = &vguest_cases[i * 7 % vguest_case_count];

		if (vguest_case_fits(c, on) && c->answer != VGUEST_NEEDS_RESET)
			case_run(c);
	}
	teardown();
}

static void plain_disk(void)
{
	cases_run(VGUEST_ON_INDIRECT, "read");
}

static void without_indirect(void)
{
	cases_run(VGUEST_ON_NO_INDIRECT, "read");
}

static void read_only_disk(void)
{
	cases_run(VGUEST_ON_READ_ONLY | VGUEST_ON_INDIRECT, "read_read_only");
}

static void disk_of_4k_blocks(void)
{
	cases_run(VGUEST_ON_4K | VGUEST_ON_INDIRECT, "read_4k_block");
}

static void disk_without_discard(void)
{
	cases_run(VGUEST_ON_BARE | VGUEST_ON_INDIRECT, "read_without_discard");
}

/* A redzone that is written is noticed: else all of the above proves little. */
static void redzones_notice(void)
{
	setup(VGUEST_ON_INDIRECT, true);
	CHECK_EQ(vguest_zone_damaged(&guest), 0);
	*(uint8_t *)vguest_va(&guest, io.status_gpa + 1) = 0;
	CHECK_EQ(vguest_zone_damaged(&guest), io.status_gpa + 1);
	*(uint8_t *)vguest_va(&guest, io.status_gpa - 1) = 0;
	CHECK_EQ(vguest_zone_damaged(&guest), io.status_gpa - 1);
	teardown();
}

TESTS(T(plain_disk), T(without_indirect), T(read_only_disk), T(disk_of_4k_blocks),
      T(disk_without_discard), T(redzones_notice))
