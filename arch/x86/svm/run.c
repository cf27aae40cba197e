/*
 * SVM: enter the guest, and turn what made it leave into a struct hvm_exit. Everything here is on
 * the path of every exit; what is rare is marked so.
 */
#include "arch/platform.h"
#include "arch/x86/core.h"
#include "arch/x86/svm/svm.h"

#define RFLAGS_TF BIT(8)
#define DR6_BS    BIT(14)

/* --- entry ------------------------------------------------------------------------------------ */

/*
 * The processor itself waits for IF and the shadow. V_IGN_TPR: vmm offers only what TPR lets pass.
 */
static uint64_t int_ctl_for(int irq_offer)
{
	uint64_t ctl = SVM_V_INTR_MASKING | SVM_V_IGN_TPR;

	if (irq_offer >= 0)
		ctl |= SVM_V_IRQ | (uint64_t)(irq_offer >> 4) << SVM_V_PRIO_SHIFT |
		       (uint64_t)(irq_offer & 0xff) << SVM_V_VECTOR_SHIFT;
	return ctl;
}

/* Rare. Until the guest's IRET no second one may come; then it waits for one more exit. */
static void nmi_enter(struct hvm_vcpu *vcpu, struct svm_vcpu *sv, struct vmcb *vmcb)
{
	if (sv->nmi != SVM_NMI_OPEN || vcpu->exception_pending)
		return;
	vmcb->event_inj = SVM_EVENT_VALID | SVM_EVENT_NMI << SVM_EVENT_TYPE_SHIFT | 2;
	vcpu->exception_pending = true;
	vcpu->nmi_pending = false;
	sv->nmi = SVM_NMI_MASKED;
	vmcb->misc1 |= SVM_I_IRET;
	sv->dirty |= SVM_CLEAN_INTERCEPTS;
}

static void flush_enter(struct svm_vcpu *sv, struct vmcb *vmcb)
{
	vmcb->tlb_control = svm_caps.flush_by_asid ? SVM_TLB_FLUSH_ASID : SVM_TLB_FLUSH_ALL;
	sv->flush = false;
}

/* The interrupt shadow ends with the instruction that hvm_skip stepped over; a trap flag fires. */
static void skip_finish(struct hvm_vcpu *vcpu, struct svm_vcpu *sv, struct vmcb *vmcb)
{
	vcpu->skipped = false;
	vmcb->int_state = 0;
	if (likely(!(vcpu->rflags & RFLAGS_TF)) || vcpu->exception_pending)
		return;
	vmcb->dr6 |= DR6_BS;
	sv->dirty |= SVM_CLEAN_DR;
	svm_inject(vcpu, 1, -1);
}

static void enter(struct hvm_vcpu *vcpu, struct svm_vcpu *sv, struct vmcb *vmcb)
{
	uint64_t int_ctl = int_ctl_for(vcpu->irq_offer);

	vmcb->rax = vcpu->gpr[HVM_RAX];
	vmcb->rsp = vcpu->gpr[HVM_RSP];
	vmcb->rip = vcpu->rip;
	vmcb->rflags = vcpu->rflags;
	if (vcpu->skipped)
		skip_finish(vcpu, sv, vmcb);
	if (int_ctl != sv->int_ctl) {
		sv->int_ctl = int_ctl;
		vmcb->int_ctl = int_ctl;
		sv->dirty |= SVM_CLEAN_TPR;
	}
	if (unlikely(vcpu->nmi_pending))
		nmi_enter(vcpu, sv, vmcb);
	if (unlikely(sv->flush))
		flush_enter(sv, vmcb);
	vmcb->clean = svm_caps.vmcb_clean ? SVM_CLEAN_ALL & ~sv->dirty : 0;
	sv->dirty = 0;
}

/* --- exit ------------------------------------------------------------------------------------- */

/*
 * Rare: delivery of an event faulted on the way. It is delivered again on the next entry; a
 * software interrupt or breakpoint is not, since its instruction, not yet stepped over, runs again.
 */
static void event_resume(struct hvm_vcpu *vcpu, struct vmcb *vmcb)
{
	uint64_t event = vmcb->exit_int_info;
	unsigned type = SVM_EVENT_TYPE(event);
	uint8_t vector = SVM_EVENT_VECTOR(event);

	/* QEMU TCG calls an external interrupt an exception; VMRUN would refuse that. */
	if (type == SVM_EVENT_EXCEPTION && vector >= 32) {
		type = SVM_EVENT_INTR;
		event &= ~(7ull << SVM_EVENT_TYPE_SHIFT | SVM_EVENT_ERROR_VALID);
	}
	if (type == SVM_EVENT_SOFT || (type == SVM_EVENT_EXCEPTION && (vector == 3 || vector == 4)))
		return;
	/* The offered one is in flight now, whatever V_IRQ says. */
	if (type == SVM_EVENT_INTR && vector == vcpu->irq_offer)
		vcpu->irq_taken = true;
	vmcb->event_inj = event;
	vcpu->exception_pending = true;
}

static void exit_npf(struct hvm_vcpu *vcpu, const struct vmcb *vmcb)
{
	struct hvm_exit *exit = &vcpu->exit;
	uint64_t info = vmcb->exit_info1;
	bool kick = info & SVM_NPF_RESERVED;

	exit->u.mem.gpa = vmcb->exit_info2;
	exit->u.mem.write = info & SVM_NPF_WRITE;
	exit->u.mem.exec = info & SVM_NPF_FETCH;
	exit->u.mem.delivering = vmcb->exit_int_info & SVM_EVENT_VALID;
	if (unlikely(!nested_mmio_is_present(&svm_caps.npt)))
		kick = nested_lookup(&svm_caps.npt, vcpu->vm, vmcb->exit_info2).kind == NESTED_MMIO;
	exit->reason = kick ? HVM_EXIT_KICK : HVM_EXIT_MEM;
	if (svm_caps.decode_assists)
		exit->insn_bytes_count = MIN(vmcb->insn_bytes_count, ARRAY_LEN(vmcb->insn_bytes));
}

/* QEMU TCG leaves the address size out: what the mode has without a prefix. */
static uint8_t addr_size_default(const struct vmcb *vmcb)
{
	if (vmcb->cs.attr & BIT(9) && vmcb->efer & BIT(10))
		return 8;
	return vmcb->cs.attr & BIT(10) ? 4 : 2;
}

static void exit_io(struct hvm_vcpu *vcpu, const struct vmcb *vmcb)
{
	struct hvm_exit *exit = &vcpu->exit;
	uint64_t info = vmcb->exit_info1;

	exit->reason = HVM_EXIT_PIO;
	exit->u.pio.port = SVM_IO_PORT(info);
	exit->u.pio.width_bytes = SVM_IO_SIZE(info);
	exit->u.pio.in = info & SVM_IO_IN;
	exit->u.pio.string = info & SVM_IO_STRING;
	exit->u.pio.rep = info & SVM_IO_REP;
	exit->u.pio.seg = svm_caps.decode_assists ? SVM_IO_SEG(info) : HVM_DS;
	exit->u.pio.addr_size = (uint8_t)(SVM_IO_ADDR(info) * 2);
	if (unlikely(!exit->u.pio.addr_size))
		exit->u.pio.addr_size = addr_size_default(vmcb);
	exit->u.pio.next_rip = vmcb->exit_info2;
}

static void exit_cr8(struct hvm_vcpu *vcpu, const struct vmcb *vmcb, bool write)
{
	struct hvm_exit *exit = &vcpu->exit;

	exit->reason = HVM_EXIT_CR8;
	exit->u.cr8.write = write;
	exit->u.cr8.gpr = svm_caps.decode_assists && (vmcb->exit_info1 & SVM_CR_IS_MOV)
	                          ? SVM_CR_GPR(vmcb->exit_info1)
	                          : HVM_GPR_UNKNOWN;
}

static void exit_raw(struct hvm_vcpu *vcpu, const struct vmcb *vmcb, enum hvm_exit_reason reason)
{
	vcpu->exit.reason = reason;
	vcpu->exit.u.raw.code = vmcb->exit_code;
	vcpu->exit.u.raw.info1 = vmcb->exit_info1;
	vcpu->exit.u.raw.info2 = vmcb->exit_info2;
}

/* Exits that no instruction of the guest asked for; true if this was one. */
static bool exit_event(struct hvm_vcpu *vcpu, struct svm_vcpu *sv, struct vmcb *vmcb)
{
	struct hvm_exit *exit = &vcpu->exit;

	switch (vmcb->exit_code) {
	case SVM_EXIT_NPF: exit_npf(vcpu, vmcb); return true;
	case SVM_EXIT_INTR: exit->reason = HVM_EXIT_INTR; return true;
	case SVM_EXIT_NMI: exit->reason = HVM_EXIT_NMI; return true;
	case SVM_EXIT_INIT: exit->reason = HVM_EXIT_INIT; return true;
	case SVM_EXIT_SHUTDOWN: exit_raw(vcpu, vmcb, HVM_EXIT_TRIPLE_FAULT); return true;
	case SVM_EXIT_DB:
		exit->reason = HVM_EXIT_NONE;
		svm_inject(vcpu, 1, -1);
		return true;
	case SVM_EXIT_AC:
		exit->reason = HVM_EXIT_NONE;
		svm_inject(vcpu, 17, 0);
		return true;
	case SVM_EXIT_IRET:
		exit->reason = HVM_EXIT_NONE;
		sv->nmi = SVM_NMI_LEAVING;
		vmcb->misc1 &= ~(uint32_t)SVM_I_IRET;
		sv->dirty |= SVM_CLEAN_INTERCEPTS;
		return true;
	}
	return false;
}

static void exit_insn(struct hvm_vcpu *vcpu, const struct vmcb *vmcb)
{
	struct hvm_exit *exit = &vcpu->exit;

	if (svm_caps.next_rip)
		exit->insn_len = (uint8_t)(vmcb->next_rip - vmcb->rip);
	switch (vmcb->exit_code) {
	case SVM_EXIT_HLT: exit->reason = HVM_EXIT_HLT; break;
	case SVM_EXIT_MSR:
		exit->reason = vmcb->exit_info1 & 1 ? HVM_EXIT_WRMSR : HVM_EXIT_RDMSR;
		exit->u.msr.index = (uint32_t)vcpu->gpr[HVM_RCX];
		break;
	case SVM_EXIT_IOIO: exit_io(vcpu, vmcb); break;
	case SVM_EXIT_CPUID: exit->reason = HVM_EXIT_CPUID; break;
	case SVM_EXIT_VMMCALL: exit->reason = HVM_EXIT_HYPERCALL; break;
	case SVM_EXIT_XSETBV: exit->reason = HVM_EXIT_XSETBV; break;
	case SVM_EXIT_CR8_READ:
	case SVM_EXIT_CR8_WRITE: exit_cr8(vcpu, vmcb, vmcb->exit_code == SVM_EXIT_CR8_WRITE); break;
	case SVM_EXIT_PAUSE: exit->reason = HVM_EXIT_PAUSE; break;
	case SVM_EXIT_WBINVD:
	case SVM_EXIT_INVD: exit->reason = HVM_EXIT_WBINVD; break;
	case SVM_EXIT_RDPMC:
	case SVM_EXIT_INVLPGA:
	case SVM_EXIT_VMRUN:
	case SVM_EXIT_VMLOAD:
	case SVM_EXIT_VMSAVE:
	case SVM_EXIT_STGI:
	case SVM_EXIT_CLGI:
	case SVM_EXIT_SKINIT:
	case SVM_EXIT_MONITOR:
	case SVM_EXIT_MWAIT:
	case SVM_EXIT_MWAIT_ARM:
	case SVM_EXIT_RDPRU: exit->reason = HVM_EXIT_UD; break;
	default:
		exit->insn_len = 0;
		/* All ones; QEMU TCG writes only the lower half. */
		exit_raw(vcpu, vmcb,
		         (int32_t)vmcb->exit_code == -1 ? HVM_EXIT_BAD_STATE : HVM_EXIT_OTHER);
		break;
	}
}

static void leave(struct hvm_vcpu *vcpu, struct svm_vcpu *sv, struct vmcb *vmcb)
{
	vcpu->gpr[HVM_RAX] = vmcb->rax;
	vcpu->gpr[HVM_RSP] = vmcb->rsp;
	vcpu->rip = vmcb->rip;
	vcpu->rflags = vmcb->rflags;
	vcpu->interruptible = (vcpu->rflags & HVM_RFLAGS_IF) && !(vmcb->int_state & SVM_SHADOW);
	if (vmcb->tlb_control)
		vmcb->tlb_control = SVM_TLB_KEEP;
	if (vcpu->exception_pending) {
		vcpu->exception_pending = false;
		vmcb->event_inj = 0;
	}
	if (unlikely(vmcb->exit_int_info & SVM_EVENT_VALID))
		event_resume(vcpu, vmcb);
	if (sv->int_ctl & SVM_V_IRQ) {
		if (!(vmcb->int_ctl & SVM_V_IRQ))
			vcpu->irq_taken = true;
		/* Taken: the next entry has to write the field anew whatever is offered. */
		if (vcpu->irq_taken)
			sv->int_ctl = 0;
	}
	if (unlikely(sv->nmi == SVM_NMI_LEAVING))
		sv->nmi = SVM_NMI_OPEN;

	vcpu->exit.insn_len = 0;
	vcpu->exit.insn_bytes_count = 0;
	if (!exit_event(vcpu, sv, vmcb))
		exit_insn(vcpu, vmcb);
}

void svm_run(struct hvm_vcpu *vcpu)
{
	struct svm_vcpu *sv = vcpu->priv;
	struct vmcb *vmcb = vcpu->cb;

	core_timer_arm(vcpu->deadline_tsc);
	enter(vcpu, sv, vmcb);
	svm_switch(vcpu, vcpu->cb_hpa, sv->host_hpa);
	leave(vcpu, sv, vmcb);
}

void svm_inject(struct hvm_vcpu *vcpu, uint8_t vector, int64_t error_code)
{
	struct vmcb *vmcb = vcpu->cb;
	uint64_t event = SVM_EVENT_VALID | vector;

	if (vector == 2) {
		vcpu->nmi_pending = true;
		return;
	}
	event |= (vector < 32 ? SVM_EVENT_EXCEPTION : SVM_EVENT_INTR) << SVM_EVENT_TYPE_SHIFT;
	if (error_code >= 0)
		event |= SVM_EVENT_ERROR_VALID | (uint64_t)error_code << SVM_EVENT_ERROR_SHIFT;
	vmcb->event_inj = event;
	vcpu->exception_pending = true;
}

void svm_events_reset(struct hvm_vcpu *vcpu)
{
	struct svm_vcpu *sv = vcpu->priv;
	struct vmcb *vmcb = vcpu->cb;

	vmcb->event_inj = 0;
	vcpu->exception_pending = false;
	vcpu->nmi_pending = false;
	sv->nmi = SVM_NMI_OPEN;
	vmcb->misc1 &= ~(uint32_t)SVM_I_IRET;
	sv->dirty |= SVM_CLEAN_INTERCEPTS;
}
