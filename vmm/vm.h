/*
 * vm.h: a guest and its vCPUs.
 *
 * The boot core owns a struct vm until its vCPUs start; then its shape is fixed. A vCPU belongs to
 * the core it is bound to; other cores touch only the atomics at its end.
 */
#ifndef QUELL_VMM_VM_H
#define QUELL_VMM_VM_H

#include "arch/lock.h"
#include "arch/types.h"
#include "arch/x86/hvm.h"
#include "vmm/exit_stats.h"
#include "vmm/gmem.h"
#include "vmm/linux.h"
#include "vmm/manifest.h"
#include "vmm/msr.h"
#include "vmm/phase.h"
#include "vmm/pvclock.h"
#include "vmm/vioapic.h"
#include "vmm/vlapic.h"
#include "vmm/vpci.h"
#include "vmm/vuart.h"

#define VM_VCPU_MAX 32
#define VM_KICK_MAX MANIFEST_DISK_MAX

struct ioq;
struct vblk;

/* What a vCPU is doing, so that a poster knows whether an IPI is needed. */
enum vcpu_mode {
	VCPU_HOST,     /* in the hypervisor: looks at its words before the next entry */
	VCPU_GUEST,    /* in the guest: an IPI makes it exit */
	VCPU_SLEEPING, /* halted: an IPI wakes it */
};

/* Bits of vcpu.events. */
#define VCPU_EVENT_NMI  BIT(0)
#define VCPU_EVENT_INIT BIT(1)
#define VCPU_EVENT_SIPI BIT(2) /* vector in bits 15:8 */
#define VCPU_EVENT_STOP BIT(3) /* the guest has ended */
#define VCPU_EVENT_MARK BIT(4) /* a new phase of accounting (vmm/phase.h) */

enum vcpu_run_state { VCPU_RUNNING, VCPU_HALTED, VCPU_WAIT_SIPI, VCPU_STOPPED };

struct vcpu {
	struct hvm_vcpu hv;
	struct vlapic lapic;
	struct vm *vm;
	uint32_t index, apic_id;
	unsigned core;
	enum vcpu_run_state run_state;
	uint64_t kvmclock_msr;    /* MSR_KVM_SYSTEM_TIME_NEW as the guest wrote it */
	struct msr_state msr;     /* emulated MSRs with storage only */
	struct exit_stats *stats; /* of the current phase */
	uint8_t *stats_first;     /* of the first; the others follow */
	uint64_t left_tsc;        /* when it last left the guest or woke: accounted up to here */

	/* Any core. */
	CACHE_ALIGN atomic_uint_least64_t posted[4]; /* vectors posted, not yet in IRR */
	atomic_uint posted_any;
	atomic_uint events;
	atomic_uint mode;  /* enum vcpu_mode */
	atomic_uint wake;  /* non-zero ends plat_wait */
	atomic_uint phase; /* the phase it counts in; written by its own core */
};

enum vm_end { VM_ALIVE, VM_POWER_OFF, VM_RESET, VM_TRIPLE_FAULT, VM_ERROR };

/* A page of notify registers, kept in step with its BAR by the transport under the device lock.
 * Read by vCPU cores on the kick path without a lock: gpa is written last. */
struct vm_kick_page {
	atomic_uint_least64_t gpa; /* 0: not decoding */
	uint32_t queue_count;
	uint32_t multiplier_shift; /* queue = (address - gpa) >> shift */
	uint32_t first_number;     /* of its queue 0 among all of the guest's */
	struct ioq **queue;
};

struct vm {
	const char *name;
	unsigned index;
	const struct manifest_guest *config;
	struct gmem mem;
	struct hvm_vm hvm;
	unsigned vcpu_count;
	struct vcpu *vcpu[VM_VCPU_MAX];

	struct linux_entry entry; /* how vCPU 0 starts */
	uint64_t tsc_offset;
	struct pvclock_base clock;

	struct vm_kick_page kick[VM_KICK_MAX];
	unsigned kick_count;

	/* Guards every device register below: ioapic, uart, pci and each device's configuration. */
	struct spinlock device_lock;
	struct vioapic ioapic;
	struct vuart uart;
	struct vpci pci;
	unsigned disk_count;
	struct vblk *disk[MANIFEST_DISK_MAX];
	struct phases phases;

	atomic_uint end; /* enum vm_end; the first to leave VM_ALIVE wins */
	atomic_uint vcpus_running;
	atomic_uint unknown_msrs; /* accesses to MSRs nobody knows, counted by msr.c */
	atomic_uint emul_logs;    /* lines that emul.c wrote */
};

/* The back end, chosen once by main before any guest exists. */
extern const struct hvm_ops *hvm;

/* Ends a guest: every vCPU leaves. Any core; the first reason stays. */
void vm_end(struct vm *vm, enum vm_end reason);

/* The word for it: "power-off", "reset", "triple-fault", "error". */
const char *vm_end_name(enum vm_end end);

#endif
