/*
 * The kernel loader: a bzImage whose header the input bends, cut off where it says, into guest
 * memory of any shape, each piece of which ends where nothing is mapped. What is accepted stands
 * inside memory, clear of everything else, and is what the file held.
 */
#include "tests/fuzz/fuzz.h"

#include "tests/fake/platform.h"
#include "vmm/linux.h"
#include "vmm/vpci.h"

#include <sys/mman.h>

const char fuzz_name[] = "linux";
const unsigned fuzz_rounds = 20000;

#define PIECES      3u
#define PIECE_BYTES (96 * MIB)
#define FILE_BYTES  (4 * 512u + 0x3000u)
#define HDR_FIRST   0x1f1u
#define HDR_BYTES   0x80u

/* The file as it stands before the input bends it: what Debian's kernels say, with less payload. */
static uint8_t file[FILE_BYTES], initrd[65536];
static uint8_t *piece_end[PIECES];
static uint64_t file_bytes;

/*
 * Sizes in pages: of low memory in two pieces, of memory above 4 GiB; bytes of the initrd; length
 * of the command line; bytes missing at the file's end. Then changes: offset from HDR_FIRST, value.
 */
static void seed_put(struct fuzz_out *o, uint16_t first, uint16_t second, uint16_t high,
                     uint16_t initrd_bytes, uint8_t cmdline, uint16_t missing)
{
	fuzz_put(o, first, 2);
	fuzz_put(o, second, 2);
	fuzz_put(o, high, 2);
	fuzz_put(o, initrd_bytes, 2);
	fuzz_put(o, cmdline, 1);
	fuzz_put(o, missing, 2);
}

static void change_put(struct fuzz_out *o, unsigned offset, uint64_t value, unsigned width_bytes)
{
	for (unsigned i = 0; i < width_bytes; i++) {
		fuzz_put(o, offset + i - HDR_FIRST, 1);
		fuzz_put(o, value >> 8 * i, 1);
	}
}

size_t fuzz_seed(unsigned index, uint8_t *out)
{
	struct fuzz_out o = {out, 0};

	switch (index) {
	case 0: seed_put(&o, 16384, 0, 0, 5000, 20, 0); break;
	case 1: /* in pieces, the border inside the kernel */
		seed_put(&o, 4097, 12000, 256, 12288, 0, 0);
		break;
	case 2: /* an initrd only above 4 GiB */
		seed_put(&o, 16384, 0, 4096, 4096, 1, 0);
		change_put(&o, 0x22c, 0x100ffe, 4);
		break;
	case 3: /* exactly as much memory as init_size asks for */
		seed_put(&o, (0x1000000 + 0x2400000) / 4096, 0, 0, 0, 0, 0);
		break;
	case 4: /* no preferred address, no alignment */
		seed_put(&o, 1024, 0, 0, 100, 0, 0);
		change_put(&o, 0x258, 0, 4);
		change_put(&o, 0x230, 0, 4);
		change_put(&o, 0x260, 0, 4);
		break;
	case 5: /* cut off */ seed_put(&o, 16384, 0, 0, 0, 0, 0x100); break;
	case 6: /* the longest header */
		seed_put(&o, 16384, 0, 0, 0, 0, 0);
		change_put(&o, 0x201, 0xff, 1);
		break;
	case 7: /* setup_sects 0 stands for 4 */
		seed_put(&o, 16384, 0, 0, 0, 0, 0);
		change_put(&o, 0x1f1, 0, 1);
		break;
	default: return 0;
	}
	return o.len_bytes;
}

/* --- set-up ----------------------------------------------------------------------------------- */

static void put(unsigned offset, uint64_t value, unsigned width_bytes)
{
	memcpy(file + offset, &value, width_bytes);
}

static void file_make(void)
{
	for (unsigned i = 0; i < FILE_BYTES; i++)
		file[i] = (uint8_t)(i * 7 + i / 256);
	memset(file + HDR_FIRST, 0, 0x29f - HDR_FIRST);
	put(0x1f1, 3, 1);
	put(0x1f4, 0x3000 / 16, 4);
	put(0x1fe, 0xaa55, 2);
	put(0x200, 0x6aeb, 2);
	put(0x202, 0x53726448, 4);
	put(0x206, 0x020f, 2);
	put(0x211, 1, 1);
	put(0x22c, 0x7fffffff, 4);
	put(0x230, 0x200000, 4);
	put(0x234, 1, 1);
	put(0x235, 21, 1);
	put(0x236, 0x3f, 2);
	put(0x238, 2047, 4);
	put(0x258, 0x1000000, 8);
	put(0x260, 0x2400000, 4);
}

static void memory_map(void)
{
	if (piece_end[0])
		return;
	for (unsigned i = 0; i < PIECES; i++) {
		uint8_t *at = mmap(NULL, PIECE_BYTES + 2 * MIB, PROT_NONE,
		                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		if (at == MAP_FAILED || mprotect(at + MIB, PIECE_BYTES, PROT_READ | PROT_WRITE))
			abort();
		piece_end[i] = at + MIB + PIECE_BYTES;
	}
	for (unsigned i = 0; i < sizeof(initrd); i++)
		initrd[i] = (uint8_t)(i * 5 + i / 256);
}

/* A piece of so many pages that ends at its guard. Returns where the next one begins. */
static gpa_t piece_add(struct gmem *mem, unsigned piece, gpa_t gpa, uint64_t pages)
{
	uint64_t len_bytes = MIN(pages * PAGE_SIZE, PIECE_BYTES);

	if (len_bytes && gmem_add(mem, gpa, len_bytes, 0x100000000ull * (piece + 1),
	                          piece_end[piece] - len_bytes))
		abort();
	return gpa + len_bytes;
}

/* --- what holds ------------------------------------------------------------------------------- */

static bool is_memory(const struct gmem *mem, gpa_t gpa, uint64_t len_bytes)
{
	while (len_bytes) {
		uint64_t part = gmem_find(mem, gpa, len_bytes, NULL, NULL);

		if (!part)
			return false;
		gpa += part;
		len_bytes -= part;
	}
	return true;
}

static void contents_check(const struct gmem *mem, gpa_t gpa, const uint8_t *want,
                           uint64_t len_bytes)
{
	static uint8_t have[65536];

	FUZZ_CHECK(len_bytes <= sizeof(have));
	FUZZ_EQ(gmem_read(mem, gpa, have, len_bytes), 0);
	FUZZ_CHECK(!memcmp(have, want, len_bytes));
}

static void e820_check(const struct gmem *mem)
{
	uint8_t params[PAGE_SIZE];
	uint64_t last_end = 0;

	FUZZ_EQ(gmem_read(mem, LINUX_ZERO_PAGE_GPA, params, sizeof(params)), 0);
	FUZZ_CHECK(params[0x1e8] >= 2 && params[0x1e8] <= 128);
	for (unsigned i = 0; i < params[0x1e8]; i++) {
		uint64_t base, len_bytes;
		uint32_t type;

		memcpy(&base, params + 0x2d0 + 20 * i, 8);
		memcpy(&len_bytes, params + 0x2d8 + 20 * i, 8);
		memcpy(&type, params + 0x2e0 + 20 * i, 4);
		FUZZ_CHECK(base >= last_end && len_bytes);
		last_end = base + len_bytes;
		if (type == 1)
			FUZZ_CHECK(is_memory(mem, base, len_bytes));
	}
}

static void loaded_check(const struct linux_image *in, const struct gmem *mem,
                         const struct linux_entry *out)
{
	uint64_t setup = (file[HDR_FIRST] ? file[HDR_FIRST] : 4) * 512ull + 512;
	uint64_t kernel_end = out->kernel_gpa + out->kernel_len_bytes;
	uint32_t syssize;
	uint64_t payload;

	memcpy(&syssize, file + 0x1f4, 4);
	payload = syssize ? MIN(syssize * 16ull, file_bytes - setup) : file_bytes - setup;
	FUZZ_CHECK(out->kernel_len_bytes >= payload && payload > 0x200);
	FUZZ_CHECK(out->kernel_gpa >= LINUX_HIGH_GPA && kernel_end <= VPCI_MMIO_BASE_GPA);
	FUZZ_CHECK(is_memory(mem, out->kernel_gpa, out->kernel_len_bytes));
	FUZZ_EQ(out->rip, out->kernel_gpa + 0x200);
	contents_check(mem, out->kernel_gpa, file + setup, payload);
	contents_check(mem, LINUX_CMDLINE_GPA, (const uint8_t *)in->cmdline,
	               strlen(in->cmdline) + 1);
	if (in->initrd_hpa && in->initrd_len_bytes) {
		gpa_t end = out->initrd_gpa + in->initrd_len_bytes;

		FUZZ_CHECK(out->initrd_gpa >= LINUX_HIGH_GPA);
		FUZZ_CHECK(end <= out->kernel_gpa || out->initrd_gpa >= kernel_end);
		FUZZ_CHECK(out->initrd_gpa % PAGE_SIZE == 0);
		contents_check(mem, out->initrd_gpa, initrd, in->initrd_len_bytes);
	}
	e820_check(mem);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	struct fuzz_in in = {data, data + len_bytes};
	struct linux_image image = {.rsdp_gpa = 0xe0000};
	struct linux_entry entry;
	struct gmem mem = {0};
	char err[LINUX_ERR_MAX], cmdline[256];
	uint8_t *exact;
	uint64_t pages, missing;
	gpa_t gpa;
	int rc;

	memory_map();
	file_make();
	pages = fuzz_u16(&in);
	gpa = piece_add(&mem, 0, 0, pages);
	pages = fuzz_u16(&in);
	piece_add(&mem, 1, gpa, pages);
	pages = fuzz_u16(&in);
	piece_add(&mem, 2, 4 * GIB, pages);
	image.initrd_len_bytes = fuzz_u16(&in);
	image.initrd_hpa = image.initrd_len_bytes ? (uintptr_t)initrd : 0;
	memset(cmdline, 'x', sizeof(cmdline));
	cmdline[fuzz_u8(&in)] = 0;
	image.cmdline = cmdline;
	missing = fuzz_u16(&in);
	file_bytes = FILE_BYTES - MIN(missing, FILE_BYTES);
	while (fuzz_more(&in)) {
		unsigned offset = fuzz_below(&in, HDR_BYTES);

		file[HDR_FIRST + offset] = fuzz_u8(&in);
	}
	exact = malloc(file_bytes ? file_bytes : 1);
	memcpy(exact, file, file_bytes);
	image.kernel_hpa = (uintptr_t)exact;
	image.kernel_len_bytes = file_bytes;
	memset(err, 0, sizeof(err));
	rc = linux_load(&image, &mem, &entry, err, sizeof(err));
	FUZZ_CHECK(rc == 0 || rc == -EINVAL);
	if (rc)
		FUZZ_CHECK(err[0] && memchr(err, 0, sizeof(err)));
	else
		loaded_check(&image, &mem, &entry);
	free(exact);
	return 0;
}
