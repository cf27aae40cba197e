#include "drivers/uart.h"
#include "arch/platform.h"

enum uart_reg {
	UART_DATA = 0,
	UART_IER = 1,
	UART_FCR = 2,
	UART_LCR = 3,
	UART_MCR = 4,
	UART_LSR = 5,
	UART_SCR = 7,
	/* with LCR.DLAB */
	UART_DLL = 0,
	UART_DLM = 1,
};

#define IER_RECEIVE      0x01
#define FCR_ENABLE_CLEAR 0x07 /* both FIFOs on and empty, receive trigger at one byte */
#define LCR_8N1          0x03
#define LCR_DLAB         0x80
#define MCR_DTR_RTS_OUT2 0x0b /* OUT2 lets the interrupt line out on PCs */
#define LSR_DATA         0x01
#define LSR_THR_EMPTY    0x20
#define LSR_IDLE         0x40

/* One byte takes 87 us at 115200; a port read takes about 1 us. */
#define PUT_SPINS 20000u
#define GET_STUCK 0xff

static uint8_t reg_read(const struct uart *uart, enum uart_reg reg)
{
	return (uint8_t)plat_io_read((uint16_t)(uart->port + reg), 1);
}

static void reg_write(const struct uart *uart, enum uart_reg reg, uint8_t value)
{
	plat_io_write((uint16_t)(uart->port + reg), 1, value);
}

/* The scratch register holds what is written only where there is a UART. */
static bool scratch_holds(const struct uart *uart, uint8_t value)
{
	reg_write(uart, UART_SCR, value);
	return reg_read(uart, UART_SCR) == value;
}

bool uart_init(struct uart *uart, uint16_t port)
{
	uart->port = port;
	uart->present = false;
	if (!scratch_holds(uart, 0x5a) || !scratch_holds(uart, 0xa5))
		return false;
	reg_write(uart, UART_IER, 0);
	reg_write(uart, UART_LCR, LCR_DLAB | LCR_8N1);
	reg_write(uart, UART_DLL, 1);
	reg_write(uart, UART_DLM, 0);
	reg_write(uart, UART_LCR, LCR_8N1);
	reg_write(uart, UART_FCR, FCR_ENABLE_CLEAR);
	reg_write(uart, UART_MCR, MCR_DTR_RTS_OUT2);
	uart->present = true;
	return true;
}

void uart_put(struct uart *uart, uint8_t byte)
{
	if (!uart->present)
		return;
	for (unsigned i = 0; i < PUT_SPINS; i++) {
		if (reg_read(uart, UART_LSR) & LSR_THR_EMPTY) {
			reg_write(uart, UART_DATA, byte);
			return;
		}
		plat_relax();
	}
}

void uart_drain(struct uart *uart)
{
	if (!uart->present)
		return;
	for (unsigned i = 0; i < PUT_SPINS && !(reg_read(uart, UART_LSR) & LSR_IDLE); i++)
		plat_relax();
}

int uart_get(struct uart *uart)
{
	uint8_t lsr;

	if (!uart->present)
		return -1;
	lsr = reg_read(uart, UART_LSR);
	if (lsr == GET_STUCK || !(lsr & LSR_DATA))
		return -1;
	return reg_read(uart, UART_DATA);
}

void uart_irq_enable(struct uart *uart, bool on)
{
	if (uart->present)
		reg_write(uart, UART_IER, on ? IER_RECEIVE : 0);
}
