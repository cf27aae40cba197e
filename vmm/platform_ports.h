/*
 * platform_ports.h: a guest's I/O ports: UART, PCI configuration, reset, power-off, and the few old
 * PC devices that guests probe for. These take the guest's device lock.
 */
#ifndef QUELL_VMM_PLATFORM_PORTS_H
#define QUELL_VMM_PLATFORM_PORTS_H

#include "arch/types.h"

/* What the FADT names. */
#define PORTS_RESET          0xcf9u /* PIIX reset control: bit 2 resets */
#define PORTS_RESET_VALUE    0x06u
#define PORTS_SLEEP_CONTROL  0x600u /* ACPI 6.4 4.8.3.7 */
#define PORTS_SLEEP_STATUS   0x601u
#define PORTS_SLEEP_TYPE_OFF 5u /* the DSDT's \_S5 */

struct vm;

/* One port access of 1, 2 or 4 bytes. Nobody there: reads give all ones, writes vanish. */
uint32_t ports_read(struct vm *vm, uint16_t port, unsigned width_bytes);
void ports_write(struct vm *vm, uint16_t port, unsigned width_bytes, uint32_t value);

#endif
