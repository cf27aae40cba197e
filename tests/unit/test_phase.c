/*
 * Phases of the accounts: marks, what counts where, and the run loop that does the counting.
 */
#include "tests/unit/test.h"
#include "tests/unit/control_fixture.h"

#include "vmm/irq.h"
#include "vmm/vcpu.h"

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

/* --- marks
 * ----------------------------------------------------------------------------------------- */

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
		bool good = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
		            (c >= 'a' && c <= 'z') || strchr("-_.:=+/@%", (int)c);
		int64_t result;

		memcpy(name, (char[]){'a', (char)c, 0}, 3);
		result = mark(name);
		CHECK_EQ(result,
		         good ? (atomic_load(&fx_vm.phases.count) < 64 || !result ? 0
		                                                                  : -QUELL_ENOSPC)
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

/* --- the run loop's accounts
 * ------------------------------------------------------------------------ */

#define NOTIFY_GPA 0x100000000ull

static unsigned step;

/* A guest that runs 1,000 cycles at a time: kicks queue 1 twice, halts, marks, kicks queue 0, ends.
 */
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
	default: hv->exit.reason = HVM_EXIT_INTR; atomic_fetch_or(&v->events, VCPU_EVENT_STOP);
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
	CHECK_EQ(s->reason[HVM_EXIT_HYPERCALL].count,
	         1); /* the mark is the old phase's last exit */
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

TESTS(T(test_names), T(test_phases_end), T(test_settled), T(test_phase_counts), T(test_exit_counts),
      T(test_run_loop))
