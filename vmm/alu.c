#include "vmm/alu.h"

#include "arch/x86/insn.h"

static bool top_bit(uint64_t value, unsigned width_bytes)
{
	return value >> (width_bytes * 8 - 1) & 1;
}

static uint64_t flag(bool set, uint64_t bit)
{
	return set ? bit : 0;
}

/* ZF, SF and PF of a result already truncated. */
static uint64_t result_flags(uint64_t result, unsigned width_bytes)
{
	return flag(!result, ALU_ZF) | flag(top_bit(result, width_bytes), ALU_SF) |
	       flag(!__builtin_parity((unsigned)(result & 0xff)), ALU_PF);
}

static uint64_t add(uint64_t dst, uint64_t src, bool carry, unsigned width_bytes, uint64_t *flags)
{
	uint64_t result = insn_trunc(dst + src + carry, width_bytes);
	uint64_t carries = (dst & src) | ((dst | src) & ~result);

	*flags = flag(top_bit(carries, width_bytes), ALU_CF) |
	         flag(top_bit(~(dst ^ src) & (dst ^ result), width_bytes), ALU_OF) |
	         flag((dst ^ src ^ result) & 0x10, ALU_AF);
	return result;
}

static uint64_t subtract(uint64_t dst, uint64_t src, bool borrow, unsigned width_bytes,
                         uint64_t *flags)
{
	uint64_t result = insn_trunc(dst - src - borrow, width_bytes);
	uint64_t borrows = (~dst & src) | ((~dst | src) & result);

	*flags = flag(top_bit(borrows, width_bytes), ALU_CF) |
	         flag(top_bit((dst ^ src) & (dst ^ result), width_bytes), ALU_OF) |
	         flag((dst ^ src ^ result) & 0x10, ALU_AF);
	return result;
}

uint64_t alu_binary(unsigned op, uint64_t dst, uint64_t src, unsigned width_bytes, uint64_t *rflags)
{
	bool carry = *rflags & ALU_CF;
	uint64_t result = 0, flags = 0;

	dst = insn_trunc(dst, width_bytes);
	src = insn_trunc(src, width_bytes);
	switch (op) {
	case INSN_ADD: result = add(dst, src, false, width_bytes, &flags); break;
	case INSN_ADC: result = add(dst, src, carry, width_bytes, &flags); break;
	case INSN_SUB:
	case INSN_CMP: result = subtract(dst, src, false, width_bytes, &flags); break;
	case INSN_SBB: result = subtract(dst, src, carry, width_bytes, &flags); break;
	case INSN_OR: result = dst | src; break;
	case INSN_AND:
	case INSN_TEST: result = dst & src; break;
	case INSN_XOR: result = dst ^ src; break;
	}
	*rflags = (*rflags & ~ALU_FLAGS) | flags | result_flags(result, width_bytes);
	return result;
}

uint64_t alu_unary(unsigned op, uint64_t value, unsigned width_bytes, uint64_t *rflags)
{
	uint64_t keep = *rflags & ALU_CF, flags = 0, result;

	value = insn_trunc(value, width_bytes);
	if (op == INSN_NOT)
		return insn_trunc(~value, width_bytes);
	if (op == INSN_NEG) {
		result = subtract(0, value, false, width_bytes, &flags);
		keep = flags & ALU_CF;
	} else if (op == INSN_INC) {
		result = add(value, 1, false, width_bytes, &flags);
	} else {
		result = subtract(value, 1, false, width_bytes, &flags);
	}
	flags = (flags & ~ALU_CF) | keep;
	*rflags = (*rflags & ~ALU_FLAGS) | flags | result_flags(result, width_bytes);
	return result;
}

uint64_t alu_bit(unsigned op, uint64_t value, uint64_t bit, unsigned width_bytes, uint64_t *rflags)
{
	uint64_t mask = 1ull << (bit & (width_bytes * 8 - 1));

	*rflags = (*rflags & ~ALU_CF) | flag(value & mask, ALU_CF);
	if (op == INSN_BTS)
		value |= mask;
	else if (op == INSN_BTR)
		value &= ~mask;
	else if (op == INSN_BTC)
		value ^= mask;
	return insn_trunc(value, width_bytes);
}
