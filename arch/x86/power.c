/* Ends: power-off, and telling an emulator how it went. */
#include "arch/platform.h"
#include "arch/x86/acpi.h"
#include "arch/x86/apic.h"
#include "arch/x86/arch.h"
#include "arch/x86/core.h"
#include "arch/x86/cpu.h"
#include "arch/x86/paging.h"

#define FW_CFG_SELECT       0x510
#define FW_CFG_DATA         0x511
#define DEBUG_EXIT_PORT     0xf4
#define DEBUG_EXIT_OK       0x10 /* QEMU's status is 2 * value + 1: 33 */
#define DEBUG_EXIT_FAILED   0x11 /* 35 */
#define BOCHS_E9_PORT       0xe9
#define BOCHS_SHUTDOWN_PORT 0x8900
#define ACPI_SLP_EN         BIT(13)

/* Of EFI_RUNTIME_SERVICES: UEFI 2.10 4.5. ResetSystem is the eleventh call after the header. */
#define EFI_TABLE_HEADER_BYTES 24u
#define EFI_RESET_SYSTEM_INDEX 10u
#define EFI_RESET_SHUTDOWN     2

typedef void __attribute__((ms_abi))
efi_reset_fn(int type, uint64_t status, uint64_t data_bytes, void *data);

static atomic_bool stopping;

bool core_stopping(void)
{
	return atomic_load(&stopping);
}

bool power_on_qemu(void)
{
	static const char signature[4] = {'Q', 'E', 'M', 'U'};

	if (!(cpu_id(1, 0).ecx & BIT(31)))
		return false;
	cpu_out16(FW_CFG_SELECT, 0);
	for (unsigned i = 0; i < sizeof(signature); i++)
		if (cpu_in8(FW_CFG_DATA) != (uint8_t)signature[i])
			return false;
	return true;
}

bool power_on_bochs(void)
{
	return !(cpu_id(1, 0).ecx & BIT(31)) && cpu_in8(BOCHS_E9_PORT) == BOCHS_E9_PORT;
}

void power_qemu_exit(bool ok)
{
	cpu_out8(DEBUG_EXIT_PORT, ok ? DEBUG_EXIT_OK : DEBUG_EXIT_FAILED);
}

static void bochs_shutdown(void)
{
	for (const char *s = "Shutdown"; *s; s++)
		cpu_out8(BOCHS_SHUTDOWN_PORT, (uint8_t)*s);
}

/* Firmware may keep code and data of a runtime driver in one region, so W^X ends here. */
static void efi_shutdown(const struct boot_info *info)
{
	efi_reset_fn *const *table;

	if (!info->runtime_services_hpa)
		return;
	for (uint32_t i = 0; i < info->mem_count; i++)
		if (info->mem[i].type == BOOT_MEM_RUNTIME &&
		    paging_map(info->mem[i].base_hpa, info->mem[i].len_bytes, MAP_RWX))
			return;
	table = (efi_reset_fn *const *)(info->runtime_services_hpa + EFI_TABLE_HEADER_BYTES);
	table[EFI_RESET_SYSTEM_INDEX](EFI_RESET_SHUTDOWN, 0, 0, NULL);
}

static void acpi_shutdown(const struct boot_info *info)
{
	struct acpi_fixed fixed;

	acpi_fixed(info->rsdp_hpa, &fixed);
	if (fixed.s5_typ_a >= 0 && fixed.pm1a_cnt_port)
		cpu_out16(fixed.pm1a_cnt_port, (uint16_t)(fixed.s5_typ_a << 10 | ACPI_SLP_EN));
	if (fixed.s5_typ_b >= 0 && fixed.pm1b_cnt_port)
		cpu_out16(fixed.pm1b_cnt_port, (uint16_t)(fixed.s5_typ_b << 10 | ACPI_SLP_EN));
}

static void NORETURN end(bool ok, bool keep_screen)
{
	const struct boot_info *info = arch_boot_info();
	bool qemu = power_on_qemu(), bochs = power_on_bochs();

	cpu_irq_off();
	if (atomic_exchange(&stopping, true))
		cpu_halt_forever();
	apic_stop_others();
	log_panic_mode(); /* a stopped core may hold the lock */
	plat_log("halted: %s", ok ? "ok" : "failed");
	log_drain();
	if (qemu)
		power_qemu_exit(ok);
	if (bochs)
		bochs_shutdown();
	if (keep_screen && !qemu)
		cpu_halt_forever();
	if (info) {
		efi_shutdown(info);
		bochs_shutdown();
		acpi_shutdown(info);
	}
	cpu_halt_forever();
}

void core_power_off(bool ok)
{
	end(ok, false);
}

void power_off_after_panic(void)
{
	end(false, true);
}
