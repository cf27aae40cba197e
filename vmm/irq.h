/*
 * irq.h: how interrupts reach a vCPU. Everything here may be called on any core.
 */
#ifndef QUELL_VMM_IRQ_H
#define QUELL_VMM_IRQ_H

#include "arch/types.h"

struct vcpu;
struct vm;

/* An interrupt message, as MSIs, I/O APIC entries and ICR writes make it (SDM 3A 10.6, 10.11). */
enum irq_mode {
	IRQ_FIXED = 0,
	IRQ_LOWEST = 1,
	IRQ_SMI = 2,
	IRQ_INVALID = 3, /* reserved: goes nowhere */
	IRQ_NMI = 4,
	IRQ_INIT = 5,
	IRQ_SIPI = 6,
	IRQ_EXTINT = 7,
};

struct irq_msg {
	uint32_t dest; /* APIC id, or logical destination; 0xff / 0xffffffff: all */
	bool logical;
	uint8_t mode; /* enum irq_mode */
	uint8_t vector;
};

/* Fixed interrupt to one vCPU: one atomic OR, and one IPI only if the vCPU is in its guest or
 * halted. The only call from the I/O core to a vCPU. Vectors below 16 are dropped. */
void irq_post(struct vcpu *vcpu, uint8_t vector);

/* Sets bits VCPU_EVENT_* and wakes the vCPU. INIT withdraws a pending SIPI; of several SIPIs the
 * first counts. */
void irq_event(struct vcpu *vcpu, unsigned events);

/* Resolves the destination and posts. 0, or -ENOENT: nobody there, or nothing that can be sent. */
int irq_send(struct vm *vm, const struct irq_msg *msg);

/* As irq_send, to every vCPU but one (NULL: to all), whatever msg->dest says. */
int irq_broadcast(struct vm *vm, const struct irq_msg *msg, const struct vcpu *except);

/* The one vCPU a fixed message goes to, or NULL: none or several (use irq_send). */
struct vcpu *irq_single_target(struct vm *vm, const struct irq_msg *msg);

/* What a device's memory write means. Address outside 0xfeexxxxx: mode IRQ_INVALID. */
struct irq_msg irq_msi_decode(uint64_t address, uint32_t data);

#endif
