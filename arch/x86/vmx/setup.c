/* A VMCS from nothing: controls, host state, and the guest state of a processor after reset. */
#include "arch/platform.h"
#include "arch/x86/cpu.h"
#include "arch/x86/percore.h"
#include "arch/x86/vmx/vmcs.h"
#include "arch/x86/vmx/vmx.h"

#define MSR_SYSENTER_CS    0x174
#define MSR_SYSENTER_ESP   0x175
#define MSR_SYSENTER_EIP   0x176
#define MSR_TSC            0x10
#define MSR_XSS            0xda0
#define MSR_STAR           0xc0000081
#define MSR_LSTAR          0xc0000082
#define MSR_CSTAR          0xc0000083
#define MSR_SFMASK         0xc0000084
#define MSR_FS_BASE        0xc0000100
#define MSR_GS_BASE        0xc0000101
#define MSR_KERNEL_GS_BASE 0xc0000102
#define MSR_TSC_AUX        0xc0000103

#define EXCEPTION_DB 1
#define EXCEPTION_AC 17
#define EXCEPTION_MC 18

#define PAT_RESET 0x0007040600070406ull

struct table_ptr {
	uint16_t limit;
	uint64_t base;
} PACKED;

extern const char vmx_exit_entry[];

/* 1 KiB each: reads of 0..1fff, reads of c0000000..c0001fff, writes likewise. SDM 3C 25.6.9. */
static void msr_allow(uint8_t *bitmap, uint32_t index, bool read, bool write)
{
	uint32_t byte = (index & 0x1fff) / 8 + (index >= 0xc0000000u ? 1024 : 0);
	uint8_t keep = (uint8_t) ~(1u << (index & 7));

	if (read)
		bitmap[byte] &= keep;
	if (write)
		bitmap[byte + 2048] &= keep;
}

void vmx_msr_bitmap_fill(uint8_t *bitmap)
{
	static const uint32_t guest_owned[] = {
	        MSR_SYSENTER_CS, MSR_SYSENTER_ESP,   MSR_SYSENTER_EIP, MSR_STAR,
	        MSR_LSTAR,       MSR_CSTAR,          MSR_SFMASK,       MSR_FS_BASE,
	        MSR_GS_BASE,     MSR_KERNEL_GS_BASE,
	};

	memset(bitmap, 0xff, PAGE_SIZE);
	for (unsigned i = 0; i < ARRAY_LEN(guest_owned); i++)
		msr_allow(bitmap, guest_owned[i], true, true);
	msr_allow(bitmap, MSR_TSC, true, false);
	if (vmx_has(VMX_F_PAT))
		msr_allow(bitmap, MSR_PAT, true, true);
	if (vmx_has(VMX_F_RDTSCP))
		msr_allow(bitmap, MSR_TSC_AUX, true, true);
}

static void setup_controls(struct hvm_vcpu *vcpu)
{
	struct vmx_vcpu *v = vmx_of(vcpu);
	const struct hvm_vm *vm = vcpu->vm;

	v->pin = vmx.ctl.word[VMX_PIN];
	v->proc = vmx.ctl.word[VMX_PROC];
	vmcs_write(VMCS_PIN, v->pin);
	vmcs_write(VMCS_PROC, v->proc);
	vmcs_write(VMCS_PROC2, vmx.ctl.word[VMX_PROC2]);
	vmcs_write(VMCS_EXIT, vmx.ctl.word[VMX_EXIT]);

	/*
	 * #MC is for us. #DB and #AC can each nest without end inside one instruction, where no
	 * interrupt gets in (CVE-2015-8104, CVE-2015-5307): through an exit, one does.
	 */
	vmcs_write(VMCS_EXCEPTIONS, BIT(EXCEPTION_DB) | BIT(EXCEPTION_AC) | BIT(EXCEPTION_MC));
	vmcs_write(VMCS_PF_MASK, 0);
	vmcs_write(VMCS_PF_MATCH, 0);
	vmcs_write(VMCS_CR3_TARGETS, 0);
	vmcs_write(VMCS_EXIT_STORE_COUNT, 0);
	vmcs_write(VMCS_EXIT_LOAD_COUNT, 0);
	vmcs_write(VMCS_ENTRY_LOAD_COUNT, 0);
	vmcs_write(VMCS_ENTRY_EVENT, 0);

	vmcs_write(VMCS_EPTP, vm->nested_root_hpa | vmx.ctl.eptp_flags);
	vmcs_write(VMCS_MSR_BITMAP, plat_hpa(vm->msr_bitmap));
	if (vm->io_bitmap) {
		vmcs_write(VMCS_IO_BITMAP_A, plat_hpa(vm->io_bitmap));
		vmcs_write(VMCS_IO_BITMAP_B, plat_hpa(vm->io_bitmap) + PAGE_SIZE);
	}
	if (vmx_has(VMX_F_VPID))
		vmcs_write(VMCS_VPID, vm->tag + vcpu->index);
	if (vmx_has(VMX_F_XSAVES))
		vmcs_write(VMCS_XSS_BITMAP, 0);
	v->tsc_offset = vcpu->tsc_offset;
	vmcs_write(VMCS_TSC_OFFSET, v->tsc_offset);

	vmcs_write(VMCS_CR0_MASK, ~CR0_GUEST_OWNED);
	vmcs_write(VMCS_CR4_MASK, ~(vmx.ctl.cr4_guest & ~CR4_HOST_OWNED));
}

/*
 * The processor waits for the guest's IF itself. It delivers no EOI and no TPR to this page: vmm's
 * local APIC keeps those, and offers only what they let in. SDM 3C 25.6.8, 30.2.
 */
static void setup_virtual_interrupts(struct vmx_vcpu *v)
{
	memset(v->virtual_apic, 0, PAGE_SIZE);
	v->interrupt_status = 0;
	v->offer = -1;
	vmcs_write(VMCS_VIRTUAL_APIC, plat_hpa(v->virtual_apic));
	vmcs_write(VMCS_TPR_THRESHOLD, 0);
	vmcs_write(VMCS_INTERRUPT_STATUS, 0);
	for (unsigned i = 0; i < 4; i++)
		vmcs_write(VMCS_EOI_EXIT + 2 * i, 0);
}

static uint64_t selector(unsigned which)
{
	uint16_t ds, es, fs, gs;

	__asm__ volatile("mov %%ds, %0" : "=r"(ds));
	__asm__ volatile("mov %%es, %0" : "=r"(es));
	__asm__ volatile("mov %%fs, %0" : "=r"(fs));
	__asm__ volatile("mov %%gs, %0" : "=r"(gs));
	switch (which) {
	case VMCS_HOST_DS: return ds;
	case VMCS_HOST_ES: return es;
	case VMCS_HOST_FS: return fs;
	default: return gs;
	}
}

/* What each exit loads. RPL must be 0, and the tables' limits become 0xffff. SDM 3C 28.5. */
static void setup_host(void)
{
	const struct percore *pc = percore_self();
	struct table_ptr idtr;

	__asm__ volatile("sidt %0" : "=m"(idtr));
	vmcs_write(VMCS_HOST_CS, SEL_CODE);
	vmcs_write(VMCS_HOST_SS, SEL_DATA);
	vmcs_write(VMCS_HOST_DS, selector(VMCS_HOST_DS) & 0xfff8);
	vmcs_write(VMCS_HOST_ES, selector(VMCS_HOST_ES) & 0xfff8);
	vmcs_write(VMCS_HOST_FS, selector(VMCS_HOST_FS) & 0xfff8);
	vmcs_write(VMCS_HOST_GS, selector(VMCS_HOST_GS) & 0xfff8);
	vmcs_write(VMCS_HOST_TR, SEL_TSS);
	vmcs_write(VMCS_HOST_FS_BASE, cpu_rdmsr(MSR_FS_BASE));
	vmcs_write(VMCS_HOST_GS_BASE, cpu_rdmsr(MSR_GS_BASE));
	vmcs_write(VMCS_HOST_TR_BASE, (uint64_t)&pc->tss);
	vmcs_write(VMCS_HOST_GDTR_BASE, (uint64_t)pc->gdt);
	vmcs_write(VMCS_HOST_IDTR_BASE, idtr.base);
	vmcs_write(VMCS_HOST_CR0, cpu_cr0());
	vmcs_write(VMCS_HOST_CR3, cpu_cr3());
	vmcs_write(VMCS_HOST_CR4, cpu_cr4());
	vmcs_write(VMCS_HOST_EFER, cpu_rdmsr(MSR_EFER));
	if (vmx_has(VMX_F_PAT))
		vmcs_write(VMCS_HOST_PAT, cpu_rdmsr(MSR_PAT));
	vmcs_write(VMCS_HOST_SYSENTER_CS, 0);
	vmcs_write(VMCS_HOST_SYSENTER_ESP, 0);
	vmcs_write(VMCS_HOST_SYSENTER_EIP, 0);
	vmcs_write(VMCS_HOST_RIP, (uint64_t)vmx_exit_entry);
}

void vmx_setup(struct hvm_vcpu *vcpu)
{
	struct vmx_vcpu *v = vmx_of(vcpu);

	setup_controls(vcpu);
	setup_host();
	if (v->virtual_apic)
		setup_virtual_interrupts(v);
	v->host_rsp = 0;
	v->launched = false;
	v->flush = true;
}

/* Live registers that no VMCS field holds, and the MSRs that belong to the guest at all times. */
static void reset_live_registers(void)
{
	static const uint32_t zero[] = {
	        MSR_STAR,           MSR_LSTAR,   MSR_CSTAR, MSR_SFMASK,
	        MSR_KERNEL_GS_BASE, MSR_TSC_AUX, MSR_XSS,
	};

	for (unsigned i = 0; i < ARRAY_LEN(zero); i++)
		hvm_wrmsr_safe(zero[i], 0); /* false: this processor has no such register */
	__asm__ volatile("mov %0, %%db0\n\t"
	                 "mov %0, %%db1\n\t"
	                 "mov %0, %%db2\n\t"
	                 "mov %0, %%db3"
	                 :
	                 : "r"(0ull));
}

/* SDM 3A table 10-1. */
void vmx_reset(struct hvm_vcpu *vcpu)
{
	struct vmx_vcpu *v = vmx_of(vcpu);
	struct hvm_state s = {
	        .gdtr_limit = 0xffff,
	        .idtr_limit = 0xffff,
	        .cr0 = CR0_CD | CR0_NW | CR0_ET,
	        .pat = PAT_RESET,
	        .dr6 = 0xffff0ff0,
	        .dr7 = 0x400,
	};

	reset_live_registers();
	for (unsigned i = 0; i < HVM_SEG_COUNT; i++)
		s.seg[i] = (struct hvm_seg){.attr = 0x93, .limit = 0xffff};
	s.seg[HVM_CS] = (struct hvm_seg){0xf000, 0x9b, 0xffff, 0xffff0000};
	s.seg[HVM_LDTR].attr = 0x82;
	s.seg[HVM_TR].attr = 0x8b;

	vmcs_write(VMCS_GUEST_RIP, v->rip = 0);
	vmcs_write(VMCS_GUEST_RSP, v->rsp = 0);
	vmcs_write(VMCS_GUEST_RFLAGS, v->rflags = BIT(1));
	v->entry = 0;
	vmx_events_reset(vcpu);
	vcpu->skipped = false;
	vmcs_write(VMCS_LINK, UINT64_MAX);
	vmcs_write(VMCS_GUEST_DEBUGCTL, 0);
	vmcs_write(VMCS_ACTIVITY, 0);
	vmx_state_set(vcpu, &s);
	v->initialised = true;
}
