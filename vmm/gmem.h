/*
 * gmem.h: a guest's physical memory as the hypervisor sees it. Fixed before the guest starts, so
 * any core reads it without a lock. Every access by guest-physical address goes through here.
 */
#ifndef QUELL_VMM_GMEM_H
#define QUELL_VMM_GMEM_H

#include "arch/types.h"

#define GMEM_REGION_MAX 16

struct gmem_region {
	gpa_t gpa;
	uint64_t len_bytes;
	hpa_t hpa;
	uint8_t *va; /* where the hypervisor reads and writes it; equals hpa on hardware */
};

struct gmem {
	unsigned count; /* sorted by gpa, no overlap */
	struct gmem_region region[GMEM_REGION_MAX];
};

/* Adds a region at start-up. -EINVAL: overlap, wrap or zero length; -ENOSPC. */
int gmem_add(struct gmem *mem, gpa_t gpa, uint64_t len_bytes, hpa_t hpa, void *va);

/*
 * Finds the region of gpa. Returns how many bytes from gpa on are contiguous, at most len_bytes,
 * with their address in *va and *hpa (either may be NULL); 0: not guest memory.
 */
uint64_t gmem_find(const struct gmem *mem, gpa_t gpa, uint64_t len_bytes, void **va, hpa_t *hpa);

/* The whole of [gpa, gpa + len_bytes) in one region, or NULL. */
void *gmem_ptr(const struct gmem *mem, gpa_t gpa, uint64_t len_bytes);

/* Copies, across regions if need be. -EFAULT: some byte is not guest memory (nothing is promised
 * about the rest). Never faults, whatever the numbers. */
int gmem_read(const struct gmem *mem, gpa_t gpa, void *dst, uint64_t len_bytes);
int gmem_write(const struct gmem *mem, gpa_t gpa, const void *src, uint64_t len_bytes);

#endif
