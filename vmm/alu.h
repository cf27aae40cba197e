/*
 * alu.h: the processor's integer arithmetic with its flags, for instructions carried out on a
 * guest's behalf (SDM 1 3.4.3.1). Pure.
 */
#ifndef QUELL_VMM_ALU_H
#define QUELL_VMM_ALU_H

#include "arch/types.h"

#define ALU_CF    BIT(0)
#define ALU_PF    BIT(2)
#define ALU_AF    BIT(4)
#define ALU_ZF    BIT(6)
#define ALU_SF    BIT(7)
#define ALU_OF    BIT(11)
#define ALU_FLAGS (ALU_CF | ALU_PF | ALU_AF | ALU_ZF | ALU_SF | ALU_OF)

/*
 * dst op src at that width, op being INSN_ADD to INSN_CMP or INSN_TEST; returns the result
 * (of CMP and TEST: for nobody to keep) and brings *rflags up to date.
 */
uint64_t alu_binary(unsigned op, uint64_t dst, uint64_t src, unsigned width_bytes,
                    uint64_t *rflags);

/* INSN_INC, INSN_DEC, INSN_NOT, INSN_NEG. */
uint64_t alu_unary(unsigned op, uint64_t value, unsigned width_bytes, uint64_t *rflags);

/* INSN_BT to INSN_BTC on bit number modulo width. */
uint64_t alu_bit(unsigned op, uint64_t value, uint64_t bit, unsigned width_bytes, uint64_t *rflags);

#endif
