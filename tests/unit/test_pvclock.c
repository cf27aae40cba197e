#include "tests/unit/test.h"
#include "tests/unit/vm_fixture.h"

struct time_page {
	uint32_t version, pad0;
	uint64_t tsc_timestamp, system_time;
	uint32_t mul;
	int8_t shift;
	uint8_t flags, pad[2];
};

/* As a Linux guest computes it. */
static uint64_t guest_ns(const struct time_page *page, uint64_t tsc)
{
	uint64_t delta = tsc - page->tsc_timestamp;

	delta = page->shift >= 0 ? delta << page->shift : delta >> -page->shift;
	return page->system_time + (uint64_t)((unsigned __int128)delta * page->mul >> 32);
}

static const struct time_page *page_at(gpa_t gpa)
{
	return (const void *)(fx_ram + gpa);
}

static void scale_is_exact(void)
{
	static const uint64_t rates[] = {1000000000, 1000000001, 999999999,  500000000,
	                                 2000000000, 2400000000, 2399999987, 4294967296,
	                                 5800000000, 100000000,  33333333,   10000000000};

	fx_init(1);
	for (size_t i = 0; i < ARRAY_LEN(rates); i++) {
		uint64_t hz = rates[i], hour_tsc = hz * 3600, day_tsc = hour_tsc * 24;

		pvclock_init(&fx_vm.clock, hz, 0);
		CHECK(fx_vm.clock.tsc_to_system_mul >> 31);
		CHECK_EQ(pvclock_system_time_set(&fx_vm.clock, &fx_vm.mem, 0x1001), 0);
		CHECK_EQ(guest_ns(page_at(0x1000), 0), 0);
		/* One part in 2^31 at most: 0.04 ms a day. */
		CHECK(guest_ns(page_at(0x1000), hour_tsc) <= 3600000000000ull);
		CHECK(guest_ns(page_at(0x1000), hour_tsc) >= 3600000000000ull - 1800);
		CHECK(guest_ns(page_at(0x1000), day_tsc) <= 86400000000000ull);
		CHECK(guest_ns(page_at(0x1000), day_tsc) >= 86400000000000ull - 43000);
	}
	pvclock_init(&fx_vm.clock, 1000000000, 0);
	CHECK_EQ(fx_vm.clock.tsc_to_system_mul, 0x80000000);
	CHECK_EQ(fx_vm.clock.tsc_shift, 1);
}

static void time_page_protocol(void)
{
	fx_init(1);
	pvclock_init(&fx_vm.clock, 2500000000, 0);
	memset(fx_ram, 0xaa, 0x2000);
	memset(fx_ram + 0x1000, 0, 4);
	CHECK_EQ(pvclock_system_time_set(&fx_vm.clock, &fx_vm.mem, 0x1000), 0);
	CHECK_EQ(page_at(0x1000)->version, 0); /* off: untouched */
	CHECK_EQ(pvclock_system_time_set(&fx_vm.clock, &fx_vm.mem, 0x1001), 0);
	CHECK_EQ(page_at(0x1000)->version, 2);
	CHECK_EQ(page_at(0x1000)->tsc_timestamp, 0);
	CHECK_EQ(page_at(0x1000)->flags, 1);
	CHECK_EQ(fx_ram[0x1020], 0xaa); /* 32 bytes, not one more */
	CHECK_EQ(fx_ram[0xfff], 0xaa);
	/* Every write has a version of its own, even, whatever stood there. */
	CHECK_EQ(pvclock_system_time_set(&fx_vm.clock, &fx_vm.mem, 0x1001), 0);
	CHECK_EQ(page_at(0x1000)->version, 4);
	fx_ram[0x1000] = 7;
	CHECK_EQ(pvclock_system_time_set(&fx_vm.clock, &fx_vm.mem, 0x1001), 0);
	CHECK_EQ(page_at(0x1000)->version, 8);
	/* Hostile addresses. */
	CHECK_EQ(pvclock_system_time_set(&fx_vm.clock, &fx_vm.mem, FX_RAM_BYTES | 1), -EFAULT);
	CHECK_EQ(pvclock_system_time_set(&fx_vm.clock, &fx_vm.mem, (FX_RAM_BYTES - 16) | 1),
	         -EFAULT);
	CHECK_EQ(pvclock_system_time_set(&fx_vm.clock, &fx_vm.mem, UINT64_MAX), -EFAULT);
	CHECK_EQ(pvclock_system_time_set(&fx_vm.clock, &fx_vm.mem, (FX_RAM_BYTES - 32) | 1), 0);
	/* Unaligned, across pages: nobody does, nobody is hurt. */
	CHECK_EQ(pvclock_system_time_set(&fx_vm.clock, &fx_vm.mem, 0x1ff3), 0);
}

static void wall_clock(void)
{
	const uint32_t *page;

	fx_init(1);
	pvclock_init(&fx_vm.clock, 2500000000, 1700000000123456789ull);
	CHECK_EQ(pvclock_wall_clock_set(&fx_vm.clock, &fx_vm.mem, 0x3000), 0);
	page = (const void *)(fx_ram + 0x3000);
	CHECK_EQ(page[0], 2);
	CHECK_EQ(page[1], 1700000000);
	CHECK_EQ(page[2], 123456789);
	CHECK_EQ(page[3], 0);
	CHECK_EQ(pvclock_wall_clock_set(&fx_vm.clock, &fx_vm.mem, FX_RAM_BYTES - 4), -EFAULT);
	CHECK_EQ(pvclock_wall_clock_set(&fx_vm.clock, &fx_vm.mem, UINT64_MAX), -EFAULT);
}

TESTS(T(scale_is_exact), T(time_page_protocol), T(wall_clock))
