/* The VMX back end: what the machine can do, VMX operation on each core, the operations table. */
#include "arch/platform.h"
#include "arch/x86/core.h"
#include "arch/x86/cpu.h"
#include "arch/x86/vmx/ept.h"
#include "arch/x86/vmx/vmcs.h"
#include "arch/x86/vmx/vmx.h"
#include "vmm/fmt.h"

#define CPUID_VMX BIT(5)

_Static_assert(offsetof(struct hvm_vcpu, gpr) == 0, "switch.asm finds registers there");
_Static_assert(CR4_VMXE == BIT(13) && sizeof(struct vmx_inv) == 16, "SDM 3A 2.5, 3C 31.3");

struct vmx_machine vmx;

void vmx_field_refused(uint32_t field, bool write)
{
	uint64_t error = 0;

	vmcs_read_maybe(VMCS_INSTRUCTION_ERROR, &error);
	plat_panic("vmx: VMCS field 0x%x refused a %s (error %llu)", field,
	           write ? "write" : "read", (unsigned long long)error);
}

static unsigned maxphyaddr(void)
{
	struct cpu_regs top = cpu_id(0x80000000, 0);

	return top.eax >= 0x80000008 ? cpu_id(0x80000008, 0).eax & 0xff : 36;
}

static int vmx_probe(const char *const *disable, unsigned disable_count, char *why, size_t why_len)
{
	struct vmx_caps caps;
	uint64_t feature_write;
	int err;

	if (!(cpu_id(1, 0).ecx & CPUID_VMX)) {
		fmt_snprintf(why, why_len,
		             "VMX: CPUID does not report it: Quell needs VMX with EPT; enable it "
		             "in the firmware setup, or have the hypervisor below offer it");
		return -ENODEV;
	}
	vmx_caps_read(&caps, hvm_rdmsr_safe);
	err = vmx_feature_control(&caps, &feature_write, why, why_len);
	if (!err)
		err = vmx_controls_choose(&vmx.ctl, &caps, disable, disable_count, why, why_len);
	if (err)
		return -ENODEV;

	vmx.ept = ept_format(vmx_has(VMX_F_EPT_2M), vmx_has(VMX_F_EPT_1G),
	                     vmx_has(VMX_F_MMIO_MISCONF));
	vmx.maxphyaddr = maxphyaddr();
	vmx.core_count = core_count();
	if (!vmx.vmxon)
		vmx.vmxon = plat_mem_alloc((uint64_t)vmx.core_count * PAGE_SIZE, PAGE_SIZE);
	if (!vmx.vmxon) {
		fmt_snprintf(why, why_len, "VMX: no memory for VMXON regions");
		return -ENODEV;
	}
	return 0;
}

/* SDM 3C 24.7, 24.8, 32.5. */
static int vmx_core_enable(void)
{
	unsigned core = plat_core();
	struct vmx_caps caps;
	uint64_t feature_write, cr0, cr4;
	hpa_t region_hpa;
	char why[160];
	int failed;

	vmx_caps_read(&caps, hvm_rdmsr_safe);
	if (core >= vmx.core_count || vmx_controls_check(&vmx.ctl, &caps, why, sizeof(why)) ||
	    vmx_feature_control(&caps, &feature_write, why, sizeof(why))) {
		plat_log("core %u: %s", core, core >= vmx.core_count ? "VMX: unknown core" : why);
		return -EIO;
	}
	if (feature_write && !hvm_wrmsr_safe(MSR_FEATURE_CONTROL, feature_write)) {
		plat_log("core %u: VMX: IA32_FEATURE_CONTROL refused 0x%llx: enable VMX in the "
		         "firmware setup",
		         core, (unsigned long long)feature_write);
		return -EIO;
	}
	cr0 = (cpu_cr0() | caps.cr0_fixed0) & caps.cr0_fixed1;
	cr4 = cpu_cr4() | CR4_VMXE | caps.cr4_fixed0;
	if (cr4 & ~caps.cr4_fixed1) {
		plat_log("core %u: VMX: CR4 = 0x%llx, allowed 0x%llx", core,
		         (unsigned long long)cr4, (unsigned long long)caps.cr4_fixed1);
		return -EIO;
	}
	cpu_cr0_set(cr0);
	cpu_cr4_set(cr4);
	region_hpa = plat_hpa(vmx.vmxon + (uint64_t)core * PAGE_SIZE);
	*(uint32_t *)(uintptr_t)region_hpa = vmx.ctl.revision;
	failed = vmx_vmxon_safe(&region_hpa);
	if (failed) {
		cpu_cr4_set(cr4 & ~CR4_VMXE);
		plat_log("core %u: VMX: VMXON %s: is other software using VMX?", core,
		         failed == 2 ? "faulted" : "failed");
		return -EIO;
	}
	return 0;
}

static void vmx_core_disable(void)
{
	__asm__ volatile("vmxoff" : : : "cc", "memory");
	cpu_cr4_set(cpu_cr4() & ~CR4_VMXE);
}

static int vmx_vm_init(struct hvm_vm *vm)
{
	int err = nested_init(&vmx.ept, vm);

	if (err)
		return err;
	vm->msr_bitmap = plat_mem_alloc(PAGE_SIZE, PAGE_SIZE);
	if (!vm->msr_bitmap)
		return -ENOMEM;
	vmx_msr_bitmap_fill(vm->msr_bitmap);
	vm->io_bitmap = NULL;
	if (!vmx_has(VMX_F_IO_UNCOND)) {
		vm->io_bitmap = plat_mem_alloc(2 * PAGE_SIZE, PAGE_SIZE);
		if (!vm->io_bitmap)
			return -ENOMEM;
		memset(vm->io_bitmap, 0xff, 2 * PAGE_SIZE);
	}
	return 0;
}

static int vmx_map_ram(struct hvm_vm *vm, gpa_t gpa, hpa_t hpa, uint64_t len_bytes)
{
	return nested_map_ram(&vmx.ept, vm, gpa, hpa, len_bytes);
}

static int vmx_map_mmio(struct hvm_vm *vm, gpa_t gpa, uint64_t len_bytes)
{
	return nested_map_mmio(&vmx.ept, vm, gpa, len_bytes);
}

static int vmx_vcpu_init(struct hvm_vcpu *vcpu)
{
	vcpu->priv = plat_mem_alloc(sizeof(struct vmx_vcpu), CACHE_LINE_BYTES);
	vcpu->cb = plat_mem_alloc(PAGE_SIZE, PAGE_SIZE);
	if (!vcpu->priv || !vcpu->cb)
		return -ENOMEM;
	if (vmx_has(VMX_F_VIRT_INTR)) {
		vmx_of(vcpu)->virtual_apic = plat_mem_alloc(PAGE_SIZE, PAGE_SIZE);
		if (!vmx_of(vcpu)->virtual_apic)
			return -ENOMEM;
	}
	vcpu->cb_hpa = plat_hpa(vcpu->cb);
	*(uint32_t *)vcpu->cb = vmx.ctl.revision;
	vcpu->irq_offer = -1;
	return 0;
}

static int vmx_vcpu_bind(struct hvm_vcpu *vcpu)
{
	struct vmx_vcpu *v = vmx_of(vcpu);

	if (!vmx_vmclear(vcpu->cb_hpa) || !vmx_vmptrld(vcpu->cb_hpa)) {
		plat_log("core %u: VMX: VMPTRLD refused VMCS 0x%llx", plat_core(),
		         (unsigned long long)vcpu->cb_hpa);
		return -EIO;
	}
	vmx_setup(vcpu);
	if (!v->initialised)
		vmx_reset(vcpu);
	/* Tables only grow after this, so what no core has cached stays true. SDM 3C 29.4.3.3 */
	vmx_invept(vmx_has(VMX_F_INVEPT_SINGLE) ? INV_SINGLE : INV_ALL,
	           vcpu->vm->nested_root_hpa | vmx.ctl.eptp_flags);
	return 0;
}

static void vmx_vcpu_unbind(struct hvm_vcpu *vcpu)
{
	vmx_vmclear(vcpu->cb_hpa);
}

static void vmx_cpuid_fit(uint32_t leaf, uint32_t out[4])
{
	if (leaf == 7 && !vmx_has(VMX_F_INVPCID))
		out[1] &= ~(uint32_t)BIT(10);
	if (vmx_has(VMX_F_RDTSCP))
		return;
	if (leaf == 7)
		out[2] &= ~(uint32_t)BIT(22); /* RDPID */
	else if (leaf == 0x80000001)
		out[3] &= ~(uint32_t)BIT(27);
}

/* clang-format off */
const struct hvm_ops hvm_vmx = {
	.name = "vmx",
	.exit_name = {
		[HVM_EXIT_NONE] = "RESOLVED",
		[HVM_EXIT_INTR] = "EXTERNAL_INTERRUPT",
		[HVM_EXIT_TIMER] = "PREEMPTION_TIMER",
		[HVM_EXIT_IRQ_WINDOW] = "INTERRUPT_WINDOW",
		[HVM_EXIT_NMI] = "EXCEPTION_NMI",
		[HVM_EXIT_HLT] = "HLT",
		[HVM_EXIT_CPUID] = "CPUID",
		[HVM_EXIT_RDMSR] = "MSR_READ",
		[HVM_EXIT_WRMSR] = "MSR_WRITE",
		[HVM_EXIT_PIO] = "IO_INSTRUCTION",
		[HVM_EXIT_KICK] = "EPT_MISCONFIG",
		[HVM_EXIT_MEM] = "EPT_VIOLATION",
		[HVM_EXIT_HYPERCALL] = "VMCALL",
		[HVM_EXIT_XSETBV] = "XSETBV",
		[HVM_EXIT_CR] = "CR_ACCESS",
		[HVM_EXIT_CR8] = "CR8_ACCESS",
		[HVM_EXIT_WBINVD] = "WBINVD",
		[HVM_EXIT_UD] = "VMX_INSTRUCTION",
		[HVM_EXIT_PAUSE] = "PAUSE_INSTRUCTION",
		[HVM_EXIT_TRIPLE_FAULT] = "TRIPLE_FAULT",
		[HVM_EXIT_INIT] = "INIT_SIGNAL",
		[HVM_EXIT_BAD_STATE] = "INVALID_STATE",
		[HVM_EXIT_OTHER] = "OTHER",
	},
	.probe = vmx_probe,
	.core_enable = vmx_core_enable,
	.core_disable = vmx_core_disable,
	.vm_init = vmx_vm_init,
	.map_ram = vmx_map_ram,
	.map_mmio = vmx_map_mmio,
	.vcpu_init = vmx_vcpu_init,
	.vcpu_bind = vmx_vcpu_bind,
	.vcpu_unbind = vmx_vcpu_unbind,
	.run = vmx_run,
	.state_get = vmx_state_get,
	.state_set = vmx_state_set,
	.state_get_paging = vmx_state_get_paging,
	.inject = vmx_inject,
	.events_reset = vmx_events_reset,
	.cpuid_fit = vmx_cpuid_fit,
	.dump = vmx_dump,
};
/* clang-format on */
