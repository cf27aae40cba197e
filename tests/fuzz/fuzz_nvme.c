/*
 * The NVMe driver against a controller that lies: registers, identify pages, admin answers and
 * completions of any value at any time; or one that answers late, twice, out of order, never, or is
 * gone. Every bio that was taken is done once; command ids are conserved; no command of a finished
 * bio is still a command; and the driver touches only its own memory, the bios' and the registers.
 */
#include "tests/fuzz/fuzz.h"

#include "drivers/nvme/nvme.h"
#include "drivers/source.h"
#include "tests/fake/pci_model.h"
#include "tests/fake/platform.h"

#include <sys/mman.h>

const char fuzz_name[] = "nvme";
const unsigned fuzz_rounds = 2000;

#define BAR_BYTES   0x100000u
#define MSIX_OFFSET 0x80000u
#define MSIX_CAP    0x60u
#define BLOCKS      4096u
#define BIOS        24u
#define BEND_MAX    8u
#define RELAX_TSC   100000000ull /* 100 ms: time-outs come within a hundred looks */
#define RELAX_MAX   100000u      /* in one call of the driver */

/* How an admin command is answered, by its number since the start. */
enum bend {
	BEND_STATUS, /* status, 16 bits */
	BEND_DROP,
	BEND_TWICE,
	BEND_CID,    /* xor, 16 bits */
	BEND_PAGE,   /* identify: byte offset (16 bits), 8 bytes */
	BEND_RESULT, /* 32 bits */
	BEND_FATAL,
	BEND_GONE,
	BEND_COUNT,
};

enum step {
	STEP_SUBMIT, /* which bio, op, sector (16 bits), sectors, segments, their cut */
	STEP_COMMIT,
	STEP_POLL,     /* budget */
	STEP_COMPLETE, /* which command under way, status (16 bits) */
	STEP_POST,     /* a completion of 32 bits of anything */
	STEP_FORGE,    /* an entry by index, 32 bits put there */
	STEP_CSTS,     /* 8 bits */
	STEP_GONE,     /* registers read as ones from now on, or again not */
	STEP_TIME,     /* seconds, with a look at the clock after each */
	STEP_IRQ,      /* on or off */
	STEP_STUCK,    /* never ready again once disabled, or as before */
	STEP_COUNT,
};

size_t fuzz_seed(unsigned index, uint8_t *out)
{
	struct fuzz_out o = {out, 0};

	switch (index) {
	case 0: /* an honest controller */
		FUZZ_PUT(&o, 4, 1, 0, 0, 5, 0, STEP_SUBMIT, 0, 0, 8, 0, 8, 1, 0, STEP_SUBMIT, 1, 1,
		         0, 1, 3, 2, 9);
		FUZZ_PUT(&o, STEP_COMMIT, STEP_COMPLETE, 1, 0, 0, STEP_COMPLETE, 0, 0, 0, STEP_POLL,
		         4);
		FUZZ_PUT(&o, STEP_SUBMIT, 2, 2, 0, 0, 0, 0, 0, STEP_SUBMIT, 3, 3, 9, 0, 8, 0, 0);
		FUZZ_PUT(&o, STEP_COMMIT, STEP_IRQ, STEP_COMPLETE, 0, 0, 0, STEP_POLL, 1, STEP_IRQ);
		break;
	case 1: /* completions of nothing, twice, with a stale generation */
		FUZZ_PUT(&o, 2, 1, 0, 0, 5, 0, STEP_SUBMIT, 0, 0, 8, 0, 8, 1, 0, STEP_COMMIT);
		FUZZ_PUT(&o, STEP_POST, 0x34, 0x12, 1, 0, STEP_POST, 0, 0, 1, 0, STEP_POST, 0, 0, 1,
		         0);
		FUZZ_PUT(&o, STEP_POLL, 9, STEP_FORGE, 2, 0, 1, 1, 0, STEP_POLL, 9);
		break;
	case 2: /* no answer: reset, then again */
		FUZZ_PUT(&o, 3, 1, 0, 0, 0, 0, STEP_SUBMIT, 0, 1, 8, 0, 250, 4, 3, STEP_COMMIT,
		         STEP_TIME, 14);
		FUZZ_PUT(&o, STEP_SUBMIT, 1, 0, 8, 0, 8, 1, 0, STEP_COMMIT, STEP_COMPLETE, 0, 0, 0,
		         STEP_POLL, 8);
		break;
	case 3: /* fatal */
		FUZZ_PUT(&o, 4, 1, 2, 0, 5, 0, STEP_SUBMIT, 0, 1, 8, 0, 8, 1, 0, STEP_COMMIT,
		         STEP_CSTS, 3, STEP_TIME, 3);
		break;
	case 4: /* gone while a reset is under way */
		FUZZ_PUT(&o, 4, 255, 0, 0, 5, 0, STEP_SUBMIT, 0, 1, 8, 0, 8, 1, 0, STEP_COMMIT,
		         STEP_STUCK, STEP_TIME, 15);
		FUZZ_PUT(&o, STEP_GONE, STEP_TIME, 2, STEP_GONE);
		break;
	case 5: /* an identify page with an absurd size, a failed queue */
		FUZZ_PUT(&o, 4, 1, 1, 0, 5, 2, 4, BEND_PAGE, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff,
		         0xff, 0xff, 0xff);
		FUZZ_PUT(&o, 2, BEND_STATUS, 2, 1);
		break;
	case 6: /* admin answers with a wrong id, twice, never */
		FUZZ_PUT(&o, 4, 1, 0, 0, 5, 3, 0, BEND_TWICE, 1, BEND_CID, 1, 0, 2, BEND_DROP);
		break;
	case 7: /* more parts than the queue holds, one fails */
		FUZZ_PUT(&o, 2, 1, 0, 0, 1, 0, STEP_SUBMIT, 0, 0, 0, 0, 255, 6, 1, STEP_COMMIT);
		FUZZ_PUT(&o, STEP_COMPLETE, 0, 0, 0, STEP_COMPLETE, 0, 0x81, 2, STEP_POLL, 9,
		         STEP_COMPLETE, 0, 0, 0);
		FUZZ_PUT(&o, STEP_POLL, 9, STEP_COMPLETE, 0, 0, 0, STEP_POLL, 9, STEP_COMPLETE, 0,
		         0, 0, STEP_POLL, 9);
		break;
	default: return 0;
	}
	return o.len_bytes;
}

/* --- the controller --------------------------------------------------------------------------- */

static struct {
	uint64_t cap;
	uint32_t cc, csts, aqa;
	uint64_t asq, acq;
	bool gone, stuck;
	uint8_t mdts, lba_shift;
	uint16_t oncs;
	uint32_t admin_head, admin_depth, admin_cq_tail, admin_phase;
	uint64_t io_sq, io_cq;
	uint32_t io_depth, io_head, io_tail, io_cq_tail, io_phase;
	struct nvme_sqe command[NVME_DEPTH_MAX]; /* under way */
	unsigned command_count;
	struct {
		uint8_t at, act;
		uint16_t place;
		uint64_t value;
	} bend[BEND_MAX];
	unsigned bend_count, admin_count;
	uint8_t *config;
} dev;

static uint8_t *regs; /* addresses only: nothing is mapped there */
static unsigned relaxes;
static struct bio_dev *disk;

static void *at(uint64_t hpa)
{
	return (void *)(uintptr_t)hpa;
}

static bool may_dma(void)
{
	return pci_model_get16(dev.config, 4) & 4;
}

static void cqe_put(uint64_t base, uint32_t index, uint32_t dw3, uint32_t result)
{
	struct nvme_cqe *cqe = (struct nvme_cqe *)at(base) + index;

	cqe->result = result;
	atomic_store_explicit(&cqe->cid_status, dw3, memory_order_release);
}

static void admin_post(uint16_t cid, uint16_t status, uint32_t result)
{
	cqe_put(dev.acq, dev.admin_cq_tail, cid | dev.admin_phase << 16 | (uint32_t)status << 17,
	        result);
	if (++dev.admin_cq_tail == dev.admin_depth) {
		dev.admin_cq_tail = 0;
		dev.admin_phase ^= 1;
	}
}

static void io_post(uint32_t dw3)
{
	cqe_put(dev.io_cq, dev.io_cq_tail, dw3, 0);
	if (++dev.io_cq_tail == dev.io_depth) {
		dev.io_cq_tail = 0;
		dev.io_phase ^= 1;
	}
}

static void identify(const struct nvme_sqe *sqe)
{
	uint8_t *page = at(sqe->prp1);
	struct nvme_id_ctrl *ctrl = (void *)page;
	struct nvme_id_ns *ns = (void *)page;
	uint32_t nsid = 1;

	memset(page, 0, 4096);
	switch (sqe->cdw10 & 0xff) {
	case NVME_CNS_CONTROLLER:
		memset(ctrl->model, 'm', sizeof(ctrl->model));
		ctrl->mdts = dev.mdts;
		ctrl->sqes = 0x66;
		ctrl->cqes = 0x44;
		ctrl->oncs = dev.oncs;
		ctrl->vwc = 1;
		ctrl->namespace_count = 1;
		break;
	case NVME_CNS_ACTIVE_LIST: memcpy(page, &nsid, sizeof(nsid)); break;
	case NVME_CNS_NAMESPACE:
		ns->size_blocks = ns->capacity_blocks = BLOCKS;
		ns->formats[0].lba_shift = dev.lba_shift;
		break;
	}
}

static void admin_run(const struct nvme_sqe *sqe)
{
	unsigned number = dev.admin_count++, twice = 0;
	uint32_t result = 0;
	uint16_t status = 0, cid = sqe->cid;

	switch (sqe->opcode) {
	case NVME_ADMIN_IDENTIFY: identify(sqe); break;
	case NVME_ADMIN_CREATE_CQ:
		dev.io_cq = sqe->prp1;
		dev.io_depth = (sqe->cdw10 >> 16) + 1;
		dev.io_cq_tail = 0;
		dev.io_phase = 1;
		break;
	case NVME_ADMIN_CREATE_SQ:
		dev.io_sq = sqe->prp1;
		dev.io_head = dev.io_tail = 0;
		break;
	}
	for (unsigned i = 0; i < dev.bend_count; i++) {
		if (dev.bend[i].at != number)
			continue;
		switch (dev.bend[i].act) {
		case BEND_STATUS: status = (uint16_t)dev.bend[i].value & 0x7fff; break;
		case BEND_DROP: return;
		case BEND_TWICE: twice = 1; break;
		case BEND_CID: cid ^= (uint16_t)dev.bend[i].value; break;
		case BEND_PAGE:
			if (sqe->opcode == NVME_ADMIN_IDENTIFY)
				memcpy((uint8_t *)at(sqe->prp1) + dev.bend[i].place % 4089,
				       &dev.bend[i].value, 8);
			break;
		case BEND_RESULT: result = (uint32_t)dev.bend[i].value; break;
		case BEND_FATAL: dev.csts |= NVME_CSTS_CFS; return;
		case BEND_GONE: dev.gone = true; return;
		}
	}
	admin_post(cid, status, result);
	if (twice)
		admin_post(cid, status, result);
}

/* Takes over what the driver has submitted; the entries are nobody's from then on. */
static void io_fetch(void)
{
	while (dev.io_head != dev.io_tail) {
		struct nvme_sqe *sqe = (struct nvme_sqe *)at(dev.io_sq) + dev.io_head;

		for (unsigned i = 0; i < dev.command_count; i++)
			FUZZ_CHECK(dev.command[i].cid != sqe->cid);
		FUZZ_CHECK(dev.command_count < dev.io_depth);
		dev.command[dev.command_count++] = *sqe;
		memset(sqe, 0xee, sizeof(*sqe));
		dev.io_head = (dev.io_head + 1) % dev.io_depth;
	}
}

static void doorbell(uint32_t offset, uint32_t value)
{
	uint32_t stride = 4u << NVME_CAP_DSTRD(dev.cap), which = offset / stride;

	FUZZ_CHECK(offset % stride == 0 && which < 4);
	if (dev.gone || !(dev.csts & NVME_CSTS_RDY) || !may_dma())
		return;
	switch (which) {
	case 0:
		FUZZ_CHECK(value < dev.admin_depth);
		while (dev.admin_head != value) {
			admin_run((struct nvme_sqe *)at(dev.asq) + dev.admin_head);
			dev.admin_head = (dev.admin_head + 1) % dev.admin_depth;
		}
		break;
	case 1: FUZZ_CHECK(value < dev.admin_depth); break;
	case 2:
		if (!dev.io_sq)
			break;
		FUZZ_CHECK(value < dev.io_depth);
		dev.io_tail = value;
		io_fetch();
		break;
	case 3: FUZZ_CHECK(!dev.io_cq || value < dev.io_depth); break;
	}
}

static void cc_write(uint32_t value)
{
	bool was = dev.cc & NVME_CC_EN, is = value & NVME_CC_EN;

	dev.cc = value;
	if ((value & NVME_CC_SHN_MASK) == NVME_CC_SHN_NORMAL)
		dev.csts |= NVME_CSTS_SHST_DONE;
	if (was && !is) {
		/* Reset: whatever was under way is forgotten. */
		dev.command_count = 0;
		dev.io_sq = dev.io_cq = 0;
		dev.io_head = dev.io_tail = 0;
		dev.csts = dev.stuck ? NVME_CSTS_RDY : 0;
	} else if (!was && is) {
		dev.admin_depth = (dev.aqa & 0xfff) + 1;
		dev.admin_head = dev.admin_cq_tail = 0;
		dev.admin_phase = 1;
		dev.csts = dev.stuck ? 0 : NVME_CSTS_RDY;
	}
}

static void reg_write(uint32_t offset, uint32_t value)
{
	if (offset >= MSIX_OFFSET) {
		FUZZ_CHECK(offset < MSIX_OFFSET + 32);
		return;
	}
	if (offset >= NVME_REG_DOORBELL) {
		doorbell(offset - NVME_REG_DOORBELL, value);
		return;
	}
	switch (offset) {
	case NVME_REG_CC: cc_write(value); break;
	case NVME_REG_AQA: dev.aqa = value; break;
	case NVME_REG_ASQ: dev.asq = (dev.asq & ~0xffffffffull) | value; break;
	case NVME_REG_ASQ + 4: dev.asq = (uint32_t)dev.asq | (uint64_t)value << 32; break;
	case NVME_REG_ACQ: dev.acq = (dev.acq & ~0xffffffffull) | value; break;
	case NVME_REG_ACQ + 4: dev.acq = (uint32_t)dev.acq | (uint64_t)value << 32; break;
	default: FUZZ_CHECK(!"a register that is written");
	}
}

static uint32_t reg_read(uint32_t offset)
{
	if (dev.gone)
		return UINT32_MAX;
	switch (offset) {
	case NVME_REG_CAP: return (uint32_t)dev.cap;
	case NVME_REG_CAP + 4: return (uint32_t)(dev.cap >> 32);
	case NVME_REG_VS: return 0x10400;
	case NVME_REG_CC: return dev.cc;
	case NVME_REG_CSTS: return dev.csts;
	}
	FUZZ_CHECK(!"a register that is read");
	return 0;
}

static uint32_t offset_of(const volatile void *reg)
{
	uintptr_t offset = (uintptr_t)reg - (uintptr_t)regs;

	FUZZ_CHECK(offset < BAR_BYTES);
	return (uint32_t)offset;
}

static uint64_t mmio_read(const volatile void *reg, unsigned width_bytes)
{
	uint32_t offset = offset_of(reg);
	uint64_t low = reg_read(offset);

	return width_bytes == 8 ? low | (uint64_t)reg_read(offset + 4) << 32 : low;
}

static void mmio_write(volatile void *reg, unsigned width_bytes, uint64_t value)
{
	uint32_t offset = offset_of(reg);

	reg_write(offset, (uint32_t)value);
	if (width_bytes == 8)
		reg_write(offset + 4, (uint32_t)(value >> 32));
}

static void relax(void)
{
	fake_tsc += RELAX_TSC;
	FUZZ_CHECK(++relaxes < RELAX_MAX);
}

static void plug(struct fuzz_in *in)
{
	static const uint16_t mqes[] = {0, 1, 2, 3, 7, 15, 63, 255, 0xffff, 5, 1, 2, 3, 7, 4, 6};
	unsigned shape;

	if (!regs)
		regs = mmap(NULL, BAR_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (regs == MAP_FAILED)
		abort();
	memset(&dev, 0, sizeof(dev));
	pci_model_init();
	dev.cap = mqes[fuzz_below(in, ARRAY_LEN(mqes))] | NVME_CAP_CSS_NVM | (uint64_t)4 << 52;
	dev.cap |= (uint64_t)fuzz_u8(in) << 24; /* TO */
	dev.cap |= (uint64_t)(fuzz_u8(in) & 0xf)
	           << 32; /* DSTRD; the doorbells stay in the window */
	shape = fuzz_u8(in);
	dev.lba_shift = shape & 1 ? 12 : 9;
	dev.oncs = shape & 2 ? 0 : NVME_ONCS_DSM | NVME_ONCS_WRITE_ZEROES;
	dev.csts = shape & 8 ? NVME_CSTS_RDY : 0;
	dev.cc = shape & 8 ? NVME_CC_EN : 0;
	dev.mdts = fuzz_u8(in);
	dev.config = pci_model_add(0, 4, 0, 0x1b36, 0x0010);
	pci_model_put32(dev.config, 0x08, 0x010802u << 8);
	pci_model_put32(dev.config, 0x10, (uint32_t)(uintptr_t)regs | 4);
	pci_model_put32(dev.config, 0x14, (uint32_t)((uintptr_t)regs >> 32));
	if (!(shape & 4)) {
		pci_model_put16(dev.config, 0x06, 0x10);
		dev.config[0x34] = 0x40;
		pci_model_put16(dev.config, 0x40, MSIX_CAP << 8 | 0x01);
		pci_model_put16(dev.config, MSIX_CAP, 0x0011);
		pci_model_put16(dev.config, MSIX_CAP + 2, 1);
		pci_model_put32(dev.config, MSIX_CAP + 4, MSIX_OFFSET);
	}
	dev.bend_count = fuzz_below(in, BEND_MAX + 1);
	for (unsigned i = 0; i < dev.bend_count; i++) {
		dev.bend[i].at = fuzz_u8(in);
		dev.bend[i].act = fuzz_below(in, BEND_COUNT);
		if (dev.bend[i].act == BEND_PAGE)
			dev.bend[i].place = fuzz_u16(in);
		if (dev.bend[i].act == BEND_PAGE)
			dev.bend[i].value = fuzz_u64(in);
		else if (dev.bend[i].act == BEND_RESULT)
			dev.bend[i].value = fuzz_u32(in);
		else if (dev.bend[i].act <= BEND_CID)
			dev.bend[i].value = fuzz_u16(in);
	}
	fake_mmio_read = mmio_read;
	fake_mmio_write = mmio_write;
	fake_relax = relax;
}

/* --- bios ------------------------------------------------------------------------------------- */

struct tracked {
	struct bio bio;
	bool owned; /* by the driver */
	struct bio_seg segs[8];
	uint8_t *memory; /* of its own, so that nobody else's is reached from it */
	uint64_t len_bytes;
};

static struct tracked bios[BIOS];
static unsigned owned_count;

static void on_done(struct bio *bio)
{
	struct tracked *t = CONTAINER_OF(bio, struct tracked, bio);

	FUZZ_CHECK(t->owned);
	FUZZ_CHECK(bio->status <= BIO_EGONE);
	t->owned = false;
	owned_count--;
	free(t->memory);
	t->memory = NULL;
}

static void submit(struct fuzz_in *in)
{
	struct tracked *t = &bios[fuzz_below(in, BIOS)];
	enum bio_op op = fuzz_below(in, 5);
	uint64_t sector = fuzz_u16(in), sectors = fuzz_u8(in), left;
	unsigned segs = 1 + fuzz_below(in, ARRAY_LEN(t->segs)), cut = fuzz_u8(in);
	uint8_t *next;

	if (t->owned || !disk)
		return;
	t->bio = (struct bio){.op = op,
	                      .sector = sector,
	                      .sector_count = sectors,
	                      .segs = t->segs,
	                      .done = on_done};
	if (op == BIO_FLUSH)
		t->bio.sector = t->bio.sector_count = 0;
	if (op == BIO_READ || op == BIO_WRITE) {
		/* In pieces of sizes that differ, each where the last one ended or a little on. */
		t->len_bytes = sectors * 512;
		t->memory = malloc(t->len_bytes + 8 * 4096);
		memset(t->memory, 0x11, t->len_bytes + 8 * 4096);
		next = t->memory + (cut & 1 ? cut & 0xf0 : 0);
		left = t->len_bytes;
		for (unsigned i = 0; i < segs; i++) {
			uint64_t part = i + 1 == segs ? left : MIN(left, left / 2 + (cut & 7));

			t->segs[i] = (struct bio_seg){(uintptr_t)next, part};
			next += part + (cut & 8 ? 0 : cut);
			left -= part;
		}
		t->bio.seg_count = (uint16_t)segs;
	}
	if (bio_submit(disk, &t->bio) == 0) {
		t->owned = true;
		owned_count++;
	} else {
		free(t->memory);
		t->memory = NULL;
	}
}

/* --- what holds ------------------------------------------------------------------------------- */

static struct nvme_pair *pair(void)
{
	return CONTAINER_OF(disk, struct nvme_ns, dev)->pair;
}

static void conserved_check(void)
{
	struct nvme_pair *q = pair();
	bool free[NVME_DEPTH_MAX] = {false};
	unsigned busy = 0;

	FUZZ_EQ(disk->in_flight, owned_count);
	FUZZ_CHECK(q->free_count < q->ring.depth);
	for (uint32_t i = 0; i < q->free_count; i++) {
		FUZZ_CHECK(q->free[i] < q->ring.depth - 1 && !free[q->free[i]]);
		free[q->free[i]] = true;
		FUZZ_CHECK(!q->cmd[q->free[i]].bio);
	}
	for (uint32_t i = 0; i < NVME_DEPTH_MAX; i++) {
		struct bio *bio = q->cmd[i].bio;

		busy += bio != NULL;
		if (bio)
			FUZZ_CHECK(CONTAINER_OF(bio, struct tracked, bio)->owned);
	}
	FUZZ_EQ(busy + q->free_count, q->ring.depth - 1);
}

/* What the driver no longer counts as a command is none of the controller's any more. */
static void commands_prune(void)
{
	struct nvme_pair *q = pair();
	unsigned kept = 0;

	for (unsigned i = 0; i < dev.command_count; i++) {
		uint16_t cid = dev.command[i].cid;
		const struct nvme_cmd *cmd = &q->cmd[cid & 0xff];

		if (cmd->bio && cmd->generation == cid >> 8)
			dev.command[kept++] = dev.command[i];
	}
	dev.command_count = kept;
}

/* --- transfers -------------------------------------------------------------------------------- */

/* A page or a part of one, as a controller without an IOMMU would: whatever is there. */
static void span_touch(uint64_t hpa, uint64_t len_bytes, bool to_memory)
{
	uint8_t sum = 0;

	if (to_memory) {
		memset(at(hpa), 0x22, len_bytes);
		return;
	}
	for (uint64_t i = 0; i < len_bytes; i++)
		sum ^= ((volatile uint8_t *)at(hpa))[i];
}

static void data_touch(const struct nvme_sqe *sqe)
{
	uint64_t left = (uint64_t)((sqe->cdw12 & 0xffff) + 1) << dev.lba_shift, entry;
	uint64_t first = MIN(left, 4096 - (sqe->prp1 & 4095)), list = sqe->prp2;
	bool to_memory = sqe->opcode == NVME_IO_READ;

	if (sqe->opcode != NVME_IO_READ && sqe->opcode != NVME_IO_WRITE)
		return;
	FUZZ_CHECK((sqe->prp1 & 3) == 0);
	span_touch(sqe->prp1, first, to_memory);
	left -= first;
	if (left && left <= 4096) {
		FUZZ_CHECK((sqe->prp2 & 4095) == 0);
		span_touch(sqe->prp2, left, to_memory);
		return;
	}
	while (left) {
		memcpy(&entry, at(list), 8);
		FUZZ_CHECK((entry & 4095) == 0);
		if ((list & 4095) == 4088 && left > 4096) {
			list = entry;
			continue;
		}
		span_touch(entry, MIN(left, 4096), to_memory);
		left -= MIN(left, 4096);
		list += 8;
	}
}

static void complete(struct fuzz_in *in)
{
	unsigned i = fuzz_u8(in);
	uint16_t status = fuzz_u16(in) & 0x7fff;
	struct nvme_sqe sqe;

	if (!dev.command_count || !dev.io_cq || !may_dma())
		return;
	i %= dev.command_count;
	sqe = dev.command[i];
	if (!status)
		data_touch(&sqe);
	dev.command[i] = dev.command[--dev.command_count];
	io_post(sqe.cid | dev.io_phase << 16 | (uint32_t)status << 17);
}

/* --- steps ------------------------------------------------------------------------------------ */

/* As the loop does: it never polls while it owes a doorbell. */
static void poll(unsigned budget)
{
	relaxes = 0;
	if (disk->submitted)
		disk->ops->commit(disk);
	bio_poll(disk, budget);
	commands_prune();
}

static void seconds(unsigned count)
{
	while (count-- > 0) {
		fake_tsc += 1000000000ull;
		if (disk->ops->irq_set)
			disk->ops->irq_set(disk, false);
		for (unsigned n = 0; n <= (disk->ops->irq_set ? 0 : NVME_CHECK_POLLS); n++)
			poll(64);
	}
}

static void step(struct fuzz_in *in)
{
	uint32_t value;

	switch (fuzz_below(in, STEP_COUNT)) {
	case STEP_SUBMIT: submit(in); break;
	case STEP_COMMIT:
		if (disk->submitted)
			disk->ops->commit(disk);
		break;
	case STEP_POLL: poll(1 + fuzz_below(in, 64)); break;
	case STEP_COMPLETE: complete(in); break;
	case STEP_POST:
		value = fuzz_u32(in);
		if (dev.io_cq && may_dma())
			io_post(value);
		break;
	case STEP_FORGE:
		value = fuzz_u8(in);
		if (dev.io_cq && may_dma())
			cqe_put(dev.io_cq, value % dev.io_depth, fuzz_u32(in), 0);
		break;
	case STEP_CSTS: dev.csts = fuzz_u8(in); break;
	case STEP_GONE: dev.gone = !dev.gone; break;
	case STEP_TIME: seconds(fuzz_below(in, 16)); break;
	case STEP_IRQ:
		value = fuzz_u8(in) & 1;
		if (disk->ops->irq_set)
			disk->ops->irq_set(disk, value);
		break;
	case STEP_STUCK: dev.stuck = !dev.stuck; break;
	}
}

/* Nothing answers any more: within the time-out all that was taken is done. */
static void finish(void)
{
	if (disk->submitted)
		disk->ops->commit(disk);
	for (unsigned i = 0; i < 16 && owned_count; i++)
		seconds(1);
	FUZZ_EQ(owned_count, 0);
	conserved_check();
	nvme_shutdown_all();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	struct fuzz_in in = {data, data + len_bytes};
	struct bio_extent extent;
	char err[200];

	fake_reset();
	source_init();
	plug(&in);
	relaxes = owned_count = 0;
	disk = NULL;
	memset(bios, 0, sizeof(bios));
	if (nvme_probe_all() == 1) {
		nvme_irq_route(2);
		if (!source_open("nvme0n1", NULL, false, &extent, err, sizeof(err)))
			disk = extent.dev;
	} else {
		/* One that was told of our memory and is left out can no longer reach it. */
		FUZZ_CHECK(!dev.asq || !may_dma());
	}
	relaxes = 0;
	if (disk) {
		while (fuzz_more(&in)) {
			step(&in);
			conserved_check();
		}
		finish();
	}
	return 0;
}
