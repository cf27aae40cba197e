/*
 * null.h: a disk of any size with nothing behind it, for measuring the path above. A request
 * completes at the next poll after its commit and moves no data at all: a read leaves the
 * guest's buffer as it was, a write is forgotten.
 */
#ifndef QUELL_DRIVERS_NULL_H
#define QUELL_DRIVERS_NULL_H

#include "drivers/bio.h"

/*
 * A new null disk (null0, null1, ...) of len_bytes, rounded down to 512. Boot core, start-up only.
 * NULL: no memory, or len_bytes below 512.
 */
struct bio_dev *null_create(uint64_t len_bytes);

#endif
