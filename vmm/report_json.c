#include "virtio/blk.h"
#include "vmm/fmt.h"
#include "vmm/report_impl.h"

/* --- writing ------------------------------------------------------------------------------------
 */

/* All guests have ended, so nobody else writes to the console: a line may go out in pieces. */
struct json {
	size_t len;
	char buf[4096];
};

#define PIECE_MAX 512u /* no json_add writes more at once */

static void json_flush(struct json *json)
{
	if (json->len)
		plat_console_write(json->buf, json->len);
	json->len = 0;
}

static void json_add(struct json *json, const char *fmt, ...) PRINTF(2, 3);

static void json_add(struct json *json, const char *fmt, ...)
{
	va_list args;
	int len;

	if (sizeof(json->buf) - json->len < PIECE_MAX)
		json_flush(json);
	va_start(args, fmt);
	len = fmt_vsnprintf(json->buf + json->len, PIECE_MAX, fmt, args);
	va_end(args);
	json->len += len < 0 ? 0 : MIN((size_t)len, PIECE_MAX - 1);
}

/* Manifest strings may hold any character but controls. */
static void json_string(struct json *json, const char *s)
{
	json_add(json, "\"");
	for (; *s; s++) {
		if (*s == '"' || *s == '\\')
			json_add(json, "\\%c", *s);
		else if ((unsigned char)*s < ' ')
			json_add(json, "\\u%04x", (unsigned)(unsigned char)*s);
		else
			json_add(json, "%c", *s);
	}
	json_add(json, "\"");
}

#define U(x)  ((unsigned long long)(x))
#define NS(x) U(report_ns(x))

/* --- what both lines share ---------------------------------------------------------------------
 */

static void json_time(struct json *json, const struct report_sum *sum)
{
	json_add(json,
	         "\"exit_count\":%llu,\"wall_ns\":%llu,\"guest_ns\":%llu,\"handling_ns\":%llu,"
	         "\"halted_ns\":%llu,\"rest_ns\":%llu",
	         U(sum->exit_count), NS(sum->exits.wall_tsc), NS(sum->exits.guest_tsc),
	         NS(sum->exits.handling_tsc), NS(sum->exits.halted_tsc), NS(sum->rest_tsc));
}

static void json_tally(struct json *json, const struct tally *t)
{
	const char *comma = "";

	json_add(json,
	         "{\"count\":%llu,\"total_ns\":%llu,\"min_ns\":%llu,\"max_ns\":%llu,\"mean_ns\":%"
	         "llu,"
	         "\"rse_e4\":%llu,\"log2_cycles\":{",
	         U(t->count), NS(t->total_tsc), NS(t->min_tsc), NS(t->max_tsc), NS(tally_mean(t)),
	         U(tally_rse(t)));
	for (unsigned b = 0; b < TALLY_BUCKETS; b++) {
		if (!t->bucket[b])
			continue;
		json_add(json, "%s\"%u\":%llu", comma, b, U(t->bucket[b]));
		comma = ",";
	}
	json_add(json, "}}");
}

enum exits_form { EXITS_BRIEF, EXITS_PLAIN, EXITS_FULL };

static void json_exits(struct json *json, const struct exit_stats *stats, enum exits_form form)
{
	const char *comma = "";

	json_add(json, ",\"exits\":{");
	for (unsigned r = 0; r < HVM_EXIT_COUNT; r++) {
		const struct tally *t = &stats->reason[r];

		if (!t->count)
			continue;
		json_add(json, "%s\"%s\":", comma, report_reason(r));
		comma = ",";
		if (form == EXITS_FULL)
			json_tally(json, t);
		else if (form == EXITS_PLAIN)
			json_add(
			        json,
			        "{\"count\":%llu,\"total_ns\":%llu,\"min_ns\":%llu,\"max_ns\":%llu,"
			        "\"rse_e4\":%llu}",
			        U(t->count), NS(t->total_tsc), NS(t->min_tsc), NS(t->max_tsc),
			        U(tally_rse(t)));
		else
			json_add(json, "{\"count\":%llu,\"total_ns\":%llu}", U(t->count),
			         NS(t->total_tsc));
	}
	json_add(json, "}");
}

static void json_queue(struct json *json, const struct phase_queue *q)
{
	json_add(json,
	         "\"requests\":%llu,\"read_bytes\":%llu,\"written_bytes\":%llu,\"errors\":%llu,"
	         "\"kicks\":%llu,\"interrupts\":%llu,\"interrupts_suppressed\":%llu,\"arms\":%llu,"
	         "\"disarms\":%llu,\"interrupts_deferred\":%llu",
	         U(q->counts.requests), U(q->counts.read_bytes), U(q->counts.written_bytes),
	         U(q->counts.errors), U(q->kicks), U(q->counts.interrupts),
	         U(q->counts.interrupts_suppressed), U(q->counts.arms), U(q->counts.disarms),
	         U(q->counts.interrupts_deferred));
}

/* disks[]: by queue; full: with the tallies of kicks and interrupts. */
static void json_disks(struct json *json, const struct vm *vm, const struct report_sum *sum,
                       bool full)
{
	unsigned number = 0;

	json_add(json, ",\"disks\":[");
	for (unsigned d = 0; d < vm->disk_count; d++) {
		json_add(json, "%s{\"source\":", d ? "," : "");
		json_string(json, vm->config->disk[d].source);
		json_add(json, ",\"queues\":[");
		for (unsigned i = 0; i < vm->disk[d]->queue_count && number < sum->queue_count;
		     i++, number++) {
			json_add(json, "%s{", i ? "," : "");
			json_queue(json, &sum->queue[number]);
			if (full) {
				json_add(json, ",\"kick\":");
				json_tally(json, &sum->kick[number]);
				json_add(json, ",\"interrupt\":");
				json_tally(json, &sum->queue[number].interrupt);
			}
			json_add(json, "}");
		}
		json_add(json, "]}");
	}
	json_add(json, "]");
}

static uint64_t phase_begin_ns(const struct vm *vm, unsigned phase)
{
	return report_ns(vm->phases.begin_tsc[phase] - vm->phases.begin_tsc[0]);
}

/* --- quell-stats
 * ---------------------------------------------------------------------------------- */

static void json_phase_brief(struct json *json, struct vm *vm, unsigned phase)
{
	const struct report_sum *sum = report_sum(vm, vm->vcpu_count, phase, phase);
	struct phase_queue all;

	memset(&all, 0, sizeof(all));
	for (unsigned q = 0; q < sum->queue_count; q++) {
		const struct ioq_counts *c = &sum->queue[q].counts;

		all.counts.requests += c->requests;
		all.counts.read_bytes += c->read_bytes;
		all.counts.written_bytes += c->written_bytes;
		all.counts.errors += c->errors;
		all.counts.interrupts += c->interrupts;
		all.counts.interrupts_suppressed += c->interrupts_suppressed;
		all.counts.interrupts_deferred += c->interrupts_deferred;
		all.counts.arms += c->arms;
		all.counts.disarms += c->disarms;
		all.kicks += sum->queue[q].kicks;
	}
	json_add(json, "%s{\"name\":\"%s\",\"begin_ns\":%llu,", phase ? "," : "",
	         vm->phases.name[phase], U(phase_begin_ns(vm, phase)));
	json_time(json, sum);
	json_add(json, ",");
	json_queue(json, &all);
	json_exits(json, &sum->exits, EXITS_BRIEF);
	json_add(json, "}");
}

static void json_guest(struct json *json, struct vm *vm)
{
	unsigned phases = report_phases(vm);
	const struct report_sum *sum = report_sum(vm, vm->vcpu_count, 0, phases - 1);

	json_add(json, "{\"name\":");
	json_string(json, vm->name);
	json_add(json, ",\"ended\":\"%s\",\"vcpus\":%u,",
	         vm_end_name((enum vm_end)atomic_load(&vm->end)), vm->vcpu_count);
	json_time(json, sum);
	json_exits(json, &sum->exits, EXITS_PLAIN);
	json_disks(json, vm, sum, false);
	json_add(json, ",\"phases\":[");
	for (unsigned p = 0; p < phases; p++)
		json_phase_brief(json, vm, p);
	json_add(json, "]}");
}

static void json_loop_queues(struct json *json, const struct ioloop *loop)
{
	uint64_t state[IOQ_DRAINING + 1] = {0}, arms = 0, disarms = 0, sent = 0, suppressed = 0;

	for (uint32_t i = 0; i < loop->queue_count; i++) {
		const struct ioq *q = loop->queue[i];

		state[q->state]++;
		arms += q->counts.arms;
		disarms += q->counts.disarms;
		sent += q->counts.interrupts;
		suppressed += q->counts.interrupts_suppressed;
	}
	json_add(json,
	         ",\"queues\":%u,\"hot\":%llu,\"cold\":%llu,\"armed\":%llu,\"arms\":%llu,"
	         "\"disarms\":%llu,\"interrupts\":%llu,\"interrupts_suppressed\":%llu",
	         loop->queue_count, U(state[IOQ_HOT]), U(state[IOQ_COLD]), U(state[IOQ_ARMED]),
	         U(arms), U(disarms), U(sent), U(suppressed));
}

static void json_loop(struct json *json, const struct ioloop *loop)
{
	const struct ioloop_counts *c = &loop->counts;
	uint64_t doorbells = 0;

	for (unsigned i = 0; i < loop->dev_count; i++)
		doorbells += loop->dev[i]->doorbells;
	json_add(json,
	         "\"ioloop\":{\"core\":%u,\"passes\":%llu,\"empty_passes\":%llu,\"sleeps\":%llu,"
	         "\"wakes\":%llu,\"kick_wakes\":%llu,\"sleep_ns\":%llu,\"last_look_hits\":%llu,"
	         "\"promotions\":%llu,"
	         "\"demotions\":%llu,\"commits\":%llu,\"doorbells\":%llu",
	         loop->core, U(c->passes), U(c->empty_passes), U(c->sleeps), U(c->wakes),
	         U(c->kick_wakes), NS(c->sleep_tsc), U(c->last_look_hits), U(c->promotions),
	         U(c->demotions), U(c->commits), U(doorbells));
	json_loop_queues(json, loop);
	json_add(json, "},\"devices\":[");
	for (unsigned i = 0; i < loop->dev_count; i++) {
		const struct bio_dev *dev = loop->dev[i];

		json_add(json,
		         "%s{\"name\":\"%s\",\"commands\":%llu,\"completions\":%llu,"
		         "\"doorbells\":%llu,\"errors\":%llu}",
		         i ? "," : "", dev->name, U(dev->commands), U(dev->completions),
		         U(dev->doorbells), U(dev->errors));
	}
	json_add(json, "]");
}

/* --- quell-phase
 * ----------------------------------------------------------------------------------- */

static void json_phase_loop(struct json *json, struct vm *vm, unsigned phase)
{
	struct ioloop_counts c;
	uint64_t doorbells;

	phase_loop_get(vm, phase, &c, &doorbells);
	json_add(
	        json,
	        ",\"ioloop\":{\"passes\":%llu,\"empty_passes\":%llu,\"sleeps\":%llu,\"wakes\":%llu,"
	        "\"kick_wakes\":%llu,\"sleep_ns\":%llu,\"last_look_hits\":%llu,\"promotions\":%llu,"
	        "\"demotions\":%llu,"
	        "\"commits\":%llu,\"doorbells\":%llu}",
	        U(c.passes), U(c.empty_passes), U(c.sleeps), U(c.wakes), U(c.kick_wakes),
	        NS(c.sleep_tsc), U(c.last_look_hits), U(c.promotions), U(c.demotions), U(c.commits),
	        U(doorbells));
}

static void json_phase(struct json *json, struct vm *vm, unsigned phase)
{
	const struct report_sum *sum;

	json_add(json, "quell-phase: {\"guest\":");
	json_string(json, vm->name);
	json_add(json, ",\"phase\":%u,\"name\":\"%s\",\"begin_ns\":%llu,\"vcpus\":[", phase,
	         vm->phases.name[phase], U(phase_begin_ns(vm, phase)));
	for (unsigned i = 0; i < vm->vcpu_count; i++) {
		sum = report_sum(vm, i, phase, phase);
		json_add(json, "%s{", i ? "," : "");
		json_time(json, sum);
		json_exits(json, &sum->exits, EXITS_PLAIN);
		json_add(json, "}");
	}
	json_add(json, "],");
	sum = report_sum(vm, vm->vcpu_count, phase, phase);
	json_time(json, sum);
	json_exits(json, &sum->exits, EXITS_FULL);
	json_disks(json, vm, sum, true);
	json_phase_loop(json, vm, phase);
	json_add(json, "}\r\n");
}

void report_json_print(const struct report *report)
{
	static struct json json;

	for (unsigned i = 0; i < report->vm_count; i++)
		for (unsigned p = 0; p < report_phases(report->vms[i]); p++)
			json_phase(&json, report->vms[i], p);
	json_add(&json,
	         "quell-stats: {\"machine\":\"%s\",\"accelerator\":\"%s\",\"backend\":\"%s\","
	         "\"tsc_hz\":%llu,\"uptime_ns\":%llu,",
	         report_machine(), report_accelerator(), hvm->name, U(plat_tsc_hz()),
	         NS(report->uptime_tsc));
	json_loop(&json, report->loop);
	json_add(&json, ",\"guests\":[");
	for (unsigned i = 0; i < report->vm_count; i++) {
		json_add(&json, "%s", i ? "," : "");
		json_guest(&json, report->vms[i]);
	}
	json_add(&json, "]}\r\n");
	json_flush(&json);
}
