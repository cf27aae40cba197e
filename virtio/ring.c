/*
 * What a pop costs in loads of guest memory: one of avail.idx for each batch the driver published
 * (the value is kept in avail_seen), one of the ring entry, two of each descriptor. A push stores
 * twice, a publish once. The only full fence is ring_should_signal's. So a read with an indirect
 * chain of header, one data segment and status costs 9 loads here and 2 for its header.
 */
#include "virtio/ring.h"

#include "arch/platform.h"
#include "virtio/virtio_abi.h"

/*
 * While notifications are off with EVENT_IDX, avail_event stands half of the index space ahead of
 * last_avail: the driver is at most VIRTQ_SIZE_MAX ahead and so crosses it neither now, whatever
 * index it last compared with, nor before it has come this near.
 */
#define PARK_AHEAD 0x8000u
#define PARK_NEAR  0x4000u

_Static_assert(PARK_NEAR > VIRTQ_SIZE_MAX, "re-parked before the driver can cross it");

#define CHAIN_LEN_MAX UINT32_MAX /* used.len must be able to hold it */

/* Guest memory is loaded through these, so that the compiler reads it once and no more. An indirect
 * table need not be aligned (VIRTIO 1.2 2.7.5.3). */
typedef uint64_t unaligned_u64 __attribute__((aligned(1)));

static const volatile struct virtq_avail *avail_of(const struct virtq *vq)
{
	return vq->avail;
}

static volatile struct virtq_used *used_of(const struct virtq *vq)
{
	return vq->used;
}

static uint16_t avail_idx_load(const struct virtq *vq)
{
	return __atomic_load_n(&avail_of(vq)->idx, __ATOMIC_ACQUIRE);
}

/* used_event stands behind the avail ring's entries. */
static uint16_t used_event_load(const struct virtq *vq)
{
	return __atomic_load_n(&avail_of(vq)->ring[vq->size], __ATOMIC_RELAXED);
}

static void avail_event_store(struct virtq *vq, uint16_t event)
{
	volatile uint16_t *at = (volatile uint16_t *)&used_of(vq)->ring[vq->size];

	__atomic_store_n(at, event, __ATOMIC_RELAXED);
}

/* VIRTIO 1.2 2.7.7.2: did the index pass event when it moved from before to after? */
static bool need_event(uint16_t event, uint16_t after, uint16_t before)
{
	return (uint16_t)(after - event - 1) < (uint16_t)(after - before);
}

/* --- attach ----------------------------------------------------------------------------------- */

int ring_attach(struct virtq *vq, const struct gmem *mem, uint16_t size, gpa_t desc_gpa,
                gpa_t avail_gpa, gpa_t used_gpa, bool event_idx, bool indirect)
{
	if (size == 0 || size > VIRTQ_SIZE_MAX || (size & (size - 1)) != 0)
		return -EINVAL;
	if (!IS_ALIGNED(desc_gpa, VIRTQ_DESC_ALIGN) || !IS_ALIGNED(avail_gpa, VIRTQ_AVAIL_ALIGN) ||
	    !IS_ALIGNED(used_gpa, VIRTQ_USED_ALIGN))
		return -EINVAL;
	memset(vq, 0, sizeof(*vq));
	vq->desc = gmem_ptr(mem, desc_gpa, VIRTQ_DESC_BYTES(size));
	vq->avail = gmem_ptr(mem, avail_gpa, VIRTQ_AVAIL_BYTES(size));
	vq->used = gmem_ptr(mem, used_gpa, VIRTQ_USED_BYTES(size));
	if (!vq->desc || !vq->avail || !vq->used)
		return -EINVAL;
	vq->mem = mem;
	vq->size = size;
	vq->event_idx = event_idx;
	vq->indirect = indirect;
	return 0;
}

/* --- descriptors ------------------------------------------------------------------------------ */

/* Where descriptors come from: the ring's own table, or one indirect table. */
struct desc_table {
	const volatile uint8_t *va; /* NULL: in several pieces of memory */
	gpa_t gpa;
	uint32_t count;
};

/* By value, so that the compiler keeps it in registers. */
static struct virtq_desc desc_load(const volatile uint8_t *va, uint32_t index)
{
	const volatile unaligned_u64 *at =
	        (const volatile unaligned_u64 *)(va + index * sizeof(struct virtq_desc));
	uint64_t addr_gpa = at[0], high = at[1];

	return (struct virtq_desc){addr_gpa, (uint32_t)high, (uint16_t)(high >> 32),
	                           (uint16_t)(high >> 48)};
}

/* VIRTIO 1.2 2.7.5.3. The write flag of the descriptor that refers to a table means nothing. */
static int indirect_enter(const struct virtq *vq, const struct virtq_desc *desc,
                          struct desc_table *table)
{
	if (!vq->indirect || (desc->flags & VIRTQ_DESC_F_NEXT) != 0)
		return -EINVAL;
	if (desc->len_bytes == 0 || !IS_ALIGNED(desc->len_bytes, sizeof(*desc)))
		return -EINVAL;
	table->gpa = desc->addr_gpa;
	table->count = desc->len_bytes / (uint32_t)sizeof(*desc);
	table->va = gmem_ptr(vq->mem, desc->addr_gpa, desc->len_bytes);
	return 0;
}

/* What of a chain has been walked. */
struct walk {
	uint64_t sum_bytes;
	uint32_t count;
	bool writes; /* the last segment's direction */
};

static int seg_add(struct virtq_chain *chain, const struct virtq_desc *desc, struct walk *walk)
{
	bool writes = (desc->flags & VIRTQ_DESC_F_WRITE) != 0;
	struct virtq_seg *seg = &chain->seg[walk->count];

	if (desc->len_bytes == 0)
		return 0;
	walk->sum_bytes += desc->len_bytes;
	if (walk->sum_bytes > CHAIN_LEN_MAX)
		return -EINVAL;
	/* 2.7.4.2: what the device reads comes before what it writes. */
	if (walk->writes && !writes)
		return -EINVAL;
	walk->writes = writes;
	walk->count++;
	seg->gpa = desc->addr_gpa;
	seg->len_bytes = desc->len_bytes;
	seg->device_writes = writes;
	return 0;
}

/* A loop among descriptors is one kind of chain that is too long. */
static int chain_walk(const struct virtq *vq, struct virtq_chain *chain)
{
	struct desc_table table = {.va = vq->desc, .count = vq->size};
	uint32_t index = chain->head;
	struct walk walk = {0};
	bool inside = false;

	for (unsigned steps = 0; steps < VIRTQ_CHAIN_MAX; steps++) {
		struct virtq_desc desc;

		if (index >= table.count)
			return -EINVAL;
		if (likely(table.va)) {
			desc = desc_load(table.va, index);
		} else {
			struct virtq_desc copy;

			if (gmem_read(vq->mem, table.gpa + index * sizeof(copy), &copy,
			              sizeof(copy)))
				return -EINVAL;
			desc = copy;
		}
		if (desc.flags & VIRTQ_DESC_F_INDIRECT) {
			if (inside || indirect_enter(vq, &desc, &table))
				return -EINVAL;
			inside = true;
			index = 0;
			steps--; /* the reference is no piece of the chain; it comes once */
			continue;
		}
		if (seg_add(chain, &desc, &walk))
			return -EINVAL;
		if (!(desc.flags & VIRTQ_DESC_F_NEXT)) {
			chain->count = (uint16_t)walk.count;
			return 0;
		}
		index = desc.next;
	}
	return -EINVAL;
}

/* --- pop -------------------------------------------------------------------------------------- */

/* True: there is an entry at last_avail. A jump beyond the ring's size is impossible. */
static bool avail_refresh(struct virtq *vq)
{
	uint16_t idx = avail_idx_load(vq);

	if (unlikely((uint16_t)(idx - vq->last_avail) > vq->size)) {
		vq->broken = true;
		return false;
	}
	vq->avail_seen = idx;
	return idx != vq->last_avail;
}

int ring_pop(struct virtq *vq, struct virtq_chain *chain)
{
	uint16_t head;

	if (unlikely(vq->broken))
		return -EIO;
	if (vq->avail_seen == vq->last_avail && !avail_refresh(vq))
		return vq->broken ? -EIO : 0;
	head = __atomic_load_n(&avail_of(vq)->ring[vq->last_avail & (vq->size - 1)],
	                       __ATOMIC_RELAXED);
	if (unlikely(head >= vq->size)) {
		vq->broken = true;
		return -EIO;
	}
	vq->last_avail++;
	if (!vq->armed && vq->event_idx &&
	    unlikely((uint16_t)(vq->event_parked - vq->last_avail) < PARK_NEAR))
		ring_disarm(vq);
	chain->head = head;
	chain->count = 0;
	return likely(chain_walk(vq, chain) == 0) ? 1 : -EINVAL;
}

/* --- push ------------------------------------------------------------------------------------- */

void ring_push(struct virtq *vq, uint16_t head, uint32_t written_bytes)
{
	volatile struct virtq_used_elem *elem = &used_of(vq)->ring[vq->used_idx & (vq->size - 1)];

	elem->id = head;
	elem->len_bytes = written_bytes;
	vq->used_idx++;
}

void ring_publish(struct virtq *vq)
{
	__atomic_store_n(&used_of(vq)->idx, vq->used_idx, __ATOMIC_RELEASE);
	vq->used_published = vq->used_idx;
}

bool ring_should_signal(struct virtq *vq)
{
	uint16_t before = vq->used_signalled;

	if (!ring_has_untold(vq))
		return false;
	/* used.idx must be visible before the driver's wish is read: else both may miss (2.7.10). */
	atomic_thread_fence(memory_order_seq_cst);
	vq->used_signalled = vq->used_published;
	if (vq->event_idx)
		return need_event(used_event_load(vq), vq->used_published, before);
	return !(__atomic_load_n(&avail_of(vq)->flags, __ATOMIC_RELAXED) &
	         VIRTQ_AVAIL_F_NO_INTERRUPT);
}

/* --- notifications ---------------------------------------------------------------------------- */

void ring_arm(struct virtq *vq)
{
	vq->armed = true;
	if (vq->event_idx)
		avail_event_store(vq, vq->last_avail);
	else
		__atomic_store_n(&used_of(vq)->flags, 0, __ATOMIC_RELAXED);
}

void ring_disarm(struct virtq *vq)
{
	vq->armed = false;
	if (vq->event_idx) {
		vq->event_parked = (uint16_t)(vq->last_avail + PARK_AHEAD);
		avail_event_store(vq, vq->event_parked);
	} else {
		__atomic_store_n(&used_of(vq)->flags, VIRTQ_USED_F_NO_NOTIFY, __ATOMIC_RELAXED);
	}
}
