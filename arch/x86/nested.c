/*
 * Nested page tables: build and look up. See nested.h for the rules.
 */
#include "arch/x86/nested.h"

#include "arch/platform.h"

typedef _Atomic uint64_t nested_entry;

_Static_assert(sizeof(nested_entry) * NESTED_TABLE_LEN == PAGE_SIZE, "a table is one page");

static nested_entry *table_at(hpa_t hpa)
{
	return (nested_entry *)(uintptr_t)hpa;
}

static unsigned index_at(gpa_t gpa, unsigned level)
{
	return (gpa >> (PAGE_SHIFT + 9u * (level - 1u))) & (NESTED_TABLE_LEN - 1u);
}

static uint64_t entry_load(const nested_entry *entry)
{
	return atomic_load_explicit(entry, memory_order_acquire);
}

/* Release: what the entry points to is complete before a walker can find it. */
static void entry_store(nested_entry *entry, uint64_t value)
{
	atomic_store_explicit(entry, value, memory_order_release);
}

static bool entry_is_leaf(const struct nested_format *format, uint64_t value, unsigned level)
{
	return level == 1 || value == format->mmio_entry || (value & format->large_bit);
}

static hpa_t table_new(struct hvm_vm *vm)
{
	void *page = plat_mem_alloc(PAGE_SIZE, PAGE_SIZE);

	if (!page)
		return 0;
	vm->nested_pages++;
	return plat_hpa(page);
}

int nested_init(const struct nested_format *format, struct hvm_vm *vm)
{
	(void)format;
	vm->nested_pages = 0;
	vm->nested_root_hpa = table_new(vm);
	return vm->nested_root_hpa ? 0 : -ENOMEM;
}

struct nested_leaf nested_lookup(const struct nested_format *format, const struct hvm_vm *vm,
                                 gpa_t gpa)
{
	struct nested_leaf leaf = {.kind = NESTED_HOLE, .len_bytes = 1ull << NESTED_GPA_BITS};
	hpa_t table_hpa = vm->nested_root_hpa;

	if (gpa >> NESTED_GPA_BITS)
		return leaf;
	for (unsigned level = NESTED_LEVELS;; level--) {
		uint64_t value = entry_load(&table_at(table_hpa)[index_at(gpa, level)]);

		leaf.len_bytes = nested_span(level);
		if (!value)
			return leaf;
		if (!entry_is_leaf(format, value, level)) {
			table_hpa = value & format->addr_mask;
			continue;
		}
		leaf.entry = value;
		leaf.kind = value == format->mmio_entry ? NESTED_MMIO : NESTED_RAM;
		if (leaf.kind == NESTED_RAM)
			leaf.hpa = (value & format->addr_mask) + (gpa & (leaf.len_bytes - 1));
		return leaf;
	}
}

static int range_check(const struct nested_format *format, const struct hvm_vm *vm, gpa_t gpa,
                       uint64_t len_bytes)
{
	const uint64_t limit = 1ull << NESTED_GPA_BITS;

	if (!len_bytes || !IS_ALIGNED(gpa | len_bytes, PAGE_SIZE))
		return -EINVAL;
	if (gpa >= limit || len_bytes > limit - gpa)
		return -EINVAL;
	/* Steps over a hole at the level where it is a hole. */
	for (gpa_t at = gpa; at - gpa < len_bytes;) {
		struct nested_leaf leaf = nested_lookup(format, vm, at);

		if (leaf.kind != NESTED_HOLE)
			return -EINVAL;
		at = ALIGN_DOWN(at, leaf.len_bytes) + leaf.len_bytes;
	}
	return 0;
}

/* The entry for gpa in the table of that level; makes the tables above it. */
static nested_entry *entry_for(const struct nested_format *format, struct hvm_vm *vm, gpa_t gpa,
                               unsigned leaf_level)
{
	nested_entry *table = table_at(vm->nested_root_hpa);

	for (unsigned level = NESTED_LEVELS; level > leaf_level; level--) {
		nested_entry *entry = &table[index_at(gpa, level)];
		uint64_t value = entry_load(entry);

		if (!value) {
			hpa_t below_hpa = table_new(vm);

			if (!below_hpa)
				return NULL;
			value = below_hpa | format->table_bits;
			entry_store(entry, value);
		}
		table = table_at(value & format->addr_mask);
	}
	return &table[index_at(gpa, leaf_level)];
}

/* The highest level whose span is aligned at both addresses, and not longer than what is left. */
static unsigned level_for(uint64_t addresses, uint64_t len_bytes, bool large_2m, bool large_1g)
{
	if (large_1g && IS_ALIGNED(addresses, nested_span(3)) && len_bytes >= nested_span(3))
		return 3;
	if (large_2m && IS_ALIGNED(addresses, nested_span(2)) && len_bytes >= nested_span(2))
		return 2;
	return 1;
}

/*
 * No table can be in a large leaf's way: tables are made only for a leaf below them, and the range
 * is known to hold no leaf.
 */
static int map(const struct nested_format *format, struct hvm_vm *vm, gpa_t gpa, hpa_t hpa,
               uint64_t len_bytes, bool mmio)
{
	while (len_bytes) {
		unsigned level = level_for(mmio ? gpa : gpa | hpa, len_bytes,
		                           mmio || format->large_2m, mmio || format->large_1g);
		uint64_t span = nested_span(level);
		nested_entry *entry = entry_for(format, vm, gpa, level);

		if (!entry)
			return -ENOMEM;
		if (mmio)
			entry_store(entry, format->mmio_entry);
		else if (level > 1)
			entry_store(entry, hpa | format->leaf_bits | format->large_bit);
		else
			entry_store(entry, hpa | format->leaf_bits);
		gpa += span;
		hpa += span;
		len_bytes -= span;
	}
	return 0;
}

int nested_map_ram(const struct nested_format *format, struct hvm_vm *vm, gpa_t gpa, hpa_t hpa,
                   uint64_t len_bytes)
{
	int err = range_check(format, vm, gpa, len_bytes);

	if (err)
		return err;
	/* Every page's address must fit the entry, and be told apart from its other bits. */
	if ((hpa & ~format->addr_mask) || ((hpa + len_bytes - 1) & ~(format->addr_mask | 0xfff)) ||
	    hpa + len_bytes - 1 < hpa)
		return -EINVAL;
	return map(format, vm, gpa, hpa, len_bytes, false);
}

int nested_map_mmio(const struct nested_format *format, struct hvm_vm *vm, gpa_t gpa,
                    uint64_t len_bytes)
{
	int err = range_check(format, vm, gpa, len_bytes);

	return err ? err : map(format, vm, gpa, 0, len_bytes, true);
}
