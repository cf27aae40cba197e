/* Control registers: what the guest sees, what is real, and the writes that exit. SDM 3C 25.6.6. */
#include "arch/platform.h"
#include "arch/x86/vmx/vmcs.h"
#include "arch/x86/vmx/vmx.h"
#include "arch/x86/cpu.h"

#define CR3_PAE_MASK  0xffffffe0ull
#define CR3_NO_FLUSH  BIT(63)
#define PDPTE_COUNT   4u
#define ATTR_TYPE     0xfu
#define TYPE_BUSY_TSS 11u
#define ATTR_L        BIT(13)

enum cr_access { CR_MOV_TO, CR_MOV_FROM, CR_CLTS, CR_LMSW };

uint64_t vmx_cr0_get(const struct vmx_vcpu *v)
{
	return (v->cr0_shadow & ~CR0_GUEST_OWNED) | (vmcs_read(VMCS_GUEST_CR0) & CR0_GUEST_OWNED);
}

uint64_t vmx_cr4_get(const struct vmx_vcpu *v)
{
	uint64_t owned = vmx.ctl.cr4_guest & ~CR4_HOST_OWNED;

	return (v->cr4_shadow & ~owned) | (vmcs_read(VMCS_GUEST_CR4) & owned);
}

/* CD and NW never become real: a guest cannot turn the core's caches off. */
void vmx_cr0_set(struct vmx_vcpu *v, uint64_t cr0)
{
	cr0 = (cr0 & CR0_DEFINED) | CR0_ET;
	v->cr0_shadow = cr0;
	vmcs_write(VMCS_CR0_SHADOW, cr0);
	vmcs_write(VMCS_GUEST_CR0,
	           ((cr0 & ~(CR0_CD | CR0_NW)) | vmx.ctl.cr0_must) & vmx.ctl.cr0_may);
}

void vmx_cr4_set(struct vmx_vcpu *v, uint64_t cr4)
{
	cr4 &= vmx.ctl.cr4_guest;
	v->cr4_shadow = cr4;
	vmcs_write(VMCS_CR4_SHADOW, cr4);
	vmcs_write(VMCS_GUEST_CR4,
	           (cr4 & ~CR4_HOST_OWNED) | vmx.ctl.cr4_must | (cpu_cr4() & CR4_HOST_OWNED));
}

/* The IA-32e mode guest control follows LMA, and the TSS must then be a 64-bit one. SDM 3C
 * 27.3.1.1, 27.3.1.2. */
void vmx_efer_set(struct vmx_vcpu *v, uint64_t efer)
{
	uint32_t entry = vmx.ctl.word[VMX_ENTRY] | (efer & EFER_LMA ? (uint32_t)ENTRY_IA32E : 0);

	v->efer = efer;
	vmcs_write(VMCS_GUEST_EFER, efer);
	if (entry != v->entry) {
		v->entry = entry;
		vmcs_write(VMCS_ENTRY, entry);
	}
	if (efer & EFER_LMA) {
		uint64_t attr = vmcs_read(VMCS_GUEST_ATTR + 2 * HVM_TR);

		if ((attr & ATTR_TYPE) != TYPE_BUSY_TSS)
			vmcs_write(VMCS_GUEST_ATTR + 2 * HVM_TR,
			           (attr & ~(uint64_t)ATTR_TYPE) | TYPE_BUSY_TSS);
	}
}

bool vmx_pdptes_load(struct hvm_vcpu *vcpu, uint64_t cr3)
{
	gpa_t table_gpa = cr3 & CR3_PAE_MASK;
	struct nested_leaf leaf = nested_lookup(&vmx.ept, vcpu->vm, table_gpa);
	uint64_t pdpte[PDPTE_COUNT];

	if (leaf.kind != NESTED_RAM)
		return false;
	memcpy(pdpte, (const void *)(uintptr_t)leaf.hpa, sizeof(pdpte)); /* 32 bytes, aligned */
	for (unsigned i = 0; i < PDPTE_COUNT; i++)
		if (!vmx_pdpte_ok(pdpte[i], vmx.maxphyaddr))
			return false;
	for (unsigned i = 0; i < PDPTE_COUNT; i++)
		vmcs_write(VMCS_GUEST_PDPTE0 + 2 * i, pdpte[i]);
	return true;
}

static struct vmx_cr_state cr_state(const struct vmx_vcpu *v)
{
	return (struct vmx_cr_state){
	        .cr0 = vmx_cr0_get(v),
	        .cr3 = vmcs_read(VMCS_GUEST_CR3),
	        .cr4 = vmx_cr4_get(v),
	        .efer = v->efer,
	        .cs_long =
	                (v->efer & EFER_LMA) && (vmcs_read(VMCS_GUEST_ATTR + 2 * HVM_CS) & ATTR_L),
	};
}

static bool cr0_write(struct hvm_vcpu *vcpu, const struct vmx_cr_state *s, uint64_t cr0)
{
	struct vmx_vcpu *v = vmx_of(vcpu);
	struct vmx_cr_effect effect;

	if (!vmx_cr0_write(s, cr0, &effect) ||
	    (effect.load_pdptes && !vmx_pdptes_load(vcpu, s->cr3)))
		return false;
	vmx_cr0_set(v, cr0);
	if (effect.lma != !!(v->efer & EFER_LMA))
		vmx_efer_set(v, (v->efer & ~EFER_LMA) | (effect.lma ? EFER_LMA : 0));
	v->flush |= effect.flush;
	return true;
}

static bool cr4_write(struct hvm_vcpu *vcpu, const struct vmx_cr_state *s, uint64_t cr4)
{
	struct vmx_vcpu *v = vmx_of(vcpu);
	struct vmx_cr_effect effect;

	if (!vmx_cr4_write(s, cr4, vmx.ctl.cr4_guest, &effect) ||
	    (effect.load_pdptes && !vmx_pdptes_load(vcpu, s->cr3)))
		return false;
	vmx_cr4_set(v, cr4);
	v->flush |= effect.flush;
	return true;
}

/* Only where the processor cannot do without CR3 exits. */
static bool cr3_write(struct hvm_vcpu *vcpu, const struct vmx_cr_state *s, uint64_t cr3)
{
	struct vmx_vcpu *v = vmx_of(vcpu);

	if (s->cr4 & CR4_PCIDE)
		cr3 &= ~CR3_NO_FLUSH;
	if ((s->efer & EFER_LMA) && (cr3 & ~(BIT(vmx.maxphyaddr) - 1)))
		return false;
	if (vmx_cr_pae_paging(s->cr0, s->cr4, s->efer & EFER_LMA) && !vmx_pdptes_load(vcpu, cr3))
		return false;
	vmcs_write(VMCS_GUEST_CR3, cr3);
	v->flush = true;
	return true;
}

static void cr_read(struct hvm_vcpu *vcpu, unsigned cr, unsigned gpr)
{
	const struct vmx_vcpu *v = vmx_of(vcpu);

	/* CR0 and CR4 reads never exit. */
	if (cr == 3)
		vcpu->gpr[gpr] = vmcs_read(VMCS_GUEST_CR3);
	else
		vcpu->gpr[gpr] = cr == 4 ? vmx_cr4_get(v) : vmx_cr0_get(v);
}

static bool cr_write(struct hvm_vcpu *vcpu, unsigned cr, uint64_t value)
{
	struct vmx_cr_state s = cr_state(vmx_of(vcpu));

	if (!s.cs_long)
		value = (uint32_t)value;
	switch (cr) {
	case 0: return cr0_write(vcpu, &s, value);
	case 3: return cr3_write(vcpu, &s, value);
	default: return cr4_write(vcpu, &s, value);
	}
}

void vmx_cr_access(struct hvm_vcpu *vcpu)
{
	uint64_t q = vmcs_read(VMCS_QUALIFICATION);
	unsigned cr = q & 0xf, gpr = q >> 8 & 0xf;
	struct hvm_exit *exit = &vcpu->exit;
	struct vmx_cr_state s;
	bool ok = true;

	exit->reason = HVM_EXIT_CR;
	switch ((enum cr_access)(q >> 4 & 3)) {
	case CR_MOV_TO:
	case CR_MOV_FROM:
		if (cr == 8) {
			exit->reason = HVM_EXIT_CR8;
			exit->u.cr8.gpr = (uint8_t)gpr;
			exit->u.cr8.write = (q >> 4 & 3) == CR_MOV_TO;
			return;
		}
		if ((q >> 4 & 3) == CR_MOV_FROM)
			cr_read(vcpu, cr, gpr);
		else
			ok = cr_write(vcpu, cr, vcpu->gpr[gpr]);
		break;
	case CR_CLTS:
		s = cr_state(vmx_of(vcpu));
		ok = cr0_write(vcpu, &s, s.cr0 & ~CR0_TS);
		break;
	case CR_LMSW: /* cannot clear PE */
		s = cr_state(vmx_of(vcpu));
		ok = cr0_write(vcpu, &s, (s.cr0 & ~0xeull) | (q >> 16 & 0xf));
		break;
	}
	if (ok)
		hvm_skip(vcpu, exit->insn_len);
	else
		vmx_inject(vcpu, 13, 0);
}
