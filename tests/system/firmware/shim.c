/*
 * A firmware with faults: it reads FAULTS.TXT beside itself, spoils the boot services as its words
 * say, and starts QUELL.EFI. What firmware does wrong once a year is then there at each run.
 *
 *   stale-key      ExitBootServices fails twice: the map changes between the two calls
 *   no-low-page    no page below 1 MiB may be allocated
 *   low-reserved   no page below 1 MiB is anything but reserved
 *   no-attributes  no descriptor says RUNTIME
 *   no-gop         no graphics output
 *   no-mp          no MP services
 *   no-acpi        no tables
 *   ghost          MP services list one more processor, which does not exist
 *   x2apic         the boot processor's local APIC is in x2APIC mode
 */
#include <efi.h>

#include "arch/types.h"

#define GHOST_APIC_ID 77u
#define MSR_APIC_BASE 0x1b
#define STALE_TRIES   2u

struct mp_services {
	EFI_STATUS(EFIAPI *count)(struct mp_services *mp, UINTN *all, UINTN *enabled);
	EFI_STATUS(EFIAPI *processor)(struct mp_services *mp, UINTN index, void *out);
};

struct faults {
	char text[512];
};

EFI_STATUS efi_main(EFI_HANDLE image, EFI_SYSTEM_TABLE *st);

static struct faults faults;
static EFI_BOOT_SERVICES *bs;
static EFI_BOOT_SERVICES firmware; /* as it was */
static struct mp_services *mp, firmware_mp;
static UINTN mp_all;
static unsigned stale_left;

static bool has(const char *word)
{
	for (const char *at = faults.text; *at; at++) {
		const char *w = word;
		const char *p = at;

		while (*w && *p == *w) {
			w++;
			p++;
		}
		if (!*w && (*p == ' ' || *p == '\n' || *p == 0) &&
		    (at == faults.text || at[-1] == ' '))
			return true;
	}
	return false;
}

static bool same(const EFI_GUID *a, const EFI_GUID *b)
{
	const uint8_t *p = (const uint8_t *)a, *q = (const uint8_t *)b;

	for (unsigned i = 0; i < sizeof(*a); i++)
		if (p[i] != q[i])
			return false;
	return true;
}

/* To COM1 as it is: what a test wants to see happened. */
static void say(const char *text)
{
	for (; *text; text++)
		__asm__ volatile("outb %0, %1" : : "a"(*text), "Nd"((uint16_t)0x3f8));
}

static EFI_STATUS EFIAPI exit_stale(EFI_HANDLE image, UINTN key)
{
	EFI_PHYSICAL_ADDRESS page;
	EFI_STATUS status;

	if (stale_left) {
		stale_left--;
		firmware.AllocatePages(AllocateAnyPages, EfiBootServicesData, 1, &page);
	}
	status = firmware.ExitBootServices(image, key);
	if (EFI_ERROR(status))
		say("shim: stale key refused\r\n");
	return status;
}

static EFI_STATUS EFIAPI map_bent(UINTN *size, EFI_MEMORY_DESCRIPTOR *map, UINTN *key,
                                  UINTN *desc_size, UINT32 *version)
{
	EFI_STATUS status = firmware.GetMemoryMap(size, map, key, desc_size, version);

	if (EFI_ERROR(status))
		return status;
	for (UINTN at = 0; at + *desc_size <= *size; at += *desc_size) {
		EFI_MEMORY_DESCRIPTOR *d = (EFI_MEMORY_DESCRIPTOR *)((uint8_t *)map + at);

		if (has("no-attributes"))
			d->Attribute &= ~EFI_MEMORY_RUNTIME;
		if (has("low-reserved") && d->PhysicalStart < MIB)
			d->Type = EfiReservedMemoryType;
	}
	return status;
}

static EFI_STATUS EFIAPI pages_not_low(EFI_ALLOCATE_TYPE how, EFI_MEMORY_TYPE type, UINTN pages,
                                       EFI_PHYSICAL_ADDRESS *at)
{
	if (how == AllocateMaxAddress && *at < MIB)
		return EFI_OUT_OF_RESOURCES;
	return firmware.AllocatePages(how, type, pages, at);
}

static EFI_STATUS EFIAPI count_ghost(struct mp_services *self, UINTN *all, UINTN *enabled)
{
	EFI_STATUS status = firmware_mp.count(self, all, enabled);

	if (!EFI_ERROR(status)) {
		mp_all = *all;
		++*all;
		++*enabled;
	}
	return status;
}

static EFI_STATUS EFIAPI processor_ghost(struct mp_services *self, UINTN index, void *out)
{
	if (index != mp_all)
		return firmware_mp.processor(self, index, out);
	((UINT64 *)out)[0] = GHOST_APIC_ID;
	((UINT32 *)out)[2] = 6; /* enabled, healthy */
	return EFI_SUCCESS;
}

static EFI_STATUS EFIAPI locate_less(EFI_GUID *guid, void *key, void **out)
{
	static const EFI_GUID gop = EFI_GRAPHICS_OUTPUT_PROTOCOL_GUID;
	static const EFI_GUID mp_guid = {
	        0x3fdda605, 0xa76e, 0x4f46, {0xad, 0x29, 0x12, 0xf4, 0x53, 0x1b, 0x3d, 0x08}};

	if ((same(guid, &gop) && has("no-gop")) || (same(guid, &mp_guid) && has("no-mp")))
		return EFI_NOT_FOUND;
	if (same(guid, &mp_guid) && has("ghost") && !mp &&
	    !EFI_ERROR(firmware.LocateProtocol(guid, key, (void **)&mp))) {
		firmware_mp = *mp;
		mp->count = count_ghost;
		mp->processor = processor_ghost;
	}
	return firmware.LocateProtocol(guid, key, out);
}

static void x2apic_on(void)
{
	uint32_t lo, hi;

	__asm__ volatile("rdmsr" : "=a"(lo), "=d"(hi) : "c"(MSR_APIC_BASE));
	__asm__ volatile("wrmsr" : : "a"(lo | 0xc00), "d"(hi), "c"(MSR_APIC_BASE));
}

static EFI_FILE *folder_open(EFI_HANDLE device)
{
	EFI_GUID fs_guid = EFI_SIMPLE_FILE_SYSTEM_PROTOCOL_GUID;
	EFI_FILE_IO_INTERFACE *fs;
	EFI_FILE *root, *folder;

	if (EFI_ERROR(bs->HandleProtocol(device, &fs_guid, (void **)&fs)) ||
	    EFI_ERROR(fs->OpenVolume(fs, &root)) ||
	    EFI_ERROR(root->Open(root, &folder, (CHAR16 *)u"\\EFI\\BOOT", EFI_FILE_MODE_READ, 0)))
		return NULL;
	return folder;
}

/* The path of QUELL.EFI: that of this image with another name at its end. */
static EFI_DEVICE_PATH *quell_path(EFI_HANDLE device)
{
	static const CHAR16 name[] = u"\\EFI\\BOOT\\QUELL.EFI";
	EFI_GUID guid = EFI_DEVICE_PATH_PROTOCOL_GUID;
	static uint8_t out[1024];
	const uint8_t *disk, *node;
	UINTN at = 0, len;

	if (EFI_ERROR(bs->HandleProtocol(device, &guid, (void **)&disk)))
		return NULL;
	for (node = disk; node[0] != END_DEVICE_PATH_TYPE; node += len) {
		len = node[2] | (UINTN)node[3] << 8;
		if (len < 4 || at + len + sizeof(name) + 8 > sizeof(out))
			return NULL;
		for (UINTN i = 0; i < len; i++)
			out[at++] = node[i];
	}
	out[at++] = MEDIA_DEVICE_PATH;
	out[at++] = MEDIA_FILEPATH_DP;
	out[at++] = sizeof(name) + 4;
	out[at++] = 0;
	for (UINTN i = 0; i < sizeof(name); i++)
		out[at++] = ((const uint8_t *)name)[i];
	out[at++] = END_DEVICE_PATH_TYPE;
	out[at++] = 0xff;
	out[at++] = 4;
	out[at++] = 0;
	return (EFI_DEVICE_PATH *)out;
}

EFI_STATUS efi_main(EFI_HANDLE image, EFI_SYSTEM_TABLE *st)
{
	EFI_GUID image_guid = EFI_LOADED_IMAGE_PROTOCOL_GUID;
	UINTN size = sizeof(faults.text) - 1;
	EFI_LOADED_IMAGE *loaded;
	EFI_FILE *folder, *file;
	EFI_HANDLE quell;

	bs = st->BootServices;
	if (EFI_ERROR(bs->HandleProtocol(image, &image_guid, (void **)&loaded)))
		return EFI_LOAD_ERROR;
	folder = folder_open(loaded->DeviceHandle);
	if (!folder ||
	    EFI_ERROR(
	            folder->Open(folder, &file, (CHAR16 *)u"FAULTS.TXT", EFI_FILE_MODE_READ, 0)) ||
	    EFI_ERROR(file->Read(file, &size, faults.text)) ||
	    EFI_ERROR(
	            bs->LoadImage(FALSE, image, quell_path(loaded->DeviceHandle), NULL, 0, &quell)))
		return EFI_LOAD_ERROR;
	firmware = *bs;
	stale_left = has("stale-key") ? STALE_TRIES : 0;
	bs->ExitBootServices = exit_stale;
	bs->GetMemoryMap = map_bent;
	bs->LocateProtocol = locate_less;
	if (has("no-low-page") || has("low-reserved"))
		bs->AllocatePages = pages_not_low;
	if (has("no-acpi"))
		st->NumberOfTableEntries = 0;
	if (has("x2apic"))
		x2apic_on();
	return bs->StartImage(quell, NULL, NULL);
}
