/* quell.toml and the files it names, read from the directory the .efi was started from. */
#include "boot/boot.h"
#include "arch/platform.h"
#include "vmm/fmt.h"

#define MANIFEST_NAME      "quell.toml"
#define MANIFEST_MAX_BYTES (1 * MIB)
#define FILE_MAX_BYTES     (512 * MIB)
#define CHUNK_BYTES        (4 * MIB)
#define PATH_CHARS         512u
#define RAM_PREFIX         "ram:"

static struct manifest manifest;
static struct manifest_error error;

/* The directory part of this image's own path; "\" when the firmware does not tell. */
static void image_dir(const struct boot *boot, CHAR16 path[PATH_CHARS])
{
	const EFI_DEVICE_PATH *node = boot->loaded->FilePath;
	UINTN n = 0, last = 0;

	while (node && node->Type != END_DEVICE_PATH_TYPE) {
		UINTN len = node->Length[0] | (UINTN)node->Length[1] << 8;
		const uint8_t *text = (const uint8_t *)(node + 1);

		if (len < sizeof(*node))
			break;
		if (node->Type == MEDIA_DEVICE_PATH && node->SubType == MEDIA_FILEPATH_DP) {
			if (n && path[n - 1] != u'\\' && n < PATH_CHARS - 1)
				path[n++] = u'\\';
			for (UINTN i = 0; i + 1 < len - sizeof(*node) && n < PATH_CHARS - 1;
			     i += 2) {
				CHAR16 c = (CHAR16)(text[i] | text[i + 1] << 8);

				if (!c)
					break;
				path[n++] = c == u'/' ? u'\\' : c;
			}
		}
		node = (const EFI_DEVICE_PATH *)((const uint8_t *)node + len);
	}
	for (UINTN i = 0; i < n; i++)
		if (path[i] == u'\\')
			last = i;
	path[last] = 0;
	if (last == 0) {
		path[0] = u'\\';
		path[1] = 0;
	}
}

bool files_open(struct boot *boot)
{
	EFI_GUID image_guid = EFI_LOADED_IMAGE_PROTOCOL_GUID;
	EFI_GUID fs_guid = EFI_SIMPLE_FILE_SYSTEM_PROTOCOL_GUID;
	static CHAR16 path[PATH_CHARS];
	EFI_FILE_IO_INTERFACE *fs;
	EFI_FILE *root;

	if (EFI_ERROR(boot->bs->HandleProtocol(boot->image, &image_guid, (void **)&boot->loaded))) {
		say("quell: firmware does not describe the loaded image");
		return false;
	}
	boot->info->image_hpa = (hpa_t)boot->loaded->ImageBase;
	boot->info->image_len_bytes = ALIGN_UP(boot->loaded->ImageSize, (uint64_t)PAGE_SIZE);
	if (EFI_ERROR(
	            boot->bs->HandleProtocol(boot->loaded->DeviceHandle, &fs_guid, (void **)&fs)) ||
	    EFI_ERROR(fs->OpenVolume(fs, &root))) {
		say("quell: cannot read the volume the .efi came from: start it from a FAT "
		    "partition");
		return false;
	}
	image_dir(boot, path);
	if (EFI_ERROR(root->Open(root, &boot->dir, path, EFI_FILE_MODE_READ, 0)))
		boot->dir = root;
	return true;
}

/* NULL: no such file here, or a directory. */
static EFI_FILE *file_open(const struct boot *boot, const char *name, uint64_t *len_bytes)
{
	static uint8_t buf[1024] __attribute__((aligned(8)));
	EFI_GUID info_guid = EFI_FILE_INFO_ID;
	EFI_FILE_INFO *info = (EFI_FILE_INFO *)buf;
	CHAR16 wide[BOOT_NAME_MAX];
	UINTN size = sizeof(buf);
	EFI_FILE *file;
	unsigned n = 0;

	for (; name[n] && n < BOOT_NAME_MAX - 1; n++)
		wide[n] = name[n] == '/' ? u'\\' : (CHAR16)(uint8_t)name[n];
	wide[n] = 0;
	if (EFI_ERROR(boot->dir->Open(boot->dir, &file, wide, EFI_FILE_MODE_READ, 0)))
		return NULL;
	if (EFI_ERROR(file->GetInfo(file, &info_guid, &size, buf)) ||
	    (info->Attribute & EFI_FILE_DIRECTORY)) {
		file->Close(file);
		return NULL;
	}
	*len_bytes = info->FileSize;
	return file;
}

/* Reads it all, a chunk at a time, with a sign of life for each eighth of what takes long. */
static bool file_read(EFI_FILE *file, hpa_t to, uint64_t len_bytes)
{
	uint64_t done = 0;
	unsigned shown = 0;

	while (done < len_bytes) {
		UINTN chunk = MIN(len_bytes - done, CHUNK_BYTES);

		if (EFI_ERROR(file->Read(file, &chunk, (void *)(to + done))) || chunk == 0)
			return false;
		done += chunk;
		for (; len_bytes > CHUNK_BYTES && shown < done * 8 / len_bytes; shown++)
			say_raw(".");
	}
	return true;
}

/* Why a file could not be loaded; NULL: it is in info->files. */
static const char *load(struct boot *boot, const char *name, uint64_t max_bytes)
{
	struct boot_info *info = boot->info;
	struct boot_file *slot = &info->files[info->file_count];
	static char why[MANIFEST_ERR_MAX];
	uint64_t len = 0;
	EFI_FILE *file;
	bool ok;

	for (uint32_t i = 0; i < info->file_count; i++)
		if (!strcmp(info->files[i].name, name))
			return NULL;
	if (info->file_count == BOOT_FILE_MAX)
		return "too many files: name fewer different ones";
	file = file_open(boot, name, &len);
	if (!file) {
		fmt_snprintf(
		        why, sizeof(why),
		        "file \"%s\" not found beside the .efi: copy it there or correct the name",
		        name);
		return why;
	}
	if (len > max_bytes) {
		file->Close(file);
		fmt_snprintf(why, sizeof(why),
		             "file \"%s\" has %llu MiB: at most %llu MiB can be loaded", name,
		             (unsigned long long)((len + MIB - 1) / MIB),
		             (unsigned long long)(max_bytes / MIB));
		return why;
	}
	slot->base_hpa = boot_alloc(boot, len + 1, 0);
	if (!slot->base_hpa) {
		file->Close(file);
		fmt_snprintf(why, sizeof(why),
		             "file \"%s\": no %llu MiB of free memory in one piece", name,
		             (unsigned long long)(len / MIB + 1));
		return why;
	}
	if (len > CHUNK_BYTES) {
		char text[BOOT_NAME_MAX + 48];

		fmt_snprintf(text, sizeof(text), "quell: loading %s, %llu MiB ", name,
		             (unsigned long long)(len / MIB));
		say_raw(text);
	}
	ok = file_read(file, slot->base_hpa, len);
	if (len > CHUNK_BYTES)
		say_raw("\r\n");
	file->Close(file);
	if (!ok) {
		fmt_snprintf(why, sizeof(why),
		             "file \"%s\" cannot be read to its end: check the medium", name);
		return why;
	}
	((char *)slot->base_hpa)[len] = 0;
	fmt_snprintf(slot->name, sizeof(slot->name), "%s", name);
	slot->len_bytes = len;
	info->file_count++;
	return NULL;
}

static bool complain(struct manifest_pos pos, const char *text)
{
	say(MANIFEST_NAME ":%u:%u: %s", pos.line, pos.col, text);
	return false;
}

/* All of a guest's missing files are named, not only the first. */
static bool load_guest(struct boot *boot, const struct manifest_guest *guest)
{
	const char *why = load(boot, guest->kernel, FILE_MAX_BYTES);
	bool ok = true;

	if (why)
		ok = complain(guest->kernel_pos, why);
	why = guest->initrd[0] ? load(boot, guest->initrd, FILE_MAX_BYTES) : NULL;
	if (why)
		ok = complain(guest->initrd_pos, why);
	for (uint32_t i = 0; i < guest->disk_count; i++) {
		const struct manifest_disk *disk = &guest->disk[i];

		if (strncmp(disk->source, RAM_PREFIX, strlen(RAM_PREFIX)))
			continue;
		why = load(boot, disk->source + strlen(RAM_PREFIX), FILE_MAX_BYTES);
		if (why)
			ok = complain(disk->source_pos, why);
	}
	return ok;
}

bool files_load(struct boot *boot)
{
	const char *why = load(boot, MANIFEST_NAME, MANIFEST_MAX_BYTES);
	bool ok = true;

	if (why)
		return complain((struct manifest_pos){1, 1}, why);
	if (manifest_parse((const char *)boot->info->files[0].base_hpa,
	                   boot->info->files[0].len_bytes, &manifest, &error))
		return complain(error.pos, error.text);
	for (uint32_t i = 0; i < manifest.guest_count; i++)
		ok = load_guest(boot, &manifest.guest[i]) && ok;
	return ok;
}
