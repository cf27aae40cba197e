#include "arch/platform.h"
#include "arch/x86/arch.h"
#include "arch/x86/core.h"

#define RANGE_MAX   (BOOT_MEM_MAX + 64u)
#define LOW_RESERVE MIB /* firmware, trampoline and ROM shadows live below; never hand it out */

struct range {
	hpa_t base, end;
};

/* Boot core only, so no lock. */
static struct range ranges[RANGE_MAX];
static unsigned range_count;

void mem_init(const struct boot_info *info)
{
	for (uint32_t i = 0; i < info->mem_count && range_count < RANGE_MAX; i++) {
		const struct boot_mem *m = &info->mem[i];
		hpa_t base = MAX(m->base_hpa, LOW_RESERVE), end = m->base_hpa + m->len_bytes;

		if (m->type == BOOT_MEM_FREE && base < end)
			ranges[range_count++] = (struct range){base, end};
	}
}

static void range_remove(unsigned i)
{
	ranges[i] = ranges[--range_count];
}

/* Best fit, so that small requests do not break the pieces guests' memory wants. */
static int range_pick(uint64_t len_bytes, uint64_t align_bytes)
{
	uint64_t best_left = UINT64_MAX;
	int best = -1;

	for (unsigned i = 0; i < range_count; i++) {
		hpa_t at = ALIGN_UP(ranges[i].base, align_bytes);
		uint64_t left;

		if (at < ranges[i].base || at >= ranges[i].end || ranges[i].end - at < len_bytes)
			continue;
		left = ranges[i].end - ranges[i].base - len_bytes;
		if (left < best_left) {
			best_left = left;
			best = (int)i;
		}
	}
	return best;
}

void *plat_mem_alloc(uint64_t len_bytes, uint64_t align_bytes)
{
	hpa_t at, end;
	int i;

	if (len_bytes == 0 || len_bytes > BIT(46))
		return NULL;
	len_bytes = ALIGN_UP(len_bytes, 8ull);
	align_bytes = MAX(align_bytes, 8ull);
	i = range_pick(len_bytes, align_bytes);
	if (i < 0)
		return NULL;
	at = ALIGN_UP(ranges[i].base, align_bytes);
	end = ranges[i].end;
	if (at == ranges[i].base && at + len_bytes == end) {
		range_remove((unsigned)i);
	} else if (at == ranges[i].base) {
		ranges[i].base = at + len_bytes;
	} else {
		ranges[i].end = at;
		/* A full table costs only the piece behind. */
		if (at + len_bytes < end && range_count < RANGE_MAX)
			ranges[range_count++] = (struct range){at + len_bytes, end};
	}
	return memset((void *)at, 0, len_bytes);
}

hpa_t plat_hpa(const void *va)
{
	return (hpa_t)va;
}

uint64_t core_mem_free_bytes(void)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < range_count; i++)
		sum += ranges[i].end - ranges[i].base;
	return sum;
}

bool core_mem_largest(uint64_t align_bytes, uint64_t *len_bytes)
{
	uint64_t best = 0;

	for (unsigned i = 0; i < range_count; i++) {
		hpa_t at = ALIGN_UP(ranges[i].base, align_bytes);

		if (at >= ranges[i].base && at < ranges[i].end)
			best = MAX(best, ranges[i].end - at);
	}
	*len_bytes = best;
	return best > 0;
}
