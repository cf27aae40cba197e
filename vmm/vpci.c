#include "vmm/vpci.h"

#include "arch/platform.h"

#define CONFIG_ADDRESS 0xcf8u
#define CONFIG_DATA    0xcfcu

#define ADDRESS_ENABLE   BIT(31)
#define ADDRESS_FUNCTION 0x0fff0700u /* bus, function, and extended register: all must be 0 */
#define ADDRESS_SLOT(a)  (((a) >> 11) & 31)
#define ADDRESS_REG(a)   ((a)&0xfc)

/* Type 0 header (PCI Local Bus 3.0 section 6.1). */
#define REG_COMMAND    0x04u
#define REG_STATUS     0x06u
#define REG_CLASS_REV  0x08u
#define REG_CACHE_LINE 0x0cu
#define REG_BAR0       0x10u
#define REG_BAR_END    0x28u
#define REG_SUBSYSTEM  0x2cu
#define REG_CAP        0x34u
#define REG_INT_LINE   0x3cu
#define REG_CAP_FIRST  0x40u

#define COMMAND_MEMORY   0x0002u
#define COMMAND_WRITABLE 0x0406u /* memory, bus master, INTx disable */
#define STATUS_CAP_LIST  0x0010u

#define BAR_64BIT     0x4u
#define BAR_FLAG_MASK 0xfu

#define BRIDGE_VENDOR    0x8086
#define BRIDGE_DEVICE    0x1237
#define BRIDGE_CLASS_REV 0x06000002u

static uint32_t get(const struct vpci_dev *dev, unsigned offset, unsigned width_bytes)
{
	uint32_t value = 0;

	for (unsigned i = 0; i < width_bytes; i++)
		value |= (uint32_t)dev->config[(offset + i) & 0xff] << (8 * i);
	return value;
}

static void put(struct vpci_dev *dev, unsigned offset, unsigned width_bytes, uint32_t value)
{
	for (unsigned i = 0; i < width_bytes; i++)
		dev->config[(offset + i) & 0xff] = (uint8_t)(value >> (8 * i));
}

/* --- BARs --------------------------------------------------------------------------------- */

/* Address bits that a BAR's register, or its upper half, keeps when written. */
static uint32_t bar_mask(const struct vpci_dev *dev, unsigned index)
{
	const struct vpci_bar *bar = &dev->bar[index];

	if (bar->len_bytes)
		return (uint32_t) ~(bar->len_bytes - 1) & ~BAR_FLAG_MASK;
	if (index && dev->bar[index - 1].len_bytes && dev->bar[index - 1].is_64bit)
		return (uint32_t)(~(dev->bar[index - 1].len_bytes - 1) >> 32);
	return 0;
}

/* Where each BAR decodes now. Only inside the window, where nested paging makes accesses exit. */
static void bars_update(struct vpci_dev *dev)
{
	bool enabled = get(dev, REG_COMMAND, 2) & COMMAND_MEMORY;

	for (unsigned i = 0; i < VPCI_BAR_MAX; i++) {
		struct vpci_bar *bar = &dev->bar[i];
		gpa_t gpa = get(dev, REG_BAR0 + 4 * i, 4) & ~BAR_FLAG_MASK;

		if (!bar->len_bytes)
			continue;
		if (bar->is_64bit)
			gpa |= (gpa_t)get(dev, REG_BAR0 + 4 * i + 4, 4) << 32;
		if (!enabled || gpa < VPCI_MMIO_BASE_GPA ||
		    gpa - VPCI_MMIO_BASE_GPA >= VPCI_MMIO_LEN ||
		    VPCI_MMIO_LEN - (gpa - VPCI_MMIO_BASE_GPA) < bar->len_bytes)
			gpa = 0;
		bar->base_gpa = gpa;
	}
}

static bool bar_valid(const struct vpci_dev *dev, unsigned index)
{
	const struct vpci_bar *bar = &dev->bar[index];

	if (!bar->len_bytes)
		return true;
	if (bar->len_bytes < PAGE_SIZE || (bar->len_bytes & (bar->len_bytes - 1)))
		return false;
	return !bar->is_64bit || (index + 1 < VPCI_BAR_MAX && !dev->bar[index + 1].len_bytes);
}

/* Chooses an address for a BAR: the next in the window that suits its size. */
static int bar_place(struct vpci *bus, struct vpci_dev *dev, unsigned index)
{
	const struct vpci_bar *bar = &dev->bar[index];
	gpa_t gpa = ALIGN_UP(bus->next_bar_gpa, bar->len_bytes);

	if (gpa < bus->next_bar_gpa || gpa - VPCI_MMIO_BASE_GPA >= VPCI_MMIO_LEN ||
	    VPCI_MMIO_LEN - (gpa - VPCI_MMIO_BASE_GPA) < bar->len_bytes)
		return -ENOSPC;
	bus->next_bar_gpa = gpa + bar->len_bytes;
	put(dev, REG_BAR0 + 4 * index, 4, (uint32_t)gpa | (bar->is_64bit ? BAR_64BIT : 0));
	return 0;
}

/* --- devices ------------------------------------------------------------------------------ */

void vpci_dev_init(struct vpci_dev *dev, const struct vpci_dev_ops *ops, uint16_t vendor,
                   uint16_t device, uint32_t class_rev, uint16_t sub_vendor, uint16_t sub_device)
{
	memset(dev, 0, sizeof(*dev));
	dev->ops = ops;
	put(dev, 0, 4, vendor | (uint32_t)device << 16);
	put(dev, REG_CLASS_REV, 4, class_rev);
	put(dev, REG_SUBSYSTEM, 4, sub_vendor | (uint32_t)sub_device << 16);
	dev->writable[REG_CACHE_LINE] = 0xff;
	dev->writable[REG_INT_LINE] = 0xff;
}

uint8_t vpci_cap_add(struct vpci_dev *dev, uint8_t id, uint8_t len_bytes)
{
	unsigned at = dev->cap_end ? dev->cap_end : REG_CAP_FIRST;
	unsigned link = REG_CAP;

	if (len_bytes < 2 || at + len_bytes > sizeof(dev->config))
		return 0;
	/* Bounded: each capability takes at least four bytes. */
	for (unsigned i = 0; i < sizeof(dev->config) / 4 && dev->config[link]; i++)
		link = dev->config[link] + 1u;
	dev->config[link] = (uint8_t)at;
	dev->config[at] = id;
	dev->config[at + 1] = 0;
	dev->cap_end = (uint16_t)ALIGN_UP(at + len_bytes, 4u);
	put(dev, REG_STATUS, 2, get(dev, REG_STATUS, 2) | STATUS_CAP_LIST);
	return (uint8_t)at;
}

void vpci_init(struct vpci *bus)
{
	memset(bus, 0, sizeof(*bus));
	bus->next_bar_gpa = VPCI_MMIO_BASE_GPA;
	vpci_dev_init(&bus->host_bridge, NULL, BRIDGE_VENDOR, BRIDGE_DEVICE, BRIDGE_CLASS_REV, 0,
	              0);
	bus->slot[0] = &bus->host_bridge;
}

int vpci_add(struct vpci *bus, struct vpci_dev *dev)
{
	unsigned slot = 1;

	while (slot < VPCI_SLOT_MAX && bus->slot[slot])
		slot++;
	if (slot == VPCI_SLOT_MAX)
		return -ENOSPC;
	for (unsigned i = 0; i < VPCI_BAR_MAX; i++) {
		if (!bar_valid(dev, i))
			return -EINVAL;
		if (dev->bar[i].len_bytes && bar_place(bus, dev, i))
			return -ENOSPC;
	}
	dev->slot = (uint8_t)slot;
	bus->slot[slot] = dev;
	put(dev, REG_COMMAND, 2, get(dev, REG_COMMAND, 2) | COMMAND_MEMORY);
	bars_update(dev);
	return 0;
}

struct vpci_dev *vpci_find(struct vpci *bus, gpa_t gpa, unsigned *bar, uint64_t *offset)
{
	for (unsigned slot = 0; slot < VPCI_SLOT_MAX; slot++) {
		struct vpci_dev *dev = bus->slot[slot];

		for (unsigned i = 0; dev && i < VPCI_BAR_MAX; i++) {
			gpa_t base_gpa = dev->bar[i].base_gpa;

			if (!base_gpa || gpa < base_gpa || gpa - base_gpa >= dev->bar[i].len_bytes)
				continue;
			*bar = i;
			*offset = gpa - base_gpa;
			return dev;
		}
	}
	return NULL;
}

/* --- configuration space ------------------------------------------------------------------ */

/* Bits of one configuration byte that the guest may change. */
static uint8_t writable_bits(const struct vpci_dev *dev, unsigned offset)
{
	if (offset == REG_COMMAND || offset == REG_COMMAND + 1)
		return (uint8_t)(COMMAND_WRITABLE >> (8 * (offset - REG_COMMAND)));
	if (offset >= REG_BAR0 && offset < REG_BAR_END)
		return (uint8_t)(bar_mask(dev, (offset - REG_BAR0) / 4) >> (8 * (offset % 4)));
	return dev->writable[offset];
}

static bool touches(unsigned offset, unsigned width_bytes, unsigned from, unsigned end)
{
	return offset < end && offset + width_bytes > from;
}

static void config_write(struct vpci_dev *dev, unsigned offset, unsigned width_bytes,
                         uint32_t value)
{
	for (unsigned i = 0; i < width_bytes; i++) {
		uint8_t mask = writable_bits(dev, offset + i);
		uint8_t *byte = &dev->config[offset + i];

		*byte = (uint8_t)((*byte & ~mask) | ((value >> (8 * i)) & mask));
	}
	if (touches(offset, width_bytes, REG_COMMAND, REG_STATUS) ||
	    touches(offset, width_bytes, REG_BAR0, REG_BAR_END))
		bars_update(dev);
	if (dev->ops && dev->ops->config_written)
		dev->ops->config_written(dev, offset, width_bytes);
}

static uint32_t config_read(struct vpci_dev *dev, unsigned offset, unsigned width_bytes)
{
	if (dev->ops && dev->ops->config_reading)
		dev->ops->config_reading(dev, offset, width_bytes);
	return get(dev, offset, width_bytes);
}

/* The device that the address register names, or NULL. */
static struct vpci_dev *selected(struct vpci *bus)
{
	if (!(bus->address & ADDRESS_ENABLE) || (bus->address & ADDRESS_FUNCTION))
		return NULL;
	return bus->slot[ADDRESS_SLOT(bus->address)];
}

static bool is_data(uint16_t port, unsigned width_bytes)
{
	return port >= CONFIG_DATA && port + width_bytes <= CONFIG_DATA + 4;
}

static uint32_t all_ones(unsigned width_bytes)
{
	return width_bytes >= 4 ? UINT32_MAX : (1u << (8 * width_bytes)) - 1;
}

uint32_t vpci_io_read(struct vpci *bus, uint16_t port, unsigned width_bytes)
{
	struct vpci_dev *dev;

	if (port >= CONFIG_ADDRESS && port + width_bytes <= CONFIG_DATA)
		return bus->address >> (8 * (port - CONFIG_ADDRESS)) & all_ones(width_bytes);
	if (!is_data(port, width_bytes))
		return all_ones(width_bytes);
	dev = selected(bus);
	if (!dev)
		return all_ones(width_bytes);
	return config_read(dev, ADDRESS_REG(bus->address) + port - CONFIG_DATA, width_bytes);
}

void vpci_io_write(struct vpci *bus, uint16_t port, unsigned width_bytes, uint32_t value)
{
	struct vpci_dev *dev;

	/* Only a dword write reaches the address register (PCI Local Bus 3.0 3.2.2.3.2). */
	if (port == CONFIG_ADDRESS && width_bytes == 4)
		bus->address = value & ~3u;
	if (!is_data(port, width_bytes))
		return;
	dev = selected(bus);
	if (dev)
		config_write(dev, ADDRESS_REG(bus->address) + port - CONFIG_DATA, width_bytes,
		             value);
}
