#include "vmm/platform_ports.h"

#include "tests/fake/platform.h"
#include "tests/unit/test.h"
#include "vmm/vm.h"

#include <string.h>

static struct vm vm;
static enum vm_end ended;
const struct hvm_ops *hvm;

void vm_end(struct vm *which, enum vm_end reason)
{
	CHECK(which == &vm);
	ended = reason;
}

static void setup(void)
{
	fake_reset();
	memset(&vm, 0, sizeof(vm));
	vpci_init(&vm.pci);
	vioapic_init(&vm.ioapic, &vm);
	vuart_init(&vm.uart, NULL);
	ended = VM_ALIVE;
}

static enum vm_end after(uint16_t port, unsigned width, uint32_t value)
{
	ended = VM_ALIVE;
	ports_write(&vm, port, width, value);
	CHECK_EQ(atomic_load(&vm.device_lock.held), 0);
	return ended;
}

static void resets(void)
{
	setup();
	CHECK_EQ(after(PORTS_RESET, 1, PORTS_RESET_VALUE), VM_RESET);
	CHECK_EQ(after(PORTS_RESET, 1, 0x0e), VM_RESET);
	CHECK_EQ(after(PORTS_RESET, 1, 0x02), VM_ALIVE);
	CHECK_EQ(after(0x64, 1, 0xfe), VM_RESET);
	CHECK_EQ(after(0x64, 1, 0xd1), VM_ALIVE);
	/* A dword there is a PCI address, a word nothing. */
	CHECK_EQ(after(0xcf8, 4, 0x80000600), VM_ALIVE);
	CHECK_EQ(vm.pci.address, 0x80000600);
	CHECK_EQ(after(0xcf9, 2, 0x0606), VM_ALIVE);
	CHECK_EQ(ports_read(&vm, 0xcf9, 1), 0);
}

static void powers_off(void)
{
	setup();
	/* SLP_TYP 5 in bits 4:2, SLP_EN bit 5. */
	CHECK_EQ(after(PORTS_SLEEP_CONTROL, 1, 5 << 2), VM_ALIVE);
	CHECK_EQ(after(PORTS_SLEEP_CONTROL, 1, 1 << 5 | 3 << 2), VM_ALIVE);
	CHECK_EQ(after(PORTS_SLEEP_CONTROL, 1, 1 << 5 | 5 << 2), VM_POWER_OFF);
	CHECK_EQ(after(PORTS_SLEEP_STATUS, 1, 0x80), VM_ALIVE);
	CHECK_EQ(ports_read(&vm, PORTS_SLEEP_STATUS, 1), 0);
}

static void uart_is_there(void)
{
	setup();
	ports_write(&vm, 0x3ff, 1, 0x5a);
	CHECK_EQ(ports_read(&vm, 0x3ff, 1), 0x5a);
	CHECK_EQ(ports_read(&vm, 0x3fd, 1) & 0x60, 0x60); /* transmitter empty */
	/* A word access is two byte accesses: line control, modem control. */
	ports_write(&vm, 0x3fb, 2, 0x0b03);
	CHECK_EQ(vm.uart.lcr, 3);
	CHECK_EQ(vm.uart.mcr, 0x0b);
	CHECK_EQ(ports_read(&vm, 0x3fb, 2), 0x0b03);
	/* Past its last register the bus is empty. */
	CHECK_EQ(ports_read(&vm, 0x3ff, 2), 0xff5a);
	CHECK_EQ(ports_read(&vm, 0x2f8, 1), 0xff);
}

static void the_rest_is_empty(void)
{
	static const uint16_t absent[] = {0x20, 0x21, 0xa0, 0xa1, 0x40,  0x43,
	                                  0x70, 0x71, 0x80, 0xf4, 0x1f0, 0x5658};
	bool refresh;

	setup();
	for (unsigned i = 0; i < ARRAY_LEN(absent); i++) {
		CHECK_EQ(after(absent[i], 1, 0x55), VM_ALIVE);
		CHECK_EQ(ports_read(&vm, absent[i], 1), 0xff);
	}
	CHECK_EQ(ports_read(&vm, 0x20, 4), 0xffffffff);
	CHECK_EQ(ports_read(&vm, 0xffff, 2), 0xffff);
	CHECK_EQ(ports_read(&vm, 0x64, 1), 0);
	CHECK_EQ(ports_read(&vm, 0x92, 1), 2);
	/* Loops that count refreshes get on. */
	refresh = ports_read(&vm, 0x61, 1) & 0x10;
	fake_tsc += 1 << 15;
	CHECK(refresh != !!(ports_read(&vm, 0x61, 1) & 0x10));
	CHECK(ports_read(&vm, 0x61, 1) & 0x20);
}

static void pci_is_there(void)
{
	setup();
	ports_write(&vm, 0xcf8, 4, 0x80000000);
	CHECK_EQ(ports_read(&vm, 0xcfc, 4), 0x12378086);
	CHECK_EQ(ports_read(&vm, 0xcfe, 2), 0x1237);
	CHECK_EQ(ports_read(&vm, 0xcfb, 1), 0x80);
}

/* No port, width or value harms anything. */
static void every_port(void)
{
	setup();
	for (unsigned port = 0; port < 0x10000; port++)
		for (unsigned width = 1; width <= 4; width *= 2) {
			ports_write(&vm, (uint16_t)port, width, port * 0x01010101u);
			ports_read(&vm, (uint16_t)port, width);
		}
	CHECK_EQ(atomic_load(&vm.device_lock.held), 0);
}

TESTS(T(resets), T(powers_off), T(uart_is_there), T(the_rest_is_empty), T(pci_is_there),
      T(every_port))
