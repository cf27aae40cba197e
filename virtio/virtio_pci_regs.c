#include "virtio/virtio_pci_impl.h"

#include "arch/platform.h"

#define STATUS_WRITABLE                                                                            \
	(VIRTIO_STATUS_ACKNOWLEDGE | VIRTIO_STATUS_DRIVER | VIRTIO_STATUS_DRIVER_OK |              \
	 VIRTIO_STATUS_FEATURES_OK | VIRTIO_STATUS_FAILED)

/* --- reset ------------------------------------------------------------------------------------ */

void virtio_pci_state_clear(struct virtio_pci *vp)
{
	vp->status = 0;
	vp->resetting = false;
	vp->device_feature_select = vp->driver_feature_select = 0;
	vp->driver_features = 0;
	vp->queue_select = 0;
	vp->blk->features = 0;
	for (unsigned i = 0; i < vp->blk->queue_count; i++) {
		vp->queue_state[i] = QUEUE_OFF;
		vp->blk->queue[i].setup =
		        (struct vblk_queue_setup){.size = vp->blk->queue_size_max};
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
	virtio_pci_state_clear(vp);
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
#define FIELD(name)                                                                                \
	KEY(offsetof(struct virtio_pci_common_cfg, name),                                          \
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
	case FIELD(queue_size): return setup->size;
	case FIELD(queue_msix_vector): return vp->msix.vector[queue];
	case FIELD(queue_enable): return vp->queue_state[queue] != QUEUE_OFF;
	case FIELD(queue_notify_off): return queue;
	case FIELD(queue_desc): return setup->desc_gpa;
	case FIELD_LOW(queue_desc): return (uint32_t)setup->desc_gpa;
	case FIELD_HIGH(queue_desc): return setup->desc_gpa >> 32;
	case FIELD(queue_driver): return setup->avail_gpa;
	case FIELD_LOW(queue_driver): return (uint32_t)setup->avail_gpa;
	case FIELD_HIGH(queue_driver): return setup->avail_gpa >> 32;
	case FIELD(queue_device): return setup->used_gpa;
	case FIELD_LOW(queue_device): return (uint32_t)setup->used_gpa;
	case FIELD_HIGH(queue_device): return setup->used_gpa >> 32;
	default: return 0;
	}
}

static uint64_t common_read(struct virtio_pci *vp, uint64_t offset, unsigned width_bytes)
{
	uint64_t key = KEY(offset, width_bytes);

	switch (key) {
	case FIELD(device_feature_select): return vp->device_feature_select;
	case FIELD(device_feature):
		return feature_word(vp->blk->features_offered, vp->device_feature_select);
	case FIELD(driver_feature_select): return vp->driver_feature_select;
	case FIELD(driver_feature):
		return feature_word(vp->driver_features, vp->driver_feature_select);
	case FIELD(config_msix_vector): return vp->msix.vector[virtio_pci_config_source(vp)];
	case FIELD(num_queues): return vp->blk->queue_count;
	case FIELD(device_status): return status_read(vp);
	case FIELD(config_generation): return 0; /* the device configuration never changes */
	case FIELD(queue_select): return vp->queue_select;
	default: return queue_field_read(vp, key);
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
	case FIELD(queue_desc): setup->desc_gpa = value; break;
	case FIELD_LOW(queue_desc): low_set(&setup->desc_gpa, value); break;
	case FIELD_HIGH(queue_desc): high_set(&setup->desc_gpa, value); break;
	case FIELD(queue_driver): setup->avail_gpa = value; break;
	case FIELD_LOW(queue_driver): low_set(&setup->avail_gpa, value); break;
	case FIELD_HIGH(queue_driver): high_set(&setup->avail_gpa, value); break;
	case FIELD(queue_device): setup->used_gpa = value; break;
	case FIELD_LOW(queue_device): low_set(&setup->used_gpa, value); break;
	case FIELD_HIGH(queue_device): high_set(&setup->used_gpa, value); break;
	}
}

static void common_write(struct virtio_pci *vp, uint64_t offset, unsigned width_bytes,
                         uint64_t value)
{
	uint64_t key = KEY(offset, width_bytes);

	/* 4.1.4.3.2: the driver waits for the reset to end; what it writes before is lost. */
	if (vp->resetting && !reset_advance(vp))
		return;
	switch (key) {
	case FIELD(device_feature_select): vp->device_feature_select = (uint32_t)value; break;
	case FIELD(driver_feature_select): vp->driver_feature_select = (uint32_t)value; break;
	case FIELD(driver_feature): driver_feature_write(vp, (uint32_t)value); break;
	case FIELD(config_msix_vector):
		msix_vector_set(&vp->msix, virtio_pci_config_source(vp), (uint16_t)value);
		break;
	case FIELD(device_status): status_write(vp, (uint8_t)value); break;
	case FIELD(queue_select): vp->queue_select = (uint16_t)value; break;
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

static uint64_t device_config_read(const struct virtio_pci *vp, uint64_t offset,
                                   unsigned width_bytes)
{
	uint64_t value = 0;

	if (offset + width_bytes <= VIRTIO_BLK_CONFIG_BYTES)
		memcpy(&value, (const uint8_t *)&vp->blk->config + offset, width_bytes);
	return value;
}

uint64_t virtio_pci_bar_read(struct vpci_dev *dev, unsigned bar, uint64_t offset,
                             unsigned width_bytes)
{
	struct virtio_pci *vp = virtio_pci_of_dev(dev);

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

void virtio_pci_bar_write(struct vpci_dev *dev, unsigned bar, uint64_t offset, unsigned width_bytes,
                          uint64_t value)
{
	struct virtio_pci *vp = virtio_pci_of_dev(dev);

	if (width_bytes < sizeof(value))
		value &= BIT(8 * width_bytes) - 1;
	if (bar == VIRTIO_PCI_BAR_NOTIFY) {
		uint64_t queue = offset >> VIRTIO_PCI_NOTIFY_SHIFT;

		if (queue < vp->blk->queue_count)
			ioloop_kick(vp->ioq[queue]);
	} else if (offset >= VIRTIO_PCI_MSIX_OFFSET) {
		if (offset < VIRTIO_PCI_PBA_OFFSET)
			msix_table_write(&vp->msix, offset - VIRTIO_PCI_MSIX_OFFSET, width_bytes,
			                 value);
	} else {
		common_write(vp, offset - VIRTIO_PCI_COMMON_OFFSET, width_bytes, value);
	}
}
