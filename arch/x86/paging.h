/*
 * paging.h: the hypervisor's own page tables: an identity map shared by all cores, W^X, guard
 * pages.
 */
#ifndef QUELL_ARCH_X86_PAGING_H
#define QUELL_ARCH_X86_PAGING_H

#include "arch/types.h"
#include "boot/boot_info.h"

/* Attributes of a mapping; 0 unmaps. Bits are those of a page-table entry (SDM 3A 4.5). */
#define MAP_PRESENT BIT(0)
#define MAP_WRITE   BIT(1)
#define MAP_PWT     BIT(3)
#define MAP_PCD     BIT(4)
#define MAP_NX      BIT(63)

#define MAP_RX  (MAP_PRESENT)
#define MAP_RO  (MAP_PRESENT | MAP_NX)
#define MAP_RW  (MAP_PRESENT | MAP_WRITE | MAP_NX)
#define MAP_RWX (MAP_PRESENT | MAP_WRITE)
#define MAP_UC  (MAP_RW | MAP_PCD | MAP_PWT) /* strong uncached */
#define MAP_WC  (MAP_RW | MAP_PWT)           /* write-combining: see PAT_OURS */

/* Builds the tables from info->mem with pages out of the arena boot/ reserved. Boot core,
 * firmware's tables still loaded. Panics when the arena is too small. */
void paging_build(const struct boot_info *info);

/* Takes page-aligned memory from the same arena; NULL: none left. Boot core, start-up. */
void *paging_arena_alloc(uint64_t len_bytes, uint64_t align_bytes);

/* Loads the tables on this core. */
void paging_load(void);

/* True once the boot core runs on our tables. */
bool paging_live(void);

/* Root for the processor-start trampoline; below 4 GiB. */
hpa_t paging_root_hpa(void);

/*
 * Maps [base, base + len), widened to whole pages, onto itself with those attributes, 0 to unmap;
 * splits larger pages where needed. Other cores' TLBs are not told: only ever call it for pages no
 * other core has touched. Boot core. -ENOMEM: no memory for a table.
 */
int paging_map(hpa_t base_hpa, uint64_t len_bytes, uint64_t attr);

/* Maps read-only whatever of the range is not mapped yet, for reading firmware tables. Boot core.
 * Nothing to do before paging_live. -ENOMEM. */
int paging_map_missing(hpa_t base_hpa, uint64_t len_bytes);

#endif
