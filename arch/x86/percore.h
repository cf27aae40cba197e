/*
 * percore.h: what belongs to one core: its stacks, descriptor tables and timer.
 *
 * Each core owns one naturally aligned block: a page of data, then stacks with an unmapped guard
 * page below each. The block is found from the stack pointer, so neither GS nor TR need be right,
 * whatever a back end has just switched.
 */
#ifndef QUELL_ARCH_X86_PERCORE_H
#define QUELL_ARCH_X86_PERCORE_H

#include "arch/types.h"

#define PERCORE_BYTES     (128 * KIB)
#define PERCORE_IST_BYTES (2 * PAGE_SIZE)

/* Selectors of every core's GDT. The TSS descriptor takes two slots. */
#define SEL_CODE  0x08
#define SEL_DATA  0x10
#define SEL_TSS   0x18
#define GDT_SLOTS 5

/* SDM 3A 8.7 */
struct tss {
	uint32_t reserved0;
	uint64_t rsp[3];
	uint64_t reserved1;
	uint64_t ist[7];
	uint64_t reserved2;
	uint16_t reserved3;
	uint16_t iomap_base;
} PACKED;
_Static_assert(sizeof(struct tss) == 104, "TSS");

struct percore {
	unsigned core; /* index in boot_info.cpu_apic_id */
	uint32_t apic_id;
	uint64_t timer_tsc; /* deadline the timer hardware has; UINT64_MAX: off. Own core */
	uint32_t icr_dest;  /* xAPIC: what ICR's upper half holds. Own core */
	uint8_t idle;       /* enum core_idle but AUTO. The boot core's until the core waits */
	uint32_t irq_count; /* interrupts of ours taken. Own core */
	atomic_bool online; /* set once by the core itself */
	uint64_t start_tsc; /* its cycle counter just before that */

	/* What core_start asks this core to run: the boot core sets posted, this one clears it. */
	void (*entry)(void *arg);
	void *arg;
	atomic_uint posted;

	uint64_t gdt[GDT_SLOTS];
	struct tss tss;
};
_Static_assert(sizeof(struct percore) <= PAGE_SIZE, "the first guard page follows");

/* The block of the core that runs this. Not before arch_start has switched stacks. */
static inline struct percore *percore_self(void)
{
	uint64_t rsp;

	__asm__("mov %%rsp, %0" : "=r"(rsp));
	return (struct percore *)ALIGN_DOWN(rsp, PERCORE_BYTES);
}

/* The block of any core, NULL where smp_init had no memory for it. */
struct percore *percore_of(unsigned core);

/* Prepares the zeroed, aligned block at mem for a core: identity, TSS, GDT. Its guard pages are
 * unmapped. Boot core, on our own page tables or before they are loaded. */
struct percore *percore_init(void *mem, unsigned core, uint32_t apic_id);

/* Top of that core's main stack. */
static inline uint64_t percore_stack_top(const struct percore *pc)
{
	return (uint64_t)pc + PERCORE_BYTES;
}

/* Does the address lie in a guard page below one of this core's stacks? */
bool percore_is_guard(uint64_t va);

/* Loads this core's GDT, TSS and IDT. On the core itself, interrupts off. */
void percore_load_tables(struct percore *pc);

/* Control registers, EFER, PAT, FPU reset state and protection bits. On the core itself. */
void percore_init_cpu(void);

#endif
