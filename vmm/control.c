#include "vmm/control.h"

#include "virtio/blk.h"
#include "vmm/vm.h"

_Static_assert(QUELL_POLL_AUTO == IOQ_POLL_AUTO && QUELL_POLL_ALWAYS == IOQ_POLL_ALWAYS,
               "policies are passed on as they are");
_Static_assert(QUELL_QUEUE_DETACHED == (int)IOQ_UNATTACHED && QUELL_QUEUE_ARMED == (int)IOQ_ARMED &&
                       QUELL_QUEUE_COLD == (int)IOQ_COLD && QUELL_QUEUE_HOT == (int)IOQ_HOT &&
                       QUELL_QUEUE_DRAINING == (int)IOQ_DRAINING,
               "states are passed on as they are");

/* A call's registers: arguments come in the first four, results go out in all. */
struct call {
	struct vcpu *v;
	struct vm *vm;
	uint64_t r[6];
};

#define ARG_COUNT 4u

static const uint8_t reg_of[6] = {HVM_RBX, HVM_RCX, HVM_RDX, HVM_RSI, HVM_RDI, HVM_R8};

/* --- looking things up: every number is the guest's ----------------------------------------------
 */

static struct vblk_queue *queue_find(const struct vm *vm, uint64_t disk, uint64_t queue)
{
	if (disk >= vm->disk_count || queue >= vm->disk[disk]->queue_count)
		return NULL;
	return &vm->disk[disk]->queue[queue];
}

static bool phase_exists(struct vm *vm, uint64_t phase)
{
	return phase < atomic_load_explicit(&vm->phases.count, memory_order_acquire);
}

/* The record of a phase that the vCPU has reached, or NULL. */
static const struct exit_stats *exits_find(struct vm *vm, uint64_t vcpu, uint64_t phase)
{
	if (vcpu >= vm->vcpu_count || !phase_exists(vm, phase))
		return NULL;
	return phase_exits(vm->vcpu[vcpu], (unsigned)phase);
}

/* Another core may be writing. */
static uint64_t peek(const uint64_t *word)
{
	return *(const volatile uint64_t *)word;
}

static void tally_put(struct call *c, const struct tally *t)
{
	c->r[0] = peek(&t->count);
	c->r[1] = peek(&t->total_tsc);
	c->r[2] = peek(&t->min_tsc);
	c->r[3] = peek(&t->max_tsc);
	memcpy(&c->r[4], &t->square_tsc, 16);
}

/* --- operations: 0 with results in r, or a negative error ----------------------------------------
 */

static int op_version(struct call *c)
{
	c->r[0] = QUELL_ABI_VERSION;
	return 0;
}

static bool policy_is_valid(uint64_t policy)
{
	return policy <= QUELL_POLL_NS_MAX || policy == QUELL_POLL_AUTO ||
	       policy == QUELL_POLL_ALWAYS;
}

/* Changes the disk's queues that are meant; returns how many. */
static unsigned disk_poll_set(struct vblk *blk, uint64_t queue, uint64_t policy)
{
	unsigned count = 0;

	for (unsigned i = 0; i < blk->queue_count; i++) {
		if (queue != QUELL_ALL && queue != i)
			continue;
		ioloop_poll_set(&blk->queue[i].ioq, policy);
		count++;
	}
	return count;
}

static int op_poll_set(struct call *c)
{
	uint64_t disk = c->r[0], queue = c->r[1], policy = c->r[2];
	unsigned count = 0;

	if (!policy_is_valid(policy))
		return -QUELL_ERANGE;
	for (unsigned d = 0; d < c->vm->disk_count; d++)
		if (disk == QUELL_ALL || disk == d)
			count += disk_poll_set(c->vm->disk[d], queue, policy);
	if (count == 0)
		return -QUELL_ENOENT;
	c->r[0] = count;
	return 0;
}

static int op_poll_get(struct call *c)
{
	struct vblk_queue *q = queue_find(c->vm, c->r[0], c->r[1]);

	if (!q)
		return -QUELL_ENOENT;
	c->r[0] = atomic_load_explicit(&q->ioq.want_poll_ns, memory_order_relaxed);
	c->r[1] = atomic_load_explicit(&q->ioq.is_poll_ns, memory_order_acquire);
	return 0;
}

/* Printable, and good in JSON, CSV and a shell without quotes. */
static bool name_is_valid(const char name[PHASE_NAME_BYTES])
{
	unsigned len = 0;

	while (len < PHASE_NAME_BYTES && name[len]) {
		char c = name[len++];

		if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		      c == '-' || c == '_' || c == '.' || c == ':' || c == '=' || c == '+' ||
		      c == '/' || c == '@' || c == '%'))
			return false;
	}
	return len > 0 && len < PHASE_NAME_BYTES;
}

static int op_mark(struct call *c)
{
	char name[PHASE_NAME_BYTES];
	int phase;

	_Static_assert(sizeof(name) == ARG_COUNT * sizeof(uint64_t), "a name fits the arguments");
	memcpy(name, c->r, sizeof(name));
	if (!name_is_valid(name))
		return -QUELL_EINVAL;
	phase = phase_mark(c->vm, name);
	if (phase < 0)
		return -QUELL_ENOSPC;
	c->r[0] = (uint64_t)phase;
	return 0;
}

static int op_phase(struct call *c)
{
	uint64_t phase = c->r[0];

	if (!phase_exists(c->vm, phase))
		return -QUELL_ENOENT;
	memcpy(c->r, c->vm->phases.name[phase], PHASE_NAME_BYTES);
	c->r[4] = c->vm->phases.begin_tsc[phase];
	c->r[5] = phase_settled(c->vm);
	return 0;
}

static int op_guest(struct call *c)
{
	c->r[0] = c->vm->vcpu_count;
	c->r[1] = c->vm->disk_count;
	c->r[2] = atomic_load_explicit(&c->vm->phases.count, memory_order_acquire);
	c->r[3] = HVM_EXIT_COUNT;
	c->r[4] = plat_tsc_hz();
	c->r[5] = c->vm->phases.max;
	return 0;
}

static int op_time(struct call *c)
{
	const struct exit_stats *s = exits_find(c->vm, c->r[0], c->r[1]);

	if (!s)
		return -QUELL_ENOENT;
	c->r[0] = peek(&s->guest_tsc);
	c->r[1] = peek(&s->handling_tsc);
	c->r[2] = peek(&s->halted_tsc);
	c->r[3] = peek(&s->wall_tsc);
	c->r[4] = peek(&s->start_tsc);
	c->r[5] = plat_tsc();
	return 0;
}

static int op_reason(struct call *c)
{
	const char *name;

	if (c->r[0] >= HVM_EXIT_COUNT)
		return -QUELL_ENOENT;
	name = hvm->exit_name[c->r[0]] ? hvm->exit_name[c->r[0]] : "OTHER";
	memset(c->r, 0, sizeof(c->r));
	memcpy(c->r, name, MIN(strlen(name), sizeof(c->r) - 1));
	return 0;
}

static int op_exit(struct call *c)
{
	const struct exit_stats *s = exits_find(c->vm, c->r[1], c->r[2]);

	if (!s || c->r[0] >= HVM_EXIT_COUNT)
		return -QUELL_ENOENT;
	tally_put(c, &s->reason[c->r[0]]);
	return 0;
}

static int op_kick(struct call *c)
{
	const struct exit_stats *s = exits_find(c->vm, c->r[2], c->r[3]);

	if (!s || !queue_find(c->vm, c->r[0], c->r[1]))
		return -QUELL_ENOENT;
	tally_put(c, &s->kick[phase_queue_number(c->vm, (unsigned)c->r[0]) + c->r[1]]);
	return 0;
}

/* Fills out for the disk, queue and phase in the arguments. */
static int phase_queue_find(struct call *c, struct phase_queue *out)
{
	if (!queue_find(c->vm, c->r[0], c->r[1]) || !phase_exists(c->vm, c->r[2]))
		return -QUELL_ENOENT;
	phase_queue_get(c->vm, (unsigned)c->r[2],
	                phase_queue_number(c->vm, (unsigned)c->r[0]) + (unsigned)c->r[1], out);
	return 0;
}

static int op_queue(struct call *c)
{
	struct phase_queue q;
	int error = phase_queue_find(c, &q);

	if (error)
		return error;
	c->r[0] = q.counts.requests;
	c->r[1] = q.kicks;
	c->r[2] = q.counts.interrupts;
	c->r[3] = q.counts.interrupts_suppressed;
	c->r[4] = q.counts.arms;
	c->r[5] = q.counts.disarms;
	return 0;
}

static int op_bytes(struct call *c)
{
	const struct vblk_queue *now = queue_find(c->vm, c->r[0], c->r[1]);
	struct phase_queue q;
	int error = phase_queue_find(c, &q);

	if (error)
		return error;
	c->r[0] = q.counts.read_bytes;
	c->r[1] = q.counts.written_bytes;
	c->r[2] = q.counts.errors;
	c->r[3] = (uint64_t) * (const volatile enum ioq_state *)&now->ioq.state;
	c->r[4] = c->r[5] = 0;
	return 0;
}

static int op_irq(struct call *c)
{
	struct phase_queue q;
	int error = phase_queue_find(c, &q);

	if (!error)
		tally_put(c, &q.interrupt);
	return error;
}

static int op_loop(struct call *c)
{
	struct ioloop_counts counts;
	uint64_t doorbells;

	if (!phase_exists(c->vm, c->r[0]))
		return -QUELL_ENOENT;
	phase_loop_get(c->vm, (unsigned)c->r[0], &counts, &doorbells);
	c->r[0] = counts.passes;
	c->r[1] = counts.empty_passes;
	c->r[2] = counts.sleeps;
	c->r[3] = counts.wakes;
	c->r[4] = doorbells;
	c->r[5] = counts.sleep_tsc;
	return 0;
}

static int (*const operation[QUELL_OP_COUNT])(struct call *c) = {
        [QUELL_VERSION] = op_version,   [QUELL_POLL_SET] = op_poll_set,
        [QUELL_POLL_GET] = op_poll_get, [QUELL_MARK] = op_mark,
        [QUELL_PHASE] = op_phase,       [QUELL_GUEST] = op_guest,
        [QUELL_TIME] = op_time,         [QUELL_REASON] = op_reason,
        [QUELL_EXIT] = op_exit,         [QUELL_KICK] = op_kick,
        [QUELL_QUEUE] = op_queue,       [QUELL_BYTES] = op_bytes,
        [QUELL_IRQ] = op_irq,           [QUELL_LOOP] = op_loop,
};

/* --- the call ------------------------------------------------------------------------------------
 */

static int call_serve(struct call *c, uint64_t number)
{
	uint64_t op = number - QUELL_CALL(0);

	if (op >= QUELL_OP_COUNT)
		return -QUELL_ENOSYS;
	if (!c->vm->config->control)
		return -QUELL_EPERM;
	return operation[op](c);
}

void control_call(struct vcpu *v)
{
	struct call c = {.v = v, .vm = v->vm};
	uint64_t *gpr = v->hv.gpr;
	int error;

	for (unsigned i = 0; i < ARG_COUNT; i++)
		c.r[i] = gpr[reg_of[i]];
	error = call_serve(&c, gpr[HVM_RAX]);
	gpr[HVM_RAX] = (uint64_t)(int64_t)error;
	if (error)
		return;
	for (unsigned i = 0; i < ARRAY_LEN(reg_of); i++)
		gpr[reg_of[i]] = c.r[i];
}

void control_cpuid(const struct vcpu *v, uint32_t leaf, uint32_t out[4])
{
	memset(out, 0, 4 * sizeof(out[0]));
	if (leaf == QUELL_CPUID) {
		out[0] = QUELL_CPUID_FEATURES;
		memcpy(&out[1], QUELL_CPUID_SIGNATURE, 12);
	} else if (leaf == QUELL_CPUID_FEATURES) {
		out[0] = QUELL_ABI_VERSION;
		if (v->vm->config->control)
			out[1] |= QUELL_FLAG_CONTROL;
		if (!strcmp(hvm->name, "svm"))
			out[1] |= QUELL_FLAG_VMMCALL;
	}
}
