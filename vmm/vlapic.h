/*
 * vlapic.h: a vCPU's local APIC: xAPIC and x2APIC modes, one-shot, periodic and TSC-deadline timer
 * (SDM 3A chapter 10). Owned by the vCPU's core; others reach it through irq_post and may ask only
 * vlapic_matches and vlapic_is_listening.
 *
 * The APIC page stays at VLAPIC_BASE_GPA: a guest that moves it gets #GP. The APIC id is fixed.
 */
#ifndef QUELL_VMM_VLAPIC_H
#define QUELL_VMM_VLAPIC_H

#include "arch/types.h"

#define VLAPIC_BASE_GPA 0xfee00000ull
#define VLAPIC_TIMER_HZ 1000000000ull /* input of the count-down timer; as CPUID says */

/* A periodic timer is not served more often, so that a guest cannot drown its own core: an interrupt
 * costs four exits, which take tens of microseconds where the machine below is emulated. */
#define VLAPIC_PERIOD_MIN_NS 200000u

struct vcpu;

/* In the order of their registers, 0x320 to 0x370. */
enum vlapic_lvt {
	VLAPIC_LVT_TIMER,
	VLAPIC_LVT_THERMAL,
	VLAPIC_LVT_PERF,
	VLAPIC_LVT_LINT0,
	VLAPIC_LVT_LINT1,
	VLAPIC_LVT_ERROR,
	VLAPIC_LVT_COUNT,
};

struct vlapic {
	struct vcpu *vcpu;
	uint64_t irr[4], isr[4], tmr[4];
	uint64_t timer_deadline_tsc;        /* host TSC of the next expiry, 0: none */
	atomic_uint_least32_t *pv_eoi_word; /* KVM-compatible, in guest memory; NULL: off */
	uint64_t pv_eoi_msr;                /* as the guest wrote it; msr.c's */
	bool pv_eoi_set;                    /* we set its bit and have not looked since */
	uint8_t tpr;
	uint32_t id;
	uint64_t base_msr;
	uint32_t ldr, dfr, svr, esr, esr_pending; /* ldr is x2APIC's own in x2APIC mode */
	uint64_t icr;
	uint32_t lvt[VLAPIC_LVT_COUNT];
	uint32_t timer_initial, timer_divide;
	uint64_t timer_period_tsc;  /* whole cycles, */
	uint32_t timer_period_frac; /* and 2^-32 ones: a long run of periods must not drift */
	uint32_t timer_frac;        /* of the next expiry */
	uint64_t guest_deadline;    /* MSR_IA32_TSC_DEADLINE as written */
	uint64_t tsc_offset;
	uint64_t ns_to_tsc, tsc_to_ns; /* scale.h ratios */

	/* What a sender needs to know of this APIC, in one word: written by the vCPU's core, read
	 * by any. See vlapic.c for its bits. */
	CACHE_ALIGN atomic_uint_least64_t dest;
};

/* Power-on state; vcpu 0 is the BSP. Boot core, or the vCPU's. */
void vlapic_init(struct vlapic *apic, struct vcpu *vcpu, uint32_t apic_id, bool bsp,
                 uint64_t tsc_offset);

/* What INIT does: all registers but the id and APIC_BASE, mode included (SDM 3A 10.4.7.3). */
void vlapic_init_reset(struct vlapic *apic);

/* xAPIC page access: offset 0 to 0xfff, 32-bit registers at multiples of 16. Not under the device
 * lock: ending a level interrupt takes it. */
uint32_t vlapic_mmio_read(struct vlapic *apic, uint32_t offset);
void vlapic_mmio_write(struct vlapic *apic, uint32_t offset, uint32_t value);

/* APIC_BASE, TSC_DEADLINE and the x2APIC MSRs 0x800 to 0x8ff. -EINVAL: #GP. Not under the device
 * lock. */
int vlapic_msr_read(struct vlapic *apic, uint32_t index, uint64_t *value);
int vlapic_msr_write(struct vlapic *apic, uint32_t index, uint64_t value);

uint8_t vlapic_cr8_read(const struct vlapic *apic);
void vlapic_cr8_write(struct vlapic *apic, uint8_t value);

/* Moves vectors from the vCPU's posted words to IRR. An APIC disabled by software drops them. */
void vlapic_merge(struct vlapic *apic, const uint64_t posted[4]);

/* Highest vector in IRR that PPR lets through, or -1. */
int vlapic_pending(struct vlapic *apic);

/* The guest took vector: IRR to ISR. */
void vlapic_accept(struct vlapic *apic, uint8_t vector);

/* Host TSC of the next timer expiry that would interrupt, UINT64_MAX: none. */
uint64_t vlapic_deadline(const struct vlapic *apic);

/* Raises what has expired by now_tsc and sets the next periodic expiry. */
void vlapic_timer_run(struct vlapic *apic, uint64_t now_tsc);

/* Does this APIC answer that destination? Any core. An id of 0xff or 0xffffffff is everybody's. */
bool vlapic_matches(const struct vlapic *apic, uint32_t dest, bool logical);

/* Is it enabled, and by software too, so that a fixed interrupt would be taken? Any core. */
bool vlapic_is_listening(const struct vlapic *apic);
bool vlapic_is_enabled(const struct vlapic *apic);

/* KVM's PV EOI MSR (Linux Documentation/virt/kvm/x86/msr.rst). -EINVAL: reserved bit, or not guest
 * memory. */
int vlapic_pv_eoi_write(struct vlapic *apic, uint64_t value);

/* PV EOI: called before each entry (sets the flag) and after each exit, once a taken interrupt was
 * given to vlapic_accept and before the exit is handled (takes the flag back, or does the EOI). */
void vlapic_pv_eoi_sync_exit(struct vlapic *apic);
void vlapic_pv_eoi_sync_entry(struct vlapic *apic);

#endif
