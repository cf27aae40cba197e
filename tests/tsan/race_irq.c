/*
 * race_irq.c: a vCPU's run loop on a thread of its own, its guest a script, while two other cores
 * post interrupts and NMIs: in the guest, between entries and halted. Each interrupt says that a
 * plain word has changed, as a device's does; the handler must come, and find the word.
 */
#include "tests/tsan/races.h"

#include "arch/platform.h"
#include "vmm/irq.h"
#include "vmm/vcpu.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define POSTERS      2u
#define POSTER_CORE  2u /* and the next */
#define VCPU_CORE    1u
#define VECTOR_NMI   2u
#define VECTOR_FIRST 32u
#define VECTORS      256u
#define BURST_MAX    4u

static struct vm vm;
static struct vcpu vcpu;
static uint64_t word[VECTORS];               /* what the interrupt tells of; plain */
static atomic_uint_least64_t found[VECTORS]; /* by its handler */
static atomic_uint lost, over;
static uint64_t guest_state, halts, taken_count;
static bool eoi_due;

static struct poster {
	unsigned index;
	uint64_t state, posted;
	CACHE_ALIGN atomic_uint_least64_t round; /* that it has begun */
} posters[POSTERS];

/* --- the guest ----------------------------------------------------------------------------------
 */

static void handle(unsigned vector)
{
	taken_count++;
	atomic_store_explicit(&found[vector], word[vector], memory_order_release);
}

/* Takes what is offered and ends it at the next entry; else halts, works
 * until interrupted, or exits for another reason. */
static void guest_run(struct hvm_vcpu *hv)
{
	hv->exit.reason = HVM_EXIT_INTR;
	hv->exit.insn_len = 1;
	hv->rflags |= HVM_RFLAGS_IF;
	if (hv->nmi_pending) {
		hv->nmi_pending = false;
		handle(VECTOR_NMI);
	}
	if (eoi_due) {
		vlapic_mmio_write(&vcpu.lapic, 0xb0, 0);
		eoi_due = false;
	} else if (hv->irq_offer >= 0) {
		handle((unsigned)hv->irq_offer);
		hv->irq_taken = eoi_due = true;
	} else {
		uint32_t r = random_next(&guest_state);

		dither(&guest_state);
		if (r % 16 == 0) {
			hv->exit.reason = HVM_EXIT_HLT;
			halts++;
		} else if (r % 16 == 1) {
			core_interrupt_await();
		} /* else it exits for another reason */
	}
}

static void guest_inject(struct hvm_vcpu *hv, uint8_t vector, int64_t error_code)
{
	(void)error_code;
	if (vector == VECTOR_NMI)
		hv->nmi_pending = true;
}

static const struct hvm_ops guest_ops = {
        .name = "script", .run = guest_run, .inject = guest_inject};
const struct hvm_ops *hvm = &guest_ops;

bool hvm_rdmsr_safe(uint32_t index, uint64_t *value)
{
	(void)index;
	(void)value;
	return false;
}

bool hvm_wrmsr_safe(uint32_t index, uint64_t value)
{
	(void)index;
	(void)value;
	return false;
}

bool hvm_xsetbv_safe(uint32_t index, uint64_t value)
{
	(void)index;
	(void)value;
	return false;
}

uint64_t hvm_xgetbv(void)
{
	return 0;
}

void vm_end(struct vm *ended, enum vm_end reason)
{
	(void)ended;
	(void)reason;
	abort();
}

static void *vcpu_main(void *arg)
{
	(void)arg;
	core_begin(VCPU_CORE);
	vcpu_run(&vcpu);
	return NULL;
}

/* --- who posts ----------------------------------------------------------------------------------
 */

static void post(unsigned vector)
{
	word[vector]++;
	if (vector == VECTOR_NMI)
		irq_event(&vcpu, VCPU_EVENT_NMI);
	else
		irq_post(&vcpu, (uint8_t)vector);
}

static bool found_await(unsigned vector)
{
	double give_up = seconds() + lost_s;

	while (atomic_load_explicit(&found[vector], memory_order_acquire) != word[vector]) {
		if (seconds() > give_up)
			return false;
		sched_yield();
	}
	return true;
}

/* Every POSTERS-th vector is this poster's own; NMIs are the first one's. */
static unsigned vector_choose(struct poster *p)
{
	uint32_t r = random_next(&p->state);

	if (p->index == 0 && r % 16 == 0)
		return VECTOR_NMI;
	return VECTOR_FIRST + (r >> 4) % ((VECTORS - VECTOR_FIRST) / POSTERS) * POSTERS + p->index;
}

/* The other may have lost one that my next would bring to light: both begin a round together. */
static void round_begin(struct poster *p)
{
	struct poster *other = &posters[1 - p->index];
	uint64_t round = atomic_load(&p->round) + 1;

	atomic_store(&p->round, round);
	while (atomic_load(&other->round) < round && !atomic_load(&over) && !atomic_load(&lost))
		sched_yield();
}

static void *poster_main(void *arg)
{
	struct poster *p = arg;

	core_begin(POSTER_CORE + p->index);
	while (!atomic_load_explicit(&over, memory_order_relaxed) && !atomic_load(&lost)) {
		unsigned burst = 1 + random_next(&p->state) % BURST_MAX, vector[BURST_MAX];

		round_begin(p);
		for (unsigned i = 0; i < burst; i++) {
			bool again = false;

			vector[i] = vector_choose(p);
			for (unsigned n = 0; n < i; n++)
				again |= vector[n] == vector[i];
			if (again) { /* its word may be read meanwhile */
				burst = i;
				break;
			}
			post(vector[i]);
			short_delay(&p->state);
		}
		p->posted += burst;
		for (unsigned i = 0; i < burst; i++)
			if (!found_await(vector[i]))
				atomic_store(&lost, 1);
		dither(&p->state);
	}
	return NULL;
}

static void setup(void)
{
	memset(&vm, 0, sizeof(vm));
	memset(&vcpu, 0, sizeof(vcpu));
	memset(word, 0, sizeof(word));
	memset(posters, 0, sizeof(posters));
	for (unsigned i = 0; i < VECTORS; i++)
		atomic_store(&found[i], 0);
	atomic_store(&lost, 0);
	atomic_store(&over, 0);
	guest_state = 17;
	halts = taken_count = 0;
	eoi_due = false;
	cores_reset();
	vm.name = "races";
	vm.vcpu_count = 1;
	vm.vcpu[0] = &vcpu;
	vcpu.vm = &vm;
	vcpu.core = VCPU_CORE;
	vcpu.stats = plat_mem_alloc(exit_stats_bytes(1), CACHE_LINE_BYTES);
	vlapic_init(&vcpu.lapic, &vcpu, 0, true, 0);
	vlapic_mmio_write(&vcpu.lapic, 0xf0, 0x1ff);
}

void race_irq(const struct limits *limits)
{
	const char *name = "irq_post_while_running_and_halted";
	pthread_t run, thread[POSTERS];
	uint64_t posted = 0;
	double end;

	if (!case_wanted(name))
		return;
	setup();
	if (pthread_create(&run, NULL, vcpu_main, NULL))
		abort();
	for (unsigned i = 0; i < POSTERS; i++) {
		posters[i].index = i;
		posters[i].state = 100 + i;
		if (pthread_create(&thread[i], NULL, poster_main, &posters[i]))
			abort();
	}
	end = seconds() + 2 * limits->time_s;
	while (seconds() < end && !atomic_load(&lost))
		usleep(5000);
	atomic_store(&over, 1);
	for (unsigned i = 0; i < POSTERS; i++) {
		pthread_join(thread[i], NULL);
		posted += posters[i].posted;
	}
	irq_event(&vcpu, VCPU_EVENT_STOP);
	core_interrupt(VCPU_CORE); /* whatever was lost before */
	pthread_join(run, NULL);
	verdict(!atomic_load(&lost) && taken_count >= 1 && taken_count <= posted, name,
	        "%llu posted, %llu taken, %llu halts, %llu IPIs, %s", (unsigned long long)posted,
	        (unsigned long long)taken_count, (unsigned long long)halts,
	        (unsigned long long)core_wakes(VCPU_CORE),
	        atomic_load(&lost) ? "one LOST" : "0 lost");
	free(vcpu.stats);
}
