#include "vmm/gmem.h"

#include "arch/platform.h"

static bool overlaps(const struct gmem_region *region, gpa_t gpa, uint64_t len_bytes)
{
	return gpa < region->gpa ? region->gpa - gpa < len_bytes
	                         : gpa - region->gpa < region->len_bytes;
}

int gmem_add(struct gmem *mem, gpa_t gpa, uint64_t len_bytes, hpa_t hpa, void *va)
{
	unsigned at = 0;

	if (!len_bytes || !va || gpa + len_bytes - 1 < gpa || hpa + len_bytes - 1 < hpa)
		return -EINVAL;
	if (mem->count >= GMEM_REGION_MAX)
		return -ENOSPC;
	for (unsigned i = 0; i < mem->count; i++) {
		if (overlaps(&mem->region[i], gpa, len_bytes))
			return -EINVAL;
		if (mem->region[i].gpa < gpa)
			at = i + 1;
	}
	for (unsigned i = mem->count; i > at; i--)
		mem->region[i] = mem->region[i - 1];
	mem->region[at] = (struct gmem_region){gpa, len_bytes, hpa, va};
	mem->count++;
	return 0;
}

uint64_t gmem_find(const struct gmem *mem, gpa_t gpa, uint64_t len_bytes, void **va, hpa_t *hpa)
{
	for (unsigned i = 0; i < mem->count; i++) {
		const struct gmem_region *region = &mem->region[i];
		uint64_t offset = gpa - region->gpa;

		if (gpa < region->gpa || offset >= region->len_bytes)
			continue;
		if (va)
			*va = region->va + offset;
		if (hpa)
			*hpa = region->hpa + offset;
		return MIN(len_bytes, region->len_bytes - offset);
	}
	return 0;
}

void *gmem_ptr(const struct gmem *mem, gpa_t gpa, uint64_t len_bytes)
{
	void *va = NULL;

	return gmem_find(mem, gpa, len_bytes, &va, NULL) == len_bytes ? va : NULL;
}

int gmem_read(const struct gmem *mem, gpa_t gpa, void *dst, uint64_t len_bytes)
{
	uint8_t *to = dst;

	while (len_bytes) {
		void *va;
		uint64_t part = gmem_find(mem, gpa, len_bytes, &va, NULL);

		if (!part)
			return -EFAULT;
		memcpy(to, va, part);
		to += part;
		gpa += part;
		len_bytes -= part;
	}
	return 0;
}

int gmem_write(const struct gmem *mem, gpa_t gpa, const void *src, uint64_t len_bytes)
{
	const uint8_t *from = src;

	while (len_bytes) {
		void *va;
		uint64_t part = gmem_find(mem, gpa, len_bytes, &va, NULL);

		if (!part)
			return -EFAULT;
		memcpy(va, from, part);
		from += part;
		gpa += part;
		len_bytes -= part;
	}
	return 0;
}
