/*
 * acpi.h: the ACPI tables a guest finds (ACPI 6.4): RSDP, XSDT, FADT (hardware-reduced), MADT and
 * the DSDT that iasl made of dsdt.asl. Boot core, before the guest runs.
 */
#ifndef QUELL_VMM_ACPI_H
#define QUELL_VMM_ACPI_H

#include "arch/types.h"
#include "vmm/gmem.h"

/* Reserved in e820, and where old kernels look for an RSDP. */
#define ACPI_BASE_GPA 0xe0000ull
#define ACPI_END_GPA  0x100000ull

/*
 * Writes the tables for a guest of that many vCPUs, whose APIC ids are their numbers, into its
 * memory; *rsdp_gpa is what boot parameters name. -ENOSPC: too many vCPUs; -EFAULT: no memory
 * there.
 */
int acpi_build(const struct gmem *mem, unsigned vcpu_count, gpa_t *rsdp_gpa);

#endif
