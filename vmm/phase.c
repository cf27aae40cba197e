#include "vmm/phase.h"

#include "virtio/blk.h"
#include "vmm/irq.h"
#include "vmm/vm.h"

/* No guest's records take more than this for one vCPU, or for its queues, however many there are.
 */
#define RECORDS_BYTES_MAX (4 * MIB)

unsigned phase_queue_number(const struct vm *vm, unsigned disk)
{
	unsigned number = 0;

	for (unsigned d = 0; d < disk; d++)
		number += vm->disk[d]->queue_count;
	return number;
}

static struct vblk_queue *queue_by_number(const struct vm *vm, unsigned number)
{
	for (unsigned d = 0; d < vm->disk_count; d++) {
		if (number < vm->disk[d]->queue_count)
			return &vm->disk[d]->queue[number];
		number -= vm->disk[d]->queue_count;
	}
	return NULL;
}

struct exit_stats *phase_exits(const struct vcpu *v, unsigned phase)
{
	return (void *)(v->stats_first + phase * v->vm->phases.exits_bytes);
}

static struct phase_io *io_at(const struct vm *vm, unsigned phase)
{
	return (void *)(vm->phases.io + phase * vm->phases.io_bytes);
}

/* --- noting what the I/O core counts ------------------------------------------------------------
 */

/* Counts that another core may be writing: each word whole, though not all of one instant. */
static void words_copy(void *dst, const void *src, size_t len_bytes)
{
	for (size_t i = 0; i < len_bytes / sizeof(uint64_t); i++)
		((uint64_t *)dst)[i] = ((const volatile uint64_t *)src)[i];
}

_Static_assert(sizeof(struct tally) % sizeof(uint64_t) == 0, "copied by words");

static void queue_note(struct vblk_queue *q, struct phase_queue *out)
{
	words_copy(&out->counts, &q->ioq.counts, sizeof(out->counts));
	out->kicks = atomic_load_explicit(&q->ioq.kicks, memory_order_relaxed);
	words_copy(&out->interrupt, &q->interrupt, sizeof(out->interrupt));
}

static void loop_note(const struct ioloop *loop, struct ioloop_counts *out, uint64_t *doorbells)
{
	words_copy(out, &loop->counts, sizeof(*out));
	*doorbells = 0;
	for (uint32_t i = 0; i < loop->dev_count; i++)
		*doorbells += *(const volatile uint64_t *)&loop->dev[i]->doorbells;
}

static void io_note(struct vm *vm, unsigned phase)
{
	struct phase_io *io = io_at(vm, phase);
	unsigned number = 0;

	loop_note(vm->phases.loop, &io->loop, &io->doorbells);
	for (unsigned d = 0; d < vm->disk_count; d++) {
		for (unsigned i = 0; i < vm->disk[d]->queue_count; i++, number++) {
			struct vblk_queue *q = &vm->disk[d]->queue[i];

			queue_note(q, &io->queue[number]);
			memset(&q->interrupt, 0, sizeof(q->interrupt));
		}
	}
}

/* On the I/O core, between two passes. */
static void letter_open(struct ioloop_letter *letter)
{
	struct phases *phases = CONTAINER_OF(letter, struct phases, letter);
	struct vm *vm = CONTAINER_OF(phases, struct vm, phases);
	unsigned taken = atomic_load_explicit(&phases->io_taken, memory_order_relaxed);

	for (; taken + 1 < atomic_load_explicit(&phases->count, memory_order_acquire); taken++) {
		io_note(vm, taken);
		atomic_store_explicit(&phases->io_taken, taken + 1, memory_order_release);
	}
}

/* --- reading -------------------------------------------------------------------------------------
 */

static void words_subtract(void *dst, const void *src, size_t len_bytes)
{
	for (size_t i = 0; i < len_bytes / sizeof(uint64_t); i++)
		((uint64_t *)dst)[i] -= ((const uint64_t *)src)[i];
}

void phase_queue_get(struct vm *vm, unsigned phase, unsigned queue, struct phase_queue *out)
{
	unsigned taken = atomic_load_explicit(&vm->phases.io_taken, memory_order_acquire);

	memset(out, 0, sizeof(*out));
	if (phase > taken || queue >= vm->phases.queue_count)
		return;
	if (phase < taken)
		*out = io_at(vm, phase)->queue[queue];
	else
		queue_note(queue_by_number(vm, queue), out);
	if (phase == 0)
		return;
	words_subtract(&out->counts, &io_at(vm, phase - 1)->queue[queue].counts,
	               sizeof(out->counts));
	out->kicks -= io_at(vm, phase - 1)->queue[queue].kicks;
}

void phase_loop_get(struct vm *vm, unsigned phase, struct ioloop_counts *out, uint64_t *doorbells)
{
	unsigned taken = atomic_load_explicit(&vm->phases.io_taken, memory_order_acquire);

	memset(out, 0, sizeof(*out));
	*doorbells = 0;
	if (phase > taken)
		return;
	if (phase < taken) {
		*out = io_at(vm, phase)->loop;
		*doorbells = io_at(vm, phase)->doorbells;
	} else {
		loop_note(vm->phases.loop, out, doorbells);
	}
	if (phase == 0)
		return;
	words_subtract(out, &io_at(vm, phase - 1)->loop, sizeof(*out));
	*doorbells -= io_at(vm, phase - 1)->doorbells;
}

/* --- marks
 * ----------------------------------------------------------------------------------------- */

int phase_mark(struct vm *vm, const char name[PHASE_NAME_BYTES])
{
	struct phases *phases = &vm->phases;
	unsigned number;

	spin_lock(&phases->lock);
	number = atomic_load_explicit(&phases->count, memory_order_relaxed);
	if (number >= phases->max) {
		spin_unlock(&phases->lock);
		return -ENOSPC;
	}
	memcpy(phases->name[number], name, PHASE_NAME_BYTES);
	phases->name[number][PHASE_NAME_BYTES - 1] = 0;
	phases->begin_tsc[number] = plat_tsc();
	atomic_store_explicit(&phases->count, number + 1, memory_order_release);
	spin_unlock(&phases->lock);
	for (unsigned i = 0; i < vm->vcpu_count; i++)
		irq_event(vm->vcpu[i], VCPU_EVENT_MARK);
	ioloop_letter_post(phases->loop, &phases->letter);
	return (int)number;
}

bool phase_settled(struct vm *vm)
{
	unsigned last = atomic_load_explicit(&vm->phases.count, memory_order_acquire) - 1;

	if (atomic_load_explicit(&vm->phases.io_taken, memory_order_acquire) < last)
		return false;
	for (unsigned i = 0; i < vm->vcpu_count; i++)
		if (atomic_load_explicit(&vm->vcpu[i]->phase, memory_order_acquire) < last)
			return false;
	return true;
}

void phase_follow(struct vcpu *v, uint64_t now_tsc)
{
	unsigned phase = atomic_load_explicit(&v->phase, memory_order_relaxed);

	for (; phase + 1 < atomic_load_explicit(&v->vm->phases.count, memory_order_acquire);
	     phase++) {
		v->stats->wall_tsc = now_tsc - v->stats->start_tsc;
		v->stats = phase_exits(v, phase + 1);
		v->stats->start_tsc = now_tsc;
		atomic_store_explicit(&v->phase, phase + 1, memory_order_release);
	}
}

/* --- creation
 * -------------------------------------------------------------------------------------- */

static void kick_pages_number(struct vm *vm)
{
	/* The transport adds a disk and its page of notify registers at the same time. */
	for (unsigned d = 0; d < vm->disk_count && d < vm->kick_count; d++)
		vm->kick[d].first_number = phase_queue_number(vm, d);
}

int phases_create(struct vm *vm, struct ioloop *loop)
{
	struct phases *phases = &vm->phases;

	phases->loop = loop;
	phases->queue_count = phase_queue_number(vm, vm->disk_count);
	phases->exits_bytes = ALIGN_UP(exit_stats_bytes(phases->queue_count), CACHE_LINE_BYTES);
	phases->io_bytes =
	        sizeof(struct phase_io) + phases->queue_count * sizeof(struct phase_queue);
	phases->max = 1;
	if (vm->config->control)
		phases->max = (unsigned)MIN(
		        RECORDS_BYTES_MAX / MAX(phases->exits_bytes, phases->io_bytes), PHASE_MAX);
	for (unsigned i = 0; i < vm->vcpu_count; i++) {
		struct vcpu *v = vm->vcpu[i];

		v->stats_first =
		        plat_mem_alloc(phases->max * phases->exits_bytes, CACHE_LINE_BYTES);
		if (!v->stats_first)
			return -ENOMEM;
		v->stats = (void *)v->stats_first;
	}
	phases->io = plat_mem_alloc((phases->max + 1) * phases->io_bytes, CACHE_LINE_BYTES);
	phases->sum_kick = plat_mem_alloc((phases->queue_count + 1) * sizeof(*phases->sum_kick),
	                                  CACHE_LINE_BYTES);
	if (!phases->io || !phases->sum_kick)
		return -ENOMEM;
	phases->sum_queue = io_at(vm, phases->max)->queue;
	kick_pages_number(vm);
	memcpy(phases->name[0], "start", sizeof("start"));
	phases->begin_tsc[0] = plat_tsc();
	atomic_store(&phases->count, 1);
	phases->letter.run = letter_open;
	if (vm->config->control)
		ioloop_letter_add(loop, &phases->letter);
	return 0;
}
