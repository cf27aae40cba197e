#include "arch/x86/apic.h"
#include "arch/platform.h"
#include "arch/x86/arch.h"
#include "arch/x86/core.h"
#include "arch/x86/cpu.h"
#include "arch/x86/paging.h"
#include "arch/x86/percore.h"

#define APIC_BASE_ENABLE BIT(11)
#define APIC_BASE_X2     BIT(10)
#define APIC_DEFAULT_HPA 0xfee00000ull

/* Register offsets of xAPIC; x2APIC's MSR is 0x800 + offset / 16. */
enum apic_reg {
	APIC_ID = 0x20,
	APIC_TPR = 0x80,
	APIC_EOI = 0xb0,
	APIC_SVR = 0xf0,
	APIC_ESR = 0x280,
	APIC_LVT_CMCI = 0x2f0,
	APIC_ICR = 0x300,
	APIC_ICR_HI = 0x310,
	APIC_LVT_TIMER = 0x320,
	APIC_LVT_THERMAL = 0x330,
	APIC_LVT_PERF = 0x340,
	APIC_LVT_LINT0 = 0x350,
	APIC_LVT_LINT1 = 0x360,
	APIC_LVT_ERROR = 0x370,
	APIC_TIMER_INIT = 0x380,
	APIC_TIMER_COUNT = 0x390,
	APIC_TIMER_DIVIDE = 0x3e0,
};

#define SVR_ENABLE      BIT(8)
#define LVT_MASKED      BIT(16)
#define LVT_DEADLINE    BIT(18)
#define DELIVER_NMI     0x400u
#define DELIVER_INIT    0x500u
#define DELIVER_STARTUP 0x600u
#define ICR_ASSERT      BIT(14)
#define DIVIDE_BY_1     0xbu

/* Written by the boot core before others start. */
static struct {
	volatile uint8_t *regs; /* xAPIC */
	bool x2;
	bool deadline;
	uint64_t per_tsc_q32;
	uint64_t clamp_tsc; /* cycles the 32-bit counter can hold */
} apic;

static uint32_t reg_read(enum apic_reg reg)
{
	if (apic.x2)
		return (uint32_t)cpu_rdmsr(MSR_X2APIC + reg / 16);
	return plat_mmio_read32(apic.regs + reg);
}

static void reg_write(enum apic_reg reg, uint32_t value)
{
	if (apic.x2)
		cpu_wrmsr(MSR_X2APIC + reg / 16, value);
	else
		plat_mmio_write32(apic.regs + reg, value);
}

uint32_t apic_id_cpuid(void)
{
	uint32_t max = cpu_id(0, 0).eax;

	/* Leaf 0xB counts only when it describes something: SDM 2A CPUID. */
	if (max >= 0xb && (cpu_id(0xb, 0).ebx & 0xffff))
		return cpu_id(0xb, 0).edx;
	return cpu_id(1, 0).ebx >> 24;
}

static bool ids_need_x2(const struct boot_info *info)
{
	for (uint32_t i = 0; i < info->cpu_count; i++)
		if (info->cpu_apic_id[i] > 0xfe)
			return true;
	return false;
}

void apic_init(const struct boot_info *info)
{
	uint64_t base = cpu_rdmsr(MSR_APIC_BASE);
	uint32_t features = cpu_id(1, 0).ecx;
	hpa_t regs_hpa = base & 0x000ffffffffff000ull;

	apic.deadline = features & BIT(24);
	apic.x2 = (base & APIC_BASE_X2) || (ids_need_x2(info) && (features & BIT(21)));
	if (apic.x2)
		return;
	apic.regs = plat_mmio_map(regs_hpa ? regs_hpa : APIC_DEFAULT_HPA, PAGE_SIZE);
	if (!apic.regs)
		plat_panic("local APIC: no memory to map it");
}

/* x2APIC cannot be left for xAPIC but through disabled: SDM 3A 11.12.5. */
static void mode_set(void)
{
	uint64_t base = cpu_rdmsr(MSR_APIC_BASE);
	uint64_t plain = base & ~(APIC_BASE_ENABLE | APIC_BASE_X2);

	if (apic.x2) {
		if (!(base & APIC_BASE_ENABLE))
			cpu_wrmsr(MSR_APIC_BASE, plain | APIC_BASE_ENABLE);
		cpu_wrmsr(MSR_APIC_BASE, plain | APIC_BASE_ENABLE | APIC_BASE_X2);
		return;
	}
	if (base & APIC_BASE_X2)
		cpu_wrmsr(MSR_APIC_BASE, plain);
	if ((base & (APIC_BASE_ENABLE | APIC_BASE_X2)) != APIC_BASE_ENABLE)
		cpu_wrmsr(MSR_APIC_BASE, plain | APIC_BASE_ENABLE);
}

void apic_init_core(void)
{
	static const enum apic_reg lvt[] = {APIC_LVT_LINT0, APIC_LVT_LINT1, APIC_LVT_ERROR,
	                                    APIC_LVT_PERF, APIC_LVT_THERMAL};

	mode_set();
	reg_write(APIC_SVR, SVR_ENABLE | CORE_VECTOR_SPURIOUS);
	for (unsigned i = 0; i < ARRAY_LEN(lvt); i++)
		reg_write(lvt[i], LVT_MASKED | CORE_VECTOR_SPURIOUS);
	reg_write(APIC_TPR, 0);
	reg_write(APIC_TIMER_DIVIDE, DIVIDE_BY_1);
	reg_write(APIC_TIMER_INIT, 0);
	reg_write(APIC_LVT_TIMER, CORE_VECTOR_TIMER | (apic.deadline ? LVT_DEADLINE : 0));
	if (apic.deadline) {
		/* The mode must be in force before the first deadline: SDM 3A 11.5.4.1. */
		__asm__ volatile("mfence" : : : "memory");
		cpu_wrmsr(MSR_TSC_DEADLINE, 0);
	}
	/* Interrupts firmware left in service would hold ours back. */
	for (unsigned i = 0; i < 256; i++)
		apic_eoi();
}

void apic_eoi(void)
{
	reg_write(APIC_EOI, 0);
}

static void icr_write(uint32_t apic_id, uint32_t command)
{
	struct percore *pc = percore_self();

	if (apic.x2) {
		/* A WRMSR to the x2APIC does not order earlier stores: SDM 3A 11.12.3. */
		__asm__ volatile("mfence; lfence" : : : "memory");
		cpu_wrmsr(MSR_X2APIC + APIC_ICR / 16, (uint64_t)apic_id << 32 | command);
		return;
	}
	/* The delivery-status bit is for the APIC bus of old: these machines have none to wait for.
	 * Outside start-up the other half rarely changes, and under a hypervisor each write costs. */
	if (pc->icr_dest != apic_id) {
		pc->icr_dest = apic_id;
		reg_write(APIC_ICR_HI, apic_id << 24);
	}
	reg_write(APIC_ICR, command);
}

void apic_send(uint32_t apic_id, uint8_t vector)
{
	uint64_t flags = cpu_flags();

	cpu_irq_off(); /* the two halves of the register belong together */
	icr_write(apic_id, ICR_ASSERT | vector);
	if (flags & BIT(9))
		cpu_irq_on();
}

void apic_send_init(uint32_t apic_id)
{
	icr_write(apic_id, ICR_ASSERT | DELIVER_INIT);
}

void apic_send_sipi(uint32_t apic_id, uint8_t page)
{
	icr_write(apic_id, ICR_ASSERT | DELIVER_STARTUP | page);
}

void apic_stop_others(void)
{
	if (!apic.x2 && !apic.regs)
		return;
	/* Not to all: a core that never started is still in firmware's hands, in memory that was given
	 * away since, and an NMI would make it use the tables it once had there. */
	for (unsigned i = 0; i < core_count(); i++) {
		const struct percore *pc = percore_of(i);

		if (!pc || pc == percore_self() || !core_online(i))
			continue;
		icr_write(pc->apic_id, ICR_ASSERT | CORE_VECTOR_STOP);
		icr_write(pc->apic_id, ICR_ASSERT | DELIVER_NMI);
	}
}

void apic_timer_free_run(void)
{
	reg_write(APIC_LVT_TIMER, LVT_MASKED | CORE_VECTOR_TIMER);
	reg_write(APIC_TIMER_INIT, UINT32_MAX);
}

uint32_t apic_timer_count(void)
{
	return reg_read(APIC_TIMER_COUNT);
}

bool apic_timer_is_tsc(void)
{
	return apic.deadline;
}

void apic_timer_set_rate(uint64_t per_tsc_q32)
{
	apic.per_tsc_q32 = MAX(per_tsc_q32, 1ull);
	/* Half the counter's range, so that the product below cannot pass 32 bits. */
	apic.clamp_tsc = BIT(63) / apic.per_tsc_q32;
	reg_write(APIC_TIMER_INIT, 0);
	reg_write(APIC_LVT_TIMER, CORE_VECTOR_TIMER);
}

static void timer_write(uint64_t deadline_tsc)
{
	uint64_t now, delta;

	if (apic.deadline) {
		cpu_wrmsr(MSR_TSC_DEADLINE,
		          deadline_tsc == UINT64_MAX ? 0 : MAX(deadline_tsc, 1ull));
		return;
	}
	if (deadline_tsc == UINT64_MAX) {
		reg_write(APIC_TIMER_INIT, 0);
		return;
	}
	now = cpu_tsc();
	delta = deadline_tsc > now ? MIN(deadline_tsc - now, apic.clamp_tsc) : 0;
	reg_write(APIC_TIMER_INIT, (uint32_t)(delta * apic.per_tsc_q32 >> 32) + 1);
}

void core_timer_arm(uint64_t deadline_tsc)
{
	struct percore *pc = percore_self();

	if (pc->timer_tsc == deadline_tsc)
		return;
	pc->timer_tsc = deadline_tsc;
	timer_write(deadline_tsc);
}

void apic_timer_expired(void)
{
	struct percore *pc = percore_self();

	if (pc->timer_tsc == UINT64_MAX || cpu_tsc() >= pc->timer_tsc) {
		pc->timer_tsc = UINT64_MAX;
		return;
	}
	/* An older deadline's interrupt, a counter too short for the whole wait, or a hypervisor
	 * below that rounds: go on. */
	timer_write(pc->timer_tsc);
}
