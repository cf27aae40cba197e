/*
 * svm.h: what the files of svm/ share. APM 2 chapter 15 throughout.
 */
#ifndef QUELL_ARCH_X86_SVM_SVM_H
#define QUELL_ARCH_X86_SVM_SVM_H

#include "arch/x86/hvm.h"
#include "arch/x86/nested.h"
#include "arch/x86/svm/vmcb.h"

/* What this machine has and nobody switched off. Written by probe only. */
struct svm_caps {
	bool next_rip, decode_assists, flush_by_asid, vmcb_clean, rdpru;
	uint32_t asid_count;
	struct nested_format npt;
};

extern struct svm_caps svm_caps;

/* Where the guest stands with non-maskable interrupts: no hardware remembers it for us. */
enum svm_nmi {
	SVM_NMI_OPEN,
	SVM_NMI_MASKED,  /* delivered; IRET is intercepted */
	SVM_NMI_LEAVING, /* at its IRET, which has not run yet */
};

/* struct hvm_vcpu's priv. Its core only. */
struct svm_vcpu {
	uint32_t dirty; /* SVM_CLEAN_* to withhold at next entry */
	bool flush;     /* this ASID's translations are stale */
	enum svm_nmi nmi;
	uint64_t int_ctl; /* as it stands in the VMCB */
	hpa_t host_hpa;   /* page for the host's own VMSAVE state */
	hpa_t hsave_hpa;  /* page that VM_HSAVE_PA names while bound */
};

/*
 * The world switch (switch.asm): guest registers in, VMRUN, guest registers out, the host's own
 * state back, and a window for the host's interrupts. Interrupts off before and after.
 */
void svm_switch(struct hvm_vcpu *vcpu, hpa_t vmcb_hpa, hpa_t host_hpa);

/* VMSAVE and VMLOAD: FS, GS, TR, LDTR and the system-call registers of this core. */
static inline void svm_vmsave(hpa_t vmcb_hpa)
{
	__asm__ volatile("vmsave %0" : : "a"(vmcb_hpa) : "memory");
}

void svm_run(struct hvm_vcpu *vcpu);
void svm_inject(struct hvm_vcpu *vcpu, uint8_t vector, int64_t error_code);
void svm_events_reset(struct hvm_vcpu *vcpu);
void svm_state_get(struct hvm_vcpu *vcpu, struct hvm_state *state);
void svm_state_get_paging(struct hvm_vcpu *vcpu, struct hvm_state *state);
void svm_state_set(struct hvm_vcpu *vcpu, const struct hvm_state *state);
void svm_dump(struct hvm_vcpu *vcpu);

#endif
