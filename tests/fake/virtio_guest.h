/*
 * fake/virtio_guest.h: the driver's side of a split virtqueue over guest memory from the host's
 * heap, for unit tests, fuzzers and benchmarks. It follows VIRTIO 1.2 unless told to break it:
 * vguest_desc_set, vguest_avail_set and vguest_avail_idx_set write whatever they are given, and
 * fake/virtio_cases.h has a name for each way of breaking it.
 */
#ifndef QUELL_TESTS_FAKE_VIRTIO_GUEST_H
#define QUELL_TESTS_FAKE_VIRTIO_GUEST_H

#include "virtio/virtio_abi.h"
#include "virtio/ring.h"
#include "vmm/gmem.h"

#define VGUEST_BASE_GPA     0x100000ull
#define VGUEST_INDIRECT_MAX 256u /* descriptors of one indirect table */
#define VGUEST_GUARD_BYTES  0x10000u
#define VGUEST_ZONE_MAX     256u

struct vguest {
	struct gmem mem;
	uint64_t piece_bytes;
	gpa_t next_gpa, end_gpa;
	void *piece[GMEM_REGION_MAX];
	bool fenced; /* the test's: rings lie between redzones */
	unsigned zone_count;
	gpa_t zone_gpa[VGUEST_ZONE_MAX]; /* redzones: bytes that nobody may write */
};

struct vguest_queue {
	struct vguest *guest;
	uint16_t size;
	bool event_idx;
	gpa_t desc_gpa, avail_gpa, used_gpa;
	gpa_t table_gpa;     /* an indirect table for each head; 0: none */
	uint16_t avail_idx;  /* as published */
	uint16_t kicked_idx; /* avail_idx when vguest_kick_needed was last asked */
	uint16_t used_idx;   /* next used element to take */
	uint16_t free_count;
	uint16_t free[VIRTQ_SIZE_MAX];
	uint16_t chain_len[VIRTQ_SIZE_MAX]; /* of each head in use; 0: not in use */
	uint16_t next[VIRTQ_SIZE_MAX];
};

/* One buffer of a chain. */
struct vguest_buf {
	gpa_t gpa;
	uint32_t len_bytes;
	bool device_writes;
};

/* Memory from VGUEST_BASE_GPA on: pieces that adjoin in the guest but not in the host, where an
 * access to the VGUEST_GUARD_BYTES before and after each faults. */
void vguest_init(struct vguest *g, unsigned pieces, uint64_t piece_bytes);
void vguest_free(struct vguest *g);

/* Zeroed memory inside one piece. Aborts when there is none. */
gpa_t vguest_alloc(struct vguest *g, uint64_t len_bytes, uint64_t align);

/* The same between two redzones. */
gpa_t vguest_alloc_fenced(struct vguest *g, uint64_t len_bytes, uint64_t align);

/* The first redzone byte that somebody wrote; 0: none. */
gpa_t vguest_zone_damaged(struct vguest *g);

/* Where the guest's byte is; NULL: no memory. Good up to the end of its piece. */
void *vguest_va(struct vguest *g, gpa_t gpa);

/* An empty ring in fresh memory, with tables for indirect chains if asked for. */
void vguest_queue_init(struct vguest_queue *q, struct vguest *g, uint16_t size, bool event_idx,
                       bool indirect);

/* The same ring as vguest_queue_init left it, for a driver that starts again. */
void vguest_queue_empty(struct vguest_queue *q);

/* Builds a chain, not yet published. Returns its head, or -1: no free descriptors. */
int vguest_add(struct vguest_queue *q, const struct vguest_buf *bufs, unsigned count);
int vguest_add_indirect(struct vguest_queue *q, const struct vguest_buf *bufs, unsigned count);

/* Makes a chain available. */
void vguest_publish(struct vguest_queue *q, uint16_t head);

/* Must the device be notified of what was published since this was last asked? (2.7.13.4) */
bool vguest_kick_needed(struct vguest_queue *q);

/* Takes the next used element and frees its chain. False: none. */
bool vguest_used_pop(struct vguest_queue *q, uint32_t *head, uint32_t *written_bytes);

/* Interrupt at the next used element; or none. */
void vguest_irq_on(struct vguest_queue *q);
void vguest_irq_off(struct vguest_queue *q);

/* Raw access to the ring. */
void vguest_desc_set(struct vguest_queue *q, uint16_t index, gpa_t gpa, uint32_t len_bytes,
                     uint16_t flags, uint16_t next);
struct virtq_desc *vguest_table(struct vguest_queue *q, uint16_t head);
void vguest_avail_set(struct vguest_queue *q, uint16_t slot, uint16_t head);
void vguest_avail_idx_set(struct vguest_queue *q, uint16_t idx);
uint16_t vguest_avail_event(struct vguest_queue *q);
uint16_t vguest_used_flags(struct vguest_queue *q);
uint16_t vguest_used_idx(struct vguest_queue *q);

#endif
