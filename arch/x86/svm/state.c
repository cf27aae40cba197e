/*
 * SVM: guest state between the VMCB and the vendor-neutral struct hvm_state. Slow paths, but for
 * svm_state_get_paging.
 */
#include "arch/platform.h"
#include "arch/x86/svm/svm.h"

#define EFER_SVME BIT(12)

#define ATTR_PRESENT BIT(7)
#define ATTR_DPL(a)  ((a) >> 5 & 3u)
#define ATTR_BUSY    BIT(1)

/* Changes of these make cached translations stale: PG WP PE; PSE PAE PGE PCIDE SMEP SMAP. */
#define FLUSH_CR0 (BIT(31) | BIT(16) | BIT(0))
#define FLUSH_CR4 (BIT(4) | BIT(5) | BIT(7) | BIT(17) | BIT(20) | BIT(21))

/* 11:8 G D L AVL and 7:0, to 15:12 and 7:0. */
static uint32_t attr_get(uint16_t packed)
{
	uint32_t attr = (packed & 0xffu) | (packed & 0xf00u) << 4;

	return packed & ATTR_PRESENT ? attr : attr | HVM_SEG_UNUSABLE;
}

static uint16_t attr_put(uint32_t attr)
{
	uint16_t packed = (uint16_t)((attr & 0xff) | (attr >> 4 & 0xf00));

	return attr & HVM_SEG_UNUSABLE ? packed & (uint16_t)~ATTR_PRESENT : packed;
}

static struct hvm_seg seg_get(const struct vmcb_seg *from)
{
	return (struct hvm_seg){from->sel, attr_get(from->attr), from->limit, from->base};
}

static struct vmcb_seg seg_put(const struct hvm_seg *from)
{
	return (struct vmcb_seg){from->sel, attr_put(from->attr), from->limit, from->base};
}

static void segs_get(const struct vmcb *vmcb, struct hvm_state *state)
{
	state->seg[HVM_ES] = seg_get(&vmcb->es);
	state->seg[HVM_CS] = seg_get(&vmcb->cs);
	state->seg[HVM_SS] = seg_get(&vmcb->ss);
	state->seg[HVM_DS] = seg_get(&vmcb->ds);
	state->seg[HVM_FS] = seg_get(&vmcb->fs);
	state->seg[HVM_GS] = seg_get(&vmcb->gs);
	/* The processor keeps CPL apart; SS.DPL alone may lie after SYSRET. */
	state->seg[HVM_SS].attr = (state->seg[HVM_SS].attr & ~0x60u) | (vmcb->cpl & 3u) << 5;
}

void svm_state_get_paging(struct hvm_vcpu *vcpu, struct hvm_state *state)
{
	const struct vmcb *vmcb = vcpu->cb;

	state->cr0 = vmcb->cr0;
	state->cr3 = vmcb->cr3;
	state->cr4 = vmcb->cr4;
	state->efer = vmcb->efer & ~EFER_SVME;
	segs_get(vmcb, state);
}

void svm_state_get(struct hvm_vcpu *vcpu, struct hvm_state *state)
{
	const struct vmcb *vmcb = vcpu->cb;

	svm_state_get_paging(vcpu, state);
	state->seg[HVM_LDTR] = seg_get(&vmcb->ldtr);
	state->seg[HVM_TR] = seg_get(&vmcb->tr);
	state->seg[HVM_TR].attr |= ATTR_BUSY; /* VMX has no other kind of loaded TR */
	state->gdtr_base = vmcb->gdtr.base;
	state->gdtr_limit = vmcb->gdtr.limit;
	state->idtr_base = vmcb->idtr.base;
	state->idtr_limit = vmcb->idtr.limit;
	state->cr2 = vmcb->cr2;
	state->pat = vmcb->pat;
	state->dr6 = vmcb->dr6;
	state->dr7 = vmcb->dr7;
	state->sysenter_cs = vmcb->sysenter_cs;
	state->sysenter_esp = vmcb->sysenter_esp;
	state->sysenter_eip = vmcb->sysenter_eip;
	state->interrupt_shadow = vmcb->int_state & SVM_SHADOW;
}

static bool paging_changes(const struct vmcb *vmcb, const struct hvm_state *state)
{
	return ((vmcb->cr0 ^ state->cr0) & FLUSH_CR0) || vmcb->cr3 != state->cr3 ||
	       ((vmcb->cr4 ^ state->cr4) & FLUSH_CR4) || (vmcb->efer ^ state->efer) & ~EFER_SVME;
}

void svm_state_set(struct hvm_vcpu *vcpu, const struct hvm_state *state)
{
	struct svm_vcpu *sv = vcpu->priv;
	struct vmcb *vmcb = vcpu->cb;

	if (paging_changes(vmcb, state))
		sv->flush = true;
	vmcb->es = seg_put(&state->seg[HVM_ES]);
	vmcb->cs = seg_put(&state->seg[HVM_CS]);
	vmcb->ss = seg_put(&state->seg[HVM_SS]);
	vmcb->ds = seg_put(&state->seg[HVM_DS]);
	vmcb->fs = seg_put(&state->seg[HVM_FS]);
	vmcb->gs = seg_put(&state->seg[HVM_GS]);
	vmcb->ldtr = seg_put(&state->seg[HVM_LDTR]);
	vmcb->tr = seg_put(&state->seg[HVM_TR]);
	vmcb->cpl = ATTR_DPL(state->seg[HVM_SS].attr);
	vmcb->gdtr = (struct vmcb_seg){.base = state->gdtr_base, .limit = state->gdtr_limit};
	vmcb->idtr = (struct vmcb_seg){.base = state->idtr_base, .limit = state->idtr_limit};
	vmcb->cr0 = state->cr0;
	vmcb->cr2 = state->cr2;
	vmcb->cr3 = state->cr3;
	vmcb->cr4 = state->cr4;
	vmcb->efer = state->efer | EFER_SVME; /* VMRUN insists on it */
	vmcb->pat = state->pat;
	vmcb->dr6 = state->dr6;
	vmcb->dr7 = state->dr7;
	vmcb->sysenter_cs = state->sysenter_cs;
	vmcb->sysenter_esp = state->sysenter_esp;
	vmcb->sysenter_eip = state->sysenter_eip;
	vmcb->int_state = state->interrupt_shadow ? SVM_SHADOW : 0;
	sv->dirty |= SVM_CLEAN_NP | SVM_CLEAN_CR | SVM_CLEAN_DR | SVM_CLEAN_DT | SVM_CLEAN_SEG |
	             SVM_CLEAN_CR2;
}

static void dump_seg(const char *name, const struct vmcb_seg *seg)
{
	plat_log("  %s sel 0x%04x attr 0x%03x limit 0x%x base 0x%llx", name, seg->sel, seg->attr,
	         seg->limit, (unsigned long long)seg->base);
}

void svm_dump(struct hvm_vcpu *vcpu)
{
	const struct vmcb *vmcb = vcpu->cb;
	const uint64_t *gpr = vcpu->gpr;

#define X(v) ((unsigned long long)(v))
	plat_log("vmcb of vcpu %u:", vcpu->index);
#define G(n) X(gpr[HVM_##n])
	plat_log("  rax %llx rcx %llx rdx %llx rbx %llx", G(RAX), G(RCX), G(RDX), G(RBX));
	plat_log("  rsp %llx rbp %llx rsi %llx rdi %llx", G(RSP), G(RBP), G(RSI), G(RDI));
	plat_log("  r8 %llx r9 %llx r10 %llx r11 %llx", G(R8), G(R9), G(R10), G(R11));
	plat_log("  r12 %llx r13 %llx r14 %llx r15 %llx", G(R12), G(R13), G(R14), G(R15));
#undef G
	plat_log("  rip %llx rflags %llx cpl %u shadow %llu", X(vcpu->rip), X(vcpu->rflags),
	         vmcb->cpl, X(vmcb->int_state & SVM_SHADOW));
	plat_log("  cr0 %llx cr2 %llx cr3 %llx cr4 %llx efer %llx", X(vmcb->cr0), X(vmcb->cr2),
	         X(vmcb->cr3), X(vmcb->cr4), X(vmcb->efer));
	plat_log("  dr6 %llx dr7 %llx pat %llx", X(vmcb->dr6), X(vmcb->dr7), X(vmcb->pat));
	plat_log("  exit %llx info1 %llx info2 %llx intinfo %llx", X(vmcb->exit_code),
	         X(vmcb->exit_info1), X(vmcb->exit_info2), X(vmcb->exit_int_info));
	plat_log("  int_ctl %llx eventinj %llx asid %u ncr3 %llx tsc_offset %llx", X(vmcb->int_ctl),
	         X(vmcb->event_inj), vmcb->asid, X(vmcb->nested_cr3), X(vmcb->tsc_offset));
#undef X
	dump_seg("cs", &vmcb->cs);
	dump_seg("ss", &vmcb->ss);
	dump_seg("ds", &vmcb->ds);
	dump_seg("es", &vmcb->es);
	dump_seg("fs", &vmcb->fs);
	dump_seg("gs", &vmcb->gs);
	dump_seg("gdtr", &vmcb->gdtr);
	dump_seg("idtr", &vmcb->idtr);
	dump_seg("ldtr", &vmcb->ldtr);
	dump_seg("tr", &vmcb->tr);
}
