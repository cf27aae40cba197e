/*
 * main.h: where arch/x86 hands over to the portable hypervisor.
 */
#ifndef QUELL_VMM_MAIN_H
#define QUELL_VMM_MAIN_H

#include "boot/boot_info.h"

/* Runs the machine. Boot core, on our own page tables and stack, interrupts off, clocks running,
 * no other core started. Does not come back: it ends with core_power_off. */
void quell_main(const struct boot_info *info);

#endif
