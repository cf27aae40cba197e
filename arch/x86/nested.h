/*
 * nested.h: one page-table builder for both nested formats, NPT and EPT. A format is a handful of
 * bits (svm/npt.c, vmx/ept.c); the walk is the same. Pure computation over pages from
 * plat_mem_alloc, so that it is tested hosted.
 *
 * Tables only grow: an entry goes from empty to final once, with one 64-bit store, and a table is
 * linked after it is filled with zeros. A walker on another core sees either nothing or the truth.
 */
#ifndef QUELL_ARCH_X86_NESTED_H
#define QUELL_ARCH_X86_NESTED_H

#include "arch/types.h"
#include "arch/x86/hvm.h"

#define NESTED_LEVELS    4u /* 1: 4 KiB leaves, 2: 2 MiB, 3: 1 GiB, 4: root */
#define NESTED_GPA_BITS  48u
#define NESTED_TABLE_LEN 512u

struct nested_format {
	const char *name;      /* "npt", "ept" */
	uint64_t present_mask; /* an entry is present when any of these is set: P; or R | W | X */
	uint64_t addr_mask;    /* host-physical address bits that an entry may hold */
	uint64_t table_bits;   /* all bits but the address of an entry that links a table */
	uint64_t leaf_bits;    /* the same for 4 KiB of RAM: rights, memory type, accessed, dirty */
	uint64_t large_bit;    /* added to leaf_bits for 2 MiB and 1 GiB */
	/*
	 * The entry that makes any access below it fault on purpose, at any level: a reserved bit, or
	 * write without read. Never zero and never what a RAM or table entry can look like. Where no
	 * fault of its own can be had it is a non-present entry with a bit the processor ignores, and
	 * the back end tells a kick from a hole with nested_lookup.
	 */
	uint64_t mmio_entry;
	bool large_2m, large_1g; /* RAM may use them */
};

enum nested_kind {
	NESTED_HOLE,
	NESTED_RAM,
	NESTED_MMIO,
};

struct nested_leaf {
	enum nested_kind kind;
	hpa_t hpa;          /* RAM: of that very gpa */
	uint64_t len_bytes; /* that the entry spans */
	uint64_t entry;     /* as the processor reads it; 0 for a hole */
};

/* Do kicks have a fault of their own? If not, a non-present fault may be one: nested_lookup. */
static inline bool nested_mmio_is_present(const struct nested_format *format)
{
	return format->mmio_entry & format->present_mask;
}

/* Bytes that one entry of that level spans. */
static inline uint64_t nested_span(unsigned level)
{
	return 1ull << (PAGE_SHIFT + 9u * (level - 1u));
}

/* Sets up an empty root in vm->nested_root_hpa. Boot core. -ENOMEM. */
int nested_init(const struct nested_format *format, struct hvm_vm *vm);

/*
 * Maps guest memory with the largest pages that alignment, length and the format allow. Boot core,
 * before start. -EINVAL: not in 4 KiB granules, empty, out of range, or something is mapped there
 * already (then nothing changes). -ENOMEM: partly mapped; the guest cannot start.
 */
int nested_map_ram(const struct nested_format *format, struct hvm_vm *vm, gpa_t gpa, hpa_t hpa,
                   uint64_t len_bytes);

/* Makes every access to the range fault, with the largest entries. Same rules and errors. */
int nested_map_mmio(const struct nested_format *format, struct hvm_vm *vm, gpa_t gpa,
                    uint64_t len_bytes);

/* What stands at gpa. Any core; reads memory only. */
struct nested_leaf nested_lookup(const struct nested_format *format, const struct hvm_vm *vm,
                                 gpa_t gpa);

#endif
