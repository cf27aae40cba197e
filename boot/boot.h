/*
 * boot.h: the parts of the UEFI application, which runs on the firmware's services and ends with
 * arch_start. Everything here runs on the boot processor.
 */
#ifndef QUELL_BOOT_BOOT_H
#define QUELL_BOOT_BOOT_H

#include <efi.h>

#include "arch/types.h"
#include "boot/boot_info.h"
#include "vmm/manifest.h"

struct boot {
	EFI_HANDLE image;
	EFI_SYSTEM_TABLE *st;
	EFI_BOOT_SERVICES *bs;
	EFI_LOADED_IMAGE *loaded;
	EFI_FILE *dir;          /* directory of the .efi */
	struct boot_info *info; /* lives in the image: kept */
};

/* Where the firmware's console and COM1 hear from us. */
void say_init(const struct boot *boot);
void say(const char *fmt, ...) PRINTF(1, 2);
/* Text as it is, without prefix or line end: progress. */
void say_raw(const char *text);
/* Says how it ended and stops: QEMU and Bochs exit, a person presses a key. Then returns to
 * firmware. */
EFI_STATUS say_and_stop(const struct boot *boot);

/* Pages that stay ours, marked BOOT_MEM_KEEP later; below_bytes 0: anywhere. 0: none. */
hpa_t boot_alloc(const struct boot *boot, uint64_t len_bytes, uint64_t below_bytes);

/* Opens the directory the .efi was started from. False: said why. */
bool files_open(struct boot *boot);
/* Reads the manifest and every file it names into info->files. False: said why. */
bool files_load(struct boot *boot);

/* Processors, RSDP, framebuffer, clock, arena, trampoline page. False: said why. */
bool machine_survey(struct boot *boot);

/* Leaves boot services and fills info->mem. Nothing of the firmware may be called after, whatever
 * it returns. False: the firmware would not let go. */
bool memmap_leave(struct boot *boot);

#endif
