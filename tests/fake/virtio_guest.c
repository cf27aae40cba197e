#include "tests/fake/virtio_guest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* --- memory ----------------------------------------------------------------------------------- */

#define ZONE_BYTES 64u
#define ZONE_FILL  0xa5u

/* Nothing is mapped within GUARD_BYTES of a piece, so that whatever leaves it faults. */
static void *piece_map(uint64_t len_bytes)
{
	uint8_t *all = mmap(NULL, len_bytes + 2 * VGUEST_GUARD_BYTES, PROT_NONE,
	                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (all == MAP_FAILED ||
	    mprotect(all + VGUEST_GUARD_BYTES, len_bytes, PROT_READ | PROT_WRITE))
		abort();
	return all + VGUEST_GUARD_BYTES;
}

void vguest_init(struct vguest *g, unsigned pieces, uint64_t piece_bytes)
{
	memset(g, 0, sizeof(*g));
	g->piece_bytes = piece_bytes;
	g->next_gpa = VGUEST_BASE_GPA;
	g->end_gpa = VGUEST_BASE_GPA + pieces * piece_bytes;
	for (unsigned i = 0; i < pieces; i++) {
		g->piece[i] = piece_map(piece_bytes);
		if (gmem_add(&g->mem, VGUEST_BASE_GPA + i * piece_bytes, piece_bytes,
		             (hpa_t)(uintptr_t)g->piece[i], g->piece[i]))
			abort();
	}
}

void vguest_free(struct vguest *g)
{
	for (unsigned i = 0; i < GMEM_REGION_MAX; i++)
		if (g->piece[i])
			munmap((uint8_t *)g->piece[i] - VGUEST_GUARD_BYTES,
			       g->piece_bytes + 2 * VGUEST_GUARD_BYTES);
	memset(g, 0, sizeof(*g));
}

static void zone_add(struct vguest *g, gpa_t gpa)
{
	if (g->zone_count == VGUEST_ZONE_MAX)
		abort();
	g->zone_gpa[g->zone_count++] = gpa;
	memset(vguest_va(g, gpa), ZONE_FILL, ZONE_BYTES);
}

gpa_t vguest_zone_damaged(struct vguest *g)
{
	uint8_t whole[ZONE_BYTES];

	memset(whole, ZONE_FILL, sizeof(whole));
	for (unsigned i = 0; i < g->zone_count; i++) {
		const uint8_t *at = vguest_va(g, g->zone_gpa[i]);

		if (!memcmp(at, whole, sizeof(whole)))
			continue;
		for (unsigned n = 0; n < ZONE_BYTES; n++)
			if (at[n] != ZONE_FILL)
				return g->zone_gpa[i] + n;
	}
	return 0;
}

gpa_t vguest_alloc_fenced(struct vguest *g, uint64_t len_bytes, uint64_t align)
{
	gpa_t before_gpa = vguest_alloc(g, ZONE_BYTES, 1);
	gpa_t gpa = vguest_alloc(g, len_bytes + ZONE_BYTES, align);

	/* Close to the block, whatever its alignment left between. */
	if (gpa - before_gpa > ZONE_BYTES && (gpa - VGUEST_BASE_GPA) % g->piece_bytes >= ZONE_BYTES)
		before_gpa = gpa - ZONE_BYTES;
	zone_add(g, before_gpa);
	zone_add(g, gpa + len_bytes);
	return gpa;
}

gpa_t vguest_alloc(struct vguest *g, uint64_t len_bytes, uint64_t align)
{
	gpa_t gpa = ALIGN_UP(g->next_gpa, align);
	uint64_t in_piece = (gpa - VGUEST_BASE_GPA) % g->piece_bytes;

	if (in_piece + len_bytes > g->piece_bytes)
		gpa = ALIGN_UP(gpa - in_piece + g->piece_bytes, align);
	if (len_bytes > g->piece_bytes || gpa + len_bytes > g->end_gpa) {
		fprintf(stderr, "vguest: out of memory\n");
		abort();
	}
	g->next_gpa = gpa + len_bytes;
	return gpa;
}

void *vguest_va(struct vguest *g, gpa_t gpa)
{
	return gmem_ptr(&g->mem, gpa, 1);
}

/* --- ring ------------------------------------------------------------------------------------- */

static struct virtq_desc *desc_of(struct vguest_queue *q)
{
	return vguest_va(q->guest, q->desc_gpa);
}

static struct virtq_avail *avail_of(struct vguest_queue *q)
{
	return vguest_va(q->guest, q->avail_gpa);
}

static struct virtq_used *used_of(struct vguest_queue *q)
{
	return vguest_va(q->guest, q->used_gpa);
}

static gpa_t ring_alloc(struct vguest *g, uint64_t len_bytes, uint64_t align)
{
	return (g->fenced ? vguest_alloc_fenced : vguest_alloc)(g, len_bytes, align);
}

void vguest_queue_init(struct vguest_queue *q, struct vguest *g, uint16_t size, bool event_idx,
                       bool indirect)
{
	memset(q, 0, sizeof(*q));
	q->guest = g;
	q->size = size;
	q->event_idx = event_idx;
	q->desc_gpa = ring_alloc(g, VIRTQ_DESC_BYTES(size), VIRTQ_DESC_ALIGN);
	q->avail_gpa = ring_alloc(g, VIRTQ_AVAIL_BYTES(size), VIRTQ_AVAIL_ALIGN);
	q->used_gpa = ring_alloc(g, VIRTQ_USED_BYTES(size), VIRTQ_USED_ALIGN);
	if (indirect)
		q->table_gpa = vguest_alloc(g, (uint64_t)size * VGUEST_INDIRECT_MAX * 16, 16);
	for (uint16_t i = 0; i < size; i++)
		q->free[q->free_count++] = (uint16_t)(size - 1 - i);
}

void vguest_queue_empty(struct vguest_queue *q)
{
	q->avail_idx = q->used_idx = q->kicked_idx = q->free_count = 0;
	for (uint16_t i = 0; i < q->size; i++) {
		q->chain_len[i] = 0;
		q->free[q->free_count++] = (uint16_t)(q->size - 1 - i);
	}
	memset(desc_of(q), 0, VIRTQ_DESC_BYTES(q->size));
	memset(avail_of(q), 0, VIRTQ_AVAIL_BYTES(q->size));
	memset(used_of(q), 0, VIRTQ_USED_BYTES(q->size));
}

void vguest_desc_set(struct vguest_queue *q, uint16_t index, gpa_t gpa, uint32_t len_bytes,
                     uint16_t flags, uint16_t next)
{
	desc_of(q)[index] = (struct virtq_desc){gpa, len_bytes, flags, next};
}

struct virtq_desc *vguest_table(struct vguest_queue *q, uint16_t head)
{
	return vguest_va(q->guest, q->table_gpa + (uint64_t)head * VGUEST_INDIRECT_MAX * 16);
}

int vguest_add(struct vguest_queue *q, const struct vguest_buf *bufs, unsigned count)
{
	uint16_t head, index;

	if (count == 0 || count > q->free_count)
		return -1;
	head = index = q->free[--q->free_count];
	q->chain_len[head] = (uint16_t)count;
	for (unsigned i = 0; i < count; i++) {
		bool last = i + 1 == count;
		uint16_t next = last ? 0 : q->free[--q->free_count];
		uint16_t flags = (uint16_t)((last ? 0 : VIRTQ_DESC_F_NEXT) |
		                            (bufs[i].device_writes ? VIRTQ_DESC_F_WRITE : 0));

		vguest_desc_set(q, index, bufs[i].gpa, bufs[i].len_bytes, flags, next);
		q->next[index] = next;
		index = next;
	}
	return head;
}

int vguest_add_indirect(struct vguest_queue *q, const struct vguest_buf *bufs, unsigned count)
{
	struct virtq_desc *table;
	uint16_t head;

	if (count == 0 || count > VGUEST_INDIRECT_MAX || q->free_count == 0)
		return -1;
	head = q->free[--q->free_count];
	q->chain_len[head] = 1;
	table = vguest_table(q, head);
	for (unsigned i = 0; i < count; i++) {
		table[i].addr_gpa = bufs[i].gpa;
		table[i].len_bytes = bufs[i].len_bytes;
		table[i].flags = (uint16_t)((i + 1 < count ? VIRTQ_DESC_F_NEXT : 0) |
		                            (bufs[i].device_writes ? VIRTQ_DESC_F_WRITE : 0));
		table[i].next = (uint16_t)(i + 1);
	}
	vguest_desc_set(q, head, q->table_gpa + (uint64_t)head * VGUEST_INDIRECT_MAX * 16,
	                count * 16, VIRTQ_DESC_F_INDIRECT, 0);
	return head;
}

void vguest_avail_set(struct vguest_queue *q, uint16_t slot, uint16_t head)
{
	avail_of(q)->ring[slot & (q->size - 1)] = head;
}

void vguest_avail_idx_set(struct vguest_queue *q, uint16_t idx)
{
	q->avail_idx = idx;
	__atomic_store_n(&avail_of(q)->idx, idx, __ATOMIC_RELEASE);
}

void vguest_publish(struct vguest_queue *q, uint16_t head)
{
	vguest_avail_set(q, q->avail_idx, head);
	vguest_avail_idx_set(q, (uint16_t)(q->avail_idx + 1));
}

/* --- notifications ---------------------------------------------------------------------------- */

uint16_t vguest_avail_event(struct vguest_queue *q)
{
	uint16_t *at = (uint16_t *)&used_of(q)->ring[q->size];

	return __atomic_load_n(at, __ATOMIC_RELAXED);
}

uint16_t vguest_used_flags(struct vguest_queue *q)
{
	return __atomic_load_n(&used_of(q)->flags, __ATOMIC_RELAXED);
}

uint16_t vguest_used_idx(struct vguest_queue *q)
{
	return __atomic_load_n(&used_of(q)->idx, __ATOMIC_ACQUIRE);
}

bool vguest_kick_needed(struct vguest_queue *q)
{
	uint16_t before = q->kicked_idx, after = q->avail_idx;

	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	q->kicked_idx = after;
	if (!q->event_idx)
		return !(vguest_used_flags(q) & VIRTQ_USED_F_NO_NOTIFY);
	return (uint16_t)(after - vguest_avail_event(q) - 1) < (uint16_t)(after - before);
}

static void used_event_set(struct vguest_queue *q, uint16_t event)
{
	__atomic_store_n(&avail_of(q)->ring[q->size], event, __ATOMIC_RELAXED);
}

void vguest_irq_on(struct vguest_queue *q)
{
	if (q->event_idx)
		used_event_set(q, q->used_idx);
	else
		__atomic_store_n(&avail_of(q)->flags, 0, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void vguest_irq_off(struct vguest_queue *q)
{
	if (q->event_idx)
		used_event_set(q, (uint16_t)(q->used_idx - 1));
	else
		__atomic_store_n(&avail_of(q)->flags, VIRTQ_AVAIL_F_NO_INTERRUPT, __ATOMIC_RELAXED);
}

/* --- used ring -------------------------------------------------------------------------------- */

/* Follows the chain as this driver built it, whatever its descriptors have become since. */
static void chain_free(struct vguest_queue *q, uint16_t head)
{
	uint16_t index = head;

	for (uint16_t left = q->chain_len[head]; left > 0; left--) {
		q->free[q->free_count++] = index;
		index = q->next[index];
	}
	q->chain_len[head] = 0;
}

bool vguest_used_pop(struct vguest_queue *q, uint32_t *head, uint32_t *written_bytes)
{
	struct virtq_used_elem elem;

	if (vguest_used_idx(q) == q->used_idx)
		return false;
	elem = used_of(q)->ring[q->used_idx & (q->size - 1)];
	q->used_idx++;
	*head = elem.id;
	*written_bytes = elem.len_bytes;
	if (elem.id < q->size)
		chain_free(q, (uint16_t)elem.id);
	return true;
}
