/* I/O APICs (82093AA) and the 8259s nobody uses any more. */
#include "arch/platform.h"
#include "arch/x86/acpi.h"
#include "arch/x86/apic.h"
#include "arch/x86/cpu.h"
#include "arch/x86/paging.h"

#define IOAPIC_MAX         16u
#define IOAPIC_DEFAULT_HPA 0xfec00000ull
#define IOAPIC_SELECT      0x00
#define IOAPIC_WINDOW      0x10
#define IOAPIC_REG_VERSION 1u
#define IOAPIC_REG_REDIR   0x10u
#define REDIR_LOW          BIT(13)
#define REDIR_LEVEL        BIT(15)
#define REDIR_MASKED       BIT(16)

#define PIC1_DATA 0x21
#define PIC2_DATA 0xa1

/* MPS INTI flags: ACPI 6.4 table 5.26 */
#define INTI_POLARITY(f) ((f)&3)
#define INTI_TRIGGER(f)  ((f) >> 2 & 3)
#define INTI_LOW         3
#define INTI_LEVEL       3

struct ioapic {
	volatile uint8_t *regs;
	uint32_t gsi_base, inputs;
};

static struct ioapic ioapics[IOAPIC_MAX];
static unsigned ioapic_count;
static hpa_t madt_rsdp;

static uint32_t reg_read(const struct ioapic *io, uint32_t reg)
{
	plat_mmio_write32(io->regs + IOAPIC_SELECT, reg);
	return plat_mmio_read32(io->regs + IOAPIC_WINDOW);
}

static void reg_write(const struct ioapic *io, uint32_t reg, uint32_t value)
{
	plat_mmio_write32(io->regs + IOAPIC_SELECT, reg);
	plat_mmio_write32(io->regs + IOAPIC_WINDOW, value);
}

static void add(const struct acpi_ioapic *found)
{
	struct ioapic *io = &ioapics[ioapic_count];
	uint32_t version;

	io->regs = plat_mmio_map(found->base_hpa, PAGE_SIZE);
	if (!io->regs)
		return;
	version = reg_read(io, IOAPIC_REG_VERSION);
	if (version == 0 || version == UINT32_MAX)
		return;
	io->gsi_base = found->gsi_base;
	io->inputs = (version >> 16 & 0xff) + 1;
	for (uint32_t i = 0; i < io->inputs; i++)
		reg_write(io, IOAPIC_REG_REDIR + 2 * i, REDIR_MASKED);
	ioapic_count++;
}

void ioapic_init(hpa_t rsdp_hpa)
{
	struct acpi_ioapic found[IOAPIC_MAX] = {{IOAPIC_DEFAULT_HPA, 0}};
	unsigned count = acpi_ioapics(rsdp_hpa, found, IOAPIC_MAX);

	madt_rsdp = rsdp_hpa;
	cpu_out8(PIC1_DATA, 0xff);
	cpu_out8(PIC2_DATA, 0xff);
	for (unsigned i = 0; i < MAX(count, 1u); i++)
		add(&found[i]);
}

int ioapic_route_isa(unsigned irq, uint32_t apic_id, uint8_t vector)
{
	uint16_t flags;
	uint32_t gsi = acpi_isa_gsi(madt_rsdp, irq, &flags), low = vector;

	if (apic_id > 0xfe)
		return -EOPNOTSUPP;
	if (INTI_POLARITY(flags) == INTI_LOW)
		low |= REDIR_LOW;
	if (INTI_TRIGGER(flags) == INTI_LEVEL)
		low |= REDIR_LEVEL;
	for (unsigned i = 0; i < ioapic_count; i++) {
		const struct ioapic *io = &ioapics[i];
		uint32_t reg = IOAPIC_REG_REDIR + 2 * (gsi - io->gsi_base);

		if (gsi < io->gsi_base || gsi - io->gsi_base >= io->inputs)
			continue;
		reg_write(io, reg, REDIR_MASKED);
		reg_write(io, reg + 1, apic_id << 24);
		reg_write(io, reg, low);
		return 0;
	}
	return -EOPNOTSUPP;
}
