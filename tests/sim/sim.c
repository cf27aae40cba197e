/*
 * sim: the hypervisor's polling policy against QEMU's rules, fixed rules and the clairvoyant
 * optimum.
 *
 * usage: sim [--csv] [--full] [--seed N] [--wake NS] [--exit NS] [--gaps N] [TRACE ..]
 * Exits 1 if a target is missed.
 */
#include "tests/sim/sim.h"

#include "vmm/poll_policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define POLICY_MAX 16u

static struct {
	bool csv, full;
	struct sim_cfg cfg;
	char **names;
	int name_count;
	unsigned traces, limits_missed, lost, lost_strictly, duels;
	double log_sum[POLICY_MAX];
} sim = {.cfg = {.wake_ns = 15000, .exit_ns = 5000, .seed = 1, .gaps = 20000}};

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
	const char *form = sim.csv ? "%s,%s,%s,%.5f,%.3f,%.3f,%.3f,%.5f,%.5f\n"
	                           : "%-7s %-20s %-8s %10.4f %10.3f %10.2f %10.2f %9.4f %9.4f\n";

	printf(form, class_name(t->class), t->name, p->name, share(r->cost, r->optimum),
	       100 * share(r->polled, r->end), share(r->polled, r->served) / 1000,
	       share(r->latency, r->served) / 1000, share(r->sleeps, r->served),
	       share(r->kicks, r->served));
}

static void detail_head(void)
{
	if (sim.csv)
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
	       share(r[SIM_OURS].bound, r[SIM_OURS].optimum), sim_limit(t, &r[SIM_OURS]));
	for (unsigned p = 0; p < sim_policy_count; p++) {
		double x = share(r[p].cost, r[p].optimum);

		printf(x < 100 ? " %8.4f" : " %8.0f", x);
	}
}

/* Prints the verdict unless quiet, and counts. */
static void judge(const struct sim_trace *t, const struct sim_result *r)
{
	bool kept = sim_limit_kept(t, &sim.cfg, &r[SIM_OURS]);
	bool quiet = sim.csv || sim.full, good = kept;

	sim.limits_missed += !kept;
	if (!quiet && !kept)
		printf("  LIMIT");
	for (unsigned p = 0; p < sim_policy_count; p++) {
		if (!is_qemu(&sim_policies[p]))
			continue;
		sim.duels++;
		sim.lost_strictly += !sim_beats(t, &sim.cfg, &r[SIM_OURS], &r[p], true);
		if (sim_beats(t, &sim.cfg, &r[SIM_OURS], &r[p], false))
			continue;
		good = false;
		sim.lost++;
		if (!quiet)
			printf("  LOST:%s", sim_policies[p].name);
	}
	if (!quiet)
		printf(good ? "  ok\n" : "\n");
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

static int summary_print(void)
{
	printf("\n%-35s%13s", "geometric mean", "");
	for (unsigned p = 0; p < sim_policy_count; p++) {
		/* exp without libm: (1 + x / 2^20)^(2^20) is near enough for a mean. */
		double x = 1 + sim.log_sum[p] / sim.traces / 1048576;

		for (int i = 0; i < 20; i++)
			x *= x;
		printf(x < 100 ? " %8.4f" : " %8.0f", x);
	}
	printf("\n%u traces, %u limits missed; %u duels with QEMU's rules, %u lost (%u by less "
	       "than the "
	       "%u prices that learning may cost)\n",
	       sim.traces, sim.limits_missed, sim.duels, sim.lost, sim.lost_strictly - sim.lost,
	       SIM_LEARNING);
	printf("%.1f ns for one arrival and decision, built as this program is, on this machine\n",
	       event_ns());
	return sim.limits_missed || sim.lost;
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
			sim.csv = true;
		} else if (!strcmp(argv[i], "--full")) {
			sim.full = true;
		} else if (number && value[0] >= '0' && value[0] <= '9') {
			*number = strtoull(value, NULL, 10);
			i++;
		} else {
			fprintf(stderr,
			        "usage: sim [--csv] [--full] [--seed N] [--wake NS] [--exit NS] "
			        "[--gaps N] [TRACE ..]\n");
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
	if (sim.csv || sim.full)
		detail_head();
	else
		head_print();
	for (unsigned i = 0; i < sim_trace_count; i++) {
		const struct sim_trace *t = &sim_traces[i];

		if (!wanted(t))
			continue;
		for (unsigned p = 0; p < sim_policy_count; p++) {
			sim.cfg.want_bound = p == SIM_OURS;
			sim_run(t, &sim_policies[p], &sim.cfg, &r[p]);
			sim.log_sum[p] += sim_ln(share(r[p].cost, r[p].optimum));
			if (sim.csv || sim.full)
				detail_print(t, &sim_policies[p], &r[p]);
		}
		sim.traces++;
		if (!sim.csv && !sim.full)
			row_print(t, r);
		judge(t, r);
	}
	if (!sim.traces) {
		fprintf(stderr, "sim: no such trace\n");
		return 2;
	}
	if (sim.csv)
		return sim.limits_missed || sim.lost;
	return summary_print();
}
