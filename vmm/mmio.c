#include "vmm/mmio.h"

#include "vmm/alu.h"
#include "vmm/emul.h"
#include "vmm/gwalk.h"
#include "vmm/platform_ports.h"

#define RFLAGS_DF BIT(10)

/* --- registers ---------------------------------------------------------------------------- */

static uint64_t reg_read(const struct vcpu *v, unsigned reg, unsigned width_bytes, bool high)
{
	return insn_trunc(v->hv.gpr[reg & 15] >> (high ? 8 : 0), width_bytes);
}

/* Four bytes clear the upper half, fewer leave the rest alone. */
static void reg_write(struct vcpu *v, unsigned reg, unsigned width_bytes, bool high, uint64_t value)
{
	uint64_t *gpr = &v->hv.gpr[reg & 15];
	unsigned shift = high ? 8 : 0;
	uint64_t mask = insn_trunc(UINT64_MAX, width_bytes) << shift;

	if (width_bytes >= 4)
		*gpr = insn_trunc(value, width_bytes);
	else
		*gpr = (*gpr & ~mask) | ((value << shift) & mask);
}

static uint64_t operand_read(const struct emul *e)
{
	const struct insn *insn = &e->insn;

	if (insn->has_imm)
		return insn_trunc(insn->imm, insn->width_bytes);
	return reg_read(e->v, insn->reg, insn->reg_bytes, insn->reg_high);
}

static void operand_write(struct emul *e, uint64_t value)
{
	reg_write(e->v, e->insn.reg, e->insn.reg_bytes, e->insn.reg_high, value);
}

static uint64_t byte_swap(uint64_t value, unsigned width_bytes)
{
	return __builtin_bswap64(value) >> (64 - 8 * width_bytes);
}

/* --- one memory operand ------------------------------------------------------------------- */

static bool mem_read(struct emul *e, uint64_t *value)
{
	uint64_t ea = insn_ea(&e->insn, e->v->hv.gpr, e->v->hv.rip + e->insn.len);

	return emul_read(e, e->insn.seg, ea, e->insn.width_bytes, value);
}

static bool mem_write(struct emul *e, uint64_t value)
{
	uint64_t ea = insn_ea(&e->insn, e->v->hv.gpr, e->v->hv.rip + e->insn.len);

	return emul_write(e, e->insn.seg, ea, e->insn.width_bytes, value);
}

static bool do_store(struct emul *e)
{
	uint64_t value = operand_read(e);

	if (e->insn.op == INSN_MOVBE)
		value = byte_swap(value, e->insn.width_bytes);
	return mem_write(e, value);
}

static bool do_load(struct emul *e)
{
	unsigned width_bytes = e->insn.width_bytes;
	uint64_t value;

	if (!mem_read(e, &value))
		return false;
	if (e->insn.op == INSN_MOVSX)
		value = insn_sign_extend(value, width_bytes);
	else if (e->insn.op == INSN_MOVBE)
		value = byte_swap(value, width_bytes);
	operand_write(e, value);
	return true;
}

static bool do_binary(struct emul *e)
{
	bool keep = e->insn.op != INSN_CMP && e->insn.op != INSN_TEST;
	uint64_t rflags = e->v->hv.rflags, mem, result;

	if (!mem_read(e, &mem))
		return false;
	if (e->insn.mem_dst)
		result = alu_binary(e->insn.op, mem, operand_read(e), e->insn.width_bytes, &rflags);
	else
		result = alu_binary(e->insn.op, operand_read(e), mem, e->insn.width_bytes, &rflags);
	if (keep && e->insn.mem_dst && !mem_write(e, result))
		return false;
	if (keep && !e->insn.mem_dst)
		operand_write(e, result);
	e->v->hv.rflags = rflags;
	return true;
}

static bool do_unary(struct emul *e)
{
	uint64_t rflags = e->v->hv.rflags, mem;

	if (!mem_read(e, &mem) ||
	    !mem_write(e, alu_unary(e->insn.op, mem, e->insn.width_bytes, &rflags)))
		return false;
	e->v->hv.rflags = rflags;
	return true;
}

static bool do_bit(struct emul *e)
{
	uint64_t rflags = e->v->hv.rflags, mem;

	if (!mem_read(e, &mem))
		return false;
	mem = alu_bit(e->insn.op, mem, e->insn.imm, e->insn.width_bytes, &rflags);
	if (e->insn.op != INSN_BT && !mem_write(e, mem))
		return false;
	e->v->hv.rflags = rflags;
	return true;
}

/* XCHG and XADD: the register takes what memory held. */
static bool do_exchange(struct emul *e)
{
	uint64_t rflags = e->v->hv.rflags, mem, value = operand_read(e);

	if (!mem_read(e, &mem))
		return false;
	if (e->insn.op == INSN_XADD)
		value = alu_binary(INSN_ADD, mem, value, e->insn.width_bytes, &rflags);
	if (!mem_write(e, value))
		return false;
	operand_write(e, mem);
	e->v->hv.rflags = rflags;
	return true;
}

static bool do_cmpxchg(struct emul *e)
{
	unsigned width_bytes = e->insn.width_bytes;
	uint64_t rflags = e->v->hv.rflags, mem;
	uint64_t expected = reg_read(e->v, HVM_RAX, width_bytes, false);

	if (!mem_read(e, &mem))
		return false;
	alu_binary(INSN_CMP, expected, mem, width_bytes, &rflags);
	if (mem == expected) {
		if (!mem_write(e, operand_read(e)))
			return false;
	} else {
		reg_write(e->v, HVM_RAX, width_bytes, false, mem);
	}
	e->v->hv.rflags = rflags;
	return true;
}

/* --- strings ------------------------------------------------------------------------------ */

/* A string instruction's own registers have the address size; two bytes leave the rest alone. */
static uint64_t addr_reg(const struct emul *e, unsigned reg)
{
	return insn_trunc(e->v->hv.gpr[reg], e->insn.addr_bytes);
}

static void addr_reg_add(struct emul *e, unsigned reg, uint64_t delta)
{
	reg_write(e->v, reg, e->insn.addr_bytes, false, e->v->hv.gpr[reg] + delta);
}

static bool element_move(struct emul *e)
{
	uint64_t value;

	return emul_read(e, e->insn.seg, addr_reg(e, HVM_RSI), e->insn.width_bytes, &value) &&
	       emul_write(e, HVM_ES, addr_reg(e, HVM_RDI), e->insn.width_bytes, value);
}

static bool element_load(struct emul *e)
{
	uint64_t value;

	if (!emul_read(e, e->insn.seg, addr_reg(e, HVM_RSI), e->insn.width_bytes, &value))
		return false;
	operand_write(e, value);
	return true;
}

static bool element_store(struct emul *e)
{
	return emul_write(e, HVM_ES, addr_reg(e, HVM_RDI), e->insn.width_bytes, operand_read(e));
}

static uint16_t port_of(const struct emul *e)
{
	return (uint16_t)e->v->hv.gpr[HVM_RDX];
}

/* A port is read only when what it gives has a place to go. */
static bool element_in(struct emul *e)
{
	uint64_t di = addr_reg(e, HVM_RDI);

	if (!emul_write_check(e, HVM_ES, di, e->insn.width_bytes))
		return false;
	return emul_write(e, HVM_ES, di, e->insn.width_bytes,
	                  ports_read(e->v->vm, port_of(e), e->insn.width_bytes));
}

static bool element_out(struct emul *e)
{
	uint64_t value;

	if (!emul_read(e, e->insn.seg, addr_reg(e, HVM_RSI), e->insn.width_bytes, &value))
		return false;
	ports_write(e->v->vm, port_of(e), e->insn.width_bytes, (uint32_t)value);
	return true;
}

static bool element_do(struct emul *e)
{
	switch (e->insn.op) {
	case INSN_MOVS: return element_move(e);
	case INSN_LODS: return element_load(e);
	case INSN_STOS: return element_store(e);
	case INSN_INS: return element_in(e);
	default: return element_out(e);
	}
}

/*
 * A bounded number of elements; with some left, rip stays and the guest runs into the same exit
 * again, after it had its chance to take an interrupt, as on hardware.
 */
static enum mmio_result do_string(struct emul *e)
{
	bool rep = e->insn.rep || e->insn.repne;
	bool uses_si =
	        e->insn.op == INSN_MOVS || e->insn.op == INSN_LODS || e->insn.op == INSN_OUTS;
	bool uses_di = e->insn.op == INSN_MOVS || e->insn.op == INSN_STOS || e->insn.op == INSN_INS;
	uint64_t step =
	        e->v->hv.rflags & RFLAGS_DF ? -(uint64_t)e->insn.width_bytes : e->insn.width_bytes;
	uint64_t left = rep ? addr_reg(e, HVM_RCX) : 1;

	for (unsigned n = 0; left && n < MMIO_STRING_MAX; n++, left--) {
		if (!element_do(e))
			return MMIO_FAULT;
		if (uses_si)
			addr_reg_add(e, HVM_RSI, step);
		if (uses_di)
			addr_reg_add(e, HVM_RDI, step);
		if (rep)
			addr_reg_add(e, HVM_RCX, -1ull);
	}
	if (!left)
		hvm_skip(&e->v->hv, e->insn.len);
	return MMIO_DONE;
}

/* --- entry points ------------------------------------------------------------------------- */

/* -1: not an instruction we carry out; else whether it went well. */
static int operand_do(struct emul *e)
{
	switch (e->insn.op) {
	case INSN_MOV:
	case INSN_MOVBE: return e->insn.mem_dst ? do_store(e) : do_load(e);
	case INSN_MOVZX:
	case INSN_MOVSX: return do_load(e);
	case INSN_ADD:
	case INSN_OR:
	case INSN_ADC:
	case INSN_SBB:
	case INSN_AND:
	case INSN_SUB:
	case INSN_XOR:
	case INSN_CMP:
	case INSN_TEST: return do_binary(e);
	case INSN_INC:
	case INSN_DEC:
	case INSN_NOT:
	case INSN_NEG: return do_unary(e);
	case INSN_BT:
	case INSN_BTS:
	case INSN_BTR:
	case INSN_BTC: return do_bit(e);
	case INSN_XCHG:
	case INSN_XADD: return do_exchange(e);
	case INSN_CMPXCHG: return do_cmpxchg(e);
	}
	return -1;
}

enum mmio_result mmio_emulate(struct vcpu *v, gpa_t gpa, bool write)
{
	struct emul e;
	int done;

	(void)write;
	if (!emul_begin(&e, v, gpa))
		return MMIO_FAULT;
	if (e.insn.mem &&
	    (e.insn.op == INSN_MOVS || e.insn.op == INSN_STOS || e.insn.op == INSN_LODS ||
	     e.insn.op == INSN_INS || e.insn.op == INSN_OUTS)) {
		/* Two operands, one address: which is whose is not said. */
		e.fault_gpa = EMUL_NO_GPA;
		return do_string(&e);
	}
	done = e.insn.mem ? operand_do(&e) : -1;
	if (done < 0)
		emul_refuse(&e, "an access Quell does not carry out");
	if (done <= 0)
		return MMIO_FAULT;
	hvm_skip(&v->hv, e.insn.len);
	return MMIO_DONE;
}

/* Length of the exiting IN or OUT; 0: an exception is injected. */
static unsigned pio_len(struct vcpu *v)
{
	const struct hvm_exit *exit = &v->hv.exit;
	struct emul e;

	if (exit->u.pio.next_rip)
		return (unsigned)(exit->u.pio.next_rip - v->hv.rip) & 15;
	if (exit->insn_len)
		return exit->insn_len;
	return emul_begin(&e, v, EMUL_NO_GPA) ? e.insn.len : 0;
}

enum mmio_result pio_emulate(struct vcpu *v)
{
	const struct hvm_exit *exit = &v->hv.exit;
	unsigned width_bytes = exit->u.pio.width_bytes, len;
	struct emul e;

	if (exit->u.pio.string) {
		/* Decoded afresh: not every processor says segment and address size. */
		if (!emul_begin(&e, v, EMUL_NO_GPA))
			return MMIO_FAULT;
		if (e.insn.op == INSN_INS || e.insn.op == INSN_OUTS)
			return do_string(&e);
		emul_refuse(&e, "string I/O whose code has changed");
		return MMIO_FAULT;
	}
	len = pio_len(v);
	if (!len)
		return MMIO_FAULT;
	if (exit->u.pio.in)
		reg_write(v, HVM_RAX, width_bytes, false,
		          ports_read(v->vm, exit->u.pio.port, width_bytes));
	else
		ports_write(v->vm, exit->u.pio.port, width_bytes,
		            (uint32_t)reg_read(v, HVM_RAX, width_bytes, false));
	hvm_skip(&v->hv, len);
	return MMIO_DONE;
}
