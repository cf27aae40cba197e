/*
 * The PCI transport by what a guest can do: ports 0xcf8 and 0xcfc, and register accesses; in the
 * order in which Linux's driver does them, and in every other.
 */
#include "tests/unit/test.h"

#include "tests/fake/bio_fake.h"
#include "tests/fake/platform.h"
#include "tests/fake/virtio_guest.h"
#include "virtio/blk.h"
#include "virtio/msix.h"
#include "virtio/virtio_pci.h"
#include "vmm/irq.h"
#include "vmm/vm.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define ACK    VIRTIO_STATUS_ACKNOWLEDGE
#define DRIVER VIRTIO_STATUS_DRIVER
#define F_OK   VIRTIO_STATUS_FEATURES_OK
#define D_OK   VIRTIO_STATUS_DRIVER_OK

#define QUEUES   2
#define APIC_SVR 0xf0
#define APIC_LDR 0xd0

static struct vm vm;
static struct vguest guest;
static struct vguest_queue drv[QUEUES];
static struct bio_fake disk;
static struct vblk *blk;
static struct ioloop loop;
static struct manifest_disk config;
static gpa_t hdr_gpa, status_gpa, data_gpa;

/* What a driver finds out about the device. */
static struct {
	gpa_t common, notify, isr, device, table, pba;
	uint32_t notify_multiplier;
	unsigned msix_cap, window_cap;
} dev;

/* --- what a guest can do ---------------------------------------------------------------------- */

static uint32_t cfg_read(unsigned offset, unsigned width_bytes)
{
	vpci_io_write(&vm.pci, 0xcf8, 4, 0x80000000u | 1u << 11 | (offset & 0xfc));
	return vpci_io_read(&vm.pci, (uint16_t)(0xcfc + (offset & 3)), width_bytes);
}

static void cfg_write(unsigned offset, unsigned width_bytes, uint32_t value)
{
	vpci_io_write(&vm.pci, 0xcf8, 4, 0x80000000u | 1u << 11 | (offset & 0xfc));
	vpci_io_write(&vm.pci, (uint16_t)(0xcfc + (offset & 3)), width_bytes, value);
}

static uint64_t mmio_read(gpa_t gpa, unsigned width_bytes)
{
	uint64_t offset;
	unsigned bar;
	struct vpci_dev *at = vpci_find(&vm.pci, gpa, &bar, &offset);

	return at ? at->ops->bar_read(at, bar, offset, width_bytes) : UINT64_MAX;
}

static void mmio_write(gpa_t gpa, unsigned width_bytes, uint64_t value)
{
	uint64_t offset;
	unsigned bar;
	struct vpci_dev *at = vpci_find(&vm.pci, gpa, &bar, &offset);

	if (at)
		at->ops->bar_write(at, bar, offset, width_bytes, value);
}

#define OFFSET(name)            (dev.common + offsetof(struct virtio_pci_common_cfg, name))
#define WIDTH(name)             sizeof(((struct virtio_pci_common_cfg *)0)->name)
#define COMMON(name)            mmio_read(OFFSET(name), WIDTH(name))
#define COMMON_SET(name, value) mmio_write(OFFSET(name), WIDTH(name), value)

static void common_set64(gpa_t at, uint64_t value)
{
	mmio_write(at, 4, (uint32_t)value);
	mmio_write(at + 4, 4, value >> 32);
}

static gpa_t bar_gpa(unsigned bar)
{
	return cfg_read(0x10 + 4 * bar, 4) & ~0xfu;
}

/* Walks the capability list as Linux does. */
static void caps_find(void)
{
	unsigned at = cfg_read(0x34, 1);

	memset(&dev, 0, sizeof(dev));
	for (unsigned i = 0; at && i < 48; i++, at = cfg_read(at + 1, 1)) {
		gpa_t where = bar_gpa(cfg_read(at + 4, 1) % 6) + cfg_read(at + 8, 4);

		if (cfg_read(at, 1) == 0x11) {
			dev.msix_cap = at;
			dev.table = bar_gpa(cfg_read(at + 4, 4) & 7) + (cfg_read(at + 4, 4) & ~7u);
			dev.pba = bar_gpa(cfg_read(at + 8, 4) & 7) + (cfg_read(at + 8, 4) & ~7u);
		}
		if (cfg_read(at, 1) != 0x09)
			continue;
		switch (cfg_read(at + 3, 1)) {
		case VIRTIO_PCI_CAP_COMMON_CFG: dev.common = where; break;
		case VIRTIO_PCI_CAP_NOTIFY_CFG:
			dev.notify = where;
			dev.notify_multiplier = cfg_read(at + 16, 4);
			break;
		case VIRTIO_PCI_CAP_ISR_CFG: dev.isr = where; break;
		case VIRTIO_PCI_CAP_DEVICE_CFG: dev.device = where; break;
		case VIRTIO_PCI_CAP_PCI_CFG: dev.window_cap = at; break;
		}
	}
}

static void passes(unsigned count)
{
	while (count-- > 0) {
		fake_tsc += 1000;
		ioloop_pass(&loop);
	}
}

/* --- machine ---------------------------------------------------------------------------------- */

static void vcpu_create(unsigned index)
{
	struct vcpu *v = plat_mem_alloc(sizeof(*v), CACHE_LINE_BYTES);

	v->vm = &vm;
	v->index = v->apic_id = index;
	vlapic_init(&v->lapic, v, index, index == 0, 0);
	vlapic_mmio_write(&v->lapic, APIC_LDR, 1u << (24 + index));
	vlapic_mmio_write(&v->lapic, APIC_SVR, 0x1ff);
	vm.vcpu[vm.vcpu_count++] = v;
}

static void setup(void)
{
	fake_reset();
	fake_tsc = 1000000000;
	memset(&vm, 0, sizeof(vm));
	vm.name = "test";
	vguest_init(&guest, 1, 8 * MIB);
	bio_fake_init(&disk, 4096, 512);
	hdr_gpa = vguest_alloc(&guest, 16, 16);
	status_gpa = vguest_alloc(&guest, 1, 1);
	data_gpa = vguest_alloc(&guest, 4096, 4096);
	vpci_init(&vm.pci);
	vcpu_create(0);
	vcpu_create(1);
	memset(&config, 0, sizeof(config));
	config.num_queues = QUEUES;
	config.queue_size = 128;
	blk = plat_mem_alloc(sizeof(*blk), CACHE_LINE_BYTES);
	if (vblk_create(blk, &config, (struct bio_extent){&disk.dev, 0, 4096}, &guest.mem, "s") ||
	    virtio_pci_blk_add(&vm, blk))
		abort();
	ioloop_init(&loop, 0);
	ioloop_dev_add(&loop, &disk.dev);
	for (unsigned i = 0; i < QUEUES; i++) {
		blk->queue[i].ioq.poll_ns = 0;
		ioloop_queue_add(&loop, &blk->queue[i].ioq);
	}
	caps_find();
}

static void teardown(void)
{
	bio_fake_free(&disk);
	vguest_free(&guest);
}

static bool posted(unsigned vcpu, uint8_t vector)
{
	uint64_t bit = 1ull << (vector & 63);

	return atomic_fetch_and(&vm.vcpu[vcpu]->posted[vector >> 6], ~bit) & bit;
}

/* --- a driver --------------------------------------------------------------------------------- */

static void msix_entry_set(unsigned entry, uint64_t address, uint32_t data, uint32_t control)
{
	mmio_write(dev.table + 16 * entry, 4, (uint32_t)address);
	mmio_write(dev.table + 16 * entry + 4, 4, address >> 32);
	mmio_write(dev.table + 16 * entry + 8, 4, data);
	mmio_write(dev.table + 16 * entry + 12, 4, control);
}

/* Vector n of the table is interrupt 0x50 + n on vCPU 1, physical. */
static void msix_enable(void)
{
	unsigned control = cfg_read(dev.msix_cap + 2, 2) & 0x7ff;

	cfg_write(dev.msix_cap + 2, 2, control | 0xc000);
	for (unsigned i = 0; i <= control; i++)
		msix_entry_set(i, 0xfee01000, 0x50 + i, 0);
	cfg_write(dev.msix_cap + 2, 2, control | 0x8000);
}

static void features_set(uint64_t features)
{
	COMMON_SET(driver_feature_select, 0);
	COMMON_SET(driver_feature, (uint32_t)features);
	COMMON_SET(driver_feature_select, 1);
	COMMON_SET(driver_feature, features >> 32);
}

static uint64_t features_get(void)
{
	uint64_t features;

	COMMON_SET(device_feature_select, 1);
	features = COMMON(device_feature) << 32;
	COMMON_SET(device_feature_select, 0);
	return features | COMMON(device_feature);
}

static bool reset(void)
{
	COMMON_SET(device_status, 0);
	for (unsigned i = 0; i < 10; i++) {
		if (COMMON(device_status) == 0)
			return true;
		passes(1);
	}
	return false;
}

static void queue_setup(unsigned queue, uint16_t size)
{
	vguest_queue_init(&drv[queue], &guest, size, true, false);
	COMMON_SET(queue_select, queue);
	COMMON_SET(queue_size, size);
	common_set64(OFFSET(queue_desc), drv[queue].desc_gpa);
	common_set64(OFFSET(queue_driver), drv[queue].avail_gpa);
	common_set64(OFFSET(queue_device), drv[queue].used_gpa);
	COMMON_SET(queue_msix_vector, queue + 1);
	COMMON_SET(queue_enable, 1);
}

/* As Linux's virtio_pci_modern_dev does it, to DRIVER_OK. */
static void driver_start(uint16_t size)
{
	CHECK(reset());
	COMMON_SET(device_status, ACK);
	COMMON_SET(device_status, ACK | DRIVER);
	features_set(features_get());
	COMMON_SET(device_status, ACK | DRIVER | F_OK);
	CHECK_EQ(COMMON(device_status), ACK | DRIVER | F_OK);
	COMMON_SET(config_msix_vector, 0);
	for (unsigned i = 0; i < QUEUES; i++)
		queue_setup(i, size);
	COMMON_SET(device_status, ACK | DRIVER | F_OK | D_OK);
	passes(1);
}

/* One read through a queue; the kick goes to its notify address. */
static bool read_one(unsigned queue)
{
	struct vguest_buf bufs[] = {
	        {hdr_gpa, 16, false}, {data_gpa, 512, true}, {status_gpa, 1, true}};
	uint32_t head, len_bytes;
	uint8_t *status = vguest_va(&guest, status_gpa);

	*(struct virtio_blk_hdr *)vguest_va(&guest, hdr_gpa) =
	        (struct virtio_blk_hdr){VIRTIO_BLK_T_IN, 0, 1};
	*status = 0xee;
	vguest_irq_on(&drv[queue]);
	vguest_publish(&drv[queue], (uint16_t)vguest_add(&drv[queue], bufs, 3));
	COMMON_SET(queue_select, queue);
	if (vguest_kick_needed(&drv[queue]))
		mmio_write(dev.notify + COMMON(queue_notify_off) * dev.notify_multiplier, 2, queue);
	passes(3);
	return vguest_used_pop(&drv[queue], &head, &len_bytes) && *status == VIRTIO_BLK_S_OK;
}

/* --- discovery -------------------------------------------------------------------------------- */

static void test_config_space(void)
{
	setup();
	CHECK_EQ(cfg_read(0, 4), 0x10421af4);
	CHECK_EQ(cfg_read(8, 4), 0x01800001);
	CHECK_EQ(cfg_read(0x3d, 1), 0); /* no INTx */
	CHECK(dev.common && dev.notify && dev.isr && dev.device && dev.window_cap && dev.msix_cap);
	CHECK_EQ(dev.notify_multiplier, 4);
	CHECK_EQ(cfg_read(dev.msix_cap + 2, 2), QUEUES); /* table size - 1 */
	/* The notify page is one page with nothing else in it. */
	CHECK_EQ(dev.notify & 4095, 0);
	CHECK(dev.notify - bar_gpa(0) >= 0x4000 || dev.notify < bar_gpa(0));
	CHECK_EQ(vm.kick_count, 1);
	CHECK_EQ(atomic_load(&vm.kick[0].gpa), dev.notify);
	CHECK_EQ(vm.kick[0].queue_count, QUEUES);
	CHECK(vm.kick[0].queue[1] == &blk->queue[1].ioq);
	CHECK_EQ(1u << vm.kick[0].multiplier_shift, dev.notify_multiplier);
	CHECK(vm.disk[0] == blk);
	CHECK_EQ(vm.disk_count, 1);
	teardown();
}

/* Sizing a BAR, moving it and turning decoding off keep the kick page in step. */
static void test_kick_page_moves(void)
{
	gpa_t old = 0, moved = VPCI_MMIO_BASE_GPA + 0x100000;

	setup();
	old = dev.notify;
	cfg_write(4, 2, 0);
	CHECK_EQ(atomic_load(&vm.kick[0].gpa), 0);
	cfg_write(0x18, 4, 0xffffffff);
	CHECK_EQ(cfg_read(0x18, 4), 0xfffff000);
	cfg_write(0x18, 4, (uint32_t)moved);
	cfg_write(4, 2, 6);
	CHECK_EQ(atomic_load(&vm.kick[0].gpa), moved);
	mmio_write(moved + 4, 2, 1);
	CHECK_EQ(atomic_load(&blk->queue[1].ioq.kicks), 1);
	mmio_write(old + 4, 2, 1);
	CHECK_EQ(atomic_load(&blk->queue[1].ioq.kicks), 1);
	mmio_write(moved + 8, 2, 1); /* no such queue */
	mmio_write(moved + 4092, 4, 1);
	CHECK_EQ(atomic_load(&blk->queue[0].ioq.kicks), 0);
	CHECK_EQ(mmio_read(moved, 2), 0);
	teardown();
}

static void test_device_config(void)
{
	gpa_t at;

	setup();
	at = dev.device;
	CHECK_EQ(mmio_read(at, 4), 4096);
	CHECK_EQ(mmio_read(at + 4, 4), 0);
	CHECK_EQ(mmio_read(at, 8), 4096);
	CHECK_EQ(mmio_read(at + 20, 4), 512);
	CHECK_EQ(mmio_read(at + 34, 2), QUEUES);
	CHECK_EQ(mmio_read(at + 34, 1), QUEUES);
	mmio_write(at, 4, 7); /* read-only */
	CHECK_EQ(mmio_read(at, 4), 4096);
	CHECK_EQ(mmio_read(at + 72, 4), 0);
	CHECK_EQ(mmio_read(at + 0xffc, 4), 0);
	teardown();
}

/* --- status ----------------------------------------------------------------------------------- */

static void test_driver_sequence(void)
{
	setup();
	msix_enable();
	CHECK_EQ(COMMON(num_queues), QUEUES);
	driver_start(64);
	CHECK_EQ(COMMON(device_status), ACK | DRIVER | F_OK | D_OK);
	CHECK(ioq_is_attached(&blk->queue[0].ioq));
	CHECK(ioq_is_attached(&blk->queue[1].ioq));
	CHECK_EQ(blk->queue[1].vq.size, 64);
	CHECK(blk->queue[1].vq.event_idx);
	for (unsigned i = 0; i < 20; i++) {
		CHECK(read_one(i & 1));
		CHECK(posted(1, 0x51 + (i & 1)));
		CHECK(!posted(1, 0x52 - (i & 1)));
	}
	CHECK_EQ(atomic_load(&blk->queue[0].ioq.kicks), 10);
	CHECK_EQ(blk->queue[0].ioq.counts.interrupts, 10);
	CHECK_EQ(mmio_read(dev.isr, 1), 0);
	teardown();
}

/* Firmware, then an OS: each with its own rings, size and features. */
static void test_second_driver(void)
{
	setup();
	driver_start(128);
	for (unsigned i = 0; i < 3; i++) {
		for (unsigned k = 0; k < 5; k++)
			CHECK(read_one(0));
		driver_start(i & 1 ? 16 : 64);
		CHECK_EQ(COMMON(queue_size), i & 1 ? 16 : 64);
	}
	CHECK(read_one(1));
	teardown();
}

static void test_feature_negotiation(void)
{
	uint64_t offered;

	setup();
	offered = features_get();
	CHECK_EQ(offered, blk->features_offered);
	COMMON_SET(device_feature_select, 2);
	CHECK_EQ(COMMON(device_feature), 0);
	COMMON_SET(device_feature_select, 0xffffffff);
	CHECK_EQ(COMMON(device_feature), 0);

	/* Without VERSION_1, or with what was not offered, FEATURES_OK does not stick. */
	COMMON_SET(device_status, ACK | DRIVER);
	features_set(offered & ~VIRTIO_F_VERSION_1);
	COMMON_SET(device_status, ACK | DRIVER | F_OK);
	CHECK_EQ(COMMON(device_status), ACK | DRIVER);
	features_set(offered | BIT(33));
	COMMON_SET(device_status, ACK | DRIVER | F_OK);
	CHECK_EQ(COMMON(device_status), ACK | DRIVER);
	features_set(VIRTIO_F_VERSION_1);
	COMMON_SET(driver_feature_select, 2);
	COMMON_SET(driver_feature, 0xffffffff); /* no such word */
	COMMON_SET(device_status, ACK | DRIVER | F_OK);
	CHECK_EQ(COMMON(device_status), ACK | DRIVER | F_OK);
	/* And then they are fixed. */
	features_set(offered);
	COMMON_SET(driver_feature_select, 0);
	CHECK_EQ(COMMON(driver_feature), 0);
	COMMON_SET(driver_feature_select, 1);
	CHECK_EQ(COMMON(driver_feature), 1);
	teardown();
}

static void test_status_rules(void)
{
	setup();
	/* DRIVER_OK without FEATURES_OK; NEEDS_RESET is not the driver's to set. */
	COMMON_SET(device_status, ACK | DRIVER | D_OK | VIRTIO_STATUS_NEEDS_RESET);
	CHECK_EQ(COMMON(device_status), ACK | DRIVER);
	/* Bits do not go away but by reset. */
	COMMON_SET(device_status, ACK);
	CHECK_EQ(COMMON(device_status), ACK | DRIVER);
	COMMON_SET(device_status, VIRTIO_STATUS_FAILED);
	CHECK_EQ(COMMON(device_status), ACK | DRIVER | VIRTIO_STATUS_FAILED);
	COMMON_SET(device_status, 0);
	CHECK_EQ(COMMON(device_status), 0);
	teardown();
}

/* Each state, a reset, and a driver that then starts from the beginning. */
static void test_reset_everywhere(void)
{
	setup();
	for (unsigned stop = 0; stop < 8; stop++) {
		CHECK(reset());
		if (stop > 0)
			COMMON_SET(device_status, ACK);
		if (stop > 1)
			COMMON_SET(device_status, ACK | DRIVER);
		if (stop > 2)
			features_set(features_get());
		if (stop > 3)
			COMMON_SET(device_status, ACK | DRIVER | F_OK);
		if (stop > 4)
			queue_setup(0, 32);
		if (stop > 5)
			COMMON_SET(device_status, ACK | DRIVER | F_OK | D_OK);
		if (stop > 6)
			passes(1);
		CHECK(reset());
		CHECK_EQ(COMMON(device_status), 0);
		COMMON_SET(queue_select, 0);
		CHECK_EQ(COMMON(queue_enable), 0);
		CHECK_EQ(COMMON(queue_size), 128);
		CHECK_EQ(COMMON(queue_desc), 0);
		CHECK_EQ(COMMON(queue_msix_vector), 0xffff);
		CHECK_EQ(COMMON(config_msix_vector), 0xffff);
		CHECK_EQ(COMMON(driver_feature), 0);
		driver_start(32);
		CHECK(read_one(0));
	}
	teardown();
}

/* A reset straight after DRIVER_OK, before the I/O core saw the attach: it must not be mistaken for
 * done while the attach is still to come. */
static void test_reset_before_attach(void)
{
	setup();
	driver_start(32);
	CHECK(reset());
	COMMON_SET(device_status, ACK | DRIVER);
	features_set(features_get());
	COMMON_SET(device_status, ACK | DRIVER | F_OK);
	queue_setup(0, 32);
	COMMON_SET(device_status, ACK | DRIVER | F_OK | D_OK);
	COMMON_SET(device_status, 0);
	CHECK(COMMON(device_status) != 0);
	passes(1); /* attached now */
	CHECK(COMMON(device_status) != 0);
	/* What is written meanwhile is lost. */
	COMMON_SET(device_status, ACK);
	COMMON_SET(queue_select, 1);
	CHECK_EQ(COMMON(queue_select), 0);
	passes(1);
	CHECK_EQ(COMMON(device_status), 0);
	CHECK(!ioq_is_attached(&blk->queue[0].ioq));
	teardown();
}

/* Not over before the device's last write to guest memory. */
static void test_reset_in_flight(void)
{
	struct vguest_buf bufs[] = {
	        {hdr_gpa, 16, false}, {data_gpa, 512, true}, {status_gpa, 1, true}};

	setup();
	msix_enable();
	driver_start(32);
	CHECK(read_one(0));
	CHECK(posted(1, 0x51));
	bufs[0].gpa = hdr_gpa;
	bufs[1].gpa = data_gpa;
	bufs[2].gpa = status_gpa;
	disk.hold = 1;
	vguest_publish(&drv[0], (uint16_t)vguest_add(&drv[0], bufs, 3));
	mmio_write(dev.notify, 2, 0);
	passes(2);
	CHECK_EQ(disk.dev.in_flight, 1);
	COMMON_SET(device_status, 0);
	passes(10);
	CHECK(COMMON(device_status) != 0);
	disk.hold = 0;
	passes(2);
	CHECK_EQ(COMMON(device_status), 0);
	CHECK(!posted(1, 0x51));
	driver_start(32);
	CHECK(read_one(0));
	CHECK(posted(1, 0x51));
	teardown();
}

static void test_needs_reset(void)
{
	setup();
	msix_enable();
	driver_start(32);
	vguest_publish(&drv[0], 32); /* no such descriptor */
	mmio_write(dev.notify, 2, 0);
	passes(2);
	CHECK_EQ(COMMON(device_status), ACK | DRIVER | F_OK | D_OK | VIRTIO_STATUS_NEEDS_RESET);
	CHECK(posted(1, 0x50)); /* the configuration's vector */
	CHECK_EQ(mmio_read(dev.isr, 1), VIRTIO_ISR_CONFIG);
	CHECK_EQ(mmio_read(dev.isr, 1), 0);
	CHECK(read_one(1)); /* the other queue goes on */
	driver_start(32);
	CHECK_EQ(COMMON(device_status), ACK | DRIVER | F_OK | D_OK);
	CHECK(read_one(0));
	/* A ring outside memory. */
	CHECK(reset());
	COMMON_SET(device_status, ACK | DRIVER);
	features_set(features_get());
	COMMON_SET(device_status, ACK | DRIVER | F_OK);
	queue_setup(0, 32);
	CHECK(reset());
	COMMON_SET(device_status, ACK | DRIVER);
	features_set(features_get());
	COMMON_SET(device_status, ACK | DRIVER | F_OK);
	COMMON_SET(queue_select, 0);
	common_set64(OFFSET(queue_desc), 1ull << 40);
	COMMON_SET(queue_enable, 1);
	COMMON_SET(device_status, ACK | DRIVER | F_OK | D_OK);
	passes(1);
	CHECK(COMMON(device_status) & VIRTIO_STATUS_NEEDS_RESET);
	driver_start(32);
	CHECK(read_one(0));
	teardown();
}

/* --- queue registers -------------------------------------------------------------------------- */

static void test_queue_registers(void)
{
	setup();
	COMMON_SET(queue_select, 1);
	CHECK_EQ(COMMON(queue_size), 128);
	CHECK_EQ(COMMON(queue_notify_off), 1);
	COMMON_SET(queue_size, 0);
	CHECK_EQ(COMMON(queue_size), 128);
	COMMON_SET(queue_size, 256);
	CHECK_EQ(COMMON(queue_size), 128);
	COMMON_SET(queue_size, 100);
	CHECK_EQ(COMMON(queue_size), 128);
	COMMON_SET(queue_size, 0x8000);
	CHECK_EQ(COMMON(queue_size), 128);
	COMMON_SET(queue_size, 2);
	CHECK_EQ(COMMON(queue_size), 2);
	common_set64(OFFSET(queue_desc), 0x123456789abcdef0);
	CHECK_EQ(COMMON(queue_desc), 0x123456789abcdef0);
	CHECK_EQ(mmio_read(OFFSET(queue_desc) + 4, 4), 0x12345678);
	COMMON_SET(queue_device, 0xfedcba9876543210);
	CHECK_EQ(mmio_read(OFFSET(queue_device), 4), 0x76543210);
	COMMON_SET(queue_msix_vector, QUEUES);
	CHECK_EQ(COMMON(queue_msix_vector), QUEUES);
	COMMON_SET(queue_msix_vector, QUEUES + 1); /* no such vector */
	CHECK_EQ(COMMON(queue_msix_vector), 0xffff);
	COMMON_SET(queue_enable, 2);
	CHECK_EQ(COMMON(queue_enable), 0);
	COMMON_SET(queue_enable, 1);
	CHECK_EQ(COMMON(queue_enable), 1);
	/* Enabled: fixed. */
	COMMON_SET(queue_size, 64);
	COMMON_SET(queue_desc, 1);
	COMMON_SET(queue_enable, 0);
	CHECK_EQ(COMMON(queue_size), 2);
	CHECK_EQ(COMMON(queue_desc), 0x123456789abcdef0);
	CHECK_EQ(COMMON(queue_enable), 1);
	/* Queues that are not there read zero and take nothing. */
	COMMON_SET(queue_select, QUEUES);
	CHECK_EQ(COMMON(queue_size), 0);
	COMMON_SET(queue_enable, 1);
	COMMON_SET(queue_desc, 1);
	COMMON_SET(queue_msix_vector, 0);
	CHECK_EQ(COMMON(queue_enable), 0);
	COMMON_SET(queue_select, 0xffff);
	CHECK_EQ(COMMON(queue_size), 0);
	CHECK_EQ(COMMON(queue_msix_vector), 0);
	teardown();
}

/* Any width at any place of any BAR, read and written, in every state: no harm, and wrong widths
 * are not taken for fields. */
static void test_hostile_accesses(void)
{
	uint64_t x = 88172645463325252ull;

	setup();
	CHECK_EQ(mmio_read(OFFSET(device_status), 2), 0);
	CHECK_EQ(mmio_read(OFFSET(num_queues), 1), 0);
	CHECK_EQ(mmio_read(OFFSET(num_queues), 4), 0);
	mmio_write(OFFSET(device_status), 4, ACK);
	CHECK_EQ(COMMON(device_status), 0);
	mmio_write(OFFSET(queue_select), 4, 1);
	CHECK_EQ(COMMON(queue_select), 0);
	CHECK_EQ(mmio_read(dev.isr, 4), 0);
	for (unsigned i = 0; i < 150000; i++) {
		unsigned width = 1u << (i & 3);
		uint64_t offset;

		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		offset = (x & 0x3fff) & ~(uint64_t)(width - 1);
		if ((x >> 20) % 3 == 0)
			offset &= 0x3f;
		else if ((x >> 20) % 3 == 1)
			offset = (offset & 0x80f) | 0x3000;
		if (x & BIT(40))
			mmio_write(bar_gpa(0) + offset, width, x >> 41);
		else
			mmio_read(bar_gpa(0) + offset, width);
		if ((x >> 50) % 64 == 0)
			mmio_write(bar_gpa(2) + (offset & 0xfff), width, x);
		if ((x >> 50) % 128 == 1)
			cfg_write((unsigned)(x >> 30) & 0xfc, 4, (uint32_t)x);
		if ((x >> 50) % 128 == 2)
			passes(1);
		if ((x >> 50) % 1024 == 3) {
			cfg_write(4, 2, 6);
			cfg_write(0x10, 4, VPCI_MMIO_BASE_GPA);
			cfg_write(0x18, 4, VPCI_MMIO_BASE_GPA + 0x10000);
		}
	}
	cfg_write(4, 2, 6);
	cfg_write(0x10, 4, VPCI_MMIO_BASE_GPA);
	cfg_write(0x18, 4, VPCI_MMIO_BASE_GPA + 0x10000);
	caps_find();
	passes(3);
	msix_enable();
	driver_start(32);
	for (unsigned i = 0; i < 2; i++)
		posted(1, (uint8_t)(0x51 + i));
	CHECK(read_one(0));
	CHECK(posted(1, 0x51));
	teardown();
}

/* --- the window in configuration space (4.1.4.9) ---------------------------------------------- */

static uint32_t window_read(uint8_t bar, uint32_t offset, uint32_t len_bytes)
{
	cfg_write(dev.window_cap + 4, 1, bar);
	cfg_write(dev.window_cap + 8, 4, offset);
	cfg_write(dev.window_cap + 12, 4, len_bytes);
	return cfg_read(dev.window_cap + 16, 4);
}

static void window_write(uint8_t bar, uint32_t offset, uint32_t len_bytes, uint32_t value)
{
	cfg_write(dev.window_cap + 4, 1, bar);
	cfg_write(dev.window_cap + 8, 4, offset);
	cfg_write(dev.window_cap + 12, 4, len_bytes);
	cfg_write(dev.window_cap + 16, len_bytes > 4 ? 4 : len_bytes, value);
}

static void test_window(void)
{
	setup();
	CHECK_EQ(window_read(0, 0x12, 2) & 0xffff, QUEUES);
	CHECK_EQ(window_read(0, VIRTIO_PCI_DEVICE_OFFSET, 4), 4096);
	window_write(0, 0x14, 1, ACK);
	CHECK_EQ(COMMON(device_status), ACK);
	window_write(2, 4, 2, 1);
	CHECK_EQ(atomic_load(&blk->queue[1].ioq.kicks), 1);
	/* Nowhere: no BAR, beyond its end, misaligned, no such length. */
	window_write(1, 0x14, 1, DRIVER);
	window_write(7, 0x14, 1, DRIVER);
	window_write(0xff, 0x14, 1, DRIVER);
	window_write(0, 0x4000, 1, DRIVER);
	window_write(0, 0xfffffffc, 4, DRIVER);
	window_write(0, 0x15, 2, DRIVER);
	window_write(0, 0x14, 0, DRIVER);
	window_write(0, 0x14, 3, DRIVER);
	window_write(0, 0x10, 8, DRIVER);
	window_write(0, 0x14, 0xffffffff, DRIVER);
	CHECK_EQ(COMMON(device_status), ACK);
	window_read(0xff, 0, 4);
	window_read(0, 0xffffffff, 4);
	teardown();
}

/* --- MSI-X ------------------------------------------------------------------------------------ */

static void test_msix_table(void)
{
	setup();
	for (unsigned i = 0; i <= QUEUES; i++)
		CHECK_EQ(mmio_read(dev.table + 16 * i + 12, 4), 1); /* masked at power-on */
	msix_entry_set(1, 0x12345678fee01003, 0xabcd, 0xffffffff);
	CHECK_EQ(mmio_read(dev.table + 16, 4), 0xfee01000);
	CHECK_EQ(mmio_read(dev.table + 16, 8), 0x12345678fee01000);
	CHECK_EQ(mmio_read(dev.table + 24, 8), 0x10000abcd);
	mmio_write(dev.table + 24, 8, 0x42);
	CHECK_EQ(mmio_read(dev.table + 24, 4), 0x42);
	CHECK_EQ(mmio_read(dev.table + 28, 4), 0);
	/* Other widths, and what lies behind the table. */
	mmio_write(dev.table + 24, 2, 0xffff);
	mmio_write(dev.table + 24, 1, 0xff);
	CHECK_EQ(mmio_read(dev.table + 24, 4), 0x42);
	CHECK_EQ(mmio_read(dev.table + 24, 2), 0);
	mmio_write(dev.table + 16 * (QUEUES + 1), 4, 0xffffffff);
	CHECK_EQ(mmio_read(dev.table + 16 * (QUEUES + 1), 4), 0);
	CHECK_EQ(mmio_read(dev.table + 0x7fc, 4), 0);
	mmio_write(dev.pba, 4, 0xffffffff); /* read-only */
	CHECK_EQ(mmio_read(dev.pba, 4), 0);
	CHECK_EQ(mmio_read(dev.pba, 8), 0);
	CHECK_EQ(mmio_read(dev.pba + 8, 4), 0);
	teardown();
}

/* Masked: pending, not lost; unmasked: delivered once. By vector and by function. */
static void test_msix_mask(void)
{
	setup();
	msix_enable();
	driver_start(32);
	mmio_write(dev.table + 16 + 12, 4, 1);
	CHECK(read_one(0));
	CHECK(read_one(0));
	CHECK(!posted(1, 0x51));
	CHECK_EQ(mmio_read(dev.pba, 4), 2);
	CHECK(read_one(1));
	CHECK(posted(1, 0x52)); /* the other vector goes on */
	mmio_write(dev.table + 16 + 12, 4, 0);
	CHECK(posted(1, 0x51));
	CHECK_EQ(mmio_read(dev.pba, 4), 0);

	cfg_write(dev.msix_cap + 2, 2, 0xc000);
	CHECK(read_one(0));
	CHECK(read_one(1));
	CHECK(!posted(1, 0x51));
	CHECK_EQ(mmio_read(dev.pba, 8), 6);
	/* Rerouted while masked: what was pending goes where the entry says now. */
	msix_entry_set(1, 0xfee00000, 0x61, 0);
	CHECK(!posted(0, 0x61));
	cfg_write(dev.msix_cap + 2, 2, 0x8000);
	CHECK(posted(0, 0x61));
	CHECK(posted(1, 0x52));
	CHECK(!posted(1, 0x51));
	CHECK_EQ(mmio_read(dev.pba, 4), 0);
	teardown();
}

static void test_msix_routes(void)
{
	setup();
	/* Off: the ISR says so, for a driver that polls it. */
	driver_start(32);
	CHECK(read_one(0));
	CHECK_EQ(blk->queue[0].ioq.counts.interrupts, 0);
	CHECK_EQ(mmio_read(dev.isr, 1), VIRTIO_ISR_QUEUE);
	CHECK_EQ(mmio_read(dev.isr, 1), 0);
	msix_enable();
	CHECK(read_one(0));
	CHECK(posted(1, 0x51));
	/* Logical, to one; the vCPU then changes its logical id: it is looked up again. */
	msix_entry_set(1, 0xfee01004, 0x61, 0); /* logical 1: vCPU 0 */
	CHECK(read_one(0));
	CHECK(posted(0, 0x61));
	CHECK(!posted(1, 0x61));
	vlapic_mmio_write(&vm.vcpu[0]->lapic, APIC_LDR, 0x80u << 24);
	vlapic_mmio_write(&vm.vcpu[1]->lapic, APIC_LDR, 0x01u << 24);
	CHECK(read_one(0));
	CHECK(!posted(0, 0x61));
	CHECK(posted(1, 0x61));
	/* To several. */
	msix_entry_set(1, 0xfee81004, 0x62, 0);
	CHECK(read_one(0));
	CHECK(posted(0, 0x62));
	CHECK(posted(1, 0x62));
	/* To nobody, to no APIC, with reserved vectors and modes: nothing, and no harm. */
	msix_entry_set(1, 0xfee55000, 0x63, 0);
	CHECK(read_one(0));
	msix_entry_set(1, 0x1fee01000, 0x63, 0);
	CHECK(read_one(0));
	msix_entry_set(1, 0, 0x63, 0);
	CHECK(read_one(0));
	msix_entry_set(1, 0xfee01000, 5, 0);
	CHECK(read_one(0));
	msix_entry_set(1, 0xfee01000, 0x263, 0);
	CHECK(read_one(0));
	CHECK(!posted(0, 0x63));
	CHECK(!posted(1, 0x63));
	/* No vector at all. */
	COMMON_SET(queue_select, 0);
	COMMON_SET(queue_msix_vector, 0xffff);
	CHECK(read_one(0));
	CHECK(!posted(1, 0x63));
	teardown();
}

/* --- masking while signalled, on two threads -------------------------------------------------- */

#define RACE_ROUNDS 10000u

static struct msix race;
static atomic_uint race_round, race_done;

static void *race_signaller(void *arg)
{
	(void)arg;
	for (unsigned round = 1; round <= RACE_ROUNDS; round++) {
		while (atomic_load(&race_round) != round)
			sched_yield();
		msix_signal(&race, 0);
		atomic_store(&race_done, round);
	}
	return NULL;
}

/* However a signal and an unmasking meet, the interrupt arrives, and nothing stays pending. */
static void test_mask_race(void)
{
	unsigned lost = 0, left = 0;
	pthread_t thread;

	setup();
	msix_init(&race, &vm, 1, 1);
	msix_table_write(&race, 0, 8, 0xfee01000);
	msix_table_write(&race, 8, 8, 0x100000077);
	msix_vector_set(&race, 0, 0);
	msix_control_set(&race, true, false);
	atomic_store(&race_round, 0);
	if (pthread_create(&thread, NULL, race_signaller, NULL))
		abort();
	for (unsigned round = 1; round <= RACE_ROUNDS; round++) {
		msix_table_write(&race, 12, 4, 1);
		atomic_store(&race_round, round);
		for (volatile unsigned i = 0; i < round % 64; i++)
			;
		msix_table_write(&race, 12, 4, 0);
		while (atomic_load(&race_done) != round)
			sched_yield();
		lost += !posted(1, 0x77);
		left += msix_pba_read(&race, 0, 8) != 0;
	}
	pthread_join(thread, NULL);
	CHECK_EQ(lost, 0);
	CHECK_EQ(left, 0);
	teardown();
}

TESTS(T(test_config_space), T(test_kick_page_moves), T(test_device_config), T(test_driver_sequence),
      T(test_second_driver), T(test_feature_negotiation), T(test_status_rules),
      T(test_reset_everywhere), T(test_reset_before_attach), T(test_reset_in_flight),
      T(test_needs_reset), T(test_queue_registers), T(test_hostile_accesses), T(test_window),
      T(test_msix_table), T(test_msix_mask), T(test_msix_routes), T(test_mask_race))
