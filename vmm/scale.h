/*
 * scale.h: multiplying by a fixed ratio of two rates without a division. The ratio is found once,
 * at start-up, with 56 bits after the binary point: the error is below 1e-16 of one unit per unit.
 */
#ifndef QUELL_VMM_SCALE_H
#define QUELL_VMM_SCALE_H

#include "arch/types.h"

#define SCALE_FRAC_BITS 56

/* num / den, rounded down; below 256, den below 2^63 and not 0. Any core, start-up. */
static inline uint64_t scale_ratio(uint64_t num, uint64_t den)
{
	uint64_t quotient = num / den, rest = num % den;

	for (unsigned i = 0; i < SCALE_FRAC_BITS; i++) {
		rest <<= 1;
		quotient <<= 1;
		if (rest >= den) {
			rest -= den;
			quotient |= 1;
		}
	}
	return quotient;
}

/* value * ratio, rounded down. The product must fit 64 bits. */
static inline uint64_t scale_apply(uint64_t value, uint64_t ratio)
{
	return (uint64_t)((unsigned __int128)value * ratio >> SCALE_FRAC_BITS);
}

#endif
