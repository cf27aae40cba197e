#include "drivers/bio.h"
#include "arch/platform.h"

/* The one bio that bio_run_sync waits for; boot core only, so one is enough. */
static struct bio *sync_waits_for;

static void sync_done(struct bio *bio)
{
	if (bio == sync_waits_for)
		sync_waits_for = NULL;
}

int bio_run_sync(struct bio_dev *dev, struct bio *bio, uint64_t timeout_us)
{
	uint64_t deadline_tsc = plat_tsc() + plat_tsc_hz() / 1000000 * timeout_us;

	bio->done = sync_done;
	while (bio_submit(dev, bio)) {
		bio_poll(dev, 1);
		if (plat_tsc() > deadline_tsc)
			return -ETIMEDOUT;
		plat_relax();
	}
	sync_waits_for = bio;
	dev->ops->commit(dev);
	while (sync_waits_for) {
		bio_poll(dev, 1);
		/* A late completion then finds nobody waiting; the bio stays the driver's. */
		if (plat_tsc() > deadline_tsc && sync_waits_for) {
			sync_waits_for = NULL;
			return -ETIMEDOUT;
		}
		plat_relax();
	}
	return bio->status == BIO_OK ? 0 : -EIO;
}
