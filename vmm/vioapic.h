/*
 * vioapic.h: one I/O APIC of 24 pins (82093AA; ICH9 datasheet 13.5). Under the guest's device lock.
 */
#ifndef QUELL_VMM_VIOAPIC_H
#define QUELL_VMM_VIOAPIC_H

#include "arch/types.h"

#define VIOAPIC_BASE_GPA 0xfec00000ull
#define VIOAPIC_PINS     24u

struct vm;

struct vioapic {
	struct vm *vm;
	uint32_t select, id;
	uint64_t redirection[VIOAPIC_PINS];
	uint32_t level; /* pins asserted now */
	/* Vectors of unmasked level pins, so that an EOI need not ask. Read without the lock. */
	atomic_uint_least64_t level_vectors[4];
};

void vioapic_init(struct vioapic *apic, struct vm *vm);
uint32_t vioapic_mmio_read(struct vioapic *apic, uint32_t offset);
void vioapic_mmio_write(struct vioapic *apic, uint32_t offset, uint32_t value);

/* Sets a pin's input. An edge pin fires on a rise, a level pin while high and not in service. */
void vioapic_pin_set(struct vioapic *apic, unsigned pin, bool high);

/* A local APIC ended vector: level pins of that vector may fire again. */
void vioapic_eoi(struct vioapic *apic, uint8_t vector);

/* Could an EOI of vector concern the I/O APIC? No lock needed. */
bool vioapic_wants_eoi(struct vioapic *apic, uint8_t vector);

#endif
