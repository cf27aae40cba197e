/*
 * ring.h: the device side of a split virtqueue (VIRTIO 1.2 2.7), with indirect descriptors and
 * EVENT_IDX. One core owns a ring: the I/O core from attach until it acknowledges a detach.
 *
 * The driver is hostile: descriptors are copied once, then checked, never read again; every index
 * from it is masked or range-checked; every loop is bounded by the ring size or VIRTQ_CHAIN_MAX.
 */
#ifndef QUELL_VIRTIO_RING_H
#define QUELL_VIRTIO_RING_H

#include "arch/types.h"
#include "virtio/virtio_abi.h"
#include "vmm/gmem.h"

#define VIRTQ_SIZE_MAX  1024u
#define VIRTQ_CHAIN_MAX 130u /* descriptors of one chain: seg_max + header + status */

/* A piece of a chain, still guest-physical. */
struct virtq_seg {
	gpa_t gpa;
	uint32_t len_bytes;
	bool device_writes;
};

struct virtq_chain {
	uint16_t head; /* goes back into the used ring */
	uint16_t count;
	struct virtq_seg seg[VIRTQ_CHAIN_MAX];
};

struct virtq {
	/* Hot: each pass reads these. Pointers are into guest memory, whole ring checked at attach. */
	const volatile void *avail, *desc;
	volatile void *used;
	uint16_t size;
	uint16_t last_avail;     /* next avail entry to pop */
	uint16_t avail_seen;     /* avail.idx as last loaded: up to here entries are there */
	uint16_t used_idx;       /* entries pushed, not yet all published */
	uint16_t used_published; /* used.idx as the driver sees it */
	uint16_t used_signalled; /* used.idx when the driver was last interrupted */
	bool event_idx;          /* VIRTIO_F_EVENT_IDX negotiated */
	bool indirect;           /* VIRTIO_F_INDIRECT_DESC negotiated */
	bool armed;              /* notifications on */
	bool broken;             /* the driver broke the ring: no more pops until reset */
	uint16_t event_parked;   /* avail_event as last written while disarmed */
	const struct gmem *mem;
};

/* Maps a ring whose addresses the driver set. -EINVAL: size zero, above VIRTQ_SIZE_MAX or no power
 * of two, misaligned, or not wholly in one piece of guest memory. I/O core. */
int ring_attach(struct virtq *vq, const struct gmem *mem, uint16_t size, gpa_t desc_gpa,
                gpa_t avail_gpa, gpa_t used_gpa, bool event_idx, bool indirect);

/* Is there an entry to pop? One acquire load of avail.idx. */
static inline bool ring_pending(const struct virtq *vq)
{
	const volatile struct virtq_avail *avail = vq->avail;

	return !vq->broken && __atomic_load_n(&avail->idx, __ATOMIC_ACQUIRE) != vq->last_avail;
}

/*
 * Takes the next chain. 1: chain filled. 0: none. -EINVAL: this chain is bad (loop, index, length,
 * indirect rules); chain->head says which, and the caller must still push it with length 0 so that
 * nothing leaks, or mark the device in need of reset. -EIO: avail.idx itself is impossible; the
 * ring is broken and stays so.
 */
int ring_pop(struct virtq *vq, struct virtq_chain *chain);

/* Adds a used element; visible to the driver after ring_publish. */
void ring_push(struct virtq *vq, uint16_t head, uint32_t written_bytes);

/* Publishes pushed elements with one release store of used.idx. */
void ring_publish(struct virtq *vq);

/* Was something published since ring_should_signal was last asked? */
static inline bool ring_has_untold(const struct virtq *vq)
{
	return vq->used_published != vq->used_signalled;
}

/* After ring_publish: does the driver want an interrupt for what was published since the last one?
 * Contains the one full fence of a batch (VIRTIO 1.2 2.7.10). */
bool ring_should_signal(struct virtq *vq);

/* Turns notifications on. The caller puts one full fence after arming (many rings may share it) and
 * then asks ring_pending once more. */
void ring_arm(struct virtq *vq);

/* Turns notifications off. With EVENT_IDX parks avail_event 32,768 entries ahead; ring_pop moves it
 * on before submissions can cross it. */
void ring_disarm(struct virtq *vq);

#endif
