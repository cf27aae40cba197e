/*
 * A guest's PCI bus with one virtio disk on it, by whatever a guest can do: configuration ports and
 * BARs at any offset and width, rings at any address, resets at any moment, and between all that
 * the I/O core's passes. Nothing outside guest memory is touched, what must not change does not,
 * no request is leaked, and a reset always ends.
 */
#include "tests/fuzz/fuzz.h"

#include "tests/fake/bio_fake.h"
#include "tests/fake/platform.h"
#include "tests/fake/virtio_cases.h"
#include "virtio/blk.h"
#include "virtio/virtio_pci.h"
#include "vmm/vm.h"

const char fuzz_name[] = "transport";
const unsigned fuzz_rounds = 2500;

#define QUEUES     2u
#define QUEUE_SIZE 16u
#define SECTORS    256u
#define PIECE      (128 * KIB)
#define STATUS_ALL                                                                                 \
	(VIRTIO_STATUS_ACKNOWLEDGE | VIRTIO_STATUS_DRIVER | VIRTIO_STATUS_DRIVER_OK |              \
	 VIRTIO_STATUS_FEATURES_OK | VIRTIO_STATUS_NEEDS_RESET | VIRTIO_STATUS_FAILED)

enum step {
	STEP_CONFIG_READ,  /* register, width */
	STEP_CONFIG_WRITE, /* register, width, 32 bits */
	STEP_PORT,         /* port less 0xcf8, width, write?, 32 bits */
	STEP_ADDRESS,      /* 32 bits for 0xcf8 */
	STEP_FIELD_READ,   /* which */
	STEP_FIELD_WRITE,  /* which, 32 bits */
	STEP_BAR_READ,     /* bar, width, 16 bits of offset */
	STEP_BAR_WRITE,    /* bar, width, 16 bits of offset, 64 bits */
	STEP_GPA,          /* width, 32 bits of address */
	STEP_START,        /* what a driver does up to DRIVER_OK: with event index or not */
	STEP_MSIX,         /* vectors on */
	STEP_CASE,         /* queue, which named request */
	STEP_KICK,         /* queue */
	STEP_MEMORY,       /* 16 bits of address in guest memory, 64 bits put there */
	STEP_PASS,         /* how many */
	STEP_HOLD,         /* the disk holds back what it has, or not */
	STEP_RESET,
	STEP_COUNT,
};

size_t fuzz_seed(unsigned index, uint8_t *out)
{
	struct fuzz_out o = {out, 0};

	switch (index) {
	case 0: /* start, use, reset, start again */
		FUZZ_PUT(&o, STEP_START, 1, STEP_MSIX, STEP_PASS, 1, STEP_CASE, 0, 0, STEP_CASE, 1,
		         1);
		FUZZ_PUT(&o, STEP_KICK, 0, STEP_KICK, 1, STEP_PASS, 4, STEP_RESET, STEP_PASS, 2);
		FUZZ_PUT(&o, STEP_START, 0, STEP_CASE, 0, 4, STEP_KICK, 0, STEP_PASS, 4);
		break;
	case 1: /* reset with requests in flight */
		FUZZ_PUT(&o, STEP_START, 1, STEP_HOLD, STEP_CASE, 0, 0, STEP_CASE, 0, 1, STEP_KICK,
		         0);
		FUZZ_PUT(&o, STEP_PASS, 3, STEP_RESET, STEP_PASS, 3, STEP_START, 1, STEP_HOLD);
		FUZZ_PUT(&o, STEP_PASS, 3, STEP_START, 1, STEP_CASE, 1, 0, STEP_KICK, 1, STEP_PASS,
		         3);
		break;
	case 2: /* BARs are sized, moved, turned off and on */
		FUZZ_PUT(&o, STEP_CONFIG_WRITE, 0x10, 2, 0xff, 0xff, 0xff, 0xff, STEP_CONFIG_READ,
		         0x10, 2);
		FUZZ_PUT(&o, STEP_CONFIG_WRITE, 0x10, 2, 0, 0, 0x20, 0xc0, STEP_CONFIG_WRITE, 4, 1,
		         0, 0, 0, 0);
		FUZZ_PUT(&o, STEP_CONFIG_WRITE, 0x18, 2, 0, 0x10, 0x30, 0xc0);
		FUZZ_PUT(&o, STEP_CONFIG_WRITE, 4, 1, 6, 0, 0, 0, STEP_GPA, 2, 0, 0x10, 0x30, 0xc0);
		break;
	case 3: /* the window of the PCI configuration access capability */
		FUZZ_PUT(&o, STEP_CONFIG_WRITE, 0x90, 0, 0, 0, 0, 0, STEP_CONFIG_WRITE, 0x94, 2, 20,
		         0, 0, 0);
		FUZZ_PUT(&o, STEP_CONFIG_WRITE, 0x98, 2, 1, 0, 0, 0, STEP_CONFIG_WRITE, 0x9c, 0, 1,
		         0, 0, 0);
		FUZZ_PUT(&o, STEP_CONFIG_READ, 0x9c, 2);
		break;
	case 4: /* a broken ring, then a reset */
		FUZZ_PUT(&o, STEP_START, 1, STEP_MSIX, STEP_CASE, 0);
		fuzz_put(&o, vguest_case_named("avail_jump") - vguest_cases, 1);
		FUZZ_PUT(&o, STEP_KICK, 0, STEP_PASS, 3, STEP_FIELD_READ, 6, STEP_RESET, STEP_PASS,
		         3, STEP_START, 1);
		break;
	case 5: /* ring addresses from nowhere */
		FUZZ_PUT(&o, STEP_FIELD_WRITE, 6, 1, 0, 0, 0, STEP_FIELD_WRITE, 6, 11, 0, 0, 0);
		FUZZ_PUT(&o, STEP_FIELD_WRITE, 12, 0xff, 0xff, 0xff, 0xff, STEP_FIELD_WRITE, 10, 1,
		         0, 0, 0);
		FUZZ_PUT(&o, STEP_START, 0, STEP_PASS, 3);
		break;
	case 6: /* odd widths and offsets */
		FUZZ_PUT(&o, STEP_PORT, 3, 2, 1, 1, 2, 3, 4, STEP_PORT, 0, 1, 1, 1, 2, 3, 4,
		         STEP_BAR_READ, 0);
		FUZZ_PUT(&o, 3, 0xf8, 0x3f, STEP_BAR_WRITE, 0, 3, 0, 0x30, 1, 2, 3, 4, 5, 6, 7, 8);
		FUZZ_PUT(&o, STEP_BAR_WRITE, 1, 3, 0xf8, 0x0f, 1, 2, 3, 4, 5, 6, 7, 8,
		         STEP_BAR_READ, 0, 2, 0, 0x38);
		break;
	case 7: /* descriptors change under way */
		FUZZ_PUT(&o, STEP_START, 1, STEP_CASE, 0, 4, STEP_MEMORY, 0x10, 0, 0xff, 0xff, 0, 0,
		         7, 0, 1, 0);
		FUZZ_PUT(&o, STEP_KICK, 0, STEP_PASS, 2, STEP_MEMORY, 0x02, 1, 9, 9, 9, 9, 9, 9, 9,
		         9, STEP_PASS, 2);
		break;
	default: return 0;
	}
	return o.len_bytes;
}

/* --- the machine ------------------------------------------------------------------------------ */

static struct vm vm;
static struct vguest guest;
static struct vguest_queue drv[QUEUES];
static struct vguest_io io[QUEUES];
static struct bio_fake disk;
static struct vblk *blk;
static struct ioloop loop;
static struct vpci_dev *pci;
static uint8_t header[64];

static uint64_t bar_read(unsigned bar, uint64_t offset, unsigned width_bytes)
{
	return pci->ops->bar_read(pci, bar, offset, width_bytes);
}

static void bar_write(unsigned bar, uint64_t offset, unsigned width_bytes, uint64_t value)
{
	pci->ops->bar_write(pci, bar, offset, width_bytes, value);
}

static void vcpu_create(unsigned index)
{
	struct vcpu *v = plat_mem_alloc(sizeof(*v), CACHE_LINE_BYTES);

	v->vm = &vm;
	v->index = v->apic_id = index;
	vlapic_init(&v->lapic, v, index, index == 0, 0);
	vlapic_mmio_write(&v->lapic, 0xd0, 1u << (24 + index));
	vlapic_mmio_write(&v->lapic, 0xf0, 0x1ff);
	vm.vcpu[vm.vcpu_count++] = v;
}

static void machine_make(void)
{
	static const struct manifest_disk config = {.num_queues = QUEUES, .queue_size = QUEUE_SIZE};

	fake_reset();
	fake_tsc = 1000000000;
	memset(&vm, 0, sizeof(vm));
	vm.name = "fuzz";
	vguest_init(&guest, 2, PIECE);
	bio_fake_init(&disk, SECTORS, 512);
	vpci_init(&vm.pci);
	vcpu_create(0);
	vcpu_create(1);
	blk = plat_mem_alloc(sizeof(*blk), CACHE_LINE_BYTES);
	if (vblk_create(blk, &config, (struct bio_extent){&disk.dev, 0, SECTORS}, &guest.mem,
	                "s") ||
	    virtio_pci_blk_add(&vm, blk))
		abort();
	pci = vm.pci.slot[1];
	ioloop_init(&loop, 0);
	ioloop_dev_add(&loop, &disk.dev);
	for (unsigned i = 0; i < QUEUES; i++) {
		blk->queue[i].ioq.poll_ns = i ? IOQ_POLL_AUTO : 0;
		ioloop_queue_add(&loop, &blk->queue[i].ioq);
		vguest_queue_init(&drv[i], &guest, QUEUE_SIZE, true, i == 0);
		io[i].hdr_gpa = vguest_alloc(&guest, 16, 16);
		io[i].data_gpa = vguest_alloc(&guest, VGUEST_IO_DATA_BYTES, 512);
		io[i].status_gpa = vguest_alloc(&guest, 1, 1);
		io[i].capacity_sectors = SECTORS;
	}
	memcpy(header, pci->config, sizeof(header));
}

static void machine_drop(void)
{
	bio_fake_free(&disk);
	vguest_free(&guest);
}

static void passes(unsigned count)
{
	while (count-- > 0) {
		fake_tsc += 3000;
		ioloop_pass(&loop);
	}
}

/* --- a driver --------------------------------------------------------------------------------- */

#define FIELD(name)                                                                                \
	{                                                                                          \
		offsetof(struct virtio_pci_common_cfg, name),                                      \
		        sizeof(((struct virtio_pci_common_cfg *)0)->name)                          \
	}

static const struct {
	uint8_t offset, width_bytes;
} field[] = {
        FIELD(device_feature_select),
        FIELD(device_feature),
        FIELD(driver_feature_select),
        FIELD(driver_feature),
        FIELD(config_msix_vector),
        FIELD(num_queues),
        FIELD(device_status),
        FIELD(queue_select),
        FIELD(queue_size),
        FIELD(queue_msix_vector),
        FIELD(queue_enable),
        FIELD(queue_notify_off),
        FIELD(queue_desc),
        FIELD(queue_driver),
        FIELD(queue_device),
        {offsetof(struct virtio_pci_common_cfg, queue_desc) + 4, 4},
        FIELD(config_generation),
};

#define GET(name)                                                                                  \
	bar_read(0, offsetof(struct virtio_pci_common_cfg, name),                                  \
	         sizeof(((struct virtio_pci_common_cfg *)0)->name))
#define SET(name, value)                                                                           \
	bar_write(0, offsetof(struct virtio_pci_common_cfg, name),                                 \
	          sizeof(((struct virtio_pci_common_cfg *)0)->name), value)

static void queue_start(unsigned i, bool event_idx)
{
	struct vguest_queue *q = &drv[i];

	q->event_idx = event_idx;
	vguest_queue_empty(q);
	SET(queue_select, i);
	SET(queue_size, QUEUE_SIZE);
	SET(queue_desc, q->desc_gpa);
	SET(queue_driver, q->avail_gpa);
	SET(queue_device, q->used_gpa);
	SET(queue_msix_vector, i);
	SET(queue_enable, 1);
}

static void driver_start(bool event_idx)
{
	uint64_t features = blk->features_offered & ~(event_idx ? 0 : VIRTIO_F_EVENT_IDX);

	SET(device_status, VIRTIO_STATUS_ACKNOWLEDGE | VIRTIO_STATUS_DRIVER);
	for (unsigned i = 0; i < 2; i++) {
		SET(driver_feature_select, i);
		SET(driver_feature, features >> 32 * i);
	}
	SET(device_status, VIRTIO_STATUS_FEATURES_OK);
	for (unsigned i = 0; i < QUEUES; i++)
		queue_start(i, event_idx);
	SET(device_status, VIRTIO_STATUS_DRIVER_OK);
}

static void msix_start(void)
{
	uint8_t cap = pci->config[0x34];

	while (cap && pci->config[cap] != 0x11)
		cap = pci->config[cap + 1];
	for (unsigned i = 0; i <= QUEUES; i++) {
		bar_write(0, VIRTIO_PCI_MSIX_OFFSET + 16 * i, 8, 0xfee01000);
		bar_write(0, VIRTIO_PCI_MSIX_OFFSET + 16 * i + 8, 8, 0x50 + i);
	}
	vpci_io_write(&vm.pci, 0xcf8, 4, 0x80000800u | cap);
	vpci_io_write(&vm.pci, 0xcfe, 2, 0x8000);
}

static void case_publish(struct fuzz_in *in)
{
	unsigned queue = fuzz_below(in, QUEUES);
	const struct vguest_case *c = &vguest_cases[fuzz_below(in, vguest_case_count)];
	struct vguest_queue *q = &drv[queue];
	uint32_t head, len_bytes;

	/* What came back makes room. The guest's memory may say anything by now. */
	for (unsigned i = 0; i < QUEUE_SIZE && vguest_used_idx(q) != q->used_idx; i++) {
		struct virtq_used *used = vguest_va(&guest, q->used_gpa);

		head = used->ring[q->used_idx % QUEUE_SIZE].id;
		if (head < QUEUE_SIZE && !q->chain_len[head])
			q->used_idx++;
		else
			vguest_used_pop(q, &head, &len_bytes);
	}
	if ((c->on & VGUEST_ON_INDIRECT) && !q->table_gpa)
		return;
	vguest_case_publish(c, q, &io[queue]);
}

/* --- what holds ------------------------------------------------------------------------------- */

/* False: a reset is under way, and what the driver writes is lost. */
static bool driver_features_get(uint64_t *features)
{
	uint32_t select = (uint32_t)GET(driver_feature_select);

	SET(driver_feature_select, ~select);
	if (GET(driver_feature_select) == select)
		return false;
	SET(driver_feature_select, 1);
	*features = GET(driver_feature) << 32;
	SET(driver_feature_select, 0);
	*features |= GET(driver_feature);
	SET(driver_feature_select, select);
	return true;
}

static void config_check(void)
{
	const uint8_t *c = pci->config;
	unsigned cap = c[0x34], hops = 0;

	/* Identity, class, subsystem, the capability pointer: for ever as they were. */
	FUZZ_CHECK(!memcmp(c, header, 4) && !memcmp(c + 8, header + 8, 4));
	FUZZ_CHECK(!memcmp(c + 0x28, header + 0x28, 0x10));
	FUZZ_CHECK(c[0x3d] == 0);
	for (; cap; cap = c[cap + 1])
		FUZZ_CHECK(cap >= 0x40 && cap <= 0xfc && cap % 4 == 0 && ++hops < 16);
	FUZZ_EQ(hops, 6);
	for (unsigned i = 0; i < VPCI_BAR_MAX; i++) {
		const struct vpci_bar *bar = &pci->bar[i];
		uint32_t reg;

		memcpy(&reg, c + 0x10 + 4 * i, 4);
		if (!bar->len_bytes) {
			FUZZ_EQ(reg, 0);
			continue;
		}
		if (!bar->base_gpa)
			continue;
		FUZZ_CHECK(c[4] & 2);
		FUZZ_EQ(bar->base_gpa, reg & ~0xfu);
		FUZZ_CHECK(bar->base_gpa % bar->len_bytes == 0);
		FUZZ_CHECK(bar->base_gpa >= VPCI_MMIO_BASE_GPA &&
		           bar->base_gpa - VPCI_MMIO_BASE_GPA + bar->len_bytes <= VPCI_MMIO_LEN);
	}
	FUZZ_EQ(atomic_load(&vm.kick[0].gpa), pci->bar[VIRTIO_PCI_BAR_NOTIFY].base_gpa);
}

static void status_check(void)
{
	uint64_t status = GET(device_status), features;

	FUZZ_CHECK((status & ~(uint64_t)STATUS_ALL) == 0);
	if (status & VIRTIO_STATUS_DRIVER_OK)
		FUZZ_CHECK(status & VIRTIO_STATUS_FEATURES_OK);
	if (status & VIRTIO_STATUS_NEEDS_RESET)
		FUZZ_CHECK(status & VIRTIO_STATUS_DRIVER_OK);
	if (status & VIRTIO_STATUS_FEATURES_OK && driver_features_get(&features)) {
		FUZZ_CHECK((features & ~blk->features_offered) == 0);
		FUZZ_CHECK(features & VIRTIO_F_VERSION_1);
	}
	FUZZ_CHECK((blk->features & ~blk->features_offered) == 0);
	for (unsigned i = 0; status == 0 && i < QUEUES; i++)
		FUZZ_CHECK(!ioq_is_attached(&blk->queue[i].ioq) && blk->queue[i].in_flight == 0);
}

/* Each request is free or under way, and interrupts are none that an APIC cannot have. */
static void state_check(void)
{
	for (unsigned i = 0; i < QUEUES; i++) {
		struct vblk_queue *q = &blk->queue[i];
		unsigned free = 0;

		for (const struct vblk_req *r = q->free; r; r = r->next)
			FUZZ_CHECK(++free <= QUEUE_SIZE);
		FUZZ_EQ(free + q->in_flight, QUEUE_SIZE);
		if (ioq_is_attached(&q->ioq) && !q->vq.broken) {
			FUZZ_CHECK(q->setup.size && q->setup.size <= QUEUE_SIZE);
			FUZZ_CHECK((uint16_t)(q->vq.avail_seen - q->vq.last_avail) <= q->vq.size);
			FUZZ_EQ((uint16_t)(q->vq.last_avail - q->vq.used_idx), q->in_flight);
		}
	}
	for (unsigned i = 0; i < vm.vcpu_count; i++)
		FUZZ_CHECK((atomic_load(&vm.vcpu[i]->posted[0]) & 0xffff) == 0);
}

/* --- steps ------------------------------------------------------------------------------------ */

static void gpa_access(struct fuzz_in *in)
{
	unsigned width_bytes = 1u << fuzz_below(in, 4), bar;
	gpa_t gpa = ALIGN_DOWN((gpa_t)fuzz_u32(in), width_bytes);
	uint64_t offset;
	struct vpci_dev *dev = vpci_find(&vm.pci, gpa, &bar, &offset);

	if (!dev)
		return;
	FUZZ_CHECK(dev == pci && offset + width_bytes <= pci->bar[bar].len_bytes);
	bar_read(bar, offset, width_bytes);
}

static void bar_access(struct fuzz_in *in, bool write)
{
	unsigned bar = fuzz_u8(in) & 1 ? VIRTIO_PCI_BAR_NOTIFY : VIRTIO_PCI_BAR_REGS;
	unsigned width_bytes = 1u << fuzz_below(in, 4);
	uint64_t offset = fuzz_u16(in) % pci->bar[bar].len_bytes;
	uint64_t value;

	offset = ALIGN_DOWN(offset, width_bytes);
	if (write) {
		bar_write(bar, offset, width_bytes, fuzz_u64(in));
		return;
	}
	value = bar_read(bar, offset, width_bytes);
	FUZZ_CHECK(width_bytes == 8 || value >> 8 * width_bytes == 0);
}

static void config_access(struct fuzz_in *in, bool write)
{
	unsigned reg = fuzz_u8(in), width_bytes = 1u << fuzz_below(in, 3);
	uint16_t port = (uint16_t)(0xcfc + (reg & 3 & ~(width_bytes - 1)));

	vpci_io_write(&vm.pci, 0xcf8, 4, 0x80000800u | (reg & 0xfc));
	if (write)
		vpci_io_write(&vm.pci, port, width_bytes, fuzz_u32(in));
	else
		vpci_io_read(&vm.pci, port, width_bytes);
}

static void port_access(struct fuzz_in *in)
{
	uint16_t port = (uint16_t)(0xcf8 + fuzz_below(in, 8));
	unsigned width_bytes = 1u << fuzz_below(in, 3);

	if (fuzz_u8(in) & 1)
		vpci_io_write(&vm.pci, port, width_bytes, fuzz_u32(in));
	else
		vpci_io_read(&vm.pci, port, width_bytes);
}

static void memory_write(struct fuzz_in *in)
{
	gpa_t gpa = VGUEST_BASE_GPA + 2 * fuzz_u16(in);
	uint64_t value = fuzz_u64(in);

	gmem_write(&guest.mem, gpa, &value, sizeof(value));
}

static void step(struct fuzz_in *in)
{
	unsigned i;

	switch (fuzz_below(in, STEP_COUNT)) {
	case STEP_CONFIG_READ: config_access(in, false); break;
	case STEP_CONFIG_WRITE: config_access(in, true); break;
	case STEP_PORT: port_access(in); break;
	case STEP_ADDRESS: vpci_io_write(&vm.pci, 0xcf8, 4, fuzz_u32(in)); break;
	case STEP_FIELD_READ:
		i = fuzz_below(in, ARRAY_LEN(field));
		bar_read(0, field[i].offset, field[i].width_bytes);
		break;
	case STEP_FIELD_WRITE:
		i = fuzz_below(in, ARRAY_LEN(field));
		bar_write(0, field[i].offset, field[i].width_bytes, fuzz_u32(in));
		break;
	case STEP_BAR_READ: bar_access(in, false); break;
	case STEP_BAR_WRITE: bar_access(in, true); break;
	case STEP_GPA: gpa_access(in); break;
	case STEP_START: driver_start(fuzz_u8(in) & 1); break;
	case STEP_MSIX: msix_start(); break;
	case STEP_CASE: case_publish(in); break;
	case STEP_KICK: bar_write(VIRTIO_PCI_BAR_NOTIFY, 4 * fuzz_below(in, QUEUES), 2, 0); break;
	case STEP_MEMORY: memory_write(in); break;
	case STEP_PASS: passes(fuzz_below(in, 8)); break;
	case STEP_HOLD: disk.hold = !disk.hold; break;
	case STEP_RESET: SET(device_status, 0); break;
	}
}

/* However it was left, it resets, and is as it was at power-on. */
static void reset_check(void)
{
	uint64_t features;

	disk.hold = 0;
	SET(device_status, 0);
	for (unsigned i = 0; i < 8 && GET(device_status); i++)
		passes(2);
	FUZZ_EQ(GET(device_status), 0);
	FUZZ_CHECK(driver_features_get(&features));
	FUZZ_EQ(features, 0);
	FUZZ_EQ(disk.dev.in_flight, 0);
	for (unsigned i = 0; i < QUEUES; i++) {
		SET(queue_select, i);
		FUZZ_EQ(GET(queue_size), QUEUE_SIZE);
		FUZZ_EQ(GET(queue_enable), 0);
		FUZZ_EQ(GET(queue_desc), 0);
		FUZZ_EQ(GET(queue_msix_vector), VIRTIO_MSI_NO_VECTOR);
	}
	FUZZ_EQ(GET(config_msix_vector), VIRTIO_MSI_NO_VECTOR);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	struct fuzz_in in = {data, data + len_bytes};

	machine_make();
	while (fuzz_more(&in)) {
		step(&in);
		config_check();
		status_check();
		state_check();
	}
	reset_check();
	state_check();
	machine_drop();
	return 0;
}
