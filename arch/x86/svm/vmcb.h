/*
 * vmcb.h: the virtual machine control block as the processor reads it (APM 2 appendix B), and the
 * encodings of its fields. Nothing outside svm/ includes this.
 */
#ifndef QUELL_ARCH_X86_SVM_VMCB_H
#define QUELL_ARCH_X86_SVM_VMCB_H

#include "arch/types.h"

/* A segment; attr is the descriptor's bytes 5 and 6 without the limit between: 11:8 G D L AVL. */
struct vmcb_seg {
	uint16_t sel, attr;
	uint32_t limit;
	uint64_t base;
};

struct vmcb {
	/* Control area. */
	uint16_t cr_read, cr_write, dr_read, dr_write; /* intercept bit per register */
	uint32_t exceptions;                           /* intercept bit per vector */
	uint32_t misc1, misc2, misc3;
	uint8_t reserved0[0x24];
	uint16_t pause_threshold, pause_count;
	uint64_t iopm_hpa, msrpm_hpa;
	uint64_t tsc_offset;
	uint32_t asid;
	uint8_t tlb_control;
	uint8_t reserved1[3];
	uint64_t int_ctl;
	uint64_t int_state;
	uint64_t exit_code, exit_info1, exit_info2;
	uint64_t exit_int_info;
	uint64_t np_control;
	uint64_t avic_bar, ghcb;
	uint64_t event_inj;
	uint64_t nested_cr3;
	uint64_t lbr_control;
	uint32_t clean;
	uint32_t reserved2;
	uint64_t next_rip;
	uint8_t insn_bytes_count;
	uint8_t insn_bytes[15];
	uint8_t reserved3[0x400 - 0xe0];

	/* State save area. */
	struct vmcb_seg es, cs, ss, ds, fs, gs, gdtr, ldtr, idtr, tr;
	uint8_t reserved4[0x2b];
	uint8_t cpl;
	uint32_t reserved5;
	uint64_t efer;
	uint8_t reserved6[0x70];
	uint64_t cr4, cr3, cr0, dr7, dr6;
	uint64_t rflags, rip;
	uint8_t reserved7[0x58];
	uint64_t rsp;
	uint8_t reserved8[0x18];
	uint64_t rax;
	uint64_t star, lstar, cstar, sfmask;
	uint64_t kernel_gs_base;
	uint64_t sysenter_cs, sysenter_esp, sysenter_eip;
	uint64_t cr2;
	uint8_t reserved9[0x20];
	uint64_t pat;
	uint64_t debug_ctl;
	uint8_t reserved10[0x1000 - 0x678];
};

#define VMCB_AT(field, offset) _Static_assert(offsetof(struct vmcb, field) == (offset), #field)
VMCB_AT(exceptions, 0x008);
VMCB_AT(misc1, 0x00c);
VMCB_AT(pause_threshold, 0x03c);
VMCB_AT(iopm_hpa, 0x040);
VMCB_AT(tsc_offset, 0x050);
VMCB_AT(asid, 0x058);
VMCB_AT(tlb_control, 0x05c);
VMCB_AT(int_ctl, 0x060);
VMCB_AT(int_state, 0x068);
VMCB_AT(exit_code, 0x070);
VMCB_AT(exit_int_info, 0x088);
VMCB_AT(np_control, 0x090);
VMCB_AT(event_inj, 0x0a8);
VMCB_AT(nested_cr3, 0x0b0);
VMCB_AT(clean, 0x0c0);
VMCB_AT(next_rip, 0x0c8);
VMCB_AT(insn_bytes_count, 0x0d0);
VMCB_AT(es, 0x400);
VMCB_AT(gdtr, 0x460);
VMCB_AT(ldtr, 0x470);
VMCB_AT(tr, 0x490);
VMCB_AT(cpl, 0x4cb);
VMCB_AT(efer, 0x4d0);
VMCB_AT(cr4, 0x548);
VMCB_AT(cr0, 0x558);
VMCB_AT(rflags, 0x570);
VMCB_AT(rip, 0x578);
VMCB_AT(rsp, 0x5d8);
VMCB_AT(rax, 0x5f8);
VMCB_AT(star, 0x600);
VMCB_AT(kernel_gs_base, 0x620);
VMCB_AT(sysenter_cs, 0x628);
VMCB_AT(cr2, 0x640);
VMCB_AT(pat, 0x668);
VMCB_AT(debug_ctl, 0x670);
_Static_assert(sizeof(struct vmcb) == PAGE_SIZE, "vmcb");
#undef VMCB_AT

/* misc1 */
#define SVM_I_INTR     BIT(0)
#define SVM_I_NMI      BIT(1)
#define SVM_I_INIT     BIT(3)
#define SVM_I_RDPMC    BIT(15)
#define SVM_I_CPUID    BIT(18)
#define SVM_I_IRET     BIT(20)
#define SVM_I_INVD     BIT(22)
#define SVM_I_HLT      BIT(24)
#define SVM_I_INVLPGA  BIT(26)
#define SVM_I_IOIO     BIT(27)
#define SVM_I_MSR      BIT(28)
#define SVM_I_SHUTDOWN BIT(31)

/* misc2 */
#define SVM_I_VMRUN   BIT(0)
#define SVM_I_VMMCALL BIT(1)
#define SVM_I_VMLOAD  BIT(2)
#define SVM_I_VMSAVE  BIT(3)
#define SVM_I_STGI    BIT(4)
#define SVM_I_CLGI    BIT(5)
#define SVM_I_SKINIT  BIT(6)
#define SVM_I_WBINVD  BIT(9)
#define SVM_I_MONITOR BIT(10)
#define SVM_I_MWAIT   BIT(11)
#define SVM_I_XSETBV  BIT(13)
#define SVM_I_RDPRU   BIT(14)

/* tlb_control */
#define SVM_TLB_KEEP       0
#define SVM_TLB_FLUSH_ALL  1
#define SVM_TLB_FLUSH_ASID 3

/* int_ctl */
#define SVM_V_IRQ          BIT(8)
#define SVM_V_PRIO_SHIFT   16
#define SVM_V_IGN_TPR      BIT(20)
#define SVM_V_INTR_MASKING BIT(24)
#define SVM_V_VECTOR_SHIFT 32

/* int_state */
#define SVM_SHADOW BIT(0)

/* np_control */
#define SVM_NP_ENABLE BIT(0)

/* event_inj and exit_int_info */
#define SVM_EVENT_VECTOR(e)   ((uint8_t)(e))
#define SVM_EVENT_TYPE(e)     ((unsigned)((e) >> 8) & 7u)
#define SVM_EVENT_INTR        0u
#define SVM_EVENT_NMI         2u
#define SVM_EVENT_EXCEPTION   3u
#define SVM_EVENT_SOFT        4u
#define SVM_EVENT_TYPE_SHIFT  8
#define SVM_EVENT_ERROR_VALID BIT(11)
#define SVM_EVENT_VALID       BIT(31)
#define SVM_EVENT_ERROR_SHIFT 32

/* clean: what the processor may take from its cache of this VMCB. APM 2 15.15.3 */
#define SVM_CLEAN_INTERCEPTS BIT(0) /* and TSC offset */
#define SVM_CLEAN_PERM       BIT(1)
#define SVM_CLEAN_ASID       BIT(2)
#define SVM_CLEAN_TPR        BIT(3) /* int_ctl */
#define SVM_CLEAN_NP         BIT(4) /* nested paging and PAT */
#define SVM_CLEAN_CR         BIT(5)
#define SVM_CLEAN_DR         BIT(6)
#define SVM_CLEAN_DT         BIT(7)
#define SVM_CLEAN_SEG        BIT(8) /* and CPL */
#define SVM_CLEAN_CR2        BIT(9)
#define SVM_CLEAN_LBR        BIT(10)
#define SVM_CLEAN_ALL        0x7ffu

/* exit_code */
/* clang-format off */
enum svm_exit {
	SVM_EXIT_CR8_READ  = 0x008,
	SVM_EXIT_CR8_WRITE = 0x018,
	SVM_EXIT_DB        = 0x041,
	SVM_EXIT_AC        = 0x051,
	SVM_EXIT_MC        = 0x052,
	SVM_EXIT_INTR      = 0x060,
	SVM_EXIT_NMI       = 0x061,
	SVM_EXIT_INIT      = 0x063,
	SVM_EXIT_RDPMC     = 0x06f,
	SVM_EXIT_CPUID     = 0x072,
	SVM_EXIT_IRET      = 0x074,
	SVM_EXIT_INVD      = 0x076,
	SVM_EXIT_PAUSE     = 0x077,
	SVM_EXIT_HLT       = 0x078,
	SVM_EXIT_INVLPGA   = 0x07a,
	SVM_EXIT_IOIO      = 0x07b,
	SVM_EXIT_MSR       = 0x07c,
	SVM_EXIT_SHUTDOWN  = 0x07f,
	SVM_EXIT_VMRUN     = 0x080,
	SVM_EXIT_VMMCALL   = 0x081,
	SVM_EXIT_VMLOAD    = 0x082,
	SVM_EXIT_VMSAVE    = 0x083,
	SVM_EXIT_STGI      = 0x084,
	SVM_EXIT_CLGI      = 0x085,
	SVM_EXIT_SKINIT    = 0x086,
	SVM_EXIT_WBINVD    = 0x089,
	SVM_EXIT_MONITOR   = 0x08a,
	SVM_EXIT_MWAIT     = 0x08b,
	SVM_EXIT_MWAIT_ARM = 0x08c,
	SVM_EXIT_XSETBV    = 0x08d,
	SVM_EXIT_RDPRU     = 0x08e,
	SVM_EXIT_NPF       = 0x400,
};
/* clang-format on */

/* exit_info1 of a nested page fault. APM 2 15.25.6 */
#define SVM_NPF_WRITE    BIT(1)
#define SVM_NPF_RESERVED BIT(3)
#define SVM_NPF_FETCH    BIT(4)

/* exit_info1 of IOIO. APM 2 15.10.2 */
#define SVM_IO_IN      BIT(0)
#define SVM_IO_STRING  BIT(2)
#define SVM_IO_REP     BIT(3)
#define SVM_IO_SIZE(i) ((uint8_t)((i) >> 4 & 7)) /* 1, 2 or 4 */
#define SVM_IO_ADDR(i) ((uint8_t)((i) >> 7 & 7)) /* 1, 2 or 4: times 16 bits */
#define SVM_IO_SEG(i)  ((uint8_t)((i) >> 10 & 7))
#define SVM_IO_PORT(i) ((uint16_t)((i) >> 16))

/* exit_info1 of a MOV to or from a control register, where decode assists exist. */
#define SVM_CR_IS_MOV BIT(63)
#define SVM_CR_GPR(i) ((uint8_t)((i)&15))

#endif
