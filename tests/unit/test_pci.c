#include "drivers/pci.h"
#include "tests/fake/pci_model.h"
#include "tests/fake/platform.h"
#include "tests/unit/test.h"

#include <string.h>

static void begin(void)
{
	fake_reset();
	pci_model_init();
	pci_model_add(0, 0, 0, 0x8086, 0x29c0);
}

static uint8_t *function(unsigned bus, unsigned slot, unsigned fn, uint32_t class_code)
{
	uint8_t *config =
	        pci_model_add(bus, slot, fn, 0x1234, (uint16_t)(bus << 8 | slot << 3 | fn));

	pci_model_put32(config, 0x08, class_code << 8 | 0x02);
	return config;
}

static void bridge(unsigned bus, unsigned slot, unsigned secondary)
{
	uint8_t *config = function(bus, slot, 0, 0x060400);

	config[0x0e] = 1;
	config[0x19] = (uint8_t)secondary;
}

static void test_find(void)
{
	struct pci_dev found[8];

	begin();
	function(0, 3, 0, PCI_CLASS_NVME);
	function(0, 31, 0, 0x060100)[0x0e] = 0x80;
	function(0, 31, 7, PCI_CLASS_NVME); /* multi-function, with a gap */
	function(0, 30, 0, 0x020000);
	function(0, 30, 1, PCI_CLASS_NVME); /* not multi-function: an alias, not to be seen */
	function(0, 29, 0, 0x010801);       /* another interface */
	bridge(0, 2, 1);
	function(1, 0, 0, PCI_CLASS_NVME);
	bridge(1, 5, 2);
	function(2, 8, 0, PCI_CLASS_NVME);
	function(9, 8, 0, PCI_CLASS_NVME);    /* no bridge leads there */
	pci_model_add(0x40, 0, 0, 0x1022, 1); /* another root */
	function(0x40, 1, 0, PCI_CLASS_NVME);
	CHECK_EQ(pci_find_class(PCI_CLASS_NVME, found, 8), 5);
	CHECK_EQ(found[0].bus << 16 | found[0].slot << 8 | found[0].fn, 0x000300);
	CHECK_EQ(found[1].bus << 16 | found[1].slot << 8 | found[1].fn, 0x001f07);
	CHECK_EQ(found[2].bus << 16 | found[2].slot << 8 | found[2].fn, 0x010000);
	CHECK_EQ(found[3].bus << 16 | found[3].slot << 8 | found[3].fn, 0x020800);
	CHECK_EQ(found[4].bus << 16 | found[4].slot << 8 | found[4].fn, 0x400100);
	CHECK_EQ(found[3].vendor, 0x1234);
	CHECK_EQ(found[3].device, 0x0240);
	memset(found, 0xff, sizeof(found));
	CHECK_EQ(pci_find_class(PCI_CLASS_NVME, found, 2), 5); /* all counted, two told */
	CHECK_EQ(found[2].bus, 0xff);
	fake_reset();
}

/* Bridges that lead to themselves, back, to nowhere, to one another's bus. */
static void test_bridge_loops(void)
{
	struct pci_dev found[8];

	begin();
	bridge(0, 1, 0);
	bridge(0, 2, 5);
	bridge(0, 3, 5);
	bridge(0, 4, 255);
	bridge(5, 1, 5);
	bridge(5, 2, 0);
	bridge(5, 3, 3); /* lower than its own: the firmware never numbers so */
	function(5, 4, 0, PCI_CLASS_NVME);
	CHECK_EQ(pci_find_class(PCI_CLASS_NVME, found, 8), 1);
	CHECK(pci_model_reads < 20000);
	fake_reset();
	CHECK_EQ(pci_find_class(PCI_CLASS_NVME, found, 8), 0); /* no PCI at all */
}

static void test_enable(void)
{
	struct pci_dev pci = {.slot = 3};
	uint8_t *config;

	begin();
	config = function(0, 3, 0, PCI_CLASS_NVME);
	pci_model_put16(config, 4, 0x0101);
	pci_model_put16(config, 6, 0xf010);
	pci_enable(&pci);
	CHECK_EQ(pci_model_get16(config, 4), 0x0507);
	CHECK_EQ(pci_model_get16(config, 6), 0x0010); /* errors cleared, capability bit kept */
	pci_dma_disable(&pci);
	CHECK_EQ(pci_model_get16(config, 4), 0x0503);
	fake_reset();
}

static void test_bars(void)
{
	struct pci_dev pci = {.slot = 3};
	uint8_t *config;

	begin();
	config = function(0, 3, 0, PCI_CLASS_NVME);
	pci_model_put32(config, 0x10, 0xfe80000c); /* 64 bits, prefetchable */
	pci_model_put32(config, 0x14, 0x3);
	pci_model_put32(config, 0x18, 0xfeb00000);
	pci_model_put32(config, 0x1c, 0xc001);     /* ports */
	pci_model_put32(config, 0x24, 0xfe000004); /* 64 bits, but the last */
	CHECK_EQ(pci_bar_hpa(&pci, 0), 0x3fe800000);
	CHECK_EQ(pci_bar_hpa(&pci, 2), 0xfeb00000);
	CHECK_EQ(pci_bar_hpa(&pci, 3), 0);
	CHECK_EQ(pci_bar_hpa(&pci, 4), 0); /* not assigned */
	CHECK_EQ(pci_bar_hpa(&pci, 5), 0);
	CHECK_EQ(pci_bar_hpa(&pci, 6), 0);
	pci.slot = 9;
	CHECK_EQ(pci_bar_hpa(&pci, 0), 0); /* nobody */
	fake_reset();
}

static void test_capabilities(void)
{
	struct pci_dev pci = {.slot = 3};
	uint8_t *config;

	begin();
	config = function(0, 3, 0, PCI_CLASS_NVME);
	config[0x34] = 0x40;
	pci_model_put16(config, 0x40, 0x5001);
	pci_model_put16(config, 0x50, 0x0011);
	CHECK_EQ(pci_cap_find(&pci, PCI_CAP_MSIX), 0); /* status says: no list */
	pci_model_put16(config, 6, 0x10);
	CHECK_EQ(pci_cap_find(&pci, PCI_CAP_MSIX), 0x50);
	CHECK_EQ(pci_cap_find(&pci, 0x05), 0);
	pci_model_put16(config, 0x50, 0x4010); /* a circle */
	CHECK_EQ(pci_cap_find(&pci, PCI_CAP_MSIX), 0);
	pci_model_put16(config, 0x50, 0x1110); /* into the header */
	CHECK_EQ(pci_cap_find(&pci, PCI_CAP_MSIX), 0);
	fake_reset();
}

static void test_msix(void)
{
	static uint32_t table[3 * 4 + 1] __attribute__((aligned(4096)));
	struct pci_dev pci = {.slot = 3};
	struct pci_msix msix;
	uint8_t *config;

	begin();
	config = function(0, 3, 0, PCI_CLASS_NVME);
	CHECK_EQ(pci_msix_init(&pci, &msix), -ENODEV);
	pci_model_put16(config, 6, 0x10);
	config[0x34] = 0x40;
	pci_model_put16(config, 0x40, 0x0011);
	pci_model_put16(config, 0x42, 0x0002); /* three vectors */
	pci_model_put32(config, 0x44, 0x4);    /* at the start of BAR 4 */
	CHECK_EQ(pci_msix_init(&pci, &msix), -ENODEV);
	pci_model_put32(config, 0x20, (uint32_t)(uintptr_t)table | 4);
	pci_model_put32(config, 0x24, (uint32_t)((uintptr_t)table >> 32));
	table[12] = 0x5a5a5a5a;
	CHECK_EQ(pci_msix_init(&pci, &msix), 0);
	CHECK_EQ(msix.vector_count, 3);
	CHECK_EQ(pci_model_get16(config, 0x42), 0x8002); /* on, function mask off */
	for (unsigned i = 0; i < 3; i++)
		CHECK_EQ(table[i * 4 + 3], 1);
	CHECK_EQ(pci_msix_route(&msix, 3, 1, 1), -EINVAL);
	CHECK_EQ(pci_msix_route(&msix, 1, 0x1fee01000, 0xec), 0);
	CHECK_EQ(table[4], 0xfee01000);
	CHECK_EQ(table[5], 1);
	CHECK_EQ(table[6], 0xec);
	CHECK_EQ(table[7], 1);
	pci_msix_mask(&msix, 1, false);
	CHECK_EQ(table[7], 0);
	CHECK_EQ(table[3], 1);
	CHECK_EQ(table[12], 0x5a5a5a5a);
	fake_reset();
}

TESTS(T(test_find), T(test_bridge_loops), T(test_enable), T(test_bars), T(test_capabilities),
      T(test_msix))
