/*
 * control_fixture.h: a guest of vm_fixture.h with one disk of two queues on the real I/O loop, and
 * its calls to the control interface. Each test file includes it once, after test.h.
 */
#ifndef QUELL_TESTS_UNIT_CONTROL_FIXTURE_H
#define QUELL_TESTS_UNIT_CONTROL_FIXTURE_H

#include "tests/unit/vm_fixture.h"

#include "tests/fake/bio_fake.h"
#include "tests/fake/virtio_guest.h"
#include "virtio/blk.h"
#include "vmm/control.h"

#include <stdlib.h>
#include <string.h>

#define V       (&fx_vcpu[0])
#define SECTORS 4096u
#define ENOSYS  1000
#define EPERM   1

static struct ioloop loop;
static struct bio_fake disk;
static struct vguest guest;
static struct vguest_queue drv;
static struct vblk *blk;
static gpa_t data_gpa;
static atomic_uint signals;

static bool on_signal(struct vblk_transport *t, unsigned queue)
{
	(void)t;
	(void)queue;
	fake_tsc += 25; /* what sending takes */
	atomic_fetch_add(&signals, 1);
	return true;
}

static void on_needs_reset(struct vblk_transport *t)
{
	(void)t;
	CHECK(false);
}

void vm_end(struct vm *vm, enum vm_end reason)
{
	(void)vm;
	(void)reason;
	CHECK(false);
}

bool hvm_xsetbv_safe(uint32_t index, uint64_t value)
{
	(void)index;
	(void)value;
	return false;
}

static struct vblk_transport transport = {on_signal, on_needs_reset};
static struct vm_kick_page *page;

/* A guest with vcpus vCPUs and one disk of two queues, the first of which has a driver. */
static inline void setup(unsigned vcpus, bool control, uint64_t poll_ns)
{
	static struct ioq *kick_queues[2];
	struct bio_extent extent = {&disk.dev, 0, SECTORS};
	struct manifest_disk *config = &fx_config.disk[0];

	fx_init(vcpus);
	atomic_store(&signals, 0);
	fx_config.control = control;
	config->num_queues = 2;
	config->queue_size = 64;
	vguest_init(&guest, 2, 4 * MIB);
	bio_fake_init(&disk, SECTORS, 512);
	for (unsigned i = 0; i < SECTORS; i++)
		memset(disk.data + i * 512, (int)(i % 251), 512);
	data_gpa = vguest_alloc(&guest, MIB, 4096);
	blk = plat_mem_alloc(sizeof(*blk), CACHE_LINE_BYTES);
	if (vblk_create(blk, config, extent, &guest.mem, "quell-0-0"))
		abort();
	blk->transport = &transport;
	ioloop_init(&loop, 0);
	ioloop_dev_add(&loop, &disk.dev);
	for (unsigned i = 0; i < 2; i++) {
		blk->queue[i].ioq.poll_ns = poll_ns;
		kick_queues[i] = &blk->queue[i].ioq;
		if (ioloop_queue_add(&loop, &blk->queue[i].ioq))
			abort();
	}
	fx_vm.disk[0] = blk;
	fx_vm.disk_count = fx_vm.kick_count = 1;
	page = &fx_vm.kick[0];
	page->queue = kick_queues;
	page->queue_count = 2;
	page->multiplier_shift = 2;
	if (phases_create(&fx_vm, &loop))
		abort();
	blk->features = blk->features_offered;
	vguest_queue_init(&drv, &guest, 64, true, true);
	blk->queue[0].setup =
	        (struct vblk_queue_setup){drv.size, drv.desc_gpa, drv.avail_gpa, drv.used_gpa};
	ioloop_attach(&blk->queue[0].ioq);
	ioloop_pass(&loop);
}

static inline void teardown(void)
{
	bio_fake_free(&disk);
	vguest_free(&guest);
}

static inline void passes(unsigned count)
{
	while (count-- > 0) {
		fake_tsc += 1000;
		ioloop_pass(&loop);
	}
}

static const uint8_t regs[6] = {HVM_RBX, HVM_RCX, HVM_RDX, HVM_RSI, HVM_RDI, HVM_R8};
static uint64_t out[6];

/* One call; everything else that a guest could notice is checked here. Returns RAX. */
static inline int64_t raw(struct vcpu *v, uint64_t number, const uint64_t in[6])
{
	uint64_t before[HVM_GPR_COUNT];
	int64_t result;

	for (unsigned i = 0; i < HVM_GPR_COUNT; i++)
		v->hv.gpr[i] = 0x1000 + i;
	v->hv.gpr[HVM_RAX] = number;
	for (unsigned i = 0; i < 6; i++)
		v->hv.gpr[regs[i]] = in[i];
	memcpy(before, v->hv.gpr, sizeof(before));
	control_call(v);
	result = (int64_t)v->hv.gpr[HVM_RAX];
	for (unsigned i = 0; i < 6; i++) {
		out[i] = v->hv.gpr[regs[i]];
		if (!result)
			v->hv.gpr[regs[i]] = before[regs[i]];
	}
	v->hv.gpr[HVM_RAX] = number;
	CHECK(!memcmp(before, v->hv.gpr, sizeof(before)));
	return result;
}

static inline int64_t call(unsigned op, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	return raw(V, QUELL_CALL(op), (uint64_t[6]){a, b, c, d, 77, 88});
}

/* Publishes count reads, each with its own page. */
static inline void reads_publish(unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		gpa_t gpa = data_gpa + i * 4096;
		struct vguest_buf bufs[] = {
		        {gpa + 2048, 16, false}, {gpa, 512, true}, {gpa + 1024, 1, true}};
		int head;

		*(struct virtio_blk_hdr *)vguest_va(&guest, gpa + 2048) =
		        (struct virtio_blk_hdr){VIRTIO_BLK_T_IN, 0, i};
		*(uint8_t *)vguest_va(&guest, gpa + 1024) = 0xee;
		head = vguest_add_indirect(&drv, bufs, 3);
		if (head < 0)
			abort();
		vguest_publish(&drv, (uint16_t)head);
	}
}

static inline unsigned used_take(void)
{
	uint32_t head, len_bytes;
	unsigned count = 0;

	while (vguest_used_pop(&drv, &head, &len_bytes))
		count++;
	return count;
}

#endif
