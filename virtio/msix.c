#include "virtio/msix.h"

#include "arch/platform.h"
#include "vmm/irq.h"
#include "vmm/vm.h"

_Static_assert(MSIX_VECTOR_MAX <= 64, "pending bits are one word");
_Static_assert(VM_VCPU_MAX <= 256, "a vCPU's index is a byte of the route");

#define CONTROL_MASKED 1u

/* A route. Bits: vector 7:0, vCPU 15:8, APIC destination 23:16, mode 26:24, logical 27, kind 31:28,
 * table entry 47:32. */
enum route_kind {
	ROUTE_NONE,
	ROUTE_POST,  /* to one vCPU, always the same */
	ROUTE_CHECK, /* to one vCPU if it still answers the logical destination */
	ROUTE_SEND,  /* whom it reaches is found out each time */
	ROUTE_MASKED,
};

static enum route_kind route_kind(uint64_t route)
{
	return (enum route_kind)(route >> 28 & 0xf);
}

static unsigned route_entry(uint64_t route)
{
	return (unsigned)(route >> 32 & 0xffff);
}

static struct irq_msg route_msg(uint64_t route)
{
	return (struct irq_msg){
	        .dest = route >> 16 & 0xff,
	        .logical = route >> 27 & 1,
	        .mode = route >> 24 & 7,
	        .vector = (uint8_t)route,
	};
}

static bool is_masked(const struct msix *msix, unsigned vector)
{
	return msix->function_masked || (msix->entry[vector].control & CONTROL_MASKED);
}

static uint64_t route_make(const struct msix *msix, unsigned source)
{
	unsigned vector = msix->vector[source];
	enum route_kind kind = ROUTE_SEND;
	struct vcpu *target;
	struct irq_msg msg;
	unsigned index = 0;

	if (!msix->enabled || vector == MSIX_NO_VECTOR)
		return (uint64_t)ROUTE_NONE << 28;
	if (is_masked(msix, vector))
		return (uint64_t)ROUTE_MASKED << 28 | (uint64_t)vector << 32;
	msg = irq_msi_decode(msix->entry[vector].address, msix->entry[vector].data);
	target = irq_single_target(msix->vm, &msg);
	if (target) {
		kind = msg.logical ? ROUTE_CHECK : ROUTE_POST;
		index = target->index;
	}
	return msg.vector | (uint64_t)index << 8 | (uint64_t)(msg.dest & 0xff) << 16 |
	       (uint64_t)(msg.mode & 7) << 24 | (uint64_t)msg.logical << 27 | (uint64_t)kind << 28 |
	       (uint64_t)vector << 32;
}

static void deliver(struct msix *msix, uint64_t route)
{
	struct vcpu *vcpu = msix->vm->vcpu[route >> 8 & 0xff];
	struct irq_msg msg = route_msg(route);

	if (route_kind(route) == ROUTE_POST ||
	    (route_kind(route) == ROUTE_CHECK && vlapic_matches(&vcpu->lapic, msg.dest, true)))
		irq_post(vcpu, msg.vector);
	else
		irq_send(msix->vm, &msg);
}

/* --- the I/O core ----------------------------------------------------------------------------- */

static bool pending_take(struct msix *msix, unsigned vector)
{
	return atomic_fetch_and(&msix->pending, ~BIT(vector)) & BIT(vector);
}

static void masked_signal(struct msix *msix, unsigned source, unsigned vector)
{
	uint64_t route;

	atomic_fetch_or(&msix->pending, BIT(vector));
	route = atomic_load(&msix->route[source]);
	if (route_kind(route) == ROUTE_MASKED || route_kind(route) == ROUTE_NONE)
		return;
	if (pending_take(msix, vector))
		deliver(msix, route);
}

bool msix_signal(struct msix *msix, unsigned source)
{
	uint64_t route = atomic_load_explicit(&msix->route[source], memory_order_acquire);

	if (unlikely(route_kind(route) == ROUTE_NONE))
		return false;
	if (unlikely(route_kind(route) == ROUTE_MASKED))
		masked_signal(msix, source, route_entry(route));
	else
		deliver(msix, route);
	return true;
}

/* --- vCPU cores ------------------------------------------------------------------------------- */

/* After any change that concerns a vector: new routes first, then what waited for them. */
static void vector_update(struct msix *msix, unsigned vector)
{
	struct irq_msg msg;

	for (unsigned i = 0; i < msix->source_count; i++)
		if (msix->vector[i] == vector)
			atomic_store(&msix->route[i], route_make(msix, i));
	if (!msix->enabled || is_masked(msix, vector))
		return;
	if (!(atomic_load(&msix->pending) & BIT(vector)) || !pending_take(msix, vector))
		return;
	msg = irq_msi_decode(msix->entry[vector].address, msix->entry[vector].data);
	irq_send(msix->vm, &msg);
}

void msix_control_set(struct msix *msix, bool enabled, bool function_masked)
{
	if (msix->enabled == enabled && msix->function_masked == function_masked)
		return;
	msix->enabled = enabled;
	msix->function_masked = function_masked;
	for (unsigned i = 0; i < msix->vector_count; i++)
		vector_update(msix, i);
}

void msix_vector_set(struct msix *msix, unsigned source, uint16_t vector)
{
	msix->vector[source] = vector < msix->vector_count ? vector : MSIX_NO_VECTOR;
	atomic_store(&msix->route[source], route_make(msix, source));
}

void msix_reset(struct msix *msix)
{
	for (unsigned i = 0; i < msix->source_count; i++)
		msix_vector_set(msix, i, MSIX_NO_VECTOR);
	atomic_store(&msix->pending, 0);
}

void msix_init(struct msix *msix, struct vm *vm, unsigned vector_count, unsigned source_count)
{
	memset(msix, 0, sizeof(*msix));
	msix->vm = vm;
	msix->vector_count = vector_count;
	msix->source_count = source_count;
	for (unsigned i = 0; i < vector_count; i++)
		msix->entry[i].control = CONTROL_MASKED;
	msix_reset(msix);
}

/* --- table ------------------------------------------------------------------------------------ */

static bool access_is_valid(uint64_t offset, unsigned width_bytes, uint64_t end)
{
	return (width_bytes == 4 || width_bytes == 8) && IS_ALIGNED(offset, width_bytes) &&
	       offset < end;
}

static uint32_t dword_read(const struct msix *msix, uint64_t offset)
{
	const struct msix_entry *entry = &msix->entry[offset / MSIX_ENTRY_BYTES];

	switch (offset % MSIX_ENTRY_BYTES) {
	case 0: return (uint32_t)entry->address;
	case 4: return (uint32_t)(entry->address >> 32);
	case 8: return entry->data;
	default: return entry->control;
	}
}

static void dword_write(struct msix *msix, uint64_t offset, uint32_t value)
{
	struct msix_entry *entry = &msix->entry[offset / MSIX_ENTRY_BYTES];

	switch (offset % MSIX_ENTRY_BYTES) {
	case 0: entry->address = (entry->address & ~0xffffffffull) | (value & ~3u); break;
	case 4: entry->address = (uint32_t)entry->address | (uint64_t)value << 32; break;
	case 8: entry->data = value; break;
	default: entry->control = value & CONTROL_MASKED; break;
	}
}

uint64_t msix_table_read(const struct msix *msix, uint64_t offset, unsigned width_bytes)
{
	uint64_t value;

	if (!access_is_valid(offset, width_bytes, msix->vector_count * MSIX_ENTRY_BYTES))
		return 0;
	value = dword_read(msix, offset);
	if (width_bytes == 8)
		value |= (uint64_t)dword_read(msix, offset + 4) << 32;
	return value;
}

void msix_table_write(struct msix *msix, uint64_t offset, unsigned width_bytes, uint64_t value)
{
	if (!access_is_valid(offset, width_bytes, msix->vector_count * MSIX_ENTRY_BYTES))
		return;
	dword_write(msix, offset, (uint32_t)value);
	if (width_bytes == 8)
		dword_write(msix, offset + 4, (uint32_t)(value >> 32));
	vector_update(msix, (unsigned)(offset / MSIX_ENTRY_BYTES));
}

uint64_t msix_pba_read(const struct msix *msix, uint64_t offset, unsigned width_bytes)
{
	uint64_t pending;

	if (!access_is_valid(offset, width_bytes, sizeof(pending)))
		return 0;
	pending = atomic_load(&msix->pending) >> (offset * 8);
	return width_bytes == 8 ? pending : (uint32_t)pending;
}
