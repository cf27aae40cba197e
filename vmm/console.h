/*
 * console.h: guests' consoles on the host console. One guest alone has it raw; several share it,
 * each line prefixed with its guest's name, input to the one in focus (Ctrl-] then a digit; Ctrl-]
 * twice sends one).
 */
#ifndef QUELL_VMM_CONSOLE_H
#define QUELL_VMM_CONSOLE_H

#include "arch/types.h"

struct vm;

/* A guest with a serial port, in the order of the digits that choose it; the first has the input.
 * Boot core, before guests start. */
void console_guest_add(struct vm *vm);

/* One byte of a guest's output. Any vCPU core, under that guest's device lock. */
void console_put(struct vm *vm, uint8_t byte);

/* Shows a guest's unfinished line, such as a prompt, because it is about to wait. */
void console_flush(struct vm *vm);

/* Reads host input and hands it to the guest in focus. I/O core. Returns bytes taken. */
unsigned console_input_poll(void);

/* Bytes are left that the guest in focus could not take: poll again soon. I/O core. */
bool console_input_waits(void);

#endif
