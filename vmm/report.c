#include "vmm/report.h"

#include "virtio/blk.h"
#include "vmm/fmt.h"

#define JSON_MAX 65536u

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

/* --- arithmetic without floating point or 128-bit divide ------------------------------------- */

static unsigned __int128 div128(unsigned __int128 n, uint64_t d)
{
	unsigned __int128 quotient = 0, rest = 0;

	for (int bit = 127; bit >= 0; bit--) {
		rest = rest << 1 | ((n >> bit) & 1);
		if (rest >= d) {
			rest -= d;
			quotient |= (unsigned __int128)1 << bit;
		}
	}
	return quotient;
}

static uint64_t sqrt128(unsigned __int128 n)
{
	uint64_t root = 0;

	for (int bit = 63; bit >= 0; bit--) {
		uint64_t trial = root | BIT(bit);

		if ((unsigned __int128)trial * trial <= n)
			root = trial;
	}
	return root;
}

/* part / whole in 1/10000, whole zero gives zero. */
static uint64_t ratio_e4(uint64_t part, uint64_t whole)
{
	return whole ? (uint64_t)div128((unsigned __int128)part * 10000u, whole) : 0;
}

uint64_t report_rse(const struct exit_stat *stat)
{
	uint64_t mean;
	unsigned __int128 mean_square, square;

	if (stat->count < 2)
		return 0;
	mean = stat->total_tsc / stat->count;
	mean_square = (unsigned __int128)mean * mean;
	square = div128(stat->square_tsc, stat->count);
	if (square <= mean_square || !mean)
		return 0;
	return ratio_e4(sqrt128(div128(square - mean_square, stat->count - 1)), mean);
}

static uint64_t tsc_to_ns(uint64_t tsc)
{
	return (uint64_t)div128((unsigned __int128)tsc * 1000000000u, plat_tsc_hz());
}

/* --- tables ------------------------------------------------------------------------------------- */

/* Reasons in order of their total time. */
static unsigned reasons_sort(const struct exit_stats *stats, unsigned order[HVM_EXIT_COUNT])
{
	unsigned count = 0;

	for (unsigned r = 0; r < HVM_EXIT_COUNT; r++) {
		unsigned at = count;

		if (!stats->reason[r].count)
			continue;
		while (at > 0 && stats->reason[order[at - 1]].total_tsc < stats->reason[r].total_tsc) {
			order[at] = order[at - 1];
			at--;
		}
		order[at] = r;
		count++;
	}
	return count;
}

static const char *reason_name(unsigned reason)
{
	return hvm->exit_name[reason] ? hvm->exit_name[reason] : "OTHER";
}

static void exits_print(const struct exit_stats *stats, uint64_t samples, uint64_t total_tsc)
{
	unsigned order[HVM_EXIT_COUNT], count = reasons_sort(stats, order);

	plat_log("  %-20s %10s %9s %8s %12s %12s %12s", "VM-EXIT", "Samples", "Samples%", "Time%",
	         "Min Time", "Max Time", "Avg time");
	for (unsigned i = 0; i < count; i++) {
		const struct exit_stat *s = &stats->reason[order[i]];
		uint64_t share = ratio_e4(s->count, samples), time = ratio_e4(s->total_tsc, total_tsc);
		uint64_t avg = tsc_to_ns(s->total_tsc / s->count), rse = report_rse(s);
		uint64_t min = tsc_to_ns(s->min_tsc), max = tsc_to_ns(s->max_tsc);

		plat_log("  %-20s %10llu %5llu.%02llu%% %4llu.%02llu%% %7llu.%02lluus %7llu.%02lluus"
		         " %7llu.%02lluus ( +- %3llu.%02llu%% )",
		         reason_name(order[i]), (unsigned long long)s->count,
		         (unsigned long long)(share / 100), (unsigned long long)(share % 100),
		         (unsigned long long)(time / 100), (unsigned long long)(time % 100),
		         (unsigned long long)(min / 1000), (unsigned long long)(min % 1000 / 10),
		         (unsigned long long)(max / 1000), (unsigned long long)(max % 1000 / 10),
		         (unsigned long long)(avg / 1000), (unsigned long long)(avg % 1000 / 10),
		         (unsigned long long)(rse / 100), (unsigned long long)(rse % 100));
	}
}

static void totals_get(const struct vm *vm, struct exit_stats *sum, uint64_t *samples,
                       uint64_t *total_tsc)
{
	memset(sum, 0, sizeof(*sum));
	*samples = *total_tsc = 0;
	for (unsigned i = 0; i < vm->vcpu_count; i++)
		exit_stats_merge(sum, &vm->vcpu[i]->stats);
	for (unsigned r = 0; r < HVM_EXIT_COUNT; r++) {
		*samples += sum->reason[r].count;
		*total_tsc += sum->reason[r].total_tsc;
	}
}

static void guest_print(const struct vm *vm)
{
	static struct exit_stats sum;
	uint64_t samples, total_tsc;
	unsigned long long in_guest, handling, halted;

	totals_get(vm, &sum, &samples, &total_tsc);
	in_guest = ratio_e4(sum.guest_tsc, sum.wall_tsc);
	handling = ratio_e4(sum.handling_tsc, sum.wall_tsc);
	halted = ratio_e4(sum.halted_tsc, sum.wall_tsc);
	plat_log("guest %s: %llu exits; time in guest %llu.%02llu%%, in exits %llu.%02llu%%, halted "
	         "%llu.%02llu%%; %s on %s (%s)",
	         vm->name, (unsigned long long)samples, in_guest / 100, in_guest % 100, handling / 100,
	         handling % 100, halted / 100, halted % 100, hvm->name, report_machine(),
	         report_accelerator());
	exits_print(&sum, samples, total_tsc);
}

static void queues_print(const struct vm *vm)
{
	if (!vm->disk_count)
		return;
	plat_log("  %-12s %5s %10s %14s %14s %8s %10s %10s %8s", "disk", "queue", "requests",
	         "read bytes", "written bytes", "kicks", "interrupts", "suppressed", "errors");
	for (unsigned d = 0; d < vm->disk_count; d++) {
		struct vblk *blk = vm->disk[d];

		for (unsigned i = 0; i < blk->queue_count; i++) {
			const struct ioq *q = &blk->queue[i].ioq;

			plat_log("  %-12s %5u %10llu %14llu %14llu %8llu %10llu %10llu %8llu",
			         vm->config->disk[d].source, i, (unsigned long long)q->counts.requests,
			         (unsigned long long)q->counts.read_bytes,
			         (unsigned long long)q->counts.written_bytes,
			         (unsigned long long)atomic_load(&q->kicks),
			         (unsigned long long)q->counts.interrupts,
			         (unsigned long long)q->counts.interrupts_suppressed,
			         (unsigned long long)q->counts.errors);
		}
	}
}

static void loop_print(const struct report *report)
{
	const struct ioloop_counts *c = &report->loop->counts;

	plat_log("I/O core %u: %llu passes (%llu empty), %llu sleeps, %llu last looks that found work, "
	         "%llu promotions, %llu demotions",
	         report->loop->core, (unsigned long long)c->passes,
	         (unsigned long long)c->empty_passes, (unsigned long long)c->sleeps,
	         (unsigned long long)c->last_look_hits, (unsigned long long)c->promotions,
	         (unsigned long long)c->demotions);
	for (unsigned i = 0; i < report->loop->dev_count; i++) {
		const struct bio_dev *dev = report->loop->dev[i];

		plat_log("  %-12s %10llu commands %10llu completions %10llu doorbells %6llu errors",
		         dev->name, (unsigned long long)dev->commands,
		         (unsigned long long)dev->completions, (unsigned long long)dev->doorbells,
		         (unsigned long long)dev->errors);
	}
}

/* --- JSON ---------------------------------------------------------------------------------------- */

struct json {
	size_t len;
	char buf[JSON_MAX];
};

static void json_add(struct json *json, const char *fmt, ...) PRINTF(2, 3);

static void json_add(struct json *json, const char *fmt, ...)
{
	size_t room = JSON_MAX - json->len;
	va_list args;
	int len;

	va_start(args, fmt);
	len = fmt_vsnprintf(json->buf + json->len, room, fmt, args);
	va_end(args);
	json->len += len < 0 ? 0 : MIN((size_t)len, room - 1);
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

#define U(x) ((unsigned long long)(x))

static void json_exits(struct json *json, const struct exit_stats *stats)
{
	const char *comma = "";

	json_add(json, "{");
	for (unsigned r = 0; r < HVM_EXIT_COUNT; r++) {
		const struct exit_stat *s = &stats->reason[r];

		if (!s->count)
			continue;
		json_add(json, "%s\"%s\":{\"count\":%llu,\"total_ns\":%llu,\"min_ns\":%llu,"
		               "\"max_ns\":%llu,\"rse_e4\":%llu}",
		         comma, reason_name(r), U(s->count), U(tsc_to_ns(s->total_tsc)),
		         U(tsc_to_ns(s->min_tsc)), U(tsc_to_ns(s->max_tsc)), U(report_rse(s)));
		comma = ",";
	}
	json_add(json, "}");
}

static void json_disk(struct json *json, const struct vm *vm, unsigned d)
{
	struct vblk *blk = vm->disk[d];

	json_add(json, "%s{\"source\":", d ? "," : "");
	json_string(json, vm->config->disk[d].source);
	json_add(json, ",\"queues\":[");
	for (unsigned i = 0; i < blk->queue_count; i++) {
		const struct ioq *q = &blk->queue[i].ioq;

		json_add(json,
		         "%s{\"requests\":%llu,\"read_bytes\":%llu,\"written_bytes\":%llu,"
		         "\"errors\":%llu,\"kicks\":%llu,\"interrupts\":%llu,"
		         "\"interrupts_suppressed\":%llu,\"arms\":%llu,\"disarms\":%llu}",
		         i ? "," : "", U(q->counts.requests), U(q->counts.read_bytes),
		         U(q->counts.written_bytes), U(q->counts.errors), U(atomic_load(&q->kicks)),
		         U(q->counts.interrupts), U(q->counts.interrupts_suppressed), U(q->counts.arms),
		         U(q->counts.disarms));
	}
	json_add(json, "]}");
}

static void json_guest(struct json *json, const struct vm *vm, bool first)
{
	static struct exit_stats sum;
	uint64_t samples, total_tsc;

	totals_get(vm, &sum, &samples, &total_tsc);
	json_add(json, "%s{\"name\":", first ? "" : ",");
	json_string(json, vm->name);
	json_add(json,
	         ",\"ended\":\"%s\",\"vcpus\":%u,\"exit_count\":%llu,\"wall_ns\":%llu,"
	         "\"guest_ns\":%llu,\"handling_ns\":%llu,\"halted_ns\":%llu,\"exits\":",
	         vm_end_name((enum vm_end)atomic_load(&vm->end)), vm->vcpu_count, U(samples),
	         U(tsc_to_ns(sum.wall_tsc)), U(tsc_to_ns(sum.guest_tsc)),
	         U(tsc_to_ns(sum.handling_tsc)), U(tsc_to_ns(sum.halted_tsc)));
	json_exits(json, &sum);
	json_add(json, ",\"disks\":[");
	for (unsigned d = 0; d < vm->disk_count; d++)
		json_disk(json, vm, d);
	json_add(json, "]}");
}

static void json_loop(struct json *json, const struct ioloop *loop)
{
	const struct ioloop_counts *c = &loop->counts;

	json_add(json,
	         "\"ioloop\":{\"core\":%u,\"passes\":%llu,\"empty_passes\":%llu,\"sleeps\":%llu,"
	         "\"wakes\":%llu,\"sleep_ns\":%llu,\"last_look_hits\":%llu,\"promotions\":%llu,"
	         "\"demotions\":%llu,\"commits\":%llu},\"devices\":[",
	         loop->core, U(c->passes), U(c->empty_passes), U(c->sleeps), U(c->wakes),
	         U(tsc_to_ns(c->sleep_tsc)), U(c->last_look_hits), U(c->promotions), U(c->demotions),
	         U(c->commits));
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

static void json_print(const struct report *report)
{
	static struct json json;

	json.len = 0;
	json_add(&json, "quell-stats: {\"machine\":\"%s\",\"accelerator\":\"%s\",\"backend\":\"%s\","
	                "\"tsc_hz\":%llu,\"uptime_ns\":%llu,",
	         report_machine(), report_accelerator(), hvm->name, U(plat_tsc_hz()),
	         U(tsc_to_ns(report->uptime_tsc)));
	json_loop(&json, report->loop);
	json_add(&json, ",\"guests\":[");
	for (unsigned i = 0; i < report->vm_count; i++)
		json_guest(&json, report->vms[i], i == 0);
	json_add(&json, "]}\r\n");
	plat_console_write(json.buf, json.len);
}

void report_print(const struct report *report)
{
	for (unsigned i = 0; i < report->vm_count; i++) {
		guest_print(report->vms[i]);
		queues_print(report->vms[i]);
	}
	loop_print(report);
	json_print(report);
}
