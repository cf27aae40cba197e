/*
 * acpi.h: the few ACPI tables the hypervisor reads. ACPI 6.4 5.2. Every length is the firmware's
 * word and is checked before use.
 */
#ifndef QUELL_ARCH_X86_ACPI_H
#define QUELL_ARCH_X86_ACPI_H

#include "arch/types.h"

struct acpi_header {
	char signature[4];
	uint32_t len_bytes;
	uint8_t revision, checksum;
	char oem_id[6], oem_table_id[8];
	uint32_t oem_revision, creator_id, creator_revision;
} PACKED;
_Static_assert(sizeof(struct acpi_header) == 36, "ACPI 6.4 5.2.6");

/* The first table with that signature, checksum verified and mapped; NULL: none. Boot core, or in
 * boot/ on firmware's tables. */
const struct acpi_header *acpi_find(hpa_t rsdp_hpa, const char signature[4]);

/* Enabled processors' APIC ids from the MADT (types 0 and 9), at most max. Returns how many. */
unsigned acpi_cpus(hpa_t rsdp_hpa, uint32_t *apic_id, unsigned max);

struct acpi_ioapic {
	hpa_t base_hpa;
	uint32_t gsi_base;
};

/* I/O APICs from the MADT, at most max. Returns how many. */
unsigned acpi_ioapics(hpa_t rsdp_hpa, struct acpi_ioapic *out, unsigned max);

/* GSI and MPS INTI flags of an ISA interrupt, overrides applied; identity without a MADT. */
uint32_t acpi_isa_gsi(hpa_t rsdp_hpa, unsigned irq, uint16_t *flags);

struct acpi_fixed {
	uint16_t pm_timer_port; /* 0: none */
	bool pm_timer_32bit;
	uint16_t pm1a_cnt_port, pm1b_cnt_port; /* 0: none */
	int s5_typ_a, s5_typ_b; /* SLP_TYP values for S5; -1: not found in the DSDT */
};

/* From FADT and DSDT; all-zero ports when there is no FADT. */
void acpi_fixed(hpa_t rsdp_hpa, struct acpi_fixed *out);

#endif
