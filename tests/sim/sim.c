/*
 * sim: the hypervisor's polling policy against QEMU's rules, fixed rules and the clairvoyant
 * optimum.
 *
 * usage: sim [--csv|--full|--json] [--seed N] [--wake NS] [--exit NS] [--gaps N] [--ours POLICY]
 *            [TRACE ..]
 * --json: an object a line, one for each trace and a last one that sums up. --ours: judges another
 * policy in the place of the hypervisor's. Exits 1 if a target is missed.
 */
#include "tests/sim/sim.h"

#include "vmm/poll_policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define POLICY_MAX 16u

static struct {
	enum { FORM_TABLE, FORM_FULL, FORM_CSV, FORM_JSON } form;
	struct sim_cfg cfg;
	unsigned ours;
	char **names;
	int name_count;
	unsigned traces, limits_missed, lost, lost_strictly, duels;
	double log_sum[POLICY_MAX];
} sim = {.cfg = {.wake_ns = 15000, .exit_ns = 5000, .seed = 1, .gaps = 20000}, .ours = SIM_OURS};

static const char *class_name(enum sim_class class)
{
	static const char *const name[] = {"steady", "change", "adverse", "online"};

	return name[class];
}

static bool is_qemu(const struct sim_policy *p)
{
	return !strncmp(p->name, "qemu", 4);
}

static bool wanted(const struct sim_trace *t)
{
	for (int i = 0; i < sim.name_count; i++)
		if (!strcmp(sim.names[i], t->name))
			return true;
	return sim.name_count == 0;
}

static double share(uint64_t part, uint64_t whole)
{
	return whole ? (double)part / (double)whole : 0;
}

static void detail_print(const struct sim_trace *t, const struct sim_policy *p,
                         const struct sim_result *r)
{
	const char *form = sim.form == FORM_CSV
	                           ? "%s,%s,%s,%.5f,%.3f,%.3f,%.3f,%.5f,%.5f\n"
	                           : "%-7s %-20s %-8s %10.4f %10.3f %10.2f %10.2f %9.4f %9.4f\n";

	printf(form, class_name(t->class), t->name, p->name, share(r->cost, r->optimum),
	       100 * share(r->polled, r->end), share(r->polled, r->served) / 1000,
	       share(r->latency, r->served) / 1000, share(r->sleeps, r->served),
	       share(r->kicks, r->served));
}

static void detail_head(void)
{
	if (sim.form == FORM_CSV)
		printf("class,trace,policy,cost_over_optimum,polling_percent,polling_us_per_"
		       "request,"
		       "latency_us_per_request,sleeps_per_request,kicks_per_request\n");
	else
		printf("\n%-7s %-20s %-8s %10s %10s %10s %10s %9s %9s\n", "class", "trace",
		       "policy", "cost/opt", "poll cpu %", "poll us/rq", "lat us/rq", "sleeps/rq",
		       "kicks/rq");
}

static void head_print(void)
{
	printf("cost over optimum; wake %llu ns + exit %llu ns, seed %llu, %llu gaps\n",
	       (unsigned long long)sim.cfg.wake_ns, (unsigned long long)sim.cfg.exit_ns,
	       (unsigned long long)sim.cfg.seed, (unsigned long long)sim.cfg.gaps);
	printf("%-7s %-20s %6s %6s", "class", "trace", "bound", "limit");
	for (unsigned p = 0; p < sim_policy_count; p++)
		printf(" %8s", sim_policies[p].name);
	printf("  verdict\n");
}

static void row_print(const struct sim_trace *t, const struct sim_result *r)
{
	printf("%-7s %-20s %6.3f %6.3f", class_name(t->class), t->name,
	       share(r[sim.ours].bound, r[sim.ours].optimum), sim_limit(t, &r[sim.ours]));
	for (unsigned p = 0; p < sim_policy_count; p++) {
		double x = share(r[p].cost, r[p].optimum);

		printf(x < 100 ? " %8.4f" : " %8.0f", x);
	}
}

static void json_print(const struct sim_trace *t, const struct sim_result *r)
{
	const struct sim_result *ours = &r[sim.ours];

	printf("{\"trace\": \"%s\", \"class\": \"%s\", \"bound\": %.6f, \"limit\": %.6f, "
	       "\"ours\": %.6f",
	       t->name, class_name(t->class), share(ours->bound, ours->optimum), sim_limit(t, ours),
	       share(ours->cost, ours->optimum));
	for (unsigned p = 0; p < sim_policy_count; p++)
		printf(", \"%s\": %.6f", sim_policies[p].name, share(r[p].cost, r[p].optimum));
}

/* Counts, and ends the trace's line where there is one. */
static void judge(const struct sim_trace *t, const struct sim_result *r)
{
	bool kept = sim_limit_kept(t, &sim.cfg, &r[sim.ours]);
	bool table = sim.form == FORM_TABLE, json = sim.form == FORM_JSON;
	unsigned lost = 0;

	sim.limits_missed += !kept;
	if (table && !kept)
		printf("  LIMIT");
	if (json)
		printf(", \"lost_to\": [");
	for (unsigned p = 0; p < sim_policy_count; p++) {
		if (!is_qemu(&sim_policies[p]) || p == sim.ours)
			continue;
		sim.duels++;
		sim.lost_strictly += !sim_beats(t, &sim.cfg, &r[sim.ours], &r[p], true);
		if (sim_beats(t, &sim.cfg, &r[sim.ours], &r[p], false))
			continue;
		if (table)
			printf("  LOST:%s", sim_policies[p].name);
		if (json)
			printf("%s\"%s\"", lost ? ", " : "", sim_policies[p].name);
		lost++;
	}
	sim.lost += lost;
	if (table)
		printf(kept && !lost ? "  ok\n" : "\n");
	if (json)
		printf("], \"verdict\": \"%s\"}\n", !kept ? "limit" : lost ? "lost" : "ok");
}

static uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ns for one arrival found by polling, progress and decision: the best of some rounds. */
static double event_ns(void)
{
	static struct poll_policy_core core;
	static struct poll_policy_queue q;
	struct poll_policy_cfg cfg = {.wake_ticks = 15000, .exit_ticks = 5000};
	uint64_t now = 1000, best = UINT64_MAX;
	unsigned count = 10000;

	poll_policy_init(&core, &cfg);
	poll_policy_queue_init(&core, &q, POLL_POLICY_AUTO);
	for (unsigned round = 0; round < 50; round++) {
		uint64_t from = clock_ns(), took;

		for (unsigned i = 0; i < count; i++) {
			now += poll_policy_sleep_at(&core, false) & 1;
			now += 2000 + (i * 2654435761u >> 20);
			poll_policy_progress(&core, &q, now, now);
		}
		took = clock_ns() - from;
		best = took < best ? took : best;
	}
	return (double)best / count;
}

/* Over all traces. exp without libm: (1 + x / 2^20)^(2^20) is near enough for a mean. */
static double geometric_mean(unsigned policy)
{
	double x = 1 + sim.log_sum[policy] / sim.traces / 1048576;

	for (int i = 0; i < 20; i++)
		x *= x;
	return x;
}

static void summary_print(void)
{
	printf("\n%-35s%13s", "geometric mean", "");
	for (unsigned p = 0; p < sim_policy_count; p++) {
		double x = geometric_mean(p);

		printf(x < 100 ? " %8.4f" : " %8.0f", x);
	}
	printf("\n%u traces, %u limits missed; %u duels with QEMU's rules, %u lost (%u by less "
	       "than the "
	       "%u prices that learning may cost)\n",
	       sim.traces, sim.limits_missed, sim.duels, sim.lost, sim.lost_strictly - sim.lost,
	       SIM_LEARNING);
	printf("%.1f ns for one arrival and decision, built as this program is, on this machine\n",
	       event_ns());
}

static void summary_json(void)
{
	printf("{\"summary\": true, \"traces\": %u, \"limits_missed\": %u, \"duels\": %u, ",
	       sim.traces, sim.limits_missed, sim.duels);
	printf("\"lost\": %u, \"lost_strictly\": %u, \"learning_prices\": %u, ", sim.lost,
	       sim.lost_strictly, SIM_LEARNING);
	printf("\"seed\": %llu, \"wake_ns\": %llu, \"exit_ns\": %llu, \"gaps\": %llu, "
	       "\"ours\": \"%s\", \"geometric_mean\": {",
	       (unsigned long long)sim.cfg.seed, (unsigned long long)sim.cfg.wake_ns,
	       (unsigned long long)sim.cfg.exit_ns, (unsigned long long)sim.cfg.gaps,
	       sim_policies[sim.ours].name);
	for (unsigned p = 0; p < sim_policy_count; p++)
		printf("%s\"%s\": %.6f", p ? ", " : "", sim_policies[p].name, geometric_mean(p));
	printf("}}\n");
}

static bool ours_choose(const char *name)
{
	for (unsigned p = 0; p < sim_policy_count; p++) {
		if (strcmp(sim_policies[p].name, name))
			continue;
		sim.ours = p;
		return true;
	}
	return false;
}

static void options(int argc, char **argv)
{
	int i;

	for (i = 1; i < argc && argv[i][0] == '-'; i++) {
		const char *value = i + 1 < argc ? argv[i + 1] : "";
		uint64_t *number = !strcmp(argv[i], "--seed")   ? &sim.cfg.seed
		                   : !strcmp(argv[i], "--wake") ? &sim.cfg.wake_ns
		                   : !strcmp(argv[i], "--exit") ? &sim.cfg.exit_ns
		                   : !strcmp(argv[i], "--gaps") ? &sim.cfg.gaps
		                                                : NULL;

		if (!strcmp(argv[i], "--csv")) {
			sim.form = FORM_CSV;
		} else if (!strcmp(argv[i], "--full")) {
			sim.form = FORM_FULL;
		} else if (!strcmp(argv[i], "--json")) {
			sim.form = FORM_JSON;
		} else if (!strcmp(argv[i], "--ours") && ours_choose(value)) {
			i++;
		} else if (number && value[0] >= '0' && value[0] <= '9') {
			*number = strtoull(value, NULL, 10);
			i++;
		} else {
			fprintf(stderr, "usage: sim [--csv|--full|--json] [--seed N] [--wake NS] "
			                "[--exit NS] [--gaps N] [--ours POLICY] [TRACE ..]\n");
			exit(2);
		}
	}
	sim.names = argv + i;
	sim.name_count = argc - i;
	if (sim.cfg.gaps < 1 || sim.cfg.gaps > 10000000 || sim.cfg.wake_ns + sim.cfg.exit_ns < 1) {
		fprintf(stderr, "sim: 1 to 10000000 gaps, and a wake-up that costs something\n");
		exit(2);
	}
}

int main(int argc, char **argv)
{
	struct sim_result r[POLICY_MAX];

	options(argc, argv);
	if (sim.form == FORM_TABLE)
		head_print();
	else if (sim.form != FORM_JSON)
		detail_head();
	for (unsigned i = 0; i < sim_trace_count; i++) {
		const struct sim_trace *t = &sim_traces[i];

		if (!wanted(t))
			continue;
		for (unsigned p = 0; p < sim_policy_count; p++) {
			sim.cfg.want_bound = p == sim.ours;
			sim_run(t, &sim_policies[p], &sim.cfg, &r[p]);
			sim.log_sum[p] += sim_ln(share(r[p].cost, r[p].optimum));
			if (sim.form == FORM_CSV || sim.form == FORM_FULL)
				detail_print(t, &sim_policies[p], &r[p]);
		}
		sim.traces++;
		if (sim.form == FORM_TABLE)
			row_print(t, r);
		else if (sim.form == FORM_JSON)
			json_print(t, r);
		judge(t, r);
	}
	if (!sim.traces) {
		fprintf(stderr, "sim: no such trace\n");
		return 2;
	}
	if (sim.form == FORM_JSON)
		summary_json();
	else if (sim.form != FORM_CSV)
		summary_print();
	return sim.limits_missed || sim.lost;
}
