/* What only firmware can tell about the machine. */
#include "boot/boot.h"
#include "arch/platform.h"
#include "arch/x86/acpi.h"
#include "arch/x86/apic.h"
#include "arch/x86/percore.h"

#define MP_ENABLED        BIT(1)
#define TABLES_BASE_COUNT 256u

/* UEFI PI 1.7 volume 2, 13.4: EFI_MP_SERVICES_PROTOCOL; gnu-efi has no words for it. */
struct mp_processor {
	UINT64 id;
	UINT32 status;
	UINT32 package, core, thread;
	UINT64 extended[4]; /* newer firmware writes more than older asked for */
};

struct mp_services {
	EFI_STATUS(EFIAPI *count)(struct mp_services *mp, UINTN *all, UINTN *enabled);
	EFI_STATUS(EFIAPI *processor)
	(struct mp_services *mp, UINTN index, struct mp_processor *out);
};

static bool guid_equal(const EFI_GUID *a, const EFI_GUID *b)
{
	return !memcmp(a, b, sizeof(*a));
}

static void find_rsdp(struct boot *boot)
{
	static const EFI_GUID acpi[] = {ACPI_20_TABLE_GUID, ACPI_TABLE_GUID};

	for (unsigned g = 0; g < ARRAY_LEN(acpi) && !boot->info->rsdp_hpa; g++)
		for (UINTN i = 0; i < boot->st->NumberOfTableEntries; i++)
			if (guid_equal(&boot->st->ConfigurationTable[i].VendorGuid, &acpi[g]))
				boot->info->rsdp_hpa =
				        (hpa_t)boot->st->ConfigurationTable[i].VendorTable;
}

static unsigned cpus_from_mp(const struct boot *boot, uint32_t *ids)
{
	EFI_GUID guid = {
	        0x3fdda605, 0xa76e, 0x4f46, {0xad, 0x29, 0x12, 0xf4, 0x53, 0x1b, 0x3d, 0x08}};
	struct mp_services *mp;
	UINTN all = 0, enabled = 0;
	unsigned count = 0;

	if (EFI_ERROR(boot->bs->LocateProtocol(&guid, NULL, (void **)&mp)) ||
	    EFI_ERROR(mp->count(mp, &all, &enabled)))
		return 0;
	for (UINTN i = 0; i < all && count < BOOT_CPU_MAX; i++) {
		struct mp_processor p = {.status = 0};

		if (!EFI_ERROR(mp->processor(mp, i, &p)) && (p.status & MP_ENABLED))
			ids[count++] = (uint32_t)p.id;
	}
	return count;
}

/* Index is the core number from here on; the processor this runs on is always among them. */
static void find_cpus(struct boot *boot)
{
	struct boot_info *info = boot->info;
	uint32_t self = apic_id_cpuid();

	info->cpu_count = cpus_from_mp(boot, info->cpu_apic_id);
	if (!info->cpu_count)
		info->cpu_count = acpi_cpus(info->rsdp_hpa, info->cpu_apic_id, BOOT_CPU_MAX);
	for (uint32_t i = 0; i < info->cpu_count; i++)
		if (info->cpu_apic_id[i] == self) {
			info->boot_cpu = i;
			return;
		}
	if (info->cpu_count == BOOT_CPU_MAX)
		info->cpu_count--;
	info->boot_cpu = info->cpu_count;
	info->cpu_apic_id[info->cpu_count++] = self;
}

static void find_framebuffer(struct boot *boot)
{
	EFI_GUID guid = EFI_GRAPHICS_OUTPUT_PROTOCOL_GUID;
	EFI_GRAPHICS_OUTPUT_PROTOCOL *gop;
	const EFI_GRAPHICS_OUTPUT_MODE_INFORMATION *mode;
	struct boot_framebuffer *fb = &boot->info->fb;

	if (EFI_ERROR(boot->bs->LocateProtocol(&guid, NULL, (void **)&gop)) || !gop->Mode ||
	    !gop->Mode->Info)
		return;
	mode = gop->Mode->Info;
	if (mode->PixelFormat != PixelBlueGreenRedReserved8BitPerColor &&
	    mode->PixelFormat != PixelRedGreenBlueReserved8BitPerColor)
		return;
	fb->width_px = mode->HorizontalResolution;
	fb->height_px = mode->VerticalResolution;
	fb->stride_px = mode->PixelsPerScanLine;
	fb->len_bytes = (uint64_t)fb->stride_px * fb->height_px * 4;
	fb->bgr = mode->PixelFormat == PixelBlueGreenRedReserved8BitPerColor;
	if (fb->width_px <= fb->stride_px && fb->len_bytes <= gop->Mode->FrameBufferSize)
		fb->base_hpa = gop->Mode->FrameBufferBase;
}

/* Days since 1970-01-01 of a date in the Gregorian calendar; March starts the year, so that the
 * leap day is its last. */
static int64_t days_from_date(int64_t year, unsigned month, unsigned day)
{
	int64_t y = month <= 2 ? year - 1 : year;
	unsigned m = month <= 2 ? month + 9 : month - 3;

	return y * 365 + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719468;
}

static void find_time(struct boot *boot)
{
	EFI_TIME t;
	int64_t s;

	if (EFI_ERROR(boot->st->RuntimeServices->GetTime(&t, NULL)))
		return;
	boot->info->wall_tsc = plat_tsc();
	if (t.Year < 1970 || t.Month < 1 || t.Month > 12 || t.Day < 1 || t.Day > 31)
		return;
	s = days_from_date(t.Year, t.Month, t.Day) * 86400 + t.Hour * 3600 + t.Minute * 60 +
	    t.Second;
	if (t.TimeZone != EFI_UNSPECIFIED_TIMEZONE && t.TimeZone >= -1440 && t.TimeZone <= 1440)
		s += t.TimeZone * 60; /* local time = UTC - TimeZone */
	boot->info->wall_unix_s = s > 0 ? (uint64_t)s : 0;
}

/*
 * Pages for our first page tables and the boot core's block. After boot services end the firmware's
 * tables, under which we still run, lie in memory that counts as free; so these come from before.
 */
static bool reserve_arena(struct boot *boot)
{
	UINTN bytes = 0, key, desc_bytes = sizeof(EFI_MEMORY_DESCRIPTOR);
	UINT32 version;
	uint64_t top_gib = 512, pages; /* one page of 2 MiB entries a GiB, where 1 GiB pages lack */

	boot->bs->GetMemoryMap(&bytes, NULL, &key, &desc_bytes, &version);
	pages = TABLES_BASE_COUNT + top_gib + 2 * (bytes / desc_bytes);
	boot->info->arena_len_bytes = pages * PAGE_SIZE + 2 * PERCORE_BYTES;
	boot->info->arena_hpa = boot_alloc(boot, boot->info->arena_len_bytes, 4 * GIB);
	if (!boot->info->arena_hpa) {
		say("quell: no %llu KiB of free memory below 4 GiB",
		    (unsigned long long)(boot->info->arena_len_bytes / KIB));
		return false;
	}
	memset((void *)boot->info->arena_hpa, 0, boot->info->arena_len_bytes);
	return true;
}

bool machine_survey(struct boot *boot)
{
	find_rsdp(boot);
	find_cpus(boot);
	find_framebuffer(boot);
	find_time(boot);
	boot->info->runtime_services_hpa = (hpa_t)boot->st->RuntimeServices;
	boot->info->trampoline_hpa = boot_alloc(boot, PAGE_SIZE, MIB);
	return reserve_arena(boot);
}
