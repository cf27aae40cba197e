/*
 * vpci.h: a guest's PCI bus: one segment, bus 0, host bridge at slot 0, configuration mechanism 1
 * (0xCF8, 0xCFC; byte, word and dword). Devices register themselves at start-up. Config and BAR
 * accesses come from vCPU cores under the guest's device lock.
 */
#ifndef QUELL_VMM_VPCI_H
#define QUELL_VMM_VPCI_H

#include "arch/types.h"

#define VPCI_SLOT_MAX 32
#define VPCI_BAR_MAX  6

/* The guest's PCI memory window, [base, base + len). Whole gigabyte below the APICs, so the
 * nested page tables make all of it fault cheaply once and BARs may move freely inside. */
#define VPCI_MMIO_BASE_GPA 0xc0000000ull
#define VPCI_MMIO_LEN      0x3ec00000ull /* up to the I/O APIC at 0xfec00000 */

struct vpci_dev;

struct vpci_dev_ops {
	/* Offset within BAR, naturally aligned, width 1, 2, 4 or 8; never crosses the BAR's end. */
	uint64_t (*bar_read)(struct vpci_dev *dev, unsigned bar, uint64_t offset,
	                     unsigned width_bytes);
	void (*bar_write)(struct vpci_dev *dev, unsigned bar, uint64_t offset, unsigned width_bytes,
	                  uint64_t value);
	/* After the guest changed configuration bytes [offset, offset + width). May be NULL. */
	void (*config_written)(struct vpci_dev *dev, unsigned offset, unsigned width_bytes);
	/* Before the guest reads configuration bytes: brings window registers (virtio's PCI_CFG
	 * capability) up to date. May be NULL. */
	void (*config_reading)(struct vpci_dev *dev, unsigned offset, unsigned width_bytes);
};

struct vpci_bar {
	uint64_t len_bytes; /* power of two >= 4096; 0: none */
	gpa_t base_gpa;     /* where it decodes now; 0: not decoding */
	bool is_64bit;      /* takes the next BAR's register too */
};

struct vpci_dev {
	const struct vpci_dev_ops *ops;
	uint8_t slot;
	uint8_t config[256];
	uint8_t writable[256]; /* bits the guest may change; BARs and command are vpci's */
	struct vpci_bar bar[VPCI_BAR_MAX];
	uint16_t cap_end; /* vpci's: where the next capability goes, 0: none yet */
};

struct vpci {
	uint32_t address; /* last 0xCF8 */
	struct vpci_dev host_bridge;
	struct vpci_dev *slot[VPCI_SLOT_MAX];
	gpa_t next_bar_gpa;
};

/* A bus with its host bridge. */
void vpci_init(struct vpci *bus);

/* Puts dev in the next free slot and gives its BARs addresses, memory decoding on. dev->config has
 * ids, class, capabilities; dev->bar has sizes. -ENOSPC; -EINVAL: a BAR's size. */
int vpci_add(struct vpci *bus, struct vpci_dev *dev);

/* Fills a type 0 header. */
void vpci_dev_init(struct vpci_dev *dev, const struct vpci_dev_ops *ops, uint16_t vendor,
                   uint16_t device, uint32_t class_rev, uint16_t sub_vendor, uint16_t sub_device);

/* Appends a capability of len_bytes; returns its offset, 0: no room. */
uint8_t vpci_cap_add(struct vpci_dev *dev, uint8_t id, uint8_t len_bytes);

/* Ports 0xcf8 to 0xcff. */
uint32_t vpci_io_read(struct vpci *bus, uint16_t port, unsigned width_bytes);
void vpci_io_write(struct vpci *bus, uint16_t port, unsigned width_bytes, uint32_t value);

/* The device and BAR that decode gpa, or NULL. */
struct vpci_dev *vpci_find(struct vpci *bus, gpa_t gpa, unsigned *bar, uint64_t *offset);

#endif
