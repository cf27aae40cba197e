/*
 * The I/O core's loop against scripted queues and a scripted device.
 */
#include "tests/unit/test.h"

#include "tests/fake/platform.h"
#include "vmm/ioloop.h"

#include <string.h>

struct queue {
	struct ioq ioq;
	unsigned backlog; /* requests published, not yet taken */
	unsigned flying;  /* taken, not yet completed */
	bool armed;
	unsigned looks, publishes;
	bool publish_on_arm; /* the race: a request appears just as notifications go on */
	bool attach_fails;
};

struct device {
	struct bio_dev dev;
	struct queue *from[4096];
	unsigned polls, irq_on;
	bool irq_quiet;
};

static struct ioloop loop;
static struct device disk;
static struct queue queues[128];

static struct queue *of(struct ioq *q)
{
	return CONTAINER_OF(q, struct queue, ioq);
}

static unsigned q_serve(struct ioq *q, unsigned budget)
{
	struct queue *me = of(q);
	unsigned n = 0;

	me->looks++;
	while (n < budget && me->backlog) {
		me->backlog--;
		me->flying++;
		disk.from[disk.dev.in_flight++] = me;
		disk.dev.submitted = true;
		n++;
	}
	return n;
}

static bool q_pending(struct ioq *q)
{
	of(q)->looks++;
	return of(q)->backlog != 0;
}

static void q_arm(struct ioq *q)
{
	of(q)->armed = true;
	if (of(q)->publish_on_arm) {
		of(q)->publish_on_arm = false;
		of(q)->backlog++;
	}
}

static void q_disarm(struct ioq *q)
{
	of(q)->armed = false;
}

static enum ioq_signal q_publish(struct ioq *q)
{
	of(q)->publishes++;
	return IOQ_SIGNAL_SENT;
}

static int q_attach(struct ioq *q)
{
	return of(q)->attach_fails ? -EINVAL : 0;
}

static bool q_drained(struct ioq *q)
{
	return of(q)->flying == 0;
}

static const struct ioq_ops queue_ops = {q_serve,   q_pending, q_arm,    q_disarm,
                                         q_publish, q_attach,  q_drained};

static void d_commit(struct bio_dev *dev)
{
	dev->submitted = false;
	dev->doorbells++;
}

static unsigned d_poll(struct bio_dev *dev, unsigned budget)
{
	unsigned n = 0;

	disk.polls++;
	while (dev->in_flight && n < budget) {
		struct queue *q = disk.from[--dev->in_flight];

		q->flying--;
		q->ioq.counts.requests++;
		ioq_completed(&q->ioq);
		n++;
	}
	return n;
}

static bool d_irq_set(struct bio_dev *dev, bool on)
{
	(void)dev;
	disk.irq_on = on;
	return disk.irq_quiet;
}

static const struct bio_ops disk_ops = {NULL, d_commit, d_poll, d_irq_set};

static void setup(unsigned count, uint64_t poll_ns)
{
	fake_reset();
	fake_tsc = 5000000000ull;
	memset(queues, 0, sizeof(queues));
	memset(&disk, 0, sizeof(disk));
	disk.dev.ops = &disk_ops;
	disk.irq_quiet = true;
	ioloop_init(&loop, 0);
	loop.stolen_above_tsc = UINT64_MAX; /* these tests' time goes by in leaps */
	ioloop_dev_add(&loop, &disk.dev);
	for (unsigned i = 0; i < count; i++) {
		queues[i].ioq.ops = &queue_ops;
		queues[i].ioq.poll_ns = poll_ns;
		queues[i].ioq.dev = &disk.dev;
		ioloop_queue_add(&loop, &queues[i].ioq);
		ioloop_attach(&queues[i].ioq);
	}
	ioloop_pass(&loop);
}

static void kick(struct queue *q)
{
	q->backlog++;
	ioloop_kick(&q->ioq);
}

/* Stops the loop at the first sleep; what happened up to there is the test's. */
static void wait_and_stop(const atomic_uint *wake, uint64_t deadline_tsc)
{
	(void)wake;
	(void)deadline_tsc;
	ioloop_stop(&loop);
}

static void run_until_sleep(void)
{
	atomic_store(&loop.stop, 0);
	fake_wait = wait_and_stop;
	ioloop_run(&loop);
}

static void attach_arms(void)
{
	setup(3, IOQ_POLL_AUTO);
	for (unsigned i = 0; i < 3; i++) {
		CHECK(ioq_is_attached(&queues[i].ioq));
		CHECK(queues[i].armed);
		CHECK(queues[i].ioq.state == IOQ_ARMED);
	}
}

static void attach_refused_stays_off(void)
{
	fake_reset();
	memset(queues, 0, sizeof(queues));
	ioloop_init(&loop, 0);
	queues[0].ioq.ops = &queue_ops;
	queues[0].attach_fails = true;
	ioloop_queue_add(&loop, &queues[0].ioq);
	ioloop_attach(&queues[0].ioq);
	for (int i = 0; i < 3; i++)
		ioloop_pass(&loop);
	CHECK(!ioq_is_attached(&queues[0].ioq));
	kick(&queues[0]);
	ioloop_pass(&loop);
	CHECK_EQ(queues[0].backlog, 1);
}

static void kick_makes_hot_and_stays_quiet(void)
{
	setup(1, IOQ_POLL_AUTO);
	kick(&queues[0]);
	CHECK(ioloop_pass(&loop));
	CHECK(queues[0].ioq.state == IOQ_HOT);
	CHECK(!queues[0].armed);
	CHECK_EQ(queues[0].ioq.counts.requests, 1);
	CHECK_EQ(queues[0].publishes, 1);
	/* Ten thousand more without a kick, and never armed in between. */
	for (int i = 0; i < 10000; i++) {
		queues[0].backlog++;
		ioloop_pass(&loop);
		fake_tsc += 15000; /* less than a sleep costs */
		ioloop_pass(&loop);
	}
	CHECK_EQ(queues[0].ioq.counts.requests, 10001);
	CHECK_EQ(queues[0].ioq.kicks, 1);
	CHECK_EQ(queues[0].ioq.counts.arms, 1);
}

static void one_doorbell_and_one_publish_a_pass(void)
{
	setup(2, IOQ_POLL_AUTO);
	queues[0].backlog = 20;
	kick(&queues[0]);
	queues[1].backlog = 9;
	kick(&queues[1]);
	ioloop_pass(&loop);
	CHECK_EQ(disk.dev.doorbells, 1);
	CHECK_EQ(queues[0].publishes, 1);
	CHECK_EQ(queues[1].publishes, 1);
	CHECK_EQ(queues[0].ioq.counts.requests + queues[1].ioq.counts.requests, 31);
}

static void idle_queue_goes_cold_then_is_swept(void)
{
	setup(2, IOQ_POLL_AUTO);
	kick(&queues[0]);
	kick(&queues[1]);
	ioloop_pass(&loop);
	/* Queue 1 stays busy, queue 0 idles past its time. */
	for (int i = 0; i < 4; i++) {
		fake_tsc += 600000;
		queues[1].backlog++;
		ioloop_pass(&loop);
	}
	CHECK(queues[0].ioq.state == IOQ_COLD);
	CHECK(!queues[0].armed);
	CHECK(queues[1].ioq.state == IOQ_HOT);
	/* Published without a kick: the sweep finds it. */
	queues[0].backlog++;
	ioloop_pass(&loop);
	CHECK(queues[0].ioq.state == IOQ_HOT);
	CHECK_EQ(queues[0].ioq.counts.requests, 2);
	CHECK_EQ(queues[0].ioq.kicks, 1);
}

static void sweep_cost_is_bounded(void)
{
	unsigned looks = 0;

	setup(100, IOQ_POLL_AUTO);
	for (unsigned i = 0; i < 100; i++)
		kick(&queues[i]);
	ioloop_pass(&loop);
	fake_tsc += 2000000;
	queues[0].backlog++;
	ioloop_pass(&loop);
	CHECK_EQ(loop.cold_count, 99);
	for (unsigned i = 0; i < 100; i++)
		queues[i].looks = 0;
	ioloop_pass(&loop);
	for (unsigned i = 1; i < 100; i++)
		looks += queues[i].looks;
	CHECK_EQ(looks, IOLOOP_COLD_SWEEP);
	/* While requests wait for the pass to end, fewer. */
	queues[0].backlog++;
	for (unsigned i = 0; i < 100; i++)
		queues[i].looks = 0;
	ioloop_pass(&loop);
	looks = 0;
	for (unsigned i = 1; i < 100; i++)
		looks += queues[i].looks;
	CHECK_EQ(looks, IOLOOP_BUSY_SWEEP + 1);
	/* Armed queues cost nothing at all. */
	run_until_sleep();
	for (unsigned i = 0; i < 100; i++)
		queues[i].looks = 0;
	ioloop_pass(&loop);
	for (unsigned i = 0; i < 100; i++)
		CHECK_EQ(queues[i].looks, 0);
}

static void sleeps_armed_and_wakes_by_kick(void)
{
	setup(2, IOQ_POLL_AUTO);
	kick(&queues[0]);
	run_until_sleep();
	CHECK_EQ(loop.counts.sleeps, 1);
	CHECK(queues[0].armed);
	CHECK(queues[1].armed);
	CHECK_EQ(queues[0].ioq.counts.requests, 1);
	/* No IPI to a core that is awake. */
	CHECK_EQ(fake_wakes[0], 1); /* the stop, while asleep */
	kick(&queues[1]);
	CHECK_EQ(fake_wakes[0], 1);
	ioloop_pass(&loop);
	CHECK_EQ(queues[1].ioq.counts.requests, 1);
}

static void wait_kick(const atomic_uint *wake, uint64_t deadline_tsc)
{
	(void)deadline_tsc;
	if (queues[0].ioq.counts.requests == 3) {
		ioloop_stop(&loop);
		return;
	}
	kick(&queues[0]);
	CHECK(atomic_load(wake));
	kick(&queues[0]); /* one IPI for a burst */
}

static void one_ipi_for_a_burst(void)
{
	setup(1, IOQ_POLL_AUTO);
	kick(&queues[0]);
	fake_wait = wait_kick;
	ioloop_run(&loop);
	CHECK_EQ(queues[0].ioq.counts.requests, 3);
	CHECK_EQ(fake_wakes[0], 2);
}

static void arming_finds_the_race(void)
{
	setup(1, IOQ_POLL_AUTO);
	kick(&queues[0]);
	ioloop_pass(&loop);
	queues[0].publish_on_arm = true;
	run_until_sleep();
	CHECK_EQ(queues[0].ioq.counts.requests, 2);
	CHECK_EQ(loop.counts.last_look_hits, 1);
	CHECK_EQ(queues[0].ioq.kicks, 1);
}

static void poll_zero_reads_only_on_a_kick(void)
{
	setup(1, 0);
	queues[0].looks = 0;
	queues[0].backlog = 5;
	for (int i = 0; i < 100; i++)
		ioloop_pass(&loop);
	CHECK_EQ(queues[0].looks, 0);
	kick(&queues[0]);
	ioloop_pass(&loop);
	CHECK_EQ(queues[0].ioq.counts.requests, 6);
	CHECK(queues[0].armed);
	queues[0].looks = 0;
	for (int i = 0; i < 100; i++)
		ioloop_pass(&loop);
	CHECK_EQ(queues[0].looks, 0);
	/* The race at arming is found without another kick. */
	queues[0].publish_on_arm = true;
	kick(&queues[0]);
	ioloop_pass(&loop);
	ioloop_pass(&loop);
	CHECK_EQ(queues[0].ioq.counts.requests, 8);
}

static void poll_zero_is_not_starved(void)
{
	setup(2, IOQ_POLL_AUTO);
	ioloop_poll_set(&queues[1].ioq, 0);
	ioloop_pass(&loop);
	queues[0].backlog = 100000;
	kick(&queues[0]);
	queues[1].backlog = 199;
	kick(&queues[1]);
	for (int i = 0; i < 4; i++)
		ioloop_pass(&loop);
	CHECK_EQ(queues[1].ioq.counts.requests, 200);
}

static void always_never_sleeps(void)
{
	setup(1, IOQ_POLL_ALWAYS);
	CHECK(queues[0].ioq.state == IOQ_HOT);
	fake_tsc += 3600ull * 1000000000u;
	ioloop_pass(&loop);
	CHECK(queues[0].ioq.state == IOQ_HOT);
	CHECK(!queues[0].armed);
}

/* All queues used, then all but the first left alone until they are cold. */
static void setup_cold(unsigned count)
{
	setup(count, IOQ_POLL_AUTO);
	for (unsigned i = 0; i < count; i++)
		kick(&queues[i]);
	ioloop_pass(&loop);
	for (unsigned i = 0; i < 6; i++) {
		fake_tsc += 500000;
		queues[0].backlog++;
		ioloop_pass(&loop);
	}
	CHECK_EQ(loop.cold_count, count - 1);
}

static void always_from_cold(void)
{
	setup_cold(2);
	ioloop_poll_set(&queues[1].ioq, IOQ_POLL_ALWAYS);
	ioloop_pass(&loop);
	CHECK(queues[1].ioq.state == IOQ_HOT);
	for (unsigned i = 0; i < 100; i++) {
		fake_tsc += 500000;
		queues[0].backlog++;
		ioloop_pass(&loop);
	}
	CHECK(queues[1].ioq.state == IOQ_HOT);
	CHECK(!queues[1].armed);
}

/* One that goes hot in the sweep lets the list's last into its place: which may have been looked at. */
static void sweep_looks_once(void)
{
	uint64_t arms[4];

	setup_cold(4);
	ioloop_poll_set(&queues[0].ioq, IOQ_POLL_AUTO); /* a round of the mailbox: two looks */
	ioloop_pass(&loop);
	CHECK_EQ(loop.sweep_pos, 2);
	for (unsigned i = 0; i < 4; i++)
		arms[i] = queues[i].ioq.counts.arms;
	of(loop.cold[0])->backlog++;
	fake_tsc += 50000000;
	for (unsigned i = 0; i < 3; i++) {
		queues[0].backlog++;
		ioloop_pass(&loop);
	}
	CHECK_EQ(loop.cold_count, 0);
	CHECK_EQ(loop.counts.retired, 2);
	for (unsigned i = 0; i < 4; i++)
		CHECK(queues[i].ioq.counts.arms - arms[i] <= 1);
}

static void detach_drains(void)
{
	setup(2, IOQ_POLL_AUTO);
	kick(&queues[0]);
	ioloop_pass(&loop);
	queues[0].flying = 1; /* the device holds one back */
	ioloop_detach(&queues[0].ioq);
	ioloop_pass(&loop);
	CHECK(ioq_is_attached(&queues[0].ioq));
	queues[0].backlog = 3;
	ioloop_kick(&queues[0].ioq);
	ioloop_pass(&loop);
	CHECK_EQ(queues[0].backlog, 3); /* not served any more */
	/* Its completion touches no ring. */
	queues[0].publishes = 0;
	ioq_completed(&queues[0].ioq);
	queues[0].flying = 0;
	ioloop_pass(&loop);
	CHECK_EQ(queues[0].publishes, 0);
	CHECK(!ioq_is_attached(&queues[0].ioq));
	ioloop_attach(&queues[0].ioq);
	ioloop_pass(&loop);
	CHECK(ioq_is_attached(&queues[0].ioq));
	ioloop_pass(&loop);
	CHECK_EQ(queues[0].backlog, 0);
}

static uint64_t wait_deadline;

static void wait_note(const atomic_uint *wake, uint64_t deadline_tsc)
{
	(void)wake;
	wait_deadline = deadline_tsc - fake_tsc;
	ioloop_stop(&loop);
}

/* How long the loop is ready to sleep with one request in flight on a device with these ops. */
static uint64_t sleep_with_flight(const struct bio_ops *ops)
{
	setup(1, 0);
	disk.dev.ops = ops;
	queues[0].flying = 1;
	disk.from[0] = &queues[0];
	disk.dev.in_flight = 1;
	wait_deadline = 0;
	fake_wait = wait_note;
	ioloop_run(&loop);
	return wait_deadline;
}

static unsigned d_poll_nothing(struct bio_dev *dev, unsigned budget)
{
	(void)dev;
	(void)budget;
	return 0;
}

static void sleep_is_bounded_by_flight(void)
{
	static const struct bio_ops blind_ops = {NULL, d_commit, d_poll_nothing, NULL};
	static const struct bio_ops slow_ops = {NULL, d_commit, d_poll_nothing, d_irq_set};

	setup(1, IOQ_POLL_AUTO);
	fake_wait = wait_note;
	ioloop_run(&loop);
	CHECK_EQ(wait_deadline, UINT64_MAX - fake_tsc);
	/* Without an interrupt the core looks itself; with one, it looks whether the device lives. */
	CHECK_EQ(sleep_with_flight(&blind_ops), 50000);
	CHECK_EQ(sleep_with_flight(&slow_ops), 1000000000);
	CHECK(!disk.irq_on);
}

static unsigned irq_refusals;

static bool d_irq_refuse(struct bio_dev *dev, bool on)
{
	(void)dev;
	if (on && ++irq_refusals == 3)
		ioloop_stop(&loop);
	return !on;
}

static void completion_in_the_last_look(void)
{
	static const struct bio_ops busy_ops = {NULL, d_commit, d_poll_nothing, d_irq_refuse};

	setup(1, 0);
	disk.dev.ops = &busy_ops;
	disk.dev.in_flight = 1;
	irq_refusals = 0;
	ioloop_run(&loop);
	CHECK_EQ(loop.counts.sleeps, 0);
	CHECK_EQ(loop.counts.last_look_hits, 3);
}

static void cold_queue_is_armed_at_last(void)
{
	setup(100, IOQ_POLL_AUTO);
	for (unsigned i = 0; i < 100; i++)
		kick(&queues[i]);
	ioloop_pass(&loop);
	/* Queue 0 stays busy; the others are swept for 10 ms, and then no more. */
	for (int i = 0; i < 40; i++) {
		fake_tsc += 500000;
		queues[0].backlog++;
		ioloop_pass(&loop);
		ioloop_pass(&loop);
		if (i == 10)
			CHECK_EQ(loop.cold_count, 99);
	}
	CHECK_EQ(loop.cold_count, 0);
	CHECK_EQ(loop.counts.retired, 99);
	CHECK(queues[1].armed && queues[99].armed && !queues[0].armed);
	for (unsigned i = 0; i < 100; i++)
		queues[i].looks = 0;
	ioloop_pass(&loop);
	for (unsigned i = 1; i < 100; i++)
		CHECK_EQ(queues[i].looks, 0);
	/* One kick, as after a sleep. */
	kick(&queues[7]);
	ioloop_pass(&loop);
	CHECK_EQ(queues[7].ioq.counts.requests, 2);
	CHECK(queues[7].ioq.state == IOQ_HOT);
}

static void retiring_finds_the_race(void)
{
	setup(2, IOQ_POLL_AUTO);
	kick(&queues[0]);
	kick(&queues[1]);
	ioloop_pass(&loop);
	for (int i = 0; i < 19; i++) {
		fake_tsc += 500000;
		queues[0].backlog++;
		ioloop_pass(&loop);
	}
	CHECK(queues[1].ioq.state == IOQ_COLD);
	queues[1].publish_on_arm = true;
	for (int i = 0; i < 4; i++) {
		fake_tsc += 500000;
		queues[0].backlog++;
		ioloop_pass(&loop);
	}
	CHECK_EQ(loop.counts.retired, 1);
	CHECK_EQ(queues[1].ioq.counts.requests, 2);
	CHECK_EQ(queues[1].ioq.kicks, 1);
	CHECK(!queues[1].armed);
}

/* A slow disk: the core has slept over the request; its guest's next one needs no kick. */
static void completion_wakes_its_queue(void)
{
	setup(1, IOQ_POLL_AUTO);
	CHECK(queues[0].ioq.state == IOQ_ARMED);
	queues[0].flying = 1;
	disk.from[0] = &queues[0];
	disk.dev.in_flight = 1;
	ioloop_pass(&loop);
	CHECK_EQ(queues[0].publishes, 1);
	CHECK(queues[0].ioq.state == IOQ_HOT);
	CHECK(!queues[0].armed);
	/* Not where polling is disabled. */
	setup(1, 0);
	queues[0].flying = 1;
	disk.from[0] = &queues[0];
	disk.dev.in_flight = 1;
	ioloop_pass(&loop);
	CHECK_EQ(queues[0].publishes, 1);
	CHECK(queues[0].ioq.state == IOQ_ARMED);
	CHECK(queues[0].armed);
}

/* Two queues that always have more than the device takes: each gets its half. */
static unsigned q_serve_one_slot(struct ioq *q, unsigned budget)
{
	(void)budget;
	if (disk.dev.in_flight)
		return 0;
	return q_serve(q, 1);
}

static void full_device_is_shared(void)
{
	static const struct ioq_ops one_slot_ops = {q_serve_one_slot, q_pending, q_arm,    q_disarm,
	                                            q_publish,        q_attach,  q_drained};

	setup(3, IOQ_POLL_ALWAYS);
	for (unsigned i = 0; i < 3; i++) {
		queues[i].ioq.ops = &one_slot_ops;
		queues[i].backlog = 1000;
	}
	for (int i = 0; i < 300; i++)
		ioloop_pass(&loop);
	for (unsigned i = 0; i < 3; i++)
		CHECK_EQ(queues[i].ioq.counts.requests, 100);
}

/* A request that the disk holds for long: its guest's next one still needs no kick. */
static void slow_request_keeps_its_queue(void)
{
	setup(2, IOQ_POLL_AUTO);
	kick(&queues[0]);
	kick(&queues[1]);
	ioloop_pass(&loop);
	queues[1].flying = 1;
	for (int i = 0; i < 60; i++) {
		fake_tsc += 500000;
		queues[0].backlog++;
		ioloop_pass(&loop);
	}
	CHECK(queues[1].ioq.state == IOQ_COLD && !queues[1].armed);
	queues[1].flying = 0;
	ioloop_pass(&loop);
	ioloop_pass(&loop);
	CHECK(queues[1].armed);
}

/* The policy's turn: the loop asks it, and not only whether a queue is hot. */
static uint64_t run_for_one_gap(void)
{
	uint64_t since = fake_tsc;

	run_until_sleep();
	return fake_tsc - since;
}

static void sleeps_when_the_policy_says_so(void)
{
	setup(1, IOQ_POLL_AUTO);
	/* Gaps of 30 us, which are worth waiting for; then none. */
	kick(&queues[0]);
	for (int i = 0; i < 200; i++) {
		ioloop_pass(&loop);
		fake_tsc += 15000;
		queues[0].backlog++;
	}
	ioloop_pass(&loop);
	CHECK(loop.policy.sleep_at_ticks != UINT64_MAX);
	CHECK(run_for_one_gap() < 200000);
	CHECK_EQ(loop.counts.sleeps, 1);
	CHECK(queues[0].armed);
	/* A fixed time is kept to, whatever is learned. */
	setup(1, 3000000);
	kick(&queues[0]);
	CHECK(run_for_one_gap() >= 3000000);
	CHECK_EQ(loop.counts.sleeps, 1);
}

/* Time in which this core did not run is no time in which polling failed. */
static void stolen_time_is_not_a_failed_budget(void)
{
	setup(1, 50000);
	loop.stolen_above_tsc = 10000;
	kick(&queues[0]);
	ioloop_pass(&loop);
	fake_tsc += 1000000000;
	ioloop_pass(&loop);
	CHECK(queues[0].ioq.state == IOQ_HOT);
	CHECK_EQ(loop.stolen_tsc, 1000000000 - 10000);
	fake_tsc += 9000;
	ioloop_pass(&loop);
	CHECK_EQ(loop.stolen_tsc, 1000000000 - 10000);
	for (int i = 0; i < 5; i++) {
		fake_tsc += 9000;
		ioloop_pass(&loop);
	}
	CHECK(queues[0].ioq.state == IOQ_COLD);
}

/* What is not attached keeps nobody awake, whatever its policy. */
static void unattached_always_lets_sleep(void)
{
	setup(2, IOQ_POLL_AUTO);
	ioloop_detach(&queues[1].ioq);
	ioloop_poll_set(&queues[1].ioq, IOQ_POLL_ALWAYS);
	ioloop_pass(&loop);
	ioloop_pass(&loop);
	CHECK_EQ(queues[1].ioq.is_poll_ns, IOQ_POLL_ALWAYS);
	run_until_sleep();
	CHECK_EQ(loop.counts.sleeps, 1);
	ioloop_attach(&queues[1].ioq);
	ioloop_pass(&loop);
	CHECK(queues[1].ioq.state == IOQ_HOT);
	CHECK_EQ(loop.policy.always, 1);
	ioloop_detach(&queues[1].ioq);
	ioloop_pass(&loop);
	CHECK_EQ(loop.policy.always, 0);
}

/* A queue that waits for room in the device stays hot beyond its time. */
static void waiting_for_the_device_is_not_idle(void)
{
	static const struct ioq_ops one_slot_ops = {q_serve_one_slot, q_pending, q_arm,    q_disarm,
	                                            q_publish,        q_attach,  q_drained};

	setup(2, IOQ_POLL_AUTO);
	queues[1].ioq.ops = &one_slot_ops;
	kick(&queues[1]);
	ioloop_pass(&loop);
	disk.from[0] = &queues[0];
	disk.dev.in_flight = 1;
	queues[0].flying = 1;
	queues[1].backlog = 1;
	disk.dev.ops = &(const struct bio_ops){NULL, d_commit, d_poll_nothing, d_irq_set};
	fake_tsc += 5000000;
	ioloop_pass(&loop);
	CHECK(queues[1].ioq.state == IOQ_HOT);
	disk.dev.ops = &disk_ops;
	ioloop_pass(&loop);
	ioloop_pass(&loop);
	CHECK_EQ(queues[1].ioq.counts.requests, 2);
}

static void wait_slow_kick(const atomic_uint *wake, uint64_t deadline_tsc)
{
	(void)wake;
	(void)deadline_tsc;
	if (queues[0].ioq.counts.requests == 40) {
		ioloop_stop(&loop);
		return;
	}
	kick(&queues[0]);
	fake_tsc += 400000; /* a dear wake-up */
}

static void price_of_a_wake_is_learned(void)
{
	uint64_t before;

	setup(1, IOQ_POLL_AUTO);
	before = loop.policy.price_ticks[0];
	kick(&queues[0]);
	fake_wait = wait_slow_kick;
	ioloop_run(&loop);
	CHECK(loop.policy.price_ticks[0] > 4 * before);
}

TESTS(T(attach_arms), T(full_device_is_shared), T(attach_refused_stays_off),
      T(kick_makes_hot_and_stays_quiet), T(one_doorbell_and_one_publish_a_pass),
      T(idle_queue_goes_cold_then_is_swept), T(sweep_cost_is_bounded),
      T(sleeps_armed_and_wakes_by_kick), T(one_ipi_for_a_burst), T(arming_finds_the_race),
      T(poll_zero_reads_only_on_a_kick), T(poll_zero_is_not_starved),
      T(slow_request_keeps_its_queue), T(sleeps_when_the_policy_says_so),
      T(stolen_time_is_not_a_failed_budget), T(unattached_always_lets_sleep),
      T(waiting_for_the_device_is_not_idle), T(price_of_a_wake_is_learned), T(always_never_sleeps),
      T(always_from_cold), T(sweep_looks_once), T(detach_drains), T(sleep_is_bounded_by_flight),
      T(completion_in_the_last_look), T(cold_queue_is_armed_at_last), T(retiring_finds_the_race),
      T(completion_wakes_its_queue))
