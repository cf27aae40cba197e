#include "vmm/vcpu.h"

#include "arch/x86/core.h"
#include "arch/x86/insn.h"
#include "vmm/console.h"
#include "vmm/control.h"
#include "vmm/cpuid.h"
#include "vmm/gwalk.h"
#include "vmm/ioloop.h"
#include "vmm/irq.h"
#include "vmm/mmio.h"
#include "vmm/msr.h"

#define VECTOR_NMI 2
#define VECTOR_UD  6
#define VECTOR_GP  13

#define CR0_PE BIT(0)
#define CR0_ET BIT(4)
#define CR0_NW BIT(29)
#define CR0_CD BIT(30)

#define PAT_RESET 0x0007040600070406ull

/* x87, SSE, AVX, AVX-512 and PKRU; not MPX, not AMX (cpuid.c hides them). */
#define XCR0_SHOWN 0x2e7ull

/* --- reset states --------------------------------------------------------------------------- */

static void seg_set(struct hvm_seg *seg, uint16_t sel, uint64_t base, uint32_t limit, uint32_t attr)
{
	seg->sel = sel;
	seg->base = base;
	seg->limit = limit;
	seg->attr = attr;
}

void vcpu_state_init(struct hvm_state *state)
{
	memset(state, 0, sizeof(*state));
	for (unsigned i = HVM_ES; i <= HVM_GS; i++)
		seg_set(&state->seg[i], 0, 0, 0xffff, 0x93);
	seg_set(&state->seg[HVM_CS], 0xf000, 0xffff0000, 0xffff, 0x9b);
	seg_set(&state->seg[HVM_LDTR], 0, 0, 0xffff, 0x82);
	seg_set(&state->seg[HVM_TR], 0, 0, 0xffff, 0x8b);
	state->gdtr_limit = 0xffff;
	state->idtr_limit = 0xffff;
	state->cr0 = CR0_ET | CR0_NW | CR0_CD;
	state->pat = PAT_RESET;
	state->dr6 = 0xffff0ff0;
	state->dr7 = 0x400;
}

void vcpu_state_sipi(struct hvm_state *state, uint8_t vector)
{
	vcpu_state_init(state);
	seg_set(&state->seg[HVM_CS], (uint16_t)(vector << 8), (uint64_t)vector << 12, 0xffff, 0x9b);
}

/* --- stepping over instructions --------------------------------------------------------------- */

/*
 * Reads the exiting instruction's bytes; returns how many, at most INSN_LEN_MAX. As the processor
 * fetched them, where it says so: that spares a walk of the guest's page tables at each kick.
 */
static unsigned insn_bytes_read(struct vcpu *v, uint8_t bytes[INSN_LEN_MAX], enum insn_mode *mode)
{
	const struct hvm_exit *exit = &v->hv.exit;
	struct hvm_state state;

	hvm->state_get_paging(&v->hv, &state);
	*mode = gwalk_insn_mode(&state);
	if (exit->insn_bytes_count) {
		memcpy(bytes, exit->insn_bytes, exit->insn_bytes_count);
		return exit->insn_bytes_count;
	}
	return gwalk_fetch(&v->vm->mem, &state, v->hv.rip, bytes);
}

static bool insn_read(struct vcpu *v, struct insn *insn)
{
	uint8_t bytes[INSN_LEN_MAX];
	enum insn_mode mode;
	unsigned len = insn_bytes_read(v, bytes, &mode);

	if (!insn_decode(bytes, len, mode, insn))
		return true;
	/* The guest changed it under us, or it is none that can exit: what it is now is undefined. */
	hvm->inject(&v->hv, VECTOR_UD, -1);
	return false;
}

bool vcpu_skip(struct vcpu *v)
{
	struct insn insn;

	if (unlikely(!v->hv.exit.insn_len)) {
		if (!insn_read(v, &insn))
			return false;
		v->hv.exit.insn_len = insn.len;
	}
	hvm_skip(&v->hv, v->hv.exit.insn_len);
	return true;
}

/* --- exits ------------------------------------------------------------------------------------ */

/* *number is the queue's among all of the guest's. */
static struct ioq *kick_queue_find(struct vm *vm, gpa_t gpa, uint32_t *number)
{
	for (unsigned i = 0; i < vm->kick_count; i++) {
		struct vm_kick_page *page = &vm->kick[i];
		gpa_t base = atomic_load_explicit(&page->gpa, memory_order_acquire);
		uint64_t queue = (gpa - base) >> page->multiplier_shift;

		if (base && gpa - base < PAGE_SIZE && queue < page->queue_count) {
			*number = page->first_number + (uint32_t)queue;
			return page->queue[queue];
		}
	}
	return NULL;
}

/*
 * No instruction can be carried out for an exception or interrupt whose table or stack is no memory:
 * its delivery would come back here for ever.
 */
static void exit_mem(struct vcpu *v)
{
	const struct hvm_exit *exit = &v->hv.exit;

	if (likely(!exit->u.mem.delivering)) {
		mmio_emulate(v, exit->u.mem.gpa, exit->u.mem.write);
		return;
	}
	plat_log("guest %s: vcpu %u: an exception or interrupt cannot be delivered at rip 0x%llx: "
	         "its "
	         "table or stack at 0x%llx is no memory",
	         v->vm->name, v->index, (unsigned long long)v->hv.rip,
	         (unsigned long long)exit->u.mem.gpa);
	hvm->dump(&v->hv);
	vm_end(v->vm, VM_ERROR);
}

/* The hot exit: the address names the queue, the stored value is not needed. Returns where the time
 * goes. */
static struct tally *exit_kick(struct vcpu *v)
{
	const struct hvm_exit *exit = &v->hv.exit;
	uint32_t number = 0;
	struct ioq *q = exit->u.mem.write && !exit->u.mem.delivering
	                        ? kick_queue_find(v->vm, exit->u.mem.gpa, &number)
	                        : NULL;
	uint8_t bytes[INSN_LEN_MAX];
	enum insn_mode mode;
	unsigned len;

	if (likely(q)) {
		len = insn_bytes_read(v, bytes, &mode);
		len = insn_len_store(bytes, len, mode);
		if (likely(len)) {
			ioloop_kick(q);
			hvm_skip(&v->hv, len);
			return &v->stats->kick[number];
		}
	}
	exit_mem(v);
	return &v->stats->reason[HVM_EXIT_KICK];
}

static void exit_cpuid(struct vcpu *v)
{
	uint64_t *gpr = v->hv.gpr;
	uint32_t out[4];

	cpuid_emulate(v, (uint32_t)gpr[HVM_RAX], (uint32_t)gpr[HVM_RCX], out);
	if (!vcpu_skip(v))
		return;
	gpr[HVM_RAX] = out[0];
	gpr[HVM_RBX] = out[1];
	gpr[HVM_RCX] = out[2];
	gpr[HVM_RDX] = out[3];
}

static void exit_rdmsr(struct vcpu *v)
{
	uint64_t value;

	if (msr_read(v, v->hv.exit.u.msr.index, &value)) {
		hvm->inject(&v->hv, VECTOR_GP, 0);
		return;
	}
	if (!vcpu_skip(v))
		return;
	v->hv.gpr[HVM_RAX] = (uint32_t)value;
	v->hv.gpr[HVM_RDX] = value >> 32;
}

static void exit_wrmsr(struct vcpu *v)
{
	uint64_t value = (uint32_t)v->hv.gpr[HVM_RAX] | v->hv.gpr[HVM_RDX] << 32;

	if (msr_write(v, v->hv.exit.u.msr.index, value))
		hvm->inject(&v->hv, VECTOR_GP, 0);
	else
		vcpu_skip(v);
}

static bool is_user(struct vcpu *v)
{
	struct hvm_state state;

	hvm->state_get_paging(&v->hv, &state);
	return gwalk_access(&state) & GWALK_USER;
}

static void exit_xsetbv(struct vcpu *v)
{
	uint64_t value = (uint32_t)v->hv.gpr[HVM_RAX] | v->hv.gpr[HVM_RDX] << 32;

	/* The processor checks the rest; no state beyond what CPUID shows the guest, and nothing for
	 * its user programs: under SVM the exit may come before the check of CPL. */
	if (!(value & ~XCR0_SHOWN) && !is_user(v) &&
	    hvm_xsetbv_safe((uint32_t)v->hv.gpr[HVM_RCX], value))
		vcpu_skip(v);
	else
		hvm->inject(&v->hv, VECTOR_GP, 0);
}

static void exit_cr8(struct vcpu *v)
{
	uint8_t gpr = v->hv.exit.u.cr8.gpr;
	struct insn insn;

	if (gpr == HVM_GPR_UNKNOWN) {
		if (!insn_read(v, &insn))
			return;
		gpr = insn.reg;
		v->hv.exit.insn_len = insn.len;
	}
	gpr &= HVM_GPR_COUNT - 1;
	if (!v->hv.exit.u.cr8.write) {
		v->hv.gpr[gpr] = vlapic_cr8_read(&v->lapic);
	} else if (v->hv.gpr[gpr] > 15) {
		hvm->inject(&v->hv, VECTOR_GP, 0);
		return;
	} else {
		vlapic_cr8_write(&v->lapic, (uint8_t)v->hv.gpr[gpr]);
	}
	vcpu_skip(v);
}

static void exit_hlt(struct vcpu *v)
{
	/* An NMI that the guest could not take yet ends the halt: no event says so again. */
	if (vcpu_skip(v) && !v->hv.nmi_pending)
		v->run_state = VCPU_HALTED;
}

static void exit_hypercall(struct vcpu *v)
{
	if (vcpu_skip(v))
		control_call(v);
}

/* A guest that cannot go on: say where it stood and end it, and it alone. */
static void exit_fatal(struct vcpu *v, enum vm_end reason)
{
	const struct hvm_exit *exit = &v->hv.exit;

	plat_log("guest %s: vcpu %u: %s%s at rip 0x%llx", v->vm->name, v->index,
	         hvm->exit_name[exit->reason] ? hvm->exit_name[exit->reason] : "?",
	         exit->reason == HVM_EXIT_TRIPLE_FAULT ? " (triple fault)" : "",
	         (unsigned long long)v->hv.rip);
	if (exit->reason != HVM_EXIT_TRIPLE_FAULT)
		plat_log("guest %s: exit code 0x%llx, info 0x%llx 0x%llx", v->vm->name,
		         (unsigned long long)exit->u.raw.code,
		         (unsigned long long)exit->u.raw.info1,
		         (unsigned long long)exit->u.raw.info2);
	hvm->dump(&v->hv);
	vm_end(v->vm, reason);
}

/* Returns where the time goes. */
static struct tally *exit_dispatch(struct vcpu *v)
{
	switch (v->hv.exit.reason) {
	case HVM_EXIT_KICK: return exit_kick(v);
	case HVM_EXIT_NONE:
	case HVM_EXIT_INTR:
	case HVM_EXIT_TIMER:
	case HVM_EXIT_IRQ_WINDOW:
	case HVM_EXIT_NMI:
	case HVM_EXIT_CR:
	case HVM_EXIT_INIT: break;
	case HVM_EXIT_PAUSE:
	case HVM_EXIT_WBINVD: vcpu_skip(v); break;
	case HVM_EXIT_HLT: exit_hlt(v); break;
	case HVM_EXIT_RDMSR: exit_rdmsr(v); break;
	case HVM_EXIT_WRMSR: exit_wrmsr(v); break;
	case HVM_EXIT_PIO: pio_emulate(v); break;
	case HVM_EXIT_MEM: exit_mem(v); break;
	case HVM_EXIT_CPUID: exit_cpuid(v); break;
	case HVM_EXIT_CR8: exit_cr8(v); break;
	case HVM_EXIT_HYPERCALL: exit_hypercall(v); break;
	case HVM_EXIT_XSETBV: exit_xsetbv(v); break;
	case HVM_EXIT_UD: hvm->inject(&v->hv, VECTOR_UD, -1); break;
	case HVM_EXIT_TRIPLE_FAULT: exit_fatal(v, VM_TRIPLE_FAULT); break;
	case HVM_EXIT_BAD_STATE:
	case HVM_EXIT_OTHER:
	case HVM_EXIT_COUNT: exit_fatal(v, VM_ERROR); break;
	}
	return &v->stats->reason[v->hv.exit.reason];
}

/* --- run loop ---------------------------------------------------------------------------------- */

static void events_take(struct vcpu *v)
{
	unsigned events = atomic_exchange(&v->events, 0);
	struct hvm_state state;

	if (events & VCPU_EVENT_STOP) {
		v->run_state = VCPU_STOPPED;
		return;
	}
	if (events & VCPU_EVENT_MARK)
		phase_follow(v, v->left_tsc);
	if (events & VCPU_EVENT_INIT) {
		vcpu_state_init(&state);
		hvm->state_set(&v->hv, &state);
		hvm->events_reset(&v->hv);
		vlapic_init_reset(&v->lapic);
		v->run_state = VCPU_WAIT_SIPI;
	}
	if ((events & VCPU_EVENT_SIPI) && v->run_state == VCPU_WAIT_SIPI) {
		vcpu_state_sipi(&state, (uint8_t)(events >> 8));
		memset(v->hv.gpr, 0, sizeof(v->hv.gpr));
		v->hv.rip = 0;
		v->hv.rflags = 2;
		hvm->state_set(&v->hv, &state);
		v->run_state = VCPU_RUNNING;
	}
	if ((events & VCPU_EVENT_NMI) && v->run_state != VCPU_WAIT_SIPI) {
		hvm->inject(&v->hv, VECTOR_NMI, -1);
		v->run_state = VCPU_RUNNING;
	}
}

static void posted_merge(struct vcpu *v)
{
	uint64_t posted[4];

	if (!atomic_load_explicit(&v->posted_any, memory_order_relaxed))
		return;
	atomic_exchange(&v->posted_any, 0);
	for (unsigned i = 0; i < 4; i++)
		posted[i] = atomic_load_explicit(&v->posted[i], memory_order_relaxed)
		                    ? atomic_exchange(&v->posted[i], 0)
		                    : 0;
	vlapic_merge(&v->lapic, posted);
}

static bool has_news(struct vcpu *v)
{
	return atomic_load(&v->posted_any) || atomic_load(&v->events);
}

/* A halted vCPU waits on its own core, for its timer or a poster's IPI. */
static void vcpu_sleep(struct vcpu *v)
{
	uint64_t before_tsc = plat_tsc();
	uint64_t deadline_tsc =
	        v->run_state == VCPU_HALTED ? vlapic_deadline(&v->lapic) : UINT64_MAX;

	console_flush(v->vm);
	atomic_store(&v->mode, VCPU_SLEEPING);
	if (!has_news(v))
		plat_wait(&v->wake, deadline_tsc);
	atomic_store(&v->mode, VCPU_HOST);
	atomic_store_explicit(&v->wake, 0, memory_order_relaxed);
	v->left_tsc = plat_tsc();
	v->stats->halted_tsc += v->left_tsc - before_tsc;
}

/* Brings interrupts up to date; false: nothing to run now. */
static bool vcpu_prepare(struct vcpu *v)
{
	int vector;

	if (unlikely(atomic_load_explicit(&v->events, memory_order_relaxed)))
		events_take(v);
	/* Also while it waits for a start-up IPI: else what was posted would keep it awake. */
	posted_merge(v);
	if (unlikely(v->run_state == VCPU_WAIT_SIPI || v->run_state == VCPU_STOPPED))
		return false;
	vlapic_timer_run(&v->lapic, plat_tsc());
	vector = vlapic_pending(&v->lapic);
	if (v->run_state == VCPU_HALTED) {
		if (vector < 0 || !(v->hv.rflags & HVM_RFLAGS_IF))
			return false;
		v->run_state = VCPU_RUNNING;
	}
	v->hv.irq_offer = (int16_t)vector;
	v->hv.deadline_tsc = vlapic_deadline(&v->lapic);
	return true;
}

static void vcpu_enter(struct vcpu *v)
{
	uint64_t enter_tsc, exit_tsc;
	struct tally *tally;

	vlapic_pv_eoi_sync_entry(&v->lapic);
	/* Against irq_post: we say "in the guest" before we look; a poster sets its bit before it asks. */
	atomic_store(&v->mode, VCPU_GUEST);
	if (has_news(v)) {
		atomic_store(&v->mode, VCPU_HOST);
		vlapic_pv_eoi_sync_exit(&v->lapic);
		return;
	}
	enter_tsc = plat_tsc();
	hvm->run(&v->hv);
	exit_tsc = plat_tsc();
	atomic_store_explicit(&v->mode, VCPU_HOST, memory_order_release);
	if (v->hv.irq_taken) {
		v->hv.irq_taken = false;
		vlapic_accept(&v->lapic, (uint8_t)v->hv.irq_offer);
	}
	vlapic_pv_eoi_sync_exit(&v->lapic);
	v->stats->guest_tsc += exit_tsc - enter_tsc;
	v->stats->handling_tsc += enter_tsc - v->left_tsc;
	v->left_tsc = exit_tsc;
	tally = exit_dispatch(v);
	tally_add(tally, plat_tsc() - exit_tsc);
}

void vcpu_run(struct vcpu *v)
{
	uint64_t now_tsc = plat_tsc();

	v->left_tsc = v->stats->start_tsc = now_tsc;
	while (v->run_state != VCPU_STOPPED) {
		/* What they tell is found below; left pending, they would end the guest's run at once. */
		plat_irq_take();
		if (vcpu_prepare(v)) {
			vcpu_enter(v);
		} else if (v->run_state != VCPU_STOPPED) {
			v->stats->handling_tsc += plat_tsc() - v->left_tsc;
			vcpu_sleep(v);
		}
	}
	now_tsc = plat_tsc();
	v->stats->handling_tsc += now_tsc - v->left_tsc;
	v->stats->wall_tsc = now_tsc - v->stats->start_tsc;
}
