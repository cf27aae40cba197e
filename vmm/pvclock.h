/*
 * pvclock.h: KVM-compatible paravirtual clock (Linux Documentation/virt/kvm/x86/msr.rst): system
 * time and wall clock. Pure arithmetic on the TSC.
 */
#ifndef QUELL_VMM_PVCLOCK_H
#define QUELL_VMM_PVCLOCK_H

#include "arch/types.h"
#include "vmm/gmem.h"

struct pvclock_base {
	uint32_t tsc_to_system_mul;
	int8_t tsc_shift;
	uint64_t wall_unix_ns; /* UTC when the guest's TSC was 0 */
};

/* Scale for a TSC of tsc_hz; the guest's clock starts with its TSC at 0. */
void pvclock_init(struct pvclock_base *base, uint64_t tsc_hz, uint64_t wall_unix_ns);

/* MSR_KVM_SYSTEM_TIME(_NEW): publishes the time page of one vCPU (bit 0 of value enables). The
 * parameters never change, so once is enough. -EFAULT: not guest memory. */
int pvclock_system_time_set(const struct pvclock_base *base, const struct gmem *mem,
                            uint64_t value);

/* MSR_KVM_WALL_CLOCK(_NEW). -EFAULT. */
int pvclock_wall_clock_set(const struct pvclock_base *base, const struct gmem *mem, uint64_t value);

#endif
