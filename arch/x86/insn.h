/*
 * insn.h: a small, pure decoder for the instructions a hypervisor meets: those that touch device
 * registers in memory, and those that exit by themselves and whose length some processors and the
 * hypervisors below us do not give (AMD APM vol. 3, SDM vol. 2). Touches no state; any core.
 */
#ifndef QUELL_ARCH_X86_INSN_H
#define QUELL_ARCH_X86_INSN_H

#include "arch/types.h"

#define INSN_LEN_MAX 15u

/* Default operand and address size: CS.D, or CS.L in long mode. Real mode is 16. */
enum insn_mode { INSN_MODE_16, INSN_MODE_32, INSN_MODE_64 };

/* clang-format off */
enum insn_op {
	/* The eight of opcodes 00 to 3F, in their encoding's order. */
	INSN_ADD, INSN_OR, INSN_ADC, INSN_SBB, INSN_AND, INSN_SUB, INSN_XOR, INSN_CMP,
	/* 0F BA /4 to /7, in order; the bit number is imm, taken modulo the width. */
	INSN_BT, INSN_BTS, INSN_BTR, INSN_BTC,
	INSN_MOV, INSN_MOVZX, INSN_MOVSX, INSN_MOVBE,
	INSN_TEST, INSN_XCHG, INSN_XADD, INSN_CMPXCHG,
	INSN_INC, INSN_DEC, INSN_NOT, INSN_NEG,
	INSN_MOVS, INSN_STOS, INSN_LODS, INSN_CMPS, INSN_SCAS,
	INSN_INS, INSN_OUTS, INSN_IN, INSN_OUT,
	INSN_MOV_FROM_CR, INSN_MOV_TO_CR, /* reg is the general register, cr the other */
	INSN_MOV_DR, INSN_CLTS, INSN_LMSW, INSN_SMSW,
	INSN_CPUID, INSN_HLT, INSN_RDMSR, INSN_WRMSR, INSN_XSETBV, INSN_XGETBV,
	INSN_RDTSC, INSN_RDTSCP, INSN_RDPMC, INSN_WBINVD, INSN_INVD, INSN_INVLPG, INSN_INVPCID,
	INSN_PAUSE, INSN_NOP, INSN_MONITOR, INSN_MWAIT, INSN_RSM, INSN_DESC_TABLE,
	INSN_VMCALL, INSN_VMMCALL,
	INSN_VIRT,     /* any other instruction of VMX or SVM */
};
/* clang-format on */

struct insn {
	uint8_t op; /* enum insn_op */
	uint8_t len;
	uint8_t width_bytes; /* of the memory operand, or of the port access */
	bool mem;            /* ModRM, moffs or string operand in memory */

	bool mem_dst;      /* the memory operand comes first: it is what is written, if any */
	bool has_imm;      /* the other operand is imm, else reg */
	bool reg_high;     /* reg is AH, CH, DH or BH: bits 15:8 of register reg */
	uint8_t reg;       /* by encoding, 0 to 15 */
	uint8_t reg_bytes; /* width of reg; differs from width_bytes for MOVZX and MOVSX */
	uint8_t rm;        /* ModRM's register when mem is false */
	uint8_t cr;        /* control-register number */
	uint64_t imm;      /* sign-extended to 64 bits; port number of IN and OUT */

	bool rep, repne, lock;

	/* Effective address: base + (index << scale) + disp, truncated to addr_bytes. */
	bool has_base, has_index, rip_relative;
	uint8_t base, index, scale;
	uint8_t addr_bytes;
	uint8_t seg;   /* by encoding (enum hvm_seg_index), override included */
	uint64_t disp; /* sign-extended */
};

/*
 * Decodes one instruction from at most len_bytes bytes. 0; -EINVAL: not one of the above, or longer
 * than 15 bytes; -EAGAIN: the bytes given end inside it. Reads nothing past len_bytes.
 */
int insn_decode(const uint8_t *bytes, size_t len_bytes, enum insn_mode mode, struct insn *out);

/*
 * The kick's quick path: the length of a plain MOV store to memory (88, 89, A2, A3, C6 /0, C7 /0),
 * any width. 0: something else, or the bytes end inside it; use insn_decode.
 */
unsigned insn_len_store(const uint8_t *bytes, size_t len_bytes, enum insn_mode mode);

/* Offset of the memory operand in its segment; a string instruction's source (SI), or its
 * destination (DI) if it has no source in memory. next_rip: address after the instruction. */
uint64_t insn_ea(const struct insn *insn, const uint64_t gpr[16], uint64_t next_rip);

/* value truncated to 1, 2, 4 or 8 bytes. */
static inline uint64_t insn_trunc(uint64_t value, unsigned width_bytes)
{
	return width_bytes >= 8 ? value : value & ((1ull << (width_bytes * 8)) - 1);
}

/* The low 1, 2, 4 or 8 bytes of value, sign-extended. */
static inline uint64_t insn_sign_extend(uint64_t value, unsigned width_bytes)
{
	uint64_t sign = 1ull << (width_bytes * 8 - 1);

	return (insn_trunc(value, width_bytes) ^ sign) - sign;
}

#endif
