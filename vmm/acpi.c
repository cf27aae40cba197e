#include "vmm/acpi.h"

#include "arch/platform.h"
#include "dsdt.h"
#include "vmm/platform_ports.h"
#include "vmm/vioapic.h"
#include "vmm/vlapic.h"

#define TABLE_ALIGN 64u

struct PACKED rsdp {
	char signature[8];
	uint8_t checksum; /* of the first 20 bytes */
	char oem_id[6];
	uint8_t revision;
	uint32_t rsdt_gpa, len_bytes;
	uint64_t xsdt_gpa;
	uint8_t ext_checksum, reserved[3];
};

struct PACKED header {
	char signature[4];
	uint32_t len_bytes;
	uint8_t revision, checksum;
	char oem_id[6], oem_table_id[8];
	uint32_t oem_revision;
	char creator_id[4];
	uint32_t creator_revision;
};

struct PACKED xsdt {
	struct header header;
	uint64_t table_gpa[2];
};

/* Generic address structure, 5.2.3.2. */
struct PACKED gas {
	uint8_t space, bit_width, bit_offset, access_size;
	uint64_t address;
};

#define GAS_IO_BYTE(port) ((struct gas){1, 8, 0, 1, port})

/* 5.2.9. Everything about the fixed hardware stays zero: this machine has none. */
struct PACKED fadt {
	struct header header;
	uint32_t facs_gpa, dsdt_gpa;
	uint8_t reserved_44, profile;
	uint8_t fixed_46[63];
	uint16_t boot_arch;
	uint8_t reserved_111;
	uint32_t flags;
	struct gas reset;
	uint8_t reset_value;
	uint16_t arm_boot_arch;
	uint8_t minor_version;
	uint64_t x_facs_gpa, x_dsdt_gpa;
	struct gas fixed_148[8];
	struct gas sleep_control, sleep_status;
	uint64_t hypervisor_id;
};

#define FADT_REVISION        6
#define FADT_NO_VGA          BIT(2)
#define FADT_NO_CMOS_RTC     BIT(5)
#define FADT_WBINVD          BIT(0)
#define FADT_NO_POWER_BUTTON BIT(4)
#define FADT_NO_SLEEP_BUTTON BIT(5)
#define FADT_RESET_REG       BIT(10)
#define FADT_HEADLESS        BIT(12)
#define FADT_HW_REDUCED      BIT(20)

/* 5.2.12. */
struct PACKED madt {
	struct header header;
	uint32_t lapic_gpa;
	uint32_t flags; /* bit 0 clear: no 8259 pair */
};

struct PACKED madt_lapic {
	uint8_t type, len_bytes, uid, apic_id;
	uint32_t flags;
};

struct PACKED madt_ioapic {
	uint8_t type, len_bytes, id, reserved;
	uint32_t gpa, gsi_base;
};

struct PACKED madt_x2apic {
	uint8_t type, len_bytes;
	uint16_t reserved;
	uint32_t apic_id, flags, uid;
};

#define MADT_ENABLED 1u

_Static_assert(sizeof(struct rsdp) == 36, "ACPI 6.4 5.2.5.3");
_Static_assert(sizeof(struct header) == 36, "ACPI 6.4 5.2.6");
_Static_assert(sizeof(struct xsdt) == 52, "ACPI 6.4 5.2.8");
_Static_assert(sizeof(struct fadt) == 276, "ACPI 6.4 5.2.9");
_Static_assert(offsetof(struct fadt, boot_arch) == 109, "ACPI 6.4 5.2.9");
_Static_assert(offsetof(struct fadt, reset) == 116, "ACPI 6.4 5.2.9");
_Static_assert(offsetof(struct fadt, x_dsdt_gpa) == 140, "ACPI 6.4 5.2.9");
_Static_assert(offsetof(struct fadt, sleep_control) == 244, "ACPI 6.4 5.2.9");
_Static_assert(sizeof(struct madt) == 44, "ACPI 6.4 5.2.12");
_Static_assert(sizeof(struct madt_lapic) == 8, "ACPI 6.4 5.2.12.2");
_Static_assert(sizeof(struct madt_ioapic) == 12, "ACPI 6.4 5.2.12.3");
_Static_assert(sizeof(struct madt_x2apic) == 16, "ACPI 6.4 5.2.12.12");

/* The byte that makes the sum of all zero. */
static uint8_t checksum(const void *bytes, size_t len_bytes)
{
	const uint8_t *at = bytes;
	uint8_t sum = 0;

	while (len_bytes--)
		sum += *at++;
	return (uint8_t)-sum;
}

/* Takes the next place for a table. NULL: no room or no memory. */
static void *table_place(const struct gmem *mem, gpa_t *next_gpa, size_t len_bytes, gpa_t *gpa)
{
	void *table;

	*gpa = ALIGN_UP(*next_gpa, (gpa_t)TABLE_ALIGN);
	if (*gpa + len_bytes > ACPI_END_GPA)
		return NULL;
	*next_gpa = *gpa + len_bytes;
	table = gmem_ptr(mem, *gpa, len_bytes);
	if (table)
		memset(table, 0, len_bytes);
	return table;
}

static void header_finish(struct header *header, const char *signature, uint8_t revision,
                          size_t len_bytes)
{
	memcpy(header->signature, signature, 4);
	header->len_bytes = (uint32_t)len_bytes;
	header->revision = revision;
	memcpy(header->oem_id, "QUELL ", 6);
	memcpy(header->oem_table_id, "GUEST   ", 8);
	header->oem_revision = 1;
	memcpy(header->creator_id, "QELL", 4);
	header->creator_revision = 1;
	header->checksum = 0;
	header->checksum = checksum(header, len_bytes);
}

static void fadt_fill(struct fadt *fadt, gpa_t dsdt_gpa)
{
	fadt->dsdt_gpa = (uint32_t)dsdt_gpa;
	fadt->x_dsdt_gpa = dsdt_gpa;
	fadt->boot_arch = FADT_NO_VGA | FADT_NO_CMOS_RTC;
	fadt->flags = FADT_WBINVD | FADT_NO_POWER_BUTTON | FADT_NO_SLEEP_BUTTON | FADT_RESET_REG |
	              FADT_HEADLESS | FADT_HW_REDUCED;
	fadt->reset = GAS_IO_BYTE(PORTS_RESET);
	fadt->reset_value = PORTS_RESET_VALUE;
	fadt->minor_version = 4;
	fadt->sleep_control = GAS_IO_BYTE(PORTS_SLEEP_CONTROL);
	fadt->sleep_status = GAS_IO_BYTE(PORTS_SLEEP_STATUS);
	memcpy(&fadt->hypervisor_id, "QUELL", 5);
	header_finish(&fadt->header, "FACP", FADT_REVISION, sizeof(*fadt));
}

/* Ids from 255 on do not fit the old entry (5.2.12.12). */
static size_t cpu_entry_len(uint32_t apic_id)
{
	return apic_id < 255 ? sizeof(struct madt_lapic) : sizeof(struct madt_x2apic);
}

static size_t madt_len(unsigned vcpu_count)
{
	size_t len_bytes = sizeof(struct madt) + sizeof(struct madt_ioapic);

	for (uint32_t id = 0; id < vcpu_count; id++)
		len_bytes += cpu_entry_len(id);
	return len_bytes;
}

static void madt_fill(struct madt *madt, unsigned vcpu_count)
{
	uint8_t *at = (uint8_t *)(madt + 1);
	/* The I/O APIC's id is the first that no local APIC has. */
	const struct madt_ioapic ioapic = {1,
	                                   sizeof(ioapic),
	                                   (uint8_t)(vcpu_count < 255 ? vcpu_count : 0),
	                                   0,
	                                   (uint32_t)VIOAPIC_BASE_GPA,
	                                   0};

	madt->lapic_gpa = (uint32_t)VLAPIC_BASE_GPA;
	for (uint32_t id = 0; id < vcpu_count; id++) {
		size_t len_bytes = cpu_entry_len(id);

		if (len_bytes == sizeof(struct madt_lapic))
			*(struct madt_lapic *)at = (struct madt_lapic){
			        0, (uint8_t)len_bytes, (uint8_t)id, (uint8_t)id, MADT_ENABLED};
		else
			*(struct madt_x2apic *)at = (struct madt_x2apic){
			        9, (uint8_t)len_bytes, 0, id, MADT_ENABLED, id};
		at += len_bytes;
	}
	memcpy(at, &ioapic, sizeof(ioapic));
	header_finish(&madt->header, "APIC", 5, madt_len(vcpu_count));
}

static void rsdp_fill(struct rsdp *rsdp, gpa_t xsdt_gpa)
{
	memcpy(rsdp->signature, "RSD PTR ", 8);
	memcpy(rsdp->oem_id, "QUELL ", 6);
	rsdp->revision = 2;
	rsdp->len_bytes = sizeof(*rsdp);
	rsdp->xsdt_gpa = xsdt_gpa;
	rsdp->checksum = checksum(rsdp, 20);
	rsdp->ext_checksum = checksum(rsdp, sizeof(*rsdp));
}

int acpi_build(const struct gmem *mem, unsigned vcpu_count, gpa_t *rsdp_gpa)
{
	gpa_t next_gpa = ACPI_BASE_GPA, xsdt_gpa, fadt_gpa, madt_gpa, dsdt_gpa;
	struct rsdp *rsdp;
	struct xsdt *xsdt;
	struct fadt *fadt;
	struct madt *madt;
	void *dsdt;

	if (!gmem_ptr(mem, ACPI_BASE_GPA, ACPI_END_GPA - ACPI_BASE_GPA))
		return -EFAULT;
	rsdp = table_place(mem, &next_gpa, sizeof(*rsdp), rsdp_gpa);
	xsdt = table_place(mem, &next_gpa, sizeof(*xsdt), &xsdt_gpa);
	fadt = table_place(mem, &next_gpa, sizeof(*fadt), &fadt_gpa);
	dsdt = table_place(mem, &next_gpa, sizeof(dsdt_aml), &dsdt_gpa);
	madt = table_place(mem, &next_gpa, madt_len(vcpu_count), &madt_gpa);
	if (!rsdp || !xsdt || !fadt || !dsdt || !madt)
		return -ENOSPC;
	memcpy(dsdt, dsdt_aml, sizeof(dsdt_aml));
	fadt_fill(fadt, dsdt_gpa);
	madt_fill(madt, vcpu_count);
	xsdt->table_gpa[0] = fadt_gpa;
	xsdt->table_gpa[1] = madt_gpa;
	header_finish(&xsdt->header, "XSDT", 1, sizeof(*xsdt));
	rsdp_fill(rsdp, xsdt_gpa);
	return 0;
}
