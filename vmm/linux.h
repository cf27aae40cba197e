/*
 * linux.h: loads a Linux bzImage for its 64-bit entry (Linux Documentation/arch/x86/boot.rst,
 * protocol 2.12 and later), and anything else that is wrapped as one. Boot core, before the guest
 * runs.
 */
#ifndef QUELL_VMM_LINUX_H
#define QUELL_VMM_LINUX_H

#include "arch/types.h"
#include "arch/x86/hvm.h"
#include "vmm/gmem.h"

#define LINUX_MEMORY_REGION_MAX 2
#define LINUX_ERR_MAX           160

/* Where a guest has what in its first megabyte. Firmware tables are from 0xE0000 on (acpi.h). */
#define LINUX_ZERO_PAGE_GPA   0x7000ull
#define LINUX_GDT_GPA         0x8000ull
#define LINUX_PAGE_TABLES_GPA 0x9000ull /* six pages */
#define LINUX_CMDLINE_GPA     0x20000ull
#define LINUX_CMDLINE_MAX     0x10000ull
#define LINUX_LOW_END_GPA     0xa0000ull  /* RAM in e820 up to here, */
#define LINUX_HIGH_GPA        0x100000ull /* and again from here on */

struct linux_memory_region {
	gpa_t gpa;
	uint64_t len_bytes;
};

struct linux_image {
	hpa_t kernel_hpa;
	uint64_t kernel_len_bytes;
	hpa_t initrd_hpa;
	uint64_t initrd_len_bytes; /* 0: none */
	const char *cmdline;
	gpa_t rsdp_gpa; /* 0: none */
};

/* How the first vCPU starts, and where things went. */
struct linux_entry {
	struct hvm_state state;
	uint64_t gpr[HVM_GPR_COUNT];
	uint64_t rip, rflags;
	gpa_t kernel_gpa, initrd_gpa;
	uint64_t kernel_len_bytes; /* what it may use until it reads e820: init_size */
};

/*
 * Where a guest's memory goes: below VPCI_MMIO_BASE_GPA, and what is left from 4 GiB on. Whole
 * pages. Returns how many regions (0 to 2); each may be backed by several pieces of host memory.
 */
unsigned linux_memory_layout(uint64_t memory_bytes,
                             struct linux_memory_region regions[LINUX_MEMORY_REGION_MAX]);

/*
 * Puts kernel, initrd, command line, boot parameters, GDT and page tables into guest memory. 0;
 * -EINVAL: not a kernel we can start, or it does not fit, with one line in err that says what was
 * found and what is needed. The files are read once and may be anything.
 */
int linux_load(const struct linux_image *in, const struct gmem *mem, struct linux_entry *out,
               char *err, size_t err_len);

#endif
