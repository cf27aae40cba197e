/*
 * The control interface: what it grants, what it refuses, phases, and policies switched under load.
 */
#include "tests/unit/test.h"
#include "tests/unit/vm_fixture.h"

#include "tests/fake/bio_fake.h"
#include "tests/fake/virtio_guest.h"
#include "virtio/blk.h"
#include "vmm/control.h"
#include "vmm/irq.h"
#include "vmm/vcpu.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define V       (&fx_vcpu[0])
#define SECTORS 4096u
#define ENOSYS  1000
#define EPERM   1

static struct ioloop loop;
static struct bio_fake disk;
static struct vguest guest;
static struct vguest_queue drv;
static struct vblk *blk;
static gpa_t data_gpa;
static atomic_uint signals;

static bool on_signal(struct vblk_transport *t, unsigned queue)
{
	(void)t;
	(void)queue;
	fake_tsc += 25; /* what sending takes */
	atomic_fetch_add(&signals, 1);
	return true;
}

static void on_needs_reset(struct vblk_transport *t)
{
	(void)t;
	CHECK(false);
}

void vm_end(struct vm *vm, enum vm_end reason)
{
	(void)vm;
	(void)reason;
	CHECK(false);
}

bool hvm_xsetbv_safe(uint32_t index, uint64_t value)
{
	(void)index;
	(void)value;
	return false;
}

static struct vblk_transport transport = {on_signal, on_needs_reset};
static struct vm_kick_page *page;

/* A guest with vcpus vCPUs and one disk of two queues, the first of which has a driver. */
static void setup(unsigned vcpus, bool control, uint64_t poll_ns)
{
	static struct ioq *kick_queues[2];
	struct bio_extent extent = {&disk.dev, 0, SECTORS};
	struct manifest_disk *config = &fx_config.disk[0];

	fx_init(vcpus);
	atomic_store(&signals, 0);
	fx_config.control = control;
	config->num_queues = 2;
	config->queue_size = 64;
	vguest_init(&guest, 2, 4 * MIB);
	bio_fake_init(&disk, SECTORS, 512);
	for (unsigned i = 0; i < SECTORS; i++)
		memset(disk.data + i * 512, (int)(i % 251), 512);
	data_gpa = vguest_alloc(&guest, MIB, 4096);
	blk = plat_mem_alloc(sizeof(*blk), CACHE_LINE_BYTES);
	if (vblk_create(blk, config, extent, &guest.mem, "quell-0-0"))
		abort();
	blk->transport = &transport;
	ioloop_init(&loop, 0);
	ioloop_dev_add(&loop, &disk.dev);
	for (unsigned i = 0; i < 2; i++) {
		blk->queue[i].ioq.poll_ns = poll_ns;
		kick_queues[i] = &blk->queue[i].ioq;
		if (ioloop_queue_add(&loop, &blk->queue[i].ioq))
			abort();
	}
	fx_vm.disk[0] = blk;
	fx_vm.disk_count = fx_vm.kick_count = 1;
	page = &fx_vm.kick[0];
	page->queue = kick_queues;
	page->queue_count = 2;
	page->multiplier_shift = 2;
	if (phases_create(&fx_vm, &loop))
		abort();
	blk->features = blk->features_offered;
	vguest_queue_init(&drv, &guest, 64, true, true);
	blk->queue[0].setup =
		(struct vblk_queue_setup){drv.size, drv.desc_gpa, drv.avail_gpa, drv.used_gpa};
	ioloop_attach(&blk->queue[0].ioq);
	ioloop_pass(&loop);
}

static void teardown(void)
{
	bio_fake_free(&disk);
	vguest_free(&guest);
}

static void passes(unsigned count)
{
	while (count-- > 0) {
		fake_tsc += 1000;
		ioloop_pass(&loop);
	}
}

static const uint8_t regs[6] = {HVM_RBX, HVM_RCX, HVM_RDX, HVM_RSI, HVM_RDI, HVM_R8};
static uint64_t out[6];

/* One call; everything else that a guest could notice is checked here. Returns RAX. */
static int64_t raw(struct vcpu *v, uint64_t number, const uint64_t in[6])
{
	uint64_t before[HVM_GPR_COUNT];
	int64_t result;

	for (unsigned i = 0; i < HVM_GPR_COUNT; i++)
		v->hv.gpr[i] = 0x1000 + i;
	v->hv.gpr[HVM_RAX] = number;
	for (unsigned i = 0; i < 6; i++)
		v->hv.gpr[regs[i]] = in[i];
	memcpy(before, v->hv.gpr, sizeof(before));
	control_call(v);
	result = (int64_t)v->hv.gpr[HVM_RAX];
	for (unsigned i = 0; i < 6; i++) {
		out[i] = v->hv.gpr[regs[i]];
		if (!result)
			v->hv.gpr[regs[i]] = before[regs[i]];
	}
	v->hv.gpr[HVM_RAX] = number;
	CHECK(!memcmp(before, v->hv.gpr, sizeof(before)));
	return result;
}

static int64_t call(unsigned op, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	return raw(V, QUELL_CALL(op), (uint64_t[6]){a, b, c, d, 77, 88});
}

static int64_t mark(const char *name)
{
	uint64_t in[6] = {0};

	memcpy(in, name, MIN(strlen(name), 32));
	return raw(V, QUELL_CALL(QUELL_MARK), in);
}

/* What every vCPU does when it next looks at its events. */
static void follow(void)
{
	for (unsigned i = 0; i < fx_vm.vcpu_count; i++) {
		CHECK(atomic_load(&fx_vcpu[i].events) & VCPU_EVENT_MARK);
		atomic_store(&fx_vcpu[i].events, 0);
		phase_follow(&fx_vcpu[i], fake_tsc);
	}
}

/* --- who may, and what there is ------------------------------------------------------------------ */

static void test_denied(void)
{
	setup(1, false, 5000);
	for (unsigned op = 0; op < QUELL_OP_COUNT; op++)
		CHECK_EQ(call(op, 0, 0, 0, 0), -EPERM);
	CHECK_EQ(call(QUELL_POLL_SET, QUELL_ALL, QUELL_ALL, QUELL_POLL_ALWAYS, 0), -EPERM);
	CHECK_EQ(mark("name"), -EPERM);
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
	static const uint64_t numbers[] = {0, 1, 5, 11, 12, QUELL_CALL(0) - 1, QUELL_CALL(QUELL_OP_COUNT),
	                                   QUELL_CALL(0) + BIT(32), UINT64_MAX, BIT(63)};

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

/* --- policies -------------------------------------------------------------------------------------- */

static void test_poll_set(void)
{
	static const uint64_t good[] = {0, 1, QUELL_POLL_NS_MAX, QUELL_POLL_AUTO, QUELL_POLL_ALWAYS};
	static const uint64_t bad[] = {QUELL_POLL_NS_MAX + 1, QUELL_POLL_ALWAYS - 1, BIT(63), BIT(32)};

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

/* Publishes count reads, each with its own page. */
static void reads_publish(unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		gpa_t gpa = data_gpa + i * 4096;
		struct vguest_buf bufs[] = {{gpa + 2048, 16, false}, {gpa, 512, true}, {gpa + 1024, 1, true}};
		int head;

		*(struct virtio_blk_hdr *)vguest_va(&guest, gpa + 2048) =
			(struct virtio_blk_hdr){VIRTIO_BLK_T_IN, 0, i};
		*(uint8_t *)vguest_va(&guest, gpa + 1024) = 0xee;
		head = vguest_add_indirect(&drv, bufs, 3);
		if (head < 0)
			abort();
		vguest_publish(&drv, (uint16_t)head);
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

/* --- marks ----------------------------------------------------------------------------------------- */

static void test_names(void)
{
	char name[33];

	setup(1, true, 0);
	CHECK_EQ(mark("qd64"), 0);
	CHECK_EQ(out[0], 1);
	CHECK_EQ(mark(""), -QUELL_EINVAL);
	memset(name, 'x', 32);
	name[32] = 0;
	CHECK_EQ(mark(name), -QUELL_EINVAL); /* no NUL */
	name[31] = 0;
	CHECK_EQ(mark(name), 0);
	CHECK(!strcmp(fx_vm.phases.name[2], name));
	for (unsigned c = 1; c < 256; c++) {
		bool good = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
		            strchr("-_.:=+/@%", (int)c);
		int64_t result;

		memcpy(name, (char[]){'a', (char)c, 0}, 3);
		result = mark(name);
		CHECK_EQ(result, good ? (atomic_load(&fx_vm.phases.count) < 64 || !result ? 0 : -QUELL_ENOSPC)
		                      : -QUELL_EINVAL);
	}
	teardown();
}

static void test_phases_end(void)
{
	setup(2, true, 0);
	for (unsigned i = 1; i < PHASE_MAX; i++) {
		CHECK_EQ(mark("again"), 0);
		CHECK_EQ(out[0], i);
	}
	CHECK_EQ(mark("again"), -QUELL_ENOSPC);
	CHECK_EQ(atomic_load(&fx_vm.phases.count), PHASE_MAX);
	follow(); /* all at once */
	passes(1);
	CHECK(phase_settled(&fx_vm));
	CHECK_EQ(atomic_load(&fx_vcpu[1].phase), PHASE_MAX - 1);
	CHECK_EQ(phase_exits(&fx_vcpu[1], PHASE_MAX - 2)->wall_tsc, 0);
	call(QUELL_GUEST, 0, 0, 0, 0);
	CHECK_EQ(out[0], 2);
	CHECK_EQ(out[1], 1);
	CHECK_EQ(out[2], PHASE_MAX);
	CHECK_EQ(out[4], 1000000000);
	CHECK_EQ(out[5], PHASE_MAX);
	teardown();
}

static void test_settled(void)
{
	setup(2, true, 0);
	CHECK(phase_settled(&fx_vm));
	mark("one");
	CHECK_EQ(call(QUELL_PHASE, 1, 0, 0, 0), 0);
	CHECK(!strcmp((char *)out, "one"));
	CHECK_EQ(out[4], fake_tsc);
	CHECK_EQ(out[5], 0);
	phase_follow(&fx_vcpu[0], fake_tsc);
	passes(1);
	CHECK(!phase_settled(&fx_vm)); /* vCPU 1 is still elsewhere */
	phase_follow(&fx_vcpu[1], fake_tsc);
	CHECK(phase_settled(&fx_vm));
	mark("two");
	phase_follow(&fx_vcpu[0], fake_tsc);
	phase_follow(&fx_vcpu[1], fake_tsc);
	CHECK(!phase_settled(&fx_vm)); /* the I/O core is */
	passes(1);
	CHECK(phase_settled(&fx_vm));
	call(QUELL_PHASE, 0, 0, 0, 0);
	CHECK(!strcmp((char *)out, "start"));
	CHECK_EQ(out[5], 1);
	CHECK_EQ(call(QUELL_PHASE, 3, 0, 0, 0), -QUELL_ENOENT);
	teardown();
}

/* Counts of one phase are that phase's alone, to the last one. */
static void test_phase_counts(void)
{
	static const unsigned reads[] = {3, 11, 0, 5};

	setup(1, true, QUELL_POLL_ALWAYS);
	for (unsigned phase = 0; phase < ARRAY_LEN(reads); phase++) {
		if (phase) {
			mark("next");
			passes(1);
			follow();
		}
		vguest_irq_on(&drv);
		reads_publish(reads[phase]);
		passes(3);
		CHECK_EQ(used_take(), reads[phase]);
		for (unsigned i = 0; i < phase; i++)
			ioloop_kick(&blk->queue[0].ioq);
	}
	passes(1);
	for (unsigned phase = 0; phase < ARRAY_LEN(reads); phase++) {
		CHECK_EQ(call(QUELL_QUEUE, 0, 0, phase, 0), 0);
		CHECK_EQ(out[0], reads[phase]);
		CHECK_EQ(out[1], phase);
		CHECK_EQ(out[2], reads[phase] ? 1 : 0); /* one interrupt for each batch */
		CHECK_EQ(call(QUELL_BYTES, 0, 0, phase, 0), 0);
		CHECK_EQ(out[0], reads[phase] * 512);
		CHECK_EQ(out[3], QUELL_QUEUE_HOT);
		CHECK_EQ(call(QUELL_IRQ, 0, 0, phase, 0), 0);
		CHECK_EQ(out[0], reads[phase] ? 1 : 0);
		CHECK_EQ(out[1], reads[phase] ? 25 : 0);
		CHECK_EQ(out[4], reads[phase] ? 625 : 0);
		CHECK_EQ(call(QUELL_QUEUE, 0, 1, phase, 0), 0);
		CHECK_EQ(out[0], 0);
		CHECK_EQ(call(QUELL_LOOP, phase, 0, 0, 0), 0);
		CHECK(out[0] >= 3);
		CHECK_EQ(out[4], reads[phase] ? 1 : 0); /* doorbells */
	}
	CHECK_EQ(call(QUELL_QUEUE, 0, 0, 4, 0), -QUELL_ENOENT);
	CHECK_EQ(call(QUELL_QUEUE, 0, 2, 0, 0), -QUELL_ENOENT);
	CHECK_EQ(call(QUELL_QUEUE, 1, 0, 0, 0), -QUELL_ENOENT);
	CHECK_EQ(call(QUELL_LOOP, 4, 0, 0, 0), -QUELL_ENOENT);
	teardown();
}

static void test_exit_counts(void)
{
	setup(2, true, 0);
	tally_add(&fx_vcpu[1].stats->reason[HVM_EXIT_HLT], 100);
	tally_add(&fx_vcpu[1].stats->kick[1], 40);
	fx_vcpu[1].stats->guest_tsc = 5;
	mark("next");
	follow();
	tally_add(&fx_vcpu[1].stats->reason[HVM_EXIT_HLT], 7);
	tally_add(&fx_vcpu[1].stats->reason[HVM_EXIT_HLT], UINT64_MAX);
	CHECK_EQ(call(QUELL_EXIT, HVM_EXIT_HLT, 1, 0, 0), 0);
	CHECK_EQ(out[0], 1);
	CHECK_EQ(out[1], 100);
	CHECK_EQ(out[4], 10000);
	CHECK_EQ(call(QUELL_EXIT, HVM_EXIT_HLT, 1, 1, 0), 0);
	CHECK_EQ(out[0], 2);
	CHECK_EQ(out[2], 7); /* the second phase's own minimum */
	CHECK_EQ(out[3], UINT64_MAX);
	CHECK_EQ(out[5], UINT64_MAX - 1);
	CHECK_EQ(out[4], 50);
	CHECK_EQ(call(QUELL_EXIT, HVM_EXIT_HLT, 0, 0, 0), 0);
	CHECK_EQ(out[0], 0);
	CHECK_EQ(call(QUELL_KICK, 0, 1, 1, 0), 0);
	CHECK_EQ(out[1], 40);
	CHECK_EQ(call(QUELL_KICK, 0, 0, 1, 0), 0);
	CHECK_EQ(out[1], 0);
	CHECK_EQ(call(QUELL_TIME, 1, 0, 0, 0), 0);
	CHECK_EQ(out[0], 5);
	CHECK_EQ(out[5], fake_tsc);
	CHECK_EQ(call(QUELL_EXIT, HVM_EXIT_COUNT, 0, 0, 0), -QUELL_ENOENT);
	CHECK_EQ(call(QUELL_EXIT, 0, 2, 0, 0), -QUELL_ENOENT);
	CHECK_EQ(call(QUELL_EXIT, 0, 0, 2, 0), -QUELL_ENOENT);
	CHECK_EQ(call(QUELL_KICK, 0, 2, 0, 0), -QUELL_ENOENT);
	CHECK_EQ(call(QUELL_TIME, 2, 0, 0, 0), -QUELL_ENOENT);
	CHECK_EQ(call(QUELL_REASON, HVM_EXIT_COUNT, 0, 0, 0), -QUELL_ENOENT);
	CHECK_EQ(call(QUELL_REASON, HVM_EXIT_HLT, 0, 0, 0), 0);
	CHECK(!strcmp((char *)out, "OTHER")); /* the fake back end names none */
	CHECK_EQ(call(QUELL_VERSION, 0, 0, 0, 0), 0);
	CHECK_EQ(out[0], QUELL_ABI_VERSION);
	teardown();
}

/* Every register anything: no crash, no change on an error, and policies stay policies. */
static void test_fuzz(void)
{
	static const uint64_t edges[] = {0, 1, 2, 31, 32, 63, 64, HVM_EXIT_COUNT, 1000000000, 1000000001,
	                                 UINT64_MAX, UINT64_MAX - 1, BIT(31), BIT(32), BIT(63), INT64_MAX};

	setup(3, true, 0);
	for (unsigned i = 0; i < 300000; i++) {
		uint64_t number = QUELL_CALL(fx_random() % (QUELL_OP_COUNT + 2)), in[6];
		int64_t result;

		for (unsigned r = 0; r < 6; r++)
			in[r] = fx_random() % 4 ? edges[fx_random() % ARRAY_LEN(edges)] : fx_random();
		if (fx_random() % 16 == 0)
			number = fx_random();
		result = raw(&fx_vcpu[fx_random() % 3], number, in);
		CHECK(result == 0 || result == -QUELL_ENOENT || result == -QUELL_ERANGE ||
		      result == -QUELL_EINVAL || result == -QUELL_ENOSPC || result == -QUELL_ENOSYS);
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

/* --- the run loop's accounts ------------------------------------------------------------------------ */

#define NOTIFY_GPA 0x100000000ull

static unsigned step;

/* A guest that runs 1,000 cycles at a time: kicks queue 1 twice, halts, marks, kicks queue 0, ends. */
static void scripted_run(struct hvm_vcpu *hv)
{
	static const uint8_t store[] = {0x66, 0x89, 0x07}; /* mov [rdi], ax */
	struct vcpu *v = CONTAINER_OF(hv, struct vcpu, hv);

	fake_tsc += 1000;
	memcpy(fx_ram, store, sizeof(store));
	hv->rip = 0;
	memset(&hv->exit, 0, sizeof(hv->exit));
	hv->exit.insn_len = 3;
	switch (step++) {
	case 0:
	case 1:
	case 4:
		hv->exit.reason = HVM_EXIT_KICK;
		hv->exit.u.mem.gpa = NOTIFY_GPA + (step == 5 ? 0 : 4);
		hv->exit.u.mem.write = true;
		break;
	case 2:
		hv->exit.reason = HVM_EXIT_HLT;
		hv->rflags |= HVM_RFLAGS_IF;
		break;
	case 3:
		hv->exit.reason = HVM_EXIT_HYPERCALL;
		hv->gpr[HVM_RAX] = QUELL_CALL(QUELL_MARK);
		memset(&hv->gpr[HVM_RBX], 0, sizeof(uint64_t));
		memcpy(&hv->gpr[HVM_RBX], "two", 4);
		hv->gpr[HVM_RCX] = hv->gpr[HVM_RDX] = hv->gpr[HVM_RSI] = 0;
		break;
	default:
		hv->exit.reason = HVM_EXIT_INTR;
		atomic_fetch_or(&v->events, VCPU_EVENT_STOP);
	}
}

/* Time passes wherever somebody looks at the clock. */
static void scripted_wait(const atomic_uint *wake, uint64_t deadline_tsc)
{
	(void)wake;
	(void)deadline_tsc;
	fake_tsc += 50000;
	irq_post(V, 0x40);
}

static void test_run_loop(void)
{
	const struct hvm_ops *before = hvm;
	struct hvm_ops ops = *hvm;
	const struct exit_stats *s;
	uint64_t start_tsc;

	setup(1, true, 0);
	ops.run = scripted_run;
	hvm = &ops;
	fx_listen(0);
	/* Flat 64-bit code at linear 0, without paging. */
	memset(&fx_state, 0, sizeof(fx_state));
	fx_state.cr0 = 1;
	fx_state.seg[HVM_CS].attr = 0x409b;
	fx_state.seg[HVM_CS].limit = UINT32_MAX;
	atomic_store(&page->gpa, NOTIFY_GPA);
	fake_wait = scripted_wait;
	step = 0;
	V->run_state = VCPU_RUNNING;
	V->hv.rflags = 2;
	start_tsc = fake_tsc;
	vcpu_run(V);
	CHECK_EQ(step, 6);
	CHECK_EQ(atomic_load(&V->phase), 1);
	s = phase_exits(V, 0);
	CHECK_EQ(s->kick[1].count, 2);
	CHECK_EQ(s->kick[0].count, 0);
	CHECK_EQ(s->reason[HVM_EXIT_KICK].count, 0);
	CHECK_EQ(s->reason[HVM_EXIT_HLT].count, 1);
	CHECK_EQ(s->reason[HVM_EXIT_HYPERCALL].count, 1); /* the mark is the old phase's last exit */
	CHECK_EQ(s->guest_tsc, 4000);
	CHECK_EQ(s->halted_tsc, 50000);
	CHECK_EQ(s->wall_tsc, s->guest_tsc + s->handling_tsc + s->halted_tsc);
	CHECK_EQ(phase_exits(V, 1)->start_tsc, start_tsc + s->wall_tsc);
	s = phase_exits(V, 1);
	CHECK_EQ(s->kick[0].count, 1);
	CHECK_EQ(s->kick[1].count, 0);
	CHECK_EQ(s->reason[HVM_EXIT_INTR].count, 1);
	CHECK_EQ(s->guest_tsc, 2000);
	CHECK_EQ(s->wall_tsc, s->guest_tsc + s->handling_tsc + s->halted_tsc);
	CHECK_EQ(start_tsc + phase_exits(V, 0)->wall_tsc + s->wall_tsc, fake_tsc);
	CHECK_EQ(atomic_load(&blk->queue[1].ioq.kicks), 2);
	CHECK_EQ(atomic_load(&blk->queue[0].ioq.kicks), 1);
	hvm = before;
	teardown();
}

/* --- a thousand switches under load ----------------------------------------------------------------- */

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
	static const uint64_t policy[] = {0, QUELL_POLL_ALWAYS, 0, 100, QUELL_POLL_AUTO, 0, 1000000,
	                                  QUELL_POLL_ALWAYS, QUELL_POLL_AUTO, 100};
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
	if (pthread_create(&io, NULL, io_main, NULL) || pthread_create(&control, NULL, switch_main, NULL))
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
	printf("  %u requests in %u bursts, %llu kicks, %llu arms, %u switches seen in force\n", published,
	       rounds, (unsigned long long)atomic_load(&blk->queue[0].ioq.kicks),
	       (unsigned long long)blk->queue[0].ioq.counts.arms, in_force);
	teardown();
}

TESTS(T(test_denied), T(test_unknown), T(test_cpuid), T(test_poll_set), T(test_transitions), T(test_always_at_once),
      T(test_poll_set_unattached), T(test_names), T(test_phases_end), T(test_settled),
      T(test_phase_counts), T(test_exit_counts), T(test_fuzz), T(test_run_loop), T(test_switches))
