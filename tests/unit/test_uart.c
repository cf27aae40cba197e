#include "drivers/uart.h"
#include "tests/fake/platform.h"
#include "tests/unit/test.h"

/* Just enough of a 16550: registers that hold, a line status the test sets, what was sent. */
static uint8_t regs[8], latch[2], lsr, received;
static char sent[64];
static unsigned sent_count;

static uint32_t io_read(uint16_t port, unsigned width_bytes)
{
	unsigned reg = port - 0x3f8u;

	CHECK_EQ(width_bytes, 1);
	if (reg == 5)
		return lsr;
	if (reg == 0) {
		lsr &= 0xfe;
		return received;
	}
	return regs[reg & 7];
}

static void io_write(uint16_t port, unsigned width_bytes, uint32_t value)
{
	unsigned reg = port - 0x3f8u;

	CHECK_EQ(width_bytes, 1);
	if (reg < 2 && (regs[3] & 0x80))
		latch[reg] = (uint8_t)value;
	else if (reg == 0 && sent_count < sizeof(sent))
		sent[sent_count++] = (char)value;
	else
		regs[reg & 7] = (uint8_t)value;
}

static struct uart setup(void)
{
	struct uart uart;

	fake_reset();
	fake_io_read = io_read;
	fake_io_write = io_write;
	lsr = 0x60;
	sent_count = 0;
	CHECK(uart_init(&uart, UART_COM1_PORT));
	return uart;
}

static void test_init(void)
{
	struct uart uart = setup();

	CHECK(uart.present);
	CHECK(latch[0] == 1 && latch[1] == 0); /* 115200 */
	CHECK_EQ(regs[3], 0x03);               /* 8N1, divisor latch closed */
	CHECK_EQ(regs[1], 0);
	CHECK_EQ(regs[4] & 0x08, 0x08); /* OUT2 */
	uart_irq_enable(&uart, true);
	CHECK_EQ(regs[1], 1);
	uart_irq_enable(&uart, false);
	CHECK_EQ(regs[1], 0);
}

static void test_put_get(void)
{
	struct uart uart = setup();

	uart_put(&uart, 'x');
	CHECK(sent_count == 1 && sent[0] == 'x');
	CHECK(uart_get(&uart) == -1);
	received = 0x80;
	lsr |= 1;
	CHECK_EQ(uart_get(&uart), 0x80);
	CHECK(uart_get(&uart) == -1);
}

static void test_absent(void)
{
	struct uart uart;

	fake_reset(); /* reads give all ones */
	CHECK(!uart_init(&uart, UART_COM1_PORT));
	CHECK(uart_get(&uart) == -1);
	uart_put(&uart, 'x');
	uart_drain(&uart);
}

/* It answered once, then the transmitter never got ready, or the device was pulled. */
static void test_dies_later(void)
{
	struct uart uart = setup();

	lsr = 0;
	uart_put(&uart, 'x');
	CHECK_EQ(sent_count, 0);
	uart_drain(&uart);
	lsr = 0xff;
	CHECK(uart_get(&uart) == -1);
}

TESTS(T(test_init), T(test_put_get), T(test_absent), T(test_dies_later))
