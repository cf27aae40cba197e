#include "vmm/vuart.h"

#include "vmm/console.h"
#include "vmm/vm.h"

enum { REG_DATA, REG_IER, REG_IIR_FCR, REG_LCR, REG_MCR, REG_LSR, REG_MSR, REG_SCR };

#define IER_RX   0x01u
#define IER_THRE 0x02u
#define IER_LINE 0x04u
#define IER_MSR  0x08u
#define IER_ALL  0x0fu

#define IIR_NONE    0x01u
#define IIR_MSR     0x00u
#define IIR_THRE    0x02u
#define IIR_RX      0x04u
#define IIR_LINE    0x06u
#define IIR_TIMEOUT 0x0cu
#define IIR_FIFO    0xc0u

#define FCR_ENABLE   0x01u
#define FCR_RX_RESET 0x02u
#define FCR_TX_RESET 0x04u
#define FCR_KEPT     0xc9u

#define LCR_DLAB 0x80u

#define MCR_OUT2 0x08u
#define MCR_LOOP 0x10u
#define MCR_ALL  0x1fu

#define LSR_DATA    0x01u
#define LSR_OVERRUN 0x02u
#define LSR_EMPTY   0x60u /* holding and shift register */

#define MSR_RI        0x40u
#define MSR_DELTA_RI  0x04u
#define MSR_CONNECTED 0xb0u /* CTS, DSR, DCD: somebody is there */

#define CHIP_FIFO_LEN 16u

void vuart_init(struct vuart *uart, struct vm *vm)
{
	memset(uart, 0, sizeof(*uart));
	uart->vm = vm;
	uart->dll = 1;
}

/* --- interrupt -------------------------------------------------------------------------------- */

static unsigned rx_trigger(const struct vuart *uart)
{
	static const uint8_t trigger[4] = {1, 4, 8, 14};

	return uart->fcr & FCR_ENABLE ? trigger[uart->fcr >> 6] : 1;
}

/* The highest interrupt that waits, as IIR names it (datasheet table 4). */
static uint8_t irq_source(const struct vuart *uart)
{
	if ((uart->ier & IER_LINE) && uart->overrun)
		return IIR_LINE;
	/* Below the trigger the real chip waits four characters' time; here none passes. */
	if ((uart->ier & IER_RX) && uart->rx_count)
		return uart->rx_count >= rx_trigger(uart) ? IIR_RX : IIR_TIMEOUT;
	if ((uart->ier & IER_THRE) && uart->thre_pending)
		return IIR_THRE;
	if ((uart->ier & IER_MSR) && uart->msr_delta)
		return IIR_MSR;
	return IIR_NONE;
}

static void irq_update(struct vuart *uart)
{
	bool gate = (uart->mcr & (MCR_OUT2 | MCR_LOOP)) == MCR_OUT2;
	bool high = gate && irq_source(uart) != IIR_NONE;

	if (high == uart->irq_high)
		return;
	uart->irq_high = high;
	if (uart->vm)
		vioapic_pin_set(&uart->vm->ioapic, VUART_PIN, high);
}

/* --- receiver --------------------------------------------------------------------------------- */

static void rx_push(struct vuart *uart, uint8_t byte)
{
	uart->rx[(uart->rx_head + uart->rx_count) % VUART_FIFO_LEN] = byte;
	uart->rx_count++;
}

static uint8_t rx_pop(struct vuart *uart)
{
	uint8_t byte;

	if (!uart->rx_count)
		return 0;
	byte = uart->rx[uart->rx_head];
	uart->rx_head = (uart->rx_head + 1) % VUART_FIFO_LEN;
	uart->rx_count--;
	return byte;
}

bool vuart_input(struct vuart *uart, uint8_t byte)
{
	if (uart->rx_count == VUART_FIFO_LEN || (uart->mcr & MCR_LOOP))
		return false;
	rx_push(uart, byte);
	irq_update(uart);
	return true;
}

/* In loopback the chip's real depth counts: a driver may test for overrun. */
static void loop_send(struct vuart *uart, uint8_t byte)
{
	if (uart->rx_count < (uart->fcr & FCR_ENABLE ? CHIP_FIFO_LEN : 1))
		rx_push(uart, byte);
	else
		uart->overrun = true;
}

/* --- modem lines ------------------------------------------------------------------------------ */

/* MSR's upper half. Loopback feeds it from MCR: RTS to CTS, DTR to DSR, OUT1 to RI, OUT2 to DCD. */
static uint8_t modem_inputs(const struct vuart *uart)
{
	uint8_t mcr = uart->mcr;

	if (!(mcr & MCR_LOOP))
		return MSR_CONNECTED;
	return (uint8_t)((mcr & 0x0c) << 4 | (mcr & 0x02) << 3 | (mcr & 0x01) << 5);
}

static void mcr_write(struct vuart *uart, uint8_t value)
{
	uint8_t before = modem_inputs(uart), changed;

	uart->mcr = value & MCR_ALL;
	changed = before ^ modem_inputs(uart);
	uart->msr_delta |= changed >> 4 & (0xf & ~MSR_DELTA_RI);
	/* The ring indicator counts when it ends. */
	if (changed & before & MSR_RI)
		uart->msr_delta |= MSR_DELTA_RI;
}

/* --- registers -------------------------------------------------------------------------------- */

static void fcr_write(struct vuart *uart, uint8_t value)
{
	bool toggled = (uart->fcr ^ value) & FCR_ENABLE;

	if (toggled || (value & FCR_RX_RESET))
		uart->rx_count = 0;
	if (toggled || (value & FCR_TX_RESET))
		uart->thre_pending = true;
	uart->fcr = value & FCR_ENABLE ? value & FCR_KEPT : 0;
}

static void ier_write(struct vuart *uart, uint8_t value)
{
	/* Asking for the interrupt while the transmitter is empty raises it, read before or not. */
	if ((value & ~uart->ier) & IER_THRE)
		uart->thre_pending = true;
	uart->ier = value & IER_ALL;
}

static void data_write(struct vuart *uart, uint8_t value)
{
	if (uart->mcr & MCR_LOOP)
		loop_send(uart, value);
	else if (uart->vm)
		console_put(uart->vm, value);
	/* Full and empty again at once: the line falls and rises, as an edge pin needs it. */
	uart->thre_pending = false;
	irq_update(uart);
	uart->thre_pending = true;
}

static uint8_t iir_read(struct vuart *uart)
{
	uint8_t source = irq_source(uart);

	if (source == IIR_THRE)
		uart->thre_pending = false;
	return source | (uart->fcr & FCR_ENABLE ? IIR_FIFO : 0);
}

static uint8_t lsr_read(struct vuart *uart)
{
	uint8_t value = LSR_EMPTY;

	if (uart->rx_count)
		value |= LSR_DATA;
	if (uart->overrun)
		value |= LSR_OVERRUN;
	uart->overrun = false;
	return value;
}

static uint8_t msr_read_clear(struct vuart *uart)
{
	uint8_t value = modem_inputs(uart) | uart->msr_delta;

	uart->msr_delta = 0;
	return value;
}

static uint8_t reg_read(struct vuart *uart, unsigned reg)
{
	bool dlab = uart->lcr & LCR_DLAB;

	switch (reg) {
	case REG_DATA: return dlab ? uart->dll : rx_pop(uart);
	case REG_IER: return dlab ? uart->dlm : uart->ier;
	case REG_IIR_FCR: return iir_read(uart);
	case REG_LCR: return uart->lcr;
	case REG_MCR: return uart->mcr;
	case REG_LSR: return lsr_read(uart);
	case REG_MSR: return msr_read_clear(uart);
	default: return uart->scr;
	}
}

uint8_t vuart_read(struct vuart *uart, uint16_t port)
{
	uint8_t value = reg_read(uart, port & 7);

	irq_update(uart);
	return value;
}

void vuart_write(struct vuart *uart, uint16_t port, uint8_t value)
{
	bool dlab = uart->lcr & LCR_DLAB;

	switch (port & 7) {
	case REG_DATA:
		if (dlab)
			uart->dll = value;
		else
			data_write(uart, value);
		break;
	case REG_IER:
		if (dlab)
			uart->dlm = value;
		else
			ier_write(uart, value);
		break;
	case REG_IIR_FCR: fcr_write(uart, value); break;
	case REG_LCR: uart->lcr = value; break;
	case REG_MCR: mcr_write(uart, value); break;
	case REG_SCR: uart->scr = value; break;
	}
	irq_update(uart);
}
