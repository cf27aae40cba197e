/*
 * msr.h: the model-specific registers of a guest that exit. No MSR of the host is read or written
 * on a guest's word but TSC_AUX, which belongs to the guest on its core, and that guarded.
 */
#ifndef QUELL_VMM_MSR_H
#define QUELL_VMM_MSR_H

#include "arch/types.h"

#define MSR_MTRR_VAR_COUNT   8u
#define MSR_MTRR_FIXED_COUNT 11u

struct vcpu;

/* Registers with storage only; the vCPU's core. */
struct msr_state {
	uint64_t mtrr_var[2 * MSR_MTRR_VAR_COUNT]; /* base, mask, base, ... */
	uint64_t mtrr_fixed[MSR_MTRR_FIXED_COUNT];
	uint64_t mtrr_def_type;
	uint64_t misc_enable, mcg_status;
	uint64_t wall_clock; /* KVM's, as the guest wrote it */
};

/* Power-on values: memory write-back everywhere. Boot core, before the vCPU runs. */
void msr_init(struct vcpu *v);

/*
 * RDMSR and WRMSR. On the vCPU's core. 0, or -EINVAL: the guest gets #GP and its registers stay as
 * they are. A register nobody knows faults or reads 0 as the manifest's unknown_msr says; it is
 * counted, and a guest's first few are logged.
 */
int msr_read(struct vcpu *v, uint32_t index, uint64_t *value);
int msr_write(struct vcpu *v, uint32_t index, uint64_t value);

#endif
