/*
 * msix.h: a device's MSI-X (PCI 3.0 6.8.2): table, pending bits, and for each of the device's
 * interrupt sources one word that says where its interrupt goes, so that the I/O core loads that
 * word and posts.
 *
 * vCPU cores change the table under the guest's device lock; the I/O core only signals. How the two
 * meet: a signaller that finds its vector masked sets the pending bit and then looks at the route
 * once more; who unmasks stores the route and then looks at the pending bit. Both are sequentially
 * consistent, so one of them sees the other, and taking the bit back decides who delivers.
 */
#ifndef QUELL_VIRTIO_MSIX_H
#define QUELL_VIRTIO_MSIX_H

#include "arch/types.h"
#include "virtio/blk.h"

#define MSIX_VECTOR_MAX  (VBLK_QUEUE_MAX + 1u) /* pending is one word */
#define MSIX_SOURCE_MAX  (VBLK_QUEUE_MAX + 1u)
#define MSIX_ENTRY_BYTES 16u
#define MSIX_NO_VECTOR   0xffffu

struct vm;

struct msix_entry {
	uint64_t address;
	uint32_t data;
	uint32_t control; /* bit 0: masked */
};

struct msix {
	/* Written by vCPU cores under the device lock, read by the I/O core. */
	CACHE_ALIGN atomic_uint_least64_t route[MSIX_SOURCE_MAX];
	atomic_uint_least64_t pending; /* bit n: vector n. Any core */

	/* The device lock's. */
	struct vm *vm;
	unsigned vector_count, source_count;
	bool enabled, function_masked;
	uint16_t vector[MSIX_SOURCE_MAX]; /* of each source */
	struct msix_entry entry[MSIX_VECTOR_MAX];
};

/* Power-on state. Boot core. */
void msix_init(struct msix *msix, struct vm *vm, unsigned vector_count, unsigned source_count);

/* Sources have no vector, nothing is pending; the table stays. Device lock, no source active. */
void msix_reset(struct msix *msix);

/* Message Control's bits 15 and 14. Device lock. */
void msix_control_set(struct msix *msix, bool enabled, bool function_masked);

/* Table and pending-bit array, 4 or 8 bytes aligned; all else reads 0 and writes nothing. Device
 * lock. */
uint64_t msix_table_read(const struct msix *msix, uint64_t offset, unsigned width_bytes);
void msix_table_write(struct msix *msix, uint64_t offset, unsigned width_bytes, uint64_t value);
uint64_t msix_pba_read(const struct msix *msix, uint64_t offset, unsigned width_bytes);

/* Gives a source a vector; one that does not exist becomes MSIX_NO_VECTOR. Device lock. */
void msix_vector_set(struct msix *msix, unsigned source, uint16_t vector);

/* Interrupts. False: MSI-X is off or the source has no vector. I/O core. */
bool msix_signal(struct msix *msix, unsigned source);

#endif
