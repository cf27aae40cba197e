#include "vmm/vlapic_impl.h"

#include "arch/platform.h"
#include "vmm/scale.h"

enum timer_mode { TIMER_ONESHOT, TIMER_PERIODIC, TIMER_DEADLINE, TIMER_RESERVED };

static enum timer_mode lvt_mode(uint32_t lvt)
{
	return (enum timer_mode)(lvt >> 17 & 3);
}

static enum timer_mode timer_mode(const struct vlapic *apic)
{
	return lvt_mode(apic->lvt[VLAPIC_LVT_TIMER]);
}

static bool timer_is_counter(enum timer_mode mode)
{
	return mode == TIMER_ONESHOT || mode == TIMER_PERIODIC;
}

/* log2 of the divisor: bits 3, 1 and 0 of the register, 111b is divide by 1. */
static unsigned divide_shift(const struct vlapic *apic)
{
	return (((apic->timer_divide & 8) >> 1 | (apic->timer_divide & 3)) + 1) & 7;
}

void vlapic_timer_init(struct vlapic *apic)
{
	apic->ns_to_tsc = scale_ratio(plat_tsc_hz(), VLAPIC_TIMER_HZ);
	apic->tsc_to_ns = scale_ratio(VLAPIC_TIMER_HZ, plat_tsc_hz());
}

static void timer_disarm(struct vlapic *apic)
{
	apic->timer_deadline_tsc = 0;
	apic->guest_deadline = 0;
	apic->timer_frac = 0;
}

void vlapic_timer_reset(struct vlapic *apic)
{
	apic->timer_initial = 0;
	apic->timer_divide = 0;
	apic->timer_period_tsc = 0;
	apic->timer_period_frac = 0;
	timer_disarm(apic);
}

uint64_t vlapic_deadline(const struct vlapic *apic)
{
	if (!apic->timer_deadline_tsc || (apic->lvt[VLAPIC_LVT_TIMER] & VLAPIC_LVT_MASKED))
		return UINT64_MAX;
	return apic->timer_deadline_tsc;
}

/* --- expiry ----------------------------------------------------------------------------------- */

/* Goes on by whole periods from the expiry that was due, not from now: no drift. */
static void timer_next_period(struct vlapic *apic, uint64_t now_tsc)
{
	unsigned __int128 period = apic->timer_period_tsc, next = apic->timer_deadline_tsc;

	period = period << 32 | apic->timer_period_frac;
	next = (next << 32 | apic->timer_frac) + period;
	/* Periods that went by unserved are one interrupt. The division is on no path but this. */
	if (unlikely((uint64_t)(next >> 32) <= now_tsc))
		next += period * ((now_tsc - (uint64_t)(next >> 32)) / apic->timer_period_tsc + 1);
	apic->timer_deadline_tsc = (uint64_t)(next >> 32);
	apic->timer_frac = (uint32_t)next;
}

void vlapic_timer_run(struct vlapic *apic, uint64_t now_tsc)
{
	uint32_t lvt = apic->lvt[VLAPIC_LVT_TIMER];

	if (likely(!apic->timer_deadline_tsc || now_tsc < apic->timer_deadline_tsc))
		return;
	if (lvt_mode(lvt) == TIMER_PERIODIC)
		timer_next_period(apic, now_tsc);
	else
		timer_disarm(apic);
	if (!(lvt & VLAPIC_LVT_MASKED))
		vlapic_raise(apic, (uint8_t)lvt);
}

/* --- the counter ------------------------------------------------------------------------------ */

static void timer_arm(struct vlapic *apic, uint32_t count, uint64_t now_tsc)
{
	uint64_t initial_ns = (uint64_t)apic->timer_initial << divide_shift(apic);
	uint64_t left_ns = (uint64_t)count << divide_shift(apic);
	uint64_t period_ns = MAX(initial_ns, VLAPIC_PERIOD_MIN_NS);
	unsigned __int128 period = (unsigned __int128)period_ns * apic->ns_to_tsc;

	timer_disarm(apic);
	if (!count)
		return;
	apic->timer_period_tsc = (uint64_t)(period >> SCALE_FRAC_BITS);
	apic->timer_period_frac = (uint32_t)(period >> (SCALE_FRAC_BITS - 32));
	apic->timer_deadline_tsc = MAX(now_tsc + scale_apply(left_ns, apic->ns_to_tsc), 1);
}

void vlapic_timer_initial_write(struct vlapic *apic, uint32_t count)
{
	if (!timer_is_counter(timer_mode(apic)))
		return;
	apic->timer_initial = count;
	timer_arm(apic, count, plat_tsc());
}

uint32_t vlapic_timer_current(struct vlapic *apic)
{
	uint64_t now_tsc = plat_tsc(), left_ns, left;
	unsigned shift = divide_shift(apic);

	vlapic_timer_run(apic, now_tsc);
	if (!timer_is_counter(timer_mode(apic)) || !apic->timer_deadline_tsc)
		return 0;
	left_ns = scale_apply(apic->timer_deadline_tsc - now_tsc, apic->tsc_to_ns);
	left = (left_ns + (1u << shift) - 1) >> shift;
	/* Not 0 while an interrupt is still to come. */
	return (uint32_t)MIN(MAX(left, 1), apic->timer_initial);
}

void vlapic_timer_divide_write(struct vlapic *apic, uint32_t value)
{
	uint32_t left = vlapic_timer_current(apic);

	apic->timer_divide = value & 0xb;
	if (left)
		timer_arm(apic, left, plat_tsc());
}

/* --- mode and TSC deadline -------------------------------------------------------------------- */

void vlapic_timer_lvt_write(struct vlapic *apic, uint32_t value)
{
	enum timer_mode before = timer_mode(apic), after = lvt_mode(value);

	/* What expired until now did so under the old entry. */
	vlapic_timer_run(apic, plat_tsc());
	if (before != after && !(timer_is_counter(before) && timer_is_counter(after))) {
		timer_disarm(apic);
		apic->timer_initial = 0;
	}
	apic->lvt[VLAPIC_LVT_TIMER] = value;
}

void vlapic_timer_deadline_write(struct vlapic *apic, uint64_t guest_tsc)
{
	uint64_t now_tsc = plat_tsc(), guest_now_tsc = now_tsc + apic->tsc_offset, left_tsc;

	if (timer_mode(apic) != TIMER_DEADLINE)
		return;
	timer_disarm(apic);
	if (!guest_tsc)
		return;
	left_tsc = guest_tsc > guest_now_tsc ? guest_tsc - guest_now_tsc : 0;
	apic->guest_deadline = guest_tsc;
	/* Neither 0 nor UINT64_MAX, which mean "none". */
	apic->timer_deadline_tsc = MAX(now_tsc + MIN(left_tsc, UINT64_MAX - 1 - now_tsc), 1);
	vlapic_timer_run(apic, now_tsc);
}

uint64_t vlapic_timer_deadline_read(struct vlapic *apic)
{
	vlapic_timer_run(apic, plat_tsc());
	return timer_mode(apic) == TIMER_DEADLINE ? apic->guest_deadline : 0;
}
