/* The firmware's memory map becomes ours, and boot services end. UEFI 2.10 7.2, 7.4.6. */
#include "boot/boot.h"
#include "arch/platform.h"

#define LEAVE_TRIES   8u
#define SLACK_DESCS   64u /* the map grows while we allocate room for it */
#define MEM_TYPE_PERSISTENT 14u
#define MEM_TYPE_UNACCEPTED 15u

static uint8_t *map;
static UINTN map_bytes, map_room, desc_bytes;

hpa_t boot_alloc(const struct boot *boot, uint64_t len_bytes, uint64_t below_bytes)
{
	EFI_PHYSICAL_ADDRESS at = below_bytes ? below_bytes - 1 : 0;
	EFI_ALLOCATE_TYPE how = below_bytes ? AllocateMaxAddress : AllocateAnyPages;
	uint64_t pages = ALIGN_UP(len_bytes, (uint64_t)PAGE_SIZE) / PAGE_SIZE;

	if (EFI_ERROR(boot->bs->AllocatePages(how, EfiLoaderData, pages, &at)))
		return 0;
	/* Address 0 is a page like any other to firmware; to us it means none. Keep it, take another. */
	if (at == 0 && EFI_ERROR(boot->bs->AllocatePages(how, EfiLoaderData, pages, &at)))
		return 0;
	return at;
}

/* By type, whatever the attributes say: some firmware forgets EFI_MEMORY_RUNTIME. */
static enum boot_mem_type type_of(UINT32 efi_type)
{
	switch (efi_type) {
	case EfiConventionalMemory:
	case EfiBootServicesCode:
	case EfiBootServicesData:
		return BOOT_MEM_FREE;
	case EfiLoaderCode:
	case EfiLoaderData:
		return BOOT_MEM_KEEP;
	case EfiRuntimeServicesCode:
	case EfiRuntimeServicesData:
		return BOOT_MEM_RUNTIME;
	case EfiACPIReclaimMemory:
	case EfiACPIMemoryNVS:
		return BOOT_MEM_ACPI;
	case EfiMemoryMappedIO:
	case EfiMemoryMappedIOPortSpace:
		return BOOT_MEM_MMIO;
	default:
		return BOOT_MEM_RESERVED;
	}
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

/* Neighbours of one type become one; of an overlap the earlier entry keeps what it has. */
static uint32_t merge(struct boot_mem *mem, uint32_t count)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < count; i++) {
		struct boot_mem one = mem[i];

		if (kept) {
			struct boot_mem *last = &mem[kept - 1];
			hpa_t end = last->base_hpa + last->len_bytes, one_end = one.base_hpa + one.len_bytes;

			if (one_end <= end)
				continue;
			one.base_hpa = MAX(one.base_hpa, end);
			one.len_bytes = one_end - one.base_hpa;
			if (one.base_hpa == end && one.type == last->type) {
				last->len_bytes += one.len_bytes;
				continue;
			}
		}
		mem[kept++] = one;
	}
	return kept;
}

/*
 * Firmware lists many small neighbours, so they are merged as they come; what still does not fit is
 * dropped, which only means that it is not used.
 */
static void convert(struct boot_info *info)
{
	uint32_t n = 0;

	for (UINTN at = 0; at + desc_bytes <= map_bytes; at += desc_bytes) {
		const EFI_MEMORY_DESCRIPTOR *d = (const EFI_MEMORY_DESCRIPTOR *)(map + at);
		struct boot_mem one = {d->PhysicalStart, d->NumberOfPages * PAGE_SIZE, type_of(d->Type)};
		struct boot_mem *last = n ? &info->mem[n - 1] : NULL;

		if (!one.len_bytes)
			continue;
		if (last && last->type == one.type && last->base_hpa + last->len_bytes == one.base_hpa)
			last->len_bytes += one.len_bytes;
		else if (n < BOOT_MEM_MAX)
			info->mem[n++] = one;
	}
	sort(info->mem, n);
	info->mem_count = merge(info->mem, n);
}

/* A page below 1 MiB that was the firmware's until now will do for processor start. */
static void find_low_page(struct boot_info *info)
{
	for (uint32_t i = 0; i < info->mem_count && !info->trampoline_hpa; i++) {
		const struct boot_mem *m = &info->mem[i];
		hpa_t end = MIN(m->base_hpa + m->len_bytes, MIB);

		if (m->type == BOOT_MEM_FREE && end > m->base_hpa && end - PAGE_SIZE >= PAGE_SIZE &&
		    end - PAGE_SIZE >= m->base_hpa)
			info->trampoline_hpa = end - PAGE_SIZE;
	}
}

bool memmap_leave(struct boot *boot)
{
	EFI_BOOT_SERVICES *bs = boot->bs;
	UINTN key = 0;
	UINT32 version;

	map_bytes = 0;
	bs->GetMemoryMap(&map_bytes, NULL, &key, &desc_bytes, &version);
	map_room = map_bytes + SLACK_DESCS * desc_bytes;
	map = (uint8_t *)boot_alloc(boot, map_room, 0);
	if (!map || desc_bytes < sizeof(EFI_MEMORY_DESCRIPTOR))
		return false;
	/* A timer tick between the two calls makes the key stale: ask again. */
	for (unsigned i = 0; i < LEAVE_TRIES; i++) {
		map_bytes = map_room;
		if (EFI_ERROR(bs->GetMemoryMap(&map_bytes, (EFI_MEMORY_DESCRIPTOR *)map, &key,
		                               &desc_bytes, &version)))
			return false;
		if (!EFI_ERROR(bs->ExitBootServices(boot->image, key))) {
			__asm__ volatile("cli" : : : "memory");
			convert(boot->info);
			find_low_page(boot->info);
			return true;
		}
	}
	return false;
}
