#include "drivers/pci.h"
#include "arch/platform.h"

#define PORT_ADDRESS 0xcf8
#define PORT_DATA    0xcfc

#define REG_ID        0x00
#define REG_COMMAND   0x04
#define REG_STATUS    0x06
#define REG_CLASS     0x08
#define REG_HEADER    0x0e
#define REG_BAR0      0x10
#define REG_SECONDARY 0x19
#define REG_CAP       0x34

#define COMMAND_MEMORY       BIT(1)
#define COMMAND_MASTER       BIT(2)
#define COMMAND_INTX_DISABLE BIT(10)
#define STATUS_CAP_LIST      BIT(4)
#define STATUS_ERRORS        0xf900u /* write one to clear */

#define HEADER_TYPE      0x7f
#define HEADER_MULTI     0x80
#define HEADER_BRIDGE    0x01
#define CLASS_PCI_BRIDGE 0x0604u /* base and sub class */

#define BAR_IO   BIT(0)
#define BAR_TYPE 0x6u
#define BAR_64   0x4u
#define BAR_MASK 0xfu

#define CAP_FIRST 0x40
#define CAP_MAX   48 /* (256 - 64) / 4: more means a loop */

#define MSIX_CONTROL    2
#define MSIX_TABLE      4
#define MSIX_ENABLE     BIT(15)
#define MSIX_MASK_ALL   BIT(14)
#define MSIX_COUNT_MASK 0x7ffu
#define MSIX_BIR_MASK   0x7u
#define MSIX_ENTRY      16u
#define MSIX_ENTRY_MASK 12u /* vector control: bit 0 */

static void select_reg(const struct pci_dev *pci, uint8_t offset)
{
	plat_io_write(PORT_ADDRESS, 4,
	              (uint32_t)BIT(31) | (uint32_t)pci->bus << 16 |
	                      (uint32_t)(pci->slot & 31) << 11 | (uint32_t)(pci->fn & 7) << 8 |
	                      (offset & 0xfcu));
}

uint32_t pci_read32(const struct pci_dev *pci, uint8_t offset)
{
	select_reg(pci, offset);
	return plat_io_read(PORT_DATA, 4);
}

uint16_t pci_read16(const struct pci_dev *pci, uint8_t offset)
{
	return (uint16_t)(pci_read32(pci, offset) >> (offset & 2) * 8);
}

uint8_t pci_read8(const struct pci_dev *pci, uint8_t offset)
{
	return (uint8_t)(pci_read32(pci, offset) >> (offset & 3) * 8);
}

void pci_write32(const struct pci_dev *pci, uint8_t offset, uint32_t value)
{
	select_reg(pci, offset);
	plat_io_write(PORT_DATA, 4, value);
}

/* A true 16-bit write: a wider one would write the neighbour's write-one-to-clear bits back. */
void pci_write16(const struct pci_dev *pci, uint8_t offset, uint16_t value)
{
	select_reg(pci, offset);
	plat_io_write(PORT_DATA + (offset & 2), 2, value);
}

/* Buses that a bridge, or their own device 0, shows to exist. */
struct bus_set {
	uint64_t bits[4];
};

static bool bus_has(const struct bus_set *set, unsigned bus)
{
	return set->bits[bus / 64] & BIT(bus % 64);
}

struct finding {
	uint32_t class_code;
	struct pci_dev *out;
	unsigned max, count;
	struct bus_set buses;
};

static void visit_function(struct finding *f, struct pci_dev *pci)
{
	uint32_t class_code = pci_read32(pci, REG_CLASS) >> 8;

	if (class_code == f->class_code) {
		if (f->count < f->max)
			f->out[f->count] = *pci;
		f->count++;
	}
	if (class_code >> 8 == CLASS_PCI_BRIDGE &&
	    (pci_read8(pci, REG_HEADER) & HEADER_TYPE) == HEADER_BRIDGE) {
		unsigned bus = pci_read8(pci, REG_SECONDARY);

		f->buses.bits[bus / 64] |= BIT(bus % 64);
	}
}

static bool function_exists(struct pci_dev *pci)
{
	uint32_t id = pci_read32(pci, REG_ID);

	pci->vendor = (uint16_t)id;
	pci->device = (uint16_t)(id >> 16);
	return pci->vendor != 0xffff && pci->vendor != 0;
}

static void visit_bus(struct finding *f, unsigned bus)
{
	for (unsigned slot = 0; slot < 32; slot++) {
		unsigned fn_count = 1;

		for (unsigned fn = 0; fn < fn_count; fn++) {
			struct pci_dev pci = {
			        .bus = (uint8_t)bus, .slot = (uint8_t)slot, .fn = (uint8_t)fn};

			if (!function_exists(&pci)) {
				if (fn == 0)
					break;
				continue;
			}
			if (fn == 0 && pci_read8(&pci, REG_HEADER) & HEADER_MULTI)
				fn_count = 8;
			visit_function(f, &pci);
		}
	}
}

/*
 * Firmware numbers a bus behind a bridge higher than the bridge's own, so one ascending pass sees
 * every bridge before its bus, visits each bus once, and cannot loop.
 */
unsigned pci_find_class(uint32_t class_code, struct pci_dev *out, unsigned max)
{
	struct finding f = {.class_code = class_code, .out = out, .max = max};

	for (unsigned bus = 0; bus < 256; bus++) {
		struct pci_dev root = {.bus = (uint8_t)bus};

		if (bus == 0 || bus_has(&f.buses, bus) || function_exists(&root))
			visit_bus(&f, bus);
	}
	return f.count;
}

void pci_enable(const struct pci_dev *pci)
{
	uint16_t command = pci_read16(pci, REG_COMMAND);

	command |= COMMAND_MEMORY | COMMAND_MASTER | COMMAND_INTX_DISABLE;
	pci_write16(pci, REG_COMMAND, command);
	pci_write16(pci, REG_STATUS, STATUS_ERRORS);
}

void pci_dma_disable(const struct pci_dev *pci)
{
	uint16_t command = pci_read16(pci, REG_COMMAND);

	pci_write16(pci, REG_COMMAND, command & (uint16_t)~COMMAND_MASTER);
}

hpa_t pci_bar_hpa(const struct pci_dev *pci, unsigned bar)
{
	uint8_t offset = (uint8_t)(REG_BAR0 + bar * 4);
	uint32_t low;
	hpa_t base_hpa;

	if (bar > 5)
		return 0;
	low = pci_read32(pci, offset);
	if (low & BAR_IO || low == UINT32_MAX)
		return 0;
	base_hpa = low & ~BAR_MASK;
	if ((low & BAR_TYPE) == BAR_64) {
		if (bar == 5)
			return 0;
		base_hpa |= (hpa_t)pci_read32(pci, offset + 4) << 32;
	}
	return base_hpa;
}

uint8_t pci_cap_find(const struct pci_dev *pci, uint8_t id)
{
	uint8_t offset;

	if (!(pci_read16(pci, REG_STATUS) & STATUS_CAP_LIST))
		return 0;
	offset = pci_read8(pci, REG_CAP) & 0xfc;
	for (unsigned i = 0; i < CAP_MAX && offset >= CAP_FIRST; i++) {
		uint16_t head = pci_read16(pci, offset);

		if (head == 0xffff)
			return 0;
		if ((head & 0xff) == id)
			return offset;
		offset = head >> 8 & 0xfc;
	}
	return 0;
}

int pci_msix_init(const struct pci_dev *pci, struct pci_msix *out)
{
	uint8_t cap = pci_cap_find(pci, PCI_CAP_MSIX);
	uint32_t table;
	uint16_t control;
	hpa_t base_hpa;

	if (!cap)
		return -ENODEV;
	control = pci_read16(pci, cap + MSIX_CONTROL);
	table = pci_read32(pci, cap + MSIX_TABLE);
	base_hpa = pci_bar_hpa(pci, table & MSIX_BIR_MASK);
	if (!base_hpa)
		return -ENODEV;
	*out = (struct pci_msix){
	        .pci = *pci,
	        .cap = cap,
	        .vector_count = (control & MSIX_COUNT_MASK) + 1u,
	};
	out->table = plat_mmio_map(base_hpa + (table & ~MSIX_BIR_MASK),
	                           (uint64_t)out->vector_count * MSIX_ENTRY);
	if (!out->table)
		return -ENOMEM;
	/* Enabled with everything masked first, so that no stale entry fires. */
	pci_write16(pci, cap + MSIX_CONTROL, control | MSIX_ENABLE | MSIX_MASK_ALL);
	for (uint32_t i = 0; i < out->vector_count; i++)
		pci_msix_mask(out, i, true);
	pci_write16(pci, cap + MSIX_CONTROL, (control | MSIX_ENABLE) & (uint16_t)~MSIX_MASK_ALL);
	return 0;
}

int pci_msix_route(struct pci_msix *msix, uint32_t vector, uint64_t address, uint32_t data)
{
	volatile uint8_t *entry = msix->table + (size_t)vector * MSIX_ENTRY;

	if (vector >= msix->vector_count)
		return -EINVAL;
	pci_msix_mask(msix, vector, true);
	plat_mmio_write32(entry, (uint32_t)address);
	plat_mmio_write32(entry + 4, (uint32_t)(address >> 32));
	plat_mmio_write32(entry + 8, data);
	return 0;
}

void pci_msix_mask(struct pci_msix *msix, uint32_t vector, bool mask)
{
	plat_mmio_write32(msix->table + (size_t)vector * MSIX_ENTRY + MSIX_ENTRY_MASK, mask);
}
