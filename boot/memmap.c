/* The firmware's memory map becomes ours, and boot services end. UEFI 2.10 7.2, 7.4.6. */
#include "boot/boot.h"
#include "boot/memlist.h"

#define LEAVE_TRIES 8u
#define SLACK_DESCS 64u /* the map grows while we allocate room for it */

static uint8_t *map;
static UINTN map_bytes, map_room, desc_bytes;

hpa_t boot_alloc(const struct boot *boot, uint64_t len_bytes, uint64_t below_bytes)
{
	EFI_PHYSICAL_ADDRESS at = below_bytes ? below_bytes - 1 : 0;
	EFI_ALLOCATE_TYPE how = below_bytes ? AllocateMaxAddress : AllocateAnyPages;
	uint64_t pages = ALIGN_UP(len_bytes, (uint64_t)PAGE_SIZE) / PAGE_SIZE;

	if (EFI_ERROR(boot->bs->AllocatePages(how, EfiLoaderData, pages, &at)))
		return 0;
	/* Address 0 is a page like any other to firmware; to us it means none. Keep it, take
	 * another. */
	if (at == 0 && EFI_ERROR(boot->bs->AllocatePages(how, EfiLoaderData, pages, &at)))
		return 0;
	return at;
}

static void convert(struct boot_info *info)
{
	for (UINTN at = 0; at + desc_bytes <= map_bytes; at += desc_bytes) {
		const EFI_MEMORY_DESCRIPTOR *d = (const EFI_MEMORY_DESCRIPTOR *)(map + at);

		memlist_add(info, d->PhysicalStart, d->NumberOfPages * PAGE_SIZE,
		            memlist_type(d->Type));
	}
	memlist_finish(info);
	/* A page that was the firmware's until now will do for starting processors. */
	if (!info->trampoline_hpa)
		info->trampoline_hpa = memlist_low_page(info);
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
			return true;
		}
	}
	return false;
}
