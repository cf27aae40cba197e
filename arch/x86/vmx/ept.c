#include "arch/x86/vmx/ept.h"

/* SDM 3C table 29-1 to 29-7. */
#define EPT_ADDR_MASK 0x000ffffffffff000ull

_Static_assert((EPT_WRITE & EPT_RWX) == 2, "write without read is the misconfiguration");
_Static_assert(!(EPT_ADDR_MASK & EPT_IGNORED), "software's bit is outside the address");

struct nested_format ept_format(bool large_2m, bool large_1g, bool mmio_misconfig)
{
	return (struct nested_format){
	        .name = "ept",
	        .present_mask = EPT_RWX,
	        .addr_mask = EPT_ADDR_MASK,
	        .table_bits = EPT_RWX | EPT_ACCESS,
	        /* Accessed and dirty from the start: then the processor never writes them. */
	        .leaf_bits = EPT_RWX | EPT_WB | EPT_ACCESS | EPT_DIRTY,
	        .large_bit = EPT_LARGE,
	        .mmio_entry = mmio_misconfig ? EPT_WRITE : EPT_IGNORED,
	        .large_2m = large_2m,
	        .large_1g = large_1g,
	};
}
