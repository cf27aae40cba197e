/*
 * boot_info.h: all that the UEFI application hands to the hypervisor, and the only thing they share.
 * boot/ fills it before and during ExitBootServices; read-only afterwards. Addresses are
 * host-physical. Everything it points to is marked BOOT_MEM_KEEP in the map.
 */
#ifndef QUELL_BOOT_INFO_H
#define QUELL_BOOT_INFO_H

#include "arch/types.h"

#define BOOT_INFO_MAGIC 0x4f464e494c4c4551ull /* "QELLINFO" */

#define BOOT_MEM_MAX  512
#define BOOT_CPU_MAX  256
#define BOOT_FILE_MAX 40
#define BOOT_NAME_MAX 128

enum boot_mem_type {
	BOOT_MEM_FREE,     /* ours to use, firmware's boot services included */
	BOOT_MEM_KEEP,     /* this image, its stack, boot_info and loaded files */
	BOOT_MEM_RUNTIME,  /* UEFI runtime services code and data */
	BOOT_MEM_ACPI,     /* tables, NVS */
	BOOT_MEM_RESERVED, /* never touch */
	BOOT_MEM_MMIO,     /* device registers */
};

struct boot_mem {
	hpa_t base_hpa;
	uint64_t len_bytes;
	enum boot_mem_type type;
};

/* A file read from the ESP. files[0] is the manifest. */
struct boot_file {
	char name[BOOT_NAME_MAX]; /* as the manifest spells it */
	hpa_t base_hpa;           /* page-aligned; a NUL follows the last byte */
	uint64_t len_bytes;
};

struct boot_framebuffer {
	hpa_t base_hpa; /* 0: none */
	uint64_t len_bytes;
	uint32_t width_px, height_px, stride_px;
	bool bgr; /* 32 bits a pixel; blue in the low byte, else red */
};

struct boot_info {
	uint64_t magic;

	uint32_t mem_count; /* sorted by address, no overlap, neighbours of one type merged */
	struct boot_mem mem[BOOT_MEM_MAX];

	/* Usable processors, MP Services first, MADT second. Index is the core number. */
	uint32_t cpu_count;
	uint32_t boot_cpu; /* index of the processor that runs boot */
	uint32_t cpu_apic_id[BOOT_CPU_MAX];

	uint32_t file_count;
	struct boot_file files[BOOT_FILE_MAX];

	struct boot_framebuffer fb;
	hpa_t rsdp_hpa;             /* 0: firmware gives no ACPI tables */
	hpa_t trampoline_hpa;       /* one free page below 1 MiB for processor start, 0: none */
	hpa_t runtime_services_hpa; /* EFI_RUNTIME_SERVICES, for power-off and reset; 0: none */
	hpa_t image_hpa;            /* the loaded PE image */
	uint64_t image_len_bytes;
	hpa_t arena_hpa; /* zeroed, below 4 GiB: page tables, the boot core's block */
	uint64_t arena_len_bytes;

	/* Wall clock: seconds since 1970 UTC when this core's TSC was wall_tsc; 0: unknown. */
	uint64_t wall_unix_s;
	uint64_t wall_tsc;
};

#endif
