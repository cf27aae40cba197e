#include "vmm/gwalk.h"

#include "tests/unit/test.h"

#include <stdlib.h>
#include <string.h>

#define PG   (BIT(31) | BIT(0))
#define WP   BIT(16)
#define PSE  BIT(4)
#define PAE  BIT(5)
#define LA57 BIT(12)
#define SMEP BIT(20)
#define SMAP BIT(21)
#define LMA  (BIT(10) | BIT(8))
#define NXE  BIT(11)

#define P  1ull
#define W  2ull
#define U  4ull
#define PS 0x80ull
#define NX BIT(63)

static uint8_t ram[64 * 4096];
static struct gmem mem;
static struct hvm_state state;

static void setup(uint64_t cr0, uint64_t cr4, uint64_t efer)
{
	memset(ram, 0, sizeof(ram));
	memset(&mem, 0, sizeof(mem));
	memset(&state, 0, sizeof(state));
	CHECK_EQ(gmem_add(&mem, 0, sizeof(ram), 0, ram), 0);
	state.cr0 = cr0;
	state.cr3 = 0x1000;
	state.cr4 = cr4;
	state.efer = efer;
	state.seg[HVM_CS].attr = efer ? 0xa09b : 0xc09b;
	state.seg[HVM_SS].attr = 0xc093;
}

static void put64(gpa_t table, unsigned index, uint64_t entry)
{
	memcpy(ram + table + index * 8, &entry, 8);
}

static void put32(gpa_t table, unsigned index, uint32_t entry)
{
	memcpy(ram + table + index * 4, &entry, 4);
}

static uint32_t error;

static uint64_t walk(gva_t gva, uint64_t access)
{
	gpa_t gpa = 0xdead;
	int err;

	error = 0;
	err = gwalk_translate(&mem, &state, gva, access, &gpa, &error);
	return err ? (uint64_t)(int64_t)err : gpa;
}

#define FAULT ((uint64_t)(int64_t)-EFAULT)

static void paging_off_is_identity(void)
{
	setup(1, 0, 0);
	CHECK_EQ(walk(0x12345678, GWALK_WRITE), 0x12345678);
	CHECK_EQ(walk(0x1fee00000, GWALK_READ), 0xfee00000);
	state.cr0 = 0;
	state.seg[HVM_CS].attr = 0x9b;
	state.seg[HVM_CS].base = 0xffff0000;
	CHECK_EQ(gwalk_linear(&state, HVM_CS, 0xfff0), 0xfffffff0);
	CHECK_EQ(gwalk_insn_mode(&state), INSN_MODE_16);
	state.seg[HVM_SS].attr |= 0x60; /* means nothing in real mode */
	CHECK_EQ(gwalk_access(&state), 0);
}

static void two_levels(void)
{
	setup(PG, 0, 0);
	put32(0x1000, 1, 0x2000 | P | W | U);
	put32(0x2000, 3, 0xfec00000 | P);
	CHECK_EQ(walk(0x403abc, GWALK_READ), 0xfec00abc);
	CHECK_EQ(walk(0x100403abc, GWALK_READ), 0xfec00abc);
	/* A supervisor writes to a read-only page unless CR0.WP. */
	CHECK_EQ(walk(0x403abc, GWALK_WRITE), 0xfec00abc);
	state.cr0 |= WP;
	CHECK_EQ(walk(0x403abc, GWALK_WRITE), FAULT);
	CHECK_EQ(error, 3);
	CHECK_EQ(walk(0x403abc, GWALK_USER), FAULT);
	CHECK_EQ(error, 5);
	CHECK_EQ(walk(0x404000, GWALK_USER | GWALK_WRITE), FAULT);
	CHECK_EQ(error, 6);
	CHECK_EQ(walk(0x800000, GWALK_READ), FAULT);
	CHECK_EQ(error, 0);
	/* Without NX and SMEP the fetch bit stays clear. */
	CHECK_EQ(walk(0x800000, GWALK_FETCH), FAULT);
	CHECK_EQ(error, 0);
}

static void four_megabyte_pages(void)
{
	setup(PG, PSE, 0);
	put32(0x1000, 2, 0xfec00000 | 0x2000 | PS | P | W); /* bit 13: address bit 32 */
	CHECK_EQ(walk(0x8abcde, GWALK_WRITE), 0x1fec00000 + 0xabcde);
	/* Without PSE it is a page table, at 0xfec02000, outside memory. */
	state.cr4 = 0;
	CHECK_EQ(walk(0x8abcde, GWALK_READ), FAULT);
	CHECK_EQ(error, 9);
}

static void pae(void)
{
	setup(PG | WP, PAE, NXE);
	state.cr3 = 0x1020;
	memset(ram + 0x1000, 0xff, 0x20);
	put64(0x1020, 3, 0x2000 | P); /* no rights in the root's entries */
	put64(0x2000, 0, 0x3000 | P | W | U);
	put64(0x2000, 1, 0x80200000 | PS | P | W | NX);
	put64(0x3000, 511, 0x123456000ull | P | W | U);
	CHECK_EQ(walk(0xc01fffff, GWALK_WRITE | GWALK_USER), 0x123456fff);
	CHECK_EQ(walk(0xc0212345, GWALK_WRITE), 0x80212345);
	CHECK_EQ(walk(0xc0212345, GWALK_FETCH), FAULT);
	CHECK_EQ(error, 0x11);
	state.efer = 0;
	CHECK_EQ(walk(0xc0212345, GWALK_READ), FAULT);
	CHECK_EQ(error, 9);
	CHECK_EQ(walk(0, GWALK_READ), FAULT);
	CHECK_EQ(error, 0);
}

static void map4(gpa_t root)
{
	put64(root, 511, 0x4000 | P | W | U);
	put64(0x4000, 510, 0x5000 | P | W | U);
	put64(0x4000, 509, 0xc0000000 | PS | P | W);
	put64(0x5000, 0, 0x6000 | P | W | U);
	put64(0x5000, 1, 0xfee00000 | PS | P | W);
	put64(0x6000, 5, 0x7000 | P | U);
	put64(0x6000, 6, 0x8000 | P | W | U | NX);
}

static void four_levels(void)
{
	gva_t base = 0xffffffff80000000ull;

	setup(PG | WP, PAE, LMA | NXE);
	map4(0x1000);
	CHECK_EQ(walk(base + 0x5123, GWALK_USER), 0x7123);
	CHECK_EQ(walk(base + 0x5123, GWALK_USER | GWALK_FETCH), 0x7123);
	CHECK_EQ(walk(base + 0x5123, GWALK_WRITE), FAULT);
	CHECK_EQ(error, 3);
	CHECK_EQ(walk(base + 0x6123, GWALK_FETCH | GWALK_USER), FAULT);
	CHECK_EQ(error, 0x15);
	CHECK_EQ(walk(base + 0x2000b0, GWALK_WRITE), 0xfee000b0);
	CHECK_EQ(walk(base - 0x40000000 + 0x3ec00010, GWALK_READ), 0xfec00010);
	CHECK_EQ(walk(base + 0x2000b0, GWALK_USER), FAULT);
	CHECK_EQ(error, 5);
	CHECK_EQ(walk(0x800000000000ull, GWALK_READ), (uint64_t)(int64_t)-ERANGE);
	CHECK_EQ(walk(0xffff7fffffffffffull, GWALK_READ), (uint64_t)(int64_t)-ERANGE);
	CHECK_EQ(walk(0x7fffffffffffull, GWALK_READ), FAULT);
	put64(0x1000, 0, 0x4000 | PS | P);
	CHECK_EQ(walk(0, GWALK_READ), FAULT);
	CHECK_EQ(error, 9);
}

static void supervisor_kept_from_user_pages(void)
{
	gva_t gva = 0xffffffff80006000ull;

	setup(PG | WP, PAE | SMEP | SMAP, LMA | NXE);
	map4(0x1000);
	put64(0x6000, 6, 0x8000 | P | W | U);
	CHECK_EQ(walk(gva, GWALK_READ), FAULT);
	CHECK_EQ(error, 1);
	CHECK_EQ(walk(gva, GWALK_READ | GWALK_AC), 0x8000);
	CHECK_EQ(walk(gva, GWALK_FETCH | GWALK_AC), FAULT);
	CHECK_EQ(error, 0x11);
	CHECK_EQ(walk(gva, GWALK_USER | GWALK_FETCH), 0x8000);
	state.cr4 = PAE;
	CHECK_EQ(walk(gva, GWALK_READ), 0x8000);
	CHECK_EQ(walk(gva, GWALK_FETCH), 0x8000);
}

static void five_levels(void)
{
	setup(PG | WP, PAE | LA57, LMA);
	map4(0x2000);
	put64(0x6000, 6, 0);
	put64(0x1000, 0, 0x2000 | P | W | U);
	CHECK_EQ(walk(0x0000ffff80005000ull, GWALK_READ), 0x7000); /* canonical now */
	/* Index 0, 511, 510, 0, 5. */
	CHECK_EQ(walk(511ull << 39 | 510ull << 30 | 5ull << 12 | 0xabc, GWALK_READ), 0x7abc);
	CHECK_EQ(walk(1ull << 56, GWALK_READ), (uint64_t)(int64_t)-ERANGE);
}

static void table_outside_memory(void)
{
	setup(PG, PAE, LMA | NXE);
	put64(0x1000, 0, 0x70000000 | P | W | U);
	CHECK_EQ(walk(0, GWALK_READ), FAULT);
	CHECK_EQ(error, 9);
	state.cr3 = 0xffffffffff000ull;
	CHECK_EQ(walk(0, GWALK_READ), FAULT);
}

static void fetches_across_pages(void)
{
	gva_t base = 0xffffffff80000000ull;
	uint8_t bytes[INSN_LEN_MAX];
	uint32_t pf;
	gpa_t gpa;

	setup(PG | WP, PAE, LMA | NXE);
	map4(0x1000);
	put64(0x6000, 6, 0x9000 | P | U);
	for (unsigned i = 0; i < 16; i++) {
		ram[0x7ff8 + i % 8] = (uint8_t)i;
		ram[0x9000 + i] = (uint8_t)(0x80 + i);
	}
	for (unsigned i = 0; i < 8; i++)
		ram[0x7ff8 + i] = (uint8_t)i;
	CHECK_EQ(gwalk_fetch(&mem, &state, base + 0x5ff8, bytes), 15);
	for (unsigned i = 0; i < 15; i++)
		CHECK_EQ(bytes[i], i < 8 ? i : 0x80 + i - 8);
	/* The next page is missing: what is there, and the fault at its first byte. */
	put64(0x6000, 6, 0);
	CHECK_EQ(gwalk_fetch(&mem, &state, base + 0x5ffd, bytes), 3);
	CHECK_EQ(gwalk_translate(&mem, &state, gwalk_linear(&state, HVM_CS, base + 0x6000),
	                         gwalk_access(&state) | GWALK_FETCH, &gpa, &pf),
	         -EFAULT);
	CHECK_EQ(pf, 0x10);
	CHECK_EQ(gwalk_fetch(&mem, &state, base + 0x2000, bytes), 0);

	/* Real mode at the end of memory, with a base. */
	setup(0, 0, 0);
	state.seg[HVM_CS].attr = 0x9b;
	state.seg[HVM_CS].base = sizeof(ram) - 0x10;
	CHECK_EQ(gwalk_fetch(&mem, &state, 0xa, bytes), 6);
}

static void linear_addresses(void)
{
	setup(PG, PAE, LMA);
	state.seg[HVM_DS].base = 0x5000;
	state.seg[HVM_GS].base = 0xffff888000000000ull;
	CHECK_EQ(gwalk_linear(&state, HVM_DS, 0x10), 0x10);
	CHECK_EQ(gwalk_linear(&state, HVM_GS, 0x10), 0xffff888000000010ull);
	CHECK_EQ(gwalk_insn_mode(&state), INSN_MODE_64);
	state.seg[HVM_CS].attr = 0xc09b; /* compatibility mode */
	CHECK_EQ(gwalk_insn_mode(&state), INSN_MODE_32);
	CHECK_EQ(gwalk_linear(&state, HVM_DS, 0xffffffff), 0x4fff);
	state.seg[HVM_SS].attr |= 0x60;
	CHECK_EQ(gwalk_access(&state), GWALK_USER);
}

/* Whatever tables a guest makes, the walk ends and stays inside its memory. */
static void random_tables(void)
{
	uint32_t seed = 7;
	static const uint64_t cr4s[] = {0, PSE, PAE, PAE | LA57, PAE | SMEP | SMAP};

	setup(PG, 0, 0);
	for (unsigned round = 0; round < 20000; round++) {
		uint64_t efer;

		for (unsigned i = 0; i < 8; i++) {
			seed = seed * 1664525u + 1013904223u;
			put64((seed >> 8) % 16 * 4096, (seed >> 13) % 512,
			      (uint64_t)seed << 20 | (seed >> 4));
		}
		state.cr4 = cr4s[round % 5];
		efer = state.cr4 & PAE && seed & 0x1000 ? LMA | NXE : 0;
		state.efer = efer;
		state.cr3 = seed & 0xf000;
		walk((uint64_t)seed * 0x12345, seed & 0x16);
	}
}

TESTS(T(paging_off_is_identity), T(two_levels), T(four_megabyte_pages), T(pae), T(four_levels),
      T(supervisor_kept_from_user_pages), T(five_levels), T(table_outside_memory),
      T(fetches_across_pages), T(linear_addresses), T(random_tables))
