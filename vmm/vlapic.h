/*
 * vlapic.h: a vCPU's local APIC: xAPIC and x2APIC modes, one-shot, periodic and TSC-deadline timer
 * (SDM 3A chapter 10). Owned by the vCPU's core; others reach it through irq_post.
 */
#ifndef QUELL_VMM_VLAPIC_H
#define QUELL_VMM_VLAPIC_H

#include "arch/types.h"

#define VLAPIC_BASE_GPA 0xfee00000ull
#define VLAPIC_TIMER_HZ 1000000000ull /* input clock of the count-down timer; CPUID and docs say so */

struct vcpu;

struct vlapic {
	struct vcpu *vcpu;
	uint32_t id;
	uint64_t base_msr;
	uint64_t irr[4], isr[4], tmr[4];
	uint8_t tpr, ppr;
	uint32_t ldr, dfr, svr, esr, esr_pending;
	uint64_t icr;
	uint32_t lvt_timer, lvt_thermal, lvt_perf, lvt_lint0, lvt_lint1, lvt_error, lvt_cmci;
	uint32_t timer_initial, timer_divide;
	uint64_t timer_deadline_tsc; /* host TSC of the next expiry, 0: none */
	uint64_t timer_period_tsc;   /* periodic mode */
	uint64_t guest_deadline;     /* MSR_IA32_TSC_DEADLINE as written */
	uint64_t tsc_offset;
	gpa_t pv_eoi_gpa;            /* KVM-compatible PV EOI word, 0: off */
};

/* Power-on state; vcpu 0 is the BSP. */
void vlapic_init(struct vlapic *apic, struct vcpu *vcpu, uint32_t apic_id, bool bsp, uint64_t tsc_offset);

/* xAPIC page access: offset 0 to 0xfff, 32-bit registers at multiples of 16. */
uint32_t vlapic_mmio_read(struct vlapic *apic, uint32_t offset);
void vlapic_mmio_write(struct vlapic *apic, uint32_t offset, uint32_t value);

/* APIC_BASE, TSC_DEADLINE and the x2APIC MSRs 0x800 to 0x8ff. -EINVAL: #GP. */
int vlapic_msr_read(struct vlapic *apic, uint32_t index, uint64_t *value);
int vlapic_msr_write(struct vlapic *apic, uint32_t index, uint64_t value);

uint8_t vlapic_cr8_read(const struct vlapic *apic);
void vlapic_cr8_write(struct vlapic *apic, uint8_t value);

/* Moves vectors from the vCPU's posted words to IRR. */
void vlapic_merge(struct vlapic *apic, const uint64_t posted[4]);

/* Highest vector in IRR that PPR lets through, or -1. */
int vlapic_pending(struct vlapic *apic);

/* The guest took vector: IRR to ISR. */
void vlapic_accept(struct vlapic *apic, uint8_t vector);

/* Host TSC of the next timer expiry, UINT64_MAX: none. */
uint64_t vlapic_deadline(const struct vlapic *apic);

/* Raises what has expired by now_tsc and sets the next periodic expiry. */
void vlapic_timer_run(struct vlapic *apic, uint64_t now_tsc);

/* Does this APIC answer that destination? */
bool vlapic_matches(const struct vlapic *apic, uint32_t dest, bool logical);

/* PV EOI: called after each exit and before each entry (sets or takes back the flag). */
void vlapic_pv_eoi_sync_exit(struct vlapic *apic);
void vlapic_pv_eoi_sync_entry(struct vlapic *apic);

#endif
