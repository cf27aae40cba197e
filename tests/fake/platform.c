#include "tests/fake/platform.h"

#include <sanitizer/asan_interface.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t fake_tsc;
unsigned fake_core;
unsigned fake_wakes[256];
char fake_log[65536], fake_console[65536];
const char *fake_console_input;
uint32_t (*fake_io_read)(uint16_t port, unsigned width_bytes);
void (*fake_io_write)(uint16_t port, unsigned width_bytes, uint32_t value);
uint64_t (*fake_mmio_read)(const volatile void *reg, unsigned width_bytes);
void (*fake_mmio_write)(volatile void *reg, unsigned width_bytes, uint64_t value);
void (*fake_cpuid)(uint32_t leaf, uint32_t subleaf, uint32_t out[4]);
void (*fake_relax)(void);
void (*fake_wait)(const atomic_uint *wake, uint64_t deadline_tsc);

/*
 * What plat_mem_alloc gave. fake_reset keeps the blocks, poisoned, for those who ask for the same
 * again: tests and fuzzers set up the same machine thousands of times.
 */
#define ALLOC_MAX 4096
static struct {
	void *mem;
	uint64_t len_bytes, align_bytes;
	bool used;
} allocs[ALLOC_MAX];
static unsigned alloc_count;
static size_t log_len, console_len;

void fake_reset(void)
{
	fake_tsc = 0;
	fake_core = 0;
	memset(fake_wakes, 0, sizeof(fake_wakes));
	memset(fake_log, 0, sizeof(fake_log));
	memset(fake_console, 0, sizeof(fake_console));
	log_len = console_len = 0;
	fake_console_input = NULL;
	fake_io_read = NULL;
	fake_io_write = NULL;
	fake_mmio_read = NULL;
	fake_mmio_write = NULL;
	fake_cpuid = NULL;
	fake_relax = NULL;
	fake_wait = NULL;
	for (unsigned i = 0; i < alloc_count; i++) {
		allocs[i].used = false;
		ASAN_POISON_MEMORY_REGION(allocs[i].mem, allocs[i].len_bytes);
	}
}

uint32_t plat_mmio_read32(const volatile void *reg)
{
	return fake_mmio_read ? (uint32_t)fake_mmio_read(reg, 4) : *(const volatile uint32_t *)reg;
}

uint64_t plat_mmio_read64(const volatile void *reg)
{
	return fake_mmio_read ? fake_mmio_read(reg, 8) : *(const volatile uint64_t *)reg;
}

void plat_mmio_write32(volatile void *reg, uint32_t value)
{
	if (fake_mmio_write)
		fake_mmio_write(reg, 4, value);
	else
		*(volatile uint32_t *)reg = value;
}

void plat_mmio_write64(volatile void *reg, uint64_t value)
{
	if (fake_mmio_write)
		fake_mmio_write(reg, 8, value);
	else
		*(volatile uint64_t *)reg = value;
}

volatile void *plat_mmio_map(hpa_t base_hpa, uint64_t len_bytes)
{
	(void)len_bytes;
	return (volatile void *)(uintptr_t)base_hpa;
}

uint32_t plat_io_read(uint16_t port, unsigned width_bytes)
{
	return fake_io_read ? fake_io_read(port, width_bytes) : UINT32_MAX;
}

void plat_io_write(uint16_t port, unsigned width_bytes, uint32_t value)
{
	if (fake_io_write)
		fake_io_write(port, width_bytes, value);
}

/* Makes room for a block of another size. Where the room is; 0: all are in use. */
static unsigned alloc_give_back(void)
{
	for (unsigned i = alloc_count; i-- > 1;) {
		if (allocs[i].used)
			continue;
		ASAN_UNPOISON_MEMORY_REGION(allocs[i].mem, allocs[i].len_bytes);
		free(allocs[i].mem);
		allocs[i] = allocs[--alloc_count];
		return alloc_count;
	}
	return 0;
}

void *plat_mem_alloc(uint64_t len_bytes, uint64_t align_bytes)
{
	unsigned i = 0;

	while (i < alloc_count && (allocs[i].used || allocs[i].len_bytes != len_bytes ||
	                           allocs[i].align_bytes != align_bytes))
		i++;
	if (i == ALLOC_MAX && !(i = alloc_give_back()))
		return NULL;
	if (i == alloc_count) {
		if (posix_memalign(&allocs[i].mem, align_bytes < 64 ? 64 : align_bytes, len_bytes))
			return NULL;
		allocs[i].len_bytes = len_bytes;
		allocs[i].align_bytes = align_bytes;
		alloc_count++;
	}
	allocs[i].used = true;
	ASAN_UNPOISON_MEMORY_REGION(allocs[i].mem, len_bytes);
	memset(allocs[i].mem, 0, len_bytes);
	return allocs[i].mem;
}

hpa_t plat_hpa(const void *va)
{
	return (uintptr_t)va;
}

uint64_t plat_tsc(void)
{
	return fake_tsc;
}

uint64_t plat_tsc_hz(void)
{
	return 1000000000;
}

void plat_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t out[4])
{
	memset(out, 0, 4 * sizeof(out[0]));
	if (fake_cpuid)
		fake_cpuid(leaf, subleaf, out);
}

unsigned plat_core(void)
{
	return fake_core;
}

void plat_irq_take(void)
{
}

void plat_relax(void)
{
	fake_tsc += 10;
	if (fake_relax)
		fake_relax();
}

void plat_wait(const atomic_uint *wake, uint64_t deadline_tsc)
{
	if (fake_wait)
		fake_wait(wake, deadline_tsc);
	else if (!atomic_load(wake) && deadline_tsc != UINT64_MAX && deadline_tsc > fake_tsc)
		fake_tsc = deadline_tsc;
}

void plat_wake(unsigned core)
{
	fake_wakes[core % 256]++;
}

int plat_msi(unsigned core, uint64_t *address, uint32_t *data)
{
	*address = 0xfee00000u | (uint64_t)core << 12;
	*data = 0xec;
	return 0;
}

void plat_log(const char *fmt, ...)
{
	va_list args;

	if (log_len + 512 > sizeof(fake_log))
		log_len = 0;
	va_start(args, fmt);
	log_len += (size_t)vsnprintf(fake_log + log_len, 500, fmt, args) % 500;
	va_end(args);
	fake_log[log_len++] = '\n';
	fake_log[log_len] = 0;
}

void plat_console_write(const char *bytes, size_t len_bytes)
{
	if (console_len + len_bytes >= sizeof(fake_console))
		console_len = 0;
	if (len_bytes >= sizeof(fake_console))
		return;
	memcpy(fake_console + console_len, bytes, len_bytes);
	console_len += len_bytes;
	fake_console[console_len] = 0;
}

int plat_console_read(void)
{
	if (!fake_console_input || !*fake_console_input)
		return -1;
	return (unsigned char)*fake_console_input++;
}

void plat_panic(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	fputs("panic: ", stderr);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	abort();
}
