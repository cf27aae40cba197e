/*
 * hvm.h: the seam between vendor-neutral vmm/ and the back ends vmx/ and svm/. A back end turns
 * each hardware exit into one struct hvm_exit; no VMCS or VMCB name leaves its folder. The back end
 * is chosen once, by CPUID, with hvm_choose.
 *
 * Who may touch a struct hvm_vcpu: only the core it is bound to, from vcpu_bind on.
 */
#ifndef QUELL_ARCH_X86_HVM_H
#define QUELL_ARCH_X86_HVM_H

#include "arch/types.h"

/* General registers by their encoding, so that a decoded register number indexes gpr[]. */
/* clang-format off */
enum hvm_reg {
	HVM_RAX, HVM_RCX, HVM_RDX, HVM_RBX, HVM_RSP, HVM_RBP, HVM_RSI, HVM_RDI,
	HVM_R8, HVM_R9, HVM_R10, HVM_R11, HVM_R12, HVM_R13, HVM_R14, HVM_R15,
	HVM_GPR_COUNT,
};
/* clang-format on */

enum hvm_exit_reason {
	HVM_EXIT_NONE,       /* resolved inside the back end; account and go on */
	HVM_EXIT_INTR,       /* a host interrupt arrived; already taken when run returns */
	HVM_EXIT_TIMER,      /* deadline_tsc reached (preemption timer) */
	HVM_EXIT_IRQ_WINDOW, /* the guest can take an interrupt now */
	HVM_EXIT_NMI,
	HVM_EXIT_HLT,
	HVM_EXIT_CPUID,
	HVM_EXIT_RDMSR,     /* u.msr */
	HVM_EXIT_WRMSR,     /* u.msr */
	HVM_EXIT_PIO,       /* u.pio */
	HVM_EXIT_KICK,      /* access to a page that hvm_map_mmio made fault: u.mem */
	HVM_EXIT_MEM,       /* nested-page fault on a page nobody mapped: u.mem */
	HVM_EXIT_HYPERCALL, /* VMCALL or VMMCALL */
	HVM_EXIT_XSETBV,
	HVM_EXIT_CR,  /* control-register access; resolved inside */
	HVM_EXIT_CR8, /* u.cr8: the task-priority register lives in vmm's local APIC */
	HVM_EXIT_WBINVD,
	HVM_EXIT_UD, /* an instruction guests may not use; vmm injects #UD */
	HVM_EXIT_PAUSE,
	HVM_EXIT_TRIPLE_FAULT, /* shutdown */
	HVM_EXIT_INIT,
	HVM_EXIT_BAD_STATE, /* the processor refused guest state; u.raw says why */
	HVM_EXIT_OTHER,     /* u.raw is the vendor's code; vmm ends this guest */
	HVM_EXIT_COUNT,
};

struct hvm_exit {
	enum hvm_exit_reason reason;
	uint8_t insn_len; /* of the exiting instruction; 0: not known, decode it */
	/* KICK and MEM: bytes at rip as the processor fetched them, where it hands them over; with a
	 * count of 0 read them from the guest. Shorter than the instruction when that crosses a page
	 * which cannot be fetched. */
	uint8_t insn_bytes_count;
	const uint8_t *insn_bytes;
	union {
		struct {
			gpa_t gpa;
			bool write, exec;
			bool delivering; /* while an event was on its way into the guest */
		} mem;
		struct {
			uint16_t port;
			uint8_t width_bytes;
			bool in, string, rep;
			uint8_t seg;       /* string: segment override by encoding, 3 = DS */
			uint8_t addr_size; /* string: 2, 4, 8 bytes */
			uint64_t next_rip; /* 0: use insn_len */
		} pio;
		struct {
			uint32_t index;
		} msr;
		struct {
			uint8_t gpr; /* source or destination, by encoding; or HVM_GPR_UNKNOWN */
			bool write;
		} cr8;
		struct {
			uint64_t code, info1, info2;
		} raw;
	} u;
};

#define HVM_GPR_UNKNOWN 0xff /* decode the instruction at rip: 0F 20 or 0F 22, ModRM.rm, REX.B */

/* Access rights in the layout of VMX: type 3:0, S 4, DPL 6:5, P 7, AVL 12, L 13, D 14, G 15, unusable 16. */
struct hvm_seg {
	uint16_t sel;
	uint32_t attr;
	uint32_t limit;
	uint64_t base;
};

#define HVM_SEG_UNUSABLE BIT(16)

/* By encoding; then the system segments. */
/* clang-format off */
enum hvm_seg_index {
	HVM_ES, HVM_CS, HVM_SS, HVM_DS, HVM_FS, HVM_GS, HVM_LDTR, HVM_TR, HVM_SEG_COUNT,
};
/* clang-format on */

/* State kept in the control block, for the slow paths that need it whole. */
struct hvm_state {
	struct hvm_seg seg[HVM_SEG_COUNT];
	uint64_t gdtr_base, idtr_base;
	uint32_t gdtr_limit, idtr_limit;
	uint64_t cr0, cr2, cr3, cr4; /* as the guest sees them */
	uint64_t efer;               /* as the guest sees it: SVME never shows */
	uint64_t pat, dr6, dr7;
	uint64_t sysenter_cs, sysenter_esp, sysenter_eip;
	uint64_t interrupt_shadow; /* 1: STI or MOV SS blocks interrupts for one instruction */
};

/* One guest's nested paging and bitmaps. Fixed shape after start. */
struct hvm_vm {
	hpa_t nested_root_hpa;
	uint64_t nested_pages; /* table pages in use, for the books */
	void *msr_bitmap;      /* back end's, shared by this guest's vCPUs */
	void *io_bitmap;
	uint32_t tag; /* ASID or VPID of vCPU 0; vCPU n has tag + n. Non-zero, unique */
};

struct hvm_vcpu {
	/* Hot: the world switch and every exit use these. gpr[HVM_RSP], rip and rflags are loaded
	 * from the control block after each exit and stored back before each entry. */
	uint64_t gpr[HVM_GPR_COUNT];
	uint64_t rip, rflags;
	void *cb; /* VMCB, or VMCS page */
	hpa_t cb_hpa;

	/*
	 * The interrupt to deliver as soon as the guest can take one: vmm sets irq_offer (-1: none)
	 * before run; the back end clears nothing but sets irq_taken when the guest took it (or when
	 * it is irrevocably in flight). vmm then moves it from IRR to ISR and sets irq_taken false.
	 * Back ends deliver without an interrupt-window exit where the processor can wait for IF.
	 */
	int16_t irq_offer;
	bool irq_taken;
	bool interruptible;        /* after exit: IF = 1 and no shadow */
	bool skipped;              /* hvm_skip ran: the back end drops the shadow before entry */
	uint8_t exception_pending; /* back end's: an event queued for next entry */
	bool nmi_pending; /* back end's: an injected NMI waits until the guest can take it */

	uint64_t tsc_offset; /* guest TSC = host TSC + tsc_offset; set by vmm before bind */
	/* Host TSC at which run must return at the latest (UINT64_MAX: none). A back end without a
	 * preemption timer arms the local APIC timer through core_timer_arm. */
	uint64_t deadline_tsc;

	struct hvm_exit exit; /* of the last run */
	struct hvm_vm *vm;
	unsigned index; /* vCPU number in its guest */
	void *priv;     /* back end's own */
};

struct hvm_ops {
	const char *name; /* "svm" or "vmx" */
	/* The vendor's own word, e.g. EPT_MISCONFIG; NULL: never. */
	const char *exit_name[HVM_EXIT_COUNT];

	/*
	 * Can this machine do it? 0, or -ENODEV with one line in why that names the missing control
	 * and what to do. Boot core. disable: words from the manifest's [host] disable list, e.g.
	 * "next-rip", "vpid", "ept-1g": optional controls to do without.
	 */
	int (*probe)(const char *const *disable, unsigned disable_count, char *why, size_t why_len);

	int (*core_enable)(void);   /* on each core that runs vCPUs. -EIO: refused, logged */
	void (*core_disable)(void); /* same core, no vCPU bound any more */

	int (*vm_init)(struct hvm_vm *vm); /* boot core. -ENOMEM */
	/* Map guest memory, or make an MMIO range fault cheaply (misconfiguration, reserved bit, or
	 * not present). 4 KiB granules; uses the largest pages alignment allows. Boot core, before
	 * start. -EINVAL alignment or overlap, -ENOMEM. */
	int (*map_ram)(struct hvm_vm *vm, gpa_t gpa, hpa_t hpa, uint64_t len_bytes);
	int (*map_mmio)(struct hvm_vm *vm, gpa_t gpa, uint64_t len_bytes);

	int (*vcpu_init)(struct hvm_vcpu *vcpu); /* boot core: memory only. -ENOMEM */
	int (*vcpu_bind)(struct hvm_vcpu *vcpu); /* on its core, after core_enable: make current */
	void (*vcpu_unbind)(struct hvm_vcpu *vcpu);

	/* On its core. Interrupts are off on call and on return. Fills vcpu->exit. */
	void (*run)(struct hvm_vcpu *vcpu);

	void (*state_get)(struct hvm_vcpu *vcpu, struct hvm_state *state);
	void (*state_set)(struct hvm_vcpu *vcpu, const struct hvm_state *state);
	/* Just what the MMIO and string-I/O paths need, cheaper than state_get: CR0, CR3, CR4, EFER,
	 * segments' bases and CS/SS attributes. Other fields are left alone. */
	void (*state_get_paging)(struct hvm_vcpu *vcpu, struct hvm_state *state);

	/* Deliver on the next entry. error_code < 0: none. Faults keep rip where it is. A page
	 * fault's CR2 goes through state_set. */
	void (*inject)(struct hvm_vcpu *vcpu, uint8_t vector, int64_t error_code);
	/* What INIT does beside the registers: nothing queued goes in any more, NMIs are open. */
	void (*events_reset)(struct hvm_vcpu *vcpu);

	/* Takes the bits of instructions this back end cannot let its guests run out of CPUID's
	 * answer. Any core. NULL: there are none. */
	void (*cpuid_fit)(uint32_t leaf, uint32_t out[4]);

	/* One line per field for a guest's post-mortem, through plat_log. Reads only what exists. */
	void (*dump)(struct hvm_vcpu *vcpu);
};

#define HVM_RFLAGS_IF BIT(9)
#define HVM_RFLAGS_RF BIT(16)

/* Steps over the exiting instruction: rip, RF and the interrupt shadow. */
static inline void hvm_skip(struct hvm_vcpu *vcpu, unsigned len_bytes)
{
	vcpu->rip += len_bytes;
	vcpu->rflags &= ~HVM_RFLAGS_RF;
	vcpu->skipped = true;
}

extern const struct hvm_ops hvm_svm, hvm_vmx;

/*
 * The back end for this machine, or NULL with one line in why. Boot core.
 */
const struct hvm_ops *hvm_choose(const char *const *disable, unsigned disable_count, char *why,
                                 size_t why_len);

/*
 * Guarded MSR access on this core: false when the processor raised #GP (the value is untouched).
 */
bool hvm_rdmsr_safe(uint32_t index, uint64_t *value);
bool hvm_wrmsr_safe(uint32_t index, uint64_t value);

/* XCR0 of this core, which always belongs to the guest that runs here. False: #GP. */
bool hvm_xsetbv_safe(uint32_t index, uint64_t value);
uint64_t hvm_xgetbv(void);

#endif
