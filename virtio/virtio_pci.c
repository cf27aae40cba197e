#include "virtio/virtio_pci.h"

#include "arch/platform.h"
#include "virtio/blk.h"
#include "virtio/msix.h"
#include "virtio/virtio_abi.h"
#include "vmm/vm.h"

#define PCI_CAP_ID_VENDOR 0x09u
#define PCI_CAP_ID_MSIX   0x11u
#define PCI_INTERRUPT_PIN 0x3du
#define PCI_CLASS_REV     0x01800001u /* mass storage, other; revision 1: modern only */

#define MSIX_CONTROL_ENABLE 0x8000u
#define MSIX_CONTROL_MASK   0x4000u

/* Without the fields of the features VIRTIO_F_NOTIF_CONFIG_DATA and VIRTIO_F_RING_RESET. */
#define COMMON_BYTES offsetof(struct virtio_pci_common_cfg, queue_notify_data)

#define STATUS_WRITABLE                                                                           \
	(VIRTIO_STATUS_ACKNOWLEDGE | VIRTIO_STATUS_DRIVER | VIRTIO_STATUS_DRIVER_OK |             \
	 VIRTIO_STATUS_FEATURES_OK | VIRTIO_STATUS_FAILED)

enum queue_state {
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
	bool resetting;            /* 0 was written; the I/O core has not let go of all queues yet */
	uint32_t device_feature_select, driver_feature_select;
	uint64_t driver_features;
	uint16_t queue_select;
	enum queue_state queue_state[VBLK_QUEUE_MAX];

	struct ioq *ioq[VBLK_QUEUE_MAX]; /* for the kick path */
	struct msix msix;          /* a source for each queue, the last for configuration */

	/* Any core. */
	CACHE_ALIGN atomic_uint isr;
	atomic_uint needs_reset;
};

static struct virtio_pci *of_dev(struct vpci_dev *dev)
{
	return CONTAINER_OF(dev, struct virtio_pci, dev);
}

static struct virtio_pci *of_transport(struct vblk_transport *transport)
{
	return CONTAINER_OF(transport, struct virtio_pci, transport);
}

static unsigned config_source(const struct virtio_pci *vp)
{
	return vp->blk->queue_count;
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
	msix_signal(&vp->msix, config_source(vp));
}

/* --- reset ------------------------------------------------------------------------------------ */

static void state_clear(struct virtio_pci *vp)
{
	vp->status = 0;
	vp->resetting = false;
	vp->device_feature_select = vp->driver_feature_select = 0;
	vp->driver_features = 0;
	vp->queue_select = 0;
	vp->blk->features = 0;
	for (unsigned i = 0; i < vp->blk->queue_count; i++) {
		vp->queue_state[i] = QUEUE_OFF;
		vp->blk->queue[i].setup = (struct vblk_queue_setup){.size = vp->blk->queue_size_max};
	}
	msix_reset(&vp->msix);
	atomic_store(&vp->isr, 0);
	atomic_store(&vp->needs_reset, 0);
}

/*
 * Goes on with a reset as far as the I/O core lets it; nothing waits, for the I/O core may want the
 * lock that is held here. A queue's attach must have happened before its detach is asked for: only
 * then does "not attached" mean "detached" and not "not yet attached". True: done.
 */
static bool reset_advance(struct virtio_pci *vp)
{
	bool busy = false;

	for (unsigned i = 0; i < vp->blk->queue_count; i++) {
		bool attached = ioq_is_attached(vp->ioq[i]);

		if (vp->queue_state[i] == QUEUE_ATTACHED && attached) {
			ioloop_detach(vp->ioq[i]);
			vp->queue_state[i] = QUEUE_DETACHING;
		} else if (vp->queue_state[i] == QUEUE_DETACHING && !attached) {
			vp->queue_state[i] = QUEUE_OFF;
		}
		busy |= vp->queue_state[i] >= QUEUE_ATTACHED;
	}
	if (busy)
		return false;
	state_clear(vp);
	return true;
}

/* --- device status (VIRTIO 1.2 2.1, 3.1) ------------------------------------------------------ */

static uint8_t status_read(struct virtio_pci *vp)
{
	if (vp->resetting && reset_advance(vp))
		return 0;
	if ((vp->status & VIRTIO_STATUS_DRIVER_OK) && atomic_load(&vp->needs_reset))
		return vp->status | VIRTIO_STATUS_NEEDS_RESET;
	return vp->status;
}

static bool features_are_acceptable(const struct virtio_pci *vp)
{
	return (vp->driver_features & ~vp->blk->features_offered) == 0 &&
	       (vp->driver_features & VIRTIO_F_VERSION_1);
}

static void queue_attach(struct virtio_pci *vp, unsigned queue)
{
	vp->queue_state[queue] = QUEUE_ATTACHED;
	ioloop_attach(vp->ioq[queue]);
}

static void status_write(struct virtio_pci *vp, uint8_t value)
{
	uint8_t added = value & STATUS_WRITABLE & (uint8_t)~vp->status;

	if (value == 0) {
		vp->resetting = true;
		reset_advance(vp);
		return;
	}
	if ((added & VIRTIO_STATUS_FEATURES_OK) && !features_are_acceptable(vp))
		added &= (uint8_t)~VIRTIO_STATUS_FEATURES_OK;
	if (!((vp->status | added) & VIRTIO_STATUS_FEATURES_OK))
		added &= (uint8_t)~VIRTIO_STATUS_DRIVER_OK;
	/* Bits only ever appear; a reset takes them all. */
	vp->status |= added;
	if (!(added & VIRTIO_STATUS_DRIVER_OK))
		return;
	vp->blk->features = vp->driver_features;
	for (unsigned i = 0; i < vp->blk->queue_count; i++)
		if (vp->queue_state[i] == QUEUE_ENABLED)
			queue_attach(vp, i);
}

/* --- common configuration (VIRTIO 1.2 4.1.4.3) ------------------------------------------------ */

/* An access is a field when offset and width both fit; 64-bit fields also come in halves. */
#define KEY(offset, width_bytes) ((offset) << 4 | (width_bytes))
#define FIELD(name)                                                                               \
	KEY(offsetof(struct virtio_pci_common_cfg, name),                                         \
	    sizeof(((struct virtio_pci_common_cfg *)0)->name))
#define FIELD_LOW(name)  KEY(offsetof(struct virtio_pci_common_cfg, name), 4)
#define FIELD_HIGH(name) KEY(offsetof(struct virtio_pci_common_cfg, name) + 4, 4)

static uint32_t feature_word(uint64_t features, uint32_t select)
{
	return select < 2 ? (uint32_t)(features >> (32 * select)) : 0;
}

static uint64_t queue_field_read(const struct virtio_pci *vp, uint64_t key)
{
	unsigned queue = vp->queue_select;
	const struct vblk_queue_setup *setup;

	if (queue >= vp->blk->queue_count)
		return 0;
	setup = &vp->blk->queue[queue].setup;
	switch (key) {
	case FIELD(queue_size):
		return setup->size;
	case FIELD(queue_msix_vector):
		return vp->msix.vector[queue];
	case FIELD(queue_enable):
		return vp->queue_state[queue] != QUEUE_OFF;
	case FIELD(queue_notify_off):
		return queue;
	case FIELD(queue_desc):
		return setup->desc_gpa;
	case FIELD_LOW(queue_desc):
		return (uint32_t)setup->desc_gpa;
	case FIELD_HIGH(queue_desc):
		return setup->desc_gpa >> 32;
	case FIELD(queue_driver):
		return setup->avail_gpa;
	case FIELD_LOW(queue_driver):
		return (uint32_t)setup->avail_gpa;
	case FIELD_HIGH(queue_driver):
		return setup->avail_gpa >> 32;
	case FIELD(queue_device):
		return setup->used_gpa;
	case FIELD_LOW(queue_device):
		return (uint32_t)setup->used_gpa;
	case FIELD_HIGH(queue_device):
		return setup->used_gpa >> 32;
	default:
		return 0;
	}
}

static uint64_t common_read(struct virtio_pci *vp, uint64_t offset, unsigned width_bytes)
{
	uint64_t key = KEY(offset, width_bytes);

	switch (key) {
	case FIELD(device_feature_select):
		return vp->device_feature_select;
	case FIELD(device_feature):
		return feature_word(vp->blk->features_offered, vp->device_feature_select);
	case FIELD(driver_feature_select):
		return vp->driver_feature_select;
	case FIELD(driver_feature):
		return feature_word(vp->driver_features, vp->driver_feature_select);
	case FIELD(config_msix_vector):
		return vp->msix.vector[config_source(vp)];
	case FIELD(num_queues):
		return vp->blk->queue_count;
	case FIELD(device_status):
		return status_read(vp);
	case FIELD(config_generation):
		return 0; /* the device configuration never changes */
	case FIELD(queue_select):
		return vp->queue_select;
	default:
		return queue_field_read(vp, key);
	}
}

static void driver_feature_write(struct virtio_pci *vp, uint32_t value)
{
	unsigned shift = 32 * vp->driver_feature_select;

	if (vp->driver_feature_select >= 2 || (vp->status & VIRTIO_STATUS_FEATURES_OK))
		return;
	vp->driver_features &= ~(0xffffffffull << shift);
	vp->driver_features |= (uint64_t)value << shift;
}

static void low_set(gpa_t *gpa, uint64_t value)
{
	*gpa = (*gpa & ~0xffffffffull) | (uint32_t)value;
}

static void high_set(gpa_t *gpa, uint64_t value)
{
	*gpa = (uint32_t)*gpa | value << 32;
}

/* An enabled queue's setup is the I/O core's to read and does not change. */
static void queue_setup_write(struct virtio_pci *vp, unsigned queue, uint64_t key, uint64_t value)
{
	struct vblk_queue_setup *setup = &vp->blk->queue[queue].setup;

	switch (key) {
	case FIELD(queue_size):
		if (value && value <= vp->blk->queue_size_max && !(value & (value - 1)))
			setup->size = (uint16_t)value;
		break;
	case FIELD(queue_enable):
		if (value != 1)
			break;
		vp->queue_state[queue] = QUEUE_ENABLED;
		if (vp->status & VIRTIO_STATUS_DRIVER_OK)
			queue_attach(vp, queue);
		break;
	case FIELD(queue_desc):
		setup->desc_gpa = value;
		break;
	case FIELD_LOW(queue_desc):
		low_set(&setup->desc_gpa, value);
		break;
	case FIELD_HIGH(queue_desc):
		high_set(&setup->desc_gpa, value);
		break;
	case FIELD(queue_driver):
		setup->avail_gpa = value;
		break;
	case FIELD_LOW(queue_driver):
		low_set(&setup->avail_gpa, value);
		break;
	case FIELD_HIGH(queue_driver):
		high_set(&setup->avail_gpa, value);
		break;
	case FIELD(queue_device):
		setup->used_gpa = value;
		break;
	case FIELD_LOW(queue_device):
		low_set(&setup->used_gpa, value);
		break;
	case FIELD_HIGH(queue_device):
		high_set(&setup->used_gpa, value);
		break;
	}
}

static void common_write(struct virtio_pci *vp, uint64_t offset, unsigned width_bytes, uint64_t value)
{
	uint64_t key = KEY(offset, width_bytes);

	/* 4.1.4.3.2: the driver waits for the reset to end; what it writes before is lost. */
	if (vp->resetting && !reset_advance(vp))
		return;
	switch (key) {
	case FIELD(device_feature_select):
		vp->device_feature_select = (uint32_t)value;
		break;
	case FIELD(driver_feature_select):
		vp->driver_feature_select = (uint32_t)value;
		break;
	case FIELD(driver_feature):
		driver_feature_write(vp, (uint32_t)value);
		break;
	case FIELD(config_msix_vector):
		msix_vector_set(&vp->msix, config_source(vp), (uint16_t)value);
		break;
	case FIELD(device_status):
		status_write(vp, (uint8_t)value);
		break;
	case FIELD(queue_select):
		vp->queue_select = (uint16_t)value;
		break;
	case FIELD(queue_msix_vector):
		if (vp->queue_select < vp->blk->queue_count)
			msix_vector_set(&vp->msix, vp->queue_select, (uint16_t)value);
		break;
	default:
		if (vp->queue_select < vp->blk->queue_count &&
		    vp->queue_state[vp->queue_select] == QUEUE_OFF)
			queue_setup_write(vp, vp->queue_select, key, value);
		break;
	}
}

/* --- BARs ------------------------------------------------------------------------------------- */

static uint64_t device_config_read(const struct virtio_pci *vp, uint64_t offset, unsigned width_bytes)
{
	uint64_t value = 0;

	if (offset + width_bytes <= VIRTIO_BLK_CONFIG_BYTES)
		memcpy(&value, (const uint8_t *)&vp->blk->config + offset, width_bytes);
	return value;
}

static uint64_t bar_read(struct vpci_dev *dev, unsigned bar, uint64_t offset, unsigned width_bytes)
{
	struct virtio_pci *vp = of_dev(dev);

	if (bar != VIRTIO_PCI_BAR_REGS)
		return 0;
	if (offset >= VIRTIO_PCI_PBA_OFFSET)
		return msix_pba_read(&vp->msix, offset - VIRTIO_PCI_PBA_OFFSET, width_bytes);
	if (offset >= VIRTIO_PCI_MSIX_OFFSET)
		return msix_table_read(&vp->msix, offset - VIRTIO_PCI_MSIX_OFFSET, width_bytes);
	if (offset >= VIRTIO_PCI_DEVICE_OFFSET)
		return device_config_read(vp, offset - VIRTIO_PCI_DEVICE_OFFSET, width_bytes);
	if (offset == VIRTIO_PCI_ISR_OFFSET && width_bytes == 1)
		return atomic_exchange(&vp->isr, 0); /* reading clears (4.1.4.5) */
	return common_read(vp, offset - VIRTIO_PCI_COMMON_OFFSET, width_bytes);
}

static void bar_write(struct vpci_dev *dev, unsigned bar, uint64_t offset, unsigned width_bytes,
                      uint64_t value)
{
	struct virtio_pci *vp = of_dev(dev);

	if (bar == VIRTIO_PCI_BAR_NOTIFY) {
		uint64_t queue = offset >> VIRTIO_PCI_NOTIFY_SHIFT;

		if (queue < vp->blk->queue_count)
			ioloop_kick(vp->ioq[queue]);
	} else if (offset >= VIRTIO_PCI_MSIX_OFFSET) {
		if (offset < VIRTIO_PCI_PBA_OFFSET)
			msix_table_write(&vp->msix, offset - VIRTIO_PCI_MSIX_OFFSET, width_bytes, value);
	} else {
		common_write(vp, offset - VIRTIO_PCI_COMMON_OFFSET, width_bytes, value);
	}
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
	struct virtio_pci *vp = of_dev(dev);
	struct virtio_pci_cfg_cap window;
	uint64_t value;

	if (!is_window_data(vp, offset, width_bytes) || !window_get(vp, &window))
		return;
	value = bar_read(dev, window.cap.bar, window.cap.offset, window.cap.length);
	memcpy(&dev->config[vp->cfg_cap + offsetof(struct virtio_pci_cfg_cap, pci_cfg_data)], &value,
	       window.cap.length);
}

static void config_written(struct vpci_dev *dev, unsigned offset, unsigned width_bytes)
{
	struct virtio_pci *vp = of_dev(dev);
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
	bar_write(dev, window.cap.bar, window.cap.offset, window.cap.length, value);
}

static const struct vpci_dev_ops dev_ops = {
	.bar_read = bar_read,
	.bar_write = bar_write,
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
	                      VIRTIO_PCI_COMMON_OFFSET, COMMON_BYTES, 0) &&
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
	state_clear(vp);
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
