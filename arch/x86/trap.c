#include "arch/x86/trap.h"
#include "arch/platform.h"
#include "arch/x86/apic.h"
#include "arch/x86/arch.h"
#include "arch/x86/core.h"
#include "arch/x86/cpu.h"
#include "arch/x86/percore.h"

#define STUB_BYTES       16u
#define GATE_INTERRUPT   0x8e00u /* present, DPL 0, interrupts off on entry */
#define STACK_DUMP_WORDS 64u

/* SDM 3A 6.14.1 */
struct idt_gate {
	uint16_t offset_lo, sel, type, offset_mid;
	uint32_t offset_hi, reserved;
} PACKED;
_Static_assert(sizeof(struct idt_gate) == 16, "IDT gate");

struct idt_ptr {
	uint16_t limit;
	uint64_t base;
} PACKED;

extern const char trap_stubs[];
extern const struct trap_fixup trap_fixup_start[], trap_fixup_end[];
extern char image_start[], image_text_start[], image_text_end[]; /* boot/quell.lds */

static struct idt_gate idt[256] __attribute__((aligned(PAGE_SIZE)));

/* clang-format off */
static const char *const exception_name[TRAP_EXCEPTIONS] = {
	"divide error", "debug", "NMI", "breakpoint", "overflow", "bound range", "invalid opcode",
	"no coprocessor", "double fault", "coprocessor overrun", "invalid TSS",
	"segment not present", "stack fault", "general protection", "page fault", "15", "x87",
	"alignment", "machine check", "SIMD", "virtualization", "control protection", "22", "23",
	"24", "25", "26", "27", "hypervisor injection", "VMM communication", "security", "31",
};
/* clang-format on */

void trap_init(void)
{
	for (unsigned v = 0; v < ARRAY_LEN(idt); v++) {
		uint64_t stub = (uint64_t)trap_stubs + v * STUB_BYTES;
		unsigned ist = v == TRAP_DF    ? TRAP_IST_DF + 1
		               : v == TRAP_NMI ? TRAP_IST_NMI + 1
		               : v == TRAP_MC  ? TRAP_IST_MC + 1
		                               : 0;

		idt[v] = (struct idt_gate){
		        .offset_lo = (uint16_t)stub,
		        .offset_mid = (uint16_t)(stub >> 16),
		        .offset_hi = (uint32_t)(stub >> 32),
		        .sel = SEL_CODE,
		        .type = (uint16_t)(GATE_INTERRUPT | ist),
		};
	}
}

void trap_load(void)
{
	struct idt_ptr idtr = {sizeof(idt) - 1, (uint64_t)idt};

	__asm__ volatile("lidt %0" : : "m"(idtr) : "memory");
}

static bool fixup(struct trap_frame *f)
{
	for (const struct trap_fixup *x = trap_fixup_start; x < trap_fixup_end; x++) {
		if (f->rip != (uint64_t)&x->fault + (uint64_t)(int64_t)x->fault)
			continue;
		f->rip = (uint64_t)&x->resume + (uint64_t)(int64_t)x->resume;
		return true;
	}
	return false;
}

static void dump(const struct trap_frame *f)
{
#define X(v) ((unsigned long long)(v))
	plat_log("core %u: %s, vector %llu error %llx rip %llx (image+%llx) cr2 %llx cr3 %llx",
	         plat_core(), f->vector < TRAP_EXCEPTIONS ? exception_name[f->vector] : "interrupt",
	         X(f->vector), X(f->error), X(f->rip), X(f->rip - (uint64_t)image_start),
	         X(cpu_cr2()), X(cpu_cr3()));
	plat_log("  rax %016llx rbx %016llx rcx %016llx rdx %016llx", X(f->rax), X(f->rbx),
	         X(f->rcx), X(f->rdx));
	plat_log("  rsi %016llx rdi %016llx rbp %016llx rsp %016llx", X(f->rsi), X(f->rdi),
	         X(f->rbp), X(f->rsp));
	plat_log("  r8  %016llx r9  %016llx r10 %016llx r11 %016llx", X(f->r8), X(f->r9), X(f->r10),
	         X(f->r11));
	plat_log("  r12 %016llx r13 %016llx r14 %016llx r15 %016llx", X(f->r12), X(f->r13),
	         X(f->r14), X(f->r15));
	plat_log("  cs %llx ss %llx rflags %llx cr0 %llx cr4 %llx", X(f->cs), X(f->ss),
	         X(f->rflags), X(cpu_cr0()), X(cpu_cr4()));
#undef X
}

/* Return addresses are among these words: image+OFFSET goes to addr2line. */
static void dump_stack(const struct trap_frame *f)
{
	uint64_t block = ALIGN_DOWN(f->rsp, PERCORE_BYTES);
	const uint64_t *word = (const uint64_t *)ALIGN_DOWN(f->rsp, 8ull);
	uint64_t room = (block + PERCORE_BYTES - (uint64_t)word) / 8;

	if (block != (uint64_t)percore_self() || f->vector == TRAP_DF)
		return;
	for (unsigned i = 0; i < MIN(room, STACK_DUMP_WORDS); i++)
		if (word[i] >= (uint64_t)image_text_start && word[i] < (uint64_t)image_text_end)
			plat_log("  stack+%x: image+%llx", i * 8,
			         (unsigned long long)(word[i] - (uint64_t)image_start));
}

static void exception(struct trap_frame *f)
{
	if (f->vector == TRAP_NMI) {
		if (core_stopping())
			cpu_halt_forever();
		/* It may have come while this very core was writing to the log. */
		if (!log_is_busy())
			plat_log("core %u: NMI ignored", plat_core());
		return;
	}
	if (fixup(f))
		return;
	log_panic_mode();
	dump(f);
	dump_stack(f);
	if ((f->vector == TRAP_DF || f->vector == TRAP_PF) && percore_is_guard(cpu_cr2()))
		plat_panic("core %u: stack overflow", plat_core());
	plat_panic("unexpected %s at image+%llx", exception_name[f->vector],
	           (unsigned long long)(f->rip - (uint64_t)image_start));
}

void trap_handle(struct trap_frame *f)
{
	if (f->vector < TRAP_EXCEPTIONS) {
		exception(f);
		return;
	}
	switch (f->vector) {
	case CORE_VECTOR_SPURIOUS: return;
	case CORE_VECTOR_STOP: cpu_halt_forever();
	case CORE_VECTOR_TIMER: apic_timer_expired(); break;
	default: /* wake-ups and devices: having arrived is all they have to say */ break;
	}
	percore_self()->irq_count++;
	apic_eoi();
}
