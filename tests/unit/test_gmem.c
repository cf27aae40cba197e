#include "vmm/gmem.h"

#include "tests/unit/test.h"
#include <string.h>

static uint8_t low[8192], high[4096];

static struct gmem two_regions(void)
{
	struct gmem mem = {0};

	/* Added out of order: gmem sorts. The second touches the first's end. */
	CHECK_EQ(gmem_add(&mem, 0x3000, sizeof(high), 0x900000, high), 0);
	CHECK_EQ(gmem_add(&mem, 0x1000, sizeof(low), 0x500000, low), 0);
	return mem;
}

static void sorts_and_refuses_overlap(void)
{
	struct gmem mem = two_regions();

	CHECK_EQ(mem.count, 2);
	CHECK_EQ(mem.region[0].gpa, 0x1000);
	CHECK_EQ(mem.region[1].gpa, 0x3000);
	CHECK_EQ(gmem_add(&mem, 0x2fff, 1, 0, low), -EINVAL);
	CHECK_EQ(gmem_add(&mem, 0x3fff, 1, 0, low), -EINVAL);
	CHECK_EQ(gmem_add(&mem, 0, 0x1001, 0, low), -EINVAL);
	CHECK_EQ(gmem_add(&mem, 0, UINT64_MAX, 0, low), -EINVAL);
	CHECK_EQ(gmem_add(&mem, 0x8000, 0, 0, low), -EINVAL);
	CHECK_EQ(gmem_add(&mem, UINT64_MAX - 0xfff, 0x2000, 0, low), -EINVAL);
	CHECK_EQ(gmem_add(&mem, UINT64_MAX - 0xfff, 0x1000, 0, low), 0);
	CHECK_EQ(gmem_add(&mem, 0, 0x1000, 0, low), 0);
	CHECK_EQ(mem.count, 4);
	for (unsigned i = 1; i < mem.count; i++)
		CHECK(mem.region[i - 1].gpa < mem.region[i].gpa);
}

static void takes_sixteen(void)
{
	struct gmem mem = {0};

	for (unsigned i = 0; i < GMEM_REGION_MAX; i++)
		CHECK_EQ(gmem_add(&mem, (gpa_t)(GMEM_REGION_MAX - i) << 13, 4096, 0, low), 0);
	CHECK_EQ(gmem_add(&mem, 0, 4096, 0, low), -ENOSPC);
	for (unsigned i = 0; i < GMEM_REGION_MAX; i++)
		CHECK_EQ(mem.region[i].gpa, (gpa_t)(i + 1) << 13);
}

static void finds_to_the_byte(void)
{
	struct gmem mem = two_regions();
	void *va = NULL;
	hpa_t hpa = 0;

	CHECK_EQ(gmem_find(&mem, 0x0fff, 1, &va, &hpa), 0);
	CHECK_EQ(gmem_find(&mem, 0x1000, 1, &va, &hpa), 1);
	CHECK(va == low);
	CHECK_EQ(gmem_find(&mem, 0x2fff, 100, &va, &hpa), 1);
	CHECK(va == low + 0x1fff);
	CHECK_EQ(hpa, 0x501fff);
	CHECK_EQ(gmem_find(&mem, 0x3000, UINT64_MAX, &va, &hpa), 4096);
	CHECK_EQ(hpa, 0x900000);
	CHECK_EQ(gmem_find(&mem, 0x4000, 1, NULL, NULL), 0);
	CHECK_EQ(gmem_find(&mem, UINT64_MAX, UINT64_MAX, NULL, NULL), 0);

	CHECK(gmem_ptr(&mem, 0x1000, 8192) == low);
	CHECK(gmem_ptr(&mem, 0x1001, 8192) == NULL);
	CHECK(gmem_ptr(&mem, 0x3ff8, 8) == high + 0xff8);
	CHECK(gmem_ptr(&mem, 0x3ff9, 8) == NULL);
	CHECK(gmem_ptr(&mem, 0x3ff9, UINT64_MAX) == NULL);
}

static void copies_across_regions(void)
{
	struct gmem mem = two_regions();
	uint8_t out[8] = {0};

	CHECK_EQ(gmem_write(&mem, 0x2ffd, "abcdef", 6), 0);
	CHECK(!memcmp(low + 0x1ffd, "abc", 3));
	CHECK(!memcmp(high, "def", 3));
	CHECK_EQ(gmem_read(&mem, 0x2ffd, out, 6), 0);
	CHECK(!memcmp(out, "abcdef", 6));
	CHECK_EQ(gmem_read(&mem, 0x3ffd, out, 4), -EFAULT);
	CHECK_EQ(gmem_write(&mem, 0xfff, out, 4), -EFAULT);
	CHECK_EQ(gmem_read(&mem, UINT64_MAX - 1, out, 8), -EFAULT);
	CHECK_EQ(gmem_read(&mem, 0, out, 0), 0);
}

TESTS(T(sorts_and_refuses_overlap), T(takes_sixteen), T(finds_to_the_byte),
      T(copies_across_regions))
