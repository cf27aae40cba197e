/* platform.h on hardware, but for memory, log, strings and waiting, which have files of their own. */
#include "arch/platform.h"
#include "arch/x86/arch.h"
#include "arch/x86/core.h"
#include "arch/x86/cpu.h"
#include "arch/x86/paging.h"
#include "arch/x86/percore.h"

#define MSI_ADDRESS 0xfee00000ull /* SDM 3A 11.11.1 */

uint32_t plat_mmio_read32(const volatile void *reg)
{
	uint32_t v;

	__asm__ volatile("movl %1, %0" : "=r"(v) : "m"(*(const volatile uint32_t *)reg) : "memory");
	return v;
}

uint64_t plat_mmio_read64(const volatile void *reg)
{
	uint64_t v;

	__asm__ volatile("movq %1, %0" : "=r"(v) : "m"(*(const volatile uint64_t *)reg) : "memory");
	return v;
}

void plat_mmio_write32(volatile void *reg, uint32_t value)
{
	__asm__ volatile("movl %1, %0" : "=m"(*(volatile uint32_t *)reg) : "r"(value) : "memory");
}

void plat_mmio_write64(volatile void *reg, uint64_t value)
{
	__asm__ volatile("movq %1, %0" : "=m"(*(volatile uint64_t *)reg) : "r"(value) : "memory");
}

volatile void *plat_mmio_map(hpa_t base_hpa, uint64_t len_bytes)
{
	if (!base_hpa || paging_map(base_hpa, len_bytes, MAP_UC))
		return NULL;
	return (volatile void *)base_hpa;
}

uint32_t plat_io_read(uint16_t port, unsigned width_bytes)
{
	switch (width_bytes) {
	case 1: return cpu_in8(port);
	case 2: return cpu_in16(port);
	default: return cpu_in32(port);
	}
}

void plat_io_write(uint16_t port, unsigned width_bytes, uint32_t value)
{
	switch (width_bytes) {
	case 1: cpu_out8(port, (uint8_t)value); break;
	case 2: cpu_out16(port, (uint16_t)value); break;
	default: cpu_out32(port, value); break;
	}
}

uint64_t plat_tsc(void)
{
	return cpu_tsc();
}

void plat_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t out[4])
{
	struct cpu_regs r = cpu_id(leaf, subleaf);

	out[0] = r.eax;
	out[1] = r.ebx;
	out[2] = r.ecx;
	out[3] = r.edx;
}

unsigned plat_core(void)
{
	return percore_self()->core;
}

void plat_relax(void)
{
	cpu_relax();
}

void plat_irq_take(void)
{
	core_irq_window();
}

int plat_msi(unsigned core, uint64_t *address, uint32_t *data)
{
	uint32_t id;

	/* Without interrupt remapping a message carries eight bits of APIC id. */
	if (core >= core_count())
		return -EINVAL;
	id = arch_boot_info()->cpu_apic_id[core];
	if (id > 0xfe)
		return -EOPNOTSUPP;
	*address = MSI_ADDRESS | (uint64_t)id << 12;
	*data = CORE_VECTOR_DEVICE;
	return 0;
}

void core_irq_disable(void)
{
	cpu_irq_off();
}

void core_irq_enable(void)
{
	cpu_irq_on();
}

void core_irq_window(void)
{
	__asm__ volatile("sti; nop; cli" : : : "memory");
}

unsigned core_count(void)
{
	const struct boot_info *info = arch_boot_info();

	return info ? info->cpu_count : 0;
}

bool core_online(unsigned core)
{
	const struct percore *pc = percore_of(core);

	return pc && atomic_load(&pc->online);
}
