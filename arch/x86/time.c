/*
 * The TSC's rate. Two clocks of known rate are read against it in one window: the PIT and, where
 * ACPI names it, the PM timer. A rate that CPUID claims is exact but not always true, so it counts
 * only when a measurement agrees.
 */
#include "arch/platform.h"
#include "arch/x86/acpi.h"
#include "arch/x86/apic.h"
#include "arch/x86/arch.h"
#include "arch/x86/core.h"
#include "arch/x86/cpu.h"

#define PIT_HZ        1193182ull
#define PM_HZ         3579545ull
#define PIT_CH2       0x42
#define PIT_MODE      0x43
#define PIT_GATE      0x61
#define PIT_CH2_MODE0 0xb0 /* channel 2, low then high byte, count down once */
#define PIT_LATCH2    0x80
#define PIT_OUT2      BIT(5) /* of PIT_GATE: the count has passed zero */
#define WINDOW_LONG   35000u /* about 29 ms, well inside the PIT's 55 */
#define WINDOW_SHORT  12000u /* about 10 ms: fits between two pauses of a busy host */
#define SAMPLES       5u
#define WINDOW_SPINS  20000000u
#define ROUNDS        8u
#define TSC_HZ_MIN    500000ull
#define TSC_HZ_MAX    20000000000ull

struct sample {
	uint64_t tsc;
	uint32_t pit_left, pm, lapic_left;
};

struct rates {
	uint64_t pit_hz, pm_hz, lapic_per_tsc_q32; /* 0: no answer */
};

static uint64_t tsc_hz;

uint64_t plat_tsc_hz(void)
{
	return tsc_hz;
}

void time_delay_us(uint64_t us)
{
	uint64_t end = cpu_tsc() + tsc_hz * us / 1000000;

	while (cpu_tsc() < end)
		cpu_relax();
}

static uint32_t pit_read(void)
{
	uint32_t lo;

	cpu_out8(PIT_MODE, PIT_LATCH2);
	lo = cpu_in8(PIT_CH2);
	return lo | (uint32_t)cpu_in8(PIT_CH2) << 8;
}

static void pit_start(void)
{
	cpu_out8(PIT_GATE, (cpu_in8(PIT_GATE) & 0xfc) | 1); /* gate on, speaker off */
	cpu_out8(PIT_MODE, PIT_CH2_MODE0);
	cpu_out8(PIT_CH2, 0xff);
	cpu_out8(PIT_CH2, 0xff);
}

/* Of several readings the tightest: an SMI, or an emulator's pause, makes the others wide. */
static struct sample take(const struct acpi_fixed *fixed)
{
	struct sample best = {0, 0, 0, 0};
	uint64_t best_width = UINT64_MAX;

	for (unsigned i = 0; i < SAMPLES; i++) {
		struct sample s;
		uint64_t t0 = cpu_tsc(), t1;

		s.pm = fixed->pm_timer_port ? cpu_in32(fixed->pm_timer_port) : 0;
		s.lapic_left = apic_timer_is_tsc() ? 0 : apic_timer_count();
		s.pit_left = pit_read();
		t1 = cpu_tsc();
		s.tsc = t0 + (t1 - t0) / 2;
		if (t1 - t0 >= best_width)
			continue;
		best_width = t1 - t0;
		best = s;
	}
	return best;
}

static bool plausible(uint64_t hz)
{
	return hz >= TSC_HZ_MIN && hz <= TSC_HZ_MAX;
}

static struct rates measure(const struct acpi_fixed *fixed, uint32_t window)
{
	struct sample a, b;
	struct rates r = {0, 0, 0};
	uint32_t pit, pm, lapic, pm_mask = fixed->pm_timer_32bit ? UINT32_MAX : 0xffffff;
	uint64_t tsc;

	if (!apic_timer_is_tsc())
		apic_timer_free_run();
	pit_start();
	a = take(fixed);
	/* Bounded: a PIT that does not count must not stop the machine. */
	for (unsigned i = 0; i < WINDOW_SPINS && a.pit_left - pit_read() < window; i++)
		if (i > 1000 && pit_read() == a.pit_left)
			break;
	b = take(fixed);
	tsc = b.tsc - a.tsc;
	pit = a.pit_left - b.pit_left;
	pm = (b.pm - a.pm) & pm_mask;
	lapic = a.lapic_left - b.lapic_left;
	if (tsc == 0 || tsc > BIT(40))
		return r;
	/* Past zero it goes on from the top, and how often nobody knows. */
	if (pit >= window && pit < 65536 && !(cpu_in8(PIT_GATE) & PIT_OUT2))
		r.pit_hz = tsc * PIT_HZ / pit;
	if (fixed->pm_timer_port && pm > 1000)
		r.pm_hz = tsc * PM_HZ / pm;
	r.pit_hz = plausible(r.pit_hz) ? r.pit_hz : 0;
	r.pm_hz = plausible(r.pm_hz) ? r.pm_hz : 0;
	r.lapic_per_tsc_q32 = ((uint64_t)lapic << 32) / tsc;
	return r;
}

/* Within one in 2^shift of each other. */
static bool agree(uint64_t a, uint64_t b, unsigned shift)
{
	uint64_t diff = a > b ? a - b : b - a;

	return a && b && diff <= MAX(a, b) >> shift;
}

/* CPUID's own word: leaf 0x15, or a hypervisor's 0x40000010 in kHz. 0: none. */
static uint64_t claimed_hz(void)
{
	if (cpu_id(1, 0).ecx & BIT(31)) {
		uint32_t max = cpu_id(0x40000000, 0).eax;

		if (max >= 0x40000010 && max < 0x40001000)
			return cpu_id(0x40000010, 0).eax * 1000ull;
	}
	if (cpu_id(0, 0).eax >= 0x15) {
		struct cpu_regs r = cpu_id(0x15, 0);

		if (r.eax && r.ebx && r.ecx)
			return (uint64_t)r.ecx * r.ebx / r.eax;
	}
	return 0;
}

/*
 * What to believe after a round, NULL: measure again. Two sources that agree are best; one clock
 * that agrees with itself does when the other is missing or keeps disagreeing.
 */
static const char *choose(const struct rates *r, const struct rates *last, uint64_t claimed,
                          bool patient)
{
	if (plausible(claimed) && (agree(claimed, r->pm_hz, 7) || agree(claimed, r->pit_hz, 7))) {
		tsc_hz = claimed;
		return "CPUID, confirmed by measurement";
	}
	if (agree(r->pm_hz, r->pit_hz, 9)) {
		tsc_hz = r->pm_hz;
		return "ACPI PM timer and PIT agree";
	}
	if ((!r->pit_hz || !patient) && agree(r->pm_hz, last->pm_hz, 9)) {
		tsc_hz = r->pm_hz;
		return "ACPI PM timer, measured twice";
	}
	if ((!r->pm_hz || !patient) && agree(r->pit_hz, last->pit_hz, 9)) {
		tsc_hz = r->pit_hz;
		return "PIT, measured twice";
	}
	return NULL;
}

static const char *settle(const struct rates *r, uint64_t claimed)
{
	tsc_hz = r->pm_hz ? r->pm_hz : r->pit_hz;
	if (tsc_hz)
		return "sources disagree: times may be wrong";
	tsc_hz = plausible(claimed) ? claimed : 1000000000;
	return "no clock answers: times may be wrong";
}

void time_init(hpa_t rsdp_hpa)
{
	struct acpi_fixed fixed;
	struct rates r = {0, 0, 0}, last;
	uint64_t claimed = claimed_hz();
	const char *how = NULL;

	acpi_fixed(rsdp_hpa, &fixed);
	for (unsigned i = 0; i < ROUNDS && !how; i++) {
		last = r;
		r = measure(&fixed, i ? WINDOW_SHORT : WINDOW_LONG);
		how = choose(&r, &last, claimed, i < ROUNDS / 2);
	}
	if (!how)
		how = settle(&r, claimed);
	if (!apic_timer_is_tsc())
		apic_timer_set_rate(r.lapic_per_tsc_q32);
	plat_log("TSC %llu kHz (%s; PIT %llu, PM timer %llu, CPUID %llu); core timer %s",
	         (unsigned long long)tsc_hz / 1000, how, (unsigned long long)r.pit_hz / 1000,
	         (unsigned long long)r.pm_hz / 1000, (unsigned long long)claimed / 1000,
	         apic_timer_is_tsc() ? "TSC-deadline" : "one-shot");
}
