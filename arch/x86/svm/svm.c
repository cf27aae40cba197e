/*
 * SVM: is it there, turn it on, and what a guest and a vCPU are made of.
 */
#include "arch/x86/svm/svm.h"

#include "arch/platform.h"
#include "arch/x86/cpu.h"
#include "arch/x86/svm/npt.h"
#include "vmm/fmt.h"

#define MSR_VM_CR    0xc0010114u
#define MSR_VM_HSAVE 0xc0010117u
#define VM_CR_LOCK   BIT(3)
#define VM_CR_SVMDIS BIT(4)
#define EFER_SVME    BIT(12)

#define IOPM_BYTES  (3 * PAGE_SIZE)
#define MSRPM_BYTES (2 * PAGE_SIZE)

struct svm_caps svm_caps;

/* --- is it there ------------------------------------------------------------------------------ */

static bool disabled(const char *const *disable, unsigned disable_count, const char *word)
{
	for (unsigned i = 0; i < disable_count; i++)
		if (!strcmp(disable[i], word))
			return true;
	return false;
}

static int refuse(char *why, size_t why_len, const char *text)
{
	fmt_snprintf(why, why_len, "%s", text);
	return -ENODEV;
}

static int probe(const char *const *disable, unsigned disable_count, char *why, size_t why_len)
{
	uint32_t ext_max = cpu_id(0x80000000, 0).eax;
	struct cpu_regs ext, svm;
	uint64_t vm_cr = 0;
	unsigned phys_bits;

	if (ext_max < 0x8000000a)
		return refuse(why, why_len, "SVM missing: CPUID has no leaf 0x8000000a");
	ext = cpu_id(0x80000001, 0);
	if (!(ext.ecx & BIT(2)))
		return refuse(why, why_len,
		              "SVM missing: CPUID lacks it (under QEMU: -cpu EPYC,+svm,+npt)");
	svm = cpu_id(0x8000000a, 0);
	if (hvm_rdmsr_safe(MSR_VM_CR, &vm_cr) && (vm_cr & VM_CR_SVMDIS) && (vm_cr & VM_CR_LOCK))
		return refuse(
		        why, why_len,
		        "SVM locked off by firmware (VM_CR.SVMDIS): turn on SVM in its setup");
	if (!(svm.edx & BIT(0)))
		return refuse(why, why_len,
		              "NP missing: SVM without nested paging (under QEMU: add +npt)");
	if (cpu_cr4() & CR4_LA57)
		return refuse(why, why_len,
		              "CR4.LA57 set: nested tables have four levels; turn it off");

#define WANT(word, have) ((have) && !disabled(disable, disable_count, word))
	svm_caps = (struct svm_caps){
	        .next_rip = WANT("next-rip", svm.edx & BIT(3)),
	        .vmcb_clean = WANT("vmcb-clean", svm.edx & BIT(5)),
	        .flush_by_asid = WANT("flush-by-asid", svm.edx & BIT(6)),
	        .decode_assists = WANT("decode-assists", svm.edx & BIT(7)),
	        .rdpru = ext_max >= 0x80000008 && (cpu_id(0x80000008, 0).ebx & BIT(4)),
	        .asid_count = svm.ebx,
	};
	phys_bits = ext_max >= 0x80000008 ? cpu_id(0x80000008, 0).eax & 0xff : 36;
	npt_format_init(&svm_caps.npt, phys_bits, WANT("mmio-reserved", true),
	                WANT("npt-1g", ext.edx & BIT(26)));
#undef WANT
	plat_log("svm: next-rip %d, decode-assists %d, flush-by-asid %d, vmcb-clean %d, npt-1g %d, "
	         "mmio-reserved %d, %u ASIDs, %u physical bits",
	         svm_caps.next_rip, svm_caps.decode_assists, svm_caps.flush_by_asid,
	         svm_caps.vmcb_clean, svm_caps.npt.large_1g, nested_mmio_is_present(&svm_caps.npt),
	         svm_caps.asid_count, phys_bits);
	return 0;
}

static int core_enable(void)
{
	uint64_t vm_cr = 0;

	if (hvm_rdmsr_safe(MSR_VM_CR, &vm_cr) && (vm_cr & VM_CR_SVMDIS))
		hvm_wrmsr_safe(MSR_VM_CR, vm_cr & ~VM_CR_SVMDIS);
	if (!hvm_wrmsr_safe(MSR_EFER, cpu_rdmsr(MSR_EFER) | EFER_SVME) ||
	    !(cpu_rdmsr(MSR_EFER) & EFER_SVME)) {
		plat_log("svm: core %u refuses EFER.SVME (VM_CR 0x%llx)", plat_core(),
		         (unsigned long long)vm_cr);
		return -EIO;
	}
	return 0;
}

static void core_disable(void)
{
	hvm_wrmsr_safe(MSR_VM_HSAVE, 0);
	hvm_wrmsr_safe(MSR_EFER, cpu_rdmsr(MSR_EFER) & ~EFER_SVME);
}

/* --- a guest ---------------------------------------------------------------------------------- */

#define PASS_READ  1u
#define PASS_WRITE 2u

/* Two bits per register, read then write; three ranges of 8192. APM 2 15.11 */
static void msr_pass(uint8_t *msrpm, uint32_t index, unsigned pass)
{
	uint32_t slot = index & 0x1fff;

	if (index >> 16 == 0xc000)
		slot += 0x2000;
	else if (index >> 16 == 0xc001)
		slot += 0x4000;
	msrpm[slot / 4] &= (uint8_t) ~(pass << slot % 4 * 2);
}

/*
 * What the VMCB, VMLOAD or nested paging switch for the guest goes straight through. The TSC exits:
 * RDTSC does not, and nobody reads it by MSR often; QEMU TCG reads 0 there.
 */
static void msrpm_init(uint8_t *msrpm)
{
	static const uint32_t pass[] = {
	        0x174,      0x175,      0x176, /* SYSENTER_CS, ESP, EIP */
	        MSR_PAT,    0xc0000081, 0xc0000082,
	        0xc0000083, 0xc0000084,             /* STAR, LSTAR, CSTAR, SFMASK */
	        0xc0000100, 0xc0000101, 0xc0000102, /* FS, GS, KERNEL_GS base */
	};
	bool tsc_aux = cpu_id(0x80000001, 0).edx & BIT(27);

	memset(msrpm, 0xff, MSRPM_BYTES);
	for (unsigned i = 0; i < ARRAY_LEN(pass); i++)
		msr_pass(msrpm, pass[i], PASS_READ | PASS_WRITE);
	if (tsc_aux)
		msr_pass(msrpm, 0xc0000103, PASS_READ | PASS_WRITE);
}

static int vm_init(struct hvm_vm *vm)
{
	vm->io_bitmap = plat_mem_alloc(IOPM_BYTES, PAGE_SIZE);
	vm->msr_bitmap = plat_mem_alloc(MSRPM_BYTES, PAGE_SIZE);
	if (!vm->io_bitmap || !vm->msr_bitmap)
		return -ENOMEM;
	memset(vm->io_bitmap, 0xff, IOPM_BYTES);
	msrpm_init(vm->msr_bitmap);
	return nested_init(&svm_caps.npt, vm);
}

static int map_ram(struct hvm_vm *vm, gpa_t gpa, hpa_t hpa, uint64_t len_bytes)
{
	return nested_map_ram(&svm_caps.npt, vm, gpa, hpa, len_bytes);
}

static int map_mmio(struct hvm_vm *vm, gpa_t gpa, uint64_t len_bytes)
{
	return nested_map_mmio(&svm_caps.npt, vm, gpa, len_bytes);
}

/* --- a vCPU ----------------------------------------------------------------------------------- */

static void vmcb_init(struct vmcb *vmcb, const struct hvm_vm *vm, uint32_t asid)
{
	vmcb->cr_read = BIT(8);
	vmcb->cr_write = BIT(8);
	/* #DB and #AC can raise themselves without end, and the core with them; they are handed on.
	 * A machine check is the host's. */
	vmcb->exceptions = BIT(1) | BIT(17) | BIT(18);
	vmcb->misc1 = SVM_I_INTR | SVM_I_NMI | SVM_I_INIT | SVM_I_RDPMC | SVM_I_CPUID | SVM_I_INVD |
	              SVM_I_HLT | SVM_I_INVLPGA | SVM_I_IOIO | SVM_I_MSR | SVM_I_SHUTDOWN;
	vmcb->misc2 = SVM_I_VMRUN | SVM_I_VMMCALL | SVM_I_VMLOAD | SVM_I_VMSAVE | SVM_I_STGI |
	              SVM_I_CLGI | SVM_I_SKINIT | SVM_I_WBINVD | SVM_I_MONITOR | SVM_I_MWAIT |
	              SVM_I_XSETBV | (svm_caps.rdpru ? SVM_I_RDPRU : 0);
	vmcb->iopm_hpa = plat_hpa(vm->io_bitmap);
	vmcb->msrpm_hpa = plat_hpa(vm->msr_bitmap);
	vmcb->asid = asid;
	vmcb->int_ctl = SVM_V_INTR_MASKING | SVM_V_IGN_TPR;
	vmcb->np_control = SVM_NP_ENABLE;
	vmcb->nested_cr3 = vm->nested_root_hpa;
}

static int vcpu_init(struct hvm_vcpu *vcpu)
{
	struct svm_vcpu *sv = plat_mem_alloc(sizeof(*sv), CACHE_LINE_BYTES);
	struct vmcb *vmcb = plat_mem_alloc(PAGE_SIZE, PAGE_SIZE);
	void *host = plat_mem_alloc(PAGE_SIZE, PAGE_SIZE);
	void *hsave = plat_mem_alloc(PAGE_SIZE, PAGE_SIZE);
	uint32_t asid = vcpu->vm->tag + vcpu->index;

	if (!sv || !vmcb || !host || !hsave)
		return -ENOMEM;
	if (!asid || asid >= svm_caps.asid_count) {
		plat_log("svm: ASID %u wanted, the processor has 1 to %u: run fewer vCPUs", asid,
		         svm_caps.asid_count - 1);
		return -ENOSPC;
	}
	vmcb_init(vmcb, vcpu->vm, asid);
	sv->int_ctl = vmcb->int_ctl;
	sv->host_hpa = plat_hpa(host);
	sv->hsave_hpa = plat_hpa(hsave);
	vcpu->cb = vmcb;
	vcpu->cb_hpa = plat_hpa(vmcb);
	vcpu->priv = sv;
	vcpu->irq_offer = -1;
	vcpu->exit.insn_bytes = vmcb->insn_bytes;
	return 0;
}

static int vcpu_bind(struct hvm_vcpu *vcpu)
{
	struct svm_vcpu *sv = vcpu->priv;
	struct vmcb *vmcb = vcpu->cb;

	if (!hvm_wrmsr_safe(MSR_VM_HSAVE, sv->hsave_hpa)) {
		plat_log("svm: core %u refuses VM_HSAVE_PA", plat_core());
		return -EIO;
	}
	/* The host's part does not change any more: saved once, loaded after every exit. */
	svm_vmsave(sv->host_hpa);
	vmcb->tsc_offset = vcpu->tsc_offset;
	sv->dirty = SVM_CLEAN_ALL;
	sv->flush = true;
	return 0;
}

static void vcpu_unbind(struct hvm_vcpu *vcpu)
{
	(void)vcpu;
	hvm_wrmsr_safe(MSR_VM_HSAVE, 0);
}

/* clang-format off */
const struct hvm_ops hvm_svm = {
	.name = "svm",
	.exit_name = {
		[HVM_EXIT_NONE] = "RESOLVED",
		[HVM_EXIT_INTR] = "INTR",
		[HVM_EXIT_NMI] = "NMI",
		[HVM_EXIT_HLT] = "HLT",
		[HVM_EXIT_CPUID] = "CPUID",
		[HVM_EXIT_RDMSR] = "MSR_READ",
		[HVM_EXIT_WRMSR] = "MSR_WRITE",
		[HVM_EXIT_PIO] = "IOIO",
		[HVM_EXIT_KICK] = "NPF_RSVD",
		[HVM_EXIT_MEM] = "NPF",
		[HVM_EXIT_HYPERCALL] = "VMMCALL",
		[HVM_EXIT_XSETBV] = "XSETBV",
		[HVM_EXIT_CR8] = "CR8",
		[HVM_EXIT_WBINVD] = "WBINVD",
		[HVM_EXIT_UD] = "UD",
		[HVM_EXIT_PAUSE] = "PAUSE",
		[HVM_EXIT_TRIPLE_FAULT] = "SHUTDOWN",
		[HVM_EXIT_INIT] = "INIT",
		[HVM_EXIT_BAD_STATE] = "INVALID",
		[HVM_EXIT_OTHER] = "OTHER",
	},
	.probe = probe,
	.core_enable = core_enable,
	.core_disable = core_disable,
	.vm_init = vm_init,
	.map_ram = map_ram,
	.map_mmio = map_mmio,
	.vcpu_init = vcpu_init,
	.vcpu_bind = vcpu_bind,
	.vcpu_unbind = vcpu_unbind,
	.run = svm_run,
	.state_get = svm_state_get,
	.state_set = svm_state_set,
	.state_get_paging = svm_state_get_paging,
	.inject = svm_inject,
	.events_reset = svm_events_reset,
	.dump = svm_dump,
};
/* clang-format on */
