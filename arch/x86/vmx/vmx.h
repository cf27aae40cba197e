/*
 * vmx.h: what the files of this folder share. SDM 3C chapters 24 to 29.
 */
#ifndef QUELL_ARCH_X86_VMX_VMX_H
#define QUELL_ARCH_X86_VMX_VMX_H

#include "arch/x86/hvm.h"
#include "arch/x86/nested.h"
#include "arch/x86/vmx/controls.h"
#include "arch/x86/vmx/cr.h"

/* Chosen by probe on the boot core; read-only afterwards. */
struct vmx_machine {
	struct vmx_controls ctl;
	struct nested_format ept;
	unsigned maxphyaddr;
	uint8_t *vmxon; /* one page for each core */
	unsigned core_count;
};

extern struct vmx_machine vmx;

static inline bool vmx_has(uint32_t feature)
{
	return vmx.ctl.features & feature;
}

/*
 * A vCPU's private part. "As the VMCS has it" values spare VMREADs and VMWRITEs: a field is written
 * only when the wanted value differs. Owned by the vCPU's core.
 */
struct vmx_vcpu {
	uint64_t host_rsp;         /* as the VMCS has it; switch.asm */
	uint64_t rip, rsp, rflags; /* as the VMCS has them */
	uint64_t tsc_offset;       /* as the VMCS has it */
	uint32_t pin, proc, entry; /* as the VMCS has them */
	uint32_t interruptibility; /* as the VMCS has it */

	/* Virtual-interrupt delivery: vmm's offer waits here for the guest's IF. NULL without it. */
	uint32_t *virtual_apic;    /* one page; only IRR and ISR matter, TPR stays 0 */
	uint32_t interrupt_status; /* as the VMCS has it */
	int offer;                 /* the vector in the page's IRR; -1: none */

	uint32_t event, event_error, event_len; /* for the next entry, if exception_pending */
	bool flush;                             /* drop this VPID's translations before entry */
	bool launched;
	bool initialised; /* the VMCS holds guest state */

	/* Registers that only change through us. */
	uint64_t cr0_shadow, cr4_shadow; /* as the VMCS has them: the host-owned bits count */
	uint64_t efer;                   /* as the VMCS has it */
	uint64_t pat;                    /* where the controls do not switch it */
};

static inline struct vmx_vcpu *vmx_of(const struct hvm_vcpu *vcpu)
{
	return vcpu->priv;
}

/* Loads guest registers, enters, saves them. 0: an exit; 1: VMfailValid; 2: VMfailInvalid.
 * Interrupts off. switch.asm. */
int vmx_switch(struct hvm_vcpu *vcpu, uint64_t *host_rsp, bool launched);

/* VMXON, guarded. 0; 1: VMfail; 2: #GP or #UD. switch.asm */
int vmx_vmxon_safe(const hpa_t *region_hpa);

/* setup.c: every field of the current VMCS but guest registers, for this core and vCPU. */
void vmx_setup(struct hvm_vcpu *vcpu);
/* setup.c: the state a processor has after reset, into the current VMCS and its live registers. */
void vmx_reset(struct hvm_vcpu *vcpu);
/* setup.c: fills the page; read and write exits for all but what guests own. */
void vmx_msr_bitmap_fill(uint8_t *bitmap);

/* run.c */
void vmx_run(struct hvm_vcpu *vcpu);
void vmx_inject(struct hvm_vcpu *vcpu, uint8_t vector, int64_t error_code);
void vmx_events_reset(struct hvm_vcpu *vcpu);

/* exits.c: the exit of that reason into vcpu->exit. */
void vmx_exit_decode(struct hvm_vcpu *vcpu, uint32_t reason);

/* cr.c */
void vmx_cr_access(struct hvm_vcpu *vcpu);
uint64_t vmx_cr0_get(const struct vmx_vcpu *v);
uint64_t vmx_cr4_get(const struct vmx_vcpu *v);
void vmx_cr0_set(struct vmx_vcpu *v, uint64_t cr0);
void vmx_cr4_set(struct vmx_vcpu *v, uint64_t cr4);
void vmx_efer_set(struct vmx_vcpu *v, uint64_t efer);
/* PDPTEs from the guest's memory at cr3; false: not there, or reserved bits. */
bool vmx_pdptes_load(struct hvm_vcpu *vcpu, uint64_t cr3);

/* state.c */
void vmx_state_get(struct hvm_vcpu *vcpu, struct hvm_state *state);
void vmx_state_set(struct hvm_vcpu *vcpu, const struct hvm_state *state);
void vmx_state_get_paging(struct hvm_vcpu *vcpu, struct hvm_state *state);
void vmx_dump(struct hvm_vcpu *vcpu);

#endif
