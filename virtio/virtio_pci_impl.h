/*
 * virtio_pci_impl.h: what virtio_pci.c (bus, capabilities, creation) and virtio_pci_regs.c
 * (registers and device status) share. Nobody else includes it.
 */
#ifndef QUELL_VIRTIO_VIRTIO_PCI_IMPL_H
#define QUELL_VIRTIO_VIRTIO_PCI_IMPL_H

#include "virtio/blk.h"
#include "virtio/msix.h"
#include "virtio/virtio_abi.h"
#include "virtio/virtio_pci.h"
#include "vmm/vm.h"

/* Without the fields of the features VIRTIO_F_NOTIF_CONFIG_DATA and VIRTIO_F_RING_RESET. */
#define VIRTIO_PCI_COMMON_BYTES offsetof(struct virtio_pci_common_cfg, queue_notify_data)

enum virtio_pci_queue {
	QUEUE_OFF,
	QUEUE_ENABLED,   /* by the driver, before DRIVER_OK */
	QUEUE_ATTACHED,  /* the loop was asked to attach it, and always will */
	QUEUE_DETACHING, /* the loop was asked to detach it */
};

struct virtio_pci {
	struct vpci_dev dev;
	struct vblk_transport transport;
	struct vm *vm;
	struct vblk *blk;
	struct vm_kick_page *kick;
	uint8_t msix_cap, cfg_cap; /* offsets of capabilities */

	/* The device lock's. */
	uint8_t status;
	bool resetting; /* 0 was written; the I/O core has not let go of all queues yet */
	uint32_t device_feature_select, driver_feature_select;
	uint64_t driver_features;
	uint16_t queue_select;
	enum virtio_pci_queue queue_state[VBLK_QUEUE_MAX];

	struct ioq *ioq[VBLK_QUEUE_MAX]; /* for the kick path */
	struct msix msix;                /* a source for each queue, the last for configuration */

	/* Any core. */
	CACHE_ALIGN atomic_uint isr;
	atomic_uint needs_reset;
};

/* The interrupt source of the configuration; queues have their own numbers. */
static inline unsigned virtio_pci_config_source(const struct virtio_pci *vp)
{
	return vp->blk->queue_count;
}

/* Power-on state of all that a reset clears. Device lock, no queue attached. */
void virtio_pci_state_clear(struct virtio_pci *vp);

/* Offset within a BAR, naturally aligned; every width and offset is answered, what is no register
 * reads 0 and writes nothing. vCPU cores, device lock. */
uint64_t virtio_pci_bar_read(struct vpci_dev *dev, unsigned bar, uint64_t offset,
                             unsigned width_bytes);
void virtio_pci_bar_write(struct vpci_dev *dev, unsigned bar, uint64_t offset, unsigned width_bytes,
                          uint64_t value);

static inline struct virtio_pci *virtio_pci_of_dev(struct vpci_dev *dev)
{
	return CONTAINER_OF(dev, struct virtio_pci, dev);
}

#endif
