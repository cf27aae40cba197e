/*
 * control.h: what a guest may ask of the hypervisor (control_abi.h, docs/control.md): change how
 * its queues are polled, mark phases, read its counts. Every call is bounded, takes registers only
 * and reads no guest memory.
 */
#ifndef QUELL_VMM_CONTROL_H
#define QUELL_VMM_CONTROL_H

#include "arch/types.h"
#include "vmm/control_abi.h"

struct vcpu;

/* Serves the call in v's registers, which was stepped over. On the vCPU's core. */
void control_call(struct vcpu *v);

/* Leaves QUELL_CPUID and on; zeros elsewhere. out = EAX, EBX, ECX, EDX. Any core. */
void control_cpuid(const struct vcpu *v, uint32_t leaf, uint32_t out[4]);

#endif
