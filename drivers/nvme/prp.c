#include "drivers/nvme/nvme.h"
#include "arch/platform.h"

#define LIST_ENTRIES (PAGE_SIZE / 8)

/* Past segments that are used up or empty; false: at the end. */
static bool cursor_settle(struct nvme_cursor *at)
{
	while (at->seg < at->seg_count && at->seg_offset == at->segs[at->seg].len_bytes) {
		at->seg++;
		at->seg_offset = 0;
	}
	return at->seg < at->seg_count;
}

/* The contiguous memory at the cursor, at most limit_bytes of it; steps over it. 0: the end. */
static uint64_t cursor_take(struct nvme_cursor *at, uint64_t limit_bytes, hpa_t *hpa)
{
	const struct bio_seg *seg;
	uint64_t len_bytes;

	if (!cursor_settle(at))
		return 0;
	seg = &at->segs[at->seg];
	len_bytes = MIN(seg->len_bytes - at->seg_offset, limit_bytes);
	*hpa = seg->hpa + at->seg_offset;
	at->seg_offset += len_bytes;
	return len_bytes;
}

void nvme_cursor_advance(struct nvme_cursor *at, uint64_t len_bytes)
{
	hpa_t hpa;

	while (len_bytes) {
		uint64_t took_bytes = cursor_take(at, len_bytes, &hpa);

		if (!took_bytes)
			return;
		len_bytes -= took_bytes;
	}
}

/*
 * PRP1 may point anywhere dword aligned; after it every page must be used from its first byte, so
 * memory may break only at page boundaries (4.3).
 */
uint64_t nvme_prp_span(const struct nvme_cursor *at, uint64_t limit_bytes, uint32_t block_bytes)
{
	struct nvme_cursor c = *at;
	hpa_t hpa, end_hpa;
	uint64_t len_bytes = cursor_take(&c, limit_bytes, &hpa);

	if (!len_bytes || !IS_ALIGNED(hpa, 4))
		return 0;
	end_hpa = hpa + len_bytes;
	while (len_bytes < limit_bytes) {
		uint64_t more_bytes = cursor_take(&c, limit_bytes - len_bytes, &hpa);

		if (!more_bytes)
			break;
		if (hpa != end_hpa && !IS_ALIGNED(hpa | end_hpa, PAGE_SIZE))
			break;
		len_bytes += more_bytes;
		end_hpa = hpa + more_bytes;
	}
	return ALIGN_DOWN(len_bytes, block_bytes);
}

void nvme_prp_build(const struct nvme_cursor *at, uint64_t len_bytes, uint64_t *list,
                    hpa_t list_hpa, struct nvme_sqe *sqe)
{
	struct nvme_cursor c = *at;
	uint64_t left_bytes = len_bytes;
	uint32_t slot = 0, entries_left;
	hpa_t hpa, page_hpa, end_hpa, second_hpa = 0;

	end_hpa = cursor_take(&c, left_bytes, &hpa);
	left_bytes -= end_hpa;
	end_hpa += hpa;
	sqe->prp1 = hpa;
	entries_left =
	        (uint32_t)(((hpa & (PAGE_SIZE - 1)) + len_bytes + PAGE_SIZE - 1) >> PAGE_SHIFT) - 1;
	page_hpa = ALIGN_DOWN(hpa, PAGE_SIZE) + PAGE_SIZE;
	for (;;) {
		for (; page_hpa < end_hpa; page_hpa += PAGE_SIZE) {
			/* A list page's last entry leads to the next page, unless it is the last.
			 */
			if (slot % LIST_ENTRIES == LIST_ENTRIES - 1 && entries_left > 1) {
				list[slot] = list_hpa + (slot + 1) * sizeof(list[0]);
				slot++;
			}
			if (slot == 0)
				second_hpa = page_hpa;
			list[slot++] = page_hpa;
			entries_left--;
		}
		if (!left_bytes)
			break;
		end_hpa = cursor_take(&c, left_bytes, &hpa);
		if (!end_hpa)
			break;
		left_bytes -= end_hpa;
		end_hpa += hpa;
		page_hpa = ALIGN_UP(hpa, PAGE_SIZE);
	}
	sqe->prp2 = slot <= 1 ? second_hpa : list_hpa;
}

/*
 * Grows block by block only until the data can go directly again: with a break inside a block
 * that is one block, with memory that is not dword aligned all of it.
 */
uint32_t nvme_bounce_span(const struct nvme_cursor *at, uint64_t limit_bytes, uint32_t block_bytes)
{
	uint32_t max_bytes = (uint32_t)MIN(limit_bytes, NVME_BOUNCE_BYTES), len_bytes = 0;
	struct nvme_cursor c = *at;
	hpa_t hpa;

	while (len_bytes < max_bytes) {
		for (uint64_t need_bytes = block_bytes; need_bytes;) {
			uint64_t took_bytes = cursor_take(&c, need_bytes, &hpa);

			if (!took_bytes)
				return len_bytes;
			need_bytes -= took_bytes;
		}
		len_bytes += block_bytes;
		if (nvme_prp_span(&c, block_bytes, block_bytes))
			break;
	}
	return len_bytes;
}

void nvme_bounce_copy(const struct nvme_cursor *at, void *bounce, uint32_t len_bytes, bool to_segs)
{
	struct nvme_cursor c = *at;
	uint8_t *data = bounce;
	hpa_t hpa;

	while (len_bytes) {
		uint32_t took_bytes = (uint32_t)cursor_take(&c, len_bytes, &hpa);
		void *mem = (void *)(uintptr_t)hpa;

		if (!took_bytes)
			return;
		if (to_segs)
			memcpy(mem, data, took_bytes);
		else
			memcpy(data, mem, took_bytes);
		data += took_bytes;
		len_bytes -= took_bytes;
	}
}
