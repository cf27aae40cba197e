#include "vmm/report.h"

#include "virtio/blk.h"
#include "vmm/fmt.h"
#include "vmm/report_impl.h"

/* --- which machine ------------------------------------------------------------------------- */

/* Bochs answers at its debug port with the port's number, and gives no hypervisor leaf. */
#define BOCHS_DEBUG_PORT 0xe9

static bool hypervisor_signature(char out[13])
{
	uint32_t r[4];

	plat_cpuid(1, 0, r);
	if (!(r[2] & BIT(31)))
		return false;
	plat_cpuid(0x40000000, 0, r);
	memcpy(out, &r[1], 12);
	out[12] = 0;
	for (unsigned i = 0; out[i]; i++)
		if (out[i] < ' ' || out[i] > '~' || out[i] == '"' || out[i] == '\\')
			out[i] = '?';
	return true;
}

const char *report_machine(void)
{
	static char signature[13];

	if (hypervisor_signature(signature)) {
		if (!strcmp(signature, "TCGTCGTCGTCG") || !strcmp(signature, "KVMKVMKVM"))
			return "qemu";
		return signature;
	}
	return plat_io_read(BOCHS_DEBUG_PORT, 1) == BOCHS_DEBUG_PORT ? "bochs" : "bare";
}

const char *report_accelerator(void)
{
	char signature[13];

	if (hypervisor_signature(signature))
		return !strcmp(signature, "TCGTCGTCGTCG") ? "tcg"
		       : !strcmp(signature, "KVMKVMKVM")  ? "kvm"
		                                          : "other";
	return plat_io_read(BOCHS_DEBUG_PORT, 1) == BOCHS_DEBUG_PORT ? "emulator" : "none";
}

/* --- sums ----------------------------------------------------------------------------------- */

uint64_t report_ns(uint64_t tsc)
{
	return (uint64_t)tally_div((unsigned __int128)tsc * 1000000000u, plat_tsc_hz());
}

uint64_t report_ratio(uint64_t part, uint64_t whole)
{
	return whole ? (uint64_t)tally_div((unsigned __int128)part * 10000u, whole) : 0;
}

const char *report_reason(unsigned reason)
{
	return hvm->exit_name[reason] ? hvm->exit_name[reason] : "OTHER";
}

unsigned report_phases(struct vm *vm)
{
	return atomic_load(&vm->phases.count);
}

static void queue_sum(struct phase_queue *dst, const struct phase_queue *src)
{
	const uint64_t *from = (const uint64_t *)&src->counts;
	uint64_t *to = (uint64_t *)&dst->counts;

	for (size_t i = 0; i < sizeof(dst->counts) / sizeof(uint64_t); i++)
		to[i] += from[i];
	dst->kicks += src->kicks;
	tally_merge(&dst->interrupt, &src->interrupt);
}

static void phase_sum(struct report_sum *sum, struct vm *vm, unsigned vcpu, unsigned phase)
{
	for (unsigned i = 0; i < vm->vcpu_count; i++)
		if (vcpu == vm->vcpu_count || vcpu == i)
			exit_stats_merge(&sum->exits, sum->kick, phase_exits(vm->vcpu[i], phase),
			                 sum->queue_count);
	for (unsigned q = 0; q < sum->queue_count; q++) {
		static struct phase_queue one;

		phase_queue_get(vm, phase, q, &one);
		queue_sum(&sum->queue[q], &one);
	}
}

struct report_sum *report_sum(struct vm *vm, unsigned vcpu, unsigned first, unsigned last)
{
	static struct report_sum sum;
	uint64_t used_tsc;

	memset(&sum.exits, 0, sizeof(sum.exits));
	sum.queue_count = vm->phases.queue_count;
	sum.kick = vm->phases.sum_kick;
	sum.queue = vm->phases.sum_queue;
	memset(sum.kick, 0, sum.queue_count * sizeof(*sum.kick));
	memset(sum.queue, 0, sum.queue_count * sizeof(*sum.queue));
	for (unsigned phase = first; phase <= last; phase++)
		phase_sum(&sum, vm, vcpu, phase);
	sum.exit_count = exit_stats_count(&sum.exits, &sum.exit_tsc);
	used_tsc = sum.exits.guest_tsc + sum.exits.handling_tsc + sum.exits.halted_tsc;
	sum.rest_tsc = sum.exits.wall_tsc > used_tsc ? sum.exits.wall_tsc - used_tsc : 0;
	return &sum;
}

/* --- tables, in the columns of perf kvm stat ---------------------------------------------------
 */

#define U(x) ((unsigned long long)(x))
/* 1/10000 as a percentage and ns as us, both with two decimals. */
#define PCT(x) U((x) / 100), U((x) % 100)
#define US(x)  U((x) / 1000), U((x) % 1000 / 10)

static void row_print(const char *name, const struct tally *t, uint64_t samples, uint64_t total_tsc)
{
	plat_log("  %-20s %10llu %5llu.%02llu%% %4llu.%02llu%% %7llu.%02lluus %7llu.%02lluus"
	         " %7llu.%02lluus ( +- %3llu.%02llu%% )",
	         name, U(t->count), PCT(report_ratio(t->count, samples)),
	         PCT(report_ratio(t->total_tsc, total_tsc)), US(report_ns(t->min_tsc)),
	         US(report_ns(t->max_tsc)), US(report_ns(tally_mean(t))), PCT(tally_rse(t)));
}

/* Reasons in order of their total time. */
static unsigned reasons_sort(const struct exit_stats *stats, unsigned order[HVM_EXIT_COUNT])
{
	unsigned count = 0;

	for (unsigned r = 0; r < HVM_EXIT_COUNT; r++) {
		unsigned at = count;

		if (!stats->reason[r].count)
			continue;
		while (at > 0 &&
		       stats->reason[order[at - 1]].total_tsc < stats->reason[r].total_tsc) {
			order[at] = order[at - 1];
			at--;
		}
		order[at] = r;
		count++;
	}
	return count;
}

static void header_print(const char *what)
{
	plat_log("  %-20s %10s %9s %8s %12s %12s %12s", what, "Samples", "Samples%", "Time%",
	         "Min Time", "Max Time", "Avg time");
}

static void exits_print(const struct report_sum *sum)
{
	unsigned order[HVM_EXIT_COUNT], count = reasons_sort(&sum->exits, order);

	header_print("VM-EXIT");
	for (unsigned i = 0; i < count; i++)
		row_print(report_reason(order[i]), &sum->exits.reason[order[i]], sum->exit_count,
		          sum->exit_tsc);
}

/* Kicks (handling on the vCPU's core) or interrupts (sending on the I/O core) by disk and queue. */
static void by_queue_print(const struct vm *vm, const struct report_sum *sum, const char *what,
                           bool kicks)
{
	struct tally all;
	unsigned number = 0;

	memset(&all, 0, sizeof(all));
	for (unsigned q = 0; q < sum->queue_count; q++)
		tally_merge(&all, kicks ? &sum->kick[q] : &sum->queue[q].interrupt);
	if (!all.count)
		return;
	header_print(what);
	for (unsigned d = 0; d < vm->disk_count; d++) {
		for (unsigned i = 0; i < vm->disk[d]->queue_count; i++, number++) {
			const struct tally *t =
			        kicks ? &sum->kick[number] : &sum->queue[number].interrupt;
			char name[24];

			if (!t->count)
				continue;
			fmt_snprintf(name, sizeof(name), "disk %u queue %u", d, i);
			row_print(name, t, all.count, all.total_tsc);
		}
	}
}

static void queues_print(const struct vm *vm, const struct report_sum *sum)
{
	unsigned number = 0;

	if (!sum->queue_count)
		return;
	plat_log("  %-12s %5s %10s %14s %14s %8s %10s %10s %8s", "disk", "queue", "requests",
	         "read bytes", "written bytes", "kicks", "interrupts", "suppressed", "errors");
	for (unsigned d = 0; d < vm->disk_count; d++) {
		for (unsigned i = 0; i < vm->disk[d]->queue_count; i++, number++) {
			const struct phase_queue *q = &sum->queue[number];

			plat_log("  %-12s %5u %10llu %14llu %14llu %8llu %10llu %10llu %8llu",
			         vm->config->disk[d].source, i, U(q->counts.requests),
			         U(q->counts.read_bytes), U(q->counts.written_bytes), U(q->kicks),
			         U(q->counts.interrupts), U(q->counts.interrupts_suppressed),
			         U(q->counts.errors));
		}
	}
}

/* One heading and the tables below it. */
static void sum_print(const struct vm *vm, const struct report_sum *sum, const char *what)
{
	uint64_t wall_tsc = sum->exits.wall_tsc;

	plat_log("guest %s%s: %llu exits in %llu.%03llu s; time in guest %llu.%02llu%%, in exits "
	         "%llu.%02llu%%, halted %llu.%02llu%%, rest %llu.%02llu%%; %s on %s (%s)",
	         vm->name, what, U(sum->exit_count), U(report_ns(wall_tsc) / 1000000000u),
	         U(report_ns(wall_tsc) / 1000000u % 1000u),
	         PCT(report_ratio(sum->exits.guest_tsc, wall_tsc)),
	         PCT(report_ratio(sum->exits.handling_tsc, wall_tsc)),
	         PCT(report_ratio(sum->exits.halted_tsc, wall_tsc)),
	         PCT(report_ratio(sum->rest_tsc, wall_tsc)), hvm->name, report_machine(),
	         report_accelerator());
	exits_print(sum);
	by_queue_print(vm, sum, "KICK", true);
	by_queue_print(vm, sum, "INTERRUPT SENT", false);
	queues_print(vm, sum);
}

static void guest_print(struct vm *vm)
{
	unsigned phases = report_phases(vm);
	char what[PHASE_NAME_BYTES + 24];

	for (unsigned p = 0; phases > 1 && p < phases; p++) {
		fmt_snprintf(what, sizeof(what), ", phase %u %s", p, vm->phases.name[p]);
		sum_print(vm, report_sum(vm, vm->vcpu_count, p, p), what);
	}
	for (unsigned i = 0; vm->vcpu_count > 1 && i < vm->vcpu_count; i++) {
		const struct report_sum *sum = report_sum(vm, i, 0, phases - 1);

		plat_log("guest %s, vCPU %u: %llu exits; time in guest %llu.%02llu%%, in exits "
		         "%llu.%02llu%%, halted %llu.%02llu%%",
		         vm->name, i, U(sum->exit_count),
		         PCT(report_ratio(sum->exits.guest_tsc, sum->exits.wall_tsc)),
		         PCT(report_ratio(sum->exits.handling_tsc, sum->exits.wall_tsc)),
		         PCT(report_ratio(sum->exits.halted_tsc, sum->exits.wall_tsc)));
	}
	sum_print(vm, report_sum(vm, vm->vcpu_count, 0, phases - 1), "");
}

static void loop_print(const struct report *report)
{
	const struct ioloop_counts *c = &report->loop->counts;

	plat_log("I/O core %u: %llu passes (%llu empty), %llu sleeps, %llu last looks that found "
	         "work, "
	         "%llu promotions, %llu demotions",
	         report->loop->core, U(c->passes), U(c->empty_passes), U(c->sleeps),
	         U(c->last_look_hits), U(c->promotions), U(c->demotions));
	for (unsigned i = 0; i < report->loop->dev_count; i++) {
		const struct bio_dev *dev = report->loop->dev[i];

		plat_log("  %-12s %10llu commands %10llu completions %10llu doorbells %6llu errors",
		         dev->name, U(dev->commands), U(dev->completions), U(dev->doorbells),
		         U(dev->errors));
	}
}

void report_print(const struct report *report)
{
	for (unsigned i = 0; i < report->vm_count; i++)
		guest_print(report->vms[i]);
	loop_print(report);
	report_json_print(report);
}
