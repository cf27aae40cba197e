/*
 * fake/virtio_cases.h: requests of a virtio-blk driver by name: the ordinary ones, and each way of
 * breaking the rules, with the answer that the device owes it. For unit tests and fuzzers.
 */
#ifndef QUELL_TESTS_FAKE_VIRTIO_CASES_H
#define QUELL_TESTS_FAKE_VIRTIO_CASES_H

#include "tests/fake/virtio_guest.h"

enum vguest_answer {
	VGUEST_OK,
	VGUEST_IOERR,
	VGUEST_UNSUPP,
	VGUEST_REFUSED,     /* the chain comes back with length 0: there is no place for a status */
	VGUEST_NEEDS_RESET, /* the ring itself is broken: DEVICE_NEEDS_RESET, nothing comes back */
};

/* What a case needs of the disk and the ring. */
#define VGUEST_ON_READ_ONLY   BIT(0)
#define VGUEST_ON_4K          BIT(1) /* blocks of 4096 bytes */
#define VGUEST_ON_BARE        BIT(2) /* neither discard nor write zeroes */
#define VGUEST_ON_INDIRECT    BIT(3) /* VIRTIO_F_INDIRECT_DESC negotiated */
#define VGUEST_ON_NO_INDIRECT BIT(4) /* not negotiated */

/* Where a request may live: 16 bytes, VGUEST_IO_DATA_BYTES, and 1 byte. */
#define VGUEST_IO_DATA_BYTES 8192u
struct vguest_io {
	gpa_t hdr_gpa, data_gpa, status_gpa;
	uint64_t capacity_sectors; /* of the disk, a multiple of 8 */
};

struct vguest_case {
	const char *name;
	enum vguest_answer answer;
	unsigned on;
	/* Builds it and leaves it unpublished; -1: no room in the ring. */
	int (*build)(const struct vguest_case *c, struct vguest_queue *q,
	             const struct vguest_io *io);
	uint32_t type;
	uint32_t len_bytes; /* of data; 0: no descriptor for it */
	uint64_t sector;    /* from the disk's end when from_end */
	bool from_end;
	struct virtio_blk_range range; /* of a discard or write zeroes, put into the data */
	void (*bend)(struct vguest_queue *q,
	             uint16_t head); /* what is wrong with its descriptors */
};

extern const struct vguest_case vguest_cases[];
extern const unsigned vguest_case_count;

/* Aborts when there is none of that name. */
const struct vguest_case *vguest_case_named(const char *name);

/* Builds and publishes a case. Returns its head; -1: no room. */
int vguest_case_publish(const struct vguest_case *c, struct vguest_queue *q,
                        const struct vguest_io *io);

/* Does this case apply to a disk and ring with just these VGUEST_ON bits? */
bool vguest_case_fits(const struct vguest_case *c, unsigned on);

#endif
