/*
 * trap.h: interrupt and exception entry, the seam between trap.asm and trap.c.
 */
#ifndef QUELL_ARCH_X86_TRAP_H
#define QUELL_ARCH_X86_TRAP_H

#include "arch/types.h"

/* Exceptions with a stack of their own: index into tss.ist, plus one in the gate. */
enum trap_ist { TRAP_IST_DF, TRAP_IST_NMI, TRAP_IST_MC, TRAP_IST_COUNT };

enum trap_vector {
	TRAP_NMI = 2,
	TRAP_DF = 8,
	TRAP_GP = 13,
	TRAP_PF = 14,
	TRAP_MC = 18,
	TRAP_EXCEPTIONS = 32,
};

/* As trap.asm pushes it; the last five are the processor's. */
struct trap_frame {
	uint64_t r15, r14, r13, r12, r11, r10, r9, r8, rdi, rsi, rbp, rbx, rdx, rcx, rax;
	uint64_t vector, error;
	uint64_t rip, cs, rflags, rsp, ss;
};
_Static_assert(sizeof(struct trap_frame) == 22 * 8, "trap.asm");

/* Called by trap.asm on the stack the processor chose, interrupts off. */
void trap_handle(struct trap_frame *frame);

/* An instruction that may fault, and where to go on then; relative to each field's own address.
 * trap.asm fills the table (section .fixup). */
struct trap_fixup {
	int32_t fault, resume;
};

#endif
