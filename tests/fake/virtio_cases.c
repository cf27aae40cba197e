#include "tests/fake/virtio_cases.h"

#include <stdlib.h>
#include <string.h>

#define NOWHERE_GPA 0x7fffffff0000ull

/* Where a descriptor's fields are changed after the chain was built. */
static struct virtq_desc *desc(struct vguest_queue *q, uint16_t index)
{
	return (struct virtq_desc *)vguest_va(q->guest, q->desc_gpa) + index;
}

static uint16_t last_of(struct vguest_queue *q, uint16_t head)
{
	uint16_t index = head;

	for (uint16_t left = q->chain_len[head]; left > 1; left--)
		index = q->next[index];
	return index;
}

/* --- building --------------------------------------------------------------------------------- */

static bool device_writes_data(uint32_t type)
{
	return type == VIRTIO_BLK_T_IN || type == VIRTIO_BLK_T_GET_ID;
}

static bool has_range(uint32_t type)
{
	return type == VIRTIO_BLK_T_DISCARD || type == VIRTIO_BLK_T_WRITE_ZEROES;
}

/* Header, data if any, status: what an ordinary driver sends. */
static unsigned frame(const struct vguest_case *c, struct vguest_queue *q,
                      const struct vguest_io *io, struct vguest_buf bufs[3])
{
	struct virtio_blk_hdr hdr = {c->type, 0,
	                             c->from_end ? io->capacity_sectors - c->sector : c->sector};
	struct virtio_blk_range range = c->range;
	unsigned count = 0;

	if (c->from_end && has_range(c->type))
		range.sector = io->capacity_sectors - range.sector;
	memcpy(vguest_va(q->guest, io->hdr_gpa), &hdr, sizeof(hdr));
	if (has_range(c->type)) {
		memset(vguest_va(q->guest, io->data_gpa), 0, c->len_bytes);
		memcpy(vguest_va(q->guest, io->data_gpa), &range, sizeof(range));
	}
	bufs[count++] = (struct vguest_buf){io->hdr_gpa, sizeof(hdr), false};
	if (c->len_bytes)
		bufs[count++] = (struct vguest_buf){io->data_gpa, c->len_bytes,
		                                    device_writes_data(c->type)};
	bufs[count++] = (struct vguest_buf){io->status_gpa, 1, true};
	return count;
}

static int bent(const struct vguest_case *c, struct vguest_queue *q, int head)
{
	if (head >= 0 && c->bend)
		c->bend(q, (uint16_t)head);
	return head;
}

static int direct(const struct vguest_case *c, struct vguest_queue *q, const struct vguest_io *io)
{
	struct vguest_buf bufs[3];
	unsigned count = frame(c, q, io, bufs);

	return bent(c, q, vguest_add(q, bufs, count));
}

static int indirect(const struct vguest_case *c, struct vguest_queue *q, const struct vguest_io *io)
{
	struct vguest_buf bufs[3];
	unsigned count = frame(c, q, io, bufs);

	return bent(c, q, vguest_add_indirect(q, bufs, count));
}

/* As many pieces of data as a chain may have and one more. */
static int many(const struct vguest_case *c, struct vguest_queue *q, const struct vguest_io *io)
{
	struct vguest_buf bufs[3], all[VIRTQ_CHAIN_MAX + 1];

	frame(c, q, io, bufs);
	all[0] = bufs[0];
	for (unsigned i = 1; i < VIRTQ_CHAIN_MAX; i++)
		all[i] = (struct vguest_buf){io->data_gpa + (i % 2 ? 0 : 1024), 512, true};
	all[VIRTQ_CHAIN_MAX] = bufs[2];
	return vguest_add_indirect(q, all, VIRTQ_CHAIN_MAX + 1);
}

/* A table that would do, if only tables had been negotiated. */
static int table_unasked(const struct vguest_case *c, struct vguest_queue *q,
                         const struct vguest_io *io)
{
	struct virtq_desc *table = vguest_va(q->guest, io->data_gpa + VGUEST_IO_DATA_BYTES / 2);
	struct vguest_buf bufs[3];
	unsigned count = frame(c, q, io, bufs);
	int head = vguest_add(q, bufs, 1);

	if (head < 0)
		return head;
	for (unsigned i = 0; i < count; i++)
		table[i] = (struct virtq_desc){
		        bufs[i].gpa, bufs[i].len_bytes,
		        (uint16_t)((i + 1 < count ? VIRTQ_DESC_F_NEXT : 0) |
		                   (bufs[i].device_writes ? VIRTQ_DESC_F_WRITE : 0)),
		        (uint16_t)(i + 1)};
	vguest_desc_set(q, (uint16_t)head, io->data_gpa + VGUEST_IO_DATA_BYTES / 2, count * 16,
	                VIRTQ_DESC_F_INDIRECT, 0);
	return head;
}

/* Status alone; the header alone; a header cut short; a header the device could only write. */
static int status_only(const struct vguest_case *c, struct vguest_queue *q,
                       const struct vguest_io *io)
{
	struct vguest_buf bufs[3];
	unsigned count = frame(c, q, io, bufs);

	return vguest_add(q, &bufs[count - 1], 1);
}

static int header_only(const struct vguest_case *c, struct vguest_queue *q,
                       const struct vguest_io *io)
{
	struct vguest_buf bufs[3];

	frame(c, q, io, bufs);
	return bent(c, q, vguest_add(q, bufs, 1));
}

static int header_short(const struct vguest_case *c, struct vguest_queue *q,
                        const struct vguest_io *io)
{
	struct vguest_buf bufs[3];
	unsigned count = frame(c, q, io, bufs);

	bufs[0].len_bytes = 15;
	return vguest_add(q, bufs, count);
}

static int header_writable(const struct vguest_case *c, struct vguest_queue *q,
                           const struct vguest_io *io)
{
	struct vguest_buf bufs[3];
	unsigned count = frame(c, q, io, bufs);

	bufs[0].device_writes = true;
	return vguest_add(q, bufs, count);
}

/* A read into what the device may only read, a write from what it may only write. */
static int wrong_direction(const struct vguest_case *c, struct vguest_queue *q,
                           const struct vguest_io *io)
{
	struct vguest_buf bufs[3];
	unsigned count = frame(c, q, io, bufs);

	bufs[1].device_writes = !bufs[1].device_writes;
	return vguest_add(q, bufs, count);
}

/* --- bending ---------------------------------------------------------------------------------- */

static void self_loop(struct vguest_queue *q, uint16_t head)
{
	desc(q, head)->next = head;
}

static void loop_of_two(struct vguest_queue *q, uint16_t head)
{
	desc(q, q->next[head])->next = head;
}

static void next_past_size(struct vguest_queue *q, uint16_t head)
{
	desc(q, q->next[head])->next = q->size;
}

static void next_huge(struct vguest_queue *q, uint16_t head)
{
	desc(q, head)->next = UINT16_MAX;
}

/* The device would read after it has written: data first, then the header. */
static void written_then_read(struct vguest_queue *q, uint16_t head)
{
	desc(q, head)->flags ^= VIRTQ_DESC_F_WRITE;
	desc(q, q->next[head])->flags &= (uint16_t)~VIRTQ_DESC_F_WRITE;
}

static void sum_over_32_bits(struct vguest_queue *q, uint16_t head)
{
	desc(q, q->next[head])->len_bytes = UINT32_MAX;
}

static void data_huge(struct vguest_queue *q, uint16_t head)
{
	desc(q, q->next[head])->len_bytes = 0x80000000u;
}

static void data_nowhere(struct vguest_queue *q, uint16_t head)
{
	desc(q, q->next[head])->addr_gpa = NOWHERE_GPA;
}

static void data_wraps(struct vguest_queue *q, uint16_t head)
{
	desc(q, q->next[head])->addr_gpa = (gpa_t)-256;
}

static void data_past_end(struct vguest_queue *q, uint16_t head)
{
	desc(q, q->next[head])->addr_gpa = q->guest->end_gpa - 256;
}

static void header_nowhere(struct vguest_queue *q, uint16_t head)
{
	desc(q, head)->addr_gpa = NOWHERE_GPA;
}

static void status_nowhere(struct vguest_queue *q, uint16_t head)
{
	desc(q, last_of(q, head))->addr_gpa = NOWHERE_GPA;
}

static void status_readable(struct vguest_queue *q, uint16_t head)
{
	desc(q, last_of(q, head))->flags &= (uint16_t)~VIRTQ_DESC_F_WRITE;
}

static void all_empty(struct vguest_queue *q, uint16_t head)
{
	desc(q, head)->len_bytes = 0;
}

static void in_indirect(struct vguest_queue *q, uint16_t head)
{
	vguest_table(q, head)[1].flags |= VIRTQ_DESC_F_INDIRECT;
}

static void table_odd(struct vguest_queue *q, uint16_t head)
{
	desc(q, head)->len_bytes += 1;
}

static void table_empty(struct vguest_queue *q, uint16_t head)
{
	desc(q, head)->len_bytes = 0;
}

static void table_and_next(struct vguest_queue *q, uint16_t head)
{
	desc(q, head)->flags |= VIRTQ_DESC_F_NEXT;
}

static void table_nowhere(struct vguest_queue *q, uint16_t head)
{
	desc(q, head)->addr_gpa = NOWHERE_GPA;
}

static void table_past_end(struct vguest_queue *q, uint16_t head)
{
	desc(q, head)->addr_gpa = q->guest->end_gpa - 16;
}

static void next_past_table(struct vguest_queue *q, uint16_t head)
{
	vguest_table(q, head)[1].next = 3;
}

static void loop_in_table(struct vguest_queue *q, uint16_t head)
{
	vguest_table(q, head)[1].next = 0;
}

/* --- the available ring ----------------------------------------------------------------------- */

/* These break the ring when they are published: vguest_case_publish looks for them. */
static void head_past_size(struct vguest_queue *q, uint16_t head)
{
	(void)head;
	vguest_avail_set(q, q->avail_idx, q->size);
	vguest_avail_idx_set(q, (uint16_t)(q->avail_idx + 1));
}

static void avail_jump(struct vguest_queue *q, uint16_t head)
{
	(void)head;
	vguest_avail_idx_set(q, (uint16_t)(q->used_idx + q->size + 1));
}

static void avail_backwards(struct vguest_queue *q, uint16_t head)
{
	(void)head;
	vguest_avail_idx_set(q, (uint16_t)(q->used_idx - 1));
}

#define CASE(_name, _answer, ...)                                                                  \
	{                                                                                          \
		.name = _name, .answer = VGUEST_##_answer, __VA_ARGS__                             \
	}
#define DIRECT(_type, _len) .build = direct, .type = VIRTIO_BLK_T_##_type, .len_bytes = _len
#define INDIRECT(_type, _len)                                                                      \
	.build = indirect, .on = VGUEST_ON_INDIRECT, .type = VIRTIO_BLK_T_##_type, .len_bytes = _len
#define FRAME(_build, _type, _len) .build = _build, .type = VIRTIO_BLK_T_##_type, .len_bytes = _len
#define RANGE(...)                 .range = {__VA_ARGS__}

const struct vguest_case vguest_cases[] = {
        /* Nothing wrong with these. */
        CASE("read", OK, DIRECT(IN, 4096)),
        CASE("write", OK, DIRECT(OUT, 4096)),
        CASE("flush", OK, DIRECT(FLUSH, 0)),
        CASE("get_id", OK, DIRECT(GET_ID, 20)),
        CASE("read_indirect", OK, INDIRECT(IN, 4096)),
        CASE("write_indirect", OK, INDIRECT(OUT, 8192)),
        CASE("read_no_data", OK, DIRECT(IN, 0)),
        CASE("write_no_data", OK, DIRECT(OUT, 0)),
        CASE("read_last_block", OK, DIRECT(IN, 4096), .sector = 8, .from_end = true),
        CASE("discard", OK, DIRECT(DISCARD, 16), RANGE(8, 8, 0)),
        CASE("discard_nothing", OK, DIRECT(DISCARD, 16), RANGE(8, 0, 0)),
        CASE("zeroes", OK, DIRECT(WRITE_ZEROES, 16), RANGE(8, 8, 0)),
        CASE("zeroes_unmap", OK, DIRECT(WRITE_ZEROES, 16), RANGE(8, 8, 1)),
        CASE("read_4k_block", OK, DIRECT(IN, 4096), .on = VGUEST_ON_4K),
        CASE("read_without_discard", OK, DIRECT(IN, 512), .on = VGUEST_ON_BARE),
        CASE("read_read_only", OK, DIRECT(IN, 512), .on = VGUEST_ON_READ_ONLY),
        CASE("flush_read_only", OK, DIRECT(FLUSH, 0), .on = VGUEST_ON_READ_ONLY),

        /* Chains. */
        CASE("loop_of_one", REFUSED, DIRECT(IN, 512), .bend = self_loop),
        CASE("loop_of_two", REFUSED, DIRECT(IN, 512), .bend = loop_of_two),
        CASE("next_past_size", REFUSED, DIRECT(IN, 512), .bend = next_past_size),
        CASE("next_huge", REFUSED, DIRECT(IN, 512), .bend = next_huge),
        CASE("written_then_read", REFUSED, DIRECT(OUT, 512), .bend = written_then_read),
        CASE("sum_over_32_bits", REFUSED, DIRECT(IN, 512), .bend = sum_over_32_bits),
        CASE("indirect_not_negotiated", REFUSED, FRAME(table_unasked, IN, 512),
             .on = VGUEST_ON_NO_INDIRECT),
        CASE("indirect_in_indirect", REFUSED, INDIRECT(IN, 512), .bend = in_indirect),
        CASE("indirect_odd_length", REFUSED, INDIRECT(IN, 512), .bend = table_odd),
        CASE("indirect_empty", REFUSED, INDIRECT(IN, 512), .bend = table_empty),
        CASE("indirect_with_next", REFUSED, INDIRECT(IN, 512), .bend = table_and_next),
        CASE("indirect_nowhere", REFUSED, INDIRECT(IN, 512), .bend = table_nowhere),
        CASE("indirect_past_end", REFUSED, INDIRECT(IN, 512), .bend = table_past_end),
        CASE("indirect_next_past_table", REFUSED, INDIRECT(IN, 512), .bend = next_past_table),
        CASE("indirect_loop", REFUSED, INDIRECT(IN, 512), .bend = loop_in_table),
        CASE("too_many_descriptors", REFUSED, FRAME(many, IN, 512), .on = VGUEST_ON_INDIRECT),

        /* Frames. */
        CASE("header_only", REFUSED, FRAME(header_only, IN, 512)),
        CASE("empty", REFUSED, FRAME(header_only, IN, 512), .bend = all_empty),
        CASE("status_nowhere", REFUSED, DIRECT(IN, 512), .bend = status_nowhere),
        CASE("status_readable", REFUSED, DIRECT(OUT, 512), .bend = status_readable),
        CASE("status_only", IOERR, FRAME(status_only, IN, 512)),
        CASE("header_short", IOERR, FRAME(header_short, FLUSH, 0)),
        CASE("header_writable", IOERR, FRAME(header_writable, IN, 512)),
        CASE("header_nowhere", IOERR, DIRECT(IN, 512), .bend = header_nowhere),
        CASE("data_nowhere", IOERR, DIRECT(IN, 512), .bend = data_nowhere),
        CASE("data_wraps", IOERR, DIRECT(IN, 512), .bend = data_wraps),
        CASE("data_past_end", IOERR, DIRECT(OUT, 512), .bend = data_past_end),
        CASE("data_huge", IOERR, DIRECT(IN, 512), .bend = data_huge),
        CASE("read_into_readable", IOERR, FRAME(wrong_direction, IN, 512)),
        CASE("write_from_writable", IOERR, FRAME(wrong_direction, OUT, 512)),

        /* Requests. */
        CASE("unknown_type", UNSUPP, .build = direct, .type = 0x7fffffff, .len_bytes = 512),
        CASE("no_whole_sectors", IOERR, DIRECT(IN, 511)),
        CASE("past_capacity", IOERR, DIRECT(IN, 512), .sector = 0, .from_end = true),
        CASE("across_capacity", IOERR, DIRECT(OUT, 1024), .sector = 1, .from_end = true),
        CASE("sector_wraps_to_0", IOERR, DIRECT(OUT, 512), .sector = 1ull << 55),
        CASE("sector_max", IOERR, DIRECT(OUT, 1024), .sector = UINT64_MAX),
        CASE("write_read_only", IOERR, DIRECT(OUT, 4096), .on = VGUEST_ON_READ_ONLY),
        CASE("write_nothing_read_only", IOERR, DIRECT(OUT, 0), .on = VGUEST_ON_READ_ONLY),
        CASE("discard_read_only", IOERR, DIRECT(DISCARD, 16), .on = VGUEST_ON_READ_ONLY,
             RANGE(8, 8, 0)),
        CASE("half_block", IOERR, DIRECT(IN, 512), .on = VGUEST_ON_4K),
        CASE("between_blocks", IOERR, DIRECT(OUT, 4096), .on = VGUEST_ON_4K, .sector = 1),
        CASE("discard_between_blocks", IOERR, DIRECT(DISCARD, 16), .on = VGUEST_ON_4K,
             RANGE(4, 8, 0)),
        CASE("discard_not_offered", UNSUPP, DIRECT(DISCARD, 16), .on = VGUEST_ON_BARE,
             RANGE(8, 8, 0)),
        CASE("zeroes_not_offered", UNSUPP, DIRECT(WRITE_ZEROES, 16), .on = VGUEST_ON_BARE,
             RANGE(8, 8, 0)),
        CASE("discard_flag", UNSUPP, DIRECT(DISCARD, 16), RANGE(8, 8, 1)),
        CASE("zeroes_unknown_flag", UNSUPP, DIRECT(WRITE_ZEROES, 16), RANGE(8, 8, 2)),
        CASE("discard_no_range", IOERR, DIRECT(DISCARD, 0)),
        CASE("discard_half_range", IOERR, DIRECT(DISCARD, 8), RANGE(8, 8, 0)),
        CASE("discard_two_ranges", IOERR, DIRECT(DISCARD, 32), RANGE(8, 8, 0)),
        CASE("discard_past_capacity", IOERR, DIRECT(DISCARD, 16), .from_end = true, RANGE(0, 8, 0)),
        CASE("discard_wraps", IOERR, DIRECT(DISCARD, 16), RANGE(UINT64_MAX - 7, 16, 0)),
        CASE("zeroes_over_limit", IOERR, DIRECT(WRITE_ZEROES, 16), RANGE(0, UINT32_MAX, 0)),

        /* The ring. */
        CASE("head_past_size", NEEDS_RESET, .bend = head_past_size),
        CASE("avail_jump", NEEDS_RESET, .bend = avail_jump),
        CASE("avail_backwards", NEEDS_RESET, .bend = avail_backwards),
};

const unsigned vguest_case_count = ARRAY_LEN(vguest_cases);

const struct vguest_case *vguest_case_named(const char *name)
{
	for (unsigned i = 0; i < vguest_case_count; i++)
		if (!strcmp(vguest_cases[i].name, name))
			return &vguest_cases[i];
	abort();
}

int vguest_case_publish(const struct vguest_case *c, struct vguest_queue *q,
                        const struct vguest_io *io)
{
	int head;

	if (!c->build) {
		c->bend(q, 0);
		return 0;
	}
	head = c->build(c, q, io);
	if (head >= 0)
		vguest_publish(q, (uint16_t)head);
	return head;
}

bool vguest_case_fits(const struct vguest_case *c, unsigned on)
{
	unsigned ring = VGUEST_ON_INDIRECT | VGUEST_ON_NO_INDIRECT;

	/* The disk's bits must all be as the case wants them, of the ring's those it asks for. */
	return (c->on & ~ring) == (on & ~ring) && (c->on & ring & ~on) == 0;
}
