#include "vmm/linux.h"

#include "arch/platform.h"
#include "vmm/fmt.h"
#include "vmm/vpci.h"

/* The part of the setup header that the protocol lets a loader read and write, at 0x1f1. */
struct PACKED setup_header {
	uint8_t setup_sects;
	uint16_t root_flags;
	uint32_t syssize;
	uint16_t ram_size, vid_mode, root_dev, boot_flag;
	uint8_t jump_opcode, jump_len;
	uint32_t header;
	uint16_t version;
	uint32_t realmode_swtch;
	uint16_t start_sys_seg, kernel_version;
	uint8_t type_of_loader, loadflags;
	uint16_t setup_move_size;
	uint32_t code32_start, ramdisk_image, ramdisk_size, bootsect_kludge;
	uint16_t heap_end_ptr;
	uint8_t ext_loader_ver, ext_loader_type;
	uint32_t cmd_line_ptr, initrd_addr_max, kernel_alignment;
	uint8_t relocatable_kernel, min_alignment;
	uint16_t xloadflags;
	uint32_t cmdline_size, hardware_subarch;
	uint64_t hardware_subarch_data;
	uint32_t payload_offset, payload_length;
	uint64_t setup_data, pref_address;
	uint32_t init_size, handover_offset;
};

struct PACKED e820_entry {
	uint64_t base_gpa, len_bytes;
	uint32_t type;
};

#define E820_RAM      1u
#define E820_RESERVED 2u
#define E820_MAX      128u

/* "Zero page", Linux Documentation/arch/x86/zero-page.rst. */
struct PACKED boot_params {
	uint8_t screen_info[0x70];
	uint64_t acpi_rsdp_addr;
	uint8_t pad_78[0x48];
	uint32_t ext_ramdisk_image, ext_ramdisk_size, ext_cmd_line_ptr;
	uint8_t pad_cc[0x11c];
	uint8_t e820_entries;
	uint8_t pad_1e9[8];
	union {
		struct setup_header hdr;
		uint8_t hdr_bytes[0x9f]; /* to 0x290, where other things begin */
	};
	uint8_t pad_290[0x40];
	struct e820_entry e820_table[E820_MAX];
	uint8_t pad_cd0[0x330];
};

_Static_assert(offsetof(struct setup_header, header) == 0x202 - 0x1f1, "boot protocol");
_Static_assert(offsetof(struct setup_header, cmd_line_ptr) == 0x228 - 0x1f1, "boot protocol");
_Static_assert(offsetof(struct setup_header, pref_address) == 0x258 - 0x1f1, "boot protocol");
_Static_assert(sizeof(struct setup_header) == 0x268 - 0x1f1, "boot protocol");
_Static_assert(offsetof(struct boot_params, acpi_rsdp_addr) == 0x070, "zero page");
_Static_assert(offsetof(struct boot_params, ext_ramdisk_image) == 0x0c0, "zero page");
_Static_assert(offsetof(struct boot_params, e820_entries) == 0x1e8, "zero page");
_Static_assert(offsetof(struct boot_params, hdr) == 0x1f1, "zero page");
_Static_assert(offsetof(struct boot_params, e820_table) == 0x2d0, "zero page");
_Static_assert(sizeof(struct boot_params) == PAGE_SIZE, "zero page");

#define HDR_OFFSET       0x1f1u
#define HDR_LEN_BASE     0x202u /* jump_len counts from here */
#define HDR_END          0x290u
#define HDR_NEED_END     0x264u /* init_size is the last field we must have */
#define BOOT_FLAG        0xaa55
#define HDR_MAGIC        0x53726448u /* "HdrS" */
#define VERSION_NEED     0x020c
#define LOADED_HIGH      BIT(0)
#define XLF_KERNEL_64    BIT(0)
#define XLF_ABOVE_4G     BIT(1)
#define ENTRY64_OFFSET   0x200u
#define LOADER_UNDEFINED 0xff
#define SECTOR_BYTES     512u

/* What the plan needs beside the header itself. */
struct plan {
	struct setup_header hdr;
	const uint8_t *file, *payload;
	uint64_t payload_len_bytes, init_len_bytes;
	gpa_t kernel_gpa, initrd_gpa;
	struct linux_memory_region low; /* RAM from LINUX_HIGH_GPA on, below the device hole */
};

unsigned linux_memory_layout(uint64_t memory_bytes,
                             struct linux_memory_region regions[LINUX_MEMORY_REGION_MAX])
{
	uint64_t len_bytes = ALIGN_DOWN(memory_bytes, (uint64_t)PAGE_SIZE);
	uint64_t low_bytes = MIN(len_bytes, VPCI_MMIO_BASE_GPA);

	if (!len_bytes)
		return 0;
	regions[0] = (struct linux_memory_region){0, low_bytes};
	if (len_bytes == low_bytes)
		return 1;
	regions[1] = (struct linux_memory_region){4 * GIB, len_bytes - low_bytes};
	return 2;
}

/* --- is it a kernel? ---------------------------------------------------------------------- */

static int refuse_foreign(const uint8_t *file, uint64_t len_bytes, char *err, size_t err_len)
{
	const char *what = "no Linux setup header";

	if (!len_bytes)
		what = "an empty file";
	else if (len_bytes >= 4 && !memcmp(file, "\177ELF", 4))
		what = "an ELF file (a vmlinux?)";
	else if (len_bytes >= 2 && file[0] == 0x1f && file[1] == 0x8b)
		what = "gzip data (an initrd?)";
	else if (len_bytes >= 6 && !memcmp(file, "070701", 6))
		what = "a cpio archive (an initrd?)";
	else if (len_bytes >= 4 && !memcmp(file, "\x28\xb5\x2f\xfd", 4))
		what = "zstd data (an initrd?)";
	else if (len_bytes < HDR_OFFSET + sizeof(struct setup_header))
		what = "a file too short for a kernel";
	else if (!memcmp(file, "MZ", 2))
		what = "an EFI program without Linux setup header";
	fmt_snprintf(err, err_len, "found %s; a Linux bzImage (vmlinuz) is needed", what);
	return -EINVAL;
}

/* Reads and checks the header. Nothing of the file is read before its length is known. */
static int header_read(const struct linux_image *in, struct plan *plan, char *err, size_t err_len)
{
	const uint8_t *file = (const uint8_t *)(uintptr_t)in->kernel_hpa;
	struct setup_header *hdr = &plan->hdr;
	unsigned hdr_end;

	plan->file = file;
	if (!file || in->kernel_len_bytes < HDR_OFFSET + sizeof(*hdr))
		return refuse_foreign(file, file ? in->kernel_len_bytes : 0, err, err_len);
	memcpy(hdr, file + HDR_OFFSET, sizeof(*hdr));
	if (hdr->boot_flag != BOOT_FLAG || hdr->header != HDR_MAGIC)
		return refuse_foreign(file, in->kernel_len_bytes, err, err_len);
	hdr_end = HDR_LEN_BASE + hdr->jump_len;
	if (hdr->version < VERSION_NEED || hdr_end < HDR_NEED_END) {
		fmt_snprintf(err, err_len,
		             "found boot protocol %u.%02u (header ends at 0x%x); 2.12 or later is "
		             "needed",
		             hdr->version >> 8, hdr->version & 0xff, hdr_end);
		return -EINVAL;
	}
	if (!(hdr->xloadflags & XLF_KERNEL_64)) {
		fmt_snprintf(err, err_len,
		             "found a kernel without 64-bit entry; an x86-64 kernel is needed");
		return -EINVAL;
	}
	if (!(hdr->loadflags & LOADED_HIGH)) {
		fmt_snprintf(err, err_len, "found a zImage; a bzImage is needed");
		return -EINVAL;
	}
	return 0;
}

/* Finds the part that runs. Files may go on behind it, with a signature for example. */
static int payload_find(const struct linux_image *in, struct plan *plan, char *err, size_t err_len)
{
	uint64_t sects = plan->hdr.setup_sects ? plan->hdr.setup_sects : 4;
	uint64_t setup_bytes = (sects + 1) * SECTOR_BYTES;
	uint64_t want_bytes = (uint64_t)plan->hdr.syssize * 16;
	uint64_t have_bytes =
	        in->kernel_len_bytes > setup_bytes ? in->kernel_len_bytes - setup_bytes : 0;

	/* syssize is rounded up to 16, the file need not be. */
	if (!have_bytes || have_bytes + 15 < want_bytes) {
		fmt_snprintf(err, err_len,
		             "found %llu bytes; the header asks for %llu: the file is cut off",
		             (unsigned long long)in->kernel_len_bytes,
		             (unsigned long long)(setup_bytes + want_bytes));
		return -EINVAL;
	}
	plan->payload = plan->file + setup_bytes;
	plan->payload_len_bytes = want_bytes ? MIN(want_bytes, have_bytes) : have_bytes;
	if (plan->payload_len_bytes <= ENTRY64_OFFSET) {
		fmt_snprintf(err, err_len,
		             "found a kernel of %llu bytes; its 64-bit entry is at 0x200",
		             (unsigned long long)plan->payload_len_bytes);
		return -EINVAL;
	}
	plan->init_len_bytes = MAX((uint64_t)plan->hdr.init_size, plan->payload_len_bytes);
	return 0;
}

/* --- where does it go? -------------------------------------------------------------------- */

/* How many bytes of memory follow base_gpa without a hole, over however many pieces. */
static uint64_t span_bytes(const struct gmem *mem, gpa_t base_gpa)
{
	gpa_t gpa = base_gpa;

	for (unsigned i = 0; i < mem->count; i++)
		gpa += gmem_find(mem, gpa, UINT64_MAX, NULL, NULL);
	return gpa - base_gpa;
}

static int low_memory_find(const struct gmem *mem, struct plan *plan, char *err, size_t err_len)
{
	uint64_t low_bytes = MIN(span_bytes(mem, 0), VPCI_MMIO_BASE_GPA);

	if (low_bytes <= LINUX_HIGH_GPA) {
		fmt_snprintf(err, err_len, "found %llu KiB of memory; more than 1 MiB is needed",
		             (unsigned long long)(low_bytes / KIB));
		return -EINVAL;
	}
	plan->low = (struct linux_memory_region){LINUX_HIGH_GPA, low_bytes - LINUX_HIGH_GPA};
	return 0;
}

/*
 * A kernel loaded below its preferred address moves up to it, so that no lower address saves memory
 * and the preferred one is the best there is.
 */
static int kernel_place(struct plan *plan, char *err, size_t err_len)
{
	uint64_t align = plan->hdr.kernel_alignment;
	uint64_t end_gpa = plan->low.gpa + plan->low.len_bytes;
	gpa_t gpa = plan->hdr.pref_address;

	if (gpa < LINUX_HIGH_GPA && plan->hdr.relocatable_kernel) {
		if (!align || (align & (align - 1)))
			align = 2 * MIB;
		gpa = ALIGN_UP((gpa_t)LINUX_HIGH_GPA, align);
	}
	if (gpa < LINUX_HIGH_GPA || gpa >= end_gpa || end_gpa - gpa < plan->init_len_bytes) {
		fmt_snprintf(err, err_len,
		             "the kernel wants %llu KiB at 0x%llx; the guest's low memory ends at "
		             "0x%llx",
		             (unsigned long long)(plan->init_len_bytes / KIB),
		             (unsigned long long)gpa, (unsigned long long)end_gpa);
		return -EINVAL;
	}
	plan->kernel_gpa = gpa;
	return 0;
}

/* The highest page-aligned place for len_bytes in [base_gpa, end_gpa), or 0. */
static gpa_t place_high(gpa_t base_gpa, gpa_t end_gpa, uint64_t len_bytes)
{
	gpa_t gpa;

	if (end_gpa < base_gpa || end_gpa - base_gpa < len_bytes)
		return 0;
	gpa = ALIGN_DOWN(end_gpa - len_bytes, (gpa_t)PAGE_SIZE);
	return gpa >= base_gpa ? gpa : 0;
}

/* Above all that the kernel uses while it unpacks itself; else below it; else above 4 GiB. */
static int initrd_place(const struct gmem *mem, const struct linux_image *in, struct plan *plan,
                        char *err, size_t err_len)
{
	uint64_t len_bytes = in->initrd_hpa ? in->initrd_len_bytes : 0;
	gpa_t end_gpa =
	        MIN(plan->low.gpa + plan->low.len_bytes, (gpa_t)plan->hdr.initrd_addr_max + 1);

	if (!len_bytes)
		return 0;
	plan->initrd_gpa = place_high(plan->kernel_gpa + plan->init_len_bytes, end_gpa, len_bytes);
	if (!plan->initrd_gpa)
		plan->initrd_gpa =
		        place_high(LINUX_HIGH_GPA, MIN(plan->kernel_gpa, end_gpa), len_bytes);
	if (!plan->initrd_gpa && (plan->hdr.xloadflags & XLF_ABOVE_4G)) {
		plan->initrd_gpa =
		        place_high(4 * GIB, 4 * GIB + span_bytes(mem, 4 * GIB), len_bytes);
	}
	if (plan->initrd_gpa)
		return 0;
	fmt_snprintf(err, err_len,
	             "the initrd of %llu KiB does not fit beside the kernel (0x%llx to 0x%llx); "
	             "more memory is needed",
	             (unsigned long long)(len_bytes / KIB), (unsigned long long)plan->kernel_gpa,
	             (unsigned long long)(plan->kernel_gpa + plan->init_len_bytes));
	return -EINVAL;
}

/* --- fill guest memory -------------------------------------------------------------------- */

/* Adds a range, or lengthens the last one if it goes on where that ended. */
static void e820_add(struct boot_params *params, gpa_t base_gpa, gpa_t end_gpa, uint32_t type)
{
	unsigned count = params->e820_entries;
	struct e820_entry *last = count ? &params->e820_table[count - 1] : NULL;

	if (base_gpa >= end_gpa)
		return;
	if (last && last->type == type && last->base_gpa + last->len_bytes == base_gpa) {
		last->len_bytes += end_gpa - base_gpa;
	} else if (count < E820_MAX) {
		params->e820_table[count] = (struct e820_entry){base_gpa, end_gpa - base_gpa, type};
		params->e820_entries = (uint8_t)(count + 1);
	}
}

/* What of the guest's memory lies in [base_gpa, end_gpa). */
static void e820_add_ram(const struct gmem *mem, struct boot_params *params, gpa_t base_gpa,
                         gpa_t end_gpa)
{
	for (unsigned i = 0; i < mem->count; i++) {
		const struct gmem_region *r = &mem->region[i];

		e820_add(params, MAX(r->gpa, base_gpa), MIN(r->gpa + r->len_bytes, end_gpa),
		         E820_RAM);
	}
}

static void e820_fill(const struct gmem *mem, struct boot_params *params)
{
	e820_add_ram(mem, params, 0, LINUX_LOW_END_GPA);
	e820_add(params, LINUX_LOW_END_GPA, LINUX_HIGH_GPA, E820_RESERVED);
	e820_add_ram(mem, params, LINUX_HIGH_GPA, UINT64_MAX);
}

static int params_write(const struct gmem *mem, const struct linux_image *in,
                        const struct plan *plan)
{
	struct boot_params *params = gmem_ptr(mem, LINUX_ZERO_PAGE_GPA, sizeof(*params));
	unsigned hdr_end = MIN(HDR_LEN_BASE + plan->hdr.jump_len, HDR_END);
	uint64_t initrd_bytes = plan->initrd_gpa ? in->initrd_len_bytes : 0;
	struct setup_header *hdr;

	if (!params)
		return -EFAULT;
	memset(params, 0, sizeof(*params));
	memcpy(params->hdr_bytes, plan->file + HDR_OFFSET,
	       MIN(hdr_end - HDR_OFFSET, in->kernel_len_bytes - HDR_OFFSET));
	hdr = &params->hdr;
	hdr->type_of_loader = LOADER_UNDEFINED;
	hdr->setup_data = 0;
	hdr->code32_start = (uint32_t)plan->kernel_gpa;
	hdr->cmd_line_ptr = (uint32_t)LINUX_CMDLINE_GPA;
	hdr->ramdisk_image = (uint32_t)plan->initrd_gpa;
	hdr->ramdisk_size = (uint32_t)initrd_bytes;
	params->ext_ramdisk_image = (uint32_t)(plan->initrd_gpa >> 32);
	params->ext_ramdisk_size = (uint32_t)(initrd_bytes >> 32);
	params->acpi_rsdp_addr = in->rsdp_gpa;
	e820_fill(mem, params);
	return 0;
}

/* Identity map of the first 4 GiB: the kernel, its parameters and the command line are there. */
static int page_tables_write(const struct gmem *mem)
{
	uint64_t *table = gmem_ptr(mem, LINUX_PAGE_TABLES_GPA, 6 * PAGE_SIZE);
	const uint64_t present_rw = 3, big = BIT(7);

	if (!table)
		return -EFAULT;
	memset(table, 0, 6 * PAGE_SIZE);
	table[0] = (LINUX_PAGE_TABLES_GPA + PAGE_SIZE) | present_rw;
	for (unsigned i = 0; i < 4; i++)
		table[512 + i] = (LINUX_PAGE_TABLES_GPA + (2 + i) * PAGE_SIZE) | present_rw;
	for (uint64_t i = 0; i < 4 * 512; i++)
		table[1024 + i] = i * 2 * MIB | present_rw | big;
	return 0;
}

#define BOOT_CS   0x10
#define BOOT_DS   0x18
#define ATTR_CODE 0xa09bu /* execute, read, accessed; present, long, granular */
#define ATTR_DATA 0xc093u

static int gdt_write(const struct gmem *mem)
{
	static const uint64_t gdt[4] = {0, 0, 0x00af9b000000ffffull, 0x00cf93000000ffffull};

	return gmem_write(mem, LINUX_GDT_GPA, gdt, sizeof(gdt));
}

static void entry_fill(const struct plan *plan, struct linux_entry *out)
{
	struct hvm_state *state = &out->state;

	memset(out, 0, sizeof(*out));
	for (unsigned i = HVM_ES; i <= HVM_GS; i++)
		state->seg[i] = (struct hvm_seg){BOOT_DS, ATTR_DATA, UINT32_MAX, 0};
	state->seg[HVM_CS] = (struct hvm_seg){BOOT_CS, ATTR_CODE, UINT32_MAX, 0};
	state->seg[HVM_LDTR] = (struct hvm_seg){0, HVM_SEG_UNUSABLE, 0, 0};
	state->seg[HVM_TR] = (struct hvm_seg){0, 0x8b, 0xffff, 0};
	state->gdtr_base = LINUX_GDT_GPA;
	state->gdtr_limit = 4 * 8 - 1;
	state->cr0 = BIT(31) | BIT(5) | BIT(4) | BIT(0); /* PG, NE, ET, PE */
	state->cr3 = LINUX_PAGE_TABLES_GPA;
	state->cr4 = BIT(5);            /* PAE */
	state->efer = BIT(10) | BIT(8); /* LMA, LME */
	state->pat = 0x0007040600070406ull;
	state->dr6 = 0xffff0ff0;
	state->dr7 = 0x400;
	out->rip = plan->kernel_gpa + ENTRY64_OFFSET;
	out->rflags = 2;
	out->gpr[HVM_RSI] = LINUX_ZERO_PAGE_GPA;
	out->kernel_gpa = plan->kernel_gpa;
	out->kernel_len_bytes = plan->init_len_bytes;
	out->initrd_gpa = plan->initrd_gpa;
}

static int cmdline_check(const struct linux_image *in, const struct plan *plan, char *err,
                         size_t err_len)
{
	uint64_t len_bytes = in->cmdline ? strlen(in->cmdline) : 0;
	uint64_t max_bytes = MIN((uint64_t)plan->hdr.cmdline_size, LINUX_CMDLINE_MAX - 1);

	if (len_bytes <= max_bytes)
		return 0;
	fmt_snprintf(err, err_len, "the command line has %llu bytes; this kernel takes %llu",
	             (unsigned long long)len_bytes, (unsigned long long)max_bytes);
	return -EINVAL;
}

int linux_load(const struct linux_image *in, const struct gmem *mem, struct linux_entry *out,
               char *err, size_t err_len)
{
	const char *cmdline = in->cmdline ? in->cmdline : "";
	const void *initrd = (const void *)(uintptr_t)in->initrd_hpa;
	struct plan plan;

	memset(&plan, 0, sizeof(plan));
	if (header_read(in, &plan, err, err_len) || payload_find(in, &plan, err, err_len) ||
	    cmdline_check(in, &plan, err, err_len) || low_memory_find(mem, &plan, err, err_len) ||
	    kernel_place(&plan, err, err_len) || initrd_place(mem, in, &plan, err, err_len))
		return -EINVAL;
	if (gmem_write(mem, plan.kernel_gpa, plan.payload, plan.payload_len_bytes) ||
	    (plan.initrd_gpa && gmem_write(mem, plan.initrd_gpa, initrd, in->initrd_len_bytes)) ||
	    gmem_write(mem, LINUX_CMDLINE_GPA, cmdline, strlen(cmdline) + 1) ||
	    params_write(mem, in, &plan) || page_tables_write(mem) || gdt_write(mem)) {
		fmt_snprintf(err, err_len, "the guest's memory has a hole where the kernel goes");
		return -EINVAL;
	}
	entry_fill(&plan, out);
	return 0;
}
