/*
 * mmio.h: what a guest's access to device memory or to an I/O port does: read the instruction,
 * carry it out on the device, write back registers and flags. On the vCPU's core, after an exit.
 */
#ifndef QUELL_VMM_MMIO_H
#define QUELL_VMM_MMIO_H

#include "arch/types.h"

/* Elements of a string instruction done in one exit; then the guest comes back for the rest. */
#define MMIO_STRING_MAX 256u

struct vcpu;

enum mmio_result {
	MMIO_DONE,  /* carried out and stepped over, or partly done and to be repeated (REP) */
	MMIO_FAULT, /* the guest has an exception to take; already injected */
};

/*
 * Carries out the instruction at the guest's rip, whose memory operand made it exit at gpa.
 * Local APIC registers belong to the caller's core; all other devices are used under device_lock.
 */
enum mmio_result mmio_emulate(struct vcpu *v, gpa_t gpa, bool write);

/* Carries out HVM_EXIT_PIO, INS and OUTS included. */
enum mmio_result pio_emulate(struct vcpu *v);

#endif
