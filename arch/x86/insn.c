#include "arch/x86/insn.h"

#include "arch/platform.h"
#include "arch/x86/hvm.h"

#define SEG_NONE 0xff

#define REX_B 1u
#define REX_X 2u
#define REX_R 4u
#define REX_W 8u

/* Bytes under decoding. Errors stick, so that one look at the end suffices. */
struct cursor {
	const uint8_t *bytes;
	size_t len_bytes, at;
	int err;

	enum insn_mode mode;
	bool opsize, addrsize; /* 66 and 67 seen */
	bool rex_seen;
	uint8_t rex, seg;
	uint8_t op_bytes;
	uint8_t modrm;
};

static uint8_t take8(struct cursor *c)
{
	if (c->err)
		return 0;
	if (c->at >= INSN_LEN_MAX) {
		c->err = -EINVAL;
		return 0;
	}
	if (c->at >= c->len_bytes) {
		c->err = -EAGAIN;
		return 0;
	}
	return c->bytes[c->at++];
}

/* Little-endian and sign-extended. */
static uint64_t take_signed(struct cursor *c, unsigned width_bytes)
{
	uint64_t value = 0;

	for (unsigned i = 0; i < width_bytes; i++)
		value |= (uint64_t)take8(c) << (8 * i);
	return insn_sign_extend(value, width_bytes);
}

/* An immediate of the operand's size, four bytes at most. */
static uint64_t take_imm(struct cursor *c, unsigned width_bytes)
{
	return take_signed(c, MIN(width_bytes, 4u));
}

/* Segment overrides by encoding. In 64-bit mode only FS and GS count (APM 3 1.2.4). */
static bool prefix_seg(struct cursor *c, uint8_t byte)
{
	uint8_t seg;

	switch (byte) {
	case 0x26: seg = HVM_ES; break;
	case 0x2e: seg = HVM_CS; break;
	case 0x36: seg = HVM_SS; break;
	case 0x3e: seg = HVM_DS; break;
	case 0x64: seg = HVM_FS; break;
	case 0x65: seg = HVM_GS; break;
	default: return false;
	}
	if (c->mode != INSN_MODE_64 || seg >= HVM_FS)
		c->seg = seg;
	return true;
}

/* Takes the prefixes and returns the first opcode byte. */
static uint8_t take_prefixes(struct cursor *c, struct insn *out)
{
	for (;;) {
		uint8_t byte = take8(c);

		if (c->err)
			return 0;
		if (c->mode == INSN_MODE_64 && (byte & 0xf0) == 0x40) {
			c->rex = byte & 0xf;
			c->rex_seen = true;
			continue;
		}
		if (byte == 0x66) {
			c->opsize = true;
		} else if (byte == 0x67) {
			c->addrsize = true;
		} else if (byte == 0xf0) {
			out->lock = true;
		} else if (byte == 0xf2 || byte == 0xf3) {
			/* The last of the two counts. */
			out->rep = byte == 0xf3;
			out->repne = byte == 0xf2;
		} else if (!prefix_seg(c, byte)) {
			return byte;
		}
		/* REX counts only right before the opcode. */
		c->rex = 0;
		c->rex_seen = false;
	}
}

static void sizes_set(struct cursor *c, struct insn *out)
{
	if (c->mode == INSN_MODE_64) {
		c->op_bytes = c->rex & REX_W ? 8 : c->opsize ? 2 : 4;
		out->addr_bytes = c->addrsize ? 4 : 8;
	} else {
		c->op_bytes = (c->mode == INSN_MODE_16) != c->opsize ? 2 : 4;
		out->addr_bytes = (c->mode == INSN_MODE_16) != c->addrsize ? 2 : 4;
	}
}

/* ModRM with 16-bit addressing (APM 3 table A-34). */
static void take_mem16(struct cursor *c, struct insn *out)
{
	static const uint8_t base[8] = {HVM_RBX, HVM_RBX, HVM_RBP, HVM_RBP,
	                                HVM_RSI, HVM_RDI, HVM_RBP, HVM_RBX};
	unsigned mod = c->modrm >> 6, rm = c->modrm & 7;

	out->has_base = !(mod == 0 && rm == 6);
	out->base = base[rm];
	out->has_index = rm < 4;
	out->index = rm & 1 ? HVM_RDI : HVM_RSI;
	out->seg = out->has_base && out->base == HVM_RBP ? HVM_SS : HVM_DS;
	if (mod == 2 || !out->has_base)
		out->disp = take_signed(c, 2);
	else if (mod == 1)
		out->disp = take_signed(c, 1);
}

static void take_mem(struct cursor *c, struct insn *out)
{
	unsigned mod = c->modrm >> 6, rm = c->modrm & 7;

	out->seg = HVM_DS;
	out->has_base = true;
	if (rm == 4) {
		uint8_t sib = take8(c);

		out->scale = sib >> 6;
		out->index = ((sib >> 3) & 7) | (c->rex & REX_X ? 8 : 0);
		out->has_index = out->index != HVM_RSP;
		rm = sib & 7;
		out->has_base = !(mod == 0 && rm == 5);
	} else if (mod == 0 && rm == 5) {
		out->has_base = false;
		out->rip_relative = c->mode == INSN_MODE_64;
	}
	out->base = rm | (c->rex & REX_B ? 8 : 0);
	if (out->has_base && (out->base == HVM_RSP || out->base == HVM_RBP))
		out->seg = HVM_SS;
	if (mod == 2 || !out->has_base)
		out->disp = take_signed(c, 4);
	else if (mod == 1)
		out->disp = take_signed(c, 1);
}

/* Takes ModRM and all that belongs to it; width_bytes is the memory operand's. */
static void take_modrm(struct cursor *c, struct insn *out, unsigned width_bytes)
{
	c->modrm = take8(c);
	out->width_bytes = out->reg_bytes = (uint8_t)width_bytes;
	out->reg = ((c->modrm >> 3) & 7) | (c->rex & REX_R ? 8 : 0);
	out->mem = c->modrm >> 6 != 3;
	if (!out->mem) {
		out->rm = (c->modrm & 7) | (c->rex & REX_B ? 8 : 0);
		return;
	}
	if (out->addr_bytes == 2)
		take_mem16(c, out);
	else
		take_mem(c, out);
	if (c->seg != SEG_NONE)
		out->seg = c->seg;
}

/* Makes reg a register of that width: without REX, 4 to 7 name the high bytes. */
static void reg_set(const struct cursor *c, struct insn *out, unsigned width_bytes)
{
	out->reg_bytes = (uint8_t)width_bytes;
	if (width_bytes == 1 && !c->rex_seen && out->reg >= 4) {
		out->reg -= 4;
		out->reg_high = true;
	}
}

static unsigned group_of(const struct cursor *c)
{
	return (c->modrm >> 3) & 7;
}

/* op E, G or op G, E. */
static void form_mem_reg(struct cursor *c, struct insn *out, uint8_t op, unsigned width_bytes,
                         bool mem_dst)
{
	out->op = op;
	take_modrm(c, out, width_bytes);
	reg_set(c, out, width_bytes);
	out->mem_dst = mem_dst;
}

static void form_acc_imm(struct cursor *c, struct insn *out, uint8_t op, unsigned width_bytes)
{
	out->op = op;
	out->reg = HVM_RAX;
	out->width_bytes = out->reg_bytes = (uint8_t)width_bytes;
	out->has_imm = true;
	out->imm = take_imm(c, width_bytes);
}

static void form_mem_imm(struct cursor *c, struct insn *out, unsigned width_bytes,
                         unsigned imm_bytes)
{
	out->mem_dst = true;
	out->has_imm = true;
	out->imm = take_imm(c, imm_bytes);
	out->reg_bytes = (uint8_t)width_bytes;
}

static void form_moffs(struct cursor *c, struct insn *out, unsigned width_bytes, bool mem_dst)
{
	out->op = INSN_MOV;
	out->mem = true;
	out->mem_dst = mem_dst;
	out->reg = HVM_RAX;
	out->width_bytes = out->reg_bytes = (uint8_t)width_bytes;
	out->seg = c->seg != SEG_NONE ? c->seg : HVM_DS;
	out->disp = insn_trunc(take_signed(c, out->addr_bytes), out->addr_bytes);
}

static void form_string(struct cursor *c, struct insn *out, uint8_t op, unsigned width_bytes)
{
	bool from_si = op == INSN_MOVS || op == INSN_LODS || op == INSN_CMPS || op == INSN_OUTS;

	out->op = op;
	out->mem = true;
	out->mem_dst = op == INSN_MOVS || op == INSN_STOS || op == INSN_INS;
	out->reg = HVM_RAX;
	out->width_bytes = out->reg_bytes = (uint8_t)width_bytes;
	out->has_base = true;
	out->base = from_si ? HVM_RSI : HVM_RDI;
	/* An override reaches only the source; the destination is always in ES. */
	out->seg = !from_si ? HVM_ES : c->seg != SEG_NONE ? c->seg : HVM_DS;
}

static void form_port(struct cursor *c, struct insn *out, uint8_t byte)
{
	out->op = byte & 2 ? INSN_OUT : INSN_IN;
	out->reg = HVM_RAX;
	/* Ports are four bytes wide at most, REX.W or not. */
	out->width_bytes = out->reg_bytes = byte & 1 ? MIN(c->op_bytes, 4) : 1;
	if (byte < 0xe8) {
		out->has_imm = true;
		out->imm = take8(c);
	}
}

/* F6, F7: TEST imm, NOT, NEG. The others multiply and divide: nobody does that to a device. */
static void group3(struct cursor *c, struct insn *out, unsigned width_bytes)
{
	take_modrm(c, out, width_bytes);
	if (group_of(c) < 2) {
		out->op = INSN_TEST;
		form_mem_imm(c, out, width_bytes, width_bytes);
	} else if (group_of(c) < 4) {
		out->op = group_of(c) == 2 ? INSN_NOT : INSN_NEG;
		out->mem_dst = true;
	} else {
		c->err = c->err ? c->err : -EINVAL;
	}
}

/* FE, FF: INC, DEC. */
static void group45(struct cursor *c, struct insn *out, unsigned width_bytes)
{
	take_modrm(c, out, width_bytes);
	out->op = group_of(c) ? INSN_DEC : INSN_INC;
	out->mem_dst = true;
	if (group_of(c) > 1)
		c->err = c->err ? c->err : -EINVAL;
}

static int op_one_byte(struct cursor *c, struct insn *out, uint8_t byte)
{
	unsigned width_bytes = byte & 1 ? c->op_bytes : 1;

	if (byte < 0x40 && (byte & 7) < 4) {
		form_mem_reg(c, out, byte >> 3, width_bytes, !(byte & 2));
		return 0;
	}
	if (byte < 0x40 && (byte & 7) < 6) {
		form_acc_imm(c, out, byte >> 3, width_bytes);
		return 0;
	}
	switch (byte) {
	case 0x63:
		if (c->mode != INSN_MODE_64)
			return -EINVAL;
		out->op = INSN_MOVSX;
		take_modrm(c, out, c->op_bytes == 2 ? 2 : 4);
		out->reg_bytes = c->op_bytes;
		return 0;
	case 0x6c ... 0x6d: form_string(c, out, INSN_INS, MIN(width_bytes, 4u)); return 0;
	case 0x6e ... 0x6f: form_string(c, out, INSN_OUTS, MIN(width_bytes, 4u)); return 0;
	case 0x82:
		if (c->mode == INSN_MODE_64)
			return -EINVAL;
		/* fall through */
	case 0x80 ... 0x81:
	case 0x83:
		take_modrm(c, out, width_bytes);
		out->op = (uint8_t)group_of(c);
		form_mem_imm(c, out, width_bytes, byte == 0x81 ? width_bytes : 1);
		return 0;
	case 0x84 ... 0x85: form_mem_reg(c, out, INSN_TEST, width_bytes, true); return 0;
	case 0x86 ... 0x87: form_mem_reg(c, out, INSN_XCHG, width_bytes, true); return 0;
	case 0x88 ... 0x8b: form_mem_reg(c, out, INSN_MOV, width_bytes, !(byte & 2)); return 0;
	case 0x90:
		if (c->rex & REX_B)
			return -EINVAL; /* XCHG R8, RAX */
		out->op = out->rep ? INSN_PAUSE : INSN_NOP;
		return 0;
	case 0xa0 ... 0xa3: form_moffs(c, out, width_bytes, byte & 2); return 0;
	case 0xa4 ... 0xa5: form_string(c, out, INSN_MOVS, width_bytes); return 0;
	case 0xa6 ... 0xa7: form_string(c, out, INSN_CMPS, width_bytes); return 0;
	case 0xa8 ... 0xa9: form_acc_imm(c, out, INSN_TEST, width_bytes); return 0;
	case 0xaa ... 0xab: form_string(c, out, INSN_STOS, width_bytes); return 0;
	case 0xac ... 0xad: form_string(c, out, INSN_LODS, width_bytes); return 0;
	case 0xae ... 0xaf: form_string(c, out, INSN_SCAS, width_bytes); return 0;
	case 0xc6 ... 0xc7:
		take_modrm(c, out, width_bytes);
		out->op = INSN_MOV;
		form_mem_imm(c, out, width_bytes, width_bytes);
		return group_of(c) ? -EINVAL : 0;
	case 0xe4 ... 0xe7:
	case 0xec ... 0xef: form_port(c, out, byte); return 0;
	case 0xf4: out->op = INSN_HLT; return 0;
	case 0xf6 ... 0xf7: group3(c, out, width_bytes); return 0;
	case 0xfe ... 0xff: group45(c, out, width_bytes); return 0;
	}
	return -EINVAL;
}

/* 0F 01 with a register form: the byte itself names the instruction. */
static int op_0f01_reg(struct insn *out, uint8_t modrm)
{
	switch (modrm) {
	case 0xc1: out->op = INSN_VMCALL; return 0;
	case 0xc8:
	case 0xfa: out->op = INSN_MONITOR; return 0;
	case 0xc9:
	case 0xfb: out->op = INSN_MWAIT; return 0;
	case 0xd0: out->op = INSN_XGETBV; return 0;
	case 0xd1: out->op = INSN_XSETBV; return 0;
	case 0xd9: out->op = INSN_VMMCALL; return 0;
	case 0xf9: out->op = INSN_RDTSCP; return 0;
	case 0xc2: /* VMLAUNCH, VMRESUME, VMXOFF, VMFUNC */
	case 0xc3 ... 0xc4:
	case 0xd4:
	case 0xd8: /* VMRUN, VMLOAD, VMSAVE, STGI, CLGI, SKINIT, INVLPGA */
	case 0xda ... 0xde:
	case 0xdf: out->op = INSN_VIRT; return 0;
	}
	switch ((modrm >> 3) & 7) {
	case 4: out->op = INSN_SMSW; return 0;
	case 6: out->op = INSN_LMSW; return 0;
	}
	return -EINVAL;
}

static int op_0f01(struct cursor *c, struct insn *out)
{
	take_modrm(c, out, 2);
	if (!out->mem)
		return c->err ? 0 : op_0f01_reg(out, c->modrm);
	switch (group_of(c)) {
	case 4:
		out->op = INSN_SMSW;
		out->mem_dst = true;
		return 0;
	case 6: out->op = INSN_LMSW; return 0;
	case 7: out->op = INSN_INVLPG; return 0;
	case 5: return -EINVAL;
	}
	out->op = INSN_DESC_TABLE;
	return 0;
}

/* MOV to and from control and debug registers. The mod bits do not matter (SDM 2B). */
static int op_mov_cr(struct cursor *c, struct insn *out, uint8_t byte)
{
	c->modrm = take8(c);
	out->cr = (uint8_t)group_of(c) | (c->rex & REX_R ? 8 : 0);
	out->reg = (c->modrm & 7) | (c->rex & REX_B ? 8 : 0);
	out->reg_bytes = out->width_bytes = c->mode == INSN_MODE_64 ? 8 : 4;
	if (byte & 1)
		out->op = INSN_MOV_DR;
	else
		out->op = byte & 2 ? INSN_MOV_TO_CR : INSN_MOV_FROM_CR;
	/* AMD: LOCK MOV CR0 is MOV CR8 outside 64-bit mode. */
	if (out->lock) {
		if ((byte & 1) || out->cr)
			return -EINVAL;
		out->cr = 8;
		out->lock = false;
	}
	return 0;
}

/* 0F 38: MOVBE, and INVEPT, INVVPID, INVPCID. */
static int op_0f38(struct cursor *c, struct insn *out)
{
	uint8_t byte = take8(c);

	if (c->err)
		return 0;
	if (byte >= 0x80 && byte <= 0x82 && c->opsize) {
		take_modrm(c, out, 8);
		out->op = byte == 0x82 ? INSN_INVPCID : INSN_VIRT;
		return 0;
	}
	if ((byte & 0xfe) != 0xf0 || out->rep || out->repne)
		return -EINVAL;
	form_mem_reg(c, out, INSN_MOVBE, c->op_bytes, byte & 1);
	return out->mem ? 0 : c->err ? 0 : -EINVAL;
}

/* 0F BA /4 to /7: BT, BTS, BTR, BTC with an immediate bit number. */
static int op_bit_imm(struct cursor *c, struct insn *out)
{
	take_modrm(c, out, c->op_bytes);
	out->op = (uint8_t)(INSN_BT + (group_of(c) & 3));
	form_mem_imm(c, out, c->op_bytes, 1);
	return c->err || group_of(c) >= 4 ? 0 : -EINVAL;
}

/* 0F C7: VMPTRLD, VMCLEAR, VMXON, VMPTRST. */
static int op_0fc7(struct cursor *c, struct insn *out)
{
	take_modrm(c, out, 8);
	out->op = INSN_VIRT;
	return c->err || (out->mem && group_of(c) >= 6) ? 0 : -EINVAL;
}

static int op_two_bytes(struct cursor *c, struct insn *out)
{
	uint8_t byte = take8(c);
	unsigned width_bytes = byte & 1 ? c->op_bytes : 1;

	if (c->err)
		return 0;
	switch (byte) {
	case 0x00:
		take_modrm(c, out, 2);
		out->op = INSN_DESC_TABLE;
		return 0;
	case 0x01: return op_0f01(c, out);
	case 0x06: out->op = INSN_CLTS; return 0;
	case 0x08: out->op = INSN_INVD; return 0;
	case 0x09: out->op = INSN_WBINVD; return 0;
	case 0x20 ... 0x23: return op_mov_cr(c, out, byte);
	case 0x30: out->op = INSN_WRMSR; return 0;
	case 0x31: out->op = INSN_RDTSC; return 0;
	case 0x32: out->op = INSN_RDMSR; return 0;
	case 0x33: out->op = INSN_RDPMC; return 0;
	case 0x38: return op_0f38(c, out);
	case 0x78: /* VMREAD, VMWRITE; with a prefix these are SSE4a's */
	case 0x79:
		if (c->opsize || out->rep || out->repne)
			return -EINVAL;
		take_modrm(c, out, c->mode == INSN_MODE_64 ? 8 : 4);
		out->op = INSN_VIRT;
		return 0;
	case 0xa2: out->op = INSN_CPUID; return 0;
	case 0xaa: out->op = INSN_RSM; return 0;
	case 0xb0:
	case 0xb1: form_mem_reg(c, out, INSN_CMPXCHG, width_bytes, true); return 0;
	case 0xb6 ... 0xb7:
	case 0xbe ... 0xbf:
		out->op = byte < 0xb8 ? INSN_MOVZX : INSN_MOVSX;
		take_modrm(c, out, byte & 1 ? 2 : 1);
		out->reg_bytes = c->op_bytes;
		return 0;
	case 0xba: return op_bit_imm(c, out);
	case 0xc0:
	case 0xc1: form_mem_reg(c, out, INSN_XADD, width_bytes, true); return 0;
	case 0xc3: /* MOVNTI */
		if (c->opsize || out->rep || out->repne)
			return -EINVAL;
		form_mem_reg(c, out, INSN_MOV, c->op_bytes == 8 ? 8 : 4, true);
		return out->mem || c->err ? 0 : -EINVAL;
	case 0xc7: return op_0fc7(c, out);
	}
	return -EINVAL;
}

/* LOCK is #UD but on these, and only with memory as destination (APM 3 1.2.5). */
static bool lock_allowed(const struct insn *insn)
{
	if (!insn->mem || !insn->mem_dst)
		return false;
	switch (insn->op) {
	case INSN_ADD:
	case INSN_OR:
	case INSN_ADC:
	case INSN_SBB:
	case INSN_AND:
	case INSN_SUB:
	case INSN_XOR:
	case INSN_BTS:
	case INSN_BTR:
	case INSN_BTC:
	case INSN_XCHG:
	case INSN_XADD:
	case INSN_CMPXCHG:
	case INSN_INC:
	case INSN_DEC:
	case INSN_NOT:
	case INSN_NEG: return true;
	}
	return false;
}

int insn_decode(const uint8_t *bytes, size_t len_bytes, enum insn_mode mode, struct insn *out)
{
	struct cursor c = {.bytes = bytes, .len_bytes = len_bytes, .mode = mode, .seg = SEG_NONE};
	uint8_t byte;
	int err;

	memset(out, 0, sizeof(*out));
	byte = take_prefixes(&c, out);
	if (c.err)
		return c.err;
	sizes_set(&c, out);
	err = byte == 0x0f ? op_two_bytes(&c, out) : op_one_byte(&c, out, byte);
	if (err || c.err)
		return err ? err : c.err;
	if (out->lock && !lock_allowed(out))
		return -EINVAL;
	out->len = (uint8_t)c.at;
	return 0;
}

uint64_t insn_ea(const struct insn *insn, const uint64_t gpr[16], uint64_t next_rip)
{
	uint64_t ea = insn->disp;

	if (insn->rip_relative)
		ea += next_rip;
	if (insn->has_base)
		ea += gpr[insn->base & 15];
	if (insn->has_index)
		ea += gpr[insn->index & 15] << insn->scale;
	return insn_trunc(ea, insn->addr_bytes);
}

/* --- the quick path ----------------------------------------------------------------------- */

/* Bytes that follow ModRM for its memory operand; sib is looked at only if there is one. */
static unsigned mem_len(uint8_t modrm, uint8_t sib, bool addr16)
{
	unsigned mod = modrm >> 6, rm = modrm & 7;
	unsigned len = 0;

	if (addr16)
		return mod == 1 ? 1 : mod == 2 || rm == 6 ? 2 : 0;
	if (rm == 4) {
		len = 1;
		rm = sib & 7;
	}
	if (mod == 1)
		return len + 1;
	return mod == 2 || rm == 5 ? len + 4 : len;
}

unsigned insn_len_store(const uint8_t *bytes, size_t len_bytes, enum insn_mode mode)
{
	bool op16 = mode == INSN_MODE_16, wide = false;
	unsigned at = 0, addr_bytes = mode == INSN_MODE_64 ? 8 : mode == INSN_MODE_32 ? 4 : 2;
	uint8_t byte, modrm, sib = 0;

	len_bytes = MIN(len_bytes, (size_t)INSN_LEN_MAX);
	for (;; at++) {
		if (at >= len_bytes)
			return 0;
		byte = bytes[at];
		if (mode == INSN_MODE_64 && (byte & 0xf0) == 0x40) {
			wide = byte & REX_W;
			continue;
		}
		if (byte == 0x66)
			op16 = mode != INSN_MODE_16;
		else if (byte == 0x67)
			addr_bytes = mode == INSN_MODE_32 ? 2 : 4;
		else if ((byte & 0xe7) != 0x26 && (byte & 0xfe) != 0x64)
			break;
		wide = false;
	}
	at++;
	if ((byte & 0xfe) == 0xa2) {
		at += addr_bytes;
		return at <= len_bytes ? at : 0;
	}
	if (((byte & 0xfe) != 0x88 && (byte & 0xfe) != 0xc6) || at >= len_bytes)
		return 0;
	modrm = bytes[at++];
	if (modrm >> 6 == 3 || (byte >= 0xc6 && (modrm & 0x38)))
		return 0;
	if ((modrm & 7) == 4 && addr_bytes != 2) {
		if (at >= len_bytes)
			return 0;
		sib = bytes[at];
	}
	at += mem_len(modrm, sib, addr_bytes == 2);
	if (byte >= 0xc6)
		at += byte == 0xc6 ? 1 : op16 && !wide ? 2 : 4;
	return at <= len_bytes ? at : 0;
}
