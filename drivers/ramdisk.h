/*
 * ramdisk.h: a disk in memory, made from a boot file. Writes last until power-off.
 */
#ifndef QUELL_DRIVERS_RAMDISK_H
#define QUELL_DRIVERS_RAMDISK_H

#include "drivers/bio.h"

/*
 * A new ramdisk (ram0, ram1, ...) over len_bytes at base_hpa, which it then owns; a last part of a
 * sector is cut off with a log line. Data is copied when the request completes, at a poll after
 * its commit. Discarded sectors read as zeros. Boot core, start-up only. NULL: no memory, or less
 * than one sector.
 */
struct bio_dev *ramdisk_create(hpa_t base_hpa, uint64_t len_bytes);

#endif
