/*
 * vcpu.h: one virtual processor: its states and its run loop.
 */
#ifndef QUELL_VMM_VCPU_H
#define QUELL_VMM_VCPU_H

#include "vmm/vm.h"

/* State after INIT, and where a start-up IPI with that vector begins (SDM 3A 9.1.1, 10.4.4.2). */
void vcpu_state_init(struct hvm_state *state);
void vcpu_state_sipi(struct hvm_state *state, uint8_t vector);

/* Runs the guest on this core until it ends: bound, with its registers set, interrupts off. */
void vcpu_run(struct vcpu *v);

/* Steps over the instruction that exited, decoding it where the processor gave no length. False:
 * it could not be read; the guest has a fault to take instead. */
bool vcpu_skip(struct vcpu *v);

#endif
