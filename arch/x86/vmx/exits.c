/* VMX exit reasons into struct hvm_exit. SDM 3C 28.2 and 3D appendix C. */
#include "arch/platform.h"
#include "arch/x86/core.h"
#include "arch/x86/cpu.h"
#include "arch/x86/vmx/vmcs.h"
#include "arch/x86/vmx/vmx.h"

#define QUAL_WRITE         BIT(1)
#define QUAL_EXEC          BIT(2)
#define QUAL_NMI_UNBLOCKED BIT(12)

#define DR6_TRAP_BITS 0x600full /* B0 to B3, BD, BS: as the qualification has them */
#define DR7_GD        BIT(13)

static void raw(struct hvm_vcpu *vcpu, uint32_t reason)
{
	vcpu->exit.reason = HVM_EXIT_OTHER;
	vcpu->exit.u.raw.code = reason;
	vcpu->exit.u.raw.info1 = vmcs_read(VMCS_QUALIFICATION);
	vcpu->exit.u.raw.info2 = vmcs_read(VMCS_EXIT_EVENT);
}

/* The guest's debug exception, which we only took to bound its nesting: hand it back as the
 * processor would have delivered it. SDM 3C 28.1. */
static void debug_exception(struct hvm_vcpu *vcpu, struct vmx_vcpu *v, uint32_t event)
{
	uint64_t dr6, qualification = vmcs_read(VMCS_QUALIFICATION);
	uint64_t dr7 = vmcs_read(VMCS_GUEST_DR7);

	__asm__ volatile("mov %%db6, %0" : "=r"(dr6));
	dr6 = (dr6 & ~0xfull) | (qualification & DR6_TRAP_BITS);
	__asm__ volatile("mov %0, %%db6" : : "r"(dr6));
	if (dr7 & DR7_GD)
		vmcs_write(VMCS_GUEST_DR7, dr7 & ~DR7_GD);
	/* Entry wants a pending single-step beside a shadow when TF is set. SDM 3C 27.3.1.5. */
	if ((vcpu->rflags & BIT(8)) && (v->interruptibility & BLOCK_SHADOW))
		vmcs_write(VMCS_PENDING_DEBUG, PENDING_DEBUG_BS);
	vmx_inject(vcpu, 1, -1);
	if (EVENT_TYPE(event) == EVENT_PRIV_SOFT) { /* INT1: returns behind itself */
		v->event = 1 | EVENT_PRIV_SOFT << 8 | EVENT_VALID;
		v->event_len = (uint32_t)vmcs_read(VMCS_EXIT_LEN);
	}
}

/* IRET unblocked NMIs, then faulted: it will run again. SDM 3C 28.2.3. */
static void nmi_block(struct vmx_vcpu *v)
{
	v->interruptibility |= BLOCK_NMI;
	vmcs_write(VMCS_INTERRUPTIBILITY, v->interruptibility);
}

static void exception(struct hvm_vcpu *vcpu)
{
	struct vmx_vcpu *v = vmx_of(vcpu);
	uint32_t event = (uint32_t)vmcs_read(VMCS_EXIT_EVENT);

	vcpu->exit.reason = HVM_EXIT_NONE;
	if (EVENT_TYPE(event) == EVENT_NMI) {
		/* NMIs stay blocked until the handler's IRET. */
		__asm__ volatile("int $2" : : : "memory");
		vcpu->exit.reason = HVM_EXIT_NMI;
		return;
	}
	if ((event & EVENT_NMI_UNBLOCKED) && !vcpu->exception_pending)
		nmi_block(v);
	switch (EVENT_VECTOR(event)) {
	case 1: debug_exception(vcpu, v, event); break;
	case 17: vmx_inject(vcpu, 17, (int64_t)vmcs_read(VMCS_EXIT_ERROR)); break;
	case 18: __asm__ volatile("int $18" : : : "memory"); break;
	default: raw(vcpu, REASON_EXCEPTION_NMI); break;
	}
}

static void io(struct hvm_vcpu *vcpu)
{
	uint64_t q = vmcs_read(VMCS_QUALIFICATION);
	struct hvm_exit *exit = &vcpu->exit;

	exit->reason = HVM_EXIT_PIO;
	exit->u.pio.port = (uint16_t)(q >> 16);
	exit->u.pio.width_bytes = (uint8_t)((q & 7) + 1);
	exit->u.pio.in = q & BIT(3);
	exit->u.pio.string = q & BIT(4);
	exit->u.pio.rep = q & BIT(5);
	exit->u.pio.seg = exit->u.pio.in ? HVM_ES : HVM_DS;
	exit->u.pio.addr_size = 0;
	exit->u.pio.next_rip = 0;
	if (likely(!exit->u.pio.string))
		return;
	if (vmx_has(VMX_F_STRING_INFO)) {
		uint64_t info = vmcs_read(VMCS_EXIT_INSN_INFO);

		exit->u.pio.addr_size = (uint8_t)(2u << (info >> 7 & 3));
		if (!exit->u.pio.in)
			exit->u.pio.seg = (uint8_t)(info >> 15 & 7);
	} else { /* no prefix known: what the code segment says */
		uint64_t cs = vmcs_read(VMCS_GUEST_ATTR + 2 * HVM_CS);
		bool cs_long = (cs & BIT(13)) && (vmx_of(vcpu)->efer & EFER_LMA);

		exit->u.pio.addr_size = cs_long ? 8 : cs & BIT(14) ? 4 : 2;
	}
}

/*
 * Neither kind has a trustworthy instruction length: vmm decodes. A misconfiguration has no
 * qualification either; its access is called a write, which is what a kick is, and vmm's decoder
 * knows better where it matters.
 */
static void memory(struct hvm_vcpu *vcpu, uint32_t reason)
{
	struct hvm_exit *exit = &vcpu->exit;

	exit->u.mem.gpa = vmcs_read(VMCS_GUEST_PHYSICAL);
	exit->u.mem.write = true;
	exit->u.mem.exec = false;
	exit->u.mem.delivering = vcpu->exception_pending;
	exit->reason = HVM_EXIT_KICK;
	if (reason == REASON_EPT_VIOLATION) {
		uint64_t q = vmcs_read(VMCS_QUALIFICATION);

		exit->u.mem.write = q & QUAL_WRITE;
		exit->u.mem.exec = q & QUAL_EXEC;
		if (nested_mmio_is_present(&vmx.ept) ||
		    nested_lookup(&vmx.ept, vcpu->vm, exit->u.mem.gpa).kind != NESTED_MMIO)
			exit->reason = HVM_EXIT_MEM;
		if (unlikely(q & QUAL_NMI_UNBLOCKED) && !vcpu->exception_pending)
			nmi_block(vmx_of(vcpu));
	}
}

/* Where the controls do not switch PAT it is a register of ours: with RAM only, all of it
 * write-back in EPT, the types a guest asks for change nothing it can see. */
static bool pat_access(struct hvm_vcpu *vcpu, bool write)
{
	struct vmx_vcpu *v = vmx_of(vcpu);
	uint64_t value;

	if (vmx_has(VMX_F_PAT) || (uint32_t)vcpu->gpr[HVM_RCX] != MSR_PAT)
		return false;
	vcpu->exit.reason = HVM_EXIT_NONE;
	if (!write) {
		vcpu->gpr[HVM_RAX] = (uint32_t)v->pat;
		vcpu->gpr[HVM_RDX] = v->pat >> 32;
		hvm_skip(vcpu, vcpu->exit.insn_len);
		return true;
	}
	value = (uint32_t)vcpu->gpr[HVM_RAX] | vcpu->gpr[HVM_RDX] << 32;
	for (unsigned i = 0; i < 8; i++) {
		unsigned type = value >> (8 * i) & 0xff;

		if (type > 7 || type == 2 || type == 3) {
			vmx_inject(vcpu, 13, 0);
			return true;
		}
	}
	v->pat = value;
	hvm_skip(vcpu, vcpu->exit.insn_len);
	return true;
}

static void msr(struct hvm_vcpu *vcpu, bool write)
{
	if (pat_access(vcpu, write))
		return;
	vcpu->exit.reason = write ? HVM_EXIT_WRMSR : HVM_EXIT_RDMSR;
	vcpu->exit.u.msr.index = (uint32_t)vcpu->gpr[HVM_RCX];
}

/* A saturated or early timer is nobody's business but ours. */
static void timer(struct hvm_vcpu *vcpu)
{
	vcpu->exit.reason = plat_tsc() >= vcpu->deadline_tsc ? HVM_EXIT_TIMER : HVM_EXIT_NONE;
}

void vmx_exit_decode(struct hvm_vcpu *vcpu, uint32_t reason)
{
	struct hvm_exit *exit = &vcpu->exit;

	switch (reason) {
	case REASON_EPT_MISCONFIG:
	case REASON_EPT_VIOLATION: memory(vcpu, reason); break;
	case REASON_EXTERNAL_INTERRUPT:
		core_irq_window(); /* not acknowledged by the exit: the IDT takes it here */
		exit->reason = HVM_EXIT_INTR;
		break;
	case REASON_PREEMPTION_TIMER: timer(vcpu); break;
	case REASON_INTERRUPT_WINDOW: exit->reason = HVM_EXIT_IRQ_WINDOW; break;
	case REASON_HLT: exit->reason = HVM_EXIT_HLT; break;
	case REASON_IO: io(vcpu); break;
	case REASON_MSR_READ:
	case REASON_MSR_WRITE: msr(vcpu, reason == REASON_MSR_WRITE); break;
	case REASON_CPUID: exit->reason = HVM_EXIT_CPUID; break;
	case REASON_CR_ACCESS: vmx_cr_access(vcpu); break;
	case REASON_VMCALL: exit->reason = HVM_EXIT_HYPERCALL; break;
	case REASON_EXCEPTION_NMI: exception(vcpu); break;
	case REASON_NMI_WINDOW:
		exit->reason = HVM_EXIT_NONE; /* the next entry takes it in */
		break;
	case REASON_XSETBV: exit->reason = HVM_EXIT_XSETBV; break;
	case REASON_WBINVD:
	case REASON_INVD: exit->reason = HVM_EXIT_WBINVD; break;
	case REASON_PAUSE: exit->reason = HVM_EXIT_PAUSE; break;
	case REASON_RDPMC: /* guests have no counters */
		exit->reason = HVM_EXIT_NONE;
		vmx_inject(vcpu, 13, 0);
		break;
	case REASON_TRIPLE_FAULT: exit->reason = HVM_EXIT_TRIPLE_FAULT; break;
	case REASON_INIT: exit->reason = HVM_EXIT_INIT; break;
	case REASON_GETSEC:
	case REASON_VMCLEAR ... REASON_VMXON:
	case REASON_MWAIT:
	case REASON_MONITOR:
	case REASON_INVEPT:
	case REASON_INVVPID: exit->reason = HVM_EXIT_UD; break;
	default: raw(vcpu, reason); break;
	}
}
