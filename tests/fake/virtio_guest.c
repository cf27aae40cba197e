#include "tests/fake/virtio_guest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- memory ----------------------------------------------------------------------------------- */

void vguest_init(struct vguest *g, unsigned pieces, uint64_t piece_bytes)
{
	memset(g, 0, sizeof(*g));
	g->piece_bytes = piece_bytes;
	g->next_gpa = VGUEST_BASE_GPA;
	g->end_gpa = VGUEST_BASE_GPA + pieces * piece_bytes;
	for (unsigned i = 0; i < pieces; i++) {
		g->piece[i] = aligned_alloc(4096, piece_bytes);
		if (!g->piece[i])
			abort();
		memset(g->piece[i], 0, piece_bytes);
		if (gmem_add(&g->mem, VGUEST_BASE_GPA + i * piece_bytes, piece_bytes,
		             (hpa_t)(uintptr_t)g->piece[i], g->piece[i]))
			abort();
	}
}

void vguest_free(struct vguest *g)
{
	for (unsigned i = 0; i < GMEM_REGION_MAX; i++)
		free(g->piece[i]);
	memset(g, 0, sizeof(*g));
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

void vguest_queue_init(struct vguest_queue *q, struct vguest *g, uint16_t size, bool event_idx,
                       bool indirect)
{
	memset(q, 0, sizeof(*q));
	q->guest = g;
	q->size = size;
	q->event_idx = event_idx;
	q->desc_gpa = vguest_alloc(g, VIRTQ_DESC_BYTES(size), VIRTQ_DESC_ALIGN);
	q->avail_gpa = vguest_alloc(g, VIRTQ_AVAIL_BYTES(size), VIRTQ_AVAIL_ALIGN);
	q->used_gpa = vguest_alloc(g, VIRTQ_USED_BYTES(size), VIRTQ_USED_ALIGN);
	if (indirect)
		q->table_gpa = vguest_alloc(g, (uint64_t)size * VGUEST_INDIRECT_MAX * 16, 16);
	for (uint16_t i = 0; i < size; i++)
		q->free[q->free_count++] = (uint16_t)(size - 1 - i);
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
		__atomic_store_n(&avail_of(q)->flags, VIRTQ_AVAIL_F_NO_INTERRUPT,
		                 __ATOMIC_RELAXED);
}

/* --- used ring -------------------------------------------------------------------------------- */

/* Follows the chain as this driver built it, at most chain_len descriptors. */
static void chain_free(struct vguest_queue *q, uint16_t head)
{
	uint16_t index = head;

	for (uint16_t left = q->chain_len[head]; left > 0; left--) {
		q->free[q->free_count++] = index;
		index = desc_of(q)[index].next & (uint16_t)(q->size - 1);
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
