/*
 * virtio_pci.h: a virtio-blk disk on a guest's PCI bus (VIRTIO 1.2 4.1): modern only, MSI-X only (a
 * driver that wants INTx must poll; the interrupt pin says so).
 *
 * BAR 0 holds the common configuration, ISR, device configuration and MSI-X; BAR 2 is one page of
 * notify registers and nothing else, queue n at 4 * n, so that an address alone names a queue.
 */
#ifndef QUELL_VIRTIO_VIRTIO_PCI_H
#define QUELL_VIRTIO_VIRTIO_PCI_H

#include "arch/types.h"

struct vblk;
struct vm;

#define VIRTIO_PCI_BAR_REGS   0u
#define VIRTIO_PCI_BAR_NOTIFY 2u

#define VIRTIO_PCI_REGS_BYTES    0x4000u
#define VIRTIO_PCI_COMMON_OFFSET 0x0000u
#define VIRTIO_PCI_ISR_OFFSET    0x1000u
#define VIRTIO_PCI_DEVICE_OFFSET 0x2000u
#define VIRTIO_PCI_MSIX_OFFSET   0x3000u
#define VIRTIO_PCI_PBA_OFFSET    0x3800u
#define VIRTIO_PCI_NOTIFY_SHIFT  2u

/*
 * Puts blk, which vblk_create filled, on the guest's bus as its next disk: vm->disk, vm->kick. Its
 * queues must be in an I/O loop before the guest runs. Boot core. -ENOSPC, -ENOMEM.
 */
int virtio_pci_blk_add(struct vm *vm, struct vblk *blk);

#endif
