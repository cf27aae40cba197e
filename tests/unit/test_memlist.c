/* boot/ is no part of the hosted archive; this one file of it is pure. */
#include "boot/memlist.c"
#include "tests/unit/test.h"
#include <stdlib.h>
#include <string.h>

static struct boot_info info;

static void start(void)
{
	memset(&info, 0, sizeof(info));
}

static bool is(uint32_t i, hpa_t base_hpa, uint64_t len_bytes, enum boot_mem_type type)
{
	const struct boot_mem *m = &info.mem[i];

	return i < info.mem_count && m->base_hpa == base_hpa && m->len_bytes == len_bytes &&
	       m->type == type;
}

static void test_sorted_and_joined(void)
{
	start();
	memlist_add(&info, 0x3000, 0x1000, BOOT_MEM_FREE);
	memlist_add(&info, 0x1000, 0x1000, BOOT_MEM_FREE);
	memlist_add(&info, 0x2000, 0x1000, BOOT_MEM_FREE);
	memlist_add(&info, 0x8000, 0, BOOT_MEM_FREE);
	memlist_add(&info, 0x4000, 0x1000, BOOT_MEM_ACPI);
	memlist_finish(&info);
	CHECK_EQ(info.mem_count, 2);
	CHECK(is(0, 0x1000, 0x3000, BOOT_MEM_FREE));
	CHECK(is(1, 0x4000, 0x1000, BOOT_MEM_ACPI));
}

static void test_overlap_is_never_free(void)
{
	start();
	memlist_add(&info, 0x0, 0x10000, BOOT_MEM_FREE);
	memlist_add(&info, 0x4000, 0x2000, BOOT_MEM_RESERVED);
	memlist_finish(&info);
	CHECK_EQ(info.mem_count, 2);
	CHECK(is(0, 0, 0x4000, BOOT_MEM_FREE));
	CHECK(is(1, 0x4000, 0x2000, BOOT_MEM_RESERVED));

	start();
	memlist_add(&info, 0x0, 0x4000, BOOT_MEM_RUNTIME);
	memlist_add(&info, 0x2000, 0x4000, BOOT_MEM_FREE);
	memlist_finish(&info);
	CHECK_EQ(info.mem_count, 2);
	CHECK(is(1, 0x4000, 0x2000, BOOT_MEM_FREE));

	start();
	memlist_add(&info, 0x1000, 0x1000, BOOT_MEM_FREE);
	memlist_add(&info, 0x1000, 0x1000, BOOT_MEM_MMIO);
	memlist_finish(&info);
	CHECK_EQ(info.mem_count, 1);
	CHECK(is(0, 0x1000, 0x1000, BOOT_MEM_MMIO));
}

/* Whatever firmware says: sorted, no overlap, and no free byte that something else claims. */
static void test_random_maps(void)
{
	static const enum boot_mem_type types[] = {BOOT_MEM_FREE, BOOT_MEM_RUNTIME, BOOT_MEM_ACPI,
	                                           BOOT_MEM_FREE};

	srand(1);
	for (int round = 0; round < 20000; round++) {
		bool claimed[64] = {false};

		start();
		for (int i = 0; i < 8; i++) {
			unsigned base = (unsigned)rand() % 48, len = (unsigned)rand() % 16;
			enum boot_mem_type type = types[rand() % 4];

			memlist_add(&info, base * PAGE_SIZE, len * PAGE_SIZE, type);
			for (unsigned p = base; p < base + len; p++)
				claimed[p] |= type != BOOT_MEM_FREE;
		}
		memlist_finish(&info);
		for (uint32_t i = 0; i < info.mem_count; i++) {
			const struct boot_mem *m = &info.mem[i];
			bool last = i + 1 == info.mem_count;

			CHECK(m->len_bytes > 0);
			CHECK(last || m->base_hpa + m->len_bytes <= info.mem[i + 1].base_hpa);
			for (hpa_t p = m->base_hpa; p < m->base_hpa + m->len_bytes; p += PAGE_SIZE)
				CHECK(m->type != BOOT_MEM_FREE || !claimed[p / PAGE_SIZE]);
		}
	}
}

static void test_too_many_ranges(void)
{
	start();
	for (unsigned i = 0; i < 2 * BOOT_MEM_MAX; i++)
		memlist_add(&info, 2ull * i * PAGE_SIZE, PAGE_SIZE, BOOT_MEM_FREE);
	memlist_finish(&info);
	CHECK_EQ(info.mem_count, BOOT_MEM_MAX);
	memlist_add(&info, UINT64_MAX - PAGE_SIZE + 1, 2 * PAGE_SIZE, BOOT_MEM_FREE);
	CHECK_EQ(info.mem_count, BOOT_MEM_MAX);
}

static void test_low_page(void)
{
	start();
	CHECK_EQ(memlist_low_page(&info), 0);
	memlist_add(&info, 0, PAGE_SIZE, BOOT_MEM_FREE);
	memlist_add(&info, MIB, MIB, BOOT_MEM_FREE);
	memlist_finish(&info);
	CHECK_EQ(memlist_low_page(&info), 0);
	start();
	memlist_add(&info, 0, 0x87000, BOOT_MEM_KEEP);
	memlist_add(&info, 0x87000, 0x2000, BOOT_MEM_FREE);
	memlist_add(&info, 0x89000, MIB, BOOT_MEM_RESERVED);
	memlist_finish(&info);
	CHECK_EQ(memlist_low_page(&info), 0x88000);
}

static void test_types(void)
{
	CHECK_EQ(memlist_type(5), BOOT_MEM_RUNTIME);
	CHECK_EQ(memlist_type(6), BOOT_MEM_RUNTIME);
	CHECK_EQ(memlist_type(3), BOOT_MEM_FREE);
	CHECK_EQ(memlist_type(7), BOOT_MEM_FREE);
	CHECK_EQ(memlist_type(2), BOOT_MEM_KEEP);
	CHECK_EQ(memlist_type(0), BOOT_MEM_RESERVED);
	CHECK_EQ(memlist_type(8), BOOT_MEM_RESERVED);
	CHECK_EQ(memlist_type(14), BOOT_MEM_RESERVED);
	CHECK_EQ(memlist_type(0x80000000), BOOT_MEM_RESERVED);
}

TESTS(T(test_sorted_and_joined), T(test_overlap_is_never_free), T(test_random_maps),
      T(test_too_many_ranges), T(test_low_page), T(test_types))
