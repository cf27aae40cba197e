/*
 * cpuid.h: what guests learn of their processor: the host's answer, masked to what Quell stands
 * behind, with topology, timing and the KVM-compatible hypervisor leaves of our own (SDM 2A CPUID;
 * AMD APM 3 appendix E). A feature bit shown means that its MSRs and controls work.
 */
#ifndef QUELL_VMM_CPUID_H
#define QUELL_VMM_CPUID_H

#include "arch/types.h"

struct vcpu;

enum cpuid_vendor { CPUID_INTEL, CPUID_AMD, CPUID_OTHER };

#define CPUID_KVM_BASE 0x40000000u
#define CPUID_KVM_MAX  0x40000010u

/*
 * The guest's CPUID: out = EAX, EBX, ECX, EDX. On the vCPU's core, where XCR0 is the guest's: leaf
 * 0xD is live. Asks the back end for the guest's CR4 where a bit mirrors it.
 */
void cpuid_emulate(struct vcpu *v, uint32_t leaf, uint32_t subleaf, uint32_t out[4]);

/* Whose processor this is. Hygon counts as AMD. Any core. */
enum cpuid_vendor cpuid_vendor(void);

/* Width of a guest-physical address, from leaf 0x80000008; 36 where the leaf is missing. */
unsigned cpuid_phys_bits(void);

/* Bits that number count things: 0 for 1, 1 for 2, 2 for 3 and 4. */
unsigned cpuid_id_bits(unsigned count);

/* A fraction num / den near hz / unit_hz with num at most num_max, as leaf 0x15 wants it. */
void cpuid_fraction(uint64_t hz, uint64_t unit_hz, uint32_t num_max, uint32_t *num, uint32_t *den);

#endif
