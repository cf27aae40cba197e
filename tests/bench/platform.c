/* arch/platform.h for a host process with a real clock. */
#include "arch/platform.h"
#include "tests/bench/bench.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#define ALLOC_MAX 65536

void (*bench_doorbell)(volatile void *reg, uint32_t value);
static void *allocs[ALLOC_MAX];
static unsigned alloc_count;

uint32_t plat_mmio_read32(const volatile void *reg)
{
	return *(const volatile uint32_t *)reg;
}

uint64_t plat_mmio_read64(const volatile void *reg)
{
	return *(const volatile uint64_t *)reg;
}

void plat_mmio_write32(volatile void *reg, uint32_t value)
{
	*(volatile uint32_t *)reg = value;
	if (bench_doorbell)
		bench_doorbell(reg, value);
}

void plat_mmio_write64(volatile void *reg, uint64_t value)
{
	*(volatile uint64_t *)reg = value;
}

volatile void *plat_mmio_map(hpa_t base_hpa, uint64_t len_bytes)
{
	(void)len_bytes;
	return (volatile void *)(uintptr_t)base_hpa;
}

uint32_t plat_io_read(uint16_t port, unsigned width_bytes)
{
	(void)port;
	(void)width_bytes;
	return UINT32_MAX;
}

void plat_io_write(uint16_t port, unsigned width_bytes, uint32_t value)
{
	(void)port;
	(void)width_bytes;
	(void)value;
}

void *plat_mem_alloc(uint64_t len_bytes, uint64_t align_bytes)
{
	void *mem;

	if (alloc_count == ALLOC_MAX ||
	    posix_memalign(&mem, MAX(align_bytes, 64u), ALIGN_UP(len_bytes, 64u)))
		return NULL;
	memset(mem, 0, len_bytes);
	allocs[alloc_count++] = mem;
	return mem;
}

unsigned bench_mem_mark(void)
{
	return alloc_count;
}

void bench_mem_release(unsigned mark)
{
	while (alloc_count > mark)
		free(allocs[--alloc_count]);
}

hpa_t plat_hpa(const void *va)
{
	return (uintptr_t)va;
}

uint64_t plat_tsc(void)
{
	return bench_tsc();
}

uint64_t plat_tsc_hz(void)
{
	return (uint64_t)(1e9 * 1e6 / tsc_ns(1000000));
}

void plat_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t out[4])
{
	(void)leaf;
	(void)subleaf;
	memset(out, 0, 4 * sizeof(out[0]));
}

unsigned plat_core(void)
{
	return 0;
}

void plat_irq_take(void)
{
}

void plat_relax(void)
{
	__builtin_ia32_pause();
}

void plat_wait(const atomic_uint *wake, uint64_t deadline_tsc)
{
	while (!atomic_load(wake) && bench_tsc() < deadline_tsc)
		sched_yield();
}

void plat_wake(unsigned core)
{
	(void)core; /* plat_wait looks by itself */
}

int plat_msi(unsigned core, uint64_t *address, uint32_t *data)
{
	(void)core;
	(void)address;
	(void)data;
	return -EOPNOTSUPP;
}

void plat_log(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
}

void plat_console_write(const char *bytes, size_t len_bytes)
{
	fwrite(bytes, 1, len_bytes, stderr);
}

int plat_console_read(void)
{
	return -1;
}

void plat_panic(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	abort();
}
