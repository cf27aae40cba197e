#include "boot/memlist.h"

/* UEFI 2.10 table 7.10 */
enum efi_memory {
	EFI_LOADER_CODE = 1,
	EFI_LOADER_DATA,
	EFI_BOOT_CODE,
	EFI_BOOT_DATA,
	EFI_RUNTIME_CODE,
	EFI_RUNTIME_DATA,
	EFI_CONVENTIONAL,
	EFI_UNUSABLE,
	EFI_ACPI_RECLAIM,
	EFI_ACPI_NVS,
	EFI_MMIO,
	EFI_MMIO_PORT,
};

enum boot_mem_type memlist_type(uint32_t efi_type)
{
	switch (efi_type) {
	case EFI_BOOT_CODE:
	case EFI_BOOT_DATA:
	case EFI_CONVENTIONAL: return BOOT_MEM_FREE;
	case EFI_LOADER_CODE:
	case EFI_LOADER_DATA: return BOOT_MEM_KEEP;
	case EFI_RUNTIME_CODE:
	case EFI_RUNTIME_DATA: return BOOT_MEM_RUNTIME;
	case EFI_ACPI_RECLAIM:
	case EFI_ACPI_NVS: return BOOT_MEM_ACPI;
	case EFI_MMIO:
	case EFI_MMIO_PORT: return BOOT_MEM_MMIO;
	default: return BOOT_MEM_RESERVED;
	}
}

void memlist_add(struct boot_info *info, hpa_t base_hpa, uint64_t len_bytes,
                 enum boot_mem_type type)
{
	struct boot_mem *last = info->mem_count ? &info->mem[info->mem_count - 1] : NULL;

	if (!len_bytes || base_hpa + len_bytes < base_hpa)
		return;
	/* Firmware lists many small neighbours: joining them as they come saves room. */
	if (last && last->type == type && last->base_hpa + last->len_bytes == base_hpa)
		last->len_bytes += len_bytes;
	else if (info->mem_count < BOOT_MEM_MAX)
		info->mem[info->mem_count++] = (struct boot_mem){base_hpa, len_bytes, type};
}

static void sort(struct boot_mem *mem, uint32_t count)
{
	for (uint32_t i = 1; i < count; i++) {
		struct boot_mem one = mem[i];
		uint32_t at = i;

		for (; at > 0 && mem[at - 1].base_hpa > one.base_hpa; at--)
			mem[at] = mem[at - 1];
		mem[at] = one;
	}
}

static hpa_t end_of(const struct boot_mem *m)
{
	return m->base_hpa + m->len_bytes;
}

/* Cuts from a free range what its follower of another type claims, else from the follower. */
static void cut(struct boot_mem *a, struct boot_mem *b)
{
	hpa_t a_end = end_of(a), b_end = end_of(b);

	/* a was cut before: what lies below it has its owner already. */
	if (b->base_hpa < a->base_hpa) {
		b->base_hpa = MIN(a->base_hpa, b_end);
		b->len_bytes = b_end - b->base_hpa;
	}
	if (!b->len_bytes || a->type == b->type || b->base_hpa >= a_end)
		return;
	if (a->type == BOOT_MEM_FREE) {
		a->len_bytes = b->base_hpa - a->base_hpa; /* what lies behind b is given up */
	} else {
		b->base_hpa = MIN(a_end, b_end);
		b->len_bytes = b_end - b->base_hpa;
	}
}

void memlist_finish(struct boot_info *info)
{
	struct boot_mem *mem = info->mem;
	uint32_t kept = 0;

	sort(mem, info->mem_count);
	for (uint32_t i = 0; i < info->mem_count; i++) {
		struct boot_mem one = mem[i];

		if (kept)
			cut(&mem[kept - 1], &one);
		if (kept && !mem[kept - 1].len_bytes)
			kept--;
		if (kept && mem[kept - 1].type == one.type &&
		    one.base_hpa <= end_of(&mem[kept - 1])) {
			hpa_t end = MAX(end_of(&mem[kept - 1]), end_of(&one));

			mem[kept - 1].len_bytes = end - mem[kept - 1].base_hpa;
			continue;
		}
		if (one.len_bytes)
			mem[kept++] = one;
	}
	info->mem_count = kept;
}

hpa_t memlist_low_page(const struct boot_info *info)
{
	for (uint32_t i = info->mem_count; i-- > 0;) {
		hpa_t end = ALIGN_DOWN(MIN(end_of(&info->mem[i]), MIB), (hpa_t)PAGE_SIZE);

		if (info->mem[i].type == BOOT_MEM_FREE && end > PAGE_SIZE &&
		    end - PAGE_SIZE >= info->mem[i].base_hpa)
			return end - PAGE_SIZE;
	}
	return 0;
}
