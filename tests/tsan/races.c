/*
 * races.c: what several cores do to the same words at the same time, with random delays: arming a
 * ring, the I/O loop between guests and a device, its mailbox, a vCPU's pending interrupts. A lost
 * wake-up is something that nobody sees for seconds; built with ThreadSanitizer, any unordered
 * access is one too.
 *
 * usage: races [--only PREFIX] [--lost SECONDS] [SECONDS [REQUESTS [ROUNDS]]]
 * Each case of the loop runs until one of SECONDS and REQUESTS is reached; ROUNDS are of each case
 * in which a ring is armed just as something is published. Without numbers a short run.
 * Prints a line "ok|FAIL|SKIP NAME: what was done" for each case.
 */
#include "tests/tsan/races.h"

#include "arch/platform.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

double lost_s = 4.0;

static const char *only = "";
static unsigned failed, judged;

/* --- platform: a core that sleeps is a thread on a condition variable --------------------------
 */

static struct core {
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	bool interrupted;
	uint64_t waits;
	atomic_uint_least64_t wakes;
} cores[CORES] = {
        {.mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER},
        {.mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER},
        {.mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER},
        {.mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER},
};
static _Thread_local unsigned self;

void core_begin(unsigned core)
{
	self = core;
}

void core_interrupt(unsigned core)
{
	struct core *c = &cores[core];

	pthread_mutex_lock(&c->mutex);
	c->interrupted = true;
	pthread_cond_signal(&c->cond);
	pthread_mutex_unlock(&c->mutex);
}

static void interrupt_await(const atomic_uint *wake)
{
	struct core *c = &cores[self];

	pthread_mutex_lock(&c->mutex);
	c->waits++;
	while (!c->interrupted && !(wake && atomic_load(wake)))
		pthread_cond_wait(&c->cond, &c->mutex);
	c->interrupted = false;
	pthread_mutex_unlock(&c->mutex);
}

void core_interrupt_await(void)
{
	interrupt_await(NULL);
}

void cores_reset(void)
{
	for (unsigned i = 0; i < CORES; i++) {
		cores[i].interrupted = false;
		cores[i].waits = 0;
		atomic_store(&cores[i].wakes, 0);
	}
}

uint64_t core_waits(unsigned core)
{
	return cores[core].waits;
}

uint64_t core_wakes(unsigned core)
{
	return atomic_load(&cores[core].wakes);
}

uint64_t plat_tsc(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t plat_tsc_hz(void)
{
	return 1000000000;
}

/* The deadline is only for devices that die; here it would hide what is lost. */
void plat_wait(const atomic_uint *wake, uint64_t deadline_tsc)
{
	(void)deadline_tsc;
	interrupt_await(wake);
}

void plat_wake(unsigned core)
{
	atomic_fetch_add_explicit(&cores[core].wakes, 1, memory_order_relaxed);
	core_interrupt(core);
}

void plat_irq_take(void)
{
	struct core *c = &cores[self];

	pthread_mutex_lock(&c->mutex);
	c->interrupted = false;
	pthread_mutex_unlock(&c->mutex);
}

void plat_relax(void)
{
	sched_yield();
}

unsigned plat_core(void)
{
	return self;
}

void *plat_mem_alloc(uint64_t len_bytes, uint64_t align_bytes)
{
	void *mem =
	        aligned_alloc(MAX(align_bytes, 64u), ALIGN_UP(len_bytes, MAX(align_bytes, 64u)));

	return mem ? memset(mem, 0, len_bytes) : NULL;
}

/* What no case comes to. */

void plat_log(const char *fmt, ...)
{
	printf("  log: %s\n", fmt);
}

void plat_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t out[4])
{
	(void)leaf;
	(void)subleaf;
	memset(out, 0, 16);
}

void plat_console_write(const char *bytes, size_t len_bytes)
{
	(void)bytes;
	(void)len_bytes;
}

int plat_console_read(void)
{
	return -1;
}

/* --- time and chance ---------------------------------------------------------------------------
 */

double seconds(void)
{
	return (double)plat_tsc() / 1e9;
}

uint32_t random_next(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(*state >> 33);
}

void dither(uint64_t *state)
{
	uint32_t r = random_next(state);

	if (r % 512 == 0)
		usleep(r >> 9 & 127);
	else if (r % 64 == 0)
		sched_yield();
	else if (r % 4 == 0)
		for (volatile uint32_t i = 0; i < (r >> 8 & 255); i++)
			;
}

void short_delay(uint64_t *state)
{
	for (volatile uint32_t i = random_next(state) % 12; i > 0; i--)
		;
}

void gap(void)
{
	static _Thread_local uint64_t state = 5;
	uint32_t r = random_next(&state);

	if (r % 8 == 0)
		usleep(r >> 3 & 255);
	else if (r % 8 < 4)
		sched_yield();
}

/* --- cases -------------------------------------------------------------------------------------
 */

bool case_wanted(const char *name)
{
	return !strncmp(name, only, strlen(only));
}

void verdict(bool good, const char *name, const char *format, ...)
{
	va_list args;

	printf("%s %s: ", good ? "ok" : "FAIL", name);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
	judged++;
	failed += !good;
}

int main(int argc, char **argv)
{
	struct limits limits = {0.4, UINT32_MAX, 250000};

	for (; argc > 2 && argv[1][0] == '-'; argc -= 2, argv += 2) {
		if (!strcmp(argv[1], "--only"))
			only = argv[2];
		else if (!strcmp(argv[1], "--lost"))
			lost_s = atof(argv[2]);
	}
	if (argc > 1)
		limits.time_s = atof(argv[1]);
	if (argc > 2)
		limits.requests = strtoull(argv[2], NULL, 10);
	if (argc > 3)
		limits.rounds = strtoull(argv[3], NULL, 10);
	race_arm(&limits);
	race_irq(&limits);
	race_mailbox(&limits);
	race_loop(&limits);
	return failed || !judged;
}
