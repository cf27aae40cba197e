/*
 * apic.h: local APIC (xAPIC and x2APIC), its timer, and the I/O APICs. SDM 3A chapter 11.
 */
#ifndef QUELL_ARCH_X86_APIC_H
#define QUELL_ARCH_X86_APIC_H

#include "arch/types.h"
#include "boot/boot_info.h"

/* APIC id of the core this runs on, from CPUID; works before apic_init. */
uint32_t apic_id_cpuid(void);

/* Decides xAPIC or x2APIC for the machine and maps the registers. Boot core. */
void apic_init(const struct boot_info *info);

/* Enables this core's local APIC, masks its local vectors, sets the timer up. */
void apic_init_core(void);

void apic_eoi(void);

/* Inter-processor interrupts. Any core. */
void apic_send(uint32_t apic_id, uint8_t vector);
void apic_send_init(uint32_t apic_id);
void apic_send_sipi(uint32_t apic_id, uint8_t page);
/* NMI to all cores that have started but this one: the end, or a panic. */
void apic_stop_others(void);

/* Free-running count-down of the masked timer, for calibration. Boot core. */
void apic_timer_free_run(void);
uint32_t apic_timer_count(void);

/* Tells the timer how its rate relates to the TSC's: counts per cycle, 32.32 fixed point.
 * Boot core, before other cores start. */
void apic_timer_set_rate(uint64_t per_tsc_q32);

/* True: deadlines are written in TSC units and no rate is needed. */
bool apic_timer_is_tsc(void);

/* The timer interrupt's handler, before EOI. */
void apic_timer_expired(void);

/* Masks every input of every I/O APIC and both 8259s. Boot core, interrupts off. */
void ioapic_init(hpa_t rsdp_hpa);

/* Routes a legacy ISA interrupt to a core's APIC id. -EOPNOTSUPP: no I/O APIC answers. Boot core or
 * with no other core at the same register. */
int ioapic_route_isa(unsigned irq, uint32_t apic_id, uint8_t vector);

#endif
