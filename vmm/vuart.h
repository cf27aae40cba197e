/*
 * vuart.h: a guest's 16550A at 0x3f8 with interrupts and input (TI PC16550D datasheet). Register
 * accesses and input come under the guest's device lock. Drives I/O APIC pin 4.
 *
 * As on a PC, the interrupt leaves the chip only while MCR's OUT2 is set. Bytes are sent at once,
 * so the transmitter is always empty.
 */
#ifndef QUELL_VMM_VUART_H
#define QUELL_VMM_VUART_H

#include "arch/types.h"

#define VUART_PORT     0x3f8
#define VUART_PIN      4u
#define VUART_FIFO_LEN 256u /* input buffered beyond the chip's 16, so that a paste is not lost */

struct vm;

struct vuart {
	struct vm *vm; /* NULL: no guest listens; registers still behave */
	uint8_t ier, fcr, lcr, mcr, scr, dll, dlm;
	uint8_t msr_delta; /* modem inputs changed since MSR was read; only loopback moves them */
	bool thre_pending; /* transmitter-empty interrupt not yet acknowledged */
	bool overrun;
	bool irq_high;
	uint32_t rx_head, rx_count;
	uint8_t rx[VUART_FIFO_LEN];
};

void vuart_init(struct vuart *uart, struct vm *vm);
uint8_t vuart_read(struct vuart *uart, uint16_t port);
/* Output goes to console_put(vm, byte). */
void vuart_write(struct vuart *uart, uint16_t port, uint8_t value);

/* Input for the guest. false: buffer full, or looped back; offer it again later. */
bool vuart_input(struct vuart *uart, uint8_t byte);

#endif
