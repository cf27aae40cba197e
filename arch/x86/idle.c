/* How a core waits, and how others end that. */
#include "arch/platform.h"
#include "arch/x86/apic.h"
#include "arch/x86/arch.h"
#include "arch/x86/core.h"
#include "arch/x86/cpu.h"
#include "arch/x86/percore.h"

#define BOCHS_DEBUG_PORT 0xe9

/* A line whose store was missed delays, it does not hang: MWAIT is looked after this often. */
#define MWAIT_LONGEST_MS 100u

static bool has_mwait(void)
{
	return cpu_id(1, 0).ecx & BIT(3);
}

/* Emulators and hypervisors advertise MWAIT and only yield, or exit; Bochs, which has no hypervisor
 * bit but answers at its debug port, sleeps on when another core stores to the line. */
static bool mwait_is_real(void)
{
	return has_mwait() && !(cpu_id(1, 0).ecx & BIT(31)) &&
	       cpu_in8(BOCHS_DEBUG_PORT) != BOCHS_DEBUG_PORT;
}

int core_idle_set(unsigned core, enum core_idle idle)
{
	struct percore *pc = percore_of(core);

	if (!pc)
		return -EINVAL;
	if (idle == CORE_IDLE_MWAIT && !has_mwait())
		return -EOPNOTSUPP;
	if (idle == CORE_IDLE_AUTO)
		idle = mwait_is_real() ? CORE_IDLE_MWAIT : CORE_IDLE_HLT;
	pc->idle = (uint8_t)idle;
	return 0;
}

const char *core_idle_name(unsigned core)
{
	static const char *const name[] = {"auto", "mwait", "hlt", "poll"};
	const struct percore *pc = percore_of(core);

	return pc ? name[pc->idle] : "?";
}

/* Interrupts are off. STI holds them off for one more instruction: HLT and MWAIT cannot miss one. */
static void wait_hlt(void)
{
	__asm__ volatile("sti; hlt; cli" : : : "memory");
}

/* The look at the word comes after MONITOR: a store in between makes MWAIT return at once. */
static void wait_mwait(const atomic_uint *wake)
{
	__asm__ volatile("monitor" : : "a"(wake), "c"(0), "d"(0) : "memory");
	if (!atomic_load(wake))
		__asm__ volatile("sti; mwait; cli" : : "a"(0), "c"(0) : "memory");
}

static void wait_poll(struct percore *pc, const atomic_uint *wake, uint64_t deadline_tsc)
{
	const volatile uint32_t *irq_count = &pc->irq_count;
	uint32_t before = *irq_count;

	cpu_irq_on();
	while (!atomic_load_explicit(wake, memory_order_acquire) && *irq_count == before &&
	       cpu_tsc() < deadline_tsc)
		cpu_relax();
	cpu_irq_off();
}

static uint64_t mwait_longest_tsc(void)
{
	return plat_tsc_hz() / 1000 * MWAIT_LONGEST_MS;
}

void plat_wait(const atomic_uint *wake, uint64_t deadline_tsc)
{
	struct percore *pc = percore_self();
	uint64_t flags = cpu_flags();

	cpu_irq_off();
	if (!atomic_load(wake) && cpu_tsc() < deadline_tsc) {
		if (pc->idle == CORE_IDLE_MWAIT)
			deadline_tsc = MIN(deadline_tsc, cpu_tsc() + mwait_longest_tsc());
		if (pc->idle != CORE_IDLE_POLL)
			core_timer_arm(deadline_tsc);
		if (pc->idle == CORE_IDLE_HLT)
			wait_hlt();
		else if (pc->idle == CORE_IDLE_MWAIT)
			wait_mwait(wake);
		else
			wait_poll(pc, wake, deadline_tsc);
	}
	if (flags & BIT(9))
		cpu_irq_on();
}

void plat_wake(unsigned core)
{
	const struct percore *pc = percore_of(core);

	if (pc && pc->idle == CORE_IDLE_HLT)
		apic_send(pc->apic_id, CORE_VECTOR_WAKE);
}
