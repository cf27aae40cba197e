/*
 * The UEFI application: learn what the firmware knows, read what the manifest names, leave boot
 * services, hand over. An error ends here, before anything of the machine has been changed.
 */
#include "boot/boot.h"
#include "arch/platform.h"
#include "arch/x86/arch.h"

static struct boot_info info = {.magic = BOOT_INFO_MAGIC};

/* Called by gnu-efi's start code, in the C calling convention. */
EFI_STATUS efi_main(EFI_HANDLE image, EFI_SYSTEM_TABLE *st);

EFI_STATUS efi_main(EFI_HANDLE image, EFI_SYSTEM_TABLE *st)
{
	struct boot boot = {.image = image, .st = st, .bs = st->BootServices, .info = &info};

	say_init(&boot);
	boot.bs->SetWatchdogTimer(0, 0, 0, NULL);
	if (!files_open(&boot) || !files_load(&boot) || !machine_survey(&boot))
		return say_and_stop(&boot);
	if (!memmap_leave(&boot)) {
		log_init(); /* the firmware's console may be gone */
		plat_panic("firmware refuses to end boot services: update it");
	}
	arch_start(&info);
}
