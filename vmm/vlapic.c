#include "vmm/vlapic_impl.h"

#include "vmm/irq.h"
#include "vmm/vm.h"

/* Bits of vlapic.dest. */
#define DEST_LDR_MASK  0xffffffffull /* xAPIC: 8 bits */
#define DEST_ID_SHIFT  32
#define DEST_ID_MASK   0xffffull
#define DEST_ENABLED   BIT(48)
#define DEST_LISTENING BIT(49) /* enabled by software as well */
#define DEST_X2APIC    BIT(50)
#define DEST_FLAT      BIT(51)

#define DFR_FLAT    0xffffffffu
#define SVR_RESET   0xffu
#define ICR_LOGICAL BIT(11)
#define ICR_ASSERT  BIT(14)
#define ICR_LEVEL   BIT(15)

enum icr_shorthand { ICR_DEST, ICR_SELF, ICR_ALL, ICR_OTHERS };

/* --- vector sets ------------------------------------------------------------------------------ */

static bool vec_test(const uint64_t set[4], uint8_t vector)
{
	return set[vector >> 6] >> (vector & 63) & 1;
}

static void vec_set(uint64_t set[4], uint8_t vector)
{
	set[vector >> 6] |= 1ull << (vector & 63);
}

static void vec_clear(uint64_t set[4], uint8_t vector)
{
	set[vector >> 6] &= ~(1ull << (vector & 63));
}

static int vec_highest(const uint64_t set[4])
{
	for (int i = 3; i >= 0; i--)
		if (set[i])
			return i * 64 + 63 - __builtin_clzll(set[i]);
	return -1;
}

/* The only vector in both sets together, or -1. */
static int vec_sole(const uint64_t a[4], const uint64_t b[4])
{
	int sole = -1;

	for (int i = 0; i < 4; i++) {
		uint64_t word = a[i] | b[i];

		if (!word)
			continue;
		if (sole >= 0 || (word & (word - 1)) || (a[i] & b[i]))
			return -1;
		sole = i * 64 + __builtin_ctzll(word);
	}
	return sole;
}

/* --- state ------------------------------------------------------------------------------------ */

void vlapic_dest_publish(struct vlapic *apic)
{
	bool enabled = apic->base_msr & VLAPIC_BASE_ENABLE;
	uint64_t dest = (uint64_t)apic->id << DEST_ID_SHIFT;

	dest |= vlapic_is_x2apic(apic) ? vlapic_x2apic_ldr(apic->id) : apic->ldr >> 24;
	if (enabled)
		dest |= DEST_ENABLED;
	if (enabled && (apic->svr & VLAPIC_SVR_ENABLE))
		dest |= DEST_LISTENING;
	if (vlapic_is_x2apic(apic))
		dest |= DEST_X2APIC;
	if (apic->dfr == DFR_FLAT)
		dest |= DEST_FLAT;
	atomic_store_explicit(&apic->dest, dest, memory_order_release);
}

void vlapic_init_reset(struct vlapic *apic)
{
	memset(apic->irr, 0, sizeof(apic->irr));
	memset(apic->isr, 0, sizeof(apic->isr));
	memset(apic->tmr, 0, sizeof(apic->tmr));
	apic->tpr = 0;
	apic->ldr = 0;
	apic->dfr = DFR_FLAT;
	apic->svr = SVR_RESET;
	apic->esr = 0;
	apic->esr_pending = 0;
	apic->icr = 0;
	for (unsigned i = 0; i < VLAPIC_LVT_COUNT; i++)
		apic->lvt[i] = VLAPIC_LVT_MASKED;
	apic->pv_eoi_msr = 0;
	apic->pv_eoi_word = NULL;
	apic->pv_eoi_set = false;
	vlapic_timer_reset(apic);
	vlapic_dest_publish(apic);
}

void vlapic_init(struct vlapic *apic, struct vcpu *vcpu, uint32_t apic_id, bool bsp,
                 uint64_t tsc_offset)
{
	memset(apic, 0, sizeof(*apic));
	apic->vcpu = vcpu;
	apic->id = apic_id;
	apic->tsc_offset = tsc_offset;
	apic->base_msr = VLAPIC_BASE_GPA | VLAPIC_BASE_ENABLE | (bsp ? VLAPIC_BASE_BSP : 0);
	vlapic_timer_init(apic);
	vlapic_init_reset(apic);
}

/* --- what senders ask ------------------------------------------------------------------------- */

static bool matches_x2apic(uint64_t word, uint32_t dest, bool logical)
{
	uint32_t ldr = (uint32_t)(word & DEST_LDR_MASK);

	/* 0xff: a message with 8 bits for its destination means everybody by it. */
	if (!logical)
		return dest == 0xff || dest == (word >> DEST_ID_SHIFT & DEST_ID_MASK);
	return dest >> 16 == ldr >> 16 && (dest & ldr & 0xffff);
}

static bool matches_xapic(uint64_t word, uint32_t dest, bool logical)
{
	uint32_t ldr = (uint32_t)(word & DEST_LDR_MASK);

	if (dest > 0xff)
		return false;
	if (!logical)
		return dest == 0xff || dest == (word >> DEST_ID_SHIFT & DEST_ID_MASK);
	if (word & DEST_FLAT)
		return dest & ldr;
	return dest == 0xff || (dest >> 4 == ldr >> 4 && (dest & ldr & 0xf));
}

bool vlapic_matches(const struct vlapic *apic, uint32_t dest, bool logical)
{
	uint64_t word = atomic_load_explicit(&apic->dest, memory_order_acquire);

	if (!(word & DEST_ENABLED))
		return false;
	if (dest == UINT32_MAX)
		return true;
	return word & DEST_X2APIC ? matches_x2apic(word, dest, logical)
	                          : matches_xapic(word, dest, logical);
}

bool vlapic_is_listening(const struct vlapic *apic)
{
	return atomic_load_explicit(&apic->dest, memory_order_acquire) & DEST_LISTENING;
}

bool vlapic_is_enabled(const struct vlapic *apic)
{
	return atomic_load_explicit(&apic->dest, memory_order_acquire) & DEST_ENABLED;
}

/* --- interrupts in ---------------------------------------------------------------------------- */

void vlapic_merge(struct vlapic *apic, const uint64_t posted[4])
{
	struct vioapic *ioapic = &apic->vcpu->vm->ioapic;

	if (unlikely(!vlapic_is_listening(apic)))
		return;
	for (unsigned i = 0; i < 4; i++) {
		uint64_t level;

		if (!posted[i])
			continue;
		level = atomic_load_explicit(&ioapic->level_vectors[i], memory_order_acquire);
		apic->tmr[i] = (apic->tmr[i] & ~posted[i]) | (posted[i] & level);
		apic->irr[i] |= posted[i];
	}
	apic->irr[0] &= ~0xffffull;
}

void vlapic_raise(struct vlapic *apic, uint8_t vector)
{
	if (!(apic->svr & VLAPIC_SVR_ENABLE))
		return;
	if (vector < 16) {
		apic->esr_pending |= VLAPIC_ESR_RECV_VECTOR;
		return;
	}
	vec_set(apic->irr, vector);
	vec_clear(apic->tmr, vector);
}

void vlapic_error(struct vlapic *apic, uint32_t esr_bit)
{
	uint32_t lvt = apic->lvt[VLAPIC_LVT_ERROR];

	apic->esr_pending |= esr_bit;
	if (!(lvt & VLAPIC_LVT_MASKED))
		vlapic_raise(apic, (uint8_t)lvt);
}

/* --- priorities (SDM 3A 10.8.3) --------------------------------------------------------------- */

uint8_t vlapic_ppr(const struct vlapic *apic)
{
	int in_service = vec_highest(apic->isr);
	uint8_t isr_class = in_service < 0 ? 0 : (uint8_t)(in_service & 0xf0);

	return (apic->tpr & 0xf0) >= isr_class ? apic->tpr : isr_class;
}

uint8_t vlapic_cr8_read(const struct vlapic *apic)
{
	return apic->tpr >> 4;
}

void vlapic_cr8_write(struct vlapic *apic, uint8_t value)
{
	apic->tpr = (uint8_t)(value << 4);
}

int vlapic_pending(struct vlapic *apic)
{
	int vector = vec_highest(apic->irr);

	if (vector < 0 || !(apic->base_msr & VLAPIC_BASE_ENABLE))
		return -1;
	return (vector & 0xf0) > (vlapic_ppr(apic) & 0xf0) ? vector : -1;
}

void vlapic_accept(struct vlapic *apic, uint8_t vector)
{
	vec_clear(apic->irr, vector);
	vec_set(apic->isr, vector);
}

void vlapic_eoi(struct vlapic *apic)
{
	struct vm *vm = apic->vcpu->vm;
	int highest = vec_highest(apic->isr);
	uint8_t vector = (uint8_t)highest;

	if (highest < 0)
		return;
	vec_clear(apic->isr, vector);
	/* The I/O APIC is asked too: its pin may have changed its trigger since TMR was set. */
	if (!vec_test(apic->tmr, vector) && !vioapic_wants_eoi(&vm->ioapic, vector))
		return;
	spin_lock(&vm->device_lock);
	vioapic_eoi(&vm->ioapic, vector);
	spin_unlock(&vm->device_lock);
}

/* --- interrupts out (SDM 3A 10.6.1) ----------------------------------------------------------- */

static void icr_send_self(struct vlapic *apic, const struct irq_msg *msg)
{
	if (msg->mode == IRQ_FIXED || msg->mode == IRQ_LOWEST)
		vlapic_raise(apic, msg->vector);
	else if (msg->mode == IRQ_NMI)
		irq_event(apic->vcpu, VCPU_EVENT_NMI);
}

void vlapic_icr_send(struct vlapic *apic, uint64_t icr)
{
	struct vm *vm = apic->vcpu->vm;
	bool x2apic = vlapic_is_x2apic(apic);
	struct irq_msg msg = {
	        .dest = (uint32_t)(x2apic ? icr >> 32 : icr >> 56),
	        .logical = icr & ICR_LOGICAL,
	        .mode = icr >> 8 & 7,
	        .vector = (uint8_t)icr,
	};

	if ((msg.mode == IRQ_FIXED || msg.mode == IRQ_LOWEST) && msg.vector < 16) {
		vlapic_error(apic, VLAPIC_ESR_SEND_VECTOR);
		return;
	}
	/* INIT level de-assert once set arbitration ids; today's processors ignore it. */
	if (msg.mode == IRQ_INIT && (icr & ICR_LEVEL) && !(icr & ICR_ASSERT))
		return;
	switch ((enum icr_shorthand)(icr >> 18 & 3)) {
	case ICR_DEST:
		/* Ids from 0xff on exist only as the word for "all", which here is 32 bits wide. */
		if (x2apic && !msg.logical && msg.dest >= 0xff && msg.dest != UINT32_MAX)
			return;
		irq_send(vm, &msg);
		break;
	case ICR_SELF: icr_send_self(apic, &msg); break;
	case ICR_ALL: irq_broadcast(vm, &msg, NULL); break;
	case ICR_OTHERS: irq_broadcast(vm, &msg, apic->vcpu); break;
	}
}

/* --- PV EOI ----------------------------------------------------------------------------------- */

int vlapic_pv_eoi_write(struct vlapic *apic, uint64_t value)
{
	uint32_t *word = NULL;

	if (value & 2)
		return -EINVAL;
	if (value & 1) {
		word = gmem_ptr(&apic->vcpu->vm->mem, value & ~3ull, sizeof(*word));
		if (!word || !IS_ALIGNED((uintptr_t)word, sizeof(*word)))
			return -EINVAL;
	}
	apic->pv_eoi_word = (atomic_uint_least32_t *)word;
	apic->pv_eoi_set = false;
	return 0;
}

/*
 * The guest may skip an EOI whose only effect would be the end of the one interrupt there is: one
 * vector in service or about to be, an edge, and nothing behind it that waits for the EOI. A vector
 * about to be taken counts as in service: should the guest not take it, it has no EOI to make, and
 * the flag is taken back at the next exit. The word is only changed here and below, on the vCPU's
 * own core while the guest stands still, so plain loads and stores do.
 */
void vlapic_pv_eoi_sync_entry(struct vlapic *apic)
{
	uint32_t word;
	int vector;

	if (!apic->pv_eoi_word)
		return;
	vector = vec_sole(apic->isr, apic->irr);
	if (vector < 0 || vec_test(apic->tmr, (uint8_t)vector) ||
	    vioapic_wants_eoi(&apic->vcpu->vm->ioapic, (uint8_t)vector))
		return;
	word = atomic_load_explicit(apic->pv_eoi_word, memory_order_relaxed);
	atomic_store_explicit(apic->pv_eoi_word, word | 1, memory_order_relaxed);
	apic->pv_eoi_set = true;
}

void vlapic_pv_eoi_sync_exit(struct vlapic *apic)
{
	uint32_t word;

	if (!apic->pv_eoi_set)
		return;
	apic->pv_eoi_set = false;
	word = atomic_load_explicit(apic->pv_eoi_word, memory_order_relaxed);
	if (word & 1)
		atomic_store_explicit(apic->pv_eoi_word, word & ~1u, memory_order_relaxed);
	else
		vlapic_eoi(apic);
}
