/* Whole guest state to and from the VMCS, for the slow paths and post-mortems. */
#include "arch/platform.h"
#include "arch/x86/cpu.h"
#include "arch/x86/vmx/vmcs.h"
#include "arch/x86/vmx/vmx.h"

#define ATTR_TYPE  0xfu
#define ATTR_S     BIT(4)
#define ATTR_DPL   (3ull << 5)
#define ATTR_P     BIT(7)
#define ATTR_L     BIT(13)
#define ATTR_G     BIT(15)
#define ATTR_VALID 0xf0ffull

#define TSS_16_BUSY 3u
#define TSS_32_BUSY 11u

/* What the processor insists on, from what a descriptor or another vendor would hold. SDM 3C
 * 27.3.1.2. */
static struct hvm_seg seg_fixed(const struct hvm_seg *in, unsigned index)
{
	struct hvm_seg s = *in;

	if (index == HVM_TR) { /* must be usable and busy */
		bool bits16 = (s.attr & ATTR_TYPE) == 1 || (s.attr & ATTR_TYPE) == TSS_16_BUSY;

		if (s.attr & HVM_SEG_UNUSABLE)
			s = (struct hvm_seg){.limit = 0xffff};
		s.attr = (uint32_t)(ATTR_P | (bits16 ? TSS_16_BUSY : TSS_32_BUSY));
	} else if ((s.attr & HVM_SEG_UNUSABLE) || !(s.attr & ATTR_P)) {
		s.attr = (uint32_t)(HVM_SEG_UNUSABLE | (s.attr & ATTR_DPL)); /* SS.DPL is the CPL */
		return s;
	} else if (index == HVM_LDTR) {
		s.attr = (uint32_t)(ATTR_P | 2);
	} else {
		s.attr = (uint32_t)((s.attr & ATTR_VALID) | ATTR_S | 1); /* accessed */
	}
	if (s.limit >> 20)
		s.attr |= (uint32_t)ATTR_G;
	else if ((s.limit & 0xfff) != 0xfff)
		s.attr &= ~(uint32_t)ATTR_G;
	if (s.attr & ATTR_G)
		s.limit |= 0xfff;
	return s;
}

static void seg_set(unsigned index, const struct hvm_seg *in)
{
	struct hvm_seg s = seg_fixed(in, index);

	vmcs_write(VMCS_GUEST_SEL + 2 * index, s.sel);
	vmcs_write(VMCS_GUEST_ATTR + 2 * index, s.attr);
	vmcs_write(VMCS_GUEST_LIMIT + 2 * index, s.limit);
	vmcs_write(VMCS_GUEST_BASE + 2 * index, s.base);
}

static void seg_get(unsigned index, struct hvm_seg *s)
{
	s->sel = (uint16_t)vmcs_read(VMCS_GUEST_SEL + 2 * index);
	s->attr = (uint32_t)vmcs_read(VMCS_GUEST_ATTR + 2 * index);
	s->limit = (uint32_t)vmcs_read(VMCS_GUEST_LIMIT + 2 * index);
	s->base = vmcs_read(VMCS_GUEST_BASE + 2 * index);
}

void vmx_state_get(struct hvm_vcpu *vcpu, struct hvm_state *s)
{
	struct vmx_vcpu *v = vmx_of(vcpu);

	for (unsigned i = 0; i < HVM_SEG_COUNT; i++)
		seg_get(i, &s->seg[i]);
	s->gdtr_base = vmcs_read(VMCS_GUEST_GDTR_BASE);
	s->gdtr_limit = (uint32_t)vmcs_read(VMCS_GUEST_GDTR_LIMIT);
	s->idtr_base = vmcs_read(VMCS_GUEST_IDTR_BASE);
	s->idtr_limit = (uint32_t)vmcs_read(VMCS_GUEST_IDTR_LIMIT);
	s->cr0 = vmx_cr0_get(v);
	s->cr2 = cpu_cr2(); /* stays in the processor: we never fault on purpose */
	s->cr3 = vmcs_read(VMCS_GUEST_CR3);
	s->cr4 = vmx_cr4_get(v);
	s->efer = v->efer;
	s->pat = vmx_has(VMX_F_PAT) ? vmcs_read(VMCS_GUEST_PAT) : v->pat;
	__asm__ volatile("mov %%db6, %0" : "=r"(s->dr6));
	s->dr7 = vmcs_read(VMCS_GUEST_DR7);
	s->sysenter_cs = vmcs_read(VMCS_GUEST_SYSENTER_CS);
	s->sysenter_esp = vmcs_read(VMCS_GUEST_SYSENTER_ESP);
	s->sysenter_eip = vmcs_read(VMCS_GUEST_SYSENTER_EIP);
	s->interrupt_shadow = (v->interruptibility & BLOCK_SHADOW) != 0;
}

void vmx_state_get_paging(struct hvm_vcpu *vcpu, struct hvm_state *s)
{
	struct vmx_vcpu *v = vmx_of(vcpu);

	s->cr0 = vmx_cr0_get(v);
	s->cr3 = vmcs_read(VMCS_GUEST_CR3);
	s->cr4 = vmx_cr4_get(v);
	s->efer = v->efer;
	s->seg[HVM_CS].attr = (uint32_t)vmcs_read(VMCS_GUEST_ATTR + 2 * HVM_CS);
	s->seg[HVM_SS].attr = (uint32_t)vmcs_read(VMCS_GUEST_ATTR + 2 * HVM_SS);
	if ((s->efer & EFER_LMA) && (s->seg[HVM_CS].attr & ATTR_L)) {
		for (unsigned i = HVM_ES; i <= HVM_DS; i++)
			s->seg[i].base = 0;
		s->seg[HVM_FS].base = vmcs_read(VMCS_GUEST_BASE + 2 * HVM_FS);
		s->seg[HVM_GS].base = vmcs_read(VMCS_GUEST_BASE + 2 * HVM_GS);
		return;
	}
	for (unsigned i = HVM_ES; i <= HVM_GS; i++)
		s->seg[i].base = vmcs_read(VMCS_GUEST_BASE + 2 * i);
}

static void shadow_set(struct hvm_vcpu *vcpu, bool shadow)
{
	struct vmx_vcpu *v = vmx_of(vcpu);
	uint32_t block = v->interruptibility & ~(uint32_t)BLOCK_SHADOW;

	/* Blocking by STI asks for IF = 1; by MOV SS it does not. SDM 3C 27.3.1.5. */
	if (shadow)
		block |= vcpu->rflags & HVM_RFLAGS_IF ? BLOCK_STI : BLOCK_MOV_SS;
	v->interruptibility = block;
	vmcs_write(VMCS_INTERRUPTIBILITY, block);
}

void vmx_state_set(struct hvm_vcpu *vcpu, const struct hvm_state *s)
{
	struct vmx_vcpu *v = vmx_of(vcpu);
	bool lma = (s->efer & EFER_LME) && (s->cr0 & CR0_PG);

	for (unsigned i = 0; i < HVM_SEG_COUNT; i++)
		seg_set(i, &s->seg[i]);
	vmcs_write(VMCS_GUEST_GDTR_BASE, s->gdtr_base);
	vmcs_write(VMCS_GUEST_GDTR_LIMIT, s->gdtr_limit & 0xffff);
	vmcs_write(VMCS_GUEST_IDTR_BASE, s->idtr_base);
	vmcs_write(VMCS_GUEST_IDTR_LIMIT, s->idtr_limit & 0xffff);
	vmx_cr0_set(v, s->cr0);
	vmx_cr4_set(v, s->cr4);
	vmcs_write(VMCS_GUEST_CR3, s->cr3);
	vmx_efer_set(v, (s->efer & ~EFER_LMA) | (lma ? EFER_LMA : 0));
	/* Absent PDPTEs fault in the guest, where they belong. */
	if (vmx_cr_pae_paging(s->cr0, s->cr4, lma) && !vmx_pdptes_load(vcpu, s->cr3))
		for (unsigned i = 0; i < 4; i++)
			vmcs_write(VMCS_GUEST_PDPTE0 + 2 * i, 0);
	__asm__ volatile("mov %0, %%cr2" : : "r"(s->cr2));
	v->pat = s->pat;
	if (vmx_has(VMX_F_PAT))
		vmcs_write(VMCS_GUEST_PAT, s->pat);
	__asm__ volatile("mov %0, %%db6" : : "r"((s->dr6 & 0xffffffff)));
	vmcs_write(VMCS_GUEST_DR7, (s->dr7 & 0xffffffff) | 0x400);
	vmcs_write(VMCS_GUEST_SYSENTER_CS, (uint32_t)s->sysenter_cs);
	vmcs_write(VMCS_GUEST_SYSENTER_ESP, s->sysenter_esp);
	vmcs_write(VMCS_GUEST_SYSENTER_EIP, s->sysenter_eip);
	shadow_set(vcpu, s->interrupt_shadow);
	v->flush = true;
}

struct dump_field {
	uint32_t field;
	const char *name;
};

/* vmcs_read_maybe drops what this processor lacks. */
static const struct dump_field dump_fields[] = {
        {VMCS_EXIT_REASON, "exit reason"},
        {VMCS_QUALIFICATION, "exit qualification"},
        {VMCS_INSTRUCTION_ERROR, "instruction error"},
        {VMCS_EXIT_EVENT, "exit event"},
        {VMCS_IDT_EVENT, "IDT-vectoring event"},
        {VMCS_ENTRY_EVENT, "entry event"},
        {VMCS_ENTRY_ERROR, "entry error code"},
        {VMCS_ENTRY_LEN, "entry instruction length"},
        {VMCS_GUEST_PHYSICAL, "guest-physical"},
        {VMCS_GUEST_LINEAR, "guest-linear"},
        {VMCS_INTERRUPTIBILITY, "interruptibility"},
        {VMCS_ACTIVITY, "activity"},
        {VMCS_PENDING_DEBUG, "pending debug"},
        {VMCS_PIN, "pin-based controls"},
        {VMCS_PROC, "processor-based controls"},
        {VMCS_PROC2, "secondary controls"},
        {VMCS_EXIT, "exit controls"},
        {VMCS_ENTRY, "entry controls"},
        {VMCS_EPTP, "EPTP"},
        {VMCS_VPID, "VPID"},
        {VMCS_GUEST_CR0, "CR0 (real)"},
        {VMCS_CR0_SHADOW, "CR0 (shadow)"},
        {VMCS_GUEST_CR3, "CR3"},
        {VMCS_GUEST_CR4, "CR4 (real)"},
        {VMCS_CR4_SHADOW, "CR4 (shadow)"},
        {VMCS_GUEST_EFER, "EFER"},
        {VMCS_GUEST_RIP, "RIP"},
        {VMCS_GUEST_RSP, "RSP"},
        {VMCS_GUEST_RFLAGS, "RFLAGS"},
        {VMCS_GUEST_DR7, "DR7"},
        {VMCS_GUEST_GDTR_BASE, "GDTR base"},
        {VMCS_GUEST_GDTR_LIMIT, "GDTR limit"},
        {VMCS_GUEST_IDTR_BASE, "IDTR base"},
        {VMCS_GUEST_IDTR_LIMIT, "IDTR limit"},
        {VMCS_GUEST_PDPTE0, "PDPTE 0"},
        {VMCS_HOST_RSP, "host RSP"},
        {VMCS_HOST_CR4, "host CR4"},
};

void vmx_dump(struct hvm_vcpu *vcpu)
{
	static const char *const seg_name[HVM_SEG_COUNT] = {"ES", "CS", "SS",   "DS",
	                                                    "FS", "GS", "LDTR", "TR"};
	static const char *const gpr_name[HVM_GPR_COUNT] = {
	        "RAX", "RCX", "RDX", "RBX", "RSP", "RBP", "RSI", "RDI",
	        "R8",  "R9",  "R10", "R11", "R12", "R13", "R14", "R15"};

	plat_log("vmx: vCPU %u", vcpu->index);
	for (unsigned i = 0; i < HVM_GPR_COUNT; i += 4)
		plat_log("  %-3s %016llx  %-3s %016llx  %-3s %016llx  %-3s %016llx", gpr_name[i],
		         (unsigned long long)vcpu->gpr[i], gpr_name[i + 1],
		         (unsigned long long)vcpu->gpr[i + 1], gpr_name[i + 2],
		         (unsigned long long)vcpu->gpr[i + 2], gpr_name[i + 3],
		         (unsigned long long)vcpu->gpr[i + 3]);
	for (unsigned i = 0; i < ARRAY_LEN(dump_fields); i++) {
		uint64_t value;

		if (vmcs_read_maybe(dump_fields[i].field, &value))
			plat_log("  %-24s %016llx", dump_fields[i].name, (unsigned long long)value);
	}
	for (unsigned i = 0; i < HVM_SEG_COUNT; i++) {
		struct hvm_seg s;

		seg_get(i, &s);
		plat_log("  %-4s sel %04x attr %05x limit %08x base %016llx", seg_name[i], s.sel,
		         s.attr, s.limit, (unsigned long long)s.base);
	}
}
