/*
 * virtio_abi.h: what VIRTIO 1.2 fixes: the split ring (2.7), modern PCI (4.1) and the block device
 * (5.2). All fields are little-endian, as is the only processor this runs on.
 */
#ifndef QUELL_VIRTIO_VIRTIO_ABI_H
#define QUELL_VIRTIO_VIRTIO_ABI_H

#include "arch/types.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "fields are read without swapping");

/* --- feature bits (6, 5.2.3) ------------------------------------------------------------------ */

#define VIRTIO_BLK_F_SEG_MAX      BIT(2)
#define VIRTIO_BLK_F_RO           BIT(5)
#define VIRTIO_BLK_F_BLK_SIZE     BIT(6)
#define VIRTIO_BLK_F_FLUSH        BIT(9)
#define VIRTIO_BLK_F_TOPOLOGY     BIT(10)
#define VIRTIO_BLK_F_MQ           BIT(12)
#define VIRTIO_BLK_F_DISCARD      BIT(13)
#define VIRTIO_BLK_F_WRITE_ZEROES BIT(14)
#define VIRTIO_F_INDIRECT_DESC    BIT(28)
#define VIRTIO_F_EVENT_IDX        BIT(29)
#define VIRTIO_F_VERSION_1        BIT(32)

/* --- device status (2.1) ---------------------------------------------------------------------- */

#define VIRTIO_STATUS_ACKNOWLEDGE 1u
#define VIRTIO_STATUS_DRIVER      2u
#define VIRTIO_STATUS_DRIVER_OK   4u
#define VIRTIO_STATUS_FEATURES_OK 8u
#define VIRTIO_STATUS_NEEDS_RESET 64u
#define VIRTIO_STATUS_FAILED      128u

/* --- split ring (2.7) ------------------------------------------------------------------------- */

#define VIRTQ_DESC_F_NEXT     1u
#define VIRTQ_DESC_F_WRITE    2u
#define VIRTQ_DESC_F_INDIRECT 4u

#define VIRTQ_AVAIL_F_NO_INTERRUPT 1u
#define VIRTQ_USED_F_NO_NOTIFY     1u

struct virtq_desc {
	uint64_t addr_gpa;
	uint32_t len_bytes;
	uint16_t flags;
	uint16_t next;
};

struct virtq_avail {
	uint16_t flags;
	uint16_t idx;
	uint16_t ring[]; /* size entries, then used_event */
};

struct virtq_used_elem {
	uint32_t id;
	uint32_t len_bytes;
};

struct virtq_used {
	uint16_t flags;
	uint16_t idx;
	struct virtq_used_elem ring[]; /* size entries, then avail_event */
};

#define VIRTQ_DESC_ALIGN        16u
#define VIRTQ_AVAIL_ALIGN       2u
#define VIRTQ_USED_ALIGN        4u
#define VIRTQ_DESC_BYTES(size)  ((uint64_t)(size) * sizeof(struct virtq_desc))
#define VIRTQ_AVAIL_BYTES(size) (6u + 2u * (uint64_t)(size))
#define VIRTQ_USED_BYTES(size)  (6u + 8u * (uint64_t)(size))

_Static_assert(sizeof(struct virtq_desc) == 16, "VIRTIO 1.2 2.7.5");
_Static_assert(offsetof(struct virtq_desc, flags) == 12, "VIRTIO 1.2 2.7.5");
_Static_assert(offsetof(struct virtq_avail, ring) == 4, "VIRTIO 1.2 2.7.6");
_Static_assert(offsetof(struct virtq_used, ring) == 4, "VIRTIO 1.2 2.7.8");
_Static_assert(sizeof(struct virtq_used_elem) == 8, "VIRTIO 1.2 2.7.8");

/* --- PCI transport (4.1) ---------------------------------------------------------------------- */

#define VIRTIO_PCI_VENDOR     0x1af4u
#define VIRTIO_PCI_DEVICE_BLK 0x1042u /* 0x1040 + device id 2 */

#define VIRTIO_PCI_CAP_COMMON_CFG 1u
#define VIRTIO_PCI_CAP_NOTIFY_CFG 2u
#define VIRTIO_PCI_CAP_ISR_CFG    3u
#define VIRTIO_PCI_CAP_DEVICE_CFG 4u
#define VIRTIO_PCI_CAP_PCI_CFG    5u

struct virtio_pci_cap {
	uint8_t cap_vndr, cap_next, cap_len;
	uint8_t cfg_type;
	uint8_t bar;
	uint8_t id;
	uint8_t padding[2];
	uint32_t offset;
	uint32_t length;
};

struct virtio_pci_notify_cap {
	struct virtio_pci_cap cap;
	uint32_t notify_off_multiplier;
};

struct virtio_pci_cfg_cap {
	struct virtio_pci_cap cap;
	uint8_t pci_cfg_data[4];
};

struct virtio_pci_common_cfg {
	uint32_t device_feature_select;
	uint32_t device_feature;
	uint32_t driver_feature_select;
	uint32_t driver_feature;
	uint16_t config_msix_vector;
	uint16_t num_queues;
	uint8_t device_status;
	uint8_t config_generation;
	uint16_t queue_select;
	uint16_t queue_size;
	uint16_t queue_msix_vector;
	uint16_t queue_enable;
	uint16_t queue_notify_off;
	uint64_t queue_desc;
	uint64_t queue_driver;
	uint64_t queue_device;
	uint16_t queue_notify_data;
	uint16_t queue_reset;
};

#define VIRTIO_MSI_NO_VECTOR 0xffffu

#define VIRTIO_ISR_QUEUE  1u
#define VIRTIO_ISR_CONFIG 2u

_Static_assert(sizeof(struct virtio_pci_cap) == 16, "VIRTIO 1.2 4.1.4");
_Static_assert(sizeof(struct virtio_pci_notify_cap) == 20, "VIRTIO 1.2 4.1.4.4");
_Static_assert(sizeof(struct virtio_pci_cfg_cap) == 20, "VIRTIO 1.2 4.1.4.9");
_Static_assert(offsetof(struct virtio_pci_common_cfg, config_msix_vector) == 0x10, "4.1.4.3");
_Static_assert(offsetof(struct virtio_pci_common_cfg, device_status) == 0x14, "4.1.4.3");
_Static_assert(offsetof(struct virtio_pci_common_cfg, queue_desc) == 0x20, "4.1.4.3");
_Static_assert(sizeof(struct virtio_pci_common_cfg) == 0x40, "VIRTIO 1.2 4.1.4.3, padded to 8");

/* --- block device (5.2) ----------------------------------------------------------------------- */

enum virtio_blk_type {
	VIRTIO_BLK_T_IN = 0,
	VIRTIO_BLK_T_OUT = 1,
	VIRTIO_BLK_T_FLUSH = 4,
	VIRTIO_BLK_T_GET_ID = 8,
	VIRTIO_BLK_T_DISCARD = 11,
	VIRTIO_BLK_T_WRITE_ZEROES = 13,
};

#define VIRTIO_BLK_S_OK     0u
#define VIRTIO_BLK_S_IOERR  1u
#define VIRTIO_BLK_S_UNSUPP 2u

#define VIRTIO_BLK_ID_BYTES 20u

#define VIRTIO_BLK_ZEROES_F_UNMAP BIT(0) /* of virtio_blk_range.flags */

struct virtio_blk_hdr {
	uint32_t type;
	uint32_t reserved;
	uint64_t sector;
};

/* One segment of a discard or write-zeroes request. */
struct virtio_blk_range {
	uint64_t sector;
	uint32_t num_sectors;
	uint32_t flags;
};

struct virtio_blk_config {
	uint64_t capacity;
	uint32_t size_max;
	uint32_t seg_max;
	struct {
		uint16_t cylinders;
		uint8_t heads, sectors;
	} geometry;
	uint32_t blk_size;
	struct {
		uint8_t physical_block_exp;
		uint8_t alignment_offset;
		uint16_t min_io_size;
		uint32_t opt_io_size;
	} topology;
	uint8_t writeback;
	uint8_t unused0;
	uint16_t num_queues;
	uint32_t max_discard_sectors;
	uint32_t max_discard_seg;
	uint32_t discard_sector_alignment;
	uint32_t max_write_zeroes_sectors;
	uint32_t max_write_zeroes_seg;
	uint8_t write_zeroes_may_unmap;
	uint8_t unused1[3];
	uint32_t max_secure_erase_sectors;
	uint32_t max_secure_erase_seg;
	uint32_t secure_erase_sector_alignment;
	uint32_t padding; /* ours, not offered to the driver */
};

#define VIRTIO_BLK_CONFIG_BYTES 72u

_Static_assert(sizeof(struct virtio_blk_hdr) == 16, "VIRTIO 1.2 5.2.6");
_Static_assert(sizeof(struct virtio_blk_range) == 16, "VIRTIO 1.2 5.2.6");
_Static_assert(offsetof(struct virtio_blk_config, blk_size) == 20, "VIRTIO 1.2 5.2.4");
_Static_assert(offsetof(struct virtio_blk_config, num_queues) == 34, "VIRTIO 1.2 5.2.4");
_Static_assert(offsetof(struct virtio_blk_config, write_zeroes_may_unmap) == 56, "5.2.4");
_Static_assert(offsetof(struct virtio_blk_config, padding) == VIRTIO_BLK_CONFIG_BYTES, "5.2.4");

#endif
