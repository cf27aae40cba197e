/*
 * The run loop against a back end made of a script: what a vCPU does about one exit.
 */
#include "tests/unit/test.h"
#include "tests/unit/vm_fixture.h"

#include "vmm/irq.h"
#include "vmm/vcpu.h"

#define V     (&fx_vcpu[0])
#define STEPS 8u

#define CR0_PE    BIT(0)
#define SS_DPL(n) ((uint32_t)(n) << 5)

/* What the guest does, one entry after the other; past the end it runs until it is stopped. */
static void (*script[STEPS])(struct hvm_vcpu *);
static unsigned entries, sleeps;
static int injected; /* the last vector, -1: none */
static unsigned xsetbvs;

void vm_end(struct vm *vm, enum vm_end reason)
{
	atomic_store(&vm->end, reason);
	for (unsigned i = 0; i < vm->vcpu_count; i++)
		irq_event(vm->vcpu[i], VCPU_EVENT_STOP);
}

bool hvm_xsetbv_safe(uint32_t index, uint64_t value)
{
	(void)index;
	(void)value;
	xsetbvs++;
	return true;
}

static void stop(void)
{
	irq_event(V, VCPU_EVENT_STOP);
}

static void on_run(struct hvm_vcpu *hv)
{
	hv->skipped = false;
	hv->exit.insn_len = 1;
	if (entries < STEPS && script[entries]) {
		script[entries++](hv);
		return;
	}
	entries++;
	hv->exit.reason = HVM_EXIT_INTR;
	stop();
}

static void on_inject(struct hvm_vcpu *hv, uint8_t vector, int64_t error_code)
{
	(void)error_code;
	injected = vector;
	if (vector == 2)
		hv->nmi_pending = true;
}

static void on_dump(struct hvm_vcpu *hv)
{
	(void)hv;
}

static void on_events_reset(struct hvm_vcpu *hv)
{
	hv->exception_pending = 0;
	hv->nmi_pending = false;
}

static void on_wait(const atomic_uint *wake, uint64_t deadline_tsc)
{
	(void)wake;
	(void)deadline_tsc;
	sleeps++;
	stop(); /* nobody else would wake it */
}

static void run(void)
{
	static struct hvm_ops ops;
	const struct hvm_ops *before = hvm;

	ops = *before;
	ops.run = on_run;
	ops.inject = on_inject;
	ops.events_reset = on_events_reset;
	ops.dump = on_dump;
	hvm = &ops;
	entries = sleeps = xsetbvs = 0;
	injected = -1;
	fake_wait = on_wait;
	V->stats = plat_mem_alloc(exit_stats_bytes(1), CACHE_LINE_BYTES);
	V->hv.irq_offer = -1;
	vcpu_run(V);
	hvm = before;
}

static void setup(void)
{
	memset(script, 0, sizeof(script));
	fx_init(1);
}

static void do_hlt(struct hvm_vcpu *hv)
{
	hv->exit.reason = HVM_EXIT_HLT;
}

static void do_xsetbv(struct hvm_vcpu *hv)
{
	hv->gpr[HVM_RAX] = 7;
	hv->gpr[HVM_RCX] = hv->gpr[HVM_RDX] = 0;
	hv->exit.reason = HVM_EXIT_XSETBV;
}

static void halt_sleeps(void)
{
	setup();
	script[0] = do_hlt;
	run();
	CHECK_EQ(entries, 1);
	CHECK_EQ(sleeps, 1);
	CHECK_EQ(V->hv.rip, 1);
}

/* Nothing would say again that it is there: the guest must not be left asleep. */
static void halt_does_not_outsleep_an_nmi(void)
{
	setup();
	script[0] = do_hlt;
	V->hv.nmi_pending = true; /* came while the guest could not take it */
	run();
	CHECK_EQ(entries, 2);
	CHECK_EQ(sleeps, 0);
}

static void xsetbv_is_the_kernels(void)
{
	setup();
	script[0] = do_xsetbv;
	run();
	CHECK_EQ(xsetbvs, 1);
	CHECK_EQ(injected, -1);
	CHECK_EQ(V->hv.rip, 1);
	/* SVM's intercept may come before the check of the privilege level. */
	setup();
	script[0] = do_xsetbv;
	fx_state.cr0 = CR0_PE;
	fx_state.seg[HVM_SS].attr = SS_DPL(3);
	run();
	CHECK_EQ(xsetbvs, 0);
	CHECK_EQ(injected, 13);
	CHECK_EQ(V->hv.rip, 0);
}

/* It was for the processor that INIT has ended; one after INIT is the new one's. */
static void nmi_does_not_outlive_init(void)
{
	setup();
	irq_event(V, VCPU_EVENT_NMI);
	irq_event(V, VCPU_EVENT_INIT);
	irq_event(V, VCPU_EVENT_SIPI | 0x9900);
	run();
	CHECK_EQ(entries, 1);
	CHECK_EQ(injected, -1);
	setup();
	irq_event(V, VCPU_EVENT_INIT);
	irq_event(V, VCPU_EVENT_SIPI | 0x9900);
	irq_event(V, VCPU_EVENT_NMI);
	run();
	CHECK_EQ(injected, 2);
}

static void do_delivery(struct hvm_vcpu *hv)
{
	hv->exit.reason = HVM_EXIT_MEM;
	hv->exit.u.mem.gpa = VPCI_MMIO_BASE_GPA;
	hv->exit.u.mem.delivering = true;
}

static void do_delivery_kick(struct hvm_vcpu *hv)
{
	do_delivery(hv);
	hv->exit.reason = HVM_EXIT_KICK;
	hv->exit.u.mem.write = true;
}

/* A guest with its descriptor table in a device ends; it does not fault there for ever. */
static void undeliverable_event_ends_the_guest(void)
{
	setup();
	script[0] = do_delivery;
	run();
	CHECK_EQ(entries, 1);
	CHECK_EQ(injected, -1);
	CHECK_EQ(atomic_load(&fx_vm.end), VM_ERROR);
	setup();
	script[0] = do_delivery_kick;
	run();
	CHECK_EQ(entries, 1);
	CHECK_EQ(atomic_load(&fx_vm.end), VM_ERROR);
}

/* mov [rax], ecx, with a prefix or without. */
static const uint8_t store[] = {0x89, 0x08}, store16[] = {0x66, 0x89, 0x08};
static struct ioq kicked;
static struct ioloop kick_loop;

static void do_kick(struct hvm_vcpu *hv)
{
	hv->exit.reason = HVM_EXIT_KICK;
	hv->exit.insn_len = 0;
	hv->exit.u.mem.gpa = fx_vm.kick[0].gpa;
	hv->exit.u.mem.write = true;
}

static void do_kick_with_bytes(struct hvm_vcpu *hv)
{
	do_kick(hv);
	hv->exit.insn_bytes = store16;
	hv->exit.insn_bytes_count = sizeof(store16);
}

static void kick_setup(void (*kick)(struct hvm_vcpu *))
{
	static struct ioq *queues[1] = {&kicked};

	setup();
	script[0] = kick;
	memset(&kicked, 0, sizeof(kicked));
	ioloop_init(&kick_loop, 0);
	ioloop_queue_add(&kick_loop, &kicked);
	fx_vm.kick[0].gpa = VPCI_MMIO_BASE_GPA;
	fx_vm.kick[0].queue_count = 1;
	fx_vm.kick[0].multiplier_shift = 2;
	fx_vm.kick[0].queue = queues;
	fx_vm.kick_count = 1;
	memcpy(fx_ram, store, sizeof(store));
}

/* Over the instruction in memory, or the one the processor says it met there. */
static void kick_skips_its_instruction(void)
{
	kick_setup(do_kick);
	run();
	CHECK_EQ(kicked.kicks, 1);
	CHECK_EQ(V->hv.rip, sizeof(store));
	kick_setup(do_kick_with_bytes);
	run();
	CHECK_EQ(kicked.kicks, 1);
	CHECK_EQ(V->hv.rip, sizeof(store16));
}

TESTS(T(kick_skips_its_instruction), T(halt_sleeps), T(halt_does_not_outsleep_an_nmi),
      T(xsetbv_is_the_kernels), T(nmi_does_not_outlive_init), T(undeliverable_event_ends_the_guest))
