#include "drivers/nvme/nvme.h"
#include "arch/platform.h"
#include "drivers/source.h"
#include "vmm/fmt.h"

#define READY_UNIT_US 500000ull /* CAP.TO (3.1.1) */
#define IO_PAIRS      1u        /* one serves the I/O core; nvme_queues_request can ask for more */
#define LOG_LINES     64u
#define SHUTDOWN_US   5000000ull

static struct nvme_ctrl *ctrls[NVME_CTRL_MAX];
static unsigned ctrl_count;

static uint32_t reg_read32(struct nvme_ctrl *c, unsigned reg)
{
	return plat_mmio_read32(c->regs + reg);
}

static void reg_write32(struct nvme_ctrl *c, unsigned reg, uint32_t value)
{
	plat_mmio_write32(c->regs + reg, value);
}

/* Two halves, low first: not every bus below us carries 64 bits at once. */
static uint64_t reg_read64(struct nvme_ctrl *c, unsigned reg)
{
	uint64_t low = reg_read32(c, reg);

	return low | (uint64_t)reg_read32(c, reg + 4) << 32;
}

static void reg_write64(struct nvme_ctrl *c, unsigned reg, uint64_t value)
{
	reg_write32(c, reg, (uint32_t)value);
	reg_write32(c, reg + 4, (uint32_t)(value >> 32));
}

uint32_t nvme_csts_read(struct nvme_ctrl *c)
{
	return reg_read32(c, NVME_REG_CSTS);
}

bool nvme_may_log(struct nvme_ctrl *c)
{
	if (!c->log_left)
		return false;
	if (--c->log_left == 0)
		plat_log("%s: too many errors; no more of them are logged", c->name);
	return true;
}

static int ready_wait(struct nvme_ctrl *c, bool ready)
{
	uint64_t deadline_tsc = plat_tsc() + plat_tsc_hz() / 1000000 * c->ready_timeout_us;

	for (;;) {
		/* The clock before the look: time that others took from us is not the device's. */
		bool late = plat_tsc() > deadline_tsc;
		uint32_t csts = nvme_csts_read(c);

		if (csts == NVME_CSTS_GONE)
			return -ENODEV;
		if (!!(csts & NVME_CSTS_RDY) == ready)
			return 0;
		if (ready && csts & NVME_CSTS_CFS)
			return -EIO;
		if (late)
			return -ETIMEDOUT;
		plat_relax();
	}
}

int nvme_ctrl_disable(struct nvme_ctrl *c)
{
	uint32_t cc = reg_read32(c, NVME_REG_CC);

	if (cc == UINT32_MAX)
		return -ENODEV;
	if (cc & NVME_CC_EN) {
		/* One still on its way up has to arrive first (7.3.2); a fatal one never will. */
		ready_wait(c, true);
		reg_write32(c, NVME_REG_CC, cc & ~(NVME_CC_EN | NVME_CC_SHN_MASK));
	}
	return ready_wait(c, false);
}

static int ctrl_enable(struct nvme_ctrl *c)
{
	uint32_t last = c->admin.depth - 1;

	nvme_ring_reset(&c->admin);
	reg_write32(c, NVME_REG_AQA, last << 16 | last);
	reg_write64(c, NVME_REG_ASQ, plat_hpa(c->admin.sq));
	reg_write64(c, NVME_REG_ACQ, plat_hpa(c->admin.cq));
	atomic_thread_fence(memory_order_release);
	reg_write32(c, NVME_REG_CC, NVME_CC_IOSQES | NVME_CC_IOCQES | NVME_CC_EN);
	return ready_wait(c, true);
}

int nvme_ctrl_up(struct nvme_ctrl *c)
{
	int rc = nvme_ctrl_disable(c);

	if (rc) {
		plat_log("%s: does not stop: %s", c->name, rc == -ENODEV ? "no answer" : "timeout");
		return rc;
	}
	rc = ctrl_enable(c);
	if (rc) {
		plat_log("%s: does not get ready: %s", c->name,
		         rc == -ENODEV ? "no answer"
		         : rc == -EIO  ? "fatal status"
		                       : "timeout");
		return rc;
	}
	rc = nvme_queues_request(c, IO_PAIRS);
	if (rc < 0)
		return rc;
	return nvme_pair_create(c, &c->io);
}

/* Doorbell of a queue (3.1.16, 3.1.17). */
static volatile void *doorbell(struct nvme_ctrl *c, unsigned queue, bool completion)
{
	return c->regs + NVME_REG_DOORBELL +
	       ((size_t)(2 * queue + completion) * 4 << NVME_CAP_DSTRD(c->cap));
}

static void ring_doorbells(struct nvme_ctrl *c, struct nvme_ring *r, unsigned queue)
{
	r->sq_doorbell = doorbell(c, queue, false);
	r->cq_doorbell = doorbell(c, queue, true);
}

/* What the registers alone say: is this one for us, and how large are its queues. */
static int ctrl_map(struct nvme_ctrl *c)
{
	hpa_t base_hpa = pci_bar_hpa(&c->pci, 0);
	uint32_t units;

	if (!base_hpa) {
		plat_log("%s: the firmware gave it no memory window", c->name);
		return -ENODEV;
	}
	pci_enable(&c->pci);
	c->regs = plat_mmio_map(base_hpa, NVME_REG_DOORBELL);
	if (!c->regs)
		return -ENOMEM;
	c->cap = reg_read64(c, NVME_REG_CAP);
	if (c->cap == UINT64_MAX) {
		plat_log("%s: no answer", c->name);
		return -ENODEV;
	}
	if (!(c->cap & NVME_CAP_CSS_NVM) || NVME_CAP_MPSMIN(c->cap) != 0) {
		plat_log("%s: without the NVM command set or 4 KiB pages", c->name);
		return -EOPNOTSUPP;
	}
	units = NVME_CAP_TO(c->cap);
	c->ready_timeout_us = READY_UNIT_US * MAX(units, 1u);
	c->regs = plat_mmio_map(base_hpa, NVME_REG_DOORBELL + ((uint64_t)(IO_PAIRS + 1) * 8
	                                                       << NVME_CAP_DSTRD(c->cap)));
	return c->regs ? 0 : -ENOMEM;
}

static int ctrl_alloc(struct nvme_ctrl *c)
{
	uint32_t depth = MIN(NVME_CAP_MQES(c->cap) + 1, NVME_DEPTH_MAX);

	if (depth < 2) {
		plat_log("%s: its queues have no room", c->name);
		return -EOPNOTSUPP;
	}
	if (nvme_ring_alloc(&c->admin, NVME_ADMIN_DEPTH) || nvme_pair_alloc(&c->io, c, 1, depth)) {
		plat_log("%s: no memory", c->name);
		return -ENOMEM;
	}
	ring_doorbells(c, &c->admin, 0);
	ring_doorbells(c, &c->io.ring, 1);
	return 0;
}

/* Space-padded text from a device, made printable. */
static void text_clean(char *out, const char *in, size_t len_bytes)
{
	while (len_bytes && (in[len_bytes - 1] == ' ' || in[len_bytes - 1] == 0))
		len_bytes--;
	for (size_t i = 0; i < len_bytes; i++)
		out[i] = in[i] >= ' ' && in[i] <= '~' ? in[i] : '?';
	out[len_bytes] = 0;
}

static uint32_t mdts_bytes(uint8_t mdts)
{
	if (mdts == 0 || mdts >= 10)
		return NVME_TRANSFER_MAX;
	return PAGE_SIZE << mdts;
}
_Static_assert(PAGE_SIZE << 10 == NVME_TRANSFER_MAX, "mdts_bytes");

static int ctrl_identify(struct nvme_ctrl *c, struct nvme_id_ctrl *id)
{
	uint32_t vs = reg_read32(c, NVME_REG_VS);
	int rc = nvme_identify(c, NVME_CNS_CONTROLLER, 0, id);

	if (rc)
		return rc;
	if ((id->sqes & 0xf) > 6 || (id->cqes & 0xf) > 4) {
		plat_log("%s: needs larger queue entries than NVMe 1.4 has", c->name);
		return -EOPNOTSUPP;
	}
	text_clean(c->model, id->model, sizeof(id->model));
	text_clean(c->serial, id->serial, sizeof(id->serial));
	text_clean(c->firmware, id->firmware, sizeof(id->firmware));
	c->max_bytes = mdts_bytes(id->mdts);
	plat_log("%s: %02x:%02x.%u %s, serial %s, firmware %s, NVMe %u.%u, %u commands of %u KiB%s",
	         c->name, c->pci.bus, c->pci.slot, c->pci.fn, c->model, c->serial, c->firmware,
	         vs >> 16, vs >> 8 & 0xff, c->io.ring.depth - 1, c->max_bytes / 1024,
	         c->has_msix ? ", MSI-X" : "");
	return 0;
}

/* --- namespaces --- */

static uint32_t physical_bytes(const struct nvme_id_ns *id, unsigned block_shift)
{
	uint32_t blocks = id->preferred_write_blocks + 1u;
	bool usable = id->features & NVME_NS_OPTPERF && (blocks & (blocks - 1)) == 0 &&
	              (blocks << block_shift) <= 64 * KIB;

	return usable ? blocks << block_shift : 1u << block_shift;
}

/* Why a namespace cannot be used, or NULL. */
static const char *ns_unusable(const struct nvme_id_ns *id, const struct nvme_lba_format *format)
{
	if (id->size_blocks == 0)
		return "empty";
	if ((id->format & NVME_NS_FORMAT_INDEX) > id->format_count)
		return "its format is not in its own list";
	if (format->metadata_bytes)
		return "formatted with metadata";
	if (format->lba_shift != 9 && format->lba_shift != 12)
		return "blocks of neither 512 nor 4096 bytes";
	if (id->size_blocks >= BIT(63) >> (format->lba_shift - BIO_SECTOR_SHIFT))
		return "its size is absurd";
	return NULL;
}

static void ns_add(struct nvme_ctrl *c, const struct nvme_id_ctrl *id_ctrl, uint32_t nsid,
                   const struct nvme_id_ns *id)
{
	const struct nvme_lba_format *format = &id->formats[id->format & NVME_NS_FORMAT_INDEX];
	const char *why = ns_unusable(id, format);
	struct nvme_ns *ns = &c->ns[c->ns_count];

	if (!why && c->ns_count == NVME_NS_MAX)
		why = "one too many";
	if (why) {
		plat_log("%sn%u: left out: %s", c->name, nsid, why);
		return;
	}
	ns->pair = &c->io;
	ns->ctrl = c;
	ns->nsid = nsid;
	ns->block_shift = format->lba_shift;
	ns->sector_shift = format->lba_shift - BIO_SECTOR_SHIFT;
	fmt_snprintf(ns->name, sizeof(ns->name), "%sn%u", c->name, nsid);
	ns->dev = (struct bio_dev){
	        .ops = &nvme_bio_ops,
	        .name = ns->name,
	        .sector_count = id->size_blocks << ns->sector_shift,
	        .block_bytes = 1u << ns->block_shift,
	        .physical_block_bytes = physical_bytes(id, ns->block_shift),
	        .max_transfer_bytes = c->max_bytes,
	        .read_only = id->attributes & NVME_NS_WRITE_PROTECTED,
	        .has_cache = id_ctrl->vwc & NVME_VWC_PRESENT,
	        .has_discard = id_ctrl->oncs & NVME_ONCS_DSM,
	        .has_write_zeroes = id_ctrl->oncs & NVME_ONCS_WRITE_ZEROES,
	};
	if (source_dev_add(&ns->dev)) {
		plat_log("%s: left out: too many disks", ns->name);
		return;
	}
	c->ns_count++;
	plat_log("%s: %llu MiB, blocks of %u bytes%s%s", ns->name,
	         (unsigned long long)(ns->dev.sector_count >> 11), ns->dev.block_bytes,
	         ns->dev.has_cache ? ", write cache" : "", ns->dev.read_only ? ", read-only" : "");
}

/* Identifies one namespace into page and adds it; its failure is no other's. */
static void ns_probe(struct nvme_ctrl *c, const struct nvme_id_ctrl *id_ctrl, uint32_t nsid,
                     struct nvme_id_ns *page)
{
	memset(page, 0, sizeof(*page));
	if (nvme_identify(c, NVME_CNS_NAMESPACE, nsid, page))
		plat_log("%sn%u: left out: cannot be identified", c->name, nsid);
	else
		ns_add(c, id_ctrl, nsid, page);
}

/* The active list holds ascending ids and ends with 0 (5.15.2.3); 1.0 has ids 1 to NN only. */
static void ns_probe_all(struct nvme_ctrl *c, const struct nvme_id_ctrl *id_ctrl, uint32_t *list,
                         struct nvme_id_ns *page)
{
	uint32_t count = PAGE_SIZE / sizeof(list[0]), last = 0;

	if (reg_read32(c, NVME_REG_VS) < NVME_VS_1_1 ||
	    nvme_identify(c, NVME_CNS_ACTIVE_LIST, 0, list)) {
		count = MIN(id_ctrl->namespace_count, NVME_NS_MAX);
		for (uint32_t i = 0; i < count; i++)
			list[i] = i + 1;
	}
	for (uint32_t i = 0; i < count && list[i] > last; i++) {
		last = list[i];
		ns_probe(c, id_ctrl, last, page);
	}
}

static int ctrl_start(struct nvme_ctrl *c)
{
	uint8_t *pages = plat_mem_alloc(3 * PAGE_SIZE, PAGE_SIZE);
	struct nvme_id_ctrl *id = (void *)pages;
	int rc;

	if (!pages)
		return -ENOMEM;
	rc = ctrl_map(c);
	if (rc)
		return rc;
	rc = ctrl_alloc(c);
	if (rc)
		return rc;
	c->has_msix = !pci_msix_init(&c->pci, &c->msix);
	rc = nvme_ctrl_up(c);
	if (!rc)
		rc = ctrl_identify(c, id);
	if (rc) {
		/* Whatever it was told of our memory, it must not use any more. */
		nvme_ctrl_disable(c);
		pci_dma_disable(&c->pci);
		return rc;
	}
	ns_probe_all(c, id, (void *)(pages + PAGE_SIZE), (void *)(pages + 2 * PAGE_SIZE));
	if (!c->ns_count)
		plat_log("%s: no namespace to use", c->name);
	return 0;
}

int nvme_probe_all(void)
{
	struct pci_dev found[NVME_CTRL_MAX];
	unsigned count = pci_find_class(PCI_CLASS_NVME, found, NVME_CTRL_MAX);

	if (count > NVME_CTRL_MAX)
		plat_log("nvme: %u controllers; the first %u are used", count, NVME_CTRL_MAX);
	ctrl_count = 0;
	for (unsigned i = 0; i < MIN(count, NVME_CTRL_MAX); i++) {
		struct nvme_ctrl *c = plat_mem_alloc(sizeof(*c), CACHE_LINE_BYTES);

		if (!c) {
			plat_log("nvme%u: no memory", i);
			break;
		}
		c->pci = found[i];
		c->log_left = LOG_LINES;
		fmt_snprintf(c->name, sizeof(c->name), "nvme%u", i);
		if (ctrl_start(c))
			plat_log("%s: left out", c->name);
		else
			ctrls[ctrl_count++] = c;
	}
	return (int)ctrl_count;
}

void nvme_irq_route(unsigned core)
{
	uint64_t address;
	uint32_t data;

	if (plat_msi(core, &address, &data))
		return;
	for (unsigned i = 0; i < ctrl_count; i++) {
		struct nvme_ctrl *c = ctrls[i];

		if (!c->has_msix || pci_msix_route(&c->msix, 0, address, data))
			continue;
		for (uint32_t n = 0; n < c->ns_count; n++)
			c->ns[n].dev.ops = &nvme_bio_ops_irq;
	}
}

static void ctrl_shutdown(struct nvme_ctrl *c)
{
	uint64_t deadline_tsc = plat_tsc() + plat_tsc_hz() / 1000000 * SHUTDOWN_US;
	uint32_t csts;

	reg_write32(c, NVME_REG_CC,
	            (reg_read32(c, NVME_REG_CC) & ~NVME_CC_SHN_MASK) | NVME_CC_SHN_NORMAL);
	do {
		csts = nvme_csts_read(c);
		if ((csts & NVME_CSTS_SHST_MASK) == NVME_CSTS_SHST_DONE || csts == NVME_CSTS_GONE)
			return;
		plat_relax();
	} while (plat_tsc() < deadline_tsc);
	plat_log("%s: does not shut down", c->name);
}

void nvme_shutdown_all(void)
{
	for (unsigned i = 0; i < ctrl_count; i++)
		if (!ctrls[i]->dead)
			ctrl_shutdown(ctrls[i]);
}
