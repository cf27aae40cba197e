/*
 * ept.h: extended page tables as a nested format. Pure. SDM 3C 29.3.2.
 */
#ifndef QUELL_ARCH_X86_VMX_EPT_H
#define QUELL_ARCH_X86_VMX_EPT_H

#include "arch/x86/nested.h"

#define EPT_READ    BIT(0)
#define EPT_WRITE   BIT(1)
#define EPT_EXEC    BIT(2)
#define EPT_RWX     (EPT_READ | EPT_WRITE | EPT_EXEC)
#define EPT_WB      (6ull << 3)
#define EPT_LARGE   BIT(7)
#define EPT_ACCESS  BIT(8)
#define EPT_DIRTY   BIT(9)
#define EPT_IGNORED BIT(52) /* software's; in a non-present entry every bit but 2:0 and 63 is */

/*
 * The format for this processor. large_1g and large_2m are EPT's own capabilities. mmio_misconfig:
 * MMIO entries allow writes and no reads, which no processor accepts at any level; otherwise they
 * are not present. Boot core.
 */
struct nested_format ept_format(bool large_2m, bool large_1g, bool mmio_misconfig);

#endif
