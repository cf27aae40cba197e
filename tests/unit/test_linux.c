#include "vmm/linux.h"

#include "tests/fake/bzimage.h"
#include "tests/unit/test.h"
#include "vmm/vpci.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SETUP_SECTS BZIMAGE_SETUP_SECTS
#define PAYLOAD     BZIMAGE_PAYLOAD
#define FILE_LEN    BZIMAGE_LEN

static uint8_t file[FILE_LEN];
static struct gmem mem;
static struct linux_image in;
static struct linux_entry out;
static char err[LINUX_ERR_MAX];
static void *maps[LINUX_MEMORY_REGION_MAX];
static uint64_t map_len[LINUX_MEMORY_REGION_MAX];

static void put(unsigned offset, uint64_t value, unsigned width)
{
	memcpy(file + offset, &value, width);
}

static void image_make(void)
{
	bzimage_make(file);
	memset(&in, 0, sizeof(in));
	in.kernel_hpa = (uintptr_t)file;
	in.kernel_len_bytes = FILE_LEN;
	in.cmdline = "console=ttyS0";
	in.rsdp_gpa = 0xe0000;
}

static void memory_drop(void)
{
	for (unsigned i = 0; i < LINUX_MEMORY_REGION_MAX; i++)
		if (maps[i])
			munmap(maps[i], map_len[i]);
	memset(maps, 0, sizeof(maps));
}

static void memory_make(uint64_t bytes)
{
	struct linux_memory_region regions[LINUX_MEMORY_REGION_MAX];
	unsigned count = linux_memory_layout(bytes, regions);

	memory_drop();
	memset(&mem, 0, sizeof(mem));
	for (unsigned i = 0; i < count; i++) {
		map_len[i] = regions[i].len_bytes;
		maps[i] = mmap(NULL, map_len[i], PROT_READ | PROT_WRITE,
		               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		CHECK(maps[i] != MAP_FAILED);
		CHECK_EQ(gmem_add(&mem, regions[i].gpa, map_len[i], 0x100000000ull * (i + 1),
		                  maps[i]),
		         0);
	}
}

static int load(void)
{
	memset(err, 0, sizeof(err));
	return linux_load(&in, &mem, &out, err, sizeof(err));
}

#define REFUSED(text)                                                                              \
	do {                                                                                       \
		CHECK_EQ(load(), -EINVAL);                                                         \
		if (!strstr(err, text)) {                                                          \
			printf("  said: %s\n", err);                                               \
			CHECK(!"says it");                                                         \
		}                                                                                  \
	} while (0)

static uint64_t get(gpa_t gpa, unsigned width)
{
	uint64_t value = 0;

	CHECK_EQ(gmem_read(&mem, gpa, &value, width), 0);
	return value;
}

static void layout_around_the_hole(void)
{
	struct linux_memory_region r[2];

	CHECK_EQ(linux_memory_layout(0, r), 0);
	CHECK_EQ(linux_memory_layout(4095, r), 0);
	CHECK_EQ(linux_memory_layout(3 * GIB, r), 1);
	CHECK_EQ(r[0].gpa, 0);
	CHECK_EQ(r[0].len_bytes, 3 * GIB);
	CHECK_EQ(linux_memory_layout(3 * GIB + 4096, r), 2);
	CHECK_EQ(r[0].len_bytes, 3 * GIB);
	CHECK_EQ(r[1].gpa, 4 * GIB);
	CHECK_EQ(r[1].len_bytes, 4096);
	CHECK_EQ(linux_memory_layout(8 * GIB + 1, r), 2);
	CHECK_EQ(r[1].len_bytes, 5 * GIB);
	CHECK_EQ(VPCI_MMIO_BASE_GPA, 3 * GIB);
}

static void loads_a_kernel(void)
{
	uint64_t e820[] = {0, 0xa0000, 1, 0xa0000, 0x60000, 2, 0x100000, 0xff00000, 1};

	image_make();
	memory_make(256 * MIB);
	CHECK_EQ(load(), 0);
	CHECK_EQ(out.kernel_gpa, 0x1000000);
	CHECK_EQ(out.rip, 0x1000200);
	CHECK_EQ(out.gpr[HVM_RSI], LINUX_ZERO_PAGE_GPA);
	CHECK_EQ(out.rflags, 2);
	CHECK_EQ(out.initrd_gpa, 0);
	CHECK(!memcmp(gmem_ptr(&mem, 0x1000000, PAYLOAD), file + FILE_LEN - PAYLOAD, PAYLOAD));
	CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x70, 8), 0xe0000);
	CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x1ef, 1), 0);
	CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x202, 4), 0x53726448);
	CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x210, 1), 0xff);
	CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x260, 4), 0x2400000);
	CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x1e8, 1), 3);
	for (unsigned i = 0; i < 3; i++) {
		CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x2d0 + i * 20, 8), e820[i * 3]);
		CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x2d8 + i * 20, 8), e820[i * 3 + 1]);
		CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x2e0 + i * 20, 4), e820[i * 3 + 2]);
	}
	CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x228, 4), LINUX_CMDLINE_GPA);
	CHECK(!strcmp(gmem_ptr(&mem, LINUX_CMDLINE_GPA, 64), "console=ttyS0"));
}

/* The header's own length, at 0x201, says what may be copied. */
static void copies_the_header_it_has(void)
{
	image_make();
	memory_make(256 * MIB);
	put(0x268, 0x11223344, 4);
	put(0x26c, 0x55667788, 4);
	CHECK_EQ(load(), 0);
	CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x268, 4), 0x11223344);
	CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x26c, 4), 0);
	put(0x201, 0xff, 1); /* past what boot_params has room for */
	CHECK_EQ(load(), 0);
	CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x26c, 4), 0x55667788);
	CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x290, 8), 0);
}

static void entry_state_is_64_bit(void)
{
	const struct hvm_state *s = &out.state;
	uint64_t pml4, pdpt, pd;

	image_make();
	memory_make(64 * MIB);
	CHECK_EQ(load(), 0);
	CHECK_EQ(s->seg[HVM_CS].sel, 0x10);
	CHECK_EQ(s->seg[HVM_DS].sel, 0x18);
	CHECK_EQ(s->seg[HVM_CS].attr & 0x2000, 0x2000);
	CHECK(s->efer & BIT(10) && s->cr0 & BIT(31) && s->cr4 & BIT(5));
	CHECK_EQ(s->gdtr_base, LINUX_GDT_GPA);
	CHECK_EQ(get(LINUX_GDT_GPA + 0x10, 8), 0x00af9b000000ffffull);
	CHECK_EQ(get(LINUX_GDT_GPA + 0x18, 8), 0x00cf93000000ffffull);
	/* Identity, walked by hand: the last 2 MiB below 4 GiB. */
	pml4 = get(s->cr3, 8);
	pdpt = get((pml4 & ~0xfffull) + 3 * 8, 8);
	pd = get((pdpt & ~0xfffull) + 511 * 8, 8);
	CHECK_EQ(pml4 & 3, 3);
	CHECK_EQ(pdpt & 3, 3);
	CHECK_EQ(pd, 0xffe00000 | 0x83);
	CHECK_EQ(get(s->cr3 + 8, 8), 0);
}

static void initrd_keeps_clear_of_the_kernel(void)
{
	static uint8_t initrd[5000];
	gpa_t kernel_end = 0x1000000 + 0x2400000;

	for (unsigned i = 0; i < sizeof(initrd); i++)
		initrd[i] = (uint8_t)(i * 3);
	image_make();
	in.initrd_hpa = (uintptr_t)initrd;
	in.initrd_len_bytes = sizeof(initrd);
	memory_make(256 * MIB);
	CHECK_EQ(load(), 0);
	CHECK_EQ(out.initrd_gpa, 0x10000000 - 0x2000);
	CHECK(!memcmp(gmem_ptr(&mem, out.initrd_gpa, 5000), initrd, 5000));
	CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x218, 4), out.initrd_gpa);
	CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x21c, 4), 5000);
	/* Exactly enough behind the kernel, then one page less: it goes below the kernel. */
	memory_make(kernel_end + 0x2000);
	CHECK_EQ(load(), 0);
	CHECK_EQ(out.initrd_gpa, kernel_end);
	memory_make(kernel_end + 0x1000);
	CHECK_EQ(load(), 0);
	CHECK_EQ(out.initrd_gpa, 0x1000000 - 0x2000);
	/* initrd_addr_max names the last byte. */
	memory_make(256 * MIB);
	put(0x22c, kernel_end + 0x1fff, 4);
	CHECK_EQ(load(), 0);
	CHECK_EQ(out.initrd_gpa, kernel_end);
	put(0x22c, kernel_end + 0x1ffe, 4);
	CHECK_EQ(load(), 0);
	CHECK(out.initrd_gpa + 5000 <= kernel_end + 0x1fff);
	CHECK(out.initrd_gpa + 5000 <= 0x1000000 || out.initrd_gpa >= kernel_end);
	/* No room at all. */
	put(0x22c, 0x100fff, 4);
	REFUSED("initrd");
}

static void initrd_above_four_gigabytes(void)
{
	static uint8_t initrd[4096];

	image_make();
	memory_make(4 * GIB);
	in.initrd_hpa = (uintptr_t)initrd;
	in.initrd_len_bytes = sizeof(initrd);
	CHECK_EQ(load(), 0);
	CHECK_EQ(out.initrd_gpa, 0x7ffff000);
	put(0x22c, 0x100ffe, 4);
	CHECK_EQ(load(), 0);
	CHECK_EQ(out.initrd_gpa, 0x13ffff000ull);
	CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0xc0, 4), 1);
	CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x218, 4), 0x3ffff000);
	CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x1e8, 1), 4);
	CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x2d0 + 60, 8), 4 * GIB);
	CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x2d8 + 60, 8), GIB);
	put(0x236, 0x3d, 2); /* not XLF_CAN_BE_LOADED_ABOVE_4G */
	REFUSED("initrd");
	memory_drop();
}

/* A host without large free pieces backs one region by several. */
static void memory_in_pieces(void)
{
	static uint8_t initrd[3 * 4096];
	struct gmem whole;

	for (unsigned i = 0; i < sizeof(initrd); i++)
		initrd[i] = (uint8_t)(i * 5 + i / 256);
	image_make();
	memory_make(64 * MIB);
	whole = mem;
	memset(&mem, 0, sizeof(mem));
	CHECK_EQ(gmem_add(&mem, 0, 0x1001000, 0x10000000, whole.region[0].va), 0);
	CHECK_EQ(gmem_add(&mem, 0x1001000, 64 * MIB - 0x1001000 - 0x1000, 0x30000000,
	                  whole.region[0].va + 0x1001000),
	         0);
	CHECK_EQ(gmem_add(&mem, 64 * MIB - 0x1000, 0x1000, 0x20000000,
	                  whole.region[0].va + 64 * MIB - 0x1000),
	         0);
	in.initrd_hpa = (uintptr_t)initrd;
	in.initrd_len_bytes = sizeof(initrd);
	CHECK_EQ(load(), 0);
	CHECK_EQ(out.initrd_gpa, 64 * MIB - sizeof(initrd));
	CHECK(!memcmp(whole.region[0].va + out.initrd_gpa, initrd, sizeof(initrd)));
	CHECK(!memcmp(whole.region[0].va + 0x1000000, file + FILE_LEN - PAYLOAD, PAYLOAD));
	CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x1e8, 1), 3);
	CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x2d8 + 40, 8), 63 * MIB);
}

/* However small the pieces are, what the kernel is told of memory is the same and in order. */
static void memory_map_of_small_pieces(void)
{
	uint64_t e820[] = {0, 0xa0000, 1, 0xa0000, 0x60000, 2, 0x100000, 63 * MIB, 1};
	struct gmem whole;

	image_make();
	memory_make(64 * MIB);
	whole = mem;
	memset(&mem, 0, sizeof(mem));
	CHECK_EQ(gmem_add(&mem, 0, 0x50000, 0x10000000, whole.region[0].va), 0);
	CHECK_EQ(gmem_add(&mem, 0x50000, 64 * MIB - 0x50000, 0x20000000,
	                  whole.region[0].va + 0x50000),
	         0);
	CHECK_EQ(load(), 0);
	CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x1e8, 1), 3);
	for (unsigned i = 0; i < 3; i++) {
		CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x2d0 + i * 20, 8), e820[i * 3]);
		CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x2d8 + i * 20, 8), e820[i * 3 + 1]);
		CHECK_EQ(get(LINUX_ZERO_PAGE_GPA + 0x2e0 + i * 20, 4), e820[i * 3 + 2]);
	}
}

static void places_by_preference(void)
{
	image_make();
	memory_make(0x1000000 + 0x2400000);
	CHECK_EQ(load(), 0);
	memory_make(0x1000000 + 0x2400000 - 4096);
	REFUSED("low memory ends at 0x33ff000");
	/* Small guests prefer 1 MiB. */
	put(0x258, 0x100000, 8);
	put(0x260, 0, 4);
	memory_make(2 * MIB);
	CHECK_EQ(load(), 0);
	CHECK_EQ(out.kernel_gpa, 0x100000);
	CHECK_EQ(out.kernel_len_bytes, PAYLOAD);
	/* No preference: relocatable ones are aligned, others have nowhere to go. */
	put(0x258, 0, 8);
	memory_make(4 * MIB);
	CHECK_EQ(load(), 0);
	CHECK_EQ(out.kernel_gpa, 0x200000);
	put(0x230, 0, 4);
	CHECK_EQ(load(), 0);
	CHECK_EQ(out.kernel_gpa, 0x200000);
	put(0x234, 0, 1);
	REFUSED("wants");
	put(0x258, UINT64_MAX - 5, 8);
	REFUSED("wants");
	put(0x258, 0x100000, 8);
	put(0x260, 0xffffffff, 4);
	REFUSED("wants");
	memory_make(MIB);
	REFUSED("more than 1 MiB");
}

static void refuses_what_is_no_kernel(void)
{
	static const struct {
		const char *bytes, *says;
	} foreign[] = {{"\177ELF\2\1\1", "an ELF file"},
	               {"\x1f\x8b\x08", "gzip"},
	               {"070701", "cpio"},
	               {"MZ", "EFI program"},
	               {"hello", "no Linux setup header"}};

	memory_make(64 * MIB);
	for (unsigned i = 0; i < ARRAY_LEN(foreign); i++) {
		image_make();
		put(0x202, 0, 4);
		memcpy(file, foreign[i].bytes, strlen(foreign[i].bytes));
		REFUSED(foreign[i].says);
		CHECK(strstr(err, "bzImage"));
	}
	image_make();
	in.kernel_len_bytes = 0;
	REFUSED("an empty file");
	in.kernel_len_bytes = 100;
	REFUSED("too short");
	image_make();
	put(0x1fe, 0xaa54, 2);
	REFUSED("no Linux setup header");
	image_make();
	put(0x206, 0x020b, 2);
	REFUSED("2.11");
	image_make();
	put(0x201, 0x5d, 1);
	REFUSED("ends at 0x25f");
	image_make();
	put(0x236, 0x3e, 2);
	REFUSED("64-bit");
	image_make();
	put(0x211, 0, 1);
	REFUSED("zImage");
	image_make();
	in.cmdline = "123456789";
	put(0x238, 9, 4);
	CHECK_EQ(load(), 0);
	put(0x238, 8, 4);
	REFUSED("has 9 bytes; this kernel takes 8");
}

static void setup_sects_zero_is_four(void)
{
	image_make();
	put(0x1f1, 0, 1);
	put(0x1f4, (FILE_LEN - 5 * 512) / 16, 4);
	memory_make(64 * MIB);
	CHECK_EQ(load(), 0);
	CHECK(!memcmp(gmem_ptr(&mem, 0x1000000, 64), file + 5 * 512, 64));
}

/* Every length up to the whole file: refused without a read past it. */
static void truncated_files(void)
{
	image_make();
	memory_make(64 * MIB);
	for (uint64_t len = 0; len <= FILE_LEN; len += len < 1200 ? 1 : 97) {
		uint8_t *exact = malloc(len ? len : 1);

		memcpy(exact, file, len);
		in.kernel_hpa = (uintptr_t)exact;
		in.kernel_len_bytes = len;
		CHECK_EQ(load(), len + 15 >= FILE_LEN ? 0 : -EINVAL);
		CHECK(len + 15 >= FILE_LEN || *err);
		free(exact);
	}
	in.kernel_hpa = (uintptr_t)file;
	in.kernel_len_bytes = FILE_LEN - 15;
	CHECK_EQ(load(), 0);
	in.kernel_len_bytes = FILE_LEN - 16;
	REFUSED("cut off");
	put(0x1f4, 0xffffffff, 4);
	REFUSED("cut off");
	put(0x1f4, 0, 4);
	put(0x1f1, 255, 1);
	REFUSED("cut off");
}

static void any_header_is_survived(void)
{
	uint32_t seed = 99;

	memory_make(64 * MIB);
	for (unsigned i = 0; i < 20000; i++) {
		image_make();
		for (unsigned n = 0; n < 4; n++) {
			seed = seed * 1664525u + 1013904223u;
			file[0x1f1 + (seed >> 8) % 0x77] = (uint8_t)(seed >> 20);
		}
		in.initrd_hpa = seed & 0x100 ? (uintptr_t)file : 0;
		in.initrd_len_bytes = FILE_LEN;
		if (load())
			CHECK(*err);
		else
			CHECK(out.kernel_gpa >= LINUX_HIGH_GPA && out.kernel_gpa < 64 * MIB);
	}
	memory_drop();
}

TESTS(T(layout_around_the_hole), T(loads_a_kernel), T(copies_the_header_it_has),
      T(entry_state_is_64_bit), T(initrd_keeps_clear_of_the_kernel), T(initrd_above_four_gigabytes),
      T(memory_in_pieces), T(memory_map_of_small_pieces), T(places_by_preference),
      T(refuses_what_is_no_kernel), T(setup_sects_zero_is_four), T(truncated_files),
      T(any_header_is_survived))
