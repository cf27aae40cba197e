/*
 * The cases: each runs one program of guest.asm and holds every exit against what must be.
 */
#include "arch/x86/arch.h"
#include "arch/x86/core.h"
#include "tests/system/hvm_smoke/smoke.h"

#define GUEST(name)  extern const uint8_t guest_##name[], guest_##name##_end[]
#define LOAD16(name) smoke_load(guest_##name, guest_##name##_end, false)
#define LOAD64(name) smoke_load(guest_##name, guest_##name##_end, true)

GUEST(cpuid);
GUEST(pio);
GUEST(outs);
GUEST(msr);
GUEST(kick);
GUEST(hole);
GUEST(irq);
GUEST(sti_hlt);
GUEST(nops);
GUEST(hlts);
GUEST(bad_stack);
GUEST(ud2);
GUEST(int3);
GUEST(spin);
GUEST(vmcall);
GUEST(vmmcall);
GUEST(mwait);
GUEST(vmx_svm);
GUEST(cr8);
GUEST(xsetbv);
GUEST(wbinvd);
GUEST(regs);
GUEST(rdtsc);
GUEST(cr4_pge);
GUEST(modes);
GUEST(debug);

/* Leaves the case at the first thing that is not so, with the text of it. */
#define WANT(cond)                                                                                 \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			plat_log("  line %d: %s (exit %d)", __LINE__, #cond, v->exit.reason);      \
			return false;                                                              \
		}                                                                                  \
	} while (0)

#define GO(what)  WANT(smoke_go() == HVM_EXIT_##what)
#define STEP(len) WANT(smoke_step(len))

static struct hvm_vcpu *const v = &smoke.vcpu;

static bool hlt(void)
{
	LOAD64(nops);
	GO(HLT);
	WANT(v->rip == SMOKE_CODE + 2);
	return true;
}

static bool cpuid(void)
{
	LOAD16(cpuid);
	GO(CPUID);
	WANT(v->rip == SMOKE_CODE + 12);
	WANT(v->gpr[HVM_RAX] == 0x12345678);
	WANT(v->gpr[HVM_RCX] == 0x9abcdef0);
	STEP(2);
	GO(HLT);
	WANT(v->rip == SMOKE_CODE + 14);
	return true;
}

/* Lengths of IN and OUT: next_rip, or insn_len, or nothing and vmm decodes. */
static bool pio_step(unsigned len_bytes)
{
	uint64_t next_rip = v->exit.u.pio.next_rip;

	WANT(!next_rip || next_rip == v->rip + len_bytes);
	STEP(len_bytes);
	return true;
}

static bool pio(void)
{
	LOAD16(pio);
	GO(PIO);
	WANT(v->exit.u.pio.port == 0x3f8 && v->exit.u.pio.width_bytes == 1 && !v->exit.u.pio.in);
	WANT(!v->exit.u.pio.string && !v->exit.u.pio.rep);
	WANT((v->gpr[HVM_RAX] & 0xff) == 0x41);
	WANT(pio_step(1));
	GO(PIO);
	WANT(v->exit.u.pio.port == 0xcf8 && v->exit.u.pio.width_bytes == 4 && v->exit.u.pio.in);
	v->gpr[HVM_RAX] = 0x5a5a5a5a;
	WANT(pio_step(2));
	GO(PIO);
	WANT(v->exit.u.pio.port == 0x64 && v->exit.u.pio.width_bytes == 1 && v->exit.u.pio.in);
	WANT(pio_step(2));
	GO(HLT);
	WANT(v->gpr[HVM_RAX] == 0x5a5a5a5a);
	return true;
}

static bool outs(void)
{
	LOAD16(outs);
	GO(PIO);
	WANT(v->exit.u.pio.port == 0x402 && v->exit.u.pio.width_bytes == 1 && !v->exit.u.pio.in);
	WANT(v->exit.u.pio.string && v->exit.u.pio.rep && v->exit.u.pio.addr_size == 2);
	WANT(v->exit.u.pio.seg == HVM_DS);
	WANT((v->gpr[HVM_RCX] & 0xffff) == 3 && (v->gpr[HVM_RSI] & 0xffff) == 0x123);
	return true;
}

static bool msr(void)
{
	struct hvm_state state;

	LOAD64(msr);
	GO(RDMSR);
	WANT(v->exit.u.msr.index == 0x10a);
	STEP(2);
	GO(WRMSR);
	WANT(v->exit.u.msr.index == 0xc0000080 && v->gpr[HVM_RAX] == 0x501);
	STEP(2);
	GO(HLT);
	smoke.ops->state_get(v, &state);
	WANT(state.seg[HVM_FS].base == 0x1289abc000ull);
	return true;
}

static bool kick(void)
{
	LOAD64(kick);
	GO(KICK);
	WANT(v->exit.u.mem.gpa == SMOKE_KICK + 0x10 && v->exit.u.mem.write && !v->exit.u.mem.exec);
	WANT(v->rip == SMOKE_CODE);
	hvm_skip(v, 11);
	GO(KICK);
	WANT(v->exit.u.mem.gpa == SMOKE_KICK + 0x24);
	WANT(smoke.ops != &hvm_svm || !v->exit.u.mem.write);
	hvm_skip(v, 7);
	GO(HLT);
	return true;
}

static bool hole(void)
{
	LOAD64(hole);
	GO(MEM);
	WANT(v->exit.u.mem.gpa == SMOKE_HOLE + 0x20 && !v->exit.u.mem.write && !v->exit.u.mem.exec);
	hvm_skip(v, 7);
	GO(MEM);
	WANT(v->exit.u.mem.gpa == SMOKE_HOLE + 0x1000 && v->exit.u.mem.write);
	hvm_skip(v, 8);
	GO(MEM);
	WANT(v->exit.u.mem.gpa == SMOKE_HOLE + 0x2000 && v->exit.u.mem.exec);
	WANT(v->rip == SMOKE_HOLE + 0x2000);
	return true;
}

static bool irq_waits_for_if(void)
{
	LOAD64(irq);
	GO(CPUID);
	WANT(!v->interruptible);
	v->irq_offer = 0x41;
	STEP(2);
	GO(CPUID);
	WANT(*smoke_data(0x80) == 1 && *smoke_data(0) == 0 && smoke.taken == 0);
	STEP(2);
	GO(CPUID);
	WANT(*smoke_data(0) == 1 && smoke.taken == 1);
	WANT(v->interruptible);
	STEP(2);
	GO(HLT);
	WANT(*smoke_data(0) == 1 && smoke.taken == 1);
	return true;
}

/* A higher one replaces the offer, and an offer can be withdrawn. */
static bool irq_offer_changes(void)
{
	LOAD64(irq);
	smoke_gate(0x61, H_COUNT2);
	GO(CPUID);
	v->irq_offer = 0x41;
	STEP(2);
	GO(CPUID);
	v->irq_offer = 0x61;
	STEP(2);
	GO(CPUID);
	WANT(*smoke_data(0) == 0 && *smoke_data(4) == 1 && smoke.taken == 1);

	LOAD64(irq);
	GO(CPUID);
	v->irq_offer = 0x41;
	STEP(2);
	GO(CPUID);
	v->irq_offer = -1;
	STEP(2);
	GO(CPUID);
	STEP(2);
	GO(HLT);
	WANT(*smoke_data(0) == 0 && smoke.taken == 0);
	return true;
}

/* At once when IF is 1 already, and again for the next. */
static bool irq_repeats(void)
{
	LOAD64(irq);
	v->rflags |= HVM_RFLAGS_IF;
	for (unsigned i = 1; i <= 3; i++) {
		v->irq_offer = 0x41;
		GO(CPUID);
		WANT(*smoke_data(0) == i && smoke.taken == i);
		STEP(2);
	}
	GO(HLT);
	return true;
}

static bool sti_shadow(void)
{
	LOAD64(sti_hlt);
	v->irq_offer = 0x41;
	GO(HLT);
	WANT(v->rip == SMOKE_CODE + 1);
	WANT(smoke.taken == 0 && !v->interruptible);
	STEP(1);
	GO(CPUID);
	WANT(smoke.taken == 1 && *smoke_data(0) == 1);
	return true;
}

/* Delivery faults on a stack that is not there; it happens exactly once all the same. */
static bool irq_survives_fault(void)
{
	LOAD64(bad_stack);
	v->irq_offer = 0x41;
	GO(MEM);
	WANT(v->exit.u.mem.write && v->exit.u.mem.gpa >> 12 == (SMOKE_HOLE >> 12) + 3);
	WANT(smoke.taken == 1 && *smoke_data(0) == 0);
	v->gpr[HVM_RSP] = SMOKE_STACK;
	GO(HLT);
	WANT(*smoke_data(0) == 1 && smoke.taken == 1);
	return true;
}

static bool inject_ud(void)
{
	LOAD64(nops);
	smoke.ops->inject(v, 6, -1);
	GO(HLT);
	WANT(*smoke_data(0) == 1);
	return true;
}

static bool inject_gp(void)
{
	LOAD64(nops);
	smoke.ops->inject(v, 13, 0x1234);
	GO(HLT);
	WANT(*smoke_data(8) == 1 && *smoke_data(0x10) == 0x1234);
	return true;
}

static bool inject_pf(void)
{
	struct hvm_state state;

	LOAD64(nops);
	smoke.ops->state_get(v, &state);
	state.cr2 = 0xdeadbeef;
	smoke.ops->state_set(v, &state);
	smoke.ops->inject(v, 14, 2);
	GO(HLT);
	WANT(*smoke_data(8) == 1 && *smoke_data(0x10) == 2 && *smoke_data(0x18) == 0xdeadbeef);
	return true;
}

/* The guest's own exceptions do not come to us. */
static bool guest_exceptions(void)
{
	LOAD64(int3);
	GO(HLT);
	WANT(*smoke_data(0) == 1 && v->rip == SMOKE_CODE + 1);
	return true;
}

/* #DB reaches the guest once for each step, whatever exits on the way. */
static bool debug(void)
{
	struct hvm_state state;

	LOAD64(debug);
	GO(CPUID);
	WANT(*smoke_data(0) == 1);
	STEP(2);
	GO(HLT);
	WANT(*smoke_data(0) == 6);
	smoke.ops->state_get(v, &state);
	WANT(state.dr6 & BIT(14));
	if (smoke.ops == &hvm_svm)
		return true; /* TCG's INT1 returns to itself */
	STEP(1);
	*smoke_data(0) = 0;
	GO(HLT);
	WANT(*smoke_data(0) == 1 && !(v->rflags & BIT(8)));
	return true;
}

/* A second one, sent while the first is being handled, waits for the guest's IRET. */
static bool nmi(void)
{
	LOAD64(hlts);
	smoke.ops->inject(v, 2, -1);
	GO(HLT);
	WANT(*smoke_data(0x20) == 1 && *smoke_data(0x28) == 1); /* in its handler */
	smoke.ops->inject(v, 2, -1);
	STEP(1);
	for (unsigned i = 0; i < 4 && (*smoke_data(0x20) < 2 || *smoke_data(0x28)); i++) {
		GO(HLT);
		STEP(1);
	}
	WANT(*smoke_data(0x20) == 2 && *smoke_data(0x28) == 0);
	WANT(*smoke_data(0x2c) == 1); /* never nested */
	return true;
}

static bool triple_fault(void)
{
	struct hvm_state state;

	LOAD64(ud2);
	smoke.ops->state_get(v, &state);
	state.idtr_limit = 0;
	smoke.ops->state_set(v, &state);
	GO(TRIPLE_FAULT);
	return true;
}

/* The deadline ends a guest that never would. */
static bool deadline(void)
{
	uint64_t start_tsc = plat_tsc(), deadline_tsc;

	LOAD64(spin);
	if (power_on_bochs())
		v->rflags |= HVM_RFLAGS_IF; /* see wake; the timer may be the local APIC's */
	deadline_tsc = start_tsc + plat_tsc_hz() / 100;
	do {
		v->deadline_tsc = deadline_tsc;
		smoke.ops->run(v);
		WANT(v->exit.reason == HVM_EXIT_INTR || v->exit.reason == HVM_EXIT_TIMER ||
		     v->exit.reason == HVM_EXIT_NONE);
		WANT(plat_tsc() - start_tsc < 2 * plat_tsc_hz());
	} while (plat_tsc() < deadline_tsc);
	WANT(v->rip >= SMOKE_CODE && v->rip < SMOKE_CODE + 6);
	WANT(v->gpr[HVM_RBX] > 0);
	return true;
}

/*
 * A wake-up sent before the entry ends the run at once, and is taken, whatever the guest's IF. But
 * Bochs 2.7 keeps interrupts masked after a VM entry with IF = 0 until the guest sets IF (its
 * in_vmx_guest is set after the event masks are), so there only IF = 1 is asked for.
 */
static bool wake(void)
{
	unsigned rounds = power_on_bochs() ? 2 : 4;
	uint64_t start_tsc = plat_tsc();

	LOAD64(spin);
	for (unsigned i = 0; i < rounds; i++) {
		v->rflags = i < 2 ? v->rflags | HVM_RFLAGS_IF : v->rflags & ~HVM_RFLAGS_IF;
		plat_wake(plat_core());
		do {
			v->deadline_tsc = UINT64_MAX;
			smoke.ops->run(v);
		} while (v->exit.reason == HVM_EXIT_NONE);
		WANT(v->exit.reason == HVM_EXIT_INTR);
	}
	WANT(plat_tsc() - start_tsc < plat_tsc_hz());
	return true;
}

static bool hypercall(void)
{
	if (smoke.ops == &hvm_svm)
		LOAD64(vmmcall);
	else
		LOAD64(vmcall);
	GO(HYPERCALL);
	STEP(3);
	GO(HLT);
	return true;
}

/* No nested virtualization, no MONITOR: an exit, or #UD without one. */
static bool forbidden(void)
{
	LOAD64(mwait);
	GO(UD);
	WANT(v->rip == SMOKE_CODE);
	hvm_skip(v, 3);
	GO(UD);
	WANT(v->rip == SMOKE_CODE + 3);

	LOAD64(vmx_svm);
	smoke_gate(6, H_UD);
	if (smoke_go() == HVM_EXIT_UD)
		return true;
	WANT(v->exit.reason == HVM_EXIT_HLT && *smoke_data(0) == 1);
	return true;
}

static bool cr8(void)
{
	LOAD64(cr8);
	GO(CR8);
	WANT(v->exit.u.cr8.write && v->gpr[HVM_RBX] == 9);
	WANT(v->exit.u.cr8.gpr == HVM_RBX || v->exit.u.cr8.gpr == HVM_GPR_UNKNOWN);
	STEP(4);
	if (smoke_go() == HVM_EXIT_HLT && smoke.ops == &hvm_svm) {
		plat_log("  reading CR8 does not exit here (QEMU TCG 10 ignores the intercept)");
		return true;
	}
	WANT(v->exit.reason == HVM_EXIT_CR8 && !v->exit.u.cr8.write);
	WANT(v->exit.u.cr8.gpr == HVM_R13 || v->exit.u.cr8.gpr == HVM_GPR_UNKNOWN);
	STEP(4);
	GO(HLT);
	return true;
}

static bool xsetbv(void)
{
	struct hvm_state state;
	uint32_t id[4];

	plat_cpuid(1, 0, id);
	if (!(id[2] & BIT(26))) {
		plat_log("  no XSAVE here");
		return true;
	}
	LOAD64(xsetbv);
	smoke.ops->state_get(v, &state);
	state.cr4 |= BIT(18);
	smoke.ops->state_set(v, &state);
	if (smoke_go() == HVM_EXIT_HLT && smoke.ops == &hvm_svm) {
		plat_log("  XSETBV does not exit here (QEMU TCG ignores the intercept)");
		return true;
	}
	WANT(v->exit.reason == HVM_EXIT_XSETBV);
	WANT(v->gpr[HVM_RAX] == 3 && v->gpr[HVM_RCX] == 0);
	STEP(3);
	GO(HLT);
	return true;
}

static bool wbinvd(void)
{
	LOAD64(wbinvd);
	GO(WBINVD);
	STEP(2);
	GO(HLT);
	return true;
}

static bool registers(void)
{
	LOAD64(regs);
	for (unsigned i = 0; i < HVM_GPR_COUNT; i++)
		v->gpr[i] = 0x1111111111111111ull * i;
	for (unsigned round = 1; round <= 20; round++) {
		GO(HLT);
		for (unsigned i = 0; i < HVM_GPR_COUNT; i++)
			WANT(v->gpr[i] == 0x1111111111111111ull * i + (i + 1ull) * round);
		STEP(1);
	}
	return true;
}

static bool tsc_offset(void)
{
	uint64_t before_tsc, after_tsc, guest_tsc;

	LOAD64(rdtsc);
	before_tsc = plat_tsc() + v->tsc_offset;
	GO(HLT);
	after_tsc = plat_tsc() + v->tsc_offset;
	guest_tsc = v->gpr[HVM_RAX];
	WANT(guest_tsc > before_tsc && guest_tsc < after_tsc);
	return true;
}

static bool control_registers(void)
{
	struct hvm_state state;

	LOAD64(cr4_pge);
	GO(HLT);
	WANT(v->gpr[HVM_RBX] == (BIT(7) | BIT(5)));
	WANT(v->gpr[HVM_RCX] == (BIT(31) | BIT(16) | BIT(5) | BIT(4) | BIT(0)));
	smoke.ops->state_get(v, &state);
	WANT(state.cr4 == (BIT(7) | BIT(5)) && state.cr0 == v->gpr[HVM_RCX]);
	WANT(state.cr3 == SMOKE_PML4 && state.efer == (BIT(10) | BIT(8)));
	return true;
}

/* Tables for the guest's walk through the modes: long mode's at 0x2000, PAE's at 0x9000. */
static void modes_tables(void)
{
	uint64_t *ram = (uint64_t *)(void *)smoke.ram;

	ram[SMOKE_PML4 / 8] = 0x3003;
	ram[0x3000 / 8] = 0x4003;
	ram[0x4000 / 8] = 0xe3;
	ram[0x9000 / 8] = 0x4001;
	*smoke_data(0x80) = 0x600d;
}

static bool modes(void)
{
	struct hvm_state state;

	LOAD16(modes);
	modes_tables();
	smoke.ops->state_get(v, &state);
	state.cr0 = BIT(30) | BIT(29) | BIT(4);
	state.idtr_limit = 0;
	smoke.ops->state_set(v, &state);
	GO(HLT);
	WANT(v->gpr[HVM_RBX] == 0x11);
	STEP(1);
	GO(HLT); /* PAE paging */
	WANT(v->gpr[HVM_RBX] == 0x80000011 && v->gpr[HVM_RDX] == 0x600d);
	STEP(1);
	GO(WRMSR);
	smoke.ops->state_get(v, &state);
	WANT(state.efer == 0 && state.cr0 == 0x11 && state.cr4 == BIT(5));
	WANT(state.cr3 == SMOKE_PML4);
	state.efer = BIT(8);
	smoke.ops->state_set(v, &state);
	STEP(2);
	GO(HLT); /* long mode */
	WANT(v->gpr[HVM_RBX] == 0x80000011 && v->gpr[HVM_RSI] == SMOKE_PML4);
	WANT(v->gpr[HVM_RDI] == 0x123456789abcdef0);
	smoke.ops->state_get_paging(v, &state);
	WANT(state.efer == (BIT(10) | BIT(8)) && (state.seg[HVM_CS].attr & BIT(13)));
	STEP(1);
	GO(HLT); /* protected again */
	WANT(v->gpr[HVM_RBX] == 0x11);
	smoke.ops->state_get_paging(v, &state);
	WANT(state.efer == BIT(8) && !(state.seg[HVM_CS].attr & BIT(13)));
	STEP(1);
	if (smoke.ops == &hvm_vmx)
		GO(TRIPLE_FAULT);
	return true;
}

/* What state_set takes, state_get gives back, and a run in between does not change. */
static bool state_round_trip(void)
{
	struct hvm_state in, out;

	LOAD64(nops);
	smoke.ops->state_get(v, &in);
	in.sysenter_cs = 8;
	in.sysenter_esp = 0xffff800000001000ull;
	in.sysenter_eip = 0xffff800000002000ull;
	in.seg[HVM_GS].base = 0xffff900000000000ull;
	in.seg[HVM_ES].attr = HVM_SEG_UNUSABLE;
	in.seg[HVM_ES].sel = 0;
	in.seg[HVM_TR].base = 0x9000;
	in.cr2 = 0x123456;
	in.dr7 = 0x400;
	smoke.ops->state_set(v, &in);
	GO(HLT);
	smoke.ops->state_get(v, &out);
	for (unsigned i = 0; i < HVM_SEG_COUNT; i++) {
		bool unusable = in.seg[i].attr & HVM_SEG_UNUSABLE;

		WANT(unusable == !!(out.seg[i].attr & HVM_SEG_UNUSABLE));
		WANT(unusable || in.seg[i].attr == out.seg[i].attr);
		WANT(in.seg[i].sel == out.seg[i].sel);
		WANT(unusable || in.seg[i].base == out.seg[i].base);
		WANT(unusable || in.seg[i].limit == out.seg[i].limit);
	}
	WANT(in.gdtr_base == out.gdtr_base && in.gdtr_limit == out.gdtr_limit);
	WANT(in.idtr_base == out.idtr_base && in.idtr_limit == out.idtr_limit);
	WANT(in.cr0 == out.cr0 && in.cr2 == out.cr2 && in.cr3 == out.cr3 && in.cr4 == out.cr4);
	WANT(in.efer == out.efer && in.dr7 == out.dr7);
	WANT(in.sysenter_cs == out.sysenter_cs && in.sysenter_esp == out.sysenter_esp &&
	     in.sysenter_eip == out.sysenter_eip);
	return true;
}

/* Not a judgement: how long an exit and entry takes here, for comparison within one machine. */
static bool many_exits(void)
{
	const unsigned count = 10000;
	uint64_t start_tsc;

	LOAD64(regs);
	start_tsc = plat_tsc();
	for (unsigned i = 0; i < count; i++) {
		GO(HLT);
		STEP(1);
	}
	WANT(v->gpr[HVM_R15] == 16ull * count);
	plat_log("  %u exits, %llu TSC cycles each (emulated machines: only a ratio)", count,
	         (unsigned long long)((plat_tsc() - start_tsc) / count));
	return true;
}

const struct smoke_case smoke_cases[] = {
        {"hlt", hlt},
        {"cpuid", cpuid},
        {"pio", pio},
        {"outs", outs},
        {"msr", msr},
        {"kick", kick},
        {"hole", hole},
        {"irq_waits_for_if", irq_waits_for_if},
        {"irq_offer_changes", irq_offer_changes},
        {"irq_repeats", irq_repeats},
        {"sti_shadow", sti_shadow},
        {"irq_survives_fault", irq_survives_fault},
        {"inject_ud", inject_ud},
        {"inject_gp", inject_gp},
        {"inject_pf", inject_pf},
        {"guest_exceptions", guest_exceptions},
        {"debug", debug},
        {"nmi", nmi},
        {"triple_fault", triple_fault},
        {"deadline", deadline},
        {"wake", wake},
        {"hypercall", hypercall},
        {"forbidden", forbidden},
        {"cr8", cr8},
        {"xsetbv", xsetbv},
        {"wbinvd", wbinvd},
        {"registers", registers},
        {"tsc_offset", tsc_offset},
        {"control_registers", control_registers},
        {"modes", modes},
        {"state_round_trip", state_round_trip},
        {"many_exits", many_exits},
};
const unsigned smoke_case_count = sizeof(smoke_cases) / sizeof(smoke_cases[0]);
