/*
 * pci.h: the host's PCI functions, by configuration mechanism 1 (PCI 3.0 3.2.2.3.2). The firmware
 * has numbered the buses and assigned the BARs; both are used as found. Boot core, or one core at
 * a time: an address and its data are two ports.
 */
#ifndef QUELL_DRIVERS_PCI_H
#define QUELL_DRIVERS_PCI_H

#include "arch/types.h"

#define PCI_CLASS_NVME 0x010802u /* mass storage, non-volatile memory, NVMe I/O controller */

#define PCI_CAP_MSIX 0x11u

struct pci_dev {
	uint8_t bus, slot, fn;
	uint16_t vendor, device;
};

struct pci_msix {
	struct pci_dev pci;
	uint8_t cap; /* configuration offset of the capability */
	uint32_t vector_count;
	volatile uint8_t *table;
};

/* Configuration space; offset below 256, aligned to the width. All ones: no such function. */
uint32_t pci_read32(const struct pci_dev *pci, uint8_t offset);
uint16_t pci_read16(const struct pci_dev *pci, uint8_t offset);
uint8_t pci_read8(const struct pci_dev *pci, uint8_t offset);
void pci_write32(const struct pci_dev *pci, uint8_t offset, uint32_t value);
void pci_write16(const struct pci_dev *pci, uint8_t offset, uint16_t value);

/*
 * Fills out, in bus, slot, function order, with the functions of a class (base, sub, interface in
 * the low three bytes); returns how many there are, which may be more than max. Walks bus 0, every
 * bus behind a bridge, and every root bus that has a device 0.
 */
unsigned pci_find_class(uint32_t class_code, struct pci_dev *out, unsigned max);

/* Memory decoding and bus mastering on, INTx off. Clears latched error bits. */
void pci_enable(const struct pci_dev *pci);

/* Bus mastering off: the function can no longer reach memory. Any core. */
void pci_dma_disable(const struct pci_dev *pci);

/* Base of a memory BAR, 32 or 64 bits; 0: an I/O BAR, not assigned, or no such BAR. */
hpa_t pci_bar_hpa(const struct pci_dev *pci, unsigned bar);

/* Offset of a capability in configuration space (PCI 3.0 6.7), 0: none. */
uint8_t pci_cap_find(const struct pci_dev *pci, uint8_t id);

/*
 * Finds and maps the MSI-X table, masks every vector and enables MSI-X (PCI 3.0 6.8.2).
 * -ENODEV: no capability or a table outside any BAR; -ENOMEM.
 */
int pci_msix_init(const struct pci_dev *pci, struct pci_msix *out);

/* Message of a vector, which stays masked. -EINVAL: no such vector. */
int pci_msix_route(struct pci_msix *msix, uint32_t vector, uint64_t address, uint32_t data);

/* Masks or unmasks a vector below vector_count: one posted write. Any core. */
void pci_msix_mask(struct pci_msix *msix, uint32_t vector, bool mask);

#endif
