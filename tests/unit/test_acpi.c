#include "vmm/acpi.h"

#include "tests/unit/test.h"
#include "vmm/platform_ports.h"
#include "vmm/vioapic.h"
#include "vmm/vlapic.h"
#include "vmm/vpci.h"

#include <stdlib.h>
#include <string.h>

static uint8_t ram[0x100000];
static struct gmem mem;
static gpa_t rsdp;

static int build(unsigned count)
{
	memset(ram, 0xee, sizeof(ram));
	memset(&mem, 0, sizeof(mem));
	CHECK_EQ(gmem_add(&mem, 0, sizeof(ram), 0, ram), 0);
	return acpi_build(&mem, count, &rsdp);
}

static uint64_t get(gpa_t gpa, unsigned width)
{
	uint64_t value = 0;

	CHECK_EQ(gmem_read(&mem, gpa, &value, width), 0);
	return value;
}

static uint8_t sum(gpa_t gpa, uint64_t len)
{
	uint8_t total = 0;

	for (uint64_t i = 0; i < len; i++)
		total += (uint8_t)get(gpa + i, 1);
	return total;
}

static gpa_t table(const char *signature)
{
	gpa_t xsdt = get(rsdp + 24, 8);

	if (!strcmp(signature, "XSDT"))
		return xsdt;
	if (!strcmp(signature, "DSDT"))
		return get(table("FACP") + 140, 8);
	for (unsigned i = 0; i < (get(xsdt + 4, 4) - 36) / 8; i++) {
		gpa_t gpa = get(xsdt + 36 + i * 8, 8);

		if (!memcmp(ram + gpa, signature, 4))
			return gpa;
	}
	CHECK(!"table found");
	return 0;
}

static const char *const names[] = {"XSDT", "FACP", "APIC", "DSDT"};

static void sums_are_zero(void)
{
	CHECK_EQ(build(4), 0);
	CHECK_EQ(rsdp, 0xe0000);
	CHECK(!memcmp(ram + rsdp, "RSD PTR ", 8));
	CHECK_EQ(sum(rsdp, 20), 0);
	CHECK_EQ(sum(rsdp, 36), 0);
	for (unsigned i = 0; i < ARRAY_LEN(names); i++) {
		gpa_t gpa = table(names[i]);

		CHECK(!memcmp(ram + gpa, names[i], 4));
		CHECK_EQ(sum(gpa, get(gpa + 4, 4)), 0);
		CHECK(gpa >= ACPI_BASE_GPA && gpa + get(gpa + 4, 4) <= ACPI_END_GPA);
	}
	CHECK_EQ(ram[ACPI_BASE_GPA - 1], 0xee);
}

static void fadt_says_hardware_reduced(void)
{
	gpa_t fadt;

	CHECK_EQ(build(4), 0);
	fadt = table("FACP");
	CHECK_EQ(get(fadt + 112, 4) & (BIT(20) | BIT(10)), BIT(20) | BIT(10));
	CHECK_EQ(get(fadt + 109, 2) & (BIT(1) | BIT(2) | BIT(5)),
	         BIT(2) | BIT(5)); /* no 8042, VGA, RTC */
	CHECK_EQ(get(fadt + 116, 1), 1);
	CHECK_EQ(get(fadt + 120, 8), PORTS_RESET);
	CHECK_EQ(get(fadt + 128, 1), PORTS_RESET_VALUE);
	CHECK_EQ(get(fadt + 244 + 4, 8), PORTS_SLEEP_CONTROL);
	CHECK_EQ(get(fadt + 256 + 4, 8), PORTS_SLEEP_STATUS);
	CHECK_EQ(get(fadt + 40, 4), table("DSDT"));
	for (unsigned i = 46; i < 109; i++)
		CHECK_EQ(get(fadt + i, 1), 0);
}

/* Walks the MADT as an OS does. */
static void madt_check(unsigned count, unsigned ioapic_id)
{
	unsigned cpus = 0, ioapics = 0;
	gpa_t madt, at, end;

	CHECK_EQ(build(count), 0);
	madt = table("APIC");
	end = madt + get(madt + 4, 4);
	CHECK_EQ(get(madt + 36, 4), VLAPIC_BASE_GPA);
	CHECK_EQ(get(madt + 40, 4), 0);
	for (at = madt + 44; at < end; at += get(at + 1, 1)) {
		uint8_t type = (uint8_t)get(at, 1);

		CHECK(get(at + 1, 1) >= 8);
		if (type == 0) {
			CHECK(cpus < 255);
			CHECK_EQ(get(at + 3, 1), cpus);
			CHECK_EQ(get(at + 2, 1), cpus);
			CHECK_EQ(get(at + 4, 4), 1);
			cpus++;
		} else if (type == 9) {
			CHECK(cpus >= 255);
			CHECK_EQ(get(at + 4, 4), cpus);
			CHECK_EQ(get(at + 8, 4), 1);
			CHECK_EQ(get(at + 12, 4), cpus);
			cpus++;
		} else {
			CHECK_EQ(type, 1);
			CHECK_EQ(get(at + 4, 4), VIOAPIC_BASE_GPA);
			CHECK_EQ(get(at + 8, 4), 0);
			CHECK_EQ(get(at + 2, 1), ioapic_id);
			ioapics++;
		}
	}
	CHECK_EQ(at, end);
	CHECK_EQ(cpus, count);
	CHECK_EQ(ioapics, 1);
}

static void madt_names_each_processor_once(void)
{
	madt_check(1, 1);
	madt_check(32, 32);
	madt_check(300, 0);
}

static bool dsdt_has(const void *bytes, size_t len)
{
	gpa_t dsdt = table("DSDT");

	return memmem(ram + dsdt, get(dsdt + 4, 4), bytes, len) != NULL;
}

/* ASL cannot include C headers: the numbers it repeats are compared here. */
static void dsdt_agrees_with_the_headers(void)
{
	uint32_t window[] = {0, VPCI_MMIO_BASE_GPA, VPCI_MMIO_BASE_GPA + VPCI_MMIO_LEN - 1, 0,
	                     VPCI_MMIO_LEN};
	static const uint8_t com1[] = {0x47, 1, 0xf8, 3, 0xf8, 3, 1, 8};
	static const uint8_t cf8[] = {0x47, 1, 0xf8, 0x0c, 0xf8, 0x0c, 1, 8};
	static const uint8_t s5[] = {'_', 'S', '5', '_', 0x12, 6, 4, 0x0a, PORTS_SLEEP_TYPE_OFF};

	CHECK_EQ(build(4), 0);
	CHECK(dsdt_has(window, sizeof(window)));
	CHECK(dsdt_has(com1, sizeof(com1)));
	CHECK(dsdt_has(cf8, sizeof(cf8)));
	CHECK(dsdt_has(s5, 5));
	CHECK(dsdt_has(s5 + 6, 3));
}

static void no_room_no_memory(void)
{
	CHECK_EQ(build(20000), -ENOSPC);
	CHECK_EQ(build(300), 0);
	memset(&mem, 0, sizeof(mem));
	CHECK_EQ(gmem_add(&mem, 0, 0xf0000, 0, ram), 0);
	CHECK_EQ(acpi_build(&mem, 4, &rsdp), -EFAULT);
}

/* ACPICA reads every table without complaint. */
static void iasl_reads_them(void)
{
	char dir[] = "/tmp/acpi-XXXXXX", cmd[256];

	if (system("command -v iasl >/dev/null 2>&1"))
		SKIP("iasl is not installed");
	CHECK_EQ(build(4), 0);
	CHECK(mkdtemp(dir) != NULL);
	for (unsigned i = 0; i < ARRAY_LEN(names); i++) {
		gpa_t gpa = table(names[i]);
		char path[64];
		FILE *file;

		snprintf(path, sizeof(path), "%s/%s.dat", dir, names[i]);
		file = fopen(path, "w");
		CHECK(file && fwrite(ram + gpa, 1, get(gpa + 4, 4), file) == get(gpa + 4, 4));
		fclose(file);
		snprintf(cmd, sizeof(cmd),
		         "cd %s && iasl -d %s.dat >log 2>&1 && ! grep -iE 'error|warning|invalid' "
		         "log >&2 && "
		         "! grep -iE 'invalid|incorrect|unknown' %s.dsl >&2",
		         dir, names[i], names[i]);
		CHECK_EQ(system(cmd), 0);
	}
	snprintf(cmd, sizeof(cmd), "rm -rf %s", dir);
	CHECK_EQ(system(cmd), 0);
}

TESTS(T(sums_are_zero), T(fadt_says_hardware_reduced), T(madt_names_each_processor_once),
      T(dsdt_agrees_with_the_headers), T(no_room_no_memory), T(iasl_reads_them))
