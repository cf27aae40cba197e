/* The host console: COM1 and, where there is one, the framebuffer. */
#include "arch/lock.h"
#include "arch/platform.h"
#include "arch/x86/arch.h"
#include "arch/x86/core.h"
#include "arch/x86/cpu.h"
#include "arch/x86/apic.h"
#include "arch/x86/percore.h"
#include "drivers/uart.h"
#include "vmm/fmt.h"

#define LINE_MAX    512u
#define PANIC_SPINS 2000000u

/* Guards com1's transmit side, the framebuffer text and at_line_start. */
static struct spinlock console_lock;
static struct uart com1;
static bool at_line_start = true;
static atomic_bool panicking;

void log_init(void)
{
	uart_init(&com1, UART_COM1_PORT);
}

void log_framebuffer_init(const struct boot_framebuffer *fb)
{
	fbcon_init(fb);
}

void log_drain(void)
{
	uart_drain(&com1);
}

bool log_is_busy(void)
{
	return atomic_load(&console_lock.held);
}

void log_panic_mode(void)
{
	atomic_store(&panicking, true);
}

/* Interrupts stay off while the lock is held: a handler that logs must not spin on its own core. */
static uint64_t console_enter(bool *locked)
{
	uint64_t flags = cpu_flags();

	cpu_irq_off();
	*locked = true;
	if (!atomic_load(&panicking)) {
		spin_lock(&console_lock);
		return flags;
	}
	for (unsigned i = 0; i < PANIC_SPINS; i++) {
		if (!atomic_exchange(&console_lock.held, 1))
			return flags;
		plat_relax();
	}
	*locked = false;
	return flags;
}

static void console_leave(uint64_t flags, bool locked)
{
	if (locked)
		spin_unlock(&console_lock);
	if (flags & BIT(9))
		cpu_irq_on();
}

static void put(const char *bytes, size_t len_bytes)
{
	for (size_t i = 0; i < len_bytes; i++)
		uart_put(&com1, (uint8_t)bytes[i]);
	fbcon_write(bytes, len_bytes);
	if (len_bytes)
		at_line_start = bytes[len_bytes - 1] == '\n';
}

void log_line(const char *prefix, const char *fmt, va_list args)
{
	char line[LINE_MAX];
	bool locked;
	uint64_t flags;
	int len;

	len = fmt_vsnprintf(line, sizeof(line), fmt, args);
	flags = console_enter(&locked);
	if (!at_line_start)
		put("\r\n", 2);
	put(prefix, strlen(prefix));
	put(line, (size_t)MIN(MAX(len, 0), (int)sizeof(line) - 1));
	put("\r\n", 2);
	console_leave(flags, locked);
}

void plat_log(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	log_line("quell: ", fmt, args);
	va_end(args);
}

void plat_console_write(const char *bytes, size_t len_bytes)
{
	bool locked;
	uint64_t flags = console_enter(&locked);

	put(bytes, len_bytes);
	console_leave(flags, locked);
}

int plat_console_read(void)
{
	return uart_get(&com1);
}

int core_console_irq_enable(unsigned core)
{
	int err;

	if (!com1.present || core >= core_count())
		return -EOPNOTSUPP;
	err = ioapic_route_isa(UART_COM1_IRQ, arch_boot_info()->cpu_apic_id[core],
	                       CORE_VECTOR_DEVICE);
	if (!err)
		uart_irq_enable(&com1, true);
	return err;
}

void plat_panic(const char *fmt, ...)
{
	static atomic_uint once;
	va_list args;

	cpu_irq_off();
	/* The first panic is the one to read; the second is its consequence. */
	if (atomic_exchange(&once, 1))
		cpu_halt_forever();
	log_panic_mode();
	va_start(args, fmt);
	log_line("quell: panic: ", fmt, args);
	va_end(args);
	power_off_after_panic();
}
