#include "vmm/vpci.h"

#include "tests/unit/test.h"

#include <string.h>

static struct vpci bus;
static struct vpci_dev dev[VPCI_SLOT_MAX];
static unsigned written_offset, written_width, written_count, reading_count;

static void config_written(struct vpci_dev *d, unsigned offset, unsigned width)
{
	(void)d;
	written_offset = offset;
	written_width = width;
	written_count++;
}

static void config_reading(struct vpci_dev *d, unsigned offset, unsigned width)
{
	reading_count++;
	if (offset <= 0x80 && offset + width > 0x80)
		d->config[0x80] = 0x5a;
}

static const struct vpci_dev_ops ops = {.config_written = config_written,
                                        .config_reading = config_reading};

static void setup(void)
{
	written_count = reading_count = 0;
	vpci_init(&bus);
	vpci_dev_init(&dev[0], &ops, 0x1af4, 0x1042, 0x01000001, 0x1af4, 0x0040);
	dev[0].bar[0].len_bytes = 0x4000;
	dev[0].bar[0].is_64bit = true;
	dev[0].bar[2].len_bytes = 0x1000;
	CHECK_EQ(vpci_add(&bus, &dev[0]), 0);
}

static void select(unsigned slot, unsigned fn, unsigned reg)
{
	vpci_io_write(&bus, 0xcf8, 4, BIT(31) | slot << 11 | fn << 8 | reg);
}

static uint32_t rd(unsigned reg, unsigned width)
{
	select(1, 0, reg & ~3u);
	return vpci_io_read(&bus, (uint16_t)(0xcfc + (reg & 3)), width);
}

static void wr(unsigned reg, unsigned width, uint32_t value)
{
	select(1, 0, reg & ~3u);
	vpci_io_write(&bus, (uint16_t)(0xcfc + (reg & 3)), width, value);
}

static void enumerates(void)
{
	setup();
	select(0, 0, 0);
	CHECK_EQ(vpci_io_read(&bus, 0xcf8, 4), 0x80000000);
	CHECK_EQ(vpci_io_read(&bus, 0xcfc, 4), 0x12378086);
	select(0, 0, 8);
	CHECK_EQ(vpci_io_read(&bus, 0xcfe, 2), 0x0600); /* as Linux asks whether this is PCI */
	CHECK_EQ(rd(0, 4), 0x10421af4);
	CHECK_EQ(rd(0x2c, 4), 0x00401af4);
	CHECK_EQ(rd(0x0e, 1), 0); /* one function */
	CHECK_EQ(rd(0x3d, 1), 0); /* no interrupt pin */
	select(1, 1, 0);
	CHECK_EQ(vpci_io_read(&bus, 0xcfc, 4), 0xffffffff);
	select(2, 0, 0);
	CHECK_EQ(vpci_io_read(&bus, 0xcfc, 4), 0xffffffff);
	CHECK_EQ(vpci_io_read(&bus, 0xcfe, 2), 0xffff);
	CHECK_EQ(vpci_io_read(&bus, 0xcfd, 1), 0xff);
	vpci_io_write(&bus, 0xcf8, 4, 0x80000000 | 1u << 16); /* bus 1 */
	CHECK_EQ(vpci_io_read(&bus, 0xcfc, 4), 0xffffffff);
	vpci_io_write(&bus, 0xcf8, 4, 1u << 11); /* not enabled */
	CHECK_EQ(vpci_io_read(&bus, 0xcfc, 4), 0xffffffff);
	vpci_io_write(&bus, 0xcf8, 4, 0x81000000 | 1u << 11); /* extended register number */
	CHECK_EQ(vpci_io_read(&bus, 0xcfc, 4), 0xffffffff);
}

static void address_register_takes_dwords_only(void)
{
	setup();
	select(1, 0, 0);
	vpci_io_write(&bus, 0xcfb, 1, 1);
	vpci_io_write(&bus, 0xcf8, 2, 0);
	vpci_io_write(&bus, 0xcf9, 1, 6);
	CHECK_EQ(vpci_io_read(&bus, 0xcf8, 4), 0x80000800);
	CHECK_EQ(vpci_io_read(&bus, 0xcfb, 1), 0x80);
	CHECK_EQ(vpci_io_read(&bus, 0xcf9, 1), 0x08);
	CHECK_EQ(vpci_io_read(&bus, 0xcf8, 2), 0x0800);
	/* Across the two registers, or past the second: nobody there. */
	CHECK_EQ(vpci_io_read(&bus, 0xcfa, 4), 0xffffffff);
	CHECK_EQ(vpci_io_read(&bus, 0xcfe, 4), 0xffffffff);
	CHECK_EQ(vpci_io_read(&bus, 0xcff, 2), 0xffff);
	vpci_io_write(&bus, 0xcfe, 4, 0);
	CHECK_EQ(written_count, 0);
}

static void every_width_and_offset(void)
{
	setup();
	for (unsigned i = 0x40; i < 0x100; i++) {
		dev[0].config[i] = (uint8_t)(i ^ 0x33);
		dev[0].writable[i] = 0x0f;
	}
	for (unsigned reg = 0x84; reg < 0xfc; reg++) {
		for (unsigned width = 1; width <= 4; width *= 2) {
			uint32_t expect = 0;

			if ((reg & 3) + width > 4)
				continue;
			for (unsigned i = 0; i < width; i++)
				expect |= (uint32_t)(uint8_t)((reg + i) ^ 0x33) << (8 * i);
			CHECK_EQ(rd(reg, width), expect);
			wr(reg, width, 0x5a6b7c8d);
			CHECK_EQ(written_offset, reg);
			CHECK_EQ(written_width, width);
			for (unsigned i = 0; i < width; i++)
				CHECK_EQ(dev[0].config[reg + i],
				         (((reg + i) ^ 0x33) & 0xf0) |
				                 (0x5a6b7c8d >> (8 * i) & 0x0f));
			for (unsigned i = 0; i < width; i++)
				dev[0].config[reg + i] = (uint8_t)((reg + i) ^ 0x33);
		}
	}
	CHECK_EQ(rd(0x80, 1), 0x5a); /* the hook had its say first */
	CHECK(reading_count > 0);
}

static void read_only_stays(void)
{
	setup();
	wr(0, 4, 0);
	wr(8, 4, 0);
	wr(0x2c, 4, 0xffffffff);
	wr(6, 2, 0xffff);
	wr(0x30, 4, 0xffffffff); /* no expansion ROM */
	CHECK_EQ(rd(0, 4), 0x10421af4);
	CHECK_EQ(rd(8, 4), 0x01000001);
	CHECK_EQ(rd(0x2c, 4), 0x00401af4);
	CHECK_EQ(rd(6, 2), 0);
	CHECK_EQ(rd(0x30, 4), 0);
	wr(0x3c, 1, 11);
	CHECK_EQ(rd(0x3c, 4), 11);
	wr(4, 2, 0xffff);
	CHECK_EQ(rd(4, 2), 0x0406);
	wr(5, 1, 0);
	CHECK_EQ(rd(4, 2), 0x0006);
}

static struct vpci_dev *find(gpa_t gpa, unsigned *bar, uint64_t *offset)
{
	*bar = 99;
	*offset = 99;
	return vpci_find(&bus, gpa, bar, offset);
}

static void sizes_and_moves_bars(void)
{
	unsigned bar;
	uint64_t offset;
	gpa_t base;

	setup();
	base = dev[0].bar[0].base_gpa;
	CHECK_EQ(base, VPCI_MMIO_BASE_GPA);
	CHECK_EQ(dev[0].bar[2].base_gpa, VPCI_MMIO_BASE_GPA + 0x4000);
	CHECK_EQ(rd(0x10, 4), base | 4);
	CHECK(find(base + 0x3fff, &bar, &offset) == &dev[0]);
	CHECK_EQ(bar, 0);
	CHECK_EQ(offset, 0x3fff);
	CHECK(find(base + 0x4000, &bar, &offset) == &dev[0]);
	CHECK_EQ(bar, 2);
	CHECK_EQ(offset, 0);
	CHECK(find(base + 0x5000, &bar, &offset) == NULL);
	CHECK(find(base - 1, &bar, &offset) == NULL);
	CHECK(find(0, &bar, &offset) == NULL);

	/* Sizing, as firmware and Linux do it, with decoding on. */
	wr(0x10, 4, 0xffffffff);
	wr(0x14, 4, 0xffffffff);
	CHECK_EQ(rd(0x10, 4), 0xffffc004);
	CHECK_EQ(rd(0x14, 4), 0xffffffff);
	CHECK(find(base, &bar, &offset) == NULL);
	wr(0x18, 4, 0xffffffff);
	CHECK_EQ(rd(0x18, 4), 0xfffff000);
	wr(0x1c, 4, 0xffffffff); /* no such BAR */
	CHECK_EQ(rd(0x1c, 4), 0);
	wr(0x10, 4, 0xd0001234);
	wr(0x14, 4, 0);
	CHECK_EQ(rd(0x10, 4), 0xd0000004);
	CHECK(find(0xd0000008, &bar, &offset) == &dev[0]);
	CHECK_EQ(offset, 8);
	/* One byte moves it too. */
	wr(0x13, 1, 0xd1);
	CHECK_EQ(dev[0].bar[0].base_gpa, 0xd1000000);
	wr(4, 2, 0);
	CHECK(find(0xd1000000, &bar, &offset) == NULL);
	wr(4, 2, 2);
	CHECK(find(0xd1000000, &bar, &offset) == &dev[0]);
	/* Outside the window nothing decodes: below, above 4 GiB, over the I/O APIC. */
	wr(0x10, 4, 0xbfffc000);
	CHECK_EQ(dev[0].bar[0].base_gpa, 0);
	wr(0x10, 4, 0xd1000000);
	wr(0x14, 4, 1);
	CHECK_EQ(dev[0].bar[0].base_gpa, 0);
	wr(0x14, 4, 0);
	wr(0x10, 4, 0xfec00000);
	CHECK_EQ(dev[0].bar[0].base_gpa, 0);
	wr(0x10, 4, 0xfebfc000);
	CHECK_EQ(dev[0].bar[0].base_gpa, 0xfebfc000);
	wr(0x18, 4, 0);
	CHECK_EQ(dev[0].bar[2].base_gpa, 0);
}

static void capabilities_chain(void)
{
	uint8_t at, seen = 0;

	setup();
	vpci_dev_init(&dev[1], NULL, 1, 2, 3, 4, 5);
	CHECK_EQ(dev[1].config[0x34], 0);
	CHECK_EQ(vpci_cap_add(&dev[1], 9, 17), 0x40);
	CHECK_EQ(vpci_cap_add(&dev[1], 0x11, 12), 0x54);
	CHECK_EQ(vpci_cap_add(&dev[1], 9, 0xa0), 0x60);
	CHECK_EQ(vpci_cap_add(&dev[1], 9, 4), 0);
	CHECK_EQ(dev[1].config[6] & 0x10, 0x10);
	for (at = dev[1].config[0x34]; at; at = dev[1].config[at + 1])
		seen++;
	CHECK_EQ(seen, 3);
	CHECK_EQ(dev[1].config[0x54], 0x11);
	CHECK_EQ(vpci_cap_add(&dev[1], 9, 1), 0);
}

static void fills_up(void)
{
	setup();
	for (unsigned i = 1; i < VPCI_SLOT_MAX - 1; i++) {
		vpci_dev_init(&dev[i], NULL, 1, 2, 3, 4, 5);
		CHECK_EQ(vpci_add(&bus, &dev[i]), 0);
		CHECK_EQ(dev[i].slot, i + 1);
	}
	vpci_dev_init(&dev[31], NULL, 1, 2, 3, 4, 5);
	CHECK_EQ(vpci_add(&bus, &dev[31]), -ENOSPC);

	vpci_init(&bus);
	for (unsigned i = 0; i < 2; i++) {
		vpci_dev_init(&dev[i], NULL, 1, 2, 3, 4, 5);
		dev[i].bar[i].len_bytes = 0x20000000;
		CHECK_EQ(vpci_add(&bus, &dev[i]), i ? -ENOSPC : 0);
	}
	vpci_dev_init(&dev[0], NULL, 1, 2, 3, 4, 5);
	dev[0].bar[5].len_bytes = 4096;
	dev[0].bar[5].is_64bit = true;
	CHECK_EQ(vpci_add(&bus, &dev[0]), -EINVAL);
	dev[0].bar[5].is_64bit = false;
	dev[0].bar[5].len_bytes = 4097;
	CHECK_EQ(vpci_add(&bus, &dev[0]), -EINVAL);
}

/* Any sequence of port accesses stays inside the bus. */
static void random_accesses(void)
{
	uint32_t seed = 3;

	setup();
	for (unsigned i = 0; i < 200000; i++) {
		uint16_t port;
		unsigned width = 1u << (i % 3), bar;
		uint64_t offset;

		seed = seed * 1664525u + 1013904223u;
		port = (uint16_t)(0xcf8 + (seed >> 20) % 8);
		if (seed & 0x400)
			vpci_io_write(&bus, port, width,
			              port < 0xcfc ? 0x80000800 | (seed >> 8 & 0xfc) : seed);
		else
			vpci_io_read(&bus, port, width);
		if (vpci_find(&bus, VPCI_MMIO_BASE_GPA + seed % VPCI_MMIO_LEN, &bar, &offset))
			CHECK(offset < dev[0].bar[bar].len_bytes);
	}
	CHECK_EQ(rd(0, 4), 0x10421af4);
}

TESTS(T(enumerates), T(address_register_takes_dwords_only), T(every_width_and_offset),
      T(read_only_stays), T(sizes_and_moves_bars), T(capabilities_chain), T(fills_up),
      T(random_accesses))
