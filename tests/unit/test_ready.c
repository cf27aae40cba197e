/*
 * Readiness: both implementations against a plain set, growth from one to the other, and setters
 * on other threads.
 */
#include "tests/unit/test.h"

#include "tests/fake/platform.h"
#include "vmm/ready.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

static struct ready table;
static uint64_t random_state;

static uint32_t random_below(uint32_t limit)
{
	random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((random_state >> 33) % limit);
}

static void make(enum ready_kind kind, uint32_t count)
{
	fake_reset();
	random_state = count * 31u + kind;
	ready_init(&table, kind);
	CHECK_EQ(ready_grow(&table, count), 0);
}

/* Takes all; each must be in set, which it leaves. How many there were. */
static unsigned take(bool *set)
{
	struct ready_iter it;
	uint32_t source;
	unsigned count = 0;

	ready_begin(&table, &it);
	while (ready_next(&table, &it, &source)) {
		CHECK(source < READY_MAX && set[source]);
		set[source] = false;
		count++;
	}
	return count;
}

static void against_a_set(enum ready_kind kind, uint32_t count)
{
	bool *set = calloc(READY_MAX, sizeof(*set));

	make(kind, count);
	CHECK(!ready_any(&table));
	CHECK_EQ(take(set), 0);
	for (int round = 0; round < 200; round++) {
		unsigned want = 0, tries = random_below(round % 20 == 0 ? count + 1 : 8);

		for (unsigned i = 0; i < tries; i++) {
			uint32_t source = random_below(count);

			CHECK(ready_set(&table, source) == !set[source]);
			want += !set[source];
			set[source] = true;
		}
		CHECK(ready_any(&table) == (want != 0));
		CHECK_EQ(take(set), want);
		CHECK(!ready_any(&table));
	}
	/* The edges. */
	set[0] = set[count - 1] = true;
	ready_set(&table, 0);
	ready_set(&table, count - 1);
	CHECK_EQ(take(set), count > 1 ? 2 : 1);
	free(set);
}

static const uint32_t sizes[] = {1, 2, 63, 64, 65, 600, 3200, 4096, 4097, 100000, READY_MAX};

static void scan_is_a_set(void)
{
	for (unsigned i = 0; i < ARRAY_LEN(sizes); i++)
		against_a_set(READY_SCAN, sizes[i]);
}

static void bitmap_is_a_set(void)
{
	for (unsigned i = 0; i < ARRAY_LEN(sizes); i++)
		against_a_set(READY_BITMAP, sizes[i]);
}

static void upgrade_at_the_crossover(void)
{
	make(READY_BY_SIZE, READY_SCAN_MAX);
	CHECK(!table.summed);
	CHECK_EQ(ready_grow(&table, READY_SCAN_MAX + 1), 0);
	CHECK(table.summed);
	CHECK_EQ(ready_grow(&table, READY_MAX + 1), -ENOSPC);
	CHECK_EQ(ready_grow(&table, READY_MAX), 0);
}

static void growth_keeps_bits(void)
{
	bool *set = calloc(READY_MAX, sizeof(*set));
	unsigned want = 0;

	make(READY_BY_SIZE, 1);
	for (uint32_t count = 1; count <= READY_MAX; count = count * 3 + 1) {
		CHECK_EQ(ready_grow(&table, count), 0);
		ready_set(&table, count - 1);
		set[count - 1] = true;
		want++;
	}
	CHECK(ready_any(&table));
	CHECK_EQ(take(set), want);
	free(set);
}

static void set_while_taking(void)
{
	for (enum ready_kind kind = READY_SCAN; kind <= READY_BITMAP; kind++) {
		struct ready_iter it;
		uint32_t source = 0;

		make(kind, 3200);
		ready_set(&table, 100);
		ready_begin(&table, &it);
		CHECK(ready_next(&table, &it, &source));
		CHECK_EQ(source, 100);
		/* Behind what has been visited: for the next time, and announced. */
		CHECK(ready_set(&table, 100));
		CHECK(ready_set(&table, 5));
		while (ready_next(&table, &it, &source))
			CHECK(source != 100 && source != 5);
		CHECK(ready_any(&table));
		ready_begin(&table, &it);
		CHECK(ready_next(&table, &it, &source));
		CHECK_EQ(source, 5);
		CHECK(ready_next(&table, &it, &source));
		CHECK_EQ(source, 100);
		CHECK(!ready_next(&table, &it, &source));
	}
}

/* What one set costs: the summary is touched once per span, not once per source. */
static void a_marked_span_is_left_alone(void)
{
	make(READY_BITMAP, 100000);
	ready_set(&table, 0);
	CHECK_EQ(atomic_load(&table.summary), 1);
	for (uint32_t i = 1; i < 64u << table.span_shift; i++)
		ready_set(&table, i);
	CHECK_EQ(atomic_load(&table.summary), 1);
	ready_set(&table, 64u << table.span_shift);
	CHECK_EQ(atomic_load(&table.summary), 3);
}

/* --- two setters and a consumer --------------------------------------------------------------- */

#define THREAD_SOURCES 3200u
#define THREAD_SETS    30000u

static atomic_uint wanted[THREAD_SOURCES]; /* how often each was asked for */
static atomic_uint setters_done;

static void *setter(void *arg)
{
	uint64_t state = (uintptr_t)arg;

	for (unsigned i = 0; i < THREAD_SETS; i++) {
		uint32_t source;

		state = state * 6364136223846793005ull + 1442695040888963407ull;
		/* Often the same few, so that bits collide. */
		source = (uint32_t)(state >> 40) % (i % 3 ? 130 : THREAD_SOURCES);
		atomic_fetch_add_explicit(&wanted[source], 1, memory_order_relaxed);
		ready_set(&table, source);
	}
	atomic_fetch_add(&setters_done, 1);
	return NULL;
}

/* After its bit was taken, every request made before must be visible; none is left at the end. */
static void threads(enum ready_kind kind)
{
	static unsigned seen[THREAD_SOURCES];
	pthread_t thread[2];
	uint64_t sum = 0;
	bool last;

	make(kind, THREAD_SOURCES);
	memset(seen, 0, sizeof(seen));
	for (unsigned i = 0; i < THREAD_SOURCES; i++)
		atomic_store(&wanted[i], 0);
	atomic_store(&setters_done, 0);
	for (uintptr_t i = 0; i < 2; i++)
		if (pthread_create(&thread[i], NULL, setter, (void *)(i + 7)))
			abort();
	do {
		struct ready_iter it;
		uint32_t source;

		last = atomic_load(&setters_done) == 2;
		if (!ready_any(&table))
			sched_yield();
		ready_begin(&table, &it);
		while (ready_next(&table, &it, &source))
			seen[source] = atomic_load_explicit(&wanted[source], memory_order_relaxed);
	} while (!last);
	for (unsigned i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
	for (unsigned i = 0; i < THREAD_SOURCES; i++) {
		CHECK_EQ(seen[i], atomic_load(&wanted[i]));
		sum += seen[i];
	}
	CHECK_EQ(sum, 2 * THREAD_SETS);
}

static void threads_scan(void)
{
	threads(READY_SCAN);
}

static void threads_bitmap(void)
{
	threads(READY_BITMAP);
}

TESTS(T(scan_is_a_set), T(bitmap_is_a_set), T(upgrade_at_the_crossover), T(growth_keeps_bits),
      T(set_while_taking), T(a_marked_span_is_left_alone), T(threads_scan), T(threads_bitmap))
