/*
 * source.h: what a manifest's disk source means: a namespace, a partition, a file in memory or
 * nothing at all. Keeps the table of disks and of what has been opened. Boot core, before the I/O
 * core starts.
 */
#ifndef QUELL_DRIVERS_SOURCE_H
#define QUELL_DRIVERS_SOURCE_H

#include "drivers/bio.h"

#define SOURCE_DISK_MAX 64u
#define SOURCE_OPEN_MAX 64u

/* Finds a boot file by the name the manifest uses. False: none. */
typedef bool (*source_file_fn)(const char *name, hpa_t *base_hpa, uint64_t *len_bytes);

/* Forgets all disks and opens. Not needed at power-on. */
void source_init(void);

/* A disk that sources may name, by dev->name. -ENOSPC. */
int source_dev_add(struct bio_dev *dev);

/*
 * Resolves and opens a source: "nvme0n1", "nvme0n1p2", "PARTUUID=...", "PARTLABEL=...",
 * "ram:FILE", "null:SIZE" (bytes, or with K, M, G, T). Opening for writing what somebody else
 * writes to, or an EFI system partition, is refused. Every "null:" is a disk of its own; one
 * "ram:FILE" is one disk however often it is opened. -EINVAL: not a source; -ENOENT: no such
 * thing; -EBUSY: taken; -EROFS: cannot be written; -EIO; -ENOMEM; -ENOSPC. err says what is wrong
 * and what there is instead.
 */
int source_open(const char *source, source_file_fn file, bool writable, struct bio_extent *out,
                char *err, size_t err_len);

#endif
