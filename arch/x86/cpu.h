/*
 * cpu.h: single instructions as functions, for arch/x86 only. Each does what its name says on the
 * core it runs on; the hosted build never sees this header.
 */
#ifndef QUELL_ARCH_X86_CPU_H
#define QUELL_ARCH_X86_CPU_H

#include "arch/types.h"

#define CR0_PE BIT(0)
#define CR0_MP BIT(1)
#define CR0_ET BIT(4)
#define CR0_NE BIT(5)
#define CR0_WP BIT(16)
#define CR0_PG BIT(31)

#define CR4_DE         BIT(3)
#define CR4_PAE        BIT(5)
#define CR4_MCE        BIT(6)
#define CR4_OSFXSR     BIT(9)
#define CR4_OSXMMEXCPT BIT(10)
#define CR4_UMIP       BIT(11)
#define CR4_LA57       BIT(12)
#define CR4_OSXSAVE    BIT(18)
#define CR4_SMEP       BIT(20)
#define CR4_SMAP       BIT(21)

#define MSR_APIC_BASE    0x1bu
#define MSR_MISC_ENABLE  0x1a0u
#define MSR_PAT          0x277u
#define MSR_TSC_DEADLINE 0x6e0u
#define MSR_X2APIC       0x800u
#define MSR_EFER         0xc0000080u

#define EFER_SCE BIT(0)
#define EFER_LME BIT(8)
#define EFER_NXE BIT(11)

struct cpu_regs {
	uint32_t eax, ebx, ecx, edx;
};

static inline struct cpu_regs cpu_id(uint32_t leaf, uint32_t subleaf)
{
	struct cpu_regs r;

	__asm__ volatile("cpuid"
	                 : "=a"(r.eax), "=b"(r.ebx), "=c"(r.ecx), "=d"(r.edx)
	                 : "a"(leaf), "c"(subleaf));
	return r;
}

static inline uint64_t cpu_rdmsr(uint32_t index)
{
	uint32_t lo, hi;

	__asm__ volatile("rdmsr" : "=a"(lo), "=d"(hi) : "c"(index));
	return (uint64_t)hi << 32 | lo;
}

static inline void cpu_wrmsr(uint32_t index, uint64_t value)
{
	__asm__ volatile("wrmsr"
	                 :
	                 : "c"(index), "a"((uint32_t)value), "d"((uint32_t)(value >> 32))
	                 : "memory");
}

static inline uint64_t cpu_cr0(void)
{
	uint64_t v;

	__asm__ volatile("mov %%cr0, %0" : "=r"(v));
	return v;
}

static inline uint64_t cpu_cr2(void)
{
	uint64_t v;

	__asm__ volatile("mov %%cr2, %0" : "=r"(v));
	return v;
}

static inline uint64_t cpu_cr3(void)
{
	uint64_t v;

	__asm__ volatile("mov %%cr3, %0" : "=r"(v));
	return v;
}

static inline uint64_t cpu_cr4(void)
{
	uint64_t v;

	__asm__ volatile("mov %%cr4, %0" : "=r"(v));
	return v;
}

static inline void cpu_cr0_set(uint64_t v)
{
	__asm__ volatile("mov %0, %%cr0" : : "r"(v) : "memory");
}

static inline void cpu_cr3_set(uint64_t v)
{
	__asm__ volatile("mov %0, %%cr3" : : "r"(v) : "memory");
}

static inline void cpu_cr4_set(uint64_t v)
{
	__asm__ volatile("mov %0, %%cr4" : : "r"(v) : "memory");
}

static inline uint64_t cpu_flags(void)
{
	uint64_t v;

	__asm__ volatile("pushfq; popq %0" : "=r"(v) : : "memory");
	return v;
}

static inline void cpu_irq_off(void)
{
	__asm__ volatile("cli" : : : "memory");
}

static inline void cpu_irq_on(void)
{
	__asm__ volatile("sti" : : : "memory");
}

static inline void cpu_relax(void)
{
	__asm__ volatile("pause" : : : "memory");
}

static inline uint64_t cpu_tsc(void)
{
	uint32_t lo, hi;

	__asm__ volatile("rdtsc" : "=a"(lo), "=d"(hi) : : "memory");
	return (uint64_t)hi << 32 | lo;
}

static inline uint8_t cpu_in8(uint16_t port)
{
	uint8_t v;

	__asm__ volatile("inb %1, %0" : "=a"(v) : "Nd"(port) : "memory");
	return v;
}

static inline uint16_t cpu_in16(uint16_t port)
{
	uint16_t v;

	__asm__ volatile("inw %1, %0" : "=a"(v) : "Nd"(port) : "memory");
	return v;
}

static inline uint32_t cpu_in32(uint16_t port)
{
	uint32_t v;

	__asm__ volatile("inl %1, %0" : "=a"(v) : "Nd"(port) : "memory");
	return v;
}

static inline void cpu_out8(uint16_t port, uint8_t v)
{
	__asm__ volatile("outb %0, %1" : : "a"(v), "Nd"(port) : "memory");
}

static inline void cpu_out16(uint16_t port, uint16_t v)
{
	__asm__ volatile("outw %0, %1" : : "a"(v), "Nd"(port) : "memory");
}

static inline void cpu_out32(uint16_t port, uint32_t v)
{
	__asm__ volatile("outl %0, %1" : : "a"(v), "Nd"(port) : "memory");
}

/* Stops this core for good. NMIs and SMIs may wake it; it goes back to sleep. */
static inline void NORETURN cpu_halt_forever(void)
{
	for (;;)
		__asm__ volatile("cli; hlt" : : : "memory");
}

#endif
