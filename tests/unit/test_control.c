/*
 * The control interface: what it grants, what it refuses, and policies switched under load.
 */
#include "tests/unit/test.h"
#include "tests/unit/control_fixture.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

/* --- who may, and what there is ------------------------------------------------------------------
 */

static void test_denied(void)
{
	setup(1, false, 5000);
	for (unsigned op = 0; op < QUELL_OP_COUNT; op++)
		CHECK_EQ(call(op, 0, 0, 0, 0), -EPERM);
	CHECK_EQ(call(QUELL_POLL_SET, QUELL_ALL, QUELL_ALL, QUELL_POLL_ALWAYS, 0), -EPERM);
	CHECK_EQ(call(QUELL_MARK, 'x', 0, 0, 0), -EPERM);
	CHECK_EQ(call(QUELL_OP_COUNT, 0, 0, 0, 0), -ENOSYS);
	passes(3);
	CHECK_EQ(blk->queue[0].ioq.poll_ns, 5000);
	CHECK_EQ(atomic_load(&blk->queue[0].ioq.want_poll_ns), 5000);
	CHECK_EQ(atomic_load(&fx_vm.phases.count), 1);
	CHECK_EQ(atomic_load(&V->events), 0);
	teardown();
}

static void test_unknown(void)
{
	static const uint64_t numbers[] = {0,
	                                   1,
	                                   5,
	                                   11,
	                                   12,
	                                   QUELL_CALL(0) - 1,
	                                   QUELL_CALL(QUELL_OP_COUNT),
	                                   QUELL_CALL(0) + BIT(32),
	                                   UINT64_MAX,
	                                   BIT(63)};

	for (unsigned control = 0; control < 2; control++) {
		setup(1, control, 0);
		for (unsigned i = 0; i < ARRAY_LEN(numbers); i++)
			CHECK_EQ(raw(V, numbers[i], (uint64_t[6]){0}), -ENOSYS);
		teardown();
	}
}

static void test_cpuid(void)
{
	struct hvm_ops svm = {.name = "svm"}, vmx = {.name = "vmx"};
	const struct hvm_ops *before = hvm;
	uint32_t r[4];

	setup(1, true, 0);
	hvm = &svm;
	control_cpuid(V, QUELL_CPUID, r);
	CHECK_EQ(r[0], QUELL_CPUID + 1);
	CHECK(!memcmp(&r[1], "QuellQuellQu", 12));
	control_cpuid(V, QUELL_CPUID_FEATURES, r);
	CHECK_EQ(r[0], QUELL_ABI_VERSION);
	CHECK_EQ(r[1], QUELL_FLAG_CONTROL | QUELL_FLAG_VMMCALL);
	CHECK_EQ(r[2] | r[3], 0);
	hvm = &vmx;
	fx_config.control = false;
	control_cpuid(V, QUELL_CPUID_FEATURES, r);
	CHECK_EQ(r[1], 0);
	control_cpuid(V, QUELL_CPUID + 2, r);
	CHECK_EQ(r[0] | r[1] | r[2] | r[3], 0);
	hvm = before;
	teardown();
}

/* --- policies
 * -------------------------------------------------------------------------------------- */

static void test_poll_set(void)
{
	static const uint64_t good[] = {0, 1, QUELL_POLL_NS_MAX, QUELL_POLL_AUTO,
	                                QUELL_POLL_ALWAYS};
	static const uint64_t bad[] = {QUELL_POLL_NS_MAX + 1, QUELL_POLL_ALWAYS - 1, BIT(63),
	                               BIT(32)};

	setup(1, true, 7);
	for (unsigned i = 0; i < ARRAY_LEN(bad); i++)
		CHECK_EQ(call(QUELL_POLL_SET, 0, 0, bad[i], 0), -QUELL_ERANGE);
	CHECK_EQ(call(QUELL_POLL_SET, 1, 0, 0, 0), -QUELL_ENOENT);
	CHECK_EQ(call(QUELL_POLL_SET, 0, 2, 0, 0), -QUELL_ENOENT);
	CHECK_EQ(call(QUELL_POLL_SET, BIT(32), 0, 0, 0), -QUELL_ENOENT);
	CHECK_EQ(call(QUELL_POLL_GET, 0, 2, 0, 0), -QUELL_ENOENT);
	CHECK_EQ(call(QUELL_POLL_GET, 1, 0, 0, 0), -QUELL_ENOENT);
	CHECK_EQ(call(QUELL_POLL_GET, QUELL_ALL, 0, 0, 0), -QUELL_ENOENT);
	CHECK_EQ(atomic_load(&blk->queue[0].ioq.want_poll_ns), 7);
	for (unsigned i = 0; i < ARRAY_LEN(good); i++) {
		CHECK_EQ(call(QUELL_POLL_SET, 0, 1, good[i], 0), 0);
		CHECK_EQ(out[0], 1);
		CHECK_EQ(call(QUELL_POLL_GET, 0, 1, 0, 0), 0);
		CHECK_EQ(out[0], good[i]);
		CHECK(out[1] != good[i]); /* not before the I/O core took it over */
		passes(1);
		call(QUELL_POLL_GET, 0, 1, 0, 0);
		CHECK_EQ(out[1], good[i]);
		CHECK_EQ(blk->queue[0].ioq.poll_ns, 7); /* the other queue stays */
	}
	CHECK_EQ(call(QUELL_POLL_SET, QUELL_ALL, QUELL_ALL, 9, 0), 0);
	CHECK_EQ(out[0], 2);
	passes(1);
	CHECK_EQ(blk->queue[0].ioq.poll_ns, 9);
	CHECK_EQ(blk->queue[1].ioq.poll_ns, 9);
	teardown();
}

/* From each policy to each other, with a request just published: it is never left behind. */
static void test_transitions(void)
{
	static const uint64_t policy[] = {0, 1, 5000, QUELL_POLL_AUTO, QUELL_POLL_ALWAYS};

	setup(1, true, 0);
	for (unsigned from = 0; from < ARRAY_LEN(policy); from++) {
		for (unsigned to = 0; to < ARRAY_LEN(policy); to++) {
			bool kicked;

			call(QUELL_POLL_SET, 0, 0, policy[from], 0);
			passes(20);
			reads_publish(1); /* hot now, if it can be */
			if (vguest_kick_needed(&drv))
				ioloop_kick(&blk->queue[0].ioq);
			passes(4);
			CHECK_EQ(used_take(), 1);
			reads_publish(1);
			kicked = vguest_kick_needed(&drv);
			call(QUELL_POLL_SET, 0, 0, policy[to], 0);
			if (kicked)
				ioloop_kick(&blk->queue[0].ioq);
			passes(4);
			CHECK_EQ(used_take(), 1);
			/* Never polled: armed, and nobody reads the ring before a kick. */
			reads_publish(1);
			if (policy[to] == 0) {
				CHECK_EQ(blk->queue[0].ioq.state, IOQ_ARMED);
				passes(20);
				CHECK_EQ(used_take(), 0);
				CHECK(vguest_kick_needed(&drv));
				ioloop_kick(&blk->queue[0].ioq);
			} else if (policy[to] == QUELL_POLL_ALWAYS) {
				CHECK_EQ(blk->queue[0].ioq.state, IOQ_HOT);
				CHECK(!vguest_kick_needed(&drv));
			} else if (vguest_kick_needed(&drv)) {
				ioloop_kick(&blk->queue[0].ioq);
			}
			passes(4);
			CHECK_EQ(used_take(), 1);
		}
	}
	teardown();
}

/* An idle queue is polled from the next pass on, without a kick. */
static void test_always_at_once(void)
{
	setup(1, true, 0);
	CHECK_EQ(blk->queue[0].ioq.state, IOQ_ARMED);
	call(QUELL_POLL_SET, 0, 0, QUELL_POLL_ALWAYS, 0);
	passes(1);
	CHECK_EQ(blk->queue[0].ioq.state, IOQ_HOT);
	reads_publish(1);
	CHECK(!vguest_kick_needed(&drv));
	passes(2);
	CHECK_EQ(used_take(), 1);
	CHECK_EQ(atomic_load(&blk->queue[0].ioq.kicks), 0);
	teardown();
}

/* A policy asked for before a driver comes is in force when it does. */
static void test_poll_set_unattached(void)
{
	setup(1, true, 0);
	ioloop_detach(&blk->queue[0].ioq);
	passes(2);
	CHECK_EQ(blk->queue[0].ioq.state, IOQ_UNATTACHED);
	CHECK_EQ(call(QUELL_POLL_SET, 0, 0, QUELL_POLL_ALWAYS, 0), 0);
	passes(2);
	CHECK_EQ(blk->queue[0].ioq.state, IOQ_UNATTACHED);
	ioloop_attach(&blk->queue[0].ioq);
	passes(2);
	CHECK_EQ(blk->queue[0].ioq.state, IOQ_HOT);
	teardown();
}

/* --- anything ----------------------------------------------------------------------------------
 */

/* Every register anything: no crash, no change on an error, and policies stay policies. */
static void test_fuzz(void)
{
	static const uint64_t edges[] = {0,          1,          2,          31,
	                                 32,         63,         64,         HVM_EXIT_COUNT,
	                                 1000000000, 1000000001, UINT64_MAX, UINT64_MAX - 1,
	                                 BIT(31),    BIT(32),    BIT(63),    INT64_MAX};

	setup(3, true, 0);
	for (unsigned i = 0; i < 300000; i++) {
		uint64_t number = QUELL_CALL(fx_random() % (QUELL_OP_COUNT + 2)), in[6];
		int64_t result;

		for (unsigned r = 0; r < 6; r++)
			in[r] = fx_random() % 4 ? edges[fx_random() % ARRAY_LEN(edges)]
			                        : fx_random();
		if (fx_random() % 16 == 0)
			number = fx_random();
		result = raw(&fx_vcpu[fx_random() % 3], number, in);
		CHECK(result == 0 || result == -QUELL_ENOENT || result == -QUELL_ERANGE ||
		      result == -QUELL_EINVAL || result == -QUELL_ENOSPC ||
		      result == -QUELL_ENOSYS);
		if (i % 16 == 0) {
			passes(1);
			for (unsigned v = 0; v < 3; v++) {
				atomic_store(&fx_vcpu[v].events, 0);
				phase_follow(&fx_vcpu[v], fake_tsc);
			}
		}
	}
	for (unsigned q = 0; q < 2; q++) {
		uint64_t poll_ns = blk->queue[q].ioq.poll_ns;

		CHECK(poll_ns <= QUELL_POLL_NS_MAX || poll_ns >= QUELL_POLL_ALWAYS);
	}
	teardown();
}

/* --- a thousand switches under load
 * ----------------------------------------------------------------- */

#define SWITCHES 1000u

static atomic_bool switched;
static unsigned in_force;

static void thread_wait(const atomic_uint *wake, uint64_t deadline_tsc)
{
	while (deadline_tsc == UINT64_MAX && !atomic_load(wake))
		sched_yield();
}

static void *io_main(void *arg)
{
	(void)arg;
	ioloop_run(&loop);
	return NULL;
}

/* The control thread: every policy after every other, each other time only once it is in force. */
static void *switch_main(void *arg)
{
	static const uint64_t policy[] = {0,       QUELL_POLL_ALWAYS, 0,
	                                  100,     QUELL_POLL_AUTO,   0,
	                                  1000000, QUELL_POLL_ALWAYS, QUELL_POLL_AUTO,
	                                  100};
	struct vcpu *v = V;

	(void)arg;
	for (unsigned i = 0; i < SWITCHES; i++) {
		time_t give_up = time(NULL) + 20;

		v->hv.gpr[HVM_RAX] = QUELL_CALL(QUELL_POLL_SET);
		v->hv.gpr[HVM_RBX] = v->hv.gpr[HVM_RCX] = i % 3 ? 0 : QUELL_ALL;
		v->hv.gpr[HVM_RDX] = policy[i % ARRAY_LEN(policy)];
		control_call(v);
		if (v->hv.gpr[HVM_RAX])
			break;
		do {
			sched_yield();
			v->hv.gpr[HVM_RAX] = QUELL_CALL(QUELL_POLL_GET);
			v->hv.gpr[HVM_RBX] = v->hv.gpr[HVM_RCX] = 0;
			control_call(v);
		} while (i % 2 && v->hv.gpr[HVM_RBX] != v->hv.gpr[HVM_RCX] && time(NULL) < give_up);
		in_force += v->hv.gpr[HVM_RBX] == v->hv.gpr[HVM_RCX];
	}
	atomic_store(&switched, true);
	return NULL;
}

static bool signal_wait(unsigned seen)
{
	time_t give_up = time(NULL) + 20;

	while (atomic_load(&signals) == seen) {
		if (time(NULL) > give_up)
			return false;
		sched_yield();
	}
	return true;
}

/* Takes what is done; if nothing, asks for an interrupt, looks again, and waits for it. */
static unsigned some_take(bool *lost)
{
	unsigned seen = atomic_load(&signals), count = used_take();

	if (count)
		return count;
	vguest_irq_on(&drv);
	count = used_take();
	if (!count && !signal_wait(seen))
		*lost = true;
	return count;
}

static bool on_thread_signal(struct vblk_transport *t, unsigned queue)
{
	(void)t;
	(void)queue;
	atomic_fetch_add(&signals, 1);
	return true;
}

static void test_switches(void)
{
	struct vblk_transport quick = {on_thread_signal, on_needs_reset};
	unsigned published = 0, taken = 0, burst = 1, rounds = 0;
	pthread_t io, control;
	bool lost = false;

	setup(1, true, 0);
	blk->transport = &quick;
	fake_wait = thread_wait;
	in_force = 0;
	atomic_store(&switched, false);
	if (pthread_create(&io, NULL, io_main, NULL) ||
	    pthread_create(&control, NULL, switch_main, NULL))
		abort();
	while ((!atomic_load(&switched) || rounds < 100) && !lost) {
		unsigned done = 0;

		rounds++;
		burst = burst * 5 % 13;
		reads_publish(burst);
		published += burst;
		if (vguest_kick_needed(&drv))
			ioloop_kick(&blk->queue[0].ioq);
		while (done < burst && !lost)
			done += some_take(&lost);
		CHECK_EQ(done, burst);
		taken += done;
		for (unsigned i = 0; i < burst; i++) {
			CHECK_EQ(*(uint8_t *)vguest_va(&guest, data_gpa + i * 4096), i);
			CHECK_EQ(*(uint8_t *)vguest_va(&guest, data_gpa + i * 4096 + 1024),
			         VIRTIO_BLK_S_OK);
		}
	}
	pthread_join(control, NULL);
	ioloop_stop(&loop);
	pthread_join(io, NULL);
	CHECK(!lost);
	CHECK_EQ(taken, published);
	CHECK_EQ(blk->queue[0].ioq.counts.requests, published);
	CHECK_EQ(disk.log_count, published); /* each reached the disk once */
	CHECK(in_force >= SWITCHES / 2);
	CHECK(loop.counts.mailbox_rounds >= SWITCHES / 2);
	printf("  %u requests in %u bursts, %llu kicks, %llu arms, %u switches seen in force\n",
	       published, rounds, (unsigned long long)atomic_load(&blk->queue[0].ioq.kicks),
	       (unsigned long long)blk->queue[0].ioq.counts.arms, in_force);
	teardown();
}

TESTS(T(test_denied), T(test_unknown), T(test_cpuid), T(test_poll_set), T(test_transitions),
      T(test_always_at_once), T(test_poll_set_unattached), T(test_fuzz), T(test_switches))
