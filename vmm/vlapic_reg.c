/* The register file: one list of registers, by number, behind the xAPIC page (number * 16) and the
 * x2APIC MSRs (0x800 + number). SDM 3A tables 10-1 and 10-6. */
#include "vmm/vlapic_impl.h"

#define MSR_APIC_BASE    0x1bu
#define MSR_TSC_DEADLINE 0x6e0u
#define MSR_X2APIC       0x800u

/* Integrated APIC, six LVT entries (highest is 5), no suppression of EOI broadcasts. */
#define VERSION 0x00050014u

enum reg {
	REG_ID = 0x02,
	REG_VERSION = 0x03,
	REG_TPR = 0x08,
	REG_APR = 0x09,
	REG_PPR = 0x0a,
	REG_EOI = 0x0b,
	REG_RRD = 0x0c,
	REG_LDR = 0x0d,
	REG_DFR = 0x0e,
	REG_SVR = 0x0f,
	REG_ISR = 0x10,
	REG_TMR = 0x18,
	REG_IRR = 0x20,
	REG_ESR = 0x28,
	REG_ICR = 0x30,
	REG_ICR_HIGH = 0x31,
	REG_LVT = 0x32,
	REG_LVT_LAST = 0x37,
	REG_TIMER_INITIAL = 0x38,
	REG_TIMER_CURRENT = 0x39,
	REG_TIMER_DIVIDE = 0x3e,
	REG_SELF_IPI = 0x3f,
};

#define SVR_WRITABLE 0x3ffu
#define ICR_WRITABLE 0xccfffull    /* low half; bit 12 is delivery status, always idle */
#define ICR_RESERVED 0xfff32000ull /* x2APIC: #GP */
#define ICR_STATUS   BIT(12)

/* Bits a guest may set, then those it may write to no effect (delivery status, remote IRR). */
static const uint32_t lvt_writable[VLAPIC_LVT_COUNT] = {
        [VLAPIC_LVT_TIMER] = 0x700ff, [VLAPIC_LVT_THERMAL] = 0x107ff, [VLAPIC_LVT_PERF] = 0x107ff,
        [VLAPIC_LVT_LINT0] = 0x1a7ff, [VLAPIC_LVT_LINT1] = 0x1a7ff,   [VLAPIC_LVT_ERROR] = 0x100ff,
};
static const uint32_t lvt_readonly[VLAPIC_LVT_COUNT] = {
        [VLAPIC_LVT_TIMER] = 0x1000, [VLAPIC_LVT_THERMAL] = 0x1000, [VLAPIC_LVT_PERF] = 0x1000,
        [VLAPIC_LVT_LINT0] = 0x5000, [VLAPIC_LVT_LINT1] = 0x5000,   [VLAPIC_LVT_ERROR] = 0x1000,
};

static uint32_t set_word(const uint64_t set[4], unsigned word)
{
	return (uint32_t)(set[word >> 1] >> (word & 1) * 32);
}

/* --- registers that both modes have ----------------------------------------------------------- */

/* False: no such register to read. */
static bool reg_read(struct vlapic *apic, uint32_t reg, uint32_t *value)
{
	switch (reg) {
	case REG_VERSION: *value = VERSION; return true;
	case REG_TPR: *value = apic->tpr; return true;
	case REG_PPR: *value = vlapic_ppr(apic); return true;
	case REG_SVR: *value = apic->svr; return true;
	case REG_ISR ... REG_ISR + 7: *value = set_word(apic->isr, reg - REG_ISR); return true;
	case REG_TMR ... REG_TMR + 7: *value = set_word(apic->tmr, reg - REG_TMR); return true;
	case REG_IRR ... REG_IRR + 7: *value = set_word(apic->irr, reg - REG_IRR); return true;
	case REG_ESR: *value = apic->esr; return true;
	case REG_LVT ... REG_LVT_LAST: *value = apic->lvt[reg - REG_LVT]; return true;
	case REG_TIMER_INITIAL: *value = apic->timer_initial; return true;
	case REG_TIMER_CURRENT: *value = vlapic_timer_current(apic); return true;
	case REG_TIMER_DIVIDE: *value = apic->timer_divide; return true;
	default: return false;
	}
}

static void lvt_write(struct vlapic *apic, enum vlapic_lvt lvt, uint32_t value)
{
	value &= lvt_writable[lvt];
	if (!(apic->svr & VLAPIC_SVR_ENABLE))
		value |= VLAPIC_LVT_MASKED;
	if (lvt == VLAPIC_LVT_TIMER)
		vlapic_timer_lvt_write(apic, value);
	else
		apic->lvt[lvt] = value;
}

static void svr_write(struct vlapic *apic, uint32_t value)
{
	apic->svr = value & SVR_WRITABLE;
	if (!(value & VLAPIC_SVR_ENABLE))
		for (unsigned i = 0; i < VLAPIC_LVT_COUNT; i++)
			lvt_write(apic, (enum vlapic_lvt)i, apic->lvt[i]);
	vlapic_dest_publish(apic);
}

/* False: no such register to write. */
static bool reg_write(struct vlapic *apic, uint32_t reg, uint32_t value)
{
	switch (reg) {
	case REG_TPR: apic->tpr = (uint8_t)value; return true;
	case REG_EOI: vlapic_eoi(apic); return true;
	case REG_SVR: svr_write(apic, value); return true;
	case REG_ESR:
		/* A write latches what happened since the last one. */
		apic->esr = apic->esr_pending;
		apic->esr_pending = 0;
		return true;
	case REG_LVT ... REG_LVT_LAST:
		lvt_write(apic, (enum vlapic_lvt)(reg - REG_LVT), value);
		return true;
	case REG_TIMER_INITIAL: vlapic_timer_initial_write(apic, value); return true;
	case REG_TIMER_DIVIDE: vlapic_timer_divide_write(apic, value); return true;
	default: return false;
	}
}

/* --- xAPIC page ------------------------------------------------------------------------------- */

static bool xapic_is_on(const struct vlapic *apic)
{
	return (apic->base_msr & VLAPIC_BASE_ENABLE) && !vlapic_is_x2apic(apic);
}

uint32_t vlapic_mmio_read(struct vlapic *apic, uint32_t offset)
{
	uint32_t reg = offset >> 4, value;

	if (!xapic_is_on(apic))
		return UINT32_MAX;
	if (offset & 0xf)
		return 0;
	switch (reg) {
	case REG_ID: return apic->id << 24;
	case REG_LDR: return apic->ldr;
	case REG_DFR: return apic->dfr;
	case REG_ICR: return (uint32_t)apic->icr;
	case REG_ICR_HIGH: return (uint32_t)(apic->icr >> 32);
	case REG_APR: /* no arbitration any more */
	case REG_EOI:
	case REG_RRD: return 0;
	default:
		if (reg_read(apic, reg, &value))
			return value;
		vlapic_error(apic, VLAPIC_ESR_REGISTER);
		return 0;
	}
}

void vlapic_mmio_write(struct vlapic *apic, uint32_t offset, uint32_t value)
{
	uint32_t reg = offset >> 4, ignored;

	if (!xapic_is_on(apic) || (offset & 0xf))
		return;
	switch (reg) {
	case REG_LDR:
		apic->ldr = value & 0xff000000;
		vlapic_dest_publish(apic);
		return;
	case REG_DFR:
		apic->dfr = value | 0x0fffffff;
		vlapic_dest_publish(apic);
		return;
	case REG_ICR:
		apic->icr = (apic->icr & ~0xffffffffull) | (value & ICR_WRITABLE);
		vlapic_icr_send(apic, apic->icr);
		return;
	case REG_ICR_HIGH:
		apic->icr = (apic->icr & 0xffffffff) | (uint64_t)(value & 0xff000000) << 32;
		return;
	case REG_ID: /* read-only registers */
	case REG_APR:
	case REG_RRD: return;
	default:
		if (!reg_write(apic, reg, value) && !reg_read(apic, reg, &ignored))
			vlapic_error(apic, VLAPIC_ESR_REGISTER);
	}
}

/* --- x2APIC MSRs ------------------------------------------------------------------------------ */

static int x2apic_read(struct vlapic *apic, uint32_t reg, uint64_t *value)
{
	uint32_t low;

	switch (reg) {
	case REG_ID: *value = apic->id; return 0;
	case REG_LDR: *value = vlapic_x2apic_ldr(apic->id); return 0;
	case REG_ICR: *value = apic->icr; return 0;
	default:
		if (!reg_read(apic, reg, &low))
			return -EINVAL;
		*value = low;
		return 0;
	}
}

/* Bits that may be written without #GP. A write-only-zero register gives 0. */
static uint64_t x2apic_write_mask(uint32_t reg)
{
	switch (reg) {
	case REG_TPR:
	case REG_SELF_IPI: return 0xff;
	case REG_SVR: return SVR_WRITABLE;
	case REG_ICR: return ~ICR_RESERVED;
	case REG_LVT ... REG_LVT_LAST:
		return lvt_writable[reg - REG_LVT] | lvt_readonly[reg - REG_LVT];
	case REG_TIMER_INITIAL: return UINT32_MAX;
	case REG_TIMER_DIVIDE: return 0xb;
	default: return 0;
	}
}

static int x2apic_write(struct vlapic *apic, uint32_t reg, uint64_t value)
{
	if (value & ~x2apic_write_mask(reg))
		return -EINVAL;
	if (reg == REG_ICR) {
		apic->icr = value & ~ICR_STATUS;
		vlapic_icr_send(apic, apic->icr);
		return 0;
	}
	if (reg == REG_SELF_IPI) {
		if (value < 16)
			vlapic_error(apic, VLAPIC_ESR_SEND_VECTOR);
		else
			vlapic_raise(apic, (uint8_t)value);
		return 0;
	}
	return reg_write(apic, reg, (uint32_t)value) ? 0 : -EINVAL;
}

/* --- APIC_BASE (SDM 3A figure 10-27) ---------------------------------------------------------- */

static int base_write(struct vlapic *apic, uint64_t value)
{
	const uint64_t mode_bits = VLAPIC_BASE_ENABLE | VLAPIC_BASE_X2APIC;
	uint64_t before = apic->base_msr & mode_bits, after = value & mode_bits;

	if ((value & ~(mode_bits | VLAPIC_BASE_BSP)) != VLAPIC_BASE_GPA)
		return -EINVAL;
	if (after == VLAPIC_BASE_X2APIC)
		return -EINVAL;
	if (before == mode_bits && after == VLAPIC_BASE_ENABLE)
		return -EINVAL;
	if (!before && after == mode_bits)
		return -EINVAL;
	/* Which processor booted does not change by writing. */
	apic->base_msr = VLAPIC_BASE_GPA | after | (apic->base_msr & VLAPIC_BASE_BSP);
	/* An APIC that was off comes back as after power-on. */
	if (before && !after)
		vlapic_init_reset(apic);
	/* The destination half of ICR moved; LDR of xAPIC mode is gone. */
	if (before != after && after == mode_bits) {
		apic->icr &= 0xffffffff;
		apic->ldr = 0;
	}
	vlapic_dest_publish(apic);
	return 0;
}

int vlapic_msr_read(struct vlapic *apic, uint32_t index, uint64_t *value)
{
	if (index == MSR_APIC_BASE) {
		*value = apic->base_msr;
		return 0;
	}
	if (index == MSR_TSC_DEADLINE) {
		*value = vlapic_timer_deadline_read(apic);
		return 0;
	}
	if (index - MSR_X2APIC > 0xff || !vlapic_is_x2apic(apic))
		return -EINVAL;
	return x2apic_read(apic, index - MSR_X2APIC, value);
}

int vlapic_msr_write(struct vlapic *apic, uint32_t index, uint64_t value)
{
	if (index == MSR_APIC_BASE)
		return base_write(apic, value);
	if (index == MSR_TSC_DEADLINE) {
		vlapic_timer_deadline_write(apic, value);
		return 0;
	}
	if (index - MSR_X2APIC > 0xff || !vlapic_is_x2apic(apic))
		return -EINVAL;
	return x2apic_write(apic, index - MSR_X2APIC, value);
}
