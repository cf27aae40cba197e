/*
 * controls.h: which VMX controls this processor allows, and which of them Quell turns on. Pure: no
 * instruction here touches the machine, so hosted tests mask each control in turn.
 * SDM 3D appendix A (capability reporting), 3C 25.6 to 25.8 (what each control does).
 */
#ifndef QUELL_ARCH_X86_VMX_CONTROLS_H
#define QUELL_ARCH_X86_VMX_CONTROLS_H

#include "arch/types.h"

#define MSR_FEATURE_CONTROL 0x3a
#define MSR_VMX_BASIC       0x480
#define MSR_VMX_PINBASED    0x481
#define MSR_VMX_PROCBASED   0x482
#define MSR_VMX_EXIT        0x483
#define MSR_VMX_ENTRY       0x484
#define MSR_VMX_MISC        0x485
#define MSR_VMX_CR0_FIXED0  0x486
#define MSR_VMX_CR0_FIXED1  0x487
#define MSR_VMX_CR4_FIXED0  0x488
#define MSR_VMX_CR4_FIXED1  0x489
#define MSR_VMX_PROCBASED2  0x48b
#define MSR_VMX_EPT_VPID    0x48c
#define MSR_VMX_TRUE_PIN    0x48d
#define MSR_VMX_TRUE_PROC   0x48e
#define MSR_VMX_TRUE_EXIT   0x48f
#define MSR_VMX_TRUE_ENTRY  0x490

#define VMX_FEATURE_LOCK       BIT(0)
#define VMX_FEATURE_INSIDE_SMX BIT(1)
#define VMX_FEATURE_VMXON      BIT(2) /* VMX outside SMX */

/* The five control words of a VMCS. */
enum vmx_word { VMX_PIN, VMX_PROC, VMX_PROC2, VMX_EXIT, VMX_ENTRY, VMX_WORD_COUNT };

#define PIN_EXT_INTR      BIT(0)
#define PIN_NMI           BIT(3)
#define PIN_VIRTUAL_NMI   BIT(5)
#define PIN_PREEMPT_TIMER BIT(6)

#define PROC_INTR_WINDOW BIT(2)
#define PROC_TSC_OFFSET  BIT(3)
#define PROC_HLT         BIT(7)
#define PROC_MWAIT       BIT(10)
#define PROC_RDPMC       BIT(11)
#define PROC_CR3_LOAD    BIT(15)
#define PROC_CR3_STORE   BIT(16)
#define PROC_CR8_LOAD    BIT(19)
#define PROC_CR8_STORE   BIT(20)
#define PROC_TPR_SHADOW  BIT(21)
#define PROC_NMI_WINDOW  BIT(22)
#define PROC_IO          BIT(24)
#define PROC_IO_BITMAPS  BIT(25)
#define PROC_MSR_BITMAPS BIT(28)
#define PROC_MONITOR     BIT(29)
#define PROC_SECONDARY   BIT(31)

#define PROC2_EPT          BIT(1)
#define PROC2_RDTSCP       BIT(3)
#define PROC2_VPID         BIT(5)
#define PROC2_WBINVD       BIT(6)
#define PROC2_UNRESTRICTED BIT(7)
#define PROC2_VIRT_INTR    BIT(9)
#define PROC2_INVPCID      BIT(12)
#define PROC2_XSAVES       BIT(20)

#define EXIT_SAVE_DEBUG BIT(2)
#define EXIT_HOST_64    BIT(9)
#define EXIT_SAVE_PAT   BIT(18)
#define EXIT_LOAD_PAT   BIT(19)
#define EXIT_SAVE_EFER  BIT(20)
#define EXIT_LOAD_EFER  BIT(21)

#define ENTRY_LOAD_DEBUG BIT(2)
#define ENTRY_IA32E      BIT(9)
#define ENTRY_LOAD_PAT   BIT(14)
#define ENTRY_LOAD_EFER  BIT(15)

/* What was found and not disabled; each of these Quell can do without. */
#define VMX_F_VPID           BIT(0)  /* "vpid" */
#define VMX_F_EPT_1G         BIT(1)  /* "ept-1g": 1 GiB leaves in EPT, not CPUID's 1 GiB pages */
#define VMX_F_EPT_2M         BIT(2)  /* "ept-2m" */
#define VMX_F_EPT_AD         BIT(3)  /* "ept-ad" */
#define VMX_F_PREEMPT_TIMER  BIT(4)  /* "preemption-timer"; else the local APIC's timer */
#define VMX_F_PAT            BIT(5)  /* "pat": else the guest's PAT is a register of ours */
#define VMX_F_RDTSCP         BIT(6)  /* "rdtscp" */
#define VMX_F_INVPCID        BIT(7)  /* "invpcid" */
#define VMX_F_XSAVES         BIT(8)  /* "xsaves" */
#define VMX_F_WBINVD         BIT(9)  /* "wbinvd-exit" */
#define VMX_F_MMIO_MISCONF   BIT(10) /* "mmio-misconfig"; else MMIO pages are not present */
#define VMX_F_INVEPT_SINGLE  BIT(11) /* "invept-types": else all-context */
#define VMX_F_INVVPID_SINGLE BIT(12) /* "invvpid-types": else all-context */
#define VMX_F_IO_UNCOND      BIT(13) /* "io-exiting": else I/O bitmaps full of ones */
#define VMX_F_MWAIT          BIT(14) /* "mwait-exit" */
#define VMX_F_MONITOR        BIT(15) /* "monitor-exit" */
#define VMX_F_RDPMC          BIT(16) /* "rdpmc-exit" */
#define VMX_F_CR3_FREE       BIT(17) /* "true-controls": MOV CR3 need not exit */
#define VMX_F_STRING_INFO    BIT(18) /* "string-info": instruction information for INS and OUTS */
#define VMX_F_VIRT_INTR      BIT(19) /* "virtual-interrupts"; else interrupt windows */

/* The capability MSRs; a word that the processor does not have reads 0. Filled by vmx_caps_read. */
struct vmx_caps {
	uint64_t basic, misc, ept_vpid, feature_control;
	uint64_t cr0_fixed0, cr0_fixed1, cr4_fixed0, cr4_fixed1;
	uint64_t word[VMX_WORD_COUNT];      /* 31:0 must be 1, 63:32 may be 1 */
	uint64_t true_word[VMX_WORD_COUNT]; /* VMX_PROC2 has none */
	bool has_feature_control;
};

struct vmx_controls {
	uint32_t word[VMX_WORD_COUNT];
	uint32_t features;    /* VMX_F_* */
	uint32_t revision;    /* first word of VMXON regions and VMCSs */
	uint32_t timer_shift; /* the preemption timer counts TSC >> timer_shift */
	uint64_t eptp_flags;  /* or-ed to the root's address */
	/* Real CR0 and CR4 in the guest: bits that must be 1, and bits that may be. */
	uint64_t cr0_must, cr0_may, cr4_must, cr4_may;
	uint64_t cr4_guest; /* CR4 bits that guests may set */
};

/*
 * Reads the capability MSRs through rdmsr, which returns false (value untouched) on #GP. Asks only
 * for MSRs whose existence others have reported. SDM 3D A.1 to A.10.
 */
void vmx_caps_read(struct vmx_caps *caps, bool (*rdmsr)(uint32_t index, uint64_t *value));

/*
 * Chooses every control word. disable: words of optional controls to do without; others ignored.
 * 0, or -ENODEV with one line in why that names the missing control and what to do.
 */
int vmx_controls_choose(struct vmx_controls *out, const struct vmx_caps *caps,
                        const char *const *disable, unsigned disable_count, char *why,
                        size_t why_len);

/* Are these words legal on a processor with these capabilities? 0, or -EINVAL with why. */
int vmx_controls_check(const struct vmx_controls *controls, const struct vmx_caps *caps, char *why,
                       size_t why_len);

/*
 * What to do about IA32_FEATURE_CONTROL: 0 and *write is the value to write first (0: nothing to
 * write), or -ENODEV with why. SDM 3C 24.7.
 */
int vmx_feature_control(const struct vmx_caps *caps, uint64_t *write, char *why, size_t why_len);

/*
 * Preemption-timer ticks from now_tsc until TSC reaches deadline_tsc, never early by a tick,
 * saturated at 32 bits. The timer counts changes of TSC bit `shift`. SDM 3C 26.5.1.
 */
uint32_t vmx_timer_ticks(uint64_t now_tsc, uint64_t deadline_tsc, unsigned shift);

#endif
