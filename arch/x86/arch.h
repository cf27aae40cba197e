/*
 * arch.h: calls between the files of arch/x86, and the one boot/ makes.
 */
#ifndef QUELL_ARCH_X86_ARCH_H
#define QUELL_ARCH_X86_ARCH_H

#include "arch/types.h"
#include "boot/boot_info.h"
#include <stdarg.h>

struct percore;

/* Takes the machine over from firmware, which has left boot services: own page tables, descriptors,
 * stack; then quell_main. Boot core, interrupts off. info must stay where it is. */
void arch_start(const struct boot_info *info) NORETURN;

/* The boot_info given to arch_start; NULL before. */
const struct boot_info *arch_boot_info(void);

/* Hands BOOT_MEM_FREE above 1 MiB to plat_mem_alloc. Boot core, on our own tables. */
void mem_init(const struct boot_info *info);

/* Log. log_init: UART only. log_framebuffer_init: adds the screen once it is mapped. */
void log_init(void);
void log_framebuffer_init(const struct boot_framebuffer *fb);
/* Waits until COM1 has sent what it was given. */
void log_drain(void);
/* Somebody is writing, this core perhaps: then who must not wait has to be silent. */
bool log_is_busy(void);
/* From now on a lock nobody can give back does not stop output. */
void log_panic_mode(void);
void log_line(const char *prefix, const char *fmt, va_list args);

/* Framebuffer text. fb may be NULL or empty: then nothing shows. Caller serialises. */
void fbcon_init(const struct boot_framebuffer *fb);
void fbcon_write(const char *bytes, size_t len_bytes);

/* Interrupt descriptor table: built once on the boot core, then loaded by every core. */
void trap_init(void);
void trap_load(void);

/* Measures the TSC (and the local APIC timer) against PIT and ACPI PM timer. Boot core. */
void time_init(hpa_t rsdp_hpa);
void time_delay_us(uint64_t us);

/* Allocates every other core's block. Boot core. */
void smp_init(const struct boot_info *info, struct percore *boot);

/* True once a core has panicked or is powering off: others halt when told. */
bool core_stopping(void);

/* Which of the emulators this is, for ends that only they know. */
bool power_on_qemu(void);
bool power_on_bochs(void);
/* Ends QEMU through isa-debug-exit; returns where there is no such device. */
void power_qemu_exit(bool ok);
/* As core_power_off, but leaves the screen standing on real hardware. */
void power_off_after_panic(void) NORETURN;

#endif
