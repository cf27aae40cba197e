/* From firmware's hands into our own: tables, stack, clocks, then the portable hypervisor. */
#include "arch/platform.h"
#include "arch/x86/apic.h"
#include "arch/x86/arch.h"
#include "arch/x86/core.h"
#include "arch/x86/cpu.h"
#include "arch/x86/paging.h"
#include "arch/x86/percore.h"
#include "vmm/main.h"

static const struct boot_info *boot_info;

const struct boot_info *arch_boot_info(void)
{
	return boot_info;
}

/* On the boot core's own stack and page tables. */
static void NORETURN __attribute__((noinline, used)) start_on_own_stack(struct percore *pc)
{
	const struct boot_info *info = boot_info;

	percore_load_tables(pc);
	mem_init(info);
	if (info->fb.base_hpa && !paging_map(info->fb.base_hpa, info->fb.len_bytes, MAP_WC))
		log_framebuffer_init(&info->fb);
	ioapic_init(info->rsdp_hpa);
	apic_init(info);
	apic_init_core();
	smp_init(info, pc);
	time_init(info->rsdp_hpa);
	quell_main(info);
	core_power_off(false);
}

void arch_start(const struct boot_info *info)
{
	struct percore *pc;
	void *block;

	cpu_irq_off();
	boot_info = info;
	log_init();
	paging_build(info);
	trap_init();
	block = paging_arena_alloc(PERCORE_BYTES, PERCORE_BYTES);
	pc = block ? percore_init(block, info->boot_cpu, info->cpu_apic_id[info->boot_cpu]) : NULL;
	if (!pc)
		plat_panic("no memory for the boot core's stack");
	/* In this order: firmware's tables may not bear SMEP, SMAP or WP. */
	paging_load();
	percore_init_cpu();
	__asm__ volatile("movq %0, %%rsp\n\t"
	                 "xorl %%ebp, %%ebp\n\t"
	                 "call *%2\n\t"
	                 "ud2"
	                 :
	                 : "r"(percore_stack_top(pc)), "D"(pc), "r"(start_on_own_stack)
	                 : "memory");
	__builtin_unreachable();
}
