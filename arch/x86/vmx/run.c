/*
 * Entry and exit.
 *
 * VMCS accesses for a kick (EPT_MISCONFIG at an MMIO page, skipped, nothing to inject): 7 reads
 * (reason, RIP, RSP, RFLAGS, interruptibility, IDT-vectoring, guest-physical address) and 1 write
 * (RIP), 2 when a preemption-timer deadline is set. vmm's decoding of the store adds the 7 reads of
 * vmx_state_get_paging. An instruction's exit reads its length instead of IDT-vectoring, and what
 * exits.c says.
 */
#include "arch/platform.h"
#include "arch/x86/core.h"
#include "arch/x86/vmx/vmcs.h"
#include "arch/x86/vmx/vmx.h"

#define RFLAGS_FIXED BIT(1)
#define RFLAGS_TF    BIT(8)
#define RFLAGS_VALID 0x3f7fd7ull

/* Exits caused by the instruction at RIP: no event was being delivered, and its length is known.
 * SDM 3C 28.2.4, 28.2.5. CPUID to XRSTORS, without the asynchronous and fault-like ones between. */
#define REASON_BIT(r) (1ull << (r))
#define REASONS_INSTRUCTION                                                                        \
	((REASON_BIT(33) - REASON_BIT(REASON_CPUID)) | REASON_BIT(REASON_MWAIT) |                  \
	 REASON_BIT(REASON_MONITOR) | REASON_BIT(REASON_PAUSE) | REASON_BIT(46) | REASON_BIT(47) | \
	 REASON_BIT(REASON_INVEPT) | REASON_BIT(51) | (REASON_BIT(56) - REASON_BIT(53)) |          \
	 (REASON_BIT(62) - REASON_BIT(57)) | REASON_BIT(63))

static bool is_instruction(uint32_t reason)
{
	return reason < 64 ? REASONS_INSTRUCTION >> reason & 1 : reason == 64;
}

static void proc_set(struct vmx_vcpu *v, uint32_t proc)
{
	if (proc == v->proc)
		return;
	v->proc = proc;
	vmcs_write(VMCS_PROC, proc);
}

static void interruptibility_set(struct vmx_vcpu *v, uint32_t value)
{
	if (value == v->interruptibility)
		return;
	v->interruptibility = value;
	vmcs_write(VMCS_INTERRUPTIBILITY, value);
}

static bool interruptible(const struct hvm_vcpu *vcpu, const struct vmx_vcpu *v)
{
	return (vcpu->rflags & HVM_RFLAGS_IF) && !(v->interruptibility & BLOCK_SHADOW);
}

/* Error codes go with these, in protected mode only. SDM 3C 27.2.1.3. */
static bool vector_has_error(uint8_t vector)
{
	return vector < 32 && (0x227d00u >> vector & 1);
}

void vmx_inject(struct hvm_vcpu *vcpu, uint8_t vector, int64_t error_code)
{
	struct vmx_vcpu *v = vmx_of(vcpu);

	if (vector == 2) {
		vcpu->nmi_pending = true;
		return;
	}
	v->event = (uint32_t)(vector | EVENT_VALID);
	v->event |= (vector < 32 ? EVENT_HARDWARE : EVENT_EXTERNAL) << 8;
	v->event_len = 0;
	if (error_code >= 0 && vector_has_error(vector) && (vmcs_read(VMCS_GUEST_CR0) & CR0_PE)) {
		v->event |= EVENT_ERROR;
		v->event_error = (uint32_t)error_code;
	}
	vcpu->exception_pending = 1;
	/* A fault's return finds RF set, so that an instruction breakpoint does not hit twice. */
	if (vector < 32 && vector != 1 && vector != 3 && vector != 4 && vector != 8)
		vcpu->rflags |= HVM_RFLAGS_RF;
}

void vmx_events_reset(struct hvm_vcpu *vcpu)
{
	struct vmx_vcpu *v = vmx_of(vcpu);

	v->event = 0;
	vcpu->exception_pending = 0;
	vcpu->nmi_pending = false;
	interruptibility_set(v, v->interruptibility & ~(uint32_t)BLOCK_NMI);
	vmcs_write(VMCS_PENDING_DEBUG, 0);
}

static void event_write(struct hvm_vcpu *vcpu, struct vmx_vcpu *v)
{
	if (v->event & EVENT_ERROR)
		vmcs_write(VMCS_ENTRY_ERROR, v->event_error);
	switch (EVENT_TYPE(v->event)) {
	case EVENT_SOFT_INT:
	case EVENT_PRIV_SOFT:
	case EVENT_SOFT_EXCEPTION: vmcs_write(VMCS_ENTRY_LEN, v->event_len); break;
	case EVENT_EXTERNAL:
		/* Was being delivered when the exit came: it was allowed then and is now. */
		interruptibility_set(v, v->interruptibility & ~(uint32_t)BLOCK_SHADOW);
		vcpu->rflags |= HVM_RFLAGS_IF;
		break;
	default: break;
	}
	vmcs_write(VMCS_ENTRY_EVENT, v->event);
}

/* The word of a vector's bit in the page. SDM 3A 11.8.4. */
static uint32_t *virtual_irr(const struct vmx_vcpu *v, int vector)
{
	return &v->virtual_apic[(0x200 + vector / 32 * 16) / 4];
}

static uint32_t *virtual_isr(const struct vmx_vcpu *v, int vector)
{
	return &v->virtual_apic[(0x100 + vector / 32 * 16) / 4];
}

/* vmm's offer of now takes the place of the one before. */
static void offer_set(struct vmx_vcpu *v, int vector)
{
	uint32_t status = vector < 0 ? 0 : (uint32_t)vector;

	if (vector != v->offer) {
		if (v->offer >= 0)
			*virtual_irr(v, v->offer) = 0;
		if (vector >= 0)
			*virtual_irr(v, vector) = 1u << (vector & 31);
		v->offer = vector;
	}
	if (status != v->interrupt_status) {
		v->interrupt_status = status;
		vmcs_write(VMCS_INTERRUPT_STATUS, status);
	}
}

/* After an exit: did the guest take it? Then nothing stays in service here, where no EOI comes to:
 * the next entry writes that. SDM 3C 30.2.2. */
static bool offer_taken(struct vmx_vcpu *v)
{
	v->interrupt_status = (uint32_t)vmcs_read(VMCS_INTERRUPT_STATUS);
	if (v->interrupt_status >> 8 != (uint32_t)v->offer)
		return false;
	*virtual_isr(v, v->offer) = 0;
	v->offer = -1;
	return true;
}

/*
 * What goes in with this entry: a queued exception or an interrupted delivery first, then an NMI,
 * then vmm's interrupt. What cannot go in yet opens a window, unless the processor itself waits.
 * True: vmm's interrupt goes in now, for certain.
 */
static bool events_prepare(struct hvm_vcpu *vcpu, struct vmx_vcpu *v)
{
	uint32_t proc = v->proc & ~(uint32_t)(PROC_INTR_WINDOW | PROC_NMI_WINDOW);
	bool busy = vcpu->exception_pending, offered = false;

	if (busy)
		event_write(vcpu, v);
	if (unlikely(vcpu->nmi_pending)) {
		if (!busy && !(v->interruptibility & (BLOCK_SHADOW | BLOCK_NMI))) {
			vmcs_write(VMCS_ENTRY_EVENT, 2 | EVENT_NMI << 8 | EVENT_VALID);
			vcpu->nmi_pending = false;
			busy = true;
		} else {
			proc |= PROC_NMI_WINDOW;
		}
	}
	if (v->virtual_apic) {
		offer_set(v, vcpu->irq_offer);
	} else if (vcpu->irq_offer >= 0) {
		offered = !busy && interruptible(vcpu, v);
		if (offered)
			vmcs_write(VMCS_ENTRY_EVENT,
			           (uint32_t)vcpu->irq_offer | EVENT_EXTERNAL << 8 | EVENT_VALID);
		else
			proc |= PROC_INTR_WINDOW;
	}
	proc_set(v, proc);
	return offered;
}

/* The interrupt shadow ends with the instruction that hvm_skip stepped over; a trap flag fires. */
static void skip_finish(struct hvm_vcpu *vcpu, struct vmx_vcpu *v)
{
	vcpu->skipped = false;
	interruptibility_set(v, v->interruptibility & ~(uint32_t)BLOCK_SHADOW);
	if (unlikely(vcpu->rflags & RFLAGS_TF))
		vmcs_write(VMCS_PENDING_DEBUG, vmcs_read(VMCS_PENDING_DEBUG) | PENDING_DEBUG_BS);
}

/* The timer stops outside the guest: it is computed anew from the deadline, so it cannot drift. */
static void timer_prepare(const struct hvm_vcpu *vcpu, struct vmx_vcpu *v)
{
	uint32_t pin = v->pin & ~(uint32_t)PIN_PREEMPT_TIMER;

	if (!vmx_has(VMX_F_PREEMPT_TIMER)) {
		core_timer_arm(vcpu->deadline_tsc);
		return;
	}
	if (vcpu->deadline_tsc != UINT64_MAX) {
		pin |= PIN_PREEMPT_TIMER;
		vmcs_write(VMCS_TIMER,
		           vmx_timer_ticks(plat_tsc(), vcpu->deadline_tsc, vmx.ctl.timer_shift));
	}
	if (pin != v->pin) {
		v->pin = pin;
		vmcs_write(VMCS_PIN, pin);
	}
}

static void registers_write(const struct hvm_vcpu *vcpu, struct vmx_vcpu *v)
{
	uint64_t rflags = (vcpu->rflags & RFLAGS_VALID) | RFLAGS_FIXED;

	if (vcpu->rip != v->rip)
		vmcs_write(VMCS_GUEST_RIP, v->rip = vcpu->rip);
	if (vcpu->gpr[HVM_RSP] != v->rsp)
		vmcs_write(VMCS_GUEST_RSP, v->rsp = vcpu->gpr[HVM_RSP]);
	if (rflags != v->rflags) {
		vmcs_write(VMCS_GUEST_RFLAGS, v->rflags = rflags);
		/* Blocking by STI asks for IF = 1. SDM 3C 27.3.1.5. */
		if (!(rflags & HVM_RFLAGS_IF))
			interruptibility_set(v, v->interruptibility & ~(uint32_t)BLOCK_STI);
	}
	if (unlikely(vcpu->tsc_offset != v->tsc_offset)) {
		v->tsc_offset = vcpu->tsc_offset;
		vmcs_write(VMCS_TSC_OFFSET, v->tsc_offset);
	}
}

static void flush(const struct hvm_vcpu *vcpu, struct vmx_vcpu *v)
{
	v->flush = false;
	if (!vmx_has(VMX_F_VPID))
		return; /* every entry and exit flushes */
	vmx_invvpid(vmx_has(VMX_F_INVVPID_SINGLE) ? INV_SINGLE : INV_ALL,
	            (uint16_t)(vcpu->vm->tag + vcpu->index));
}

/* An event was on its way into the guest when the exit came: it goes in again, with whatever its
 * delivery needs. SDM 3C 28.2.4, 32.2.3. */
static void event_requeue(struct hvm_vcpu *vcpu, struct vmx_vcpu *v, uint32_t event)
{
	v->event = event & ~(uint32_t)EVENT_NMI_UNBLOCKED;
	vcpu->exception_pending = 1;
	if (event & EVENT_ERROR)
		v->event_error = (uint32_t)vmcs_read(VMCS_IDT_ERROR);
	switch (EVENT_TYPE(event)) {
	case EVENT_NMI: interruptibility_set(v, v->interruptibility & ~(uint32_t)BLOCK_NMI); break;
	case EVENT_SOFT_INT:
	case EVENT_PRIV_SOFT:
	case EVENT_SOFT_EXCEPTION: v->event_len = (uint32_t)vmcs_read(VMCS_EXIT_LEN); break;
	default: break;
	}
}

static void bad_state(struct hvm_vcpu *vcpu, uint64_t code, uint64_t info1)
{
	vcpu->exit.reason = HVM_EXIT_BAD_STATE;
	vcpu->exit.u.raw.code = code;
	vcpu->exit.u.raw.info1 = info1;
	vcpu->exit.u.raw.info2 = 0;
}

void vmx_run(struct hvm_vcpu *vcpu)
{
	struct vmx_vcpu *v = vmx_of(vcpu);
	uint32_t reason, event;
	bool offered;
	int failed;

	if (vcpu->skipped)
		skip_finish(vcpu, v);
	offered = events_prepare(vcpu, v);
	registers_write(vcpu, v);
	if (unlikely(v->flush))
		flush(vcpu, v);
	timer_prepare(vcpu, v);

	failed = vmx_switch(vcpu, &v->host_rsp, v->launched);
	vcpu->exit.insn_len = 0;
	if (unlikely(failed)) {
		bad_state(vcpu, failed == 1 ? vmcs_read(VMCS_INSTRUCTION_ERROR) : 0, 0);
		return;
	}
	reason = (uint32_t)vmcs_read(VMCS_EXIT_REASON);
	if (unlikely(reason & REASON_ENTRY_FAILED)) {
		bad_state(vcpu, reason, vmcs_read(VMCS_QUALIFICATION));
		return;
	}
	v->launched = true;
	vcpu->exception_pending = 0;
	if (offered || (v->virtual_apic && v->offer >= 0 && offer_taken(v)))
		vcpu->irq_taken = true;

	reason &= 0xffff;
	vcpu->rip = v->rip = vmcs_read(VMCS_GUEST_RIP);
	vcpu->gpr[HVM_RSP] = v->rsp = vmcs_read(VMCS_GUEST_RSP);
	vcpu->rflags = v->rflags = vmcs_read(VMCS_GUEST_RFLAGS);
	v->interruptibility = (uint32_t)vmcs_read(VMCS_INTERRUPTIBILITY);
	vcpu->interruptible = interruptible(vcpu, v);
	if (is_instruction(reason)) {
		vcpu->exit.insn_len = (uint8_t)vmcs_read(VMCS_EXIT_LEN);
	} else {
		event = (uint32_t)vmcs_read(VMCS_IDT_EVENT);
		if (unlikely(event & EVENT_VALID))
			event_requeue(vcpu, v, event);
	}
	vmx_exit_decode(vcpu, reason);
}
