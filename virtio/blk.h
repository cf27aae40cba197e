/*
 * blk.h: a guest's virtio-blk disk (VIRTIO 1.2 5.2): requests from its rings to a bio device and
 * back. The boot core creates it; then each queue's state belongs to the I/O core. The transport
 * (virtio_pci.c) fills a queue's setup before it asks the loop to attach it.
 */
#ifndef QUELL_VIRTIO_BLK_H
#define QUELL_VIRTIO_BLK_H

#include "arch/types.h"
#include "drivers/bio.h"
#include "virtio/ring.h"
#include "virtio/virtio_abi.h"
#include "vmm/coalesce.h"
#include "vmm/gmem.h"
#include "vmm/ioloop.h"
#include "vmm/manifest.h"
#include "vmm/tally.h"

#define VBLK_QUEUE_MAX MANIFEST_CPU_MAX

/* A guest's segment may straddle regions of its memory, so a few more than a chain has. */
#define VBLK_SEG_MAX (VIRTQ_CHAIN_MAX - 2 + GMEM_REGION_MAX)

/* One discard or write-zeroes request; devices split what they cannot take at once. */
#define VBLK_DISCARD_SECTORS_MAX (1u << 18)
#define VBLK_ZEROES_SECTORS_MAX  (1u << 16)

struct vblk;
struct vblk_queue;

/* A request between its pop and its push. */
struct vblk_req {
	struct bio bio;
	struct vblk_queue *queue;
	volatile uint8_t *status; /* the guest's status byte */
	uint32_t data_bytes;      /* what a success writes to the guest beside the status */
	uint16_t head;
	bool flushing;         /* written; now its flush is under way */
	struct vblk_req *next; /* free, or waiting to be flushed */
	struct bio_seg segs[VBLK_SEG_MAX];
};

/* What the driver set up; the transport's until it asks for an attach. */
struct vblk_queue_setup {
	uint16_t size;
	gpa_t desc_gpa, avail_gpa, used_gpa;
};

struct vblk_queue {
	struct ioq ioq;
	struct virtq vq;
	struct vblk_req *held; /* the device had no room: first at the next serve */
	struct vblk *blk;
	struct vblk_req *free;
	struct vblk_req *unflushed; /* written, must be flushed before they are done */
	uint32_t in_flight;         /* popped, not yet pushed */
	struct coalesce coalesce;   /* when an interrupt may wait for more completions */
	/* Those sent, and what sending took; vmm/phase.c clears it at a mark. */
	struct tally interrupt;
	uint16_t index;
	bool write_through; /* the driver has not negotiated FLUSH (5.2.6.2) */
	struct vblk_queue_setup setup;
	struct vblk_req *reqs;
};

_Static_assert(offsetof(struct vblk_queue, vq) % CACHE_LINE_BYTES == 0 &&
                       offsetof(struct vblk_queue, held) % CACHE_LINE_BYTES > 0 &&
                       offsetof(struct vblk_queue, held) - offsetof(struct vblk_queue, vq) <
                               CACHE_LINE_BYTES,
               "a look at a queue reads the ioq's first line, this one and the guest's index");

/* How the driver hears from the device. I/O core. */
struct vblk_transport {
	/* Interrupts the driver for a queue; false: it has set up no vector for it. */
	bool (*queue_signal)(struct vblk_transport *transport, unsigned queue);
	/* The driver broke a ring: DEVICE_NEEDS_RESET and a configuration interrupt. */
	void (*needs_reset)(struct vblk_transport *transport);
};

struct vblk {
	struct bio_extent extent;
	const struct gmem *mem;
	struct vblk_transport *transport;
	uint64_t features; /* negotiated: the transport's; read at attach */
	uint64_t features_offered;
	uint32_t block_sectors; /* logical block in sectors, a power of two */
	uint64_t hold_max_tsc;  /* how long an interrupt may wait for more; 0: it may not */
	uint16_t queue_count, queue_size_max;
	bool read_only;
	char serial[VIRTIO_BLK_ID_BYTES];
	struct virtio_blk_config config;
	struct virtq_chain chain; /* scratch of the I/O core */
	struct vblk_queue queue[VBLK_QUEUE_MAX];
};

/*
 * Fills blk (zeroed memory) and allocates its requests; its queues are ready for ioloop_queue_add.
 * serial: at most 20 characters count. Boot core. -EINVAL: the extent is no whole number of blocks
 * of its device, or empty; a queue count or size out of range; -ENOMEM.
 */
int vblk_create(struct vblk *blk, const struct manifest_disk *cfg, struct bio_extent extent,
                const struct gmem *mem, const char *serial);

#endif
