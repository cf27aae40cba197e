/*
 * emul.h: the ground that mmio.c stands on: the instruction a vCPU exited at, and accesses to the
 * guest's linear memory, RAM or devices. On the vCPU's core. Private to mmio.c and its tests.
 */
#ifndef QUELL_VMM_EMUL_H
#define QUELL_VMM_EMUL_H

#include "arch/x86/insn.h"
#include "vmm/vm.h"

struct emul {
	struct vcpu *v;
	struct hvm_state state; /* paging fields only */
	struct insn insn;
	uint64_t access; /* GWALK_USER and GWALK_AC as they hold for data */
	gpa_t fault_gpa; /* where the exit says the access goes, or EMUL_NO_GPA */
};

#define EMUL_NO_GPA UINT64_MAX

/* Fetches and decodes the instruction at rip. False: an exception for the guest is injected. */
bool emul_begin(struct emul *e, struct vcpu *v, gpa_t fault_gpa);

/*
 * Reads or writes width_bytes (1 to 8) at an offset in a segment, page by page, device memory split
 * at natural alignment. False: an exception is injected; nothing has been accessed.
 */
bool emul_read(struct emul *e, unsigned seg, uint64_t offset, unsigned width_bytes,
               uint64_t *value);
bool emul_write(struct emul *e, unsigned seg, uint64_t offset, unsigned width_bytes,
                uint64_t value);

/* Could emul_write do it now? The same exceptions, without the write. */
bool emul_write_check(struct emul *e, unsigned seg, uint64_t offset, unsigned width_bytes);

/* Injects #UD for an instruction that cannot be carried out and says so in the log, a few times. */
void emul_refuse(struct emul *e, const char *why);

#endif
