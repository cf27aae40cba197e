#include "tests/unit/test.h"
#include "tests/unit/vm_fixture.h"
#include "vmm/console.h"

#define UART (&fx_vm.uart)

enum { DATA, IER, IIR, LCR, MCR, LSR, MSR, SCR, FCR = IIR };

static uint8_t rd(unsigned reg)
{
	return vuart_read(UART, (uint16_t)(VUART_PORT + reg));
}

static void wr(unsigned reg, unsigned value)
{
	vuart_write(UART, (uint16_t)(VUART_PORT + reg), (uint8_t)value);
}

/* Pin 4 as an edge with vector 0x34 to vCPU 0: how often did it fire since the last question? */
static bool fired(void)
{
	bool was = fx_posted(0, 0x34);

	fx_collect(0);
	return was;
}

static void setup(void)
{
	fx_init(1);
	fx_listen(0);
	vioapic_mmio_write(&fx_vm.ioapic, 0, 0x18);
	vioapic_mmio_write(&fx_vm.ioapic, 0x10, 0x34);
}

static void reset_values(void)
{
	setup();
	CHECK_EQ(rd(IER), 0);
	CHECK_EQ(rd(IIR), 0x01);
	CHECK_EQ(rd(LCR), 0);
	CHECK_EQ(rd(MCR), 0);
	CHECK_EQ(rd(LSR), 0x60);
	CHECK_EQ(rd(MSR), 0xb0);
	CHECK_EQ(rd(DATA), 0);
}

static void scratch_and_divisor(void)
{
	setup();
	wr(SCR, 0xa5);
	CHECK_EQ(rd(SCR), 0xa5);
	wr(IER, 0x0f);
	wr(LCR, 0x83);
	wr(DATA, 0x0c);
	wr(IER, 0x34);
	CHECK_EQ(rd(DATA), 0x0c);
	CHECK_EQ(rd(IER), 0x34);
	wr(LCR, 0x03);
	CHECK_EQ(rd(IER), 0x0f);
	CHECK_EQ(fake_console[0], 0); /* divisors are no output */
	CHECK_EQ(rd(LCR), 0x03);
}

/* What drivers/tty/serial/8250 asks of a port to call it a 16550A, in its order. */
static void linux_autoconfig(void)
{
	setup();
	wr(IER, 0);
	CHECK_EQ(rd(IER) & 0x0f, 0);
	wr(IER, 0x0f);
	CHECK_EQ(rd(IER) & 0x0f, 0x0f);
	wr(IER, 0);
	/* Loopback: RTS and OUT2 come back as CTS and DCD. */
	wr(MCR, 0x1a);
	CHECK_EQ(rd(MSR) & 0xf0, 0x90);
	wr(MCR, 0);
	/* Not an enhanced chip: in LCR mode B the second register is no EFR that reads 0. */
	wr(LCR, 0xbf);
	CHECK(rd(IIR) != 0);
	wr(LCR, 0);
	wr(FCR, 0x01);
	CHECK_EQ(rd(IIR) >> 6, 3); /* FIFOs on and working: 16550A */
	wr(LCR, 0x80);
	CHECK(rd(IIR) != 0);
	wr(LCR, 0xbf);
	CHECK(rd(IIR) != 0);
	/* No 64-byte FIFO: not a 16750. */
	wr(LCR, 0);
	wr(FCR, 0x21);
	CHECK_EQ(rd(IIR) >> 5, 6);
	wr(FCR, 0x01);
	wr(LCR, 0x80);
	wr(FCR, 0x21);
	CHECK_EQ(rd(IIR) >> 5, 6);
	wr(LCR, 0);
	/* No UART unit enable: not an XScale. */
	wr(IER, 0x40);
	CHECK_EQ(rd(IER), 0);
	/* The FIFOs are cleared and off again. */
	wr(FCR, 0x07);
	wr(FCR, 0);
	CHECK_EQ(rd(IIR) >> 6, 0);
	/* The start-up test for chips that forget THRE when IER is written: ours does not. */
	wr(IER, 0x02);
	CHECK_EQ(rd(IIR), 0x02);
	wr(IER, 0);
	wr(IER, 0x02);
	CHECK_EQ(rd(IIR), 0x02);
	wr(IER, 0);
	CHECK_EQ(rd(IIR), 0x01);
}

static void transmit(void)
{
	setup();
	console_guest_add(&fx_vm);
	wr(MCR, 0x0b);
	wr(FCR, 0x01);
	wr(DATA, 'h');
	wr(DATA, 'i');
	CHECK(!strcmp(fake_console, "hi"));
	CHECK_EQ(rd(LSR), 0x60);
	CHECK(!fired());
	wr(IER, 0x02);
	CHECK(fired());
	CHECK_EQ(rd(IIR), 0xc2);
	CHECK_EQ(rd(IIR), 0xc1); /* reading it took it away */
	/* Each byte brings a new one. */
	wr(DATA, '!');
	CHECK(fired());
	wr(DATA, '!');
	CHECK(fired());
	CHECK_EQ(rd(IIR), 0xc2);
	/* IER without a change is no news; off and on is. */
	wr(IER, 0x02);
	CHECK_EQ(rd(IIR), 0xc1);
	wr(IER, 0x00);
	wr(IER, 0x02);
	CHECK_EQ(rd(IIR), 0xc2);
	CHECK(!strcmp(fake_console, "hi!!"));
}

static void receive(void)
{
	setup();
	wr(MCR, 0x0b);
	wr(FCR, 0x01 | 0x80); /* trigger at 8 */
	/* Before anybody listens: kept. */
	CHECK(vuart_input(UART, 'a'));
	CHECK_EQ(rd(LSR), 0x61);
	CHECK_EQ(rd(IIR), 0xc1);
	CHECK(!fired());
	wr(IER, 0x01);
	CHECK(fired());
	CHECK_EQ(rd(IIR), 0xcc); /* below the trigger: time-out */
	for (unsigned i = 1; i < 8; i++)
		CHECK(vuart_input(UART, (uint8_t)('a' + i)));
	CHECK_EQ(rd(IIR), 0xc4);
	CHECK_EQ(rd(DATA), 'a');
	CHECK_EQ(rd(IIR), 0xcc);
	/* Masked in the middle and back: nothing lost. */
	wr(IER, 0x00);
	CHECK_EQ(rd(IIR), 0xc1);
	CHECK(vuart_input(UART, 'i'));
	fired();
	wr(IER, 0x01);
	CHECK(fired());
	for (unsigned i = 1; i < 9; i++)
		CHECK_EQ(rd(DATA), 'a' + i);
	CHECK_EQ(rd(LSR), 0x60);
	CHECK_EQ(rd(IIR), 0xc1);
	/* Full: the caller keeps the byte. */
	for (unsigned i = 0; i < VUART_FIFO_LEN; i++)
		CHECK(vuart_input(UART, (uint8_t)i));
	CHECK(!vuart_input(UART, 'x'));
	for (unsigned i = 0; i < VUART_FIFO_LEN; i++)
		CHECK_EQ(rd(DATA), i & 0xff);
	CHECK_EQ(rd(LSR), 0x60);
	/* Reset of the receiver. */
	CHECK(vuart_input(UART, 'a'));
	wr(FCR, 0x03);
	CHECK_EQ(rd(LSR), 0x60);
}

static void priorities(void)
{
	setup();
	wr(FCR, 0x01);
	/* Overrun by loopback. */
	wr(MCR, 0x10);
	for (unsigned i = 0; i < 17; i++)
		wr(DATA, i);
	CHECK_EQ(fake_console[0], 0);
	wr(IER, 0x0f);
	CHECK_EQ(rd(IIR), 0xc6);
	CHECK_EQ(rd(LSR), 0x63);
	CHECK_EQ(rd(IIR), 0xc4);
	for (unsigned i = 0; i < 16; i++)
		CHECK_EQ(rd(DATA), i);
	CHECK_EQ(rd(IIR), 0xc2);
	CHECK_EQ(rd(IIR), 0xc0); /* modem lines moved on the way into loopback */
	CHECK_EQ(rd(MSR), 0x0b);
	CHECK_EQ(rd(IIR), 0xc1);
	wr(MCR, 0x1f);
	CHECK_EQ(rd(MSR), 0xfb);
	wr(MCR, 0x1b); /* ring ended */
	CHECK_EQ(rd(IIR), 0xc0);
	CHECK_EQ(rd(MSR), 0xb4);
	wr(MCR, 0x0f);
	CHECK_EQ(rd(MSR), 0xb0);
	/* Input waits while the port talks to itself. */
	wr(MCR, 0x10);
	CHECK(!vuart_input(UART, 'x'));
}

static void out2_gates_the_pin(void)
{
	setup();
	wr(IER, 0x02);
	CHECK(!fired());
	CHECK(!(fx_vm.ioapic.level & 0x10));
	wr(MCR, 0x08);
	CHECK(fired());
	CHECK(fx_vm.ioapic.level & 0x10);
	rd(IIR);
	CHECK(!(fx_vm.ioapic.level & 0x10));
}

static void without_a_guest(void)
{
	struct vuart uart;

	fx_init(1);
	vuart_init(&uart, NULL);
	vuart_write(&uart, VUART_PORT + MCR, 0x08);
	vuart_write(&uart, VUART_PORT + IER, 0x0f);
	vuart_write(&uart, VUART_PORT, 'x');
	CHECK(vuart_input(&uart, 'y'));
	CHECK_EQ(vuart_read(&uart, VUART_PORT), 'y');
	CHECK_EQ(fake_console[0], 0);
}

/* Any sequence of accesses: the pin agrees with IIR, and nothing breaks. */
static void random_accesses(void)
{
	setup();
	for (unsigned step = 0; step < 200000 && !test_case_failed; step++) {
		unsigned reg = (unsigned)(fx_random() % 8);

		switch (fx_random() % 4) {
		case 0: rd(reg); break;
		case 1: vuart_input(UART, (uint8_t)fx_random()); break;
		default: wr(reg, (unsigned)(fx_random() & 0xff));
		}
		CHECK(UART->rx_count <= VUART_FIFO_LEN && UART->rx_head < VUART_FIFO_LEN);
		CHECK_EQ(fx_vm.ioapic.level >> 4 & 1, UART->irq_high);
		if (!(UART->mcr & 0x10) && (UART->mcr & 8)) {
			struct vuart copy = *UART;

			copy.vm = NULL;
			CHECK_EQ(UART->irq_high, !(vuart_read(&copy, VUART_PORT + IIR) & 1));
		} else {
			CHECK(!UART->irq_high);
		}
	}
}

TESTS(T(reset_values), T(scratch_and_divisor), T(linux_autoconfig), T(transmit), T(receive),
      T(priorities), T(out2_gates_the_pin), T(without_a_guest), T(random_accesses))
