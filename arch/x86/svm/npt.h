/*
 * npt.h: the nested page-table format of SVM (APM 2 15.25): long-mode paging, walked as user.
 */
#ifndef QUELL_ARCH_X86_SVM_NPT_H
#define QUELL_ARCH_X86_SVM_NPT_H

#include "arch/x86/nested.h"

#define NPT_PRESENT  BIT(0)
#define NPT_WRITE    BIT(1)
#define NPT_USER     BIT(2) /* nested walks are user accesses: needed at every level */
#define NPT_ACCESSED BIT(5)
#define NPT_DIRTY    BIT(6)
#define NPT_LARGE    BIT(7)
#define NPT_IGNORED  BIT(9) /* free to software */

/*
 * The format for a processor with that many physical address bits. mmio_reserved: make kicks by a
 * reserved address bit (fault code RSVD); with 52 address bits, or without leave, by non-present
 * entries. large_1g: leaves of 1 GiB. Pure. Any core.
 */
void npt_format_init(struct nested_format *format, unsigned phys_bits, bool mmio_reserved,
                     bool large_1g);

#endif
