#include "virtio/virtio_pci_impl.h"

#include "arch/platform.h"

#define PCI_CAP_ID_VENDOR 0x09u
#define PCI_CAP_ID_MSIX   0x11u
#define PCI_INTERRUPT_PIN 0x3du
#define PCI_CLASS_REV     0x01800001u /* mass storage, other; revision 1: modern only */

#define MSIX_CONTROL_ENABLE 0x8000u
#define MSIX_CONTROL_MASK   0x4000u

static struct virtio_pci *of_transport(struct vblk_transport *transport)
{
	return CONTAINER_OF(transport, struct virtio_pci, transport);
}

/* --- what the I/O core calls ------------------------------------------------------------------ */

static bool queue_signal(struct vblk_transport *transport, unsigned queue)
{
	struct virtio_pci *vp = of_transport(transport);

	if (likely(msix_signal(&vp->msix, queue)))
		return true;
	atomic_fetch_or(&vp->isr, VIRTIO_ISR_QUEUE);
	return false;
}

/* VIRTIO 1.2 2.1.2: the bit first, then a configuration change notification. */
static void needs_reset(struct vblk_transport *transport)
{
	struct virtio_pci *vp = of_transport(transport);

	if (atomic_exchange(&vp->needs_reset, 1))
		return;
	atomic_fetch_or(&vp->isr, VIRTIO_ISR_CONFIG);
	msix_signal(&vp->msix, virtio_pci_config_source(vp));
}

/* --- configuration space ---------------------------------------------------------------------- */

static bool overlaps(unsigned offset, unsigned width_bytes, unsigned at, unsigned len_bytes)
{
	return offset < at + len_bytes && at < offset + width_bytes;
}

/* The window of the PCI configuration access capability (4.1.4.9). False: it points nowhere. */
static bool window_get(struct virtio_pci *vp, struct virtio_pci_cfg_cap *window)
{
	uint32_t len_bytes;

	memcpy(window, &vp->dev.config[vp->cfg_cap], sizeof(*window));
	len_bytes = window->cap.length;
	if (len_bytes != 1 && len_bytes != 2 && len_bytes != 4)
		return false;
	if (window->cap.bar >= VPCI_BAR_MAX || !IS_ALIGNED(window->cap.offset, len_bytes))
		return false;
	return window->cap.offset < vp->dev.bar[window->cap.bar].len_bytes;
}

static bool is_window_data(const struct virtio_pci *vp, unsigned offset, unsigned width_bytes)
{
	return overlaps(offset, width_bytes,
	                vp->cfg_cap + (unsigned)offsetof(struct virtio_pci_cfg_cap, pci_cfg_data),
	                sizeof(((struct virtio_pci_cfg_cap *)0)->pci_cfg_data));
}

static void config_reading(struct vpci_dev *dev, unsigned offset, unsigned width_bytes)
{
	struct virtio_pci *vp = virtio_pci_of_dev(dev);
	struct virtio_pci_cfg_cap window;
	uint64_t value;

	if (!is_window_data(vp, offset, width_bytes) || !window_get(vp, &window))
		return;
	value = virtio_pci_bar_read(dev, window.cap.bar, window.cap.offset, window.cap.length);
	memcpy(&dev->config[vp->cfg_cap + offsetof(struct virtio_pci_cfg_cap, pci_cfg_data)],
	       &value, window.cap.length);
}

static void config_written(struct vpci_dev *dev, unsigned offset, unsigned width_bytes)
{
	struct virtio_pci *vp = virtio_pci_of_dev(dev);
	struct virtio_pci_cfg_cap window;
	uint64_t value = 0;
	uint16_t control;

	atomic_store_explicit(&vp->kick->gpa, dev->bar[VIRTIO_PCI_BAR_NOTIFY].base_gpa,
	                      memory_order_release);
	memcpy(&control, &dev->config[vp->msix_cap + 2], sizeof(control));
	msix_control_set(&vp->msix, control & MSIX_CONTROL_ENABLE, control & MSIX_CONTROL_MASK);
	if (!is_window_data(vp, offset, width_bytes) || !window_get(vp, &window))
		return;
	memcpy(&value, window.pci_cfg_data, window.cap.length);
	virtio_pci_bar_write(dev, window.cap.bar, window.cap.offset, window.cap.length, value);
}

static const struct vpci_dev_ops dev_ops = {
        .bar_read = virtio_pci_bar_read,
        .bar_write = virtio_pci_bar_write,
        .config_written = config_written,
        .config_reading = config_reading,
};

/* --- creation --------------------------------------------------------------------------------- */

/* Returns the capability's offset; 0: no room. */
static uint8_t virtio_cap_add(struct vpci_dev *dev, uint8_t type, uint8_t bar, uint32_t offset,
                              uint32_t length, uint8_t extra_bytes)
{
	uint8_t len_bytes = (uint8_t)sizeof(struct virtio_pci_cap) + extra_bytes;
	uint8_t at = vpci_cap_add(dev, PCI_CAP_ID_VENDOR, len_bytes);
	struct virtio_pci_cap cap;

	if (!at)
		return 0;
	memcpy(&cap, &dev->config[at], sizeof(cap));
	cap.cap_len = len_bytes;
	cap.cfg_type = type;
	cap.bar = bar;
	cap.offset = offset;
	cap.length = length;
	memcpy(&dev->config[at], &cap, sizeof(cap));
	return at;
}

static bool notify_cap_add(struct virtio_pci *vp)
{
	uint32_t multiplier = 1u << VIRTIO_PCI_NOTIFY_SHIFT;
	uint8_t at = virtio_cap_add(&vp->dev, VIRTIO_PCI_CAP_NOTIFY_CFG, VIRTIO_PCI_BAR_NOTIFY, 0,
	                            PAGE_SIZE, sizeof(multiplier));

	if (at)
		memcpy(&vp->dev.config[at + sizeof(struct virtio_pci_cap)], &multiplier,
		       sizeof(multiplier));
	return at != 0;
}

/* The one capability whose window the driver moves: all but its header and type is writable. */
static bool cfg_cap_add(struct virtio_pci *vp)
{
	vp->cfg_cap = virtio_cap_add(&vp->dev, VIRTIO_PCI_CAP_PCI_CFG, 0, 0, 0, 4);
	if (!vp->cfg_cap)
		return false;
	vp->dev.writable[vp->cfg_cap + offsetof(struct virtio_pci_cap, bar)] = 0xff;
	memset(&vp->dev.writable[vp->cfg_cap + offsetof(struct virtio_pci_cap, offset)], 0xff, 12);
	return true;
}

static bool msix_cap_add(struct virtio_pci *vp)
{
	uint8_t *config = vp->dev.config;
	uint16_t control = (uint16_t)(vp->msix.vector_count - 1);
	uint32_t table = VIRTIO_PCI_MSIX_OFFSET | VIRTIO_PCI_BAR_REGS;
	uint32_t pba = VIRTIO_PCI_PBA_OFFSET | VIRTIO_PCI_BAR_REGS;

	vp->msix_cap = vpci_cap_add(&vp->dev, PCI_CAP_ID_MSIX, 12);
	if (!vp->msix_cap)
		return false;
	memcpy(&config[vp->msix_cap + 2], &control, sizeof(control));
	memcpy(&config[vp->msix_cap + 4], &table, sizeof(table));
	memcpy(&config[vp->msix_cap + 8], &pba, sizeof(pba));
	vp->dev.writable[vp->msix_cap + 3] = (MSIX_CONTROL_ENABLE | MSIX_CONTROL_MASK) >> 8;
	return true;
}

static bool caps_add(struct virtio_pci *vp)
{
	struct vpci_dev *dev = &vp->dev;

	return virtio_cap_add(dev, VIRTIO_PCI_CAP_COMMON_CFG, VIRTIO_PCI_BAR_REGS,
	                      VIRTIO_PCI_COMMON_OFFSET, VIRTIO_PCI_COMMON_BYTES, 0) &&
	       notify_cap_add(vp) &&
	       virtio_cap_add(dev, VIRTIO_PCI_CAP_ISR_CFG, VIRTIO_PCI_BAR_REGS,
	                      VIRTIO_PCI_ISR_OFFSET, 1, 0) &&
	       virtio_cap_add(dev, VIRTIO_PCI_CAP_DEVICE_CFG, VIRTIO_PCI_BAR_REGS,
	                      VIRTIO_PCI_DEVICE_OFFSET, VIRTIO_BLK_CONFIG_BYTES, 0) &&
	       cfg_cap_add(vp) && msix_cap_add(vp);
}

static void kick_page_set(struct virtio_pci *vp)
{
	vp->kick->queue = vp->ioq;
	vp->kick->queue_count = vp->blk->queue_count;
	vp->kick->multiplier_shift = VIRTIO_PCI_NOTIFY_SHIFT;
	atomic_store_explicit(&vp->kick->gpa, vp->dev.bar[VIRTIO_PCI_BAR_NOTIFY].base_gpa,
	                      memory_order_release);
}

int virtio_pci_blk_add(struct vm *vm, struct vblk *blk)
{
	struct virtio_pci *vp;

	if (vm->disk_count >= MANIFEST_DISK_MAX || vm->kick_count >= VM_KICK_MAX)
		return -ENOSPC;
	vp = plat_mem_alloc(sizeof(*vp), CACHE_LINE_BYTES);
	if (!vp)
		return -ENOMEM;
	vp->vm = vm;
	vp->blk = blk;
	vp->kick = &vm->kick[vm->kick_count];
	for (unsigned i = 0; i < blk->queue_count; i++)
		vp->ioq[i] = &blk->queue[i].ioq;
	vp->transport.queue_signal = queue_signal;
	vp->transport.needs_reset = needs_reset;
	blk->transport = &vp->transport;
	msix_init(&vp->msix, vm, blk->queue_count + 1u, blk->queue_count + 1u);
	virtio_pci_state_clear(vp);
	vpci_dev_init(&vp->dev, &dev_ops, VIRTIO_PCI_VENDOR, VIRTIO_PCI_DEVICE_BLK, PCI_CLASS_REV,
	              VIRTIO_PCI_VENDOR, VIRTIO_PCI_DEVICE_BLK);
	vp->dev.config[PCI_INTERRUPT_PIN] = 0;
	vp->dev.bar[VIRTIO_PCI_BAR_REGS].len_bytes = VIRTIO_PCI_REGS_BYTES;
	vp->dev.bar[VIRTIO_PCI_BAR_NOTIFY].len_bytes = PAGE_SIZE;
	if (!caps_add(vp) || vpci_add(&vm->pci, &vp->dev))
		return -ENOSPC;
	kick_page_set(vp);
	vm->kick_count++;
	vm->disk[vm->disk_count++] = blk;
	return 0;
}
