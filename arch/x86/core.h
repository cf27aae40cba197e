/*
 * core.h: what vmm/ asks of the core it runs on, beside platform.h.
 */
#ifndef QUELL_ARCH_X86_CORE_H
#define QUELL_ARCH_X86_CORE_H

#include "arch/types.h"

/* Interrupt vectors of our own. Exceptions are 0 to 31. */
enum core_vector {
	CORE_VECTOR_DEVICE = 0xec, /* MSI or I/O APIC: a device wants its core awake */
	CORE_VECTOR_TIMER = 0xee,  /* local APIC timer */
	CORE_VECTOR_WAKE = 0xef,   /* plat_wake */
	CORE_VECTOR_STOP = 0xf0,   /* panic elsewhere: stop here */
	CORE_VECTOR_SPURIOUS = 0xff,
};

/* Interrupts off and on for this core. core_irq_window lets pending ones in, then off again. */
void core_irq_disable(void);
void core_irq_enable(void);
void core_irq_window(void);

/* Local APIC timer of this core, one-shot (TSC-deadline where there is one). UINT64_MAX: off.
 * Remembers the last deadline and writes the hardware only when it changes. */
void core_timer_arm(uint64_t deadline_tsc);

/*
 * How plat_wait waits. With MWAIT and POLL the store to the word it looks at ends it, so plat_wake
 * sends nothing: only for a core that runs no guest. AUTO is MWAIT where it is real, else HLT.
 */
enum core_idle { CORE_IDLE_AUTO, CORE_IDLE_MWAIT, CORE_IDLE_HLT, CORE_IDLE_POLL };

/* Boot core, before that core waits. -EOPNOTSUPP: no MONITOR and MWAIT here. */
int core_idle_set(unsigned core, enum core_idle idle);

/* The word for how that core waits. */
const char *core_idle_name(unsigned core);

/* Has entry(arg) run on that core, which is up when this returns. -ETIMEDOUT: it never answered
 * (logged with its APIC id); -EBUSY: it has not begun what it was given before. Boot core. */
int core_start(unsigned core, void (*entry)(void *arg), void *arg);

/* How many cores boot_info names. */
unsigned core_count(void);

/* Whether that core runs our code: the boot core, and those core_start reached. */
bool core_online(unsigned core);

/* Makes console input end plat_wait on that core, through UART and I/O APIC. Boot core.
 * -EOPNOTSUPP: no UART or no I/O APIC answers; then poll. */
int core_console_irq_enable(unsigned core);

/* What plat_mem_alloc still has, in all and as one piece of that alignment. False: no such piece.
 * Boot core. */
uint64_t core_mem_free_bytes(void);
bool core_mem_largest(uint64_t align_bytes, uint64_t *len_bytes);

/* Ends: what the log's last line says, then power-off. ok decides the exit code under QEMU. */
void core_power_off(bool ok) __attribute__((noreturn));

#endif
