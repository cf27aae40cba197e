/*
 * smoke.h: one bare vCPU on the boot core, without vmm/: what the cases of cases.c stand on.
 */
#ifndef QUELL_TESTS_SMOKE_H
#define QUELL_TESTS_SMOKE_H

#include "arch/platform.h"
#include "arch/x86/hvm.h"

/* The guest's memory; guest.asm knows these numbers too. */
#define SMOKE_CODE     0x1000u
#define SMOKE_PML4     0x2000u
#define SMOKE_IDT      0x5000u
#define SMOKE_GDT      0x6000u
#define SMOKE_DATA     0x7000u
#define SMOKE_HANDLERS 0x8000u
#define SMOKE_STACK    0xf000u
#define SMOKE_RAM_LEN  0x200000u
#define SMOKE_KICK     0x400000u
#define SMOKE_HOLE     0x800000u

/* Slots of guest_handlers. */
enum smoke_handler { H_COUNT, H_ERROR, H_NMI, H_PF, H_COUNT2, H_UD };

struct smoke {
	const struct hvm_ops *ops;
	struct hvm_vm vm;
	struct hvm_vcpu vcpu;
	uint8_t *ram;
	unsigned taken;   /* interrupts the guest took since the case began */
	unsigned windows; /* exits because an interrupt's window opened, in all cases */
	bool hung;
};

extern struct smoke smoke;

/* Guest memory, and the counters that the handlers keep in SMOKE_DATA. */
static inline volatile uint32_t *smoke_data(unsigned offset)
{
	return (volatile uint32_t *)(void *)(smoke.ram + SMOKE_DATA + offset);
}

/* Back end, guest memory, one vCPU bound to this core. False: said why. */
bool smoke_setup(const char *const *disable, unsigned disable_count);

/* Clears memory, copies the code, sets the vCPU to real mode or flat 64-bit mode with an IDT whose
 * gates all lead to H_COUNT (error codes: H_ERROR, 14: H_PF, 2: H_NMI). */
void smoke_load(const uint8_t *code, const uint8_t *code_end, bool long_mode);
void smoke_gate(unsigned vector, enum smoke_handler handler);

/* Runs until an exit that asks something of vmm; interrupts, timers and resolved exits go on.
 * After two seconds: HVM_EXIT_NONE, and smoke.hung. Takes irq_taken as vmm does. */
enum hvm_exit_reason smoke_go(void);

/* Steps over the exiting instruction; len_bytes is what it really has. False: the back end says
 * another length. */
bool smoke_step(unsigned len_bytes);

struct smoke_case {
	const char *name;
	bool (*run)(void);
};

extern const struct smoke_case smoke_cases[];
extern const unsigned smoke_case_count;

#endif
