/*
 * The NPT format. Accessed and dirty are set from the start: the processor then never has to write
 * to our tables, which it would do with a locked cycle.
 */
#include "arch/x86/svm/npt.h"

#define RIGHTS (NPT_PRESENT | NPT_WRITE | NPT_USER | NPT_ACCESSED)

#define ADDR_BITS_MAX 52u

void npt_format_init(struct nested_format *format, unsigned phys_bits, bool mmio_reserved,
                     bool large_1g)
{
	if (phys_bits < 32 || phys_bits > ADDR_BITS_MAX)
		phys_bits = ADDR_BITS_MAX; /* not believable: then no bit is surely reserved */

	*format = (struct nested_format){
	        .name = "npt",
	        .present_mask = NPT_PRESENT,
	        .addr_mask = (BIT(phys_bits) - 1) & ~0xfffull,
	        .table_bits = RIGHTS,
	        .leaf_bits = RIGHTS | NPT_DIRTY, /* PAT, PCD, PWT 0: write-back, guest PAT rules */
	        .large_bit = NPT_LARGE,
	        .mmio_entry = NPT_IGNORED,
	        .large_2m = true,
	        .large_1g = large_1g,
	};
	/*
	 * All bits above the processor's own: where memory encryption is on, one of them may be the
	 * encryption bit, which is not reserved; the others still are.
	 */
	if (mmio_reserved && phys_bits < ADDR_BITS_MAX)
		format->mmio_entry = RIGHTS | NPT_DIRTY | (BIT(ADDR_BITS_MAX) - BIT(phys_bits));
}
