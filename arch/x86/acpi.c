#include "arch/x86/acpi.h"
#include "arch/platform.h"
#include "arch/x86/paging.h"

#define TABLE_MAX_BYTES (16 * MIB)
#define RSDP_V1_BYTES   20u
#define MADT_ENTRIES    44u /* offset of the first entry */

struct rsdp {
	char signature[8];
	uint8_t checksum;
	char oem_id[6];
	uint8_t revision;
	uint32_t rsdt_hpa;
	uint32_t len_bytes;
	uint64_t xsdt_hpa;
	uint8_t ext_checksum, reserved[3];
} PACKED;
_Static_assert(sizeof(struct rsdp) == 36, "ACPI 6.4 5.2.5.3");

static uint64_t load(const uint8_t *p, unsigned len_bytes)
{
	uint64_t v = 0;

	for (unsigned i = 0; i < len_bytes; i++)
		v |= (uint64_t)p[i] << (8 * i);
	return v;
}

static bool sums_to_zero(const void *p, size_t len_bytes)
{
	const uint8_t *byte = p;
	uint8_t sum = 0;

	for (size_t i = 0; i < len_bytes; i++)
		sum = (uint8_t)(sum + byte[i]);
	return sum == 0;
}

/* The table at that address, readable from end to end; NULL: not a sound table. */
static const struct acpi_header *table_at(hpa_t hpa)
{
	const struct acpi_header *h = (const struct acpi_header *)hpa;

	if (!hpa || paging_map_missing(hpa, sizeof(*h)))
		return NULL;
	if (h->len_bytes < sizeof(*h) || h->len_bytes > TABLE_MAX_BYTES)
		return NULL;
	if (paging_map_missing(hpa, h->len_bytes) || !sums_to_zero(h, h->len_bytes))
		return NULL;
	return h;
}

static const struct acpi_header *root_table(hpa_t rsdp_hpa, unsigned *entry_bytes)
{
	const struct rsdp *rsdp = (const struct rsdp *)rsdp_hpa;
	const struct acpi_header *root = NULL;

	if (!rsdp_hpa || paging_map_missing(rsdp_hpa, sizeof(*rsdp)))
		return NULL;
	if (memcmp(rsdp->signature, "RSD PTR ", 8) || !sums_to_zero(rsdp, RSDP_V1_BYTES))
		return NULL;
	*entry_bytes = 8;
	if (rsdp->revision >= 2)
		root = table_at(rsdp->xsdt_hpa);
	if (!root) {
		*entry_bytes = 4;
		root = table_at(rsdp->rsdt_hpa);
	}
	return root;
}

const struct acpi_header *acpi_find(hpa_t rsdp_hpa, const char signature[4])
{
	unsigned step;
	const struct acpi_header *root = root_table(rsdp_hpa, &step);

	if (!root)
		return NULL;
	for (uint32_t at = sizeof(*root); at + step <= root->len_bytes; at += step) {
		hpa_t hpa = load((const uint8_t *)root + at, step);
		const struct acpi_header *h = (const struct acpi_header *)hpa;

		if (!hpa || paging_map_missing(hpa, sizeof(*h)) ||
		    memcmp(h->signature, signature, 4))
			continue;
		h = table_at(hpa);
		if (h)
			return h;
	}
	return NULL;
}

/* Next MADT entry with room for its type and at least min_bytes; NULL: no more. */
static const uint8_t *madt_next(const struct acpi_header *madt, uint32_t *at, uint8_t type,
                                uint8_t min_bytes)
{
	const uint8_t *base = (const uint8_t *)madt;

	while (madt && *at + 2 <= madt->len_bytes) {
		const uint8_t *entry = base + *at;
		uint8_t len = entry[1];

		if (len < 2 || *at + len > madt->len_bytes)
			return NULL;
		*at += len;
		if (entry[0] == type && len >= min_bytes)
			return entry;
	}
	return NULL;
}

static unsigned add_id(uint32_t *ids, unsigned count, unsigned max, uint32_t id)
{
	for (unsigned i = 0; i < count; i++)
		if (ids[i] == id)
			return count;
	if (count < max)
		ids[count++] = id;
	return count;
}

unsigned acpi_cpus(hpa_t rsdp_hpa, uint32_t *apic_id, unsigned max)
{
	const struct acpi_header *madt = acpi_find(rsdp_hpa, "APIC");
	const uint8_t *e;
	unsigned count = 0;

	for (uint32_t at = MADT_ENTRIES; (e = madt_next(madt, &at, 0, 8));) /* local APIC */
		if ((load(e + 4, 4) & 1) && e[3] != 0xff)
			count = add_id(apic_id, count, max, e[3]);
	for (uint32_t at = MADT_ENTRIES; (e = madt_next(madt, &at, 9, 16));) /* local x2APIC */
		if (load(e + 8, 4) & 1)
			count = add_id(apic_id, count, max, (uint32_t)load(e + 4, 4));
	return count;
}

unsigned acpi_ioapics(hpa_t rsdp_hpa, struct acpi_ioapic *out, unsigned max)
{
	const struct acpi_header *madt = acpi_find(rsdp_hpa, "APIC");
	const uint8_t *e;
	unsigned count = 0;

	for (uint32_t at = MADT_ENTRIES; count < max && (e = madt_next(madt, &at, 1, 12));) {
		out[count].base_hpa = load(e + 4, 4);
		out[count++].gsi_base = (uint32_t)load(e + 8, 4);
	}
	return count;
}

uint32_t acpi_isa_gsi(hpa_t rsdp_hpa, unsigned irq, uint16_t *flags)
{
	const struct acpi_header *madt = acpi_find(rsdp_hpa, "APIC");
	const uint8_t *e;

	*flags = 0;
	for (uint32_t at = MADT_ENTRIES; (e = madt_next(madt, &at, 2, 10));) {
		if (e[2] != 0 || e[3] != irq)
			continue;
		*flags = (uint16_t)load(e + 8, 2);
		return (uint32_t)load(e + 4, 4);
	}
	return irq;
}

/* One integer of a package in AML, as SLP_TYP is always written. -1: something else. */
static int aml_int(const uint8_t **p, const uint8_t *end)
{
	const uint8_t *at = *p;

	if (at < end && (*at == 0x00 || *at == 0x01)) { /* ZeroOp, OneOp */
		*p = at + 1;
		return *at;
	}
	if (at + 1 < end && *at == 0x0a) { /* BytePrefix */
		*p = at + 2;
		return at[1];
	}
	return -1;
}

/* Name (_S5_, Package (n) { typ_a, typ_b, ... }): found by its bytes, without an interpreter. */
static void s5_find(const struct acpi_header *dsdt, struct acpi_fixed *out)
{
	const uint8_t *p = (const uint8_t *)dsdt + sizeof(*dsdt);
	const uint8_t *end = (const uint8_t *)dsdt + dsdt->len_bytes;

	for (; p + 8 < end; p++) {
		const uint8_t *q = p + 4;

		if (memcmp(p, "_S5_", 4) || *q != 0x12) /* PackageOp */
			continue;
		q++;
		q += 1 + (*q >> 6); /* PkgLength says how long it is itself */
		q++;                /* element count */
		out->s5_typ_a = aml_int(&q, end);
		out->s5_typ_b = out->s5_typ_a < 0 ? -1 : aml_int(&q, end);
		return;
	}
}

void acpi_fixed(hpa_t rsdp_hpa, struct acpi_fixed *out)
{
	const struct acpi_header *fadt = acpi_find(rsdp_hpa, "FACP"), *dsdt = NULL;
	const uint8_t *f = (const uint8_t *)fadt;

	*out = (struct acpi_fixed){.s5_typ_a = -1, .s5_typ_b = -1};
	if (!fadt || fadt->len_bytes < 116)
		return;
	out->pm_timer_port = (uint16_t)load(f + 76, 4);
	out->pm_timer_32bit = load(f + 112, 4) >> 8 & 1;
	out->pm1a_cnt_port = (uint16_t)load(f + 64, 4);
	out->pm1b_cnt_port = (uint16_t)load(f + 68, 4);
	if (fadt->len_bytes >= 148)
		dsdt = table_at(load(f + 140, 8));
	if (!dsdt)
		dsdt = table_at(load(f + 40, 4));
	if (dsdt)
		s5_find(dsdt, out);
}
