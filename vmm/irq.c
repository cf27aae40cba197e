/*
 * How a poster and a vCPU's run loop meet. A poster sets the vector's bit, then posted_any, and
 * only then looks at mode. A run loop says "in the guest" or "asleep" in mode, and only then looks
 * at posted_any (and events) once more before it enters or sleeps. Both sides' store and load are
 * sequentially consistent, so at least one of them sees the other: either the vCPU finds the bit
 * and stays, or the poster finds the mode and sends an IPI. The vCPU takes posted_any back before
 * it collects the words, so that a bit set in between is found next time.
 */
#include "vmm/irq.h"

#include "vmm/vm.h"

static void vcpu_notify(struct vcpu *vcpu)
{
	if (atomic_load(&vcpu->mode) == VCPU_HOST)
		return;
	atomic_store(&vcpu->wake, 1);
	if (vcpu->core != plat_core())
		plat_wake(vcpu->core);
}

void irq_post(struct vcpu *vcpu, uint8_t vector)
{
	if (vector < 16)
		return;
	atomic_fetch_or(&vcpu->posted[vector >> 6], 1ull << (vector & 63));
	/* Who finds posted_any set leaves the look at mode to whoever set it. */
	if (atomic_exchange(&vcpu->posted_any, 1))
		return;
	vcpu_notify(vcpu);
}

void irq_event(struct vcpu *vcpu, unsigned events)
{
	const unsigned sipi = VCPU_EVENT_SIPI | 0xff00;
	/* Of the processor that INIT restarts; what comes after INIT is for the new one. */
	const unsigned before_init = sipi | VCPU_EVENT_NMI;
	unsigned before = atomic_load(&vcpu->events), after;

	do {
		after = before;
		if (events & VCPU_EVENT_INIT)
			after &= ~before_init;
		after |= events & (after & VCPU_EVENT_SIPI ? ~sipi : ~0u);
	} while (!atomic_compare_exchange_weak(&vcpu->events, &before, after));
	vcpu_notify(vcpu);
}

/* --- destinations ----------------------------------------------------------------------------- */

_Static_assert(VM_VCPU_MAX <= 32, "a set of vCPUs is one word");

static bool mode_is_fixed(uint8_t mode)
{
	return mode == IRQ_FIXED || mode == IRQ_LOWEST;
}

/* Bits of the vCPUs that answer msg's destination and would take it. */
static uint32_t dest_mask(struct vm *vm, const struct irq_msg *msg)
{
	uint32_t mask = 0;

	for (unsigned i = 0; i < vm->vcpu_count; i++)
		if (vlapic_matches(&vm->vcpu[i]->lapic, msg->dest, msg->logical) &&
		    (!mode_is_fixed(msg->mode) || vlapic_is_listening(&vm->vcpu[i]->lapic)))
			mask |= 1u << i;
	return mask;
}

/* Lowest priority is free to choose: the vector spreads the load, and always the same way. */
static uint32_t lowest_of(uint32_t mask, uint8_t vector)
{
	uint32_t from = mask & (~0u << (vector & 31));
	uint32_t choice = from ? from : mask;

	return choice & -choice;
}

static void deliver(struct vcpu *vcpu, const struct irq_msg *msg)
{
	switch (msg->mode) {
	case IRQ_FIXED:
	case IRQ_LOWEST: irq_post(vcpu, msg->vector); break;
	case IRQ_NMI: irq_event(vcpu, VCPU_EVENT_NMI); break;
	case IRQ_INIT: irq_event(vcpu, VCPU_EVENT_INIT); break;
	case IRQ_SIPI: irq_event(vcpu, VCPU_EVENT_SIPI | (unsigned)msg->vector << 8); break;
	}
}

/* SMI, ExtINT (there is no 8259) and the reserved mode go nowhere, nor do vectors below 16. */
static bool can_send(const struct irq_msg *msg)
{
	if (mode_is_fixed(msg->mode))
		return msg->vector >= 16;
	return msg->mode == IRQ_NMI || msg->mode == IRQ_INIT || msg->mode == IRQ_SIPI;
}

static int send_mask(struct vm *vm, const struct irq_msg *msg, uint32_t mask)
{
	if (!mask || !can_send(msg))
		return -ENOENT;
	if (msg->mode == IRQ_LOWEST)
		mask = lowest_of(mask, msg->vector);
	for (; mask; mask &= mask - 1)
		deliver(vm->vcpu[__builtin_ctz(mask)], msg);
	return 0;
}

int irq_send(struct vm *vm, const struct irq_msg *msg)
{
	return send_mask(vm, msg, dest_mask(vm, msg));
}

int irq_broadcast(struct vm *vm, const struct irq_msg *msg, const struct vcpu *except)
{
	struct irq_msg all = *msg;
	uint32_t mask;

	all.dest = UINT32_MAX;
	mask = dest_mask(vm, &all);
	if (except)
		mask &= ~(1u << except->index);
	return send_mask(vm, &all, mask);
}

struct vcpu *irq_single_target(struct vm *vm, const struct irq_msg *msg)
{
	uint32_t mask;

	if (!mode_is_fixed(msg->mode) || msg->vector < 16)
		return NULL;
	mask = dest_mask(vm, msg);
	if (!mask || (mask & (mask - 1)))
		return NULL;
	return vm->vcpu[__builtin_ctz(mask)];
}

struct irq_msg irq_msi_decode(uint64_t address, uint32_t data)
{
	struct irq_msg msg = {
	        .dest = address >> 12 & 0xff,
	        .logical = address >> 2 & 1,
	        .mode = data >> 8 & 7,
	        .vector = (uint8_t)data,
	};

	if (address >> 20 != 0xfee)
		msg.mode = IRQ_INVALID;
	return msg;
}
