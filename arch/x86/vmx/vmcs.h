/*
 * vmcs.h: VMCS fields, exit reasons, and the instructions that read and write them. SDM 3D appendix
 * B and C, 3C 25.9. Freestanding only.
 */
#ifndef QUELL_ARCH_X86_VMX_VMCS_H
#define QUELL_ARCH_X86_VMX_VMCS_H

#include "arch/types.h"

enum vmcs_field {
	VMCS_VPID = 0x0000,
	VMCS_GUEST_SEL = 0x0800,        /* + 2 * enum hvm_seg_index */
	VMCS_INTERRUPT_STATUS = 0x0810, /* RVI in 7:0, SVI in 15:8 */
	VMCS_HOST_ES = 0x0c00,
	VMCS_HOST_CS = 0x0c02,
	VMCS_HOST_SS = 0x0c04,
	VMCS_HOST_DS = 0x0c06,
	VMCS_HOST_FS = 0x0c08,
	VMCS_HOST_GS = 0x0c0a,
	VMCS_HOST_TR = 0x0c0c,

	VMCS_IO_BITMAP_A = 0x2000,
	VMCS_IO_BITMAP_B = 0x2002,
	VMCS_MSR_BITMAP = 0x2004,
	VMCS_TSC_OFFSET = 0x2010,
	VMCS_VIRTUAL_APIC = 0x2012,
	VMCS_EPTP = 0x201a,
	VMCS_EOI_EXIT = 0x201c, /* + 2 * n for vectors 64n and up */
	VMCS_XSS_BITMAP = 0x202c,
	VMCS_GUEST_PHYSICAL = 0x2400,
	VMCS_LINK = 0x2800,
	VMCS_GUEST_DEBUGCTL = 0x2802,
	VMCS_GUEST_PAT = 0x2804,
	VMCS_GUEST_EFER = 0x2806,
	VMCS_GUEST_PDPTE0 = 0x280a,
	VMCS_HOST_PAT = 0x2c00,
	VMCS_HOST_EFER = 0x2c02,

	VMCS_PIN = 0x4000,
	VMCS_PROC = 0x4002,
	VMCS_EXCEPTIONS = 0x4004,
	VMCS_PF_MASK = 0x4006,
	VMCS_PF_MATCH = 0x4008,
	VMCS_CR3_TARGETS = 0x400a,
	VMCS_EXIT = 0x400c,
	VMCS_EXIT_STORE_COUNT = 0x400e,
	VMCS_EXIT_LOAD_COUNT = 0x4010,
	VMCS_ENTRY = 0x4012,
	VMCS_ENTRY_LOAD_COUNT = 0x4014,
	VMCS_ENTRY_EVENT = 0x4016,
	VMCS_ENTRY_ERROR = 0x4018,
	VMCS_ENTRY_LEN = 0x401a,
	VMCS_TPR_THRESHOLD = 0x401c,
	VMCS_PROC2 = 0x401e,
	VMCS_INSTRUCTION_ERROR = 0x4400,
	VMCS_EXIT_REASON = 0x4402,
	VMCS_EXIT_EVENT = 0x4404,
	VMCS_EXIT_ERROR = 0x4406,
	VMCS_IDT_EVENT = 0x4408,
	VMCS_IDT_ERROR = 0x440a,
	VMCS_EXIT_LEN = 0x440c,
	VMCS_EXIT_INSN_INFO = 0x440e,
	VMCS_GUEST_LIMIT = 0x4800, /* + 2 * enum hvm_seg_index */
	VMCS_GUEST_GDTR_LIMIT = 0x4810,
	VMCS_GUEST_IDTR_LIMIT = 0x4812,
	VMCS_GUEST_ATTR = 0x4814, /* + 2 * enum hvm_seg_index */
	VMCS_INTERRUPTIBILITY = 0x4824,
	VMCS_ACTIVITY = 0x4826,
	VMCS_GUEST_SYSENTER_CS = 0x482a,
	VMCS_TIMER = 0x482e,
	VMCS_HOST_SYSENTER_CS = 0x4c00,

	VMCS_CR0_MASK = 0x6000,
	VMCS_CR4_MASK = 0x6002,
	VMCS_CR0_SHADOW = 0x6004,
	VMCS_CR4_SHADOW = 0x6006,
	VMCS_QUALIFICATION = 0x6400,
	VMCS_GUEST_LINEAR = 0x640a,
	VMCS_GUEST_CR0 = 0x6800,
	VMCS_GUEST_CR3 = 0x6802,
	VMCS_GUEST_CR4 = 0x6804,
	VMCS_GUEST_BASE = 0x6806, /* + 2 * enum hvm_seg_index */
	VMCS_GUEST_GDTR_BASE = 0x6816,
	VMCS_GUEST_IDTR_BASE = 0x6818,
	VMCS_GUEST_DR7 = 0x681a,
	VMCS_GUEST_RSP = 0x681c,
	VMCS_GUEST_RIP = 0x681e,
	VMCS_GUEST_RFLAGS = 0x6820,
	VMCS_PENDING_DEBUG = 0x6822,
	VMCS_GUEST_SYSENTER_ESP = 0x6824,
	VMCS_GUEST_SYSENTER_EIP = 0x6826,
	VMCS_HOST_CR0 = 0x6c00,
	VMCS_HOST_CR3 = 0x6c02,
	VMCS_HOST_CR4 = 0x6c04,
	VMCS_HOST_FS_BASE = 0x6c06,
	VMCS_HOST_GS_BASE = 0x6c08,
	VMCS_HOST_TR_BASE = 0x6c0a,
	VMCS_HOST_GDTR_BASE = 0x6c0c,
	VMCS_HOST_IDTR_BASE = 0x6c0e,
	VMCS_HOST_SYSENTER_ESP = 0x6c10,
	VMCS_HOST_SYSENTER_EIP = 0x6c12,
	VMCS_HOST_RSP = 0x6c14, /* switch.asm writes it too */
	VMCS_HOST_RIP = 0x6c16,
};

enum vmx_reason {
	REASON_EXCEPTION_NMI = 0,
	REASON_EXTERNAL_INTERRUPT = 1,
	REASON_TRIPLE_FAULT = 2,
	REASON_INIT = 3,
	REASON_SIPI = 4,
	REASON_INTERRUPT_WINDOW = 7,
	REASON_NMI_WINDOW = 8,
	REASON_TASK_SWITCH = 9,
	REASON_CPUID = 10,
	REASON_GETSEC = 11,
	REASON_HLT = 12,
	REASON_INVD = 13,
	REASON_RDPMC = 15,
	REASON_VMCALL = 18,
	REASON_VMCLEAR = 19,
	REASON_VMXON = 27,
	REASON_CR_ACCESS = 28,
	REASON_IO = 30,
	REASON_MSR_READ = 31,
	REASON_MSR_WRITE = 32,
	REASON_MWAIT = 36,
	REASON_MONITOR = 39,
	REASON_PAUSE = 40,
	REASON_EPT_VIOLATION = 48,
	REASON_EPT_MISCONFIG = 49,
	REASON_INVEPT = 50,
	REASON_PREEMPTION_TIMER = 52,
	REASON_INVVPID = 53,
	REASON_WBINVD = 54,
	REASON_XSETBV = 55,
};

#define REASON_ENTRY_FAILED BIT(31)

/* Event words: VM-entry and VM-exit interruption information and IDT-vectoring information share
 * this layout. SDM 3C table 25-17. */
#define EVENT_VECTOR(e)     ((e)&0xff)
#define EVENT_TYPE(e)       ((e) >> 8 & 7)
#define EVENT_ERROR         BIT(11)
#define EVENT_NMI_UNBLOCKED BIT(12)
#define EVENT_VALID         BIT(31)

enum vmx_event_type {
	EVENT_EXTERNAL = 0,
	EVENT_NMI = 2,
	EVENT_HARDWARE = 3,
	EVENT_SOFT_INT = 4,
	EVENT_PRIV_SOFT = 5,
	EVENT_SOFT_EXCEPTION = 6,
};

/* Interruptibility state. */
#define BLOCK_STI    BIT(0)
#define BLOCK_MOV_SS BIT(1)
#define BLOCK_SHADOW (BLOCK_STI | BLOCK_MOV_SS)
#define BLOCK_NMI    BIT(3)

#define PENDING_DEBUG_BS BIT(14)

/* A field that should exist does not: a broken invariant of ours. */
void vmx_field_refused(uint32_t field, bool write) NORETURN;

static inline uint64_t vmcs_read(uint32_t field)
{
	uint64_t value;

	__asm__ volatile goto("vmread %1, %0\n\t"
	                      "jna %l[refused]"
	                      : "=r"(value)
	                      : "r"((uint64_t)field)
	                      : "cc"
	                      : refused);
	return value;
refused:
	vmx_field_refused(field, false);
}

static inline void vmcs_write(uint32_t field, uint64_t value)
{
	__asm__ volatile goto("vmwrite %0, %1\n\t"
	                      "jna %l[refused]"
	                      :
	                      : "r"(value), "r"((uint64_t)field)
	                      : "cc"
	                      : refused);
	return;
refused:
	vmx_field_refused(field, true);
}

/* For a post-mortem: false when this processor has no such field. */
static inline bool vmcs_read_maybe(uint32_t field, uint64_t *value)
{
	uint64_t v;
	bool ok;

	__asm__ volatile("vmread %2, %0\n\t"
	                 "seta %1"
	                 : "=&r"(v), "=r"(ok)
	                 : "r"((uint64_t)field)
	                 : "cc");
	if (ok)
		*value = v;
	return ok;
}

static inline bool vmx_vmclear(hpa_t vmcs_hpa)
{
	bool ok;

	__asm__ volatile("vmclear %1\n\tseta %0" : "=r"(ok) : "m"(vmcs_hpa) : "cc", "memory");
	return ok;
}

static inline bool vmx_vmptrld(hpa_t vmcs_hpa)
{
	bool ok;

	__asm__ volatile("vmptrld %1\n\tseta %0" : "=r"(ok) : "m"(vmcs_hpa) : "cc", "memory");
	return ok;
}

enum vmx_inv_type { INV_SINGLE = 1, INV_ALL = 2 };

struct vmx_inv {
	uint64_t what; /* INVEPT: EPTP. INVVPID: VPID in 15:0 */
	uint64_t address;
};

static inline void vmx_invept(enum vmx_inv_type type, uint64_t eptp)
{
	struct vmx_inv d = {eptp, 0};

	__asm__ volatile("invept %0, %1" : : "m"(d), "r"((uint64_t)type) : "cc", "memory");
}

static inline void vmx_invvpid(enum vmx_inv_type type, uint16_t vpid)
{
	struct vmx_inv d = {vpid, 0};

	__asm__ volatile("invvpid %0, %1" : : "m"(d), "r"((uint64_t)type) : "cc", "memory");
}

#endif
