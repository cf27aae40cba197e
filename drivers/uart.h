/*
 * uart.h: the host's 16550 at COM1, polled. Callers serialise.
 */
#ifndef QUELL_DRIVERS_UART_H
#define QUELL_DRIVERS_UART_H

#include "arch/types.h"

#define UART_COM1_PORT 0x3f8
#define UART_COM1_IRQ  4

struct uart {
	uint16_t port;
	bool present;
};

/* 115200 8N1, FIFOs on, interrupts off. False, and every later call does nothing, when no UART
 * answers at that port. Any core. */
bool uart_init(struct uart *uart, uint16_t port);

/* Sends a byte; gives up on it after a bounded wait, so that dead hardware cannot stop us. */
void uart_put(struct uart *uart, uint8_t byte);

/* Waits, bounded, until the last byte has left: before power goes. */
void uart_drain(struct uart *uart);

/* A received byte, or -1. */
int uart_get(struct uart *uart);

/* Raises the UART's interrupt line when a byte arrives, or never. */
void uart_irq_enable(struct uart *uart, bool on);

#endif
