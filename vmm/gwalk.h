/*
 * gwalk.h: what a guest's own page tables say, for the instruction it stands on (SDM 3A chapter 4,
 * APM vol. 2 chapter 5). Any core; reads guest memory, changes nothing.
 *
 * Accessed and dirty bits are not set: the processor set them on its own way to the exit, and only
 * the far operand of a string instruction or a page-crossing access can differ. Protection keys are
 * not looked at. A page table outside guest memory is a fault for a reserved bit.
 */
#ifndef QUELL_VMM_GWALK_H
#define QUELL_VMM_GWALK_H

#include "arch/types.h"
#include "arch/x86/hvm.h"
#include "arch/x86/insn.h"
#include "vmm/gmem.h"

/* What is asked for; the first three have their places of the page-fault error code. */
#define GWALK_READ  0u
#define GWALK_WRITE BIT(1)
#define GWALK_USER  BIT(2)
#define GWALK_FETCH BIT(4)
#define GWALK_AC    BIT(8) /* RFLAGS.AC is set: SMAP does not apply */

/*
 * Translates one linear address under state's CR0, CR3, CR4 and EFER. 0 with *gpa; -EFAULT: the
 * guest has a page fault to take, *pf_error is its error code; -ERANGE: not canonical, a general
 * protection fault.
 */
int gwalk_translate(const struct gmem *mem, const struct hvm_state *state, gva_t gva,
                    uint64_t access, gpa_t *gpa, uint32_t *pf_error);

/*
 * Reads the instruction at rip, across a page boundary if need be, into bytes (INSN_LEN_MAX of
 * room). Returns how many bytes could be read; to learn why there are no more, translate
 * gwalk_linear(state, HVM_CS, rip + count) with gwalk_access(state) | GWALK_FETCH.
 */
unsigned gwalk_fetch(const struct gmem *mem, const struct hvm_state *state, uint64_t rip,
                     uint8_t *bytes);

/* Default sizes of the code that runs. */
enum insn_mode gwalk_insn_mode(const struct hvm_state *state);

/* Linear address of an offset in a segment: in 64-bit code only FS and GS have a base. */
gva_t gwalk_linear(const struct hvm_state *state, unsigned seg, uint64_t offset);

/* GWALK_USER at privilege level 3, else 0. */
uint64_t gwalk_access(const struct hvm_state *state);

#endif
