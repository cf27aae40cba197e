/*
 * The nested page-table builder against a naive model: an array of what each 4 KiB page should be.
 * NPT and EPT's shape both; every large-page switch; the entries' very bits.
 */
#include "arch/x86/nested.h"
#include "arch/x86/svm/npt.h"
#include "test.h"
#include "tests/fake/platform.h"

static uint64_t seed;

static uint64_t rnd(uint64_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed % below;
}

/* Bits as EPT has them, told here once more so that the builder is tested without the back end. */
static const struct nested_format ept_like = {
        .name = "ept",
        .present_mask = 7,
        .addr_mask = 0x0000fffffffff000ull,
        .table_bits = 7,
        .leaf_bits = 7 | 6 << 3,
        .large_bit = BIT(7),
        .mmio_entry = 2,
        .large_2m = true,
        .large_1g = true,
};

/* A window of guest pages that straddles 2 MiB and 1 GiB borders. */
#define WINDOW_GPA   (3 * GIB - 6 * MIB)
#define WINDOW_PAGES (12 * 256u)

struct model {
	uint8_t kind[WINDOW_PAGES];
	hpa_t hpa[WINDOW_PAGES];
};

static void model_compare(const struct nested_format *f, struct hvm_vm *vm, const struct model *m)
{
	for (unsigned i = 0; i < WINDOW_PAGES; i++) {
		gpa_t gpa = WINDOW_GPA + i * 4096ull;
		struct nested_leaf leaf = nested_lookup(f, vm, gpa + 0x123);

		if (leaf.kind != m->kind[i]) {
			CHECK_EQ(leaf.kind, m->kind[i]);
			printf("  page %u of %s\n", i, f->name);
			return;
		}
		if (leaf.kind == NESTED_RAM && leaf.hpa != m->hpa[i] + 0x123) {
			CHECK_EQ(leaf.hpa, m->hpa[i] + 0x123);
			return;
		}
		if (leaf.kind == NESTED_MMIO && leaf.entry != f->mmio_entry) {
			CHECK_EQ(leaf.entry, f->mmio_entry);
			return;
		}
	}
}

static void random_run(const struct nested_format *f)
{
	static struct model m;
	struct hvm_vm vm = {0};

	memset(&m, 0, sizeof(m));
	CHECK_EQ(nested_init(f, &vm), 0);
	for (unsigned step = 0; step < 60; step++) {
		/* Often aligned, so that large pages happen; often not. */
		unsigned grain = rnd(2) ? 512 : 1;
		unsigned first = ALIGN_DOWN((unsigned)rnd(WINDOW_PAGES), grain);
		unsigned want = 1 + (unsigned)rnd(rnd(2) ? 1200 : 40);
		unsigned count = MIN(want, WINDOW_PAGES - first);
		hpa_t hpa = (1 + rnd(1000)) * 2 * MIB + (rnd(2) ? 0 : rnd(512) * 4096);
		bool mmio = rnd(3) == 0, clash = false;
		uint64_t pages_before = vm.nested_pages;
		int err;

		for (unsigned i = first; i < first + count; i++)
			clash |= m.kind[i] != NESTED_HOLE;
		if (mmio)
			err = nested_map_mmio(f, &vm, WINDOW_GPA + first * 4096ull,
			                      count * 4096ull);
		else
			err = nested_map_ram(f, &vm, WINDOW_GPA + first * 4096ull, hpa,
			                     count * 4096ull);
		CHECK_EQ(err, clash ? -EINVAL : 0);
		if (clash) {
			CHECK_EQ(vm.nested_pages, pages_before);
			continue;
		}
		for (unsigned i = 0; i < count; i++) {
			m.kind[first + i] = mmio ? NESTED_MMIO : NESTED_RAM;
			m.hpa[first + i] = hpa + i * 4096ull;
		}
	}
	model_compare(f, &vm, &m);
	/* Nothing outside the window. */
	CHECK_EQ(nested_lookup(f, &vm, WINDOW_GPA - 1).kind, NESTED_HOLE);
	CHECK_EQ(nested_lookup(f, &vm, WINDOW_GPA + WINDOW_PAGES * 4096ull).kind, NESTED_HOLE);
}

static void formats_agree_with_model(void)
{
	for (unsigned run = 0; run < 400; run++) {
		struct nested_format f = ept_like;

		seed = 0x9e3779b97f4a7c15ull * (run + 1);
		if (run & 1)
			npt_format_init(&f, run & 8 ? 52 : 48, !(run & 16), true);
		f.large_2m = !(run & 2);
		f.large_1g = !(run & 4);
		random_run(&f);
		fake_reset();
		if (test_case_failed) {
			printf("  run %u\n", run);
			return;
		}
	}
}

static uint64_t raw(hpa_t table, unsigned index)
{
	return ((uint64_t *)(uintptr_t)table)[index];
}

static void largest_pages_and_table_count(void)
{
	struct hvm_vm vm = {0};
	struct nested_format f = ept_like;

	/* 1 GiB leaf: a root and one table. */
	CHECK_EQ(nested_init(&f, &vm), 0);
	CHECK_EQ(nested_map_ram(&f, &vm, 0, 4 * GIB, 2 * GIB), 0);
	CHECK_EQ(vm.nested_pages, 2);
	CHECK_EQ(nested_lookup(&f, &vm, GIB).len_bytes, GIB);
	CHECK_EQ(nested_lookup(&f, &vm, GIB + 5).hpa, 5 * GIB + 5);

	/* Host address only 2 MiB aligned: 2 MiB leaves. */
	CHECK_EQ(nested_map_ram(&f, &vm, 4 * GIB, 10 * GIB + 2 * MIB, GIB), 0);
	CHECK_EQ(nested_lookup(&f, &vm, 4 * GIB).len_bytes, 2 * MIB);
	CHECK_EQ(vm.nested_pages, 3);

	/* 4 KiB aligned only. */
	CHECK_EQ(nested_map_ram(&f, &vm, 6 * GIB, 10 * GIB + 4096, 4 * MIB), 0);
	CHECK_EQ(nested_lookup(&f, &vm, 6 * GIB).len_bytes, 4096);
	CHECK_EQ(vm.nested_pages, 3 + 3);

	/* Switches. */
	f.large_1g = false;
	CHECK_EQ(nested_map_ram(&f, &vm, 8 * GIB, 20 * GIB, GIB), 0);
	CHECK_EQ(nested_lookup(&f, &vm, 8 * GIB).len_bytes, 2 * MIB);
	f.large_2m = false;
	CHECK_EQ(nested_map_ram(&f, &vm, 9 * GIB, 21 * GIB, 2 * MIB), 0);
	CHECK_EQ(nested_lookup(&f, &vm, 9 * GIB).len_bytes, 4096);

	/* A kick range costs one entry per GiB whatever the switches say: it is not a page. */
	CHECK_EQ(nested_map_mmio(&f, &vm, 1024 * GIB, 64 * GIB), 0);
	CHECK_EQ(nested_lookup(&f, &vm, 1050 * GIB).len_bytes, GIB);
	fake_reset();
}

static void bits_of_npt(void)
{
	struct hvm_vm vm = {0};
	struct nested_format f;
	uint64_t e;

	npt_format_init(&f, 48, true, true);
	CHECK(nested_mmio_is_present(&f));
	CHECK_EQ(nested_init(&f, &vm), 0);
	CHECK_EQ(nested_map_ram(&f, &vm, 0, 0x40000000, 0x200000), 0);
	CHECK_EQ(nested_map_ram(&f, &vm, 0x200000, 0x12345000, 0x1000), 0);
	CHECK_EQ(nested_map_mmio(&f, &vm, 0x201000, 0x1000), 0);

	e = raw(vm.nested_root_hpa, 0);
	CHECK_EQ(e & 0xfff, 0x27);
	e = raw(e & f.addr_mask, 0);
	CHECK_EQ(e & 0xfff, 0x27);
	CHECK_EQ(raw(e & f.addr_mask, 0), 0x400000e7);
	e = raw(e & f.addr_mask, 1);
	CHECK_EQ(e & 0xfff, 0x27);
	CHECK_EQ(raw(e & f.addr_mask, 0), 0x12345067);
	CHECK_EQ(raw(e & f.addr_mask, 1), 0x000f000000000067ull);
	CHECK_EQ(raw(e & f.addr_mask, 2), 0);

	/* No bit left to reserve: not present, yet known as a kick. */
	npt_format_init(&f, 52, true, true);
	CHECK(!nested_mmio_is_present(&f));
	CHECK_EQ(f.mmio_entry & NPT_PRESENT, 0);
	CHECK(f.mmio_entry != 0);
	/* A processor that says nonsense about its width is taken to have no reserved bit. */
	npt_format_init(&f, 0, true, true);
	CHECK_EQ(f.mmio_entry & NPT_PRESENT, 0);
	npt_format_init(&f, 40, false, true);
	CHECK(!nested_mmio_is_present(&f));
	fake_reset();
}

static void refuses_bad_ranges(void)
{
	struct hvm_vm vm = {0};
	const struct nested_format *f = &ept_like;

	CHECK_EQ(nested_init(f, &vm), 0);
	CHECK_EQ(nested_map_ram(f, &vm, 0, 0x1000, 0), -EINVAL);
	CHECK_EQ(nested_map_ram(f, &vm, 0x800, 0x1000, 0x1000), -EINVAL);
	CHECK_EQ(nested_map_ram(f, &vm, 0, 0x1800, 0x1000), -EINVAL);
	CHECK_EQ(nested_map_ram(f, &vm, 0, 0x1000, 0x1800), -EINVAL);
	CHECK_EQ(nested_map_ram(f, &vm, BIT(48), 0x1000, 0x1000), -EINVAL);
	CHECK_EQ(nested_map_ram(f, &vm, BIT(48) - 0x1000, 0x1000, 0x2000), -EINVAL);
	CHECK_EQ(nested_map_ram(f, &vm, 0x1000, 0x1000, ~0xfffull), -EINVAL);
	CHECK_EQ(nested_map_ram(f, &vm, 0, BIT(48), 0x1000), -EINVAL);
	CHECK_EQ(nested_map_ram(f, &vm, 0, BIT(48) - 0x1000, 0x2000), -EINVAL);
	CHECK_EQ(nested_map_mmio(f, &vm, ~0xfffull, 0x2000), -EINVAL);
	CHECK_EQ(vm.nested_pages, 1);
	CHECK_EQ(nested_map_ram(f, &vm, BIT(48) - 0x1000, BIT(48) - 0x1000, 0x1000), 0);
	CHECK_EQ(nested_lookup(f, &vm, BIT(48)).kind, NESTED_HOLE);
	CHECK_EQ(nested_lookup(f, &vm, ~0ull).kind, NESTED_HOLE);

	/* Neighbours are welcome, overlap by one page is not. */
	CHECK_EQ(nested_map_ram(f, &vm, 0, 0, 2 * MIB), 0);
	CHECK_EQ(nested_map_mmio(f, &vm, 2 * MIB - 4096, 4096), -EINVAL);
	CHECK_EQ(nested_map_mmio(f, &vm, 2 * MIB, 4096), 0);
	CHECK_EQ(nested_map_ram(f, &vm, 2 * MIB, 0, 4096), -EINVAL);
	CHECK_EQ(nested_map_ram(f, &vm, 0, 0, 4 * GIB), -EINVAL);
	fake_reset();
}

TESTS(T(formats_agree_with_model), T(largest_pages_and_table_count), T(bits_of_npt),
      T(refuses_bad_ranges))
