#include "arch/x86/percore.h"
#include "arch/x86/arch.h"
#include "arch/x86/core.h"
#include "arch/x86/cpu.h"
#include "arch/x86/paging.h"
#include "arch/x86/trap.h"

#define GDT_CODE64 0x00af9b000000ffffull
#define GDT_DATA   0x00cf93000000ffffull
/* SDM 3A 12.12.4: WB, write-combining, UC-, UC; then as after reset. MAP_WC counts on it. */
#define PAT_OURS 0x0007040600070106ull

struct table_ptr {
	uint16_t limit;
	uint64_t base;
} PACKED;

/* Pages of a block: 0 data, then a guard and two pages for each IST stack, a guard, the stack. */
static uint64_t guard_offset(unsigned index)
{
	return PAGE_SIZE + index * (PAGE_SIZE + PERCORE_IST_BYTES);
}

bool percore_is_guard(uint64_t va)
{
	for (unsigned i = 0; i <= TRAP_IST_COUNT; i++)
		if (va - (uint64_t)percore_self() - guard_offset(i) < PAGE_SIZE)
			return true;
	return false;
}

static void tss_describe(struct percore *pc)
{
	uint64_t base = (uint64_t)&pc->tss, limit = sizeof(pc->tss) - 1;

	pc->gdt[SEL_TSS / 8] =
	        limit | (base & 0xffffff) << 16 | 0x89ull << 40 | (base >> 24 & 0xff) << 56;
	pc->gdt[SEL_TSS / 8 + 1] = base >> 32;
}

struct percore *percore_init(void *mem, unsigned core, uint32_t apic_id)
{
	struct percore *pc = mem;

	pc->core = core;
	pc->apic_id = apic_id;
	pc->timer_tsc = UINT64_MAX;
	pc->icr_dest = UINT32_MAX;
	pc->idle = CORE_IDLE_HLT;
	pc->gdt[SEL_CODE / 8] = GDT_CODE64;
	pc->gdt[SEL_DATA / 8] = GDT_DATA;
	for (unsigned i = 0; i <= TRAP_IST_COUNT; i++) {
		uint64_t guard = (uint64_t)mem + guard_offset(i);

		if (i < TRAP_IST_COUNT)
			pc->tss.ist[i] = guard + PAGE_SIZE + PERCORE_IST_BYTES;
		if (paging_map(guard, PAGE_SIZE, 0))
			return NULL;
	}
	pc->tss.rsp[0] = percore_stack_top(pc);
	pc->tss.iomap_base = sizeof(pc->tss);
	tss_describe(pc);
	return pc;
}

void percore_load_tables(struct percore *pc)
{
	struct table_ptr gdtr = {sizeof(pc->gdt) - 1, (uint64_t)pc->gdt};

	tss_describe(pc); /* LTR refuses a TSS marked busy */
	__asm__ volatile("lgdt %0\n\t"
	                 "pushq %1\n\t"
	                 "leaq 1f(%%rip), %%rax\n\t"
	                 "pushq %%rax\n\t"
	                 "lretq\n"
	                 "1:\tmovl %2, %%eax\n\t"
	                 "movl %%eax, %%ds\n\t"
	                 "movl %%eax, %%es\n\t"
	                 "movl %%eax, %%ss\n\t"
	                 "xorl %%eax, %%eax\n\t"
	                 "movl %%eax, %%fs\n\t"
	                 "movl %%eax, %%gs\n\t"
	                 "lldt %%ax\n\t"
	                 "movl %3, %%eax\n\t"
	                 "ltr %%ax"
	                 :
	                 : "m"(gdtr), "i"(SEL_CODE), "i"(SEL_DATA), "i"(SEL_TSS)
	                 : "rax", "memory");
	trap_load();
}

static uint64_t cr4_wanted(void)
{
	struct cpu_regs basic = cpu_id(1, 0), ext = {0, 0, 0, 0};
	uint64_t cr4 = CR4_PAE | CR4_DE | CR4_OSFXSR | CR4_OSXMMEXCPT;

	if (cpu_id(0, 0).eax >= 7)
		ext = cpu_id(7, 0);
	if (basic.edx & BIT(7))
		cr4 |= CR4_MCE;
	if (basic.ecx & BIT(26))
		cr4 |= CR4_OSXSAVE;
	if (ext.ebx & BIT(7))
		cr4 |= CR4_SMEP;
	if (ext.ebx & BIT(20))
		cr4 |= CR4_SMAP;
	if (ext.ecx & BIT(2))
		cr4 |= CR4_UMIP;
	return cr4 | (cpu_cr4() & CR4_LA57); /* cannot change while paging is on */
}

void percore_init_cpu(void)
{
	uint64_t efer = EFER_LME;

	if (cpu_id(0x80000001, 0).edx & BIT(20))
		efer |= EFER_NXE;
	cpu_wrmsr(MSR_EFER, efer | (cpu_rdmsr(MSR_EFER) & BIT(10)));
	cpu_wrmsr(MSR_PAT, PAT_OURS);
	cpu_cr4_set(cr4_wanted());
	cpu_cr0_set(CR0_PG | CR0_WP | CR0_NE | CR0_ET | CR0_MP | CR0_PE);
	/* What a guest finds in the FPU is what reset leaves there, not firmware's. */
	__asm__ volatile("fninit");
	if (cpu_cr4() & CR4_OSXSAVE)
		__asm__ volatile("xsetbv" : : "a"(1), "d"(0), "c"(0));
}
