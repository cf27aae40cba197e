#include "arch/x86/paging.h"
#include "arch/platform.h"
#include "arch/x86/cpu.h"

#define ENTRIES    512u
#define PTE_LARGE  BIT(7)
#define PTE_ADDR   0x000ffffffffff000ull
#define PTE_LEAF   (MAP_PRESENT | MAP_WRITE | MAP_PWT | MAP_PCD | MAP_NX)
#define LEVEL_ROOT 3u /* level 0 maps 4 KiB, 1 2 MiB, 2 1 GiB; 3 is the PML4 */

/* boot/quell.lds */
extern char image_text_start[], image_text_end[], image_ro_start[], image_ro_end[];

static struct {
	uint64_t *root;      /* PML4 */
	uint64_t *root57;    /* PML5 over it, where firmware left 57-bit addresses on */
	uint64_t nx;         /* MAP_NX, or 0 where the processor has none */
	unsigned leaf_level; /* largest page: 2 for 1 GiB, 1 for 2 MiB */
	hpa_t arena, arena_end;
	bool live;
} pg;

void *paging_arena_alloc(uint64_t len_bytes, uint64_t align_bytes)
{
	hpa_t at = ALIGN_UP(pg.arena, align_bytes);

	if (at + len_bytes > pg.arena_end)
		return NULL;
	pg.arena = at + len_bytes;
	return (void *)at;
}

static uint64_t *table_new(void)
{
	uint64_t *table = paging_arena_alloc(PAGE_SIZE, PAGE_SIZE);

	if (!table && pg.live)
		table = plat_mem_alloc(PAGE_SIZE, PAGE_SIZE);
	return table;
}

static uint64_t level_bytes(unsigned level)
{
	return 1ull << (PAGE_SHIFT + 9 * level);
}

/* The table below an entry, made when missing; a large page there is split, its attributes kept. */
static uint64_t *table_below(uint64_t *entry, unsigned level)
{
	uint64_t *table, old = *entry;

	if ((old & MAP_PRESENT) && !(old & PTE_LARGE))
		return (uint64_t *)(old & PTE_ADDR);
	table = table_new();
	if (!table)
		return NULL;
	if (old & MAP_PRESENT) {
		uint64_t step = level_bytes(level - 1);
		uint64_t leaf = (old & (PTE_ADDR | PTE_LEAF)) | (level > 1 ? PTE_LARGE : 0);

		for (unsigned i = 0; i < ENTRIES; i++)
			table[i] = leaf + i * step;
	}
	*entry = (uint64_t)table | MAP_PRESENT | MAP_WRITE;
	return table;
}

/* Page 0 and the fixed-range MTRRs want small pages in the lowest 2 MiB. */
static bool leaf_fits(uint64_t entry, unsigned level, uint64_t va, uint64_t end)
{
	if (level == 0)
		return true;
	if (level > pg.leaf_level || va == 0 || !IS_ALIGNED(va, level_bytes(level)))
		return false;
	if ((entry & MAP_PRESENT) && !(entry & PTE_LARGE))
		return false;
	return end - va >= level_bytes(level);
}

static int map_level(uint64_t *table, unsigned level, uint64_t va, uint64_t end, uint64_t attr)
{
	while (va < end) {
		uint64_t *entry = &table[va >> (PAGE_SHIFT + 9 * level) & (ENTRIES - 1)];
		uint64_t next = MIN(ALIGN_DOWN(va, level_bytes(level)) + level_bytes(level), end);

		if (leaf_fits(*entry, level, va, end)) {
			*entry = attr ? va | attr | (level ? PTE_LARGE : 0) : 0;
		} else if (attr || (*entry & MAP_PRESENT)) {
			uint64_t *below = table_below(entry, level);
			int err = below ? map_level(below, level - 1, va, next, attr) : -ENOMEM;

			if (err)
				return err;
		}
		va = next;
	}
	return 0;
}

int paging_map(hpa_t base_hpa, uint64_t len_bytes, uint64_t attr)
{
	uint64_t va = ALIGN_DOWN(base_hpa, (uint64_t)PAGE_SIZE);
	uint64_t end = ALIGN_UP(base_hpa + len_bytes, (uint64_t)PAGE_SIZE);
	int err;

	if (end <= va || end > BIT(47))
		return end == va ? 0 : -EINVAL;
	err = map_level(pg.root, LEVEL_ROOT, va, end, attr & ~(MAP_NX & ~pg.nx));
	if (pg.live)
		cpu_cr3_set(cpu_cr3());
	return err;
}

static bool is_mapped(uint64_t va)
{
	const uint64_t *table = pg.root;

	for (unsigned level = LEVEL_ROOT;; level--) {
		uint64_t entry = table[va >> (PAGE_SHIFT + 9 * level) & (ENTRIES - 1)];

		if (!(entry & MAP_PRESENT))
			return false;
		if (level == 0 || (entry & PTE_LARGE))
			return true;
		table = (const uint64_t *)(entry & PTE_ADDR);
	}
}

int paging_map_missing(hpa_t base_hpa, uint64_t len_bytes)
{
	uint64_t end = base_hpa + len_bytes;

	if (!pg.live)
		return 0;
	for (uint64_t va = ALIGN_DOWN(base_hpa, (uint64_t)PAGE_SIZE); va < end; va += PAGE_SIZE) {
		int err = is_mapped(va) ? 0 : paging_map(va, PAGE_SIZE, MAP_RO);

		if (err)
			return err;
	}
	return 0;
}

static uint64_t attr_of(enum boot_mem_type type)
{
	switch (type) {
	case BOOT_MEM_FREE:
	case BOOT_MEM_KEEP:
	case BOOT_MEM_RUNTIME: return MAP_RW;
	case BOOT_MEM_ACPI: return MAP_RO;
	default: return 0;
	}
}

static void map_or_panic(hpa_t base_hpa, uint64_t len_bytes, uint64_t attr)
{
	if (paging_map(base_hpa, len_bytes, attr))
		plat_panic("page tables: arena exhausted at %llx", (unsigned long long)base_hpa);
}

/* Execute-disable may be hidden by firmware: SDM 4, IA32_MISC_ENABLE bit 34. */
static void nx_detect(void)
{
	bool intel = cpu_id(0, 0).ebx == 0x756e6547;

	if (!(cpu_id(0x80000001, 0).edx & BIT(20)) && intel)
		cpu_wrmsr(MSR_MISC_ENABLE, cpu_rdmsr(MSR_MISC_ENABLE) & ~BIT(34));
	pg.nx = cpu_id(0x80000001, 0).edx & BIT(20) ? MAP_NX : 0;
}

void paging_build(const struct boot_info *info)
{
	uint64_t text = (uint64_t)image_text_start, ro = (uint64_t)image_ro_start;

	pg.arena = info->arena_hpa;
	pg.arena_end = info->arena_hpa + info->arena_len_bytes;
	pg.leaf_level = cpu_id(0x80000001, 0).edx & BIT(26) ? 2 : 1;
	nx_detect();
	pg.root = table_new();
	if (!pg.root)
		plat_panic("page tables: no arena");
	if (cpu_cr4() & CR4_LA57) {
		pg.root57 = table_new();
		if (!pg.root57)
			plat_panic("page tables: no arena");
		pg.root57[0] = (uint64_t)pg.root | MAP_PRESENT | MAP_WRITE;
	}
	for (uint32_t i = 0; i < info->mem_count; i++)
		if (attr_of(info->mem[i].type))
			map_or_panic(info->mem[i].base_hpa, info->mem[i].len_bytes,
			             attr_of(info->mem[i].type));
	map_or_panic(info->image_hpa, info->image_len_bytes, MAP_RW);
	map_or_panic(text, (uint64_t)image_text_end - text, MAP_RX);
	map_or_panic(ro, (uint64_t)image_ro_end - ro, MAP_RO);
	map_or_panic(0, PAGE_SIZE, 0);
}

void paging_load(void)
{
	if (pg.nx)
		cpu_wrmsr(MSR_EFER, cpu_rdmsr(MSR_EFER) | EFER_NXE);
	cpu_cr3_set(paging_root_hpa());
	pg.live = true;
}

bool paging_live(void)
{
	return pg.live;
}

hpa_t paging_root_hpa(void)
{
	return (hpa_t)(pg.root57 ? pg.root57 : pg.root);
}
