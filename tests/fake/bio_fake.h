/*
 * fake/bio_fake.h: a disk in the host's heap behind drivers/bio.h. Requests reach it at commit, are
 * done at a poll, and each is remembered for the test to look at.
 */
#ifndef QUELL_TESTS_FAKE_BIO_FAKE_H
#define QUELL_TESTS_FAKE_BIO_FAKE_H

#include "drivers/bio.h"

#define BIO_FAKE_LOG_MAX 256u

struct bio_fake_log {
	enum bio_op op;
	uint64_t sector, sector_count;
	uint16_t seg_count;
};

struct bio_fake {
	struct bio_dev dev;
	uint8_t *data;
	struct bio *submitted[4096], *committed[4096];
	unsigned submitted_count, committed_count;
	unsigned room;       /* requests it takes at once; more get -EAGAIN */
	unsigned hold;       /* non-zero: polls complete nothing */
	uint8_t next_status; /* of the next completions, enum bio_status */
	unsigned flushes;
	unsigned log_count; /* of all submissions; the log keeps the last ones */
	struct bio_fake_log log[BIO_FAKE_LOG_MAX];
};

void bio_fake_init(struct bio_fake *fake, uint64_t sector_count, uint32_t block_bytes);
void bio_fake_free(struct bio_fake *fake);

/* The last submission. */
const struct bio_fake_log *bio_fake_last(const struct bio_fake *fake);

#endif
