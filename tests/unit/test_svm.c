/*
 * The SVM back end's entry and exit paths hosted, with a processor made of a function: for what no
 * emulator at hand has (next-RIP save, decode assists, flush by ASID, clean bits) and for event
 * re-injection. The world switch itself is left to tests/system/hvm_smoke.
 */
#include "arch/x86/svm/run.c"
#include "arch/x86/svm/state.c"
#include "arch/x86/core.h"
#include "arch/x86/svm/npt.h"
#include "test.h"
#include "tests/fake/platform.h"

struct svm_caps svm_caps;

static struct vmcb vmcb;
static struct svm_vcpu sv;
static struct hvm_vm vm;
static struct hvm_vcpu vcpu;
static struct vmcb seen; /* as the processor found it */
static void (*processor)(struct vmcb *);
static uint64_t armed_tsc;

void core_timer_arm(uint64_t deadline_tsc)
{
	armed_tsc = deadline_tsc;
}

void svm_switch(struct hvm_vcpu *v, hpa_t vmcb_hpa, hpa_t host_hpa)
{
	CHECK(v == &vcpu && vmcb_hpa == 0x1000 && host_hpa == 0x2000);
	seen = vmcb;
	vmcb.exit_int_info = 0;
	vmcb.exit_info1 = vmcb.exit_info2 = 0;
	processor(&vmcb);
}

static void reset(void)
{
	memset(&vmcb, 0, sizeof(vmcb));
	memset(&vcpu, 0, sizeof(vcpu));
	memset(&sv, 0, sizeof(sv));
	memset(&svm_caps, 0, sizeof(svm_caps));
	svm_caps.next_rip = svm_caps.decode_assists = true;
	svm_caps.flush_by_asid = svm_caps.vmcb_clean = true;
	npt_format_init(&svm_caps.npt, 48, true, true);
	sv.int_ctl = vmcb.int_ctl = SVM_V_INTR_MASKING | SVM_V_IGN_TPR;
	sv.host_hpa = 0x2000;
	vcpu.cb = &vmcb;
	vcpu.cb_hpa = 0x1000;
	vcpu.priv = &sv;
	vcpu.vm = &vm;
	vcpu.irq_offer = -1;
	vcpu.exit.insn_bytes = vmcb.insn_bytes;
}

static void run(void (*cpu)(struct vmcb *))
{
	processor = cpu;
	svm_run(&vcpu);
}

static void cpu_cpuid(struct vmcb *c)
{
	c->exit_code = SVM_EXIT_CPUID;
	c->next_rip = c->rip + 2;
}

static void cpu_hlt(struct vmcb *c)
{
	c->exit_code = SVM_EXIT_HLT;
	c->next_rip = c->rip + 1;
}

static void cpu_intr(struct vmcb *c)
{
	c->exit_code = SVM_EXIT_INTR;
	c->next_rip = 0;
}

static void registers_and_length(void)
{
	reset();
	vcpu.gpr[HVM_RAX] = 0x11;
	vcpu.gpr[HVM_RSP] = 0x22;
	vcpu.rip = 0x1000;
	vcpu.rflags = 0x202;
	vcpu.deadline_tsc = 777;
	run(cpu_cpuid);
	CHECK_EQ(armed_tsc, 777);
	CHECK(seen.rax == 0x11 && seen.rsp == 0x22 && seen.rip == 0x1000 && seen.rflags == 0x202);
	CHECK_EQ(vcpu.exit.reason, HVM_EXIT_CPUID);
	CHECK_EQ(vcpu.exit.insn_len, 2);
	CHECK(vcpu.interruptible);

	/* Switched off, the field is not looked at; nor where no instruction exited. */
	svm_caps.next_rip = false;
	run(cpu_cpuid);
	CHECK_EQ(vcpu.exit.insn_len, 0);
	svm_caps.next_rip = true;
	run(cpu_intr);
	CHECK_EQ(vcpu.exit.reason, HVM_EXIT_INTR);
	CHECK_EQ(vcpu.exit.insn_len, 0);
}

static void cpu_shadow(struct vmcb *c)
{
	cpu_hlt(c);
	c->int_state = 1;
}

static void skip_drops_shadow(void)
{
	reset();
	vcpu.rflags = 0x202;
	run(cpu_shadow);
	CHECK(!vcpu.interruptible);
	run(cpu_hlt);
	CHECK_EQ(seen.int_state, 1); /* no skip: it stays */
	hvm_skip(&vcpu, 1);
	run(cpu_hlt);
	CHECK_EQ(seen.int_state, 0);
	CHECK(!vcpu.skipped);
}

/* Who single-steps is told after an instruction that we carried out, as after any other. */
static void skip_fires_the_trap_flag(void)
{
	reset();
	vcpu.rflags = 0x102;
	run(cpu_hlt);
	CHECK_EQ(seen.event_inj, 0); /* no skip: the processor's business */
	hvm_skip(&vcpu, 1);
	run(cpu_hlt);
	CHECK_EQ(seen.event_inj, SVM_EVENT_VALID | 3 << 8 | 1);
	CHECK_EQ(seen.dr6, BIT(14));
	CHECK(!(seen.clean & SVM_CLEAN_DR));
	run(cpu_hlt);
	CHECK_EQ(seen.event_inj, 0); /* once */
}

static void clean_and_flush(void)
{
	reset();
	sv.dirty = SVM_CLEAN_ALL;
	sv.flush = true;
	run(cpu_hlt);
	CHECK_EQ(seen.clean, 0);
	CHECK_EQ(seen.tlb_control, SVM_TLB_FLUSH_ASID);
	/* The steady path: nothing withheld, nothing flushed. */
	run(cpu_hlt);
	CHECK_EQ(seen.clean, SVM_CLEAN_ALL);
	CHECK_EQ(seen.tlb_control, SVM_TLB_KEEP);
	vcpu.irq_offer = 0x51;
	run(cpu_hlt);
	CHECK_EQ(seen.clean, SVM_CLEAN_ALL & ~SVM_CLEAN_TPR);
	run(cpu_hlt);
	CHECK_EQ(seen.clean, SVM_CLEAN_ALL);

	svm_caps.flush_by_asid = svm_caps.vmcb_clean = false;
	sv.flush = true;
	run(cpu_hlt);
	CHECK_EQ(seen.clean, 0);
	CHECK_EQ(seen.tlb_control, SVM_TLB_FLUSH_ALL);
}

static void cpu_takes_irq(struct vmcb *c)
{
	cpu_hlt(c);
	c->int_ctl &= ~SVM_V_IRQ;
}

static void offer_and_take(void)
{
	reset();
	vcpu.irq_offer = 0x51;
	run(cpu_hlt);
	CHECK_EQ(seen.int_ctl,
	         SVM_V_IRQ | 5ull << 16 | 0x51ull << 32 | SVM_V_INTR_MASKING | SVM_V_IGN_TPR);
	CHECK(!vcpu.irq_taken);
	vcpu.irq_offer = 0x62; /* a better one */
	run(cpu_hlt);
	CHECK_EQ(seen.int_ctl >> 32, 0x62);
	CHECK(!vcpu.irq_taken);
	run(cpu_takes_irq);
	CHECK(vcpu.irq_taken);

	/* The same vector again: written again, although it is what was written last. */
	vcpu.irq_taken = false;
	run(cpu_hlt);
	CHECK(seen.int_ctl & SVM_V_IRQ);
	vcpu.irq_offer = -1;
	run(cpu_hlt);
	CHECK(!(seen.int_ctl & SVM_V_IRQ));
	CHECK(!vcpu.irq_taken);
}

static uint64_t int_info;

static void cpu_npf_in_delivery(struct vmcb *c)
{
	c->exit_code = SVM_EXIT_NPF;
	c->exit_info1 = SVM_NPF_WRITE;
	c->exit_info2 = 0x5000;
	c->exit_int_info = int_info;
}

static void events_go_in_again(void)
{
	static const struct {
		uint64_t info, again; /* again 0: the instruction runs again instead */
		bool taken;
	} cases[] = {
	        {SVM_EVENT_VALID | 0x51, SVM_EVENT_VALID | 0x51, true},
	        {SVM_EVENT_VALID | 0x52, SVM_EVENT_VALID | 0x52, false},
	        {SVM_EVENT_VALID | 3 << 8 | 0x51, SVM_EVENT_VALID | 0x51, true}, /* QEMU's way */
	        {SVM_EVENT_VALID | 2 << 8 | 2, SVM_EVENT_VALID | 2 << 8 | 2, false},
	        {SVM_EVENT_VALID | 3 << 8 | 1 << 11 | 14 | 7ull << 32,
	         SVM_EVENT_VALID | 3 << 8 | 1 << 11 | 14 | 7ull << 32, false},
	        {SVM_EVENT_VALID | 3 << 8 | 3, 0, false},
	        {SVM_EVENT_VALID | 4 << 8 | 0x80, 0, false},
	        {3 << 8 | 14, 0, false}, /* not valid */
	};

	for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
		reset();
		vcpu.irq_offer = 0x51;
		int_info = cases[i].info;
		run(cpu_npf_in_delivery); /* V_IRQ left standing, as QEMU does */
		CHECK_EQ(vcpu.exit.reason, HVM_EXIT_MEM);
		CHECK_EQ(vcpu.irq_taken, cases[i].taken);
		vcpu.irq_offer = cases[i].taken ? -1 : vcpu.irq_offer;
		vcpu.irq_taken = false;
		run(cpu_hlt);
		CHECK_EQ(seen.event_inj, cases[i].again);
		CHECK_EQ(!!(seen.int_ctl & SVM_V_IRQ), !cases[i].taken);
		/* Once only. */
		run(cpu_hlt);
		CHECK_EQ(seen.event_inj, 0);
	}
}

static void injection(void)
{
	reset();
	svm_inject(&vcpu, 13, 0x1234);
	run(cpu_hlt);
	CHECK_EQ(seen.event_inj, 0x1234ull << 32 | SVM_EVENT_VALID | BIT(11) | 3 << 8 | 13);
	run(cpu_hlt);
	CHECK_EQ(seen.event_inj, 0);
	svm_inject(&vcpu, 6, -1);
	run(cpu_hlt);
	CHECK_EQ(seen.event_inj, SVM_EVENT_VALID | 3 << 8 | 6);
	svm_inject(&vcpu, 0x30, -1);
	run(cpu_hlt);
	CHECK_EQ(seen.event_inj, SVM_EVENT_VALID | 0x30);
}

static void cpu_iret(struct vmcb *c)
{
	c->exit_code = SVM_EXIT_IRET;
}

static void nmi_waits_for_iret(void)
{
	const uint64_t nmi = SVM_EVENT_VALID | 2 << 8 | 2;

	reset();
	svm_inject(&vcpu, 2, -1);
	svm_inject(&vcpu, 6, -1); /* the exception goes first */
	run(cpu_hlt);
	CHECK_EQ(seen.event_inj, SVM_EVENT_VALID | 3 << 8 | 6);
	run(cpu_hlt);
	CHECK_EQ(seen.event_inj, nmi);
	CHECK(seen.misc1 & SVM_I_IRET);
	svm_inject(&vcpu, 2, -1);
	run(cpu_iret);
	CHECK_EQ(seen.event_inj, 0);
	CHECK_EQ(vcpu.exit.reason, HVM_EXIT_NONE);
	run(cpu_hlt); /* IRET runs in this one */
	CHECK_EQ(seen.event_inj, 0);
	CHECK(!(seen.misc1 & SVM_I_IRET));
	run(cpu_hlt);
	CHECK_EQ(seen.event_inj, nmi);
	run(cpu_hlt);
	CHECK_EQ(seen.event_inj, 0);
}

/* A processor that INIT takes out of an NMI's handler, with a fault on its way, starts afresh. */
static void init_forgets_events(void)
{
	reset();
	svm_inject(&vcpu, 2, -1);
	run(cpu_hlt);
	CHECK(seen.misc1 & SVM_I_IRET);
	svm_inject(&vcpu, 2, -1);
	svm_inject(&vcpu, 13, 0);
	svm_events_reset(&vcpu);
	run(cpu_hlt);
	CHECK_EQ(seen.event_inj, 0);
	CHECK(!(seen.misc1 & SVM_I_IRET));
	CHECK(!(seen.clean & SVM_CLEAN_INTERCEPTS));
	svm_inject(&vcpu, 2, -1);
	run(cpu_hlt);
	CHECK_EQ(seen.event_inj, SVM_EVENT_VALID | 2 << 8 | 2);
}

static uint64_t code, info1, info2;

static void cpu_raw(struct vmcb *c)
{
	c->exit_code = code;
	c->exit_info1 = info1;
	c->exit_info2 = info2;
	c->next_rip = c->rip + 3;
	c->insn_bytes_count = 15;
	c->insn_bytes[0] = 0xa5;
}

static enum hvm_exit_reason raw(uint64_t c, uint64_t i1, uint64_t i2)
{
	code = c;
	info1 = i1;
	info2 = i2;
	run(cpu_raw);
	return vcpu.exit.reason;
}

static void exits_decode(void)
{
	reset();
	CHECK_EQ(raw(SVM_EXIT_NPF, 0xe, 0xfe000010), HVM_EXIT_KICK);
	CHECK(vcpu.exit.u.mem.gpa == 0xfe000010 && vcpu.exit.u.mem.write && !vcpu.exit.u.mem.exec);
	CHECK_EQ(vcpu.exit.insn_bytes_count, 15);
	CHECK_EQ(vcpu.exit.insn_bytes[0], 0xa5);
	CHECK_EQ(raw(SVM_EXIT_NPF, 0x14, 0x123000), HVM_EXIT_MEM);
	CHECK(!vcpu.exit.u.mem.write && vcpu.exit.u.mem.exec);

	CHECK_EQ(raw(SVM_EXIT_CR8_WRITE, BIT(63) | 11, 0), HVM_EXIT_CR8);
	CHECK(vcpu.exit.u.cr8.write && vcpu.exit.u.cr8.gpr == 11);
	CHECK_EQ(vcpu.exit.insn_bytes_count, 0);
	CHECK_EQ(raw(SVM_EXIT_CR8_READ, BIT(63) | 3, 0), HVM_EXIT_CR8);
	CHECK(!vcpu.exit.u.cr8.write && vcpu.exit.u.cr8.gpr == 3);

	/* IN AL, 0x60; REP OUTSD with 32-bit addresses from FS. */
	CHECK_EQ(raw(SVM_EXIT_IOIO, 0x60ull << 16 | BIT(4) | 1, 0x4002), HVM_EXIT_PIO);
	CHECK(vcpu.exit.u.pio.port == 0x60 && vcpu.exit.u.pio.in &&
	      vcpu.exit.u.pio.width_bytes == 1);
	CHECK_EQ(vcpu.exit.u.pio.next_rip, 0x4002);
	CHECK_EQ(
	        raw(SVM_EXIT_IOIO, 0x1f0ull << 16 | 4 << 10 | BIT(8) | BIT(6) | BIT(3) | BIT(2), 0),
	        HVM_EXIT_PIO);
	CHECK(vcpu.exit.u.pio.string && vcpu.exit.u.pio.rep && !vcpu.exit.u.pio.in);
	CHECK(vcpu.exit.u.pio.width_bytes == 4 && vcpu.exit.u.pio.addr_size == 4);
	CHECK_EQ(vcpu.exit.u.pio.seg, HVM_FS);

	vcpu.gpr[HVM_RCX] = 0xfffffffff0000010ull;
	CHECK_EQ(raw(SVM_EXIT_MSR, 0, 0), HVM_EXIT_RDMSR);
	CHECK_EQ(vcpu.exit.u.msr.index, 0xf0000010);
	CHECK_EQ(raw(SVM_EXIT_MSR, 1, 0), HVM_EXIT_WRMSR);

	CHECK_EQ(raw(~0ull, 0, 0), HVM_EXIT_BAD_STATE);
	CHECK_EQ(raw(0xffffffff, 0, 0), HVM_EXIT_BAD_STATE);
	CHECK_EQ(raw(SVM_EXIT_MC, 0, 0), HVM_EXIT_OTHER);
	CHECK_EQ(vcpu.exit.u.raw.code, SVM_EXIT_MC);
	CHECK_EQ(raw(SVM_EXIT_SHUTDOWN, 0, 0), HVM_EXIT_TRIPLE_FAULT);
	for (code = SVM_EXIT_VMLOAD; code <= SVM_EXIT_SKINIT; code++)
		CHECK_EQ(raw(code, 0, 0), HVM_EXIT_UD);
}

/* What the guest raised itself and was intercepted for the core's sake goes back to it. */
static void exceptions_hand_on(void)
{
	reset();
	CHECK_EQ(raw(SVM_EXIT_AC, 0, 0), HVM_EXIT_NONE);
	run(cpu_hlt);
	CHECK_EQ(seen.event_inj, SVM_EVENT_VALID | BIT(11) | 3 << 8 | 17);
	CHECK_EQ(raw(SVM_EXIT_DB, 0, 0), HVM_EXIT_NONE);
	run(cpu_hlt);
	CHECK_EQ(seen.event_inj, SVM_EVENT_VALID | 3 << 8 | 1);
}

/* Without a reserved bit the tables tell a kick from a hole. */
static void kick_without_reserved_bit(void)
{
	reset();
	npt_format_init(&svm_caps.npt, 52, true, true);
	CHECK_EQ(nested_init(&svm_caps.npt, &vm), 0);
	CHECK_EQ(nested_map_mmio(&svm_caps.npt, &vm, 0xfe000000, 0x1000), 0);
	CHECK_EQ(raw(SVM_EXIT_NPF, SVM_NPF_WRITE, 0xfe000010), HVM_EXIT_KICK);
	CHECK_EQ(raw(SVM_EXIT_NPF, SVM_NPF_WRITE, 0xfe001010), HVM_EXIT_MEM);
	fake_reset();
}

static void segment_attributes(void)
{
	CHECK_EQ(attr_get(0xa9b), 0xa09b);
	CHECK_EQ(attr_put(0xa09b), 0xa9b);
	CHECK_EQ(attr_get(0x08b), 0x8b);
	CHECK_EQ(attr_get(0x000), HVM_SEG_UNUSABLE);
	CHECK_EQ(attr_put(HVM_SEG_UNUSABLE | 0xc093), 0xc13);
	for (unsigned a = 0; a < 0x1000; a++)
		CHECK_EQ(attr_put(attr_get((uint16_t)a)), a);
}

static void state_marks_and_flushes(void)
{
	struct hvm_state s = {0}, back = {0};

	reset();
	s.cr0 = 0x80000011;
	s.efer = 0x500;
	s.seg[HVM_SS].attr = 0xf3; /* DPL 3 */
	svm_state_set(&vcpu, &s);
	CHECK(sv.flush);
	CHECK_EQ(vmcb.efer, 0x1500);
	CHECK_EQ(vmcb.cpl, 3);
	svm_state_get(&vcpu, &back);
	CHECK_EQ(back.efer, 0x500);
	CHECK_EQ(back.seg[HVM_SS].attr, 0xf3);

	/* A page fault's CR2 alone costs no flush. */
	sv.flush = false;
	sv.dirty = 0;
	s.cr2 = 0x1234;
	svm_state_set(&vcpu, &s);
	CHECK(!sv.flush);
	CHECK(sv.dirty & SVM_CLEAN_CR2);
	s.cr3 = 0x7000;
	svm_state_set(&vcpu, &s);
	CHECK(sv.flush);
}

TESTS(T(registers_and_length), T(skip_drops_shadow), T(skip_fires_the_trap_flag),
      T(clean_and_flush), T(offer_and_take), T(events_go_in_again), T(injection),
      T(nmi_waits_for_iret), T(init_forgets_events), T(exits_decode), T(exceptions_hand_on),
      T(kick_without_reserved_bit), T(segment_attributes), T(state_marks_and_flushes))
