/*
 * report.h: what a run did: tables for people and one line of JSON (docs/measuring.md has the
 * schema). Boot core, after all guests ended and the I/O loop stopped.
 */
#ifndef QUELL_VMM_REPORT_H
#define QUELL_VMM_REPORT_H

#include "vmm/ioloop.h"
#include "vmm/vm.h"

struct report {
	struct vm *const *vms;
	unsigned vm_count;
	const struct ioloop *loop;
	uint64_t uptime_tsc;
};

/* Which machine this is: "qemu", "bochs", "bare" or a hypervisor's signature, and its accelerator:
 * "tcg", "kvm", "none". Text lives until power-off. */
const char *report_machine(void);
const char *report_accelerator(void);

/* Prints everything. */
void report_print(const struct report *report);

#endif
