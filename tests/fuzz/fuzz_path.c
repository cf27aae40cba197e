/*
 * The whole path in virtual time: a guest's driver, ring, block device, loop, NVMe driver and a
 * controller; the input's bytes are what guest, clock, controller and configuration do, between
 * passes, while the loop sleeps, and in the middle of a pass.
 *
 * What holds: each request comes back exactly once, and a read that succeeds brings what was last
 * written; the loop never sleeps over work that nobody will tell it of, nor over an interrupt that
 * it owes; command ids are conserved and the controller has nothing to object to; the used index
 * never passes the available one; redzones stay; a queue that was let go is touched no more.
 */
#include "tests/fuzz/fuzz.h"

#include "drivers/nvme/nvme.h"
#include "drivers/source.h"
#include "tests/fake/nvme_model.h"
#include "tests/fake/pci_model.h"
#include "tests/fake/platform.h"
#include "tests/fake/virtio_cases.h"
#include "virtio/blk.h"

const char fuzz_name[] = "path";
const unsigned fuzz_rounds = 800;

#define QUEUES         2u
#define QUEUE_SIZE     16u
#define SLOTS          8u /* requests with data under way on one queue */
#define DATA_BYTES     4096u
#define REGIONS        16u
#define REGION_SECTORS 32u
#define SECTORS        (REGIONS * REGION_SECTORS)
#define PIECE          (256 * KIB)
#define UNKNOWN        0x100u
#define US             1000ull

/* First byte: */
#define WITH_4K       BIT(0)
#define WITH_NO_MSIX  BIT(1)
#define WITH_NO_EVENT BIT(2)
#define WITH_NO_FLUSH BIT(3)
#define WITH_COALESCE BIT(4)
#define WITH_SMALL    BIT(5) /* a controller with queues of four entries */
#define WITH_NO_CACHE BIT(6)
/* Second byte: how queues are polled at first, two bits each; then how often others act in the
 * middle of a pass, two bits. */

enum step {
	STEP_READ,   /* queue, region, place, sectors */
	STEP_WRITE,  /* the same */
	STEP_FLUSH,  /* queue */
	STEP_ZERO,   /* queue, region, place, sectors: discard or write zeroes */
	STEP_CASE,   /* queue, which */
	STEP_KICK,   /* queue: notifies if it must */
	STEP_REAP,   /* queue: takes what came back */
	STEP_IRQ,    /* queue: wants an interrupt for what comes next */
	STEP_NO_IRQ, /* queue */
	STEP_TIME,   /* how much */
	STEP_DEVICE, /* how many commands it executes */
	STEP_HOLD,   /* it executes nothing by itself, or as before */
	STEP_ORDER,  /* in any order, or in order */
	STEP_FAULT,  /* in how many commands, what, 16 bits */
	STEP_POLL,   /* queue, how it is polled from now on */
	STEP_DETACH, /* queue */
	STEP_ATTACH, /* queue */
	STEP_COUNT,
};

static const uint64_t poll_ns[] = {IOQ_POLL_AUTO, 0, 20 * US, IOQ_POLL_ALWAYS};

size_t fuzz_seed(unsigned index, uint8_t *out)
{
	struct fuzz_out o = {out, 0};

	switch (index) {
	case 0: /* depth 1, the guest waits for each */
		FUZZ_PUT(&o, 0, 0);
		for (unsigned i = 0; i < 12; i++)
			FUZZ_PUT(&o, STEP_IRQ, 0, STEP_WRITE, 0, 3, 1, 4, STEP_KICK, 0, STEP_DEVICE,
			         1, STEP_TIME, 1, STEP_REAP, 0, STEP_READ, 0, 3, 1, 4, STEP_KICK, 0,
			         STEP_REAP, 0);
		break;
	case 1: /* two queues, depth, no polling; publishing and notifying apart */
		FUZZ_PUT(&o, 0, 0x05);
		for (unsigned i = 0; i < 8; i++)
			FUZZ_PUT(&o, STEP_READ, 0, 4, 0, 1, STEP_READ, 0, 5, 0, 8, STEP_WRITE, 1, 6,
			         0, 8, STEP_KICK, 0, STEP_TIME, 2, STEP_KICK, 1, STEP_REAP, 0,
			         STEP_REAP, 1);
		break;
	case 2: /* long silence, then a request */
		FUZZ_PUT(&o, 0x10, 0x12, STEP_WRITE, 0, 3, 0, 8, STEP_KICK, 0, STEP_TIME, 4,
		         STEP_TIME, 5);
		FUZZ_PUT(&o, STEP_IRQ, 0, STEP_REAP, 0, STEP_READ, 0, 3, 0, 8, STEP_KICK, 0,
		         STEP_TIME, 5);
		break;
	case 3: /* errors, a lost command, a reset of the controller */
		FUZZ_PUT(&o, 0, 0, STEP_FAULT, 0, 0, 0x81, 0, STEP_FAULT, 2, 1, 0, 0, STEP_WRITE, 0,
		         3, 0, 8);
		FUZZ_PUT(&o, STEP_WRITE, 0, 4, 0, 8, STEP_READ, 1, 5, 0, 8, STEP_KICK, 0, STEP_KICK,
		         1);
		for (unsigned i = 0; i < 14; i++)
			FUZZ_PUT(&o, STEP_TIME, 6);
		FUZZ_PUT(&o, STEP_REAP, 0, STEP_REAP, 1, STEP_READ, 0, 3, 0, 8, STEP_KICK, 0);
		break;
	case 4: /* a guest resets with requests under way */
		FUZZ_PUT(&o, 0x24, 0, STEP_HOLD, STEP_WRITE, 0, 3, 0, 8, STEP_READ, 0, 4, 0, 8,
		         STEP_KICK, 0);
		FUZZ_PUT(&o, STEP_TIME, 2, STEP_DETACH, 0, STEP_TIME, 2, STEP_ATTACH, 0, STEP_HOLD);
		FUZZ_PUT(&o, STEP_TIME, 2, STEP_ATTACH, 0, STEP_READ, 0, 3, 0, 8, STEP_KICK, 0,
		         STEP_TIME, 3);
		break;
	case 5: /* policies change under load */
		FUZZ_PUT(&o, 0x08, 0x30);
		for (unsigned i = 0; i < 6; i++)
			FUZZ_PUT(&o, STEP_WRITE, 0, 3, 0, 8, STEP_WRITE, 1, 4, 0, 8, STEP_KICK, 0,
			         STEP_POLL, 0, 1, STEP_POLL, 1, 3, STEP_KICK, 1, STEP_TIME, 2,
			         STEP_POLL, 0, 0, STEP_POLL, 1, 1, STEP_REAP, 0, STEP_REAP, 1);
		break;
	case 6: /* a full controller that answers in any order; everything named */
		FUZZ_PUT(&o, 0x20, 0x08, STEP_ORDER);
		for (unsigned i = 0; i + 3 < vguest_case_count; i++) {
			FUZZ_PUT(&o, STEP_CASE, 0);
			fuzz_put(&o, i, 1);
			FUZZ_PUT(&o, STEP_KICK, 0, STEP_READ, 1, 5, 0, 8, STEP_KICK, 1, STEP_REAP,
			         0, STEP_REAP, 1);
		}
		break;
	case 7: /* a controller without interrupts; then it is gone */
		FUZZ_PUT(&o, 0x42, 0, STEP_READ, 0, 3, 0, 8, STEP_KICK, 0, STEP_TIME, 1, STEP_FAULT,
		         1, 5, 0, 0);
		FUZZ_PUT(&o, STEP_WRITE, 0, 3, 0, 8, STEP_ZERO, 1, 4, 0, 8, STEP_FLUSH, 1,
		         STEP_KICK, 0);
		FUZZ_PUT(&o, STEP_KICK, 1, STEP_TIME, 6, STEP_TIME, 6, STEP_TIME, 6);
		break;
	default: return 0;
	}
	return o.len_bytes;
}

/* --- state ------------------------------------------------------------------------------------ */

struct slot {
	bool busy;
	int head;
	uint32_t type;
	unsigned region;
	uint64_t sector, sectors;
	uint16_t value; /* of each byte written */
	struct vguest_io io;
};

struct queue {
	struct vguest_queue drv;
	unsigned owed[QUEUE_SIZE], owed_count;
	bool broken;    /* by a named case: it needs a reset */
	bool unkicked;  /* published, and the driver has not come to ask whether to notify */
	bool waits;     /* wants an interrupt at the next used element */
	bool signalled; /* since it last looked */
	bool resetting, detached;
	struct vguest_io case_io;
	struct slot slot[SLOTS];
};

static struct vguest guest;
static struct nvme_model model;
static struct vblk *blk;
static struct ioloop loop;
static struct bio_dev *disk;
static struct bio_ops real_ops, our_ops;
static struct queue queues[QUEUES];
static uint16_t content[SECTORS]; /* byte that fills each sector, or UNKNOWN */
static unsigned region_readers[REGIONS], region_writers[REGIONS];
static uint16_t next_value;
static struct fuzz_in in;
static unsigned inside; /* calls of the NVMe driver under way */
static unsigned meddle_mask, meddle_count;
static unsigned idle_polls; /* of the controller since the last step */
static bool asleep, over;
static uint64_t irqs_seen;
static uint64_t features;

static struct vblk_queue *vq_of(struct queue *q)
{
	return &blk->queue[q - queues];
}

/* --- what holds ------------------------------------------------------------------------------- */

static void ids_check(void)
{
	struct nvme_pair *pair = CONTAINER_OF(disk, struct nvme_ns, dev)->pair;
	unsigned busy = 0;

	for (uint32_t i = 0; i < pair->ring.depth; i++)
		busy += pair->cmd[i].bio != NULL;
	FUZZ_EQ(busy + pair->free_count, pair->ring.depth - 1);
}

static void queue_check(struct queue *q)
{
	struct vblk_queue *vq = vq_of(q);
	unsigned free = 0;

	for (const struct vblk_req *r = vq->free; r; r = r->next)
		FUZZ_CHECK(++free <= QUEUE_SIZE);
	FUZZ_EQ(free + vq->in_flight, QUEUE_SIZE);
	if (q->detached)
		return;
	FUZZ_CHECK(q->broken ||
	           (uint16_t)(q->drv.avail_idx - vguest_used_idx(&q->drv)) <= QUEUE_SIZE);
}

static void state_check(void)
{
	ids_check();
	for (unsigned i = 0; i < QUEUES; i++)
		queue_check(&queues[i]);
	FUZZ_EQ(vguest_zone_damaged(&guest), 0);
	FUZZ_EQ(model.violations, 0);
}

static bool is_served(struct queue *q)
{
	enum ioq_state state = vq_of(q)->ioq.state;

	return state != IOQ_UNATTACHED && state != IOQ_DRAINING && !vq_of(q)->vq.broken;
}

/* Nobody is about to wake the loop but drivers that have published and not yet asked whether to
 * notify: whatever else waits now would wait for ever. */
static void asleep_check(void)
{
	FUZZ_CHECK(!loop.deferred_list && !loop.completed_list);
	for (unsigned i = 0; i < QUEUES; i++) {
		struct queue *q = &queues[i];
		struct vblk_queue *vq = vq_of(q);

		if (!is_served(q))
			continue;
		FUZZ_CHECK(vq->vq.armed && !vq->held && !vq->unflushed);
		FUZZ_CHECK(!ring_pending(&vq->vq) || q->unkicked);
		FUZZ_EQ(vq->vq.used_idx, vq->vq.used_published);
		if (q->waits && vguest_used_idx(&q->drv) != q->drv.used_idx)
			FUZZ_CHECK(q->signalled);
	}
}

/* --- the guest -------------------------------------------------------------------------------- */

static void region_take(struct slot *s, int by)
{
	if (s->type == VIRTIO_BLK_T_IN)
		region_readers[s->region] += by;
	else if (s->type != VIRTIO_BLK_T_FLUSH)
		region_writers[s->region] += by;
}

static void content_set(const struct slot *s, uint16_t value)
{
	if (s->type == VIRTIO_BLK_T_IN || s->type == VIRTIO_BLK_T_FLUSH)
		return;
	for (uint64_t i = 0; i < s->sectors; i++)
		content[s->sector + i] = value;
}

static void data_check(const struct slot *s)
{
	const uint8_t *data = vguest_va(&guest, s->io.data_gpa);

	for (uint64_t i = 0; i < s->sectors; i++)
		for (unsigned n = 0; content[s->sector + i] != UNKNOWN && n < 512; n++)
			FUZZ_EQ(data[i * 512 + n], content[s->sector + i]);
}

static void slot_finish(struct queue *q, struct slot *s, uint32_t len_bytes)
{
	uint8_t status = *(uint8_t *)vguest_va(&guest, s->io.status_gpa);
	bool ok = status == VIRTIO_BLK_S_OK;

	(void)q;
	FUZZ_CHECK(status <= VIRTIO_BLK_S_UNSUPP);
	FUZZ_EQ(len_bytes, 1 + (ok && s->type == VIRTIO_BLK_T_IN ? s->sectors * 512 : 0));
	if (ok && s->type == VIRTIO_BLK_T_IN)
		data_check(s);
	content_set(s, ok ? s->value : UNKNOWN);
	region_take(s, -1);
	s->busy = false;
}

static void reap(struct queue *q)
{
	uint32_t head, len_bytes;

	if (q->resetting || q->detached)
		return;
	q->signalled = false;
	while (vguest_used_pop(&q->drv, &head, &len_bytes)) {
		if (q->drv.event_idx)
			q->waits = false; /* it asked for one element */
		FUZZ_CHECK(head < QUEUE_SIZE && q->owed[head] == 1);
		q->owed[head] = 0;
		q->owed_count--;
		for (unsigned i = 0; i < SLOTS; i++)
			if (q->slot[i].busy && q->slot[i].head == (int)head)
				slot_finish(q, &q->slot[i], len_bytes);
	}
}

static void published(struct queue *q, int head)
{
	FUZZ_CHECK(q->owed[head] == 0);
	q->owed[head] = 1;
	q->owed_count++;
	q->unkicked = true;
}

static struct slot *slot_find(struct queue *q)
{
	for (unsigned i = 0; i < SLOTS; i++)
		if (!q->slot[i].busy)
			return &q->slot[i];
	return NULL;
}

static bool region_free(unsigned region, uint32_t type)
{
	if (type == VIRTIO_BLK_T_FLUSH)
		return true;
	return !region_writers[region] && (type == VIRTIO_BLK_T_IN || !region_readers[region]);
}

static int request_build(struct queue *q, struct slot *s)
{
	bool range = s->type == VIRTIO_BLK_T_DISCARD || s->type == VIRTIO_BLK_T_WRITE_ZEROES;
	struct virtio_blk_hdr hdr = {s->type, 0, range ? 0 : s->sector};
	struct virtio_blk_range r = {s->sector, (uint32_t)s->sectors, 0};
	uint8_t *data = vguest_va(&guest, s->io.data_gpa);
	struct vguest_buf bufs[4] = {{s->io.hdr_gpa, 16, false}};
	uint32_t len_bytes = range ? 16 : (uint32_t)s->sectors * 512;
	uint32_t cut = s->value % 3 == 0 ? 200 : 0; /* sometimes in two pieces */
	unsigned n = 1;

	memcpy(vguest_va(&guest, s->io.hdr_gpa), &hdr, sizeof(hdr));
	*(uint8_t *)vguest_va(&guest, s->io.status_gpa) = 0xee;
	if (range)
		memcpy(data, &r, sizeof(r));
	else
		memset(data, s->type == VIRTIO_BLK_T_OUT ? s->value : 0xdd, DATA_BYTES);
	if (s->type != VIRTIO_BLK_T_FLUSH && len_bytes) {
		bool writes = s->type == VIRTIO_BLK_T_IN;

		if (range)
			cut = 0;
		if (cut)
			bufs[n++] = (struct vguest_buf){s->io.data_gpa, cut, writes};
		bufs[n++] = (struct vguest_buf){s->io.data_gpa + cut, len_bytes - cut, writes};
	}
	bufs[n++] = (struct vguest_buf){s->io.status_gpa, 1, true};
	return s->value % 2 ? vguest_add_indirect(&q->drv, bufs, n) : vguest_add(&q->drv, bufs, n);
}

static void request(struct queue *q, uint32_t type)
{
	struct slot *s = slot_find(q);
	unsigned region = 2, place = 0, sectors = 0;

	if (type != VIRTIO_BLK_T_FLUSH) {
		region = 2 + fuzz_below(&in, REGIONS - 3);
		place = fuzz_below(&in, REGION_SECTORS - 8);
		sectors = 1 + fuzz_below(&in, 8);
	}
	if (disk->block_bytes == 4096) {
		place = ALIGN_DOWN(place, 8u);
		sectors = 8;
	}
	if (!s || q->resetting || q->detached || q->broken || !region_free(region, type))
		return;
	s->type = type;
	s->region = region;
	s->sector = region * REGION_SECTORS + place;
	s->sectors = type == VIRTIO_BLK_T_FLUSH ? 0 : sectors;
	s->value = (uint16_t)(++next_value & 0xff);
	s->head = request_build(q, s);
	if (s->head < 0)
		return;
	/* A discard leaves what it likes. */
	if (type == VIRTIO_BLK_T_DISCARD)
		s->value = UNKNOWN;
	else if (type == VIRTIO_BLK_T_WRITE_ZEROES)
		s->value = 0;
	s->busy = true;
	region_take(s, 1);
	vguest_publish(&q->drv, (uint16_t)s->head);
	published(q, s->head);
}

static void case_publish(struct queue *q)
{
	const struct vguest_case *c = &vguest_cases[fuzz_below(&in, vguest_case_count)];
	int head;

	if (q->resetting || q->detached || q->broken)
		return;
	/* The ones that break the ring do so for certain only when it is empty. */
	if (!c->build && q->owed_count)
		return;
	head = vguest_case_publish(c, &q->drv, &q->case_io);
	if (head < 0)
		return;
	q->broken = !c->build;
	q->unkicked = true;
	if (c->build)
		published(q, head);
}

static void kick(struct queue *q)
{
	if (q->resetting || q->detached || !q->unkicked)
		return;
	q->unkicked = false;
	if (vguest_kick_needed(&q->drv))
		ioloop_kick(&vq_of(q)->ioq);
	/* Having asked, the driver goes away: from here on it is the loop's to know. */
	if (asleep && is_served(q) && ring_pending(&vq_of(q)->vq))
		FUZZ_CHECK(atomic_load(&loop.wake));
}

static void irq_want(struct queue *q)
{
	if (q->resetting || q->detached)
		return;
	vguest_irq_on(&q->drv);
	/* What came before it asked, it finds by looking once more. */
	q->waits = vguest_used_idx(&q->drv) == q->drv.used_idx;
	q->signalled = false;
}

static void irq_refuse(struct queue *q)
{
	if (q->resetting || q->detached)
		return;
	vguest_irq_off(&q->drv);
	q->waits = false;
}

/* --- attach and detach ------------------------------------------------------------------------ */

static void buffers_mark(struct queue *q, uint8_t byte)
{
	for (unsigned i = 0; i < SLOTS; i++)
		memset(vguest_va(&guest, q->slot[i].io.data_gpa), byte, DATA_BYTES);
	memset(vguest_va(&guest, q->drv.used_gpa), byte, VIRTQ_USED_BYTES(QUEUE_SIZE));
}

static void buffers_check(struct queue *q, uint8_t byte)
{
	const uint8_t *used = vguest_va(&guest, q->drv.used_gpa);

	for (unsigned i = 0; i < SLOTS; i++)
		for (unsigned n = 0; n < DATA_BYTES; n++)
			FUZZ_EQ(((uint8_t *)vguest_va(&guest, q->slot[i].io.data_gpa))[n], byte);
	for (unsigned n = 0; n < VIRTQ_USED_BYTES(QUEUE_SIZE); n++)
		FUZZ_EQ(used[n], byte);
}

static void detach(struct queue *q)
{
	if (q->resetting || q->detached)
		return;
	q->resetting = true;
	ioloop_detach(&vq_of(q)->ioq);
}

/* Once the loop has let go, the guest's pages are other data. */
static void detach_finish(struct queue *q)
{
	if (!q->resetting || ioq_is_attached(&vq_of(q)->ioq))
		return;
	FUZZ_EQ(vq_of(q)->in_flight, 0);
	for (unsigned i = 0; i < SLOTS; i++) {
		struct slot *s = &q->slot[i];

		if (!s->busy)
			continue;
		content_set(s, UNKNOWN);
		region_take(s, -1);
		s->busy = false;
	}
	memset(q->owed, 0, sizeof(q->owed));
	q->owed_count = 0;
	q->resetting = q->broken = q->unkicked = q->waits = q->signalled = false;
	q->detached = true;
	buffers_mark(q, 0xbb);
}

static void ring_make(struct queue *q)
{
	if (q->drv.size)
		vguest_queue_empty(&q->drv);
	else
		vguest_queue_init(&q->drv, &guest, QUEUE_SIZE, features & VIRTIO_F_EVENT_IDX, true);
	vq_of(q)->setup = (struct vblk_queue_setup){QUEUE_SIZE, q->drv.desc_gpa, q->drv.avail_gpa,
	                                            q->drv.used_gpa};
}

static void attach(struct queue *q)
{
	detach_finish(q);
	if (!q->detached)
		return;
	buffers_check(q, 0xbb);
	q->detached = false;
	ring_make(q);
	ioloop_attach(&vq_of(q)->ioq);
}

/* --- clock, controller, configuration --------------------------------------------------------- */

static void time_pass(void)
{
	static const uint64_t ns[] = {1 * US,    10 * US,    60 * US,     300 * US,
	                              2000 * US, 12000 * US, 1100000 * US};

	fake_tsc += ns[fuzz_below(&in, ARRAY_LEN(ns))];
}

static void device_step(void)
{
	bool hold = model.hold;

	model.per_step = 1 + fuzz_below(&in, 8);
	model.hold = false;
	nvme_model_step();
	model.hold = hold;
	model.per_step = 0;
}

static void fault_plan(void)
{
	struct nvme_model_plan *plan = &model.plan[model.plan_count % NVME_MODEL_PLAN_MAX];

	plan->at = model.io_commands + fuzz_below(&in, 16);
	plan->act = fuzz_below(&in, NVME_MODEL_RESET + 1);
	plan->value = fuzz_u16(&in);
	if (plan->act == NVME_MODEL_ERROR)
		plan->value = plan->value & 0x7ff ? plan->value & 0x7ff : 6;
	/* A wrong id that happens to be another command's is no lie that can be found out. */
	if (plan->act == NVME_MODEL_WRONG_CID)
		plan->value |= 0x8000;
	if (model.plan_count < NVME_MODEL_PLAN_MAX)
		model.plan_count++;
}

static struct queue *queue_pick(void)
{
	struct queue *q = &queues[fuzz_below(&in, QUEUES)];

	detach_finish(q);
	return q;
}

static void step(void)
{
	struct queue *q;

	switch (fuzz_below(&in, STEP_COUNT)) {
	case STEP_READ: request(queue_pick(), VIRTIO_BLK_T_IN); break;
	case STEP_WRITE: request(queue_pick(), VIRTIO_BLK_T_OUT); break;
	case STEP_FLUSH: request(queue_pick(), VIRTIO_BLK_T_FLUSH); break;
	case STEP_ZERO:
		q = queue_pick();
		request(q, next_value % 2 ? VIRTIO_BLK_T_DISCARD : VIRTIO_BLK_T_WRITE_ZEROES);
		break;
	case STEP_CASE: case_publish(queue_pick()); break;
	case STEP_KICK: kick(queue_pick()); break;
	case STEP_REAP: reap(queue_pick()); break;
	case STEP_IRQ: irq_want(queue_pick()); break;
	case STEP_NO_IRQ: irq_refuse(queue_pick()); break;
	case STEP_TIME: time_pass(); break;
	case STEP_DEVICE: device_step(); break;
	case STEP_HOLD: model.hold = !model.hold; break;
	case STEP_ORDER: model.reorder = !model.reorder; break;
	case STEP_FAULT: fault_plan(); break;
	case STEP_POLL:
		q = queue_pick();
		ioloop_poll_set(&vq_of(q)->ioq, poll_ns[fuzz_below(&in, ARRAY_LEN(poll_ns))]);
		break;
	case STEP_DETACH: detach(queue_pick()); break;
	case STEP_ATTACH: attach(queue_pick()); break;
	}
}

/* Others act while a pass is under way: the guest's cores and the controller do not wait for it. */
static void meddle(void)
{
	if (!over && !(++meddle_count & meddle_mask) && fuzz_more(&in)) {
		step();
		idle_polls = 0;
	}
}

/* At the end of the input the loop stops once its queues have drained: the controller does all that
 * it will, and time passes. */
static void step_or_end(void)
{
	idle_polls = 0;
	if (fuzz_more(&in)) {
		step();
		return;
	}
	over = true;
	model.hold = false;
	ioloop_stop(&loop);
}

/* --- the seams -------------------------------------------------------------------------------- */

static int our_submit(struct bio_dev *dev, struct bio *bio)
{
	int rc;

	inside++;
	rc = real_ops.submit(dev, bio);
	inside--;
	return rc;
}

static void our_commit(struct bio_dev *dev)
{
	inside++;
	real_ops.commit(dev);
	inside--;
	meddle();
}

static unsigned our_poll(struct bio_dev *dev, unsigned budget)
{
	unsigned done;

	meddle();
	/* While a request waits for a full controller there is neither an idle pass nor a sleep. */
	if (!over && ++idle_polls > 64)
		step_or_end();
	if (over)
		fake_tsc += 100000 * US;
	if (!model.hold)
		nvme_model_step();
	inside++;
	done = real_ops.poll(dev, budget);
	inside--;
	return done;
}

static bool our_irq_set(struct bio_dev *dev, bool on)
{
	bool quiet;

	if (on)
		meddle();
	inside++;
	quiet = real_ops.irq_set(dev, on);
	inside--;
	return quiet;
}

static bool on_signal(struct vblk_transport *transport, unsigned queue)
{
	(void)transport;
	FUZZ_CHECK(!queues[queue].detached);
	queues[queue].signalled = true;
	meddle();
	return true;
}

static void on_needs_reset(struct vblk_transport *transport)
{
	(void)transport;
	FUZZ_CHECK(queues[0].broken || queues[1].broken);
}

static struct vblk_transport transport = {on_signal, on_needs_reset};

/* An empty pass; or the driver waits for the controller. */
static void on_relax(void)
{
	if (inside) {
		fake_tsc += 50000 * US;
		nvme_model_step();
		return;
	}
	state_check();
	step_or_end();
	if (!model.hold)
		nvme_model_step();
}

/* Asleep: until somebody wakes it, the controller interrupts, or the time is up. An interrupt since
 * the last sleep is still pending: the loop's core keeps them off. */
static void on_wait(const atomic_uint *wake, uint64_t deadline_tsc)
{
	state_check();
	if (!atomic_load(wake) && model.interrupts == irqs_seen)
		asleep_check();
	asleep = true;
	while (!over && !atomic_load(wake) && model.interrupts == irqs_seen &&
	       fake_tsc < deadline_tsc) {
		step_or_end();
		if (!model.hold)
			nvme_model_step();
	}
	irqs_seen = model.interrupts;
	asleep = false;
}

/* --- set-up ----------------------------------------------------------------------------------- */

static void disk_make(unsigned with)
{
	struct bio_extent extent;
	char err[200];

	nvme_model_init(&model);
	model.no_msix = with & WITH_NO_MSIX;
	model.vwc = !(with & WITH_NO_CACHE);
	model.mqes = with & WITH_SMALL ? 3 : 15;
	model.mdts = with & WITH_SMALL ? 1 : 5;
	if (with & WITH_4K)
		nvme_model_ns_add(&model, 1, 12, SECTORS / 8);
	else
		nvme_model_ns_add(&model, 1, 9, SECTORS);
	nvme_model_plug(&model, 4);
	if (nvme_probe_all() != 1)
		abort();
	nvme_irq_route(0);
	if (source_open("nvme0n1", NULL, true, &extent, err, sizeof(err)))
		abort();
	disk = extent.dev;
	real_ops = *disk->ops;
	our_ops = (struct bio_ops){our_submit, our_commit, our_poll,
	                           real_ops.irq_set ? our_irq_set : NULL};
	disk->ops = &our_ops;
}

static void io_make(struct vguest_io *io, uint64_t data_bytes)
{
	io->hdr_gpa = vguest_alloc_fenced(&guest, 16, 16);
	io->data_gpa = vguest_alloc_fenced(&guest, data_bytes, 512);
	io->status_gpa = vguest_alloc_fenced(&guest, 1, 1);
	io->capacity_sectors = SECTORS;
}

static void machine_make(void)
{
	struct manifest_disk config = {.num_queues = QUEUES, .queue_size = QUEUE_SIZE};
	unsigned with = fuzz_u8(&in), modes = fuzz_u8(&in);

	fake_reset();
	fake_tsc = 1000000 * US;
	source_init();
	pci_model_init();
	disk_make(with);
	vguest_init(&guest, 2, PIECE);
	guest.fenced = true;
	memset(queues, 0, sizeof(queues));
	memset(content, 0, sizeof(content)); /* as the controller's memory */
	memset(region_readers, 0, sizeof(region_readers));
	memset(region_writers, 0, sizeof(region_writers));
	next_value = 0;
	inside = meddle_count = idle_polls = 0;
	asleep = over = false;
	meddle_mask = (1u << (modes >> 4 & 3) * 2) - 1;
	irqs_seen = 0;
	config.coalesce = with & WITH_COALESCE;
	blk = plat_mem_alloc(sizeof(*blk), CACHE_LINE_BYTES);
	if (vblk_create(blk, &config, (struct bio_extent){disk, 0, SECTORS}, &guest.mem, "s"))
		abort();
	blk->transport = &transport;
	features = blk->features_offered;
	features &= with & WITH_NO_EVENT ? ~VIRTIO_F_EVENT_IDX : ~0ull;
	features &= with & WITH_NO_FLUSH ? ~VIRTIO_BLK_F_FLUSH : ~0ull;
	blk->features = features;
	ioloop_init(&loop, 0);
	ioloop_dev_add(&loop, disk);
	for (unsigned i = 0; i < QUEUES; i++) {
		struct queue *q = &queues[i];

		io_make(&q->case_io, VGUEST_IO_DATA_BYTES);
		for (unsigned n = 0; n < SLOTS; n++)
			io_make(&q->slot[n].io, DATA_BYTES);
		ring_make(q);
		vq_of(q)->ioq.poll_ns = poll_ns[modes >> 2 * i & 3];
		ioloop_queue_add(&loop, &vq_of(q)->ioq);
		ioloop_attach(&vq_of(q)->ioq);
	}
	fake_relax = on_relax;
	fake_wait = on_wait;
}

/* --- the end ---------------------------------------------------------------------------------- */

/* The guest asks for what it has not yet asked for; then everything that may take time gets it. */
static void finish(void)
{
	unsigned owed = 1;

	over = true;
	model.hold = false;
	model.per_step = 0;
	for (unsigned i = 0; i < QUEUES; i++)
		kick(&queues[i]);
	for (unsigned n = 0; n < 40 && owed; n++) {
		for (unsigned i = 0; i < (n ? NVME_CHECK_POLLS : 0) + 40; i++) {
			fake_tsc += 5 * US;
			ioloop_pass(&loop);
		}
		fake_tsc += 1100000 * US; /* for a command that nobody answers */
		owed = 0;
		for (unsigned i = 0; i < QUEUES; i++) {
			detach_finish(&queues[i]);
			reap(&queues[i]);
			owed += queues[i].broken ? 0 : queues[i].owed_count;
			owed += queues[i].resetting;
		}
	}
	FUZZ_EQ(owed, 0);
	FUZZ_EQ(disk->in_flight, 0);
	state_check();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	in = (struct fuzz_in){data, data + len_bytes};
	machine_make();
	atomic_store(&loop.stop, 0);
	ioloop_run(&loop);
	finish();
	nvme_model_unplug_all();
	vguest_free(&guest);
	return 0;
}
