/*
 * Split ring and block device over a disk in memory: descriptors, tables and headers of any value,
 * any head published any number of times, a disk that stalls, fails or is full. Each head comes
 * back as often as it was published and no more, the used index never passes the available one, memory
 * around the rings stays as it was, and nothing outside guest memory is touched.
 */
#include "tests/fuzz/fuzz.h"

#include "tests/fake/bio_fake.h"
#include "tests/fake/platform.h"
#include "tests/fake/virtio_cases.h"
#include "virtio/blk.h"

const char fuzz_name[] = "ring";
const unsigned fuzz_rounds = 2000;

#define PIECE   (64 * KIB)
#define SECTORS 256u
#define BUFFERS 8u

/* First byte: log2 of the ring's size less 1. Second: */
#define WITH_EVENT_IDX BIT(0)
#define WITH_INDIRECT  BIT(1)
#define WITH_READ_ONLY BIT(2)
#define WITH_4K        BIT(3)
#define WITH_BARE      BIT(4)
#define WITH_NO_FLUSH  BIT(5)
#define WITH_COALESCE  BIT(6)
#define WITH_POLLING   BIT(7)

enum step {
	STEP_DESC,    /* index, where, length's index, flags, next */
	STEP_TABLE,   /* index in the one indirect table, then as before */
	STEP_WILD,    /* index, 64 bits of address, 32 of length, flags, next */
	STEP_HEADER,  /* buffer, type's index, sector's index */
	STEP_PUBLISH, /* head */
	STEP_CASE,    /* which */
	STEP_JUMP,    /* avail.idx moves by 16 bits */
	STEP_PASS,    /* how many */
	STEP_KICK,
	STEP_HOLD,
	STEP_STATUS, /* of what the disk completes from now on */
	STEP_ROOM,   /* how many requests the disk takes */
	STEP_RESET,
	STEP_EVENT, /* used_event, or the flag */
	STEP_COUNT,
};

static const uint32_t lengths[] = {0,       1,          8,          15,        16,   17,
                                   32,      511,        512,        513,       1024, 4096,
                                   0x10000, 0x7fffffff, 0x80000000, 0xffffffff};
static const uint32_t types[] = {VIRTIO_BLK_T_IN,
                                 VIRTIO_BLK_T_OUT,
                                 VIRTIO_BLK_T_FLUSH,
                                 VIRTIO_BLK_T_GET_ID,
                                 VIRTIO_BLK_T_DISCARD,
                                 VIRTIO_BLK_T_WRITE_ZEROES,
                                 2,
                                 0xffffffff};
static const uint64_t sectors[] = {0,       1,           8,          SECTORS - 1, SECTORS - 8,
                                   SECTORS, SECTORS + 1, 1ull << 55, UINT64_MAX,  UINT64_MAX - 7};

size_t fuzz_seed(unsigned index, uint8_t *out)
{
	static const uint8_t shape[] = {0x43, 0x00, 0x83, 0x87, 0x8b, 0x93, 0xa1, 0xc3, 0x02};
	struct fuzz_out o = {out, 0};

	if (index < ARRAY_LEN(shape)) { /* every named case in a row */
		fuzz_put(&o, 3, 1);
		fuzz_put(&o, shape[index], 1);
		for (unsigned i = 0; i + 3 < vguest_case_count; i++) {
			fuzz_put(&o, STEP_CASE, 1);
			fuzz_put(&o, i, 1);
			FUZZ_PUT(&o, STEP_KICK, STEP_PASS, 3);
		}
		return o.len_bytes;
	}
	switch (index - ARRAY_LEN(shape)) {
	case 0: /* a chain by hand: header, data, status; twice, and once again while it is held */
		FUZZ_PUT(&o, 2, 0x81, STEP_HEADER, 0, 0, 1, STEP_DESC, 0, 0, 4, 1, 1);
		FUZZ_PUT(&o, STEP_DESC, 1, 1, 8, 3, 2, STEP_DESC, 2, 2, 1, 2, 0, STEP_PUBLISH, 0);
		FUZZ_PUT(&o, STEP_PUBLISH, 0, STEP_KICK, STEP_PASS, 2, STEP_HOLD, STEP_PUBLISH, 0);
		FUZZ_PUT(&o, STEP_PASS, 2, STEP_RESET, STEP_PASS, 2);
		break;
	case 1: /* the same through a table, header in two halves */
		FUZZ_PUT(&o, 3, 0x82, STEP_HEADER, 0, 1, 2, STEP_TABLE, 0, 0, 2, 1, 1);
		FUZZ_PUT(&o, STEP_TABLE, 1, 0x10, 2, 1, 2, STEP_TABLE, 2, 1, 8, 1, 3);
		FUZZ_PUT(&o, STEP_TABLE, 3, 2, 1, 2, 0, STEP_DESC, 5, 15, 9, 4, 0, STEP_PUBLISH, 5);
		FUZZ_PUT(&o, STEP_KICK, STEP_PASS, 3);
		break;
	case 2: /* a disk that is full, then fails */
		FUZZ_PUT(&o, 4, 0x41, STEP_ROOM, 1, STEP_CASE, 0, STEP_CASE, 1, STEP_CASE, 2,
		         STEP_KICK);
		FUZZ_PUT(&o, STEP_PASS, 7, STEP_STATUS, 1, STEP_CASE, 0, STEP_PASS, 3, STEP_ROOM,
		         0);
		FUZZ_PUT(&o, STEP_CASE, 1, STEP_PASS, 2, STEP_RESET, STEP_CASE, 0, STEP_PASS, 3);
		break;
	case 3: /* descriptors from nowhere */
		FUZZ_PUT(&o, 2, 0x83, STEP_WILD, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff);
		FUZZ_PUT(&o, 0xff, 0xff, 0, 0, 3, 1, STEP_PUBLISH, 0, STEP_KICK, STEP_PASS, 2);
		FUZZ_PUT(&o, STEP_JUMP, 0xff, 0xff, STEP_PASS, 2, STEP_RESET, STEP_CASE, 0,
		         STEP_KICK);
		break;
	default: return 0;
	}
	return o.len_bytes;
}

/* --- the machine ------------------------------------------------------------------------------ */

static struct vguest guest;
static struct vguest_queue drv;
static struct bio_fake disk;
static struct vblk *blk;
static struct ioloop loop;
static struct vguest_io io;
static gpa_t buffer_gpa[BUFFERS], table_gpa;
static bool wild;                     /* a descriptor may name any guest memory */
static unsigned owed[VIRTQ_SIZE_MAX]; /* times a head was published and has not come back */
static uint16_t shape_size;
static uint64_t features;

static bool on_signal(struct vblk_transport *transport, unsigned queue)
{
	(void)transport;
	FUZZ_EQ(queue, 0);
	return true;
}

static void on_needs_reset(struct vblk_transport *transport)
{
	(void)transport;
	FUZZ_CHECK(blk->queue[0].vq.broken);
}

static struct vblk_transport transport = {on_signal, on_needs_reset};

static void attach(void)
{
	struct vblk_queue *q = &blk->queue[0];

	vguest_queue_empty(&drv);
	memset(owed, 0, sizeof(owed));
	q->setup = (struct vblk_queue_setup){drv.size, drv.desc_gpa, drv.avail_gpa, drv.used_gpa};
	ioloop_attach(&q->ioq);
	ioloop_pass(&loop);
	FUZZ_CHECK(ioq_is_attached(&q->ioq) && !q->vq.broken);
}

static void machine_make(struct fuzz_in *in)
{
	struct manifest_disk config = {.num_queues = 1};
	unsigned with;

	fake_reset();
	fake_tsc = 1000000000;
	wild = false;
	shape_size = (uint16_t)(2u << fuzz_below(in, 6));
	with = fuzz_u8(in);
	vguest_init(&guest, 2, PIECE);
	guest.fenced = true;
	bio_fake_init(&disk, SECTORS, with & WITH_4K ? 4096 : 512);
	disk.dev.has_discard = disk.dev.has_write_zeroes = !(with & WITH_BARE);
	config.queue_size = shape_size;
	config.readonly = with & WITH_READ_ONLY;
	config.coalesce = with & WITH_COALESCE;
	blk = plat_mem_alloc(sizeof(*blk), CACHE_LINE_BYTES);
	if (vblk_create(blk, &config, (struct bio_extent){&disk.dev, 0, SECTORS}, &guest.mem, "s"))
		abort();
	blk->transport = &transport;
	features = blk->features_offered;
	features &= with & WITH_EVENT_IDX ? ~0ull : ~VIRTIO_F_EVENT_IDX;
	features &= with & WITH_INDIRECT ? ~0ull : ~VIRTIO_F_INDIRECT_DESC;
	features &= with & WITH_NO_FLUSH ? ~VIRTIO_BLK_F_FLUSH : ~0ull;
	blk->features = features;
	io.hdr_gpa = vguest_alloc_fenced(&guest, 16, 16);
	io.data_gpa = vguest_alloc_fenced(&guest, VGUEST_IO_DATA_BYTES, 512);
	io.status_gpa = vguest_alloc_fenced(&guest, 1, 1);
	io.capacity_sectors = SECTORS;
	table_gpa = vguest_alloc(&guest, VGUEST_INDIRECT_MAX * 16, 16);
	for (unsigned i = 0; i < BUFFERS; i++)
		buffer_gpa[i] = vguest_alloc_fenced(&guest, i < 3 ? 16 : 1024, 16);
	vguest_queue_init(&drv, &guest, shape_size, features & VIRTIO_F_EVENT_IDX, false);
	ioloop_init(&loop, 0);
	ioloop_dev_add(&loop, &disk.dev);
	blk->queue[0].ioq.poll_ns = with & WITH_POLLING ? IOQ_POLL_AUTO : 0;
	ioloop_queue_add(&loop, &blk->queue[0].ioq);
	attach();
}

static void machine_drop(void)
{
	bio_fake_free(&disk);
	vguest_free(&guest);
}

/* --- what holds ------------------------------------------------------------------------------- */

/* Takes what came back, and holds it against what was published. */
static void used_take(void)
{
	const struct virtq_used *used = vguest_va(&guest, drv.used_gpa);

	FUZZ_CHECK((uint16_t)(vguest_used_idx(&drv) - drv.used_idx) <= drv.size || wild);
	while (vguest_used_idx(&drv) != drv.used_idx) {
		uint32_t head = used->ring[drv.used_idx % drv.size].id, len_bytes;

		if (wild && (head >= drv.size || !owed[head]))
			return; /* a request may have been told to read into the ring itself */
		FUZZ_CHECK(head < drv.size && owed[head]);
		owed[head]--;
		if (drv.chain_len[head] && !owed[head])
			vguest_used_pop(&drv, &head, &len_bytes);
		else
			drv.used_idx++;
	}
}

static void state_check(void)
{
	struct vblk_queue *q = &blk->queue[0];
	unsigned free = 0;

	for (const struct vblk_req *r = q->free; r; r = r->next)
		FUZZ_CHECK(++free <= shape_size);
	FUZZ_EQ(free + q->in_flight, shape_size);
	if (q->ioq.state == IOQ_DRAINING || q->ioq.state == IOQ_UNATTACHED)
		return;
	FUZZ_EQ((uint16_t)(q->vq.last_avail - q->vq.used_idx), q->in_flight);
	FUZZ_CHECK(disk.dev.in_flight <= q->in_flight);
	if (!wild) {
		FUZZ_CHECK(q->vq.broken ||
		           (uint16_t)(drv.avail_idx - vguest_used_idx(&drv)) <= 2 * drv.size);
		FUZZ_EQ(vguest_zone_damaged(&guest), 0);
	}
}

/* --- steps ------------------------------------------------------------------------------------ */

static void passes(unsigned count)
{
	while (count-- > 0) {
		fake_tsc += 20000;
		ioloop_pass(&loop);
	}
	used_take();
}

/* High bits of where: a place inside the buffer. The last buffer is the table. */
static gpa_t place(unsigned where)
{
	return (where & 15) == 15 ? table_gpa : buffer_gpa[(where & 15) % BUFFERS] + (where >> 4);
}

static struct virtq_desc desc_read(struct fuzz_in *in, bool in_table)
{
	unsigned where = fuzz_u8(in);
	uint32_t len_bytes = lengths[fuzz_below(in, ARRAY_LEN(lengths))];
	uint16_t flags = fuzz_u8(in) & 7, next = fuzz_u8(in);
	gpa_t gpa = place(where);
	uint64_t room = (where & 15) == 15
	                        ? VGUEST_INDIRECT_MAX * 16
	                        : ((where & 15) % BUFFERS < 3 ? 16u : 1024u) - (where >> 4);

	/* What the device may write must be somewhere it cannot do harm, or all bets are off. */
	if (len_bytes > room || (!in_table && (flags & VIRTQ_DESC_F_INDIRECT) && room < 1024))
		wild = true;
	return (struct virtq_desc){gpa, len_bytes, flags, next};
}

static void wild_desc(struct fuzz_in *in)
{
	uint16_t index = fuzz_below(in, drv.size);
	gpa_t gpa = fuzz_u64(in);
	uint32_t len_bytes = fuzz_u32(in);
	uint16_t flags = fuzz_u8(in) & 7;

	wild = true;
	vguest_desc_set(&drv, index, gpa, len_bytes, flags, fuzz_u8(in));
}

/* Not more than fit the ring: else their places in it would change before they are looked at. */
static void publish(struct fuzz_in *in)
{
	uint16_t head = fuzz_u8(in);

	if ((uint16_t)(drv.avail_idx - drv.used_idx) >= drv.size)
		return;
	if (head < drv.size)
		owed[head]++;
	vguest_publish(&drv, head);
}

static void case_publish(struct fuzz_in *in)
{
	const struct vguest_case *c = &vguest_cases[fuzz_below(in, vguest_case_count)];
	int head;

	if ((uint16_t)(drv.avail_idx - drv.used_idx) >= drv.size)
		return;
	/* Here the table is the input's. And answers are test_virtio_cases.c's subject. */
	if (c->on & VGUEST_ON_INDIRECT)
		return;
	wild |= !c->build; /* with requests under way the index may just not leave the ring */
	head = vguest_case_publish(c, &drv, &io);
	if (head >= 0 && c->build)
		owed[head]++;
}

static void reset(void)
{
	disk.hold = 0;
	ioloop_detach(&blk->queue[0].ioq);
	for (unsigned i = 0; i < 8 && ioq_is_attached(&blk->queue[0].ioq); i++)
		ioloop_pass(&loop);
	FUZZ_CHECK(!ioq_is_attached(&blk->queue[0].ioq));
	FUZZ_EQ(blk->queue[0].in_flight, 0);
	FUZZ_EQ(disk.dev.in_flight, 0);
	attach();
}

static void header_set(struct fuzz_in *in)
{
	unsigned buffer = fuzz_below(in, BUFFERS);
	struct virtio_blk_hdr hdr = {.type = types[fuzz_below(in, ARRAY_LEN(types))]};

	hdr.sector = sectors[fuzz_below(in, ARRAY_LEN(sectors))];
	memcpy(vguest_va(&guest, buffer_gpa[buffer]), &hdr, sizeof(hdr));
}

static void step(struct fuzz_in *in)
{
	struct virtq_desc d;
	uint16_t index;

	switch (fuzz_below(in, STEP_COUNT)) {
	case STEP_DESC:
		index = fuzz_below(in, drv.size);
		d = desc_read(in, false);
		vguest_desc_set(&drv, index, d.addr_gpa, d.len_bytes, d.flags, d.next);
		break;
	case STEP_TABLE:
		index = fuzz_below(in, VGUEST_INDIRECT_MAX);
		d = desc_read(in, true);
		memcpy((uint8_t *)vguest_va(&guest, table_gpa) + 16 * index, &d, sizeof(d));
		break;
	case STEP_WILD: wild_desc(in); break;
	case STEP_HEADER: header_set(in); break;
	case STEP_PUBLISH: publish(in); break;
	case STEP_CASE: case_publish(in); break;
	case STEP_JUMP:
		vguest_avail_idx_set(&drv, (uint16_t)(drv.avail_idx + fuzz_u16(in)));
		wild = true;
		break;
	case STEP_PASS: passes(fuzz_below(in, 8)); break;
	case STEP_KICK: ioloop_kick(&blk->queue[0].ioq); break;
	case STEP_HOLD: disk.hold = !disk.hold; break;
	case STEP_STATUS: disk.next_status = fuzz_below(in, BIO_EGONE + 1); break;
	case STEP_ROOM: disk.room = fuzz_below(in, 8); break;
	case STEP_RESET: reset(); break;
	case STEP_EVENT:
		if (fuzz_u8(in) & 1)
			vguest_irq_on(&drv);
		else
			vguest_irq_off(&drv);
		break;
	}
}

/* With a disk that works, all that was published and can be taken comes back. */
static void finish(void)
{
	struct vblk_queue *q = &blk->queue[0];

	disk.hold = 0;
	disk.room = 4096;
	ioloop_kick(&q->ioq);
	passes(2 * shape_size + 8);
	FUZZ_EQ(q->in_flight, 0);
	if (wild || q->vq.broken)
		return;
	for (unsigned i = 0; i < drv.size; i++)
		FUZZ_EQ(owed[i], 0);
	FUZZ_EQ(drv.used_idx, drv.avail_idx);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	struct fuzz_in in = {data, data + len_bytes};

	machine_make(&in);
	while (fuzz_more(&in)) {
		step(&in);
		state_check();
	}
	finish();
	state_check();
	machine_drop();
	return 0;
}
