/*
 * control_abi.h: what a guest and Quell say to each other (docs/control.md). Shared with
 * tools/quellctl.c: types of stdint.h only.
 */
#ifndef QUELL_VMM_CONTROL_ABI_H
#define QUELL_VMM_CONTROL_ABI_H

#include <stdint.h>

/* CPUID: leaf QUELL_CPUID gives the highest leaf in EAX and the signature in EBX, ECX, EDX;
 * the next one the interface's version in EAX and QUELL_FLAG_* in EBX. */
#define QUELL_CPUID           0x40000100u
#define QUELL_CPUID_FEATURES  0x40000101u
#define QUELL_CPUID_SIGNATURE "QuellQuellQu"
#define QUELL_FLAG_CONTROL    (1u << 0) /* this guest's manifest says control = true */
#define QUELL_FLAG_VMMCALL    (1u << 1) /* the instruction is VMMCALL; else VMCALL */

#define QUELL_ABI_VERSION 1u

/*
 * VMCALL or VMMCALL in 64-bit code at any privilege level: RAX = QUELL_CALL(op), arguments in RBX,
 * RCX, RDX, RSI. RAX = 0 and results in RBX, RCX, RDX, RSI, RDI, R8; or RAX = -QUELL_E* and nothing
 * else changes.
 */
#define QUELL_CALL(op) (0x514c0000u + (op)) /* "QL" */

enum quell_op {
	QUELL_VERSION,  /* -> interface version */
	QUELL_POLL_SET, /* disk, queue (either QUELL_ALL), policy -> how many queues */
	QUELL_POLL_GET, /* disk, queue -> policy asked for, policy in force */
	QUELL_MARK,     /* name in 32 bytes with NUL -> number of the phase that begins */
	QUELL_PHASE,  /* phase -> its name in 32 bytes, TSC of the host when it began, 1: settled */
	QUELL_GUEST,  /* -> vCPUs, disks, phases begun, exit reasons, TSC Hz, phases at most */
	QUELL_TIME,   /* vCPU, phase -> cycles in the guest, handling exits, halted, wall (0: goes
	               * on),   TSC of the host when it began there, and now */
	QUELL_REASON, /* exit reason -> its name in 48 bytes with NUL */
	QUELL_EXIT, /* reason, vCPU, phase -> a tally; kicks that found their queue are not in it */
	QUELL_KICK, /* disk, queue, vCPU, phase -> a tally */
	QUELL_QUEUE, /* disk, queue, phase -> requests, kicks, interrupts, suppressed, arms, disarms
	              */
	QUELL_BYTES, /* disk, queue, phase -> bytes read, written, errors; state now (QUELL_QUEUE_*)
	              */
	QUELL_IRQ,   /* disk, queue, phase -> a tally of interrupts sent */
	QUELL_LOOP,  /* phase -> passes, empty passes, sleeps, wakes, doorbells, cycles asleep */
	QUELL_OP_COUNT,
};

/* A tally: count, total, minimum, maximum in cycles, the sum of squares' low and high half. */

#define QUELL_ALL UINT64_MAX

/* Policies: nanoseconds up to this, 0 is no polling; or one of these. */
#define QUELL_POLL_NS_MAX 1000000000ull
#define QUELL_POLL_AUTO   UINT64_MAX
#define QUELL_POLL_ALWAYS (UINT64_MAX - 1)

enum quell_queue_state {
	QUELL_QUEUE_DETACHED,
	QUELL_QUEUE_ARMED,
	QUELL_QUEUE_COLD,
	QUELL_QUEUE_HOT,
	QUELL_QUEUE_DRAINING,
};

#define QUELL_EPERM  1    /* the manifest does not say control = true */
#define QUELL_ENOENT 2    /* no such disk, queue, vCPU, phase or reason */
#define QUELL_EINVAL 22   /* a name that is none: see docs/control.md */
#define QUELL_ENOSPC 28   /* as many phases as there can be */
#define QUELL_ERANGE 34   /* no such policy */
#define QUELL_ENOSYS 1000 /* no such operation; KVM's word */

#endif
