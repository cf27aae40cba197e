/*
 * vlapic_impl.h: what the three files of the local APIC share: interrupts (vlapic.c), registers
 * (vlapic_reg.c) and timer (vlapic_timer.c).
 */
#ifndef QUELL_VMM_VLAPIC_IMPL_H
#define QUELL_VMM_VLAPIC_IMPL_H

#include "vmm/vlapic.h"

#define VLAPIC_BASE_BSP    BIT(8)
#define VLAPIC_BASE_X2APIC BIT(10)
#define VLAPIC_BASE_ENABLE BIT(11)

#define VLAPIC_SVR_ENABLE BIT(8)
#define VLAPIC_LVT_MASKED BIT(16)

/* Error status register (SDM 3A 10.5.3). */
#define VLAPIC_ESR_SEND_VECTOR 0x20u
#define VLAPIC_ESR_RECV_VECTOR 0x40u
#define VLAPIC_ESR_REGISTER    0x80u

/* Delivers vector to this APIC from inside: a self-IPI or a local source. */
void vlapic_raise(struct vlapic *apic, uint8_t vector);

/* Records an error and raises its local interrupt. */
void vlapic_error(struct vlapic *apic, uint32_t esr_bit);

void vlapic_eoi(struct vlapic *apic);
uint8_t vlapic_ppr(const struct vlapic *apic);
void vlapic_icr_send(struct vlapic *apic, uint64_t icr);

/* Tells senders of a change of mode, LDR, DFR or SVR. */
void vlapic_dest_publish(struct vlapic *apic);

static inline bool vlapic_is_x2apic(const struct vlapic *apic)
{
	return apic->base_msr & VLAPIC_BASE_X2APIC;
}

/* LDR of x2APIC mode follows from the id (SDM 3A 10.12.10.2). */
static inline uint32_t vlapic_x2apic_ldr(uint32_t id)
{
	return (id >> 4) << 16 | 1u << (id & 15);
}

void vlapic_timer_init(struct vlapic *apic);
void vlapic_timer_reset(struct vlapic *apic);
void vlapic_timer_lvt_write(struct vlapic *apic, uint32_t value);
void vlapic_timer_initial_write(struct vlapic *apic, uint32_t count);
void vlapic_timer_divide_write(struct vlapic *apic, uint32_t value);
uint32_t vlapic_timer_current(struct vlapic *apic);
void vlapic_timer_deadline_write(struct vlapic *apic, uint64_t guest_tsc);
uint64_t vlapic_timer_deadline_read(struct vlapic *apic);

#endif
