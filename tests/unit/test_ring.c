/*
 * The device side of a split virtqueue against a driver that follows VIRTIO 1.2 and one that does
 * not.
 */
#include "tests/unit/test.h"

#include "tests/fake/platform.h"
#include "tests/fake/virtio_guest.h"
#include "virtio/ring.h"

#include <stdlib.h>
#include <string.h>

static struct vguest guest;
static struct vguest_queue drv;
static struct virtq vq;
static struct virtq_chain chain;
static gpa_t buf_gpa;

static int attach(uint16_t size, bool event_idx, bool indirect)
{
	return ring_attach(&vq, &guest.mem, size, drv.desc_gpa, drv.avail_gpa, drv.used_gpa,
	                   event_idx, indirect);
}

static void setup(uint16_t size, bool event_idx)
{
	fake_reset();
	vguest_init(&guest, 2, 4 * MIB);
	vguest_queue_init(&drv, &guest, size, event_idx, size <= 64);
	buf_gpa = vguest_alloc(&guest, 8192, 4096);
	if (attach(size, event_idx, true))
		abort();
}

static void teardown(void)
{
	vguest_free(&guest);
}

static void one_publish(void)
{
	struct vguest_buf buf = {buf_gpa, 16, false};
	int head = vguest_add(&drv, &buf, 1);

	if (head < 0)
		abort();
	vguest_publish(&drv, (uint16_t)head);
}

/* Pops, pushes and publishes one; the driver takes it back. */
static void one_serve(void)
{
	uint32_t head, written_bytes;

	CHECK_EQ(ring_pop(&vq, &chain), 1);
	ring_push(&vq, chain.head, 7);
	ring_publish(&vq);
	CHECK(vguest_used_pop(&drv, &head, &written_bytes));
	CHECK_EQ(head, chain.head);
	CHECK_EQ(written_bytes, 7);
}

/* --- attach ----------------------------------------------------------------------------------- */

static void test_attach_sizes(void)
{
	setup(64, true);
	CHECK_EQ(attach(0, true, true), -EINVAL);
	CHECK_EQ(attach(3, true, true), -EINVAL);
	CHECK_EQ(attach(2048, true, true), -EINVAL);
	CHECK_EQ(attach(0x8000, true, true), -EINVAL);
	CHECK_EQ(attach(1, true, true), 0);
	CHECK_EQ(attach(64, true, true), 0);
	teardown();
}

static void test_attach_addresses(void)
{
	gpa_t edge = VGUEST_BASE_GPA + 4 * MIB, end = VGUEST_BASE_GPA + 8 * MIB;

	setup(64, true);
	/* Misaligned. */
	CHECK_EQ(ring_attach(&vq, &guest.mem, 64, drv.desc_gpa + 8, drv.avail_gpa, drv.used_gpa, 0,
	                     0),
	         -EINVAL);
	CHECK_EQ(ring_attach(&vq, &guest.mem, 64, drv.desc_gpa, drv.avail_gpa + 1, drv.used_gpa, 0,
	                     0),
	         -EINVAL);
	CHECK_EQ(ring_attach(&vq, &guest.mem, 64, drv.desc_gpa, drv.avail_gpa, drv.used_gpa + 2, 0,
	                     0),
	         -EINVAL);
	/* Across two pieces of host memory, beyond the end, below the start, around the top. */
	CHECK_EQ(ring_attach(&vq, &guest.mem, 64, edge - 512, drv.avail_gpa, drv.used_gpa, 0, 0),
	         -EINVAL);
	CHECK_EQ(ring_attach(&vq, &guest.mem, 64, end - 512, drv.avail_gpa, drv.used_gpa, 0, 0),
	         -EINVAL);
	CHECK_EQ(ring_attach(&vq, &guest.mem, 64, drv.desc_gpa, 0, drv.used_gpa, 0, 0), -EINVAL);
	CHECK_EQ(ring_attach(&vq, &guest.mem, 64, drv.desc_gpa, drv.avail_gpa, -16ull, 0, 0),
	         -EINVAL);
	/* The last bytes of memory do hold a ring; one entry less does not: avail_event counts. */
	CHECK_EQ(ring_attach(&vq, &guest.mem, 64, end - 1024, drv.avail_gpa, drv.used_gpa, 0, 0),
	         0);
	CHECK_EQ(ring_attach(&vq, &guest.mem, 64, drv.desc_gpa, drv.avail_gpa, end - 520, 0, 0), 0);
	CHECK_EQ(ring_attach(&vq, &guest.mem, 64, drv.desc_gpa, drv.avail_gpa, end - 516, 0, 0),
	         -EINVAL);
	teardown();
}

/* --- chains ----------------------------------------------------------------------------------- */

static void test_chain_direct(void)
{
	struct vguest_buf bufs[] = {
	        {0, 16, false}, {0x123456789abcdef0, 4096, true}, {77, 1, true}};
	int head;

	setup(8, true);
	CHECK(!ring_pending(&vq));
	CHECK_EQ(ring_pop(&vq, &chain), 0);
	head = vguest_add(&drv, bufs, 3);
	vguest_publish(&drv, (uint16_t)head);
	CHECK(ring_pending(&vq));
	CHECK_EQ(ring_pop(&vq, &chain), 1);
	CHECK(!ring_pending(&vq));
	CHECK_EQ(chain.head, head);
	CHECK_EQ(chain.count, 3);
	CHECK_EQ(chain.seg[0].len_bytes, 16);
	CHECK(!chain.seg[0].device_writes);
	/* An address is the driver's word until gmem has seen it. */
	CHECK_EQ(chain.seg[1].gpa, 0x123456789abcdef0);
	CHECK_EQ(chain.seg[1].len_bytes, 4096);
	CHECK(chain.seg[1].device_writes && chain.seg[2].device_writes);
	CHECK_EQ(ring_pop(&vq, &chain), 0);
	teardown();
}

static void test_chain_indirect(void)
{
	struct vguest_buf bufs[VIRTQ_CHAIN_MAX + 1];
	int head;

	setup(8, true);
	for (unsigned i = 0; i <= VIRTQ_CHAIN_MAX; i++)
		bufs[i] = (struct vguest_buf){i, 512, i > 0};
	head = vguest_add_indirect(&drv, bufs, VIRTQ_CHAIN_MAX);
	vguest_publish(&drv, (uint16_t)head);
	CHECK_EQ(ring_pop(&vq, &chain), 1);
	CHECK_EQ(chain.count, VIRTQ_CHAIN_MAX);
	CHECK_EQ(chain.seg[VIRTQ_CHAIN_MAX - 1].gpa, VIRTQ_CHAIN_MAX - 1);
	/* One more than fits. */
	head = vguest_add_indirect(&drv, bufs, VIRTQ_CHAIN_MAX + 1);
	vguest_publish(&drv, (uint16_t)head);
	CHECK_EQ(ring_pop(&vq, &chain), -EINVAL);
	CHECK_EQ(chain.head, head);
	teardown();
}

/* 2.7.5.3.2: direct descriptors may lead to an indirect one, whose write flag means nothing. */
static void test_chain_direct_then_indirect(void)
{
	setup(8, true);
	vguest_desc_set(&drv, 0, 1, 16, VIRTQ_DESC_F_NEXT, 5);
	vguest_desc_set(&drv, 5, drv.table_gpa, 32, VIRTQ_DESC_F_INDIRECT | VIRTQ_DESC_F_WRITE, 0);
	vguest_table(&drv, 0)[0] = (struct virtq_desc){2, 32, VIRTQ_DESC_F_NEXT, 1};
	vguest_table(&drv, 0)[1] = (struct virtq_desc){3, 64, VIRTQ_DESC_F_WRITE, 0};
	vguest_publish(&drv, 0);
	CHECK_EQ(ring_pop(&vq, &chain), 1);
	CHECK_EQ(chain.count, 3);
	CHECK_EQ(chain.seg[1].gpa, 2);
	CHECK(!chain.seg[1].device_writes);
	CHECK(chain.seg[2].device_writes);
	teardown();
}

/* A table need be neither aligned nor in one piece of host memory. */
static void test_indirect_anywhere(void)
{
	gpa_t at = VGUEST_BASE_GPA + 4 * MIB - 21;
	struct virtq_desc table[3] = {{1, 16, VIRTQ_DESC_F_NEXT, 1},
	                              {2, 512, VIRTQ_DESC_F_NEXT | VIRTQ_DESC_F_WRITE, 2},
	                              {3, 1, VIRTQ_DESC_F_WRITE, 0}};

	setup(8, true);
	CHECK_EQ(gmem_write(&guest.mem, at, table, sizeof(table)), 0);
	vguest_desc_set(&drv, 0, at, sizeof(table), VIRTQ_DESC_F_INDIRECT, 0);
	vguest_publish(&drv, 0);
	CHECK_EQ(ring_pop(&vq, &chain), 1);
	CHECK_EQ(chain.count, 3);
	CHECK_EQ(chain.seg[2].gpa, 3);
	at = buf_gpa + 3;
	CHECK_EQ(gmem_write(&guest.mem, at, table, sizeof(table)), 0);
	vguest_desc_set(&drv, 0, at, sizeof(table), VIRTQ_DESC_F_INDIRECT, 0);
	vguest_publish(&drv, 0);
	CHECK_EQ(ring_pop(&vq, &chain), 1);
	CHECK_EQ(chain.count, 3);
	/* Outside memory. */
	vguest_desc_set(&drv, 0, -32ull, 32, VIRTQ_DESC_F_INDIRECT, 0);
	vguest_publish(&drv, 0);
	CHECK_EQ(ring_pop(&vq, &chain), -EINVAL);
	vguest_desc_set(&drv, 0, VGUEST_BASE_GPA + 8 * MIB - 16, 32, VIRTQ_DESC_F_INDIRECT, 0);
	*(struct virtq_desc *)vguest_va(&guest, VGUEST_BASE_GPA + 8 * MIB - 16) =
	        (struct virtq_desc){1, 16, VIRTQ_DESC_F_NEXT, 1};
	vguest_publish(&drv, 0);
	CHECK_EQ(ring_pop(&vq, &chain), -EINVAL);
	teardown();
}

/* Zero-length pieces are no pieces, and cannot make a chain endless. */
static void test_zero_lengths(void)
{
	setup(8, true);
	vguest_desc_set(&drv, 0, 1, 0, VIRTQ_DESC_F_NEXT, 1);
	vguest_desc_set(&drv, 1, 2, 5, VIRTQ_DESC_F_NEXT | VIRTQ_DESC_F_WRITE, 2);
	vguest_desc_set(&drv, 2, 3, 0, 0, 0);
	vguest_publish(&drv, 0);
	CHECK_EQ(ring_pop(&vq, &chain), 1);
	CHECK_EQ(chain.count, 1);
	CHECK_EQ(chain.seg[0].gpa, 2);
	vguest_desc_set(&drv, 0, 1, 0, VIRTQ_DESC_F_NEXT, 0);
	vguest_publish(&drv, 0);
	CHECK_EQ(ring_pop(&vq, &chain), -EINVAL);
	teardown();
}

/* --- violations ------------------------------------------------------------------------------- */

/* Descriptor 0 of each of these must be refused, and the ring must go on afterwards. */
static void refused(const char *why)
{
	vguest_publish(&drv, 0);
	if (ring_pop(&vq, &chain) != -EINVAL || chain.head != 0 || vq.broken) {
		printf("  not refused: %s\n", why);
		test_case_failed = 1;
	}
	ring_push(&vq, chain.head, 0);
	ring_publish(&vq);
}

static void test_bad_chains(void)
{
	struct virtq_desc *table;

	setup(8, true);
	table = vguest_table(&drv, 0);
	vguest_desc_set(&drv, 0, 1, 16, VIRTQ_DESC_F_NEXT, 0);
	refused("a descriptor that follows itself");
	vguest_desc_set(&drv, 0, 1, 16, VIRTQ_DESC_F_NEXT, 1);
	vguest_desc_set(&drv, 1, 1, 16, VIRTQ_DESC_F_NEXT, 0);
	refused("a loop of two");
	vguest_desc_set(&drv, 0, 1, 16, VIRTQ_DESC_F_NEXT, 8);
	refused("next equals the size");
	vguest_desc_set(&drv, 0, 1, 16, VIRTQ_DESC_F_NEXT, 0xffff);
	refused("next far past the size");
	vguest_desc_set(&drv, 0, 1, 16, VIRTQ_DESC_F_NEXT | VIRTQ_DESC_F_WRITE, 1);
	vguest_desc_set(&drv, 1, 1, 16, 0, 0);
	refused("readable after writable");
	vguest_desc_set(&drv, 0, 1, 0xffffffff, VIRTQ_DESC_F_NEXT, 1);
	vguest_desc_set(&drv, 1, 1, 1, VIRTQ_DESC_F_WRITE, 0);
	refused("more than 4 GiB in all");

	vguest_desc_set(&drv, 0, drv.table_gpa, 0, VIRTQ_DESC_F_INDIRECT, 0);
	refused("an empty table");
	vguest_desc_set(&drv, 0, drv.table_gpa, 24, VIRTQ_DESC_F_INDIRECT, 0);
	refused("a table of one and a half");
	table[0] = (struct virtq_desc){1, 16, 0, 0};
	vguest_desc_set(&drv, 0, drv.table_gpa, 16, VIRTQ_DESC_F_INDIRECT | VIRTQ_DESC_F_NEXT, 1);
	refused("indirect and next");
	vguest_desc_set(&drv, 0, drv.table_gpa, 32, VIRTQ_DESC_F_INDIRECT, 0);
	table[0] = (struct virtq_desc){drv.table_gpa, 16, VIRTQ_DESC_F_INDIRECT, 0};
	refused("indirect in indirect");
	table[0] = (struct virtq_desc){1, 16, VIRTQ_DESC_F_NEXT, 2};
	refused("next past the table");
	table[0] = (struct virtq_desc){1, 16, VIRTQ_DESC_F_NEXT, 1};
	table[1] = (struct virtq_desc){1, 16, VIRTQ_DESC_F_NEXT, 0};
	refused("a loop in a table");
	CHECK_EQ(vguest_used_idx(&drv), 12);

	vguest_desc_set(&drv, 0, drv.table_gpa, 16, VIRTQ_DESC_F_INDIRECT, 0);
	table[0] = (struct virtq_desc){1, 16, 0, 0};
	vguest_publish(&drv, 0);
	CHECK_EQ(ring_pop(&vq, &chain), 1);
	/* Not negotiated. */
	CHECK_EQ(attach(8, true, false), 0);
	drv.avail_idx = 0;
	refused("indirect without the feature");
	teardown();
}

/* Every field of every descriptor may be anything at all. */
static void test_random_descriptors(void)
{
	uint64_t x = 88172645463325252ull;
	unsigned good = 0, bad = 0;

	setup(16, true);
	for (unsigned round = 0; round < 20000; round++) {
		for (uint16_t i = 0; i < 16; i++) {
			x ^= x << 13, x ^= x >> 7, x ^= x << 17;
			vguest_desc_set(&drv, i, x & 1 ? drv.table_gpa : x,
			                (uint32_t)(x >> 20) & 0xff0, (x >> 40) & 7,
			                (uint16_t)(x >> 48) & 0x1f);
			vguest_table(&drv, 0)[i] =
			        (struct virtq_desc){x >> 8, (uint32_t)(x >> 16), (x >> 32) & 7,
			                            (uint16_t)(x >> 44) & 0x1f};
		}
		vguest_publish(&drv, (uint16_t)(round & 15));
		switch (ring_pop(&vq, &chain)) {
		case 1:
			good++;
			CHECK(chain.count <= VIRTQ_CHAIN_MAX);
			break;
		case -EINVAL: bad++; break;
		default: CHECK(false);
		}
		CHECK_EQ(chain.head, round & 15);
	}
	CHECK(good > 1000);
	CHECK(bad > 1000);
	teardown();
}

static void test_head_out_of_range(void)
{
	setup(8, true);
	vguest_publish(&drv, 8);
	CHECK_EQ(ring_pop(&vq, &chain), -EIO);
	CHECK(vq.broken);
	CHECK(!ring_pending(&vq));
	CHECK_EQ(ring_pop(&vq, &chain), -EIO);
	teardown();
}

static void test_avail_jump(void)
{
	setup(8, true);
	vguest_avail_idx_set(&drv, 8); /* full is fine */
	CHECK(ring_pending(&vq));
	CHECK_EQ(ring_pop(&vq, &chain), 1);
	for (unsigned i = 1; i < 8; i++)
		CHECK_EQ(ring_pop(&vq, &chain), 1);
	CHECK_EQ(ring_pop(&vq, &chain), 0);
	vguest_avail_idx_set(&drv, 8 + 9);
	CHECK_EQ(ring_pop(&vq, &chain), -EIO);
	CHECK(!ring_pending(&vq));
	/* Backwards is a jump as well. */
	CHECK_EQ(attach(8, true, true), 0);
	vguest_avail_idx_set(&drv, 0xffff);
	CHECK_EQ(ring_pop(&vq, &chain), -EIO);
	/* A broken ring may still be armed and published without harm. */
	teardown();
}

/* What the driver changes after the pop does not reach the copy. */
static void test_copied_once(void)
{
	struct vguest_buf bufs[] = {{1, 16, false}, {2, 512, true}};
	int head;

	setup(8, true);
	head = vguest_add(&drv, bufs, 2);
	vguest_publish(&drv, (uint16_t)head);
	CHECK_EQ(ring_pop(&vq, &chain), 1);
	memset(vguest_va(&guest, drv.desc_gpa), 0xff, 128);
	CHECK_EQ(chain.seg[1].len_bytes, 512);
	CHECK_EQ(chain.seg[1].gpa, 2);
	teardown();
}

/* --- notifications: driver to device ---------------------------------------------------------- */

static void test_arm_event_idx(void)
{
	setup(8, true);
	ring_arm(&vq);
	one_publish();
	CHECK(vguest_kick_needed(&drv));
	one_publish();
	CHECK(!vguest_kick_needed(&drv)); /* once is enough */
	one_serve();
	one_serve();
	one_publish();
	CHECK(!vguest_kick_needed(&drv)); /* not armed again yet */
	one_serve();
	ring_arm(&vq);
	one_publish();
	CHECK(vguest_kick_needed(&drv));
	one_serve();
	ring_disarm(&vq);
	one_publish();
	CHECK(!vguest_kick_needed(&drv));
	CHECK_EQ(vguest_used_flags(&drv), 0); /* 2.7.10: the flag is not used with EVENT_IDX */
	teardown();
}

/* Notifications go off while the driver stands between publishing and asking: no stray kick. */
static void test_disarm_races_publish(void)
{
	setup(8, true);
	ring_arm(&vq);
	one_publish();
	one_serve();
	ring_disarm(&vq);
	CHECK(!vguest_kick_needed(&drv));
	teardown();
}

static void test_arm_flags(void)
{
	setup(8, false);
	ring_arm(&vq);
	CHECK_EQ(vguest_used_flags(&drv), 0);
	one_publish();
	CHECK(vguest_kick_needed(&drv));
	one_serve();
	ring_disarm(&vq);
	CHECK_EQ(vguest_used_flags(&drv), VIRTQ_USED_F_NO_NOTIFY);
	one_publish();
	CHECK(!vguest_kick_needed(&drv));
	ring_arm(&vq);
	CHECK(ring_pending(&vq)); /* the last look finds it */
	teardown();
}

/* 70,000 requests without one kick, then armed: the next one kicks. Any batch the ring can hold. */
static void quiet_then_armed(uint16_t size, unsigned batch, bool event_idx)
{
	unsigned done = 0;

	setup(size, event_idx);
	ring_disarm(&vq);
	while (done < 70000) {
		for (unsigned i = 0; i < batch; i++)
			one_publish();
		CHECK(!vguest_kick_needed(&drv));
		for (unsigned i = 0; i < batch; i++)
			one_serve();
		done += batch;
		if (test_case_failed)
			break;
	}
	ring_arm(&vq);
	CHECK(!ring_pending(&vq));
	one_publish();
	CHECK(vguest_kick_needed(&drv));
	teardown();
}

static void test_70000_quiet(void)
{
	quiet_then_armed(256, 1, true);
	quiet_then_armed(256, 256, true);
	quiet_then_armed(1024, 1000, true);
	quiet_then_armed(1, 1, true);
	quiet_then_armed(64, 33, false);
}

/* Armed at each index around the wrap, a request kicks exactly once. */
static void test_arm_around_wrap(void)
{
	setup(4, true);
	ring_disarm(&vq);
	while (vq.last_avail != 65530) {
		one_publish();
		CHECK(!vguest_kick_needed(&drv));
		one_serve();
	}
	for (unsigned i = 0; i < 12; i++) {
		ring_arm(&vq);
		one_publish();
		CHECK(vguest_kick_needed(&drv));
		one_serve();
	}
	CHECK_EQ(vq.last_avail, 6);
	teardown();
}

/* --- notifications: device to driver ---------------------------------------------------------- */

static void test_signal_event_idx(void)
{
	setup(8, true);
	CHECK(!ring_should_signal(&vq)); /* nothing published */
	vguest_irq_on(&drv);
	one_publish();
	one_serve();
	CHECK(ring_should_signal(&vq));
	CHECK(!ring_should_signal(&vq)); /* said once */
	one_publish();
	one_serve(); /* the driver has not asked again: used_event is behind */
	CHECK(!ring_should_signal(&vq));
	vguest_irq_on(&drv);
	for (unsigned i = 0; i < 3; i++)
		one_publish();
	CHECK_EQ(ring_pop(&vq, &chain), 1);
	ring_push(&vq, chain.head, 0);
	CHECK_EQ(ring_pop(&vq, &chain), 1);
	ring_push(&vq, chain.head, 0);
	CHECK_EQ(vguest_used_idx(&drv), 2); /* pushed is not published */
	ring_publish(&vq);
	CHECK_EQ(vguest_used_idx(&drv), 4);
	CHECK(ring_should_signal(&vq)); /* one for two */
	CHECK(!ring_should_signal(&vq));
	teardown();
}

/* Over two turns of the index space: interrupts on, exactly one each; off, none. */
static void test_signal_wrap(void)
{
	unsigned wanted = 0, sent = 0;

	setup(2, true);
	ring_disarm(&vq);
	for (unsigned i = 0; i < 140000; i++) {
		bool want = (i / 7) % 3 == 0;

		if (want)
			vguest_irq_on(&drv);
		else
			vguest_irq_off(&drv);
		wanted += want;
		one_publish();
		one_serve();
		sent += ring_should_signal(&vq);
	}
	CHECK_EQ(sent, wanted);
	CHECK(wanted > 40000);
	teardown();
}

static void test_signal_flags(void)
{
	setup(8, false);
	vguest_irq_on(&drv);
	one_publish();
	one_serve();
	CHECK(ring_should_signal(&vq));
	vguest_irq_off(&drv);
	one_publish();
	one_serve();
	CHECK(!ring_should_signal(&vq));
	vguest_irq_on(&drv);
	CHECK(!ring_should_signal(&vq)); /* nothing new */
	teardown();
}

TESTS(T(test_attach_sizes), T(test_attach_addresses), T(test_chain_direct), T(test_chain_indirect),
      T(test_chain_direct_then_indirect), T(test_indirect_anywhere), T(test_zero_lengths),
      T(test_bad_chains), T(test_random_descriptors), T(test_head_out_of_range), T(test_avail_jump),
      T(test_copied_once), T(test_arm_event_idx), T(test_disarm_races_publish), T(test_arm_flags),
      T(test_70000_quiet), T(test_arm_around_wrap), T(test_signal_event_idx), T(test_signal_wrap),
      T(test_signal_flags))
