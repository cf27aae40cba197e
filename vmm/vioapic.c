#include "vmm/vioapic.h"

#include "vmm/irq.h"
#include "vmm/vm.h"

#define WINDOW_SELECT 0x00u
#define WINDOW_DATA   0x10u
#define WINDOW_EOI    0x40u

#define REG_ID          0x00u
#define REG_VERSION     0x01u
#define REG_ARBITRATION 0x02u
#define REG_REDIRECTION 0x10u

/* Version 0x20 has the EOI register; bits 23:16 are the highest pin. */
#define VERSION (0x20u | (VIOAPIC_PINS - 1) << 16)

#define RTE_LOGICAL    BIT(11)
#define RTE_REMOTE_IRR BIT(14)
#define RTE_LEVEL      BIT(15)
#define RTE_MASKED     BIT(16)
#define RTE_WRITABLE   0xff0000000001afffull /* without delivery status and remote IRR */

static void level_vectors_update(struct vioapic *apic)
{
	uint64_t set[4] = {0};

	for (unsigned pin = 0; pin < VIOAPIC_PINS; pin++) {
		uint64_t rte = apic->redirection[pin];

		/* A pin masked while in service still awaits its EOI. */
		if ((rte & RTE_LEVEL) && (!(rte & RTE_MASKED) || (rte & RTE_REMOTE_IRR)))
			set[(rte & 0xff) >> 6] |= 1ull << (rte & 63);
	}
	for (unsigned i = 0; i < 4; i++)
		atomic_store_explicit(&apic->level_vectors[i], set[i], memory_order_release);
}

void vioapic_init(struct vioapic *apic, struct vm *vm)
{
	memset(apic, 0, sizeof(*apic));
	apic->vm = vm;
	for (unsigned pin = 0; pin < VIOAPIC_PINS; pin++)
		apic->redirection[pin] = RTE_MASKED;
	level_vectors_update(apic);
}

static int pin_send(struct vioapic *apic, unsigned pin)
{
	uint64_t rte = apic->redirection[pin];
	struct irq_msg msg = {
	        .dest = (uint32_t)(rte >> 56),
	        .logical = rte & RTE_LOGICAL,
	        .mode = rte >> 8 & 7,
	        .vector = (uint8_t)rte,
	};

	return irq_send(apic->vm, &msg);
}

/* A level pin interrupts while it is high, not masked and not in service. */
static void level_service(struct vioapic *apic, unsigned pin)
{
	uint64_t rte = apic->redirection[pin];

	if (!(rte & RTE_LEVEL) || (rte & (RTE_MASKED | RTE_REMOTE_IRR)))
		return;
	if (!(apic->level >> pin & 1))
		return;
	/* One that nobody accepted is not in service: the next change tries again. */
	if (pin_send(apic, pin) == 0)
		apic->redirection[pin] |= RTE_REMOTE_IRR;
}

void vioapic_pin_set(struct vioapic *apic, unsigned pin, bool high)
{
	uint32_t before = apic->level;

	if (pin >= VIOAPIC_PINS)
		return;
	apic->level = high ? before | 1u << pin : before & ~(1u << pin);
	if (apic->redirection[pin] & RTE_LEVEL)
		level_service(apic, pin);
	else if (high && !(before >> pin & 1) && !(apic->redirection[pin] & RTE_MASKED))
		pin_send(apic, pin);
}

void vioapic_eoi(struct vioapic *apic, uint8_t vector)
{
	for (unsigned pin = 0; pin < VIOAPIC_PINS; pin++) {
		uint64_t rte = apic->redirection[pin];

		if (!(rte & RTE_REMOTE_IRR) || (uint8_t)rte != vector)
			continue;
		apic->redirection[pin] &= ~RTE_REMOTE_IRR;
		level_service(apic, pin);
	}
	level_vectors_update(apic);
}

bool vioapic_wants_eoi(struct vioapic *apic, uint8_t vector)
{
	return atomic_load_explicit(&apic->level_vectors[vector >> 6], memory_order_acquire) >>
	               (vector & 63) &
	       1;
}

/* --- registers -------------------------------------------------------------------------------- */

static void rte_write(struct vioapic *apic, unsigned pin, unsigned half, uint32_t value)
{
	uint64_t rte = apic->redirection[pin], keep = 0xffffffffull << (half ? 0 : 32);
	uint64_t remote_irr = rte & RTE_REMOTE_IRR;

	rte = (rte & keep) | (uint64_t)value << (half ? 32 : 0);
	/* Changing a pin to edge ends its service: what drivers do without an EOI register. */
	apic->redirection[pin] = (rte & RTE_WRITABLE) | (rte & RTE_LEVEL ? remote_irr : 0);
	/* Before anything is sent: who takes the vector asks whether it is level. */
	level_vectors_update(apic);
	level_service(apic, pin);
}

static uint32_t reg_read(struct vioapic *apic)
{
	uint32_t pin = (apic->select - REG_REDIRECTION) >> 1;

	switch (apic->select) {
	case REG_ID:
	case REG_ARBITRATION: return apic->id;
	case REG_VERSION: return VERSION;
	default:
		if (pin >= VIOAPIC_PINS)
			return UINT32_MAX;
		return (uint32_t)(apic->redirection[pin] >> (apic->select & 1 ? 32 : 0));
	}
}

uint32_t vioapic_mmio_read(struct vioapic *apic, uint32_t offset)
{
	switch (offset) {
	case WINDOW_SELECT: return apic->select;
	case WINDOW_DATA: return reg_read(apic);
	default: return 0;
	}
}

void vioapic_mmio_write(struct vioapic *apic, uint32_t offset, uint32_t value)
{
	uint32_t pin = (apic->select - REG_REDIRECTION) >> 1;

	switch (offset) {
	case WINDOW_SELECT: apic->select = value & 0xff; break;
	case WINDOW_DATA:
		if (apic->select == REG_ID)
			apic->id = value & 0x0f000000;
		else if (pin < VIOAPIC_PINS)
			rte_write(apic, pin, apic->select & 1, value);
		break;
	case WINDOW_EOI: vioapic_eoi(apic, (uint8_t)value); break;
	}
}
