/* The host's ACPI tables, as firmware of all kinds gives them. */
#include "arch/x86/acpi.c"
#include "tests/unit/test.h"
#include <stdlib.h>

static bool mapped_ok = true;

int paging_map_missing(hpa_t base_hpa, uint64_t len_bytes)
{
	(void)base_hpa;
	(void)len_bytes;
	return mapped_ok ? 0 : -ENOMEM;
}

static struct {
	struct rsdp rsdp;
	struct {
		struct acpi_header h;
		uint64_t entry[2];
	} PACKED xsdt;
	uint8_t madt[256], fadt[276], dsdt[128];
} fw;

static void checksum(void *table, uint32_t len_bytes)
{
	uint8_t *byte = table, sum = 0;

	((struct acpi_header *)table)->checksum = 0;
	for (uint32_t i = 0; i < len_bytes; i++)
		sum = (uint8_t)(sum + byte[i]);
	((struct acpi_header *)table)->checksum = (uint8_t)-sum;
}

static void header(void *table, const char *signature, uint32_t len_bytes)
{
	memcpy(table, signature, 4);
	((struct acpi_header *)table)->len_bytes = len_bytes;
	checksum(table, len_bytes);
}

static void rsdp_sum(void)
{
	uint8_t sum = 0;

	fw.rsdp.checksum = 0;
	for (unsigned i = 0; i < RSDP_V1_BYTES; i++)
		sum = (uint8_t)(sum + ((uint8_t *)&fw.rsdp)[i]);
	fw.rsdp.checksum = (uint8_t)-sum;
}

static hpa_t setup(const uint8_t *entries, uint32_t len_bytes)
{
	memset(&fw, 0, sizeof(fw));
	mapped_ok = true;
	memcpy(fw.rsdp.signature, "RSD PTR ", 8);
	fw.rsdp.revision = 2;
	fw.rsdp.xsdt_hpa = (hpa_t)&fw.xsdt;
	rsdp_sum();
	fw.xsdt.entry[0] = (hpa_t)fw.fadt;
	fw.xsdt.entry[1] = (hpa_t)fw.madt;
	header(&fw.xsdt, "XSDT", sizeof(fw.xsdt));
	memcpy(fw.madt + MADT_ENTRIES, entries, len_bytes);
	header(fw.madt, "APIC", MADT_ENTRIES + len_bytes);
	return (hpa_t)&fw.rsdp;
}

static void test_cpus(void)
{
	static const uint8_t
	        e
	                [] =
	                        {
	                                0,    8,  0, 0, 1,    0,    0,  0, /* enabled */
	                                0,    8,  1, 2, 0,    0,    0,  0, /* disabled */
	                                0,    8,  2, 4, 1,    0,    0,  0, 0, 8, 3,
	                                0xff, 1,  0, 0, 0, /* no id: the x2APIC entry has it */
	                                9,    16, 0, 0, 0x34, 0x12, 0,  0, 1, 0, 0,
	                                0,    3,  0, 0, 0,    9,    16, 0, 0, 4, 0,
	                                0,    0,  1, 0, 0,    0,    2,  0, 0, 0, /* said twice */
	                        };
	uint32_t id[8];
	hpa_t rsdp = setup(e, sizeof(e));

	CHECK_EQ(acpi_cpus(rsdp, id, 8), 3);
	CHECK(id[0] == 0 && id[1] == 4 && id[2] == 0x1234);
	CHECK_EQ(acpi_cpus(rsdp, id, 2), 2);
}

static void test_x2apic_only(void)
{
	static const uint8_t e[] = {
	        9, 16, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0,
	        9, 16, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0,
	};
	uint32_t id[8];

	CHECK_EQ(acpi_cpus(setup(e, sizeof(e)), id, 8), 2);
	CHECK(id[0] == 0x100 && id[1] == 0x101);
}

static void test_overrides_and_ioapics(void)
{
	static const uint8_t e[] = {
	        1,    12,   0,    0,  0, 0, 0xc0, 0xfe, 0,  0, 0, 0,  1, 12, 1, 0,    0,
	        0x10, 0xc0, 0xfe, 24, 0, 0, 0,    2,    10, 0, 4, 20, 0, 0,  0, 0x0f, 0,
	};
	struct acpi_ioapic io[4];
	uint16_t flags;
	hpa_t rsdp = setup(e, sizeof(e));

	CHECK_EQ(acpi_ioapics(rsdp, io, 4), 2);
	CHECK(io[0].base_hpa == 0xfec00000 && io[1].base_hpa == 0xfec01000 && io[1].gsi_base == 24);
	CHECK_EQ(acpi_ioapics(rsdp, io, 1), 1);
	CHECK_EQ(acpi_isa_gsi(rsdp, 4, &flags), 20);
	CHECK_EQ(flags, 0x0f);
	CHECK_EQ(acpi_isa_gsi(rsdp, 3, &flags), 3);
	CHECK_EQ(flags, 0);
	CHECK_EQ(acpi_isa_gsi(0, 4, &flags), 4);
}

static void test_broken_tables(void)
{
	static const uint8_t zero_len[] = {0, 0, 0, 0, 1, 0, 0, 0};
	static const uint8_t past_end[] = {0, 8, 0, 7, 1, 0, 0, 0, 0, 200, 0, 8, 1, 0, 0, 0};
	uint32_t id[8];
	hpa_t rsdp = setup(zero_len, sizeof(zero_len));

	CHECK_EQ(acpi_cpus(rsdp, id, 8), 0);
	CHECK_EQ(acpi_cpus(setup(past_end, sizeof(past_end)), id, 8), 1);
	fw.madt[9]++;
	CHECK(!acpi_find(rsdp, "APIC"));
	fw.madt[9]--;
	CHECK(acpi_find(rsdp, "APIC"));
	((struct acpi_header *)fw.madt)->len_bytes = 3;
	CHECK(!acpi_find(rsdp, "APIC"));
	((struct acpi_header *)fw.madt)->len_bytes = 0xffffffff;
	CHECK(!acpi_find(rsdp, "APIC"));
	rsdp = setup(past_end, sizeof(past_end));
	mapped_ok = false;
	CHECK(!acpi_find(rsdp, "APIC"));
	mapped_ok = true;
	fw.rsdp.signature[0] = 'X';
	CHECK(!acpi_find(rsdp, "APIC"));
}

static void put(uint8_t *at, uint64_t value, unsigned len_bytes)
{
	for (unsigned i = 0; i < len_bytes; i++)
		at[i] = (uint8_t)(value >> (8 * i));
}

static hpa_t setup_fadt(const uint8_t *aml, uint32_t len_bytes)
{
	hpa_t rsdp = setup(aml, 0);

	memcpy(fw.dsdt + sizeof(struct acpi_header), aml, len_bytes);
	header(fw.dsdt, "DSDT", (uint32_t)sizeof(struct acpi_header) + len_bytes);
	put(fw.fadt + 64, 0x604, 4);
	put(fw.fadt + 76, 0x608, 4);
	put(fw.fadt + 112, 1u << 8, 4);
	put(fw.fadt + 140, (hpa_t)fw.dsdt, 8);
	header(fw.fadt, "FACP", sizeof(fw.fadt));
	return rsdp;
}

static void test_fixed(void)
{
	static const uint8_t aml[] = {0x08, '_',  'S',  '5',  '_', 0x12, 0x08,
	                              0x04, 0x0a, 0x05, 0x01, 0,   0,    0};
	static const uint8_t cut[] = {0, 0, '_', 'S', '5', '_', 0x12, 0xc8, 0x04};
	struct acpi_fixed fixed;

	acpi_fixed(setup_fadt(aml, sizeof(aml)), &fixed);
	CHECK_EQ(fixed.pm_timer_port, 0x608);
	CHECK(fixed.pm_timer_32bit);
	CHECK_EQ(fixed.pm1a_cnt_port, 0x604);
	CHECK_EQ(fixed.s5_typ_a, 5);
	CHECK_EQ(fixed.s5_typ_b, 1);
	acpi_fixed(setup_fadt(cut, sizeof(cut)), &fixed);
	CHECK(fixed.s5_typ_a == -1 && fixed.pm_timer_port == 0x608);
	acpi_fixed(0, &fixed);
	CHECK(fixed.pm_timer_port == 0 && fixed.s5_typ_a == -1);
}

/* Any bytes at all in a table with a right checksum: no read outside it (the sanitizer watches). */
static void test_noise(void)
{
	srand(7);
	for (int round = 0; round < 20000; round++) {
		uint8_t noise[90];
		uint32_t id[8];
		uint16_t flags;
		struct acpi_ioapic io[4];
		struct acpi_fixed fixed;
		hpa_t rsdp;

		for (unsigned i = 0; i < sizeof(noise); i++)
			noise[i] = (uint8_t)(rand() % 3 ? rand() % 20 : rand());
		rsdp = setup(noise, (uint32_t)rand() % sizeof(noise));
		CHECK(acpi_cpus(rsdp, id, 8) <= 8);
		CHECK(acpi_ioapics(rsdp, io, 4) <= 4);
		acpi_isa_gsi(rsdp, 4, &flags);
		memcpy(noise + 70, "_S5_\x12", 5);
		acpi_fixed(setup_fadt(noise, 70 + (uint32_t)rand() % 20), &fixed);
	}
}

TESTS(T(test_cpus), T(test_x2apic_only), T(test_overrides_and_ioapics), T(test_broken_tables),
      T(test_fixed), T(test_noise))
