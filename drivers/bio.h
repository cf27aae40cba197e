/*
 * bio.h: the block request contract. nvme, ramdisk and null are equal behind it.
 *
 * A bio belongs to its submitter until bio_submit accepts it, then to the driver until it calls
 * done, then to the submitter again. Everything here runs on the I/O core only (before it starts:
 * on the boot core). Sectors are 512 bytes whatever the device's format is.
 */
#ifndef QUELL_DRIVERS_BIO_H
#define QUELL_DRIVERS_BIO_H

#include "arch/types.h"

#define BIO_SECTOR_BYTES 512u
#define BIO_SECTOR_SHIFT 9u
#define BIO_SEG_MAX      256u /* data segments of one request */

enum bio_op { BIO_READ, BIO_WRITE, BIO_FLUSH, BIO_DISCARD, BIO_WRITE_ZEROES };

enum bio_status {
	BIO_OK,
	BIO_EIO,     /* the device says it failed */
	BIO_ENOTSUP, /* the device has no such operation */
	BIO_EINVAL,  /* range or alignment the device cannot take */
	BIO_EGONE,   /* the device has gone or was reset for good */
};

/* Host memory, physically contiguous, any byte alignment. */
struct bio_seg {
	hpa_t hpa;
	uint64_t len_bytes;
};

struct bio {
	enum bio_op op;
	uint8_t status;        /* enum bio_status, valid in done */
	uint16_t seg_count;    /* 0 but for read and write */
	uint64_t sector;       /* first, on the device (not the partition) */
	uint64_t sector_count; /* equals the segments' sum for read and write */
	struct bio_seg *segs;  /* the submitter's; unchanged until done */
	void (*done)(struct bio *bio);

	/* The driver's while it owns the bio. */
	struct bio *next;
	uint32_t parts_left;
	uint32_t drv;
};

struct bio_dev;

struct bio_ops {
	/* Takes the bio or returns -EAGAIN: no room now, submit again after a poll completed
	 * something. Never calls done from inside. Nothing reaches the device before commit. */
	int (*submit)(struct bio_dev *dev, struct bio *bio);
	/* Publishes what was submitted since: at most one doorbell. */
	void (*commit)(struct bio_dev *dev);
	/* Completes at most budget requests, calling done for each; returns how many. */
	unsigned (*poll)(struct bio_dev *dev, unsigned budget);
	/* Completion interrupt on before sleep, off while polling. true: on, or nothing in flight;
	 * false: completions can only be polled for. May be NULL: same as false. */
	bool (*irq_set)(struct bio_dev *dev, bool on);
};

struct bio_dev {
	const struct bio_ops *ops;
	uint32_t in_flight; /* requests taken and not yet done */
	bool submitted;     /* something awaits commit */

	const char *name; /* "nvme0n1", "ram0", "null0" */
	uint64_t sector_count;
	uint32_t block_bytes; /* logical block, 512 or 4096: smallest aligned transfer */
	uint32_t physical_block_bytes;
	uint32_t max_transfer_bytes; /* hint for the guest; the driver splits what is larger */
	bool read_only, has_cache, has_discard, has_write_zeroes;

	/* Counters, written by the I/O core. */
	uint64_t doorbells, commands, completions, errors;
};

/* A part of a device that a guest disk shows: a whole namespace or a partition. */
struct bio_extent {
	struct bio_dev *dev;
	uint64_t first_sector, sector_count;
};

static inline int bio_submit(struct bio_dev *dev, struct bio *bio)
{
	return dev->ops->submit(dev, bio);
}

static inline unsigned bio_poll(struct bio_dev *dev, unsigned budget)
{
	return dev->ops->poll(dev, budget);
}

/*
 * Submits one request and polls until it is done, for start-up work such as reading a partition
 * table. Boot core, before the I/O core starts. 0, -EIO, -ETIMEDOUT.
 */
int bio_run_sync(struct bio_dev *dev, struct bio *bio, uint64_t timeout_us);

#endif
