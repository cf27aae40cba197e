/*
 * cr.h: what a guest's write to CR0 or CR4 means. Pure. SDM 3A 2.5 and 3C 26.8.
 */
#ifndef QUELL_ARCH_X86_VMX_CR_H
#define QUELL_ARCH_X86_VMX_CR_H

#include "arch/types.h"

#define CR0_PE BIT(0)
#define CR0_MP BIT(1)
#define CR0_EM BIT(2)
#define CR0_TS BIT(3)
#define CR0_ET BIT(4)
#define CR0_NE BIT(5)
#define CR0_WP BIT(16)
#define CR0_AM BIT(18)
#define CR0_NW BIT(29)
#define CR0_CD BIT(30)
#define CR0_PG BIT(31)

#define CR4_VME        BIT(0)
#define CR4_PVI        BIT(1)
#define CR4_TSD        BIT(2)
#define CR4_DE         BIT(3)
#define CR4_PSE        BIT(4)
#define CR4_PAE        BIT(5)
#define CR4_MCE        BIT(6)
#define CR4_PGE        BIT(7)
#define CR4_PCE        BIT(8)
#define CR4_OSFXSR     BIT(9)
#define CR4_OSXMMEXCPT BIT(10)
#define CR4_UMIP       BIT(11)
#define CR4_VMXE       BIT(13)
#define CR4_FSGSBASE   BIT(16)
#define CR4_PCIDE      BIT(17)
#define CR4_OSXSAVE    BIT(18)
#define CR4_SMEP       BIT(20)
#define CR4_SMAP       BIT(21)
#define CR4_PKE        BIT(22)

#define EFER_SCE BIT(0)
#define EFER_LME BIT(8)
#define EFER_LMA BIT(10)
#define EFER_NXE BIT(11)

/* CR0 bits a guest reads and writes without an exit. CD and NW never become real; PG changes
 * IA32_EFER.LMA, the IA-32e mode guest control and PDPTEs, all of it in vmx_cr0_write. */
#define CR0_GUEST_OWNED (CR0_PE | CR0_MP | CR0_EM | CR0_TS | CR0_WP | CR0_AM)
#define CR0_DEFINED     (CR0_GUEST_OWNED | CR0_ET | CR0_NE | CR0_NW | CR0_CD | CR0_PG)

/* CR4 bits guests may have, where the processor does. Left out: VMXE and SMXE (no VMX or SMX for
 * guests), LA57 (the MMIO path walks four levels), CET and PKS (their MSRs are not switched). */
#define CR4_GUEST                                                                                  \
	(CR4_VME | CR4_PVI | CR4_TSD | CR4_DE | CR4_PSE | CR4_PAE | CR4_MCE | CR4_PGE | CR4_PCE |  \
	 CR4_OSFXSR | CR4_OSXMMEXCPT | CR4_UMIP | CR4_FSGSBASE | CR4_PCIDE | CR4_OSXSAVE |         \
	 CR4_SMEP | CR4_SMAP | CR4_PKE)

/* Of these, the ones whose real value is ours: machine checks must reach us whatever guests say. */
#define CR4_HOST_OWNED CR4_MCE

/* CR4 bits whose change reloads the PDPTEs and flushes the TLB. SDM 3A 4.4.1, 4.10.4.1. */
#define CR4_PAGING (CR4_PSE | CR4_PAE | CR4_PGE | CR4_PCIDE | CR4_SMEP | CR4_SMAP)

/* The guest's side of a control-register write, as it sees its own registers. */
struct vmx_cr_state {
	uint64_t cr0, cr3, cr4, efer;
	bool cs_long; /* CS.L */
};

/* What a write does; false: it raises #GP(0). */
struct vmx_cr_effect {
	bool lma;         /* IA32_EFER.LMA and IA-32e mode guest after it */
	bool load_pdptes; /* from the guest's CR3, and each must be valid */
	bool flush;       /* of cached translations */
};

static inline bool vmx_cr_pae_paging(uint64_t cr0, uint64_t cr4, bool lma)
{
	return (cr0 & CR0_PG) && (cr4 & CR4_PAE) && !lma;
}

static inline bool vmx_cr0_write(const struct vmx_cr_state *s, uint64_t cr0,
                                 struct vmx_cr_effect *effect)
{
	uint64_t changed = cr0 ^ s->cr0;
	bool lme = s->efer & EFER_LME;

	if (cr0 >> 32)
		return false;
	if ((cr0 & CR0_NW) && !(cr0 & CR0_CD))
		return false;
	if ((cr0 & CR0_PG) && !(cr0 & CR0_PE))
		return false;
	if ((changed & cr0 & CR0_PG) && lme && (!(s->cr4 & CR4_PAE) || s->cs_long))
		return false;
	if ((changed & CR0_PG) && !(cr0 & CR0_PG) && (s->cs_long || (s->cr4 & CR4_PCIDE)) &&
	    (s->efer & EFER_LMA))
		return false;
	effect->lma = lme && (cr0 & CR0_PG);
	effect->load_pdptes = (changed & (CR0_PG | CR0_CD | CR0_NW)) &&
	                      vmx_cr_pae_paging(cr0, s->cr4, effect->lma);
	effect->flush = changed & (CR0_PG | CR0_WP);
	return true;
}

static inline bool vmx_cr4_write(const struct vmx_cr_state *s, uint64_t cr4, uint64_t allowed,
                                 struct vmx_cr_effect *effect)
{
	uint64_t changed = cr4 ^ s->cr4;
	bool lma = s->efer & EFER_LMA;

	if (cr4 & ~allowed)
		return false;
	if (lma && !(cr4 & CR4_PAE))
		return false;
	if ((changed & cr4 & CR4_PCIDE) && (!lma || (s->cr3 & 0xfff)))
		return false;
	effect->lma = lma;
	effect->load_pdptes = (changed & CR4_PAGING) && vmx_cr_pae_paging(s->cr0, cr4, lma);
	effect->flush = changed & CR4_PAGING;
	return true;
}

/* Reserved bits of a PAE page-directory-pointer entry, given the physical-address width. SDM 3A
 * table 4-8. */
static inline bool vmx_pdpte_ok(uint64_t pdpte, unsigned maxphyaddr)
{
	return !(pdpte & 1) || !(pdpte & (0x1e6 | ~(BIT(maxphyaddr) - 1)));
}

#endif
