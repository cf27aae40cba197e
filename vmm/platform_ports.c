#include "vmm/platform_ports.h"

#include "vmm/vm.h"

#define PORT_SYSTEM_B    0x61u
#define PORT_KBD_COMMAND 0x64u
#define PORT_SYSTEM_A    0x92u

#define KBD_PULSE_RESET  0xfeu
#define RESET_CPU        BIT(2)
#define SYSTEM_B_REFRESH BIT(4) /* toggles */
#define SYSTEM_B_TIMER2  BIT(5)
#define SYSTEM_A_A20     BIT(1)
#define SLEEP_ENABLE     BIT(5)
#define SLEEP_TYPE(v)    (((v) >> 2) & 7)

/* The refresh bit changes about every 15 us; any rate will do for the loops that count it. */
#define REFRESH_TSC_SHIFT 15

static bool is_uart(uint16_t port)
{
	return port >= VUART_PORT && port < VUART_PORT + 8;
}

/* PCI configuration takes whole accesses; the byte at 0xcf9 is the reset register. */
static bool is_pci(uint16_t port, unsigned width_bytes)
{
	return port >= 0xcf8 && port < 0xd00 && !(port == PORTS_RESET && width_bytes == 1);
}

/*
 * Absent on purpose, hence all ones: 8259s (0x20, 0xa0), so that guests use the I/O APIC; the 8254
 * (0x40 to 0x43), so that they take the TSC's rate from CPUID or the paravirtual clock; the RTC
 * (0x70, 0x71), which the FADT denies too.
 */
static uint8_t read8(struct vm *vm, uint16_t port)
{
	if (is_uart(port))
		return vuart_read(&vm->uart, port);
	switch (port) {
	case PORT_SYSTEM_B:
		return SYSTEM_B_TIMER2 |
		       (plat_tsc() >> REFRESH_TSC_SHIFT & 1 ? SYSTEM_B_REFRESH : 0);
	case PORT_SYSTEM_A: return SYSTEM_A_A20;
	case PORT_KBD_COMMAND: /* never busy: those who wait before a reset go on at once */
	case PORTS_RESET:
	case PORTS_SLEEP_CONTROL:
	case PORTS_SLEEP_STATUS: return 0;
	}
	return 0xff;
}

static void write8(struct vm *vm, uint16_t port, uint8_t value)
{
	if (is_uart(port))
		vuart_write(&vm->uart, port, value);
	else if (port == PORTS_RESET && (value & RESET_CPU))
		vm_end(vm, VM_RESET);
	else if (port == PORT_KBD_COMMAND && value == KBD_PULSE_RESET)
		vm_end(vm, VM_RESET);
	else if (port == PORTS_SLEEP_CONTROL && (value & SLEEP_ENABLE) &&
	         SLEEP_TYPE(value) == PORTS_SLEEP_TYPE_OFF)
		vm_end(vm, VM_POWER_OFF);
}

uint32_t ports_read(struct vm *vm, uint16_t port, unsigned width_bytes)
{
	uint32_t value = 0;

	spin_lock(&vm->device_lock);
	if (is_pci(port, width_bytes))
		value = vpci_io_read(&vm->pci, port, width_bytes);
	else
		/* The bus splits a wide access to a byte-wide device. */
		for (unsigned i = 0; i < width_bytes; i++)
			value |= (uint32_t)read8(vm, (uint16_t)(port + i)) << (8 * i);
	spin_unlock(&vm->device_lock);
	return value;
}

void ports_write(struct vm *vm, uint16_t port, unsigned width_bytes, uint32_t value)
{
	spin_lock(&vm->device_lock);
	if (is_pci(port, width_bytes))
		vpci_io_write(&vm->pci, port, width_bytes, value);
	else
		for (unsigned i = 0; i < width_bytes; i++)
			write8(vm, (uint16_t)(port + i), (uint8_t)(value >> (8 * i)));
	spin_unlock(&vm->device_lock);
}
