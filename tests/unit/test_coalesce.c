/*
 * One interrupt for several completions: the policy alone under a virtual clock, its question to the
 * ring against a device that asks each time, and the whole path from a driver's ring to a disk.
 */
#include "tests/unit/test.h"

#include "tests/fake/bio_fake.h"
#include "tests/fake/platform.h"
#include "tests/fake/virtio_guest.h"
#include "virtio/blk.h"
#include "vmm/coalesce.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define HOLD_TSC (COALESCE_HOLD_US * 1000ull) /* the fake clock runs at 1 GHz */
#define PASS_TSC 1000u

static uint64_t seed = 1;

static uint32_t below(uint32_t n)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((seed >> 33) % n);
}

/* --- the policy alone --------------------------------------------------------------------------- */

/* A high rate, so that only the number in flight decides. */
static void rate_teach(struct coalesce *c, uint64_t *now_tsc, uint64_t interval_tsc)
{
	for (unsigned i = 0; i < 200; i++) {
		*now_tsc += interval_tsc;
		coalesce_hold(c, 1, 1, true, *now_tsc);
	}
}

static void test_off(void)
{
	struct coalesce c;

	coalesce_init(&c, 0);
	for (unsigned i = 0; i < 1000; i++)
		CHECK(!coalesce_hold(&c, 1, 64, true, i));
}

static void test_few_in_flight(void)
{
	for (uint32_t in_flight = 0; in_flight < COALESCE_FLIGHT_MIN; in_flight++) {
		struct coalesce c;
		uint64_t now_tsc = 1000000;

		coalesce_init(&c, HOLD_TSC);
		rate_teach(&c, &now_tsc, 100);
		for (unsigned i = 0; i < 100; i++)
			CHECK(!coalesce_hold(&c, 1, in_flight, true, now_tsc += 100));
	}
}

/* What is held goes out when in flight sinks, when the caller cannot wait, and when it is time. */
static void test_reasons(void)
{
	struct coalesce c;
	uint64_t now_tsc = UINT64_MAX - 25000; /* the clock wraps on the way */

	coalesce_init(&c, HOLD_TSC);
	rate_teach(&c, &now_tsc, 100);
	CHECK(coalesce_hold(&c, 1, 64, true, now_tsc += 100));
	CHECK_EQ(c.held, 1);
	CHECK(!coalesce_hold(&c, 1, 3, true, now_tsc += 100));
	CHECK_EQ(c.held, 0);
	CHECK(coalesce_hold(&c, 1, 64, true, now_tsc += 100));
	CHECK(!coalesce_hold(&c, 0, 64, false, now_tsc += 100));
	CHECK(!coalesce_hold(&c, 0, 64, true, now_tsc)); /* nothing is held */
	CHECK(coalesce_hold(&c, 1, 64, true, now_tsc += 100));
	/* Sixteen intervals of 100, near enough. */
	CHECK(c.hold_until_tsc - now_tsc >= 1400 && c.hold_until_tsc - now_tsc <= 1800);
	CHECK(coalesce_hold(&c, 0, 64, true, c.hold_until_tsc - 1));
	CHECK(!coalesce_hold(&c, 0, 64, true, c.hold_until_tsc));
}

/* Completions for each interrupt, with depth requests always in flight. */
static unsigned batch_of(uint32_t depth, uint64_t interval_tsc)
{
	struct coalesce c;
	uint64_t now_tsc = 1000000;
	unsigned sent = 0;

	coalesce_init(&c, HOLD_TSC);
	rate_teach(&c, &now_tsc, interval_tsc);
	for (unsigned i = 0; i < 4800; i++)
		sent += !coalesce_hold(&c, 1, depth, true, now_tsc += interval_tsc);
	return 4800 / sent;
}

static void test_batch_grows(void)
{
	CHECK_EQ(batch_of(1, 100), 1);
	CHECK_EQ(batch_of(3, 100), 1);
	CHECK_EQ(batch_of(7, 100), 1);
	CHECK_EQ(batch_of(8, 100), 2);
	CHECK_EQ(batch_of(32, 100), 8);
	CHECK_EQ(batch_of(64, 1000), 16);
	CHECK_EQ(batch_of(1024, 100), COALESCE_BATCH_MAX);
	/* The bound on time cuts in: 50 us hold no more than a few of 10 us. */
	CHECK(batch_of(1024, 10000) <= 6);
	CHECK(batch_of(1024, 10000) >= 4);
	/* Two would not come within 50 us: nothing waits. */
	CHECK_EQ(batch_of(1024, 30000), 1);
	CHECK_EQ(batch_of(1024, 1000000000), 1);
}

/* The mean follows the rate, one at a time or many at once, and never runs away. */
static void test_interval(void)
{
	for (uint32_t n = 1; n <= 4096; n = n * 3 / 2 + 1) {
		struct coalesce c;
		uint64_t now_tsc = 77;

		coalesce_init(&c, HOLD_TSC);
		for (unsigned i = 0; i < 400; i++)
			coalesce_hold(&c, n, 64, true, now_tsc += n * 40);
		CHECK(c.interval_tsc >= 30 && c.interval_tsc <= 50);
		for (unsigned i = 0; i < 10000; i++) {
			coalesce_hold(&c, 1 + below(4096), 64, true,
			              now_tsc += below(1u << below(31)));
			if (c.interval_tsc > HOLD_TSC * 8)
				CHECK_EQ(c.interval_tsc, 0);
		}
	}
}

/*
 * Whatever comes: nothing waits longer than the bound as long as the caller looks again in time,
 * nothing waits with few in flight, and at most batch - 1 wait.
 */
static void test_bound(void)
{
	struct coalesce c;
	uint64_t now_tsc = 123456, first_tsc = 0, held_times = 0;
	uint32_t waiting = 0;

	coalesce_init(&c, HOLD_TSC);
	for (unsigned i = 0; i < 2000000 && !test_case_failed; i++) {
		uint32_t completed = below(4) ? below(1 + below(20)) : 0,
		         in_flight = below(1 + below(200));
		uint64_t step_tsc = below(1u << below(i / 100000 % 18 + 1));
		bool may_hold = below(50) != 0;

		/* The caller comes no later than it was told. */
		if (waiting && (int64_t)(now_tsc + step_tsc - c.hold_until_tsc) > 0)
			step_tsc = c.hold_until_tsc - now_tsc;
		now_tsc += step_tsc;
		if (!waiting)
			first_tsc = now_tsc;
		waiting += completed;
		if (!coalesce_hold(&c, completed, in_flight, may_hold, now_tsc)) {
			CHECK_EQ(c.held, 0);
			waiting = 0;
			continue;
		}
		held_times++;
		CHECK(waiting > 0);
		CHECK_EQ(c.held, waiting);
		CHECK(may_hold && in_flight >= 2 * COALESCE_FLIGHT_MIN);
		CHECK(waiting < COALESCE_BATCH_MAX && waiting < in_flight / 4);
		CHECK(now_tsc - first_tsc < HOLD_TSC);
		CHECK(c.hold_until_tsc - first_tsc <= HOLD_TSC);
	}
	CHECK(held_times > 10000);
}

/* --- the question to the ring ------------------------------------------------------------------- */

/*
 * Two devices push the same; one asks after each batch, the other after several. While the driver
 * does nothing, the one question must have the answer that any of the many had.
 */
static void ring_compare(bool event_idx)
{
	struct vguest guest;
	struct vguest_queue drv;
	struct virtq each, some;
	unsigned sent_each = 0, sent_some = 0;

	fake_reset();
	vguest_init(&guest, 1, 8 * MIB);
	vguest_queue_init(&drv, &guest, 256, event_idx, false);
	CHECK_EQ(ring_attach(&each, &guest.mem, 256, drv.desc_gpa, drv.avail_gpa, drv.used_gpa,
	                     event_idx, false),
	         0);
	some = each;
	for (unsigned round = 0; round < 200000 && !test_case_failed; round++) {
		unsigned batches = 1 + below(8);
		bool any = false, one;

		/* The driver has seen some or all, and wants an interrupt now, or not. */
		drv.used_idx = (uint16_t)(each.used_published - below(3) * below(40));
		if (below(3))
			vguest_irq_on(&drv);
		else
			vguest_irq_off(&drv);
		if (event_idx && !below(10)) /* a driver may write anything */
			((uint16_t *)vguest_va(&guest, drv.avail_gpa))[2 + 256] =
			        (uint16_t)below(65536);
		while (batches-- > 0) {
			for (unsigned n = 1 + below(12); n > 0; n--) {
				ring_push(&each, 0, 0);
				ring_push(&some, 0, 0);
			}
			ring_publish(&each);
			ring_publish(&some);
			any |= ring_should_signal(&each);
		}
		one = ring_should_signal(&some);
		CHECK_EQ(one, any);
		sent_each += any;
		sent_some += one;
	}
	CHECK(sent_some > 1000 && sent_some < 199000);
	CHECK_EQ(sent_some, sent_each);
	vguest_free(&guest);
}

static void test_event_idx(void)
{
	ring_compare(true);
	ring_compare(false);
}

/* --- the whole path ----------------------------------------------------------------------------- */

static struct vguest guest;
static struct vguest_queue drv;
static struct bio_fake disk;
static struct bio_ops disk_ops;
static const struct bio_ops *disk_ops_real;
static unsigned disk_budget; /* completions of one poll; UINT32_MAX: a random few, or none */
static struct vblk *blk;
static struct ioloop loop;
static gpa_t data_gpa;
static atomic_uint signals;

static struct ioq *the_ioq(void)
{
	return &blk->queue[0].ioq;
}

static bool on_signal(struct vblk_transport *transport, unsigned queue)
{
	(void)transport;
	(void)queue;
	atomic_fetch_add(&signals, 1);
	return true;
}

static void on_needs_reset(struct vblk_transport *transport)
{
	(void)transport;
	CHECK(false);
}

static struct vblk_transport transport = {on_signal, on_needs_reset};

static unsigned disk_poll(struct bio_dev *dev, unsigned budget)
{
	unsigned most = disk_budget == UINT32_MAX ? below(4) : disk_budget;

	return disk_ops_real->poll(dev, MIN(budget, most));
}

static void passes(unsigned count)
{
	while (count-- > 0) {
		fake_tsc += PASS_TSC;
		ioloop_pass(&loop);
	}
}

static void ring_give(bool event_idx)
{
	vguest_queue_init(&drv, &guest, 256, event_idx, true);
	blk->queue[0].setup =
	        (struct vblk_queue_setup){drv.size, drv.desc_gpa, drv.avail_gpa, drv.used_gpa};
	ioloop_attach(the_ioq());
	passes(1);
}

static void setup(uint64_t poll_ns, bool event_idx, bool coalesce)
{
	struct manifest_disk config = {.num_queues = 1, .queue_size = 256, .coalesce = coalesce};
	struct bio_extent extent = {&disk.dev, 0, 4096};

	fake_reset();
	fake_tsc = 1000000000;
	atomic_store(&signals, 0);
	vguest_init(&guest, 1, 16 * MIB);
	bio_fake_init(&disk, 4096, 512);
	disk_ops_real = disk.dev.ops;
	disk_ops = *disk_ops_real;
	disk_ops.poll = disk_poll;
	disk.dev.ops = &disk_ops;
	disk_budget = 1;
	data_gpa = vguest_alloc(&guest, MIB, 4096);
	blk = plat_mem_alloc(sizeof(*blk), CACHE_LINE_BYTES);
	if (vblk_create(blk, &config, extent, &guest.mem, "coalesce"))
		abort();
	blk->transport = &transport;
	blk->features = blk->features_offered & (event_idx ? ~0ull : ~VIRTIO_F_EVENT_IDX);
	ioloop_init(&loop, 0);
	ioloop_dev_add(&loop, &disk.dev);
	the_ioq()->poll_ns = poll_ns;
	if (ioloop_queue_add(&loop, the_ioq()))
		abort();
	ring_give(event_idx);
}

static void teardown(void)
{
	bio_fake_free(&disk);
	vguest_free(&guest);
}

static void reads_publish(unsigned count)
{
	while (count-- > 0) {
		gpa_t hdr_gpa = data_gpa + drv.avail_idx % 256 * 4096ull;
		struct vguest_buf bufs[] = {{hdr_gpa, 16, false},
		                            {hdr_gpa + 1024, 512, true},
		                            {hdr_gpa + 2048, 1, true}};
		int head;

		*(struct virtio_blk_hdr *)vguest_va(&guest, hdr_gpa) =
		        (struct virtio_blk_hdr){VIRTIO_BLK_T_IN, 0, drv.avail_idx % 4096u};
		head = vguest_add_indirect(&drv, bufs, 3);
		if (head < 0)
			abort();
		vguest_publish(&drv, (uint16_t)head);
	}
	if (vguest_kick_needed(&drv))
		ioloop_kick(the_ioq());
}

static unsigned used_take(void)
{
	uint32_t head, len_bytes;
	unsigned count = 0;

	while (vguest_used_pop(&drv, &head, &len_bytes))
		count++;
	return count;
}

/* What an interrupt handler does: takes all, asks for the next interrupt, looks once more. */
static unsigned handler(void)
{
	unsigned all = 0, count;

	do {
		count = used_take();
		all += count;
		vguest_irq_on(&drv);
	} while (count);
	return all;
}

/*
 * A driver that does nothing until it is interrupted keeps depth requests in flight; then it takes
 * busy passes to react. Checks how old the oldest unseen completion gets; returns interrupts.
 */
static unsigned closed_loop(unsigned depth, unsigned pass_count, unsigned busy_max)
{
	uint16_t seen = vguest_used_idx(&drv);
	unsigned told = atomic_load(&signals), begin = told, busy = 0;
	uint64_t oldest_tsc = 0;
	bool asleep = true;

	reads_publish(depth);
	while (pass_count-- > 0 && !test_case_failed) {
		passes(1);
		if (asleep && atomic_load(&signals) == told && vguest_used_idx(&drv) != seen) {
			if (!oldest_tsc)
				oldest_tsc = loop.now_tsc;
			/* Held, then; and of those in flight enough are left. */
			CHECK(blk->queue[0].in_flight >= COALESCE_FLIGHT_MIN);
			CHECK(the_ioq()->deferred);
			CHECK(loop.now_tsc - oldest_tsc < HOLD_TSC);
		}
		if (asleep && atomic_load(&signals) != told) {
			asleep = false;
			busy = below(busy_max + 1);
		}
		if (!asleep && busy-- == 0) {
			told = atomic_load(&signals);
			reads_publish(handler());
			seen = vguest_used_idx(&drv);
			oldest_tsc = 0;
			asleep = true;
		}
	}
	return atomic_load(&signals) - begin;
}

/* All that was published is answered, and each batch was counted in one way. */
static void books_check(void)
{
	const struct ioq_counts *c = &the_ioq()->counts;

	for (unsigned i = 0; i < 1000 && vguest_used_idx(&drv) != drv.avail_idx; i++)
		passes(1);
	CHECK_EQ(vguest_used_idx(&drv), drv.avail_idx);
	CHECK(!the_ioq()->deferred);
	CHECK(!loop.deferred_list);
	CHECK_EQ(blk->queue[0].in_flight, 0);
	CHECK_EQ(c->interrupts, atomic_load(&signals));
	CHECK(c->interrupts + c->interrupts_suppressed + c->interrupts_deferred >=
	      c->requests / MAX(disk_budget, 1u));
}

static unsigned interrupts_of(unsigned depth, bool coalesce, bool event_idx)
{
	unsigned sent;

	setup(IOQ_POLL_ALWAYS, event_idx, coalesce);
	sent = closed_loop(depth, 20000, 0);
	CHECK_EQ(the_ioq()->counts.interrupts_deferred != 0, coalesce && depth > 8);
	books_check();
	teardown();
	return sent;
}

static void test_interrupts_per_request(void)
{
	for (unsigned event_idx = 0; event_idx < 2; event_idx++) {
		unsigned off = interrupts_of(64, false, event_idx);

		/* One completion a pass: each is told by itself, or with a dozen others. */
		CHECK(off > 19900);
		CHECK(interrupts_of(64, true, event_idx) * 12 < off);
		for (unsigned depth = 1; depth <= 8; depth++)
			CHECK(interrupts_of(depth, true, event_idx) > 19900);
	}
}

static void test_drivers(void)
{
	for (unsigned i = 0; i < 40; i++) {
		setup(i & 1 ? IOQ_POLL_ALWAYS : IOQ_POLL_AUTO, i & 2, true);
		disk_budget = i % 5 ? i % 5 : UINT32_MAX;
		closed_loop(1 + below(200), 3000, below(200));
		disk_budget = 100;
		books_check();
		teardown();
	}
}

/* --- whatever ends a hold ----------------------------------------------------------------------- */

/* A fast disk with 100 in flight, and the interrupt for one completion held back just now. */
static void held_setup(uint64_t poll_ns)
{
	setup(poll_ns, true, true);
	closed_loop(100, 500, 0);
	for (unsigned i = 0; i < 100 && blk->queue[0].coalesce.held != 1; i++) {
		reads_publish(handler());
		passes(1);
	}
	CHECK(the_ioq()->deferred);
	CHECK_EQ(blk->queue[0].coalesce.held, 1);
	CHECK_EQ(loop.deferred_list == the_ioq(), true);
}

static void test_disk_goes_quiet(void)
{
	unsigned before;
	uint64_t begin_tsc;

	held_setup(IOQ_POLL_ALWAYS);
	before = atomic_load(&signals);
	begin_tsc = fake_tsc;
	disk.hold = 1;
	while (atomic_load(&signals) == before && fake_tsc - begin_tsc < 10 * HOLD_TSC)
		passes(1);
	CHECK_EQ(atomic_load(&signals), before + 1);
	CHECK(fake_tsc - begin_tsc <= HOLD_TSC);
	CHECK(!loop.deferred_list);
	passes(100);
	CHECK_EQ(atomic_load(&signals), before + 1);
	disk.hold = 0;
	disk_budget = 100;
	passes(2);
	books_check();
	teardown();
}

/* The rest in one poll: nothing is left in flight, so the same pass tells it. */
static void test_last_one(void)
{
	unsigned before;

	held_setup(IOQ_POLL_ALWAYS);
	before = atomic_load(&signals);
	disk_budget = 200;
	passes(1);
	CHECK_EQ(atomic_load(&signals), before + 1);
	books_check();
	teardown();
}

static void test_poll_switch(void)
{
	unsigned before;

	held_setup(IOQ_POLL_ALWAYS);
	before = atomic_load(&signals);
	disk.hold = 1;
	ioloop_poll_set(the_ioq(), 0);
	passes(1);
	CHECK_EQ(the_ioq()->state, IOQ_ARMED);
	CHECK_EQ(atomic_load(&signals), before + 1);
	CHECK(!loop.deferred_list);
	/* Not polled: it may sleep at any time, and nothing waits. */
	disk.hold = 0;
	for (unsigned i = 0; i < 50; i++) {
		handler();
		before = atomic_load(&signals);
		passes(1);
		CHECK_EQ(atomic_load(&signals), before + 1);
	}
	teardown();
}

/* Polled for less long than the hold would last. */
static void test_demotion(void)
{
	unsigned before;

	held_setup(3000);
	before = atomic_load(&signals);
	disk.hold = 1;
	for (unsigned i = 0; i < 10 && the_ioq()->state == IOQ_HOT; i++) {
		CHECK_EQ(atomic_load(&signals), before);
		passes(1);
	}
	CHECK_EQ(the_ioq()->state, IOQ_COLD);
	CHECK_EQ(atomic_load(&signals), before + 1);
	CHECK(!loop.deferred_list);
	teardown();
}

/* The driver resets: it hears no more of it, and its next ring begins afresh. */
static void test_detach(void)
{
	unsigned before;

	held_setup(IOQ_POLL_ALWAYS);
	before = atomic_load(&signals);
	ioloop_detach(the_ioq());
	passes(1);
	CHECK(!loop.deferred_list);
	disk_budget = 200;
	passes(2);
	CHECK(!ioq_is_attached(the_ioq()));
	CHECK_EQ(atomic_load(&signals), before);
	ring_give(true);
	CHECK(ioq_is_attached(the_ioq()));
	CHECK_EQ(blk->queue[0].coalesce.held, 0);
	vguest_irq_on(&drv);
	reads_publish(1);
	passes(1);
	CHECK_EQ(used_take(), 1);
	CHECK_EQ(atomic_load(&signals), before + 1);
	books_check();
	teardown();
}

static void test_stop(void)
{
	unsigned before;

	held_setup(IOQ_POLL_ALWAYS);
	before = atomic_load(&signals);
	disk.hold = 1;
	ioloop_stop(&loop);
	ioloop_run(&loop);
	CHECK_EQ(atomic_load(&signals), before + 1);
	teardown();
}

/* The loop sleeps: whatever the driver was owed, it has. */
static void sleep_check(const atomic_uint *wake, uint64_t deadline_tsc)
{
	(void)wake;
	CHECK(!loop.deferred_list);
	CHECK(!the_ioq()->deferred);
	CHECK_EQ(the_ioq()->state, IOQ_ARMED);
	if (deadline_tsc != UINT64_MAX)
		fake_tsc = deadline_tsc;
	atomic_store(&loop.stop, 1);
}

static void test_sleep(void)
{
	unsigned before;

	held_setup(1000);
	before = atomic_load(&signals);
	disk.hold = 1;
	fake_wait = sleep_check;
	ioloop_run(&loop);
	CHECK_EQ(loop.counts.sleeps, 1);
	CHECK_EQ(atomic_load(&signals), before + 1);
	teardown();
}

/* --- driver and I/O core on two threads --------------------------------------------------------- */

#define THREAD_REQUESTS 20000u

/* Sleeps until woken; with a deadline it is over at once. */
static void thread_wait(const atomic_uint *wake, uint64_t deadline_tsc)
{
	CHECK(!loop.deferred_list);
	while (deadline_tsc == UINT64_MAX && !atomic_load(wake))
		sched_yield();
}

static void *thread_main(void *arg)
{
	(void)arg;
	ioloop_run(&loop);
	return NULL;
}

/* False: no interrupt after seen of them within seconds. */
static bool signal_wait(unsigned seen)
{
	time_t give_up = time(NULL) + 30;

	while (atomic_load(&signals) == seen) {
		if (time(NULL) > give_up)
			return false;
		sched_yield();
	}
	return true;
}

/* Keeps changing depths going; a driver that finds nothing relies on the interrupt alone. */
static void threads(uint64_t poll_ns, bool event_idx)
{
	unsigned published = 0, taken = 0, round = 0;
	bool lost = false;
	pthread_t thread;

	setup(poll_ns, event_idx, true);
	disk_budget = UINT32_MAX;
	fake_wait = thread_wait;
	if (pthread_create(&thread, NULL, thread_main, NULL))
		abort();
	while (taken < THREAD_REQUESTS && !lost) {
		unsigned depth = round++ % 97 < 60 ? 64 : round % 7 + 1, count;
		unsigned seen = atomic_load(&signals);

		if (published - taken < depth) {
			count = depth - (published - taken);
			reads_publish(count);
			published += count;
		}
		count = handler();
		taken += count;
		if (!count && published != taken)
			lost = !signal_wait(seen);
	}
	while (taken < published && !lost) {
		unsigned seen = atomic_load(&signals), count = handler();

		taken += count;
		if (!count)
			lost = !signal_wait(seen);
	}
	CHECK(!lost);
	CHECK_EQ(taken, published);
	ioloop_stop(&loop);
	pthread_join(thread, NULL);
	CHECK_EQ(the_ioq()->counts.requests, published);
	CHECK_EQ(the_ioq()->counts.interrupts_deferred != 0, poll_ns != 0);
	teardown();
}

static void test_threads(void)
{
	threads(IOQ_POLL_ALWAYS, true);
	threads(IOQ_POLL_ALWAYS, false);
	threads(100, true);
	threads(100, false);
	threads(IOQ_POLL_AUTO, true);
	threads(0, true);
}

TESTS(T(test_off), T(test_few_in_flight), T(test_reasons), T(test_batch_grows), T(test_interval),
      T(test_bound), T(test_event_idx), T(test_interrupts_per_request), T(test_drivers),
      T(test_disk_goes_quiet), T(test_last_one), T(test_poll_switch), T(test_demotion),
      T(test_detach), T(test_stop), T(test_sleep), T(test_threads))
