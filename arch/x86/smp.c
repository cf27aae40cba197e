/* Starting the other processors: SDM 3A 9.4. */
#include "arch/platform.h"
#include "arch/x86/apic.h"
#include "arch/x86/arch.h"
#include "arch/x86/core.h"
#include "arch/x86/cpu.h"
#include "arch/x86/paging.h"
#include "arch/x86/percore.h"

#define SIPI_RETRY_US   100000ull
#define SIPI_GIVE_UP_US 2000000ull

/* trampoline.asm, filled in by the boot core before the first start. */
struct trampoline_params {
	uint32_t cr3, cr4, efer, cr0;
	uint32_t far_offset;
	uint16_t far_sel, pad0;
	uint16_t gdtr_limit;
	uint32_t gdtr_base;
	uint16_t pad1;
	uint64_t entry;
	uint64_t gdt[2];
} PACKED;
_Static_assert(sizeof(struct trampoline_params) == 56, "trampoline.asm");

extern const uint8_t trampoline_start[], trampoline_end[], trampoline_params[];
extern const uint32_t trampoline_offset_gdt, trampoline_offset_64;
void smp_entry64(void);
void smp_main(void);

/* Stack top for the processor being started; it takes it by exchanging it for 0. */
atomic_uint_least64_t smp_stack;

static struct percore *cores[BOOT_CPU_MAX];
static bool trampoline_ready;

struct percore *percore_of(unsigned core)
{
	return core < BOOT_CPU_MAX ? cores[core] : NULL;
}

void smp_init(const struct boot_info *info, struct percore *boot)
{
	cores[boot->core] = boot;
	atomic_store(&boot->online, true);
	for (unsigned i = 0; i < info->cpu_count; i++) {
		void *mem;

		if (i == info->boot_cpu)
			continue;
		mem = plat_mem_alloc(PERCORE_BYTES, PERCORE_BYTES);
		cores[i] = mem ? percore_init(mem, i, info->cpu_apic_id[i]) : NULL;
		if (!cores[i])
			plat_log("core %u: no memory for its stacks", i);
	}
}

static int trampoline_install(void)
{
	hpa_t page = arch_boot_info()->trampoline_hpa;
	struct trampoline_params *p;

	if (!page)
		return -ENOMEM;
	if (paging_map(page, PAGE_SIZE, MAP_RW))
		return -ENOMEM;
	memcpy((void *)page, trampoline_start, (size_t)(trampoline_end - trampoline_start));
	p = (struct trampoline_params *)(page + (uint64_t)(trampoline_params - trampoline_start));
	p->cr3 = (uint32_t)paging_root_hpa();
	p->cr4 = (uint32_t)(CR4_PAE | (cpu_cr4() & CR4_LA57));
	p->efer = (uint32_t)(cpu_rdmsr(MSR_EFER) & (EFER_LME | EFER_NXE));
	p->cr0 = (uint32_t)(CR0_PG | CR0_WP | CR0_NE | CR0_ET | CR0_PE);
	p->far_offset = (uint32_t)page + trampoline_offset_64;
	p->gdtr_base = (uint32_t)page + trampoline_offset_gdt;
	p->entry = (uint64_t)smp_entry64;
	trampoline_ready = true;
	return paging_map(page, PAGE_SIZE, MAP_RX);
}

void smp_main(void)
{
	struct percore *pc = percore_self();

	percore_init_cpu();
	percore_load_tables(pc);
	apic_init_core();
	pc->start_tsc = cpu_tsc();
	atomic_store(&pc->online, true);
	for (;;) {
		while (!atomic_load(&pc->posted))
			plat_wait(&pc->posted, UINT64_MAX);
		atomic_store(&pc->posted, 0);
		pc->entry(pc->arg);
	}
}

static bool wait_online(const struct percore *pc, uint64_t timeout_us)
{
	uint64_t end = cpu_tsc() + plat_tsc_hz() / 1000 * timeout_us / 1000;

	while (!atomic_load(&pc->online)) {
		if (cpu_tsc() >= end)
			return false;
		cpu_relax();
	}
	return true;
}

static bool wake_from_reset(struct percore *pc, uint64_t *before_tsc)
{
	uint8_t page = (uint8_t)(arch_boot_info()->trampoline_hpa >> PAGE_SHIFT);

	atomic_store(&smp_stack, percore_stack_top(pc));
	*before_tsc = cpu_tsc();
	apic_send_init(pc->apic_id);
	time_delay_us(10000);
	apic_send_sipi(pc->apic_id, page);
	if (wait_online(pc, SIPI_RETRY_US))
		return true;
	apic_send_sipi(pc->apic_id, page);
	if (wait_online(pc, SIPI_GIVE_UP_US))
		return true;
	/* Gone already: it did answer, and is on its way. */
	if (atomic_exchange(&smp_stack, 0) == 0)
		return wait_online(pc, SIPI_GIVE_UP_US);
	apic_send_init(pc->apic_id);
	return false;
}

/* Deadlines and guests' clocks travel between cores, so a counter of its own has to be told. */
static void tsc_check(const struct percore *pc, uint64_t before_tsc)
{
	uint64_t now = cpu_tsc();

	if (pc->start_tsc < before_tsc || pc->start_tsc > now)
		plat_log("core %u: its cycle counter differs from the boot core's (%llu, not "
		         "between "
		         "%llu and %llu): times on it are wrong",
		         pc->core, (unsigned long long)pc->start_tsc,
		         (unsigned long long)before_tsc, (unsigned long long)now);
}

/* Brings a core up from wait-for-SIPI. */
static int core_bring_up(struct percore *pc)
{
	uint64_t before_tsc;

	if (!wake_from_reset(pc, &before_tsc)) {
		plat_log("core %u (APIC id %u) did not start", pc->core, pc->apic_id);
		return -ETIMEDOUT;
	}
	tsc_check(pc, before_tsc);
	return 0;
}

int core_start(unsigned core, void (*entry)(void *arg), void *arg)
{
	struct percore *pc = percore_of(core);
	int err;

	if (core >= core_count() || core == arch_boot_info()->boot_cpu)
		return -EINVAL;
	if (!pc || (!trampoline_ready && trampoline_install())) {
		plat_log("core %u cannot start: no memory below 1 MiB for its first page", core);
		return -ENOMEM;
	}
	err = atomic_load(&pc->online) ? 0 : core_bring_up(pc);
	if (err)
		return err;
	if (atomic_load(&pc->posted))
		return -EBUSY;
	pc->entry = entry;
	pc->arg = arg;
	atomic_store(&pc->posted, 1);
	plat_wake(core);
	return 0;
}
