#include "tests/bench/bench.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

uint64_t stage_ticks[STAGE_MAX];
bool bench_traced;
static unsigned stage_now;
static uint64_t stage_began;

uint64_t bench_tsc(void)
{
	return __builtin_ia32_rdtsc();
}

static uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

double tsc_ns(uint64_t ticks)
{
	static double ns_per_tick;

	if (ns_per_tick == 0) {
		uint64_t ns = clock_ns(), tsc = bench_tsc();

		while (clock_ns() - ns < 50000000)
			;
		ns_per_tick = (double)(clock_ns() - ns) / (double)(bench_tsc() - tsc);
	}
	return (double)ticks * ns_per_tick;
}

double tsc_cost_ns(void)
{
	static double cost;

	/* The counter may move in steps longer than a read takes, so a mean; the least, so
	 * undisturbed. */
	for (unsigned i = 0; cost == 0 && i < 200; i++) {
		static double least = 1e9;
		uint64_t sum = 0;

		for (unsigned n = 0; n < 1000; n++) {
			uint64_t t = bench_tsc();

			sum += bench_tsc() - t;
		}
		least = fmin(least, tsc_ns(sum) / 1000);
		if (i == 199)
			cost = least;
	}
	return cost;
}

/* The tracer looks for this function's address. */
__attribute__((noinline)) void bench_mark(unsigned stage)
{
	uint64_t now = bench_tsc();

	if (bench_traced)
		__asm__ volatile("int3" ::"D"(stage));
	stage_ticks[stage_now] += now - stage_began;
	stage_now = stage;
	stage_began = bench_tsc();
}

void bench_pin(unsigned cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

unsigned bench_cpus(void)
{
	return (unsigned)sysconf(_SC_NPROCESSORS_ONLN);
}

/* --- samples -----------------------------------------------------------------------------------
 */

void samples_add(struct samples *s, double value)
{
	if (s->count < SAMPLES_MAX)
		s->value[s->count++] = value;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double samples_median(struct samples *s)
{
	qsort(s->value, s->count, sizeof(s->value[0]), compare);
	return s->count ? s->value[s->count / 2] : 0;
}

double samples_error(struct samples *s)
{
	double spread;

	if (s->count < 4)
		return 0;
	samples_median(s);
	spread = s->value[s->count * 3 / 4] - s->value[s->count / 4];
	return 1.253 * (spread / 1.349) / sqrt(s->count);
}

/* --- printing ----------------------------------------------------------------------------------
 */

static const char *cpu_model(void)
{
	static char model[128];
	char line[256];
	FILE *f;

	if (model[0])
		return model;
	strcpy(model, "unknown");
	f = fopen("/proc/cpuinfo", "r");
	while (f && fgets(line, sizeof(line), f)) {
		char *colon = strchr(line, ':');

		if (strncmp(line, "model name", 10) || !colon)
			continue;
		snprintf(model, sizeof(model), "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
		break;
	}
	if (f)
		fclose(f);
	return model;
}

void report(const char *name, double value, const char *unit, double rse, unsigned count)
{
	char spread[64] = "exact";

	if (rse >= 0)
		snprintf(spread, sizeof(spread), "+- %.1f%%, n = %u", rse * 100, count);
	printf("%-46s = %9.1f %-12s (%s)  machine = hosted, %s\n", name, value, unit, spread,
	       cpu_model());
	fflush(stdout);
}

void report_samples(const char *name, struct samples *s, const char *unit)
{
	double median = samples_median(s);

	report(name, median, unit, median != 0 ? fabs(samples_error(s) / median) : 0, s->count);
}

void report_difference(const char *name, struct samples *s, const char *unit)
{
	double median = samples_median(s);

	printf("%-46s = %9.1f %-12s (+- %.1f, n = %u pairs)  machine = hosted, %s\n", name, median,
	       unit, samples_error(s), s->count, cpu_model());
}

void report_aim(const char *name, double value, double aim, const char *unit)
{
	printf("%-46s : %9.1f, aim <= %.0f %s: %s  machine = hosted, %s\n", name, value, aim, unit,
	       value <= aim ? "met" : "MISSED", cpu_model());
}
