/*
 * The polling policy: what it promises of single calls, its bound against an adversary at every
 * moment, and the simulator's set of traces, shortened.
 */
#include <stddef.h>

#include "tests/unit/test.h"
#include "vmm/poll_policy.h"

#include "tests/sim/engine.c"
#include "tests/sim/judge.c"
#include "tests/sim/policies.c"
#include "tests/sim/traces.c"

#define PRICE 20000u

static struct poll_policy_core core;
static struct poll_policy_queue queue[20];
static uint64_t now;

static void fresh(unsigned queues)
{
	struct poll_policy_cfg cfg = {.wake_ticks = 15000, .exit_ticks = 5000};

	now = 1000;
	poll_policy_init(&core, &cfg);
	for (unsigned i = 0; i < queues; i++)
		poll_policy_queue_init(&core, &queue[i], POLL_POLICY_AUTO);
}

/* One gap of a queue, as the loop would live it; returns its cost. */
static uint64_t gap_live(unsigned q, uint64_t gap, bool in_flight)
{
	uint64_t sleep_at = poll_policy_sleep_at(&core, in_flight);
	uint64_t asleep = sleep_at > now ? sleep_at : now, at = now + gap, cost;

	if (at <= asleep) {
		poll_policy_progress(&core, &queue[q], at, at);
		now = at;
		return gap;
	}
	cost = asleep - now + PRICE;
	poll_policy_sleeps(&core, asleep);
	poll_policy_woke(&core, 15000, true);
	now = at + 15000;
	poll_policy_progress(&core, &queue[q], at, now);
	return cost;
}

static uint64_t polls_for(void)
{
	uint64_t at = poll_policy_sleep_at(&core, false);

	return at > now ? at - now : 0;
}

static void four_cases(void)
{
	fresh(1);
	for (int i = 0; i < 10; i++)
		gap_live(0, 5000, false);
	CHECK(poll_policy_notify_on(&core, POLL_POLICY_DISABLED, false, now));
	CHECK(!poll_policy_notify_on(&core, POLL_POLICY_PENDING, false, now + 10 * PRICE));
	CHECK(!poll_policy_notify_on(&core, POLL_POLICY_HIT, false, now + 10 * PRICE));
	CHECK(!poll_policy_notify_on(&core, POLL_POLICY_EMPTY, false, now + 100));
	CHECK(poll_policy_notify_on(&core, POLL_POLICY_EMPTY, false, now + 10 * PRICE));
}

static void first_gap_sleeps_at_once(void)
{
	fresh(1);
	CHECK_EQ(polls_for(), 0);
	CHECK_EQ(gap_live(0, 1000, false), PRICE);
	CHECK(polls_for() >= 1000);
}

static void steady_gaps_are_learned(void)
{
	fresh(1);
	for (int i = 0; i < 20; i++)
		gap_live(0, 5000, false);
	CHECK(polls_for() >= 5000);
	CHECK(polls_for() <= 4 * PRICE);
	fresh(1);
	for (int i = 0; i < 20; i++)
		gap_live(0, 1000000, false);
	CHECK_EQ(polls_for(), 0);
	/* Just below and just above the price. */
	fresh(1);
	for (int i = 0; i < 20; i++)
		gap_live(0, PRICE - 1000, false);
	CHECK(polls_for() >= PRICE - 1000);
	fresh(1);
	for (int i = 0; i < 20; i++)
		gap_live(0, PRICE + 1000, false);
	CHECK_EQ(polls_for(), 0);
}

static void in_flight_is_another_matter(void)
{
	fresh(1);
	for (int i = 0; i < 40; i++) {
		gap_live(0, 80000, true); /* the disk */
		gap_live(0, 5000, false); /* the guest */
	}
	CHECK(poll_policy_sleep_at(&core, true) <= now);
	gap_live(0, 80000, true);
	CHECK(polls_for() >= 5000);
}

static void price_is_learned(void)
{
	fresh(1);
	for (int i = 0; i < 40; i++)
		gap_live(0, 50000, false);
	CHECK_EQ(polls_for(), 0);
	/* The machine turns out to wake more slowly than such a gap lasts. */
	for (int i = 0; i < 60; i++) {
		poll_policy_sleep_at(&core, false);
		poll_policy_sleeps(&core, now);
		poll_policy_woke(&core, 200000, true);
		now += 250000;
		poll_policy_progress(&core, &queue[0], now - 200000, now);
	}
	CHECK(polls_for() >= 50000);
}

static void given_price_stays(void)
{
	struct poll_policy_cfg cfg = {.wake_ticks = 15000, .exit_ticks = 5000, .wake_given = true};

	fresh(1);
	poll_policy_init(&core, &cfg);
	for (int i = 0; i < 20; i++) {
		poll_policy_sleep_at(&core, false);
		poll_policy_sleeps(&core, now);
		poll_policy_woke(&core, 900000, true);
		now += 1000000;
		poll_policy_progress(&core, &queue[0], now - 900000, now);
	}
	CHECK_EQ(core.price_ticks[0], PRICE);
}

static void weight_scales_the_price(void)
{
	struct poll_policy_cfg cfg = {.wake_ticks = 15000, .exit_ticks = 5000, .weight_x16 = 40};

	poll_policy_init(&core, &cfg);
	CHECK_EQ(core.price_ticks[0], 50000);
	CHECK_EQ(core.price_ticks[1], 37500);
}

static void modes(void)
{
	fresh(3);
	/* Never polled: no trace of it in the core. */
	poll_policy_mode_set(&core, &queue[0], 0);
	poll_policy_progress(&core, &queue[0], now, now);
	CHECK_EQ(poll_policy_hot_until(&queue[0]), 0);
	CHECK_EQ(polls_for(), 0);
	/* A fixed time is kept to the tick. */
	poll_policy_mode_set(&core, &queue[1], 77777);
	poll_policy_progress(&core, &queue[1], now, now);
	CHECK_EQ(poll_policy_sleep_at(&core, false), now + 77777);
	CHECK_EQ(poll_policy_hot_until(&queue[1]), now + 77777);
	now += 50000;
	poll_policy_progress(&core, &queue[0], now, now);
	CHECK_EQ(poll_policy_sleep_at(&core, false), now + 27777);
	poll_policy_mode_set(&core, &queue[2], POLL_POLICY_ALWAYS);
	CHECK_EQ(poll_policy_sleep_at(&core, false), UINT64_MAX);
	CHECK_EQ(poll_policy_hot_until(&queue[2]), UINT64_MAX);
	poll_policy_mode_set(&core, &queue[2], POLL_POLICY_ALWAYS);
	poll_policy_mode_set(&core, &queue[2], POLL_POLICY_AUTO);
	CHECK(poll_policy_sleep_at(&core, false) != UINT64_MAX);
	poll_policy_mode_set(&core, &queue[2], POLL_POLICY_ALWAYS);
	poll_policy_queue_drop(&core, &queue[2]);
	CHECK_EQ(core.always, 0);
}

static void other_modes_cost_no_credit(void)
{
	uint64_t credit;

	fresh(2);
	for (int i = 0; i < 50; i++)
		gap_live(0, 5000, false);
	credit = core.credit_ticks;
	poll_policy_mode_set(&core, &queue[1], POLL_POLICY_ALWAYS);
	for (int i = 0; i < 50; i++)
		gap_live(0, 3000000, false);
	CHECK_EQ(core.credit_ticks, credit);
}

static void timer_wakeup_changes_nothing(void)
{
	uint64_t price, credit;

	fresh(1);
	for (int i = 0; i < 20; i++)
		gap_live(0, 5000, false);
	price = core.price_ticks[0];
	credit = core.credit_ticks;
	now = poll_policy_sleep_at(&core, false);
	for (int i = 0; i < 5; i++) {
		poll_policy_sleeps(&core, now);
		now += 10000000; /* housekeeping; no poll_policy_woke */
		CHECK(poll_policy_sleep_at(&core, false) <= now);
	}
	poll_policy_sleeps(&core, now);
	poll_policy_woke(&core, 15000, true);
	now += 15000;
	poll_policy_progress(&core, &queue[0], now - 15000, now);
	poll_policy_sleep_at(&core, false);
	CHECK(core.price_ticks[0] + 16 >= price && core.price_ticks[0] <= price);
	/* It cost what was polled before the first sleep, not the sleeps. */
	CHECK(core.credit_ticks + 4 * PRICE > credit);
}

/* Nor does a change of another queue's mode, which comes by mailbox and wakes the core as well. */
static void mailbox_wakeup_changes_nothing(void)
{
	uint64_t credit;

	fresh(2);
	for (int i = 0; i < 20; i++)
		gap_live(0, 1000000, false);
	credit = core.credit_ticks;
	CHECK(credit >= 4 * PRICE);
	poll_policy_sleep_at(&core, false);
	poll_policy_sleeps(&core, now);
	now += 10000000;
	poll_policy_mode_set(&core, &queue[1], 0);
	CHECK(poll_policy_sleep_at(&core, false) <= now);
	poll_policy_sleeps(&core, now);
	poll_policy_woke(&core, 15000, true);
	now += 15000;
	poll_policy_progress(&core, &queue[0], now - 15000, now);
	CHECK_EQ(core.credit_ticks, credit);
}

/* A regular queue that has stopped is not waited for. */
static void overdue_queue_is_forgotten(void)
{
	fresh(2);
	for (int i = 0; i < 20; i++)
		gap_live(0, 10000, false);
	CHECK(core.periodic_count == 1);
	for (int i = 0; i < 3; i++)
		gap_live(1, 1000000, false);
	poll_policy_sleep_at(&core, false);
	CHECK(core.plan_ticks[POLL_POLICY_NEAREST] <= 4 * PRICE);
}

static void busy_passes_are_not_gaps(void)
{
	uint32_t learned;

	fresh(1);
	for (int i = 0; i < 20; i++)
		gap_live(0, 5000, false);
	learned = core.steady[0].total;
	for (int i = 0; i < 5000; i++) {
		now += 200;
		poll_policy_progress(&core, &queue[0], now, now); /* no empty pass between */
	}
	CHECK_EQ(core.steady[0].total, learned);
	CHECK(polls_for() >= 5000);
}

static void hot_time(void)
{
	fresh(2);
	for (int i = 0; i < 50; i++)
		gap_live(0, 30000, false);
	CHECK(poll_policy_hot_until(&queue[0]) >= now + 30000);
	CHECK(poll_policy_hot_until(&queue[0]) <= now + 100000);
	/* Too slow to wait for. */
	for (int i = 0; i < 50; i++)
		gap_live(1, 50000000, false);
	CHECK_EQ(poll_policy_hot_until(&queue[1]), now + core.price_ticks[0]);
}

static void nearest_arrival_counts(void)
{
	uint64_t next[2] = {30000, 70000}, cost = 0, best = 0, from;
	static const uint64_t period[2] = {100000, 130000};

	fresh(2);
	for (int i = 0; i < 2000; i++) {
		unsigned q = next[1] < next[0];
		uint64_t gap = next[q] > now ? next[q] - now : 0, c = gap_live(q, gap, false);

		from = next[q];
		next[q] = from + period[q];
		if (i < 200)
			continue;
		cost += c;
		best += gap < PRICE ? gap : PRICE;
	}
	/* A threshold alone could not come near: the gaps are as good as random. */
	CHECK(cost * 100 <= best * 103);
}

static void many_regular_queues(void)
{
	fresh(20);
	for (int i = 0; i < 400; i++) {
		now += 1000;
		poll_policy_sleep_at(&core, false);
		poll_policy_progress(&core, &queue[i % 20], now, now);
		CHECK(core.periodic_count <= POLL_POLICY_PERIODIC);
	}
	CHECK_EQ(core.periodic_count, POLL_POLICY_PERIODIC);
	poll_policy_queue_drop(&core, core.periodic[3]);
	for (unsigned i = 0; i < core.periodic_count; i++)
		CHECK_EQ(core.periodic[i]->slot, i + 1);
	for (unsigned i = 0; i < 20; i++)
		poll_policy_queue_drop(&core, &queue[i]);
	CHECK_EQ(core.periodic_count, 0);
	for (unsigned i = 0; i < 20; i++)
		CHECK_EQ(queue[i].slot, 0);
}

/* In every window of time cost <= 2 x optimum + SIM_LEARNING prices, whatever the adversary does.
 */
static void never_above_twice_the_optimum(void)
{
	struct sim_rng rng = {7};

	for (unsigned style = 0; style < 7; style++) {
		int64_t above = 0, lowest = 0, worst = 0;

		fresh(1);
		for (unsigned i = 0; i < 30000; i++) {
			uint64_t polls = polls_for(), dice = sim_random(&rng), gap = polls + 1;

			if (style == 1 && dice % 4 == 0)
				gap = 1 + dice / 4 % 100000;
			if (style == 2 && i / 100 % 2)
				gap = 1000000;
			if (style == 3 && polls >= PRICE)
				gap = polls > PRICE ? polls + 1 : PRICE * 4;
			if (style == 4 && i / 300 % 2)
				gap = 2000 + dice % 1000;
			if (style == 5)
				gap = polls && dice % 8 ? polls - dice / 8 % polls : polls + 1;
			if (style == 6 && i % 240 < 200)
				gap = PRICE / 2;
			above += (int64_t)gap_live(0, gap, style == 1 && dice % 3 == 0);
			above -= 2 * (int64_t)(gap < PRICE ? gap : PRICE);
			lowest = above < lowest ? above : lowest;
			worst = above - lowest > worst ? above - lowest : worst;
		}
		if (worst > (int64_t)SIM_LEARNING * PRICE)
			printf("  style %u: 2 x optimum + %.1f prices\n", style,
			       (double)worst / PRICE);
		CHECK(worst <= (int64_t)SIM_LEARNING * PRICE);
	}
}

/* Being betrayed must not last: once gaps are long for good, it sleeps at once again. */
static void recovers_from_an_adversary(void)
{
	uint64_t cost = 0;

	fresh(1);
	for (int i = 0; i < 500; i++)
		gap_live(0, polls_for() + 1, false);
	for (int i = 0; i < 1500; i++) {
		uint64_t c = gap_live(0, 1000000, false);

		cost += i >= 1000 ? c : 0;
	}
	CHECK_EQ(cost, 500 * PRICE);
}

/* Old gaps fade, so a new regime wins and no sum grows without end. */
static void old_gaps_fade(void)
{
	fresh(1);
	for (int i = 0; i < 5000; i++)
		gap_live(0, 5000, false);
	CHECK(core.steady[0].total <= 1024 * 256);
	for (int i = 0; i < 5000; i++)
		gap_live(0, 1000000, false);
	CHECK_EQ(core.steady[0].best_ticks, 0);
	CHECK(core.steady[0].sum[POLL_POLICY_BINS - 1] == 0);
}

/* Nothing absurd overflows, divides by nothing or reads where it should not (sanitizers). */
static void absurd_times(void)
{
	static const uint64_t wild[] = {0, 1, 255, 256, 1ull << 22, 1ull << 40, 1ull << 62};
	struct poll_policy_cfg cfg = {UINT64_MAX, UINT64_MAX, UINT32_MAX, false};

	fresh(2);
	poll_policy_init(&core, &cfg);
	for (unsigned i = 0; i < 5000; i++) {
		uint64_t gap = wild[i % 6], t = poll_policy_sleep_at(&core, i & 1);

		poll_policy_sleeps(&core, now);
		poll_policy_woke(&core, wild[i / 6 % 7], i & 2);
		now += gap;
		poll_policy_progress(&core, &queue[i / 3 % 2], i % 5 ? now : 0, now);
		if (t > now + (1ull << 40)) {
			CHECK(false);
			break;
		}
	}
}

/* Every trace of the simulator, shorter: the same limits, and no rule of QEMU's is better. */
static void traces(void)
{
	struct sim_cfg cfg = {15000, 5000, 3, 4000, true};

	for (unsigned i = 0; i < sim_trace_count; i++) {
		const struct sim_trace *t = &sim_traces[i];
		struct sim_result ours_result, other;

		cfg.want_bound = true;
		sim_run(t, &sim_policies[SIM_OURS], &cfg, &ours_result);
		if (!sim_limit_kept(t, &cfg, &ours_result)) {
			printf("  %s: %.3f x optimum\n", t->name,
			       (double)ours_result.cost / (double)ours_result.optimum);
			CHECK(false);
		}
		cfg.want_bound = false;
		for (unsigned p = 1; p < sim_policy_count; p++) {
			if (sim_policies[p].name[0] != 'q')
				continue;
			sim_run(t, &sim_policies[p], &cfg, &other);
			if (sim_beats(t, &cfg, &ours_result, &other, false))
				continue;
			printf("  %s: %s is better\n", t->name, sim_policies[p].name);
			CHECK(false);
		}
	}
}

static void same_seed_same_result(void)
{
	struct sim_cfg cfg = {15000, 5000, 9, 3000, false};
	struct sim_result a, b;

	for (unsigned i = 0; i < sim_trace_count; i += 7) {
		sim_run(&sim_traces[i], &sim_policies[SIM_OURS], &cfg, &a);
		sim_run(&sim_traces[i], &sim_policies[SIM_OURS], &cfg, &b);
		CHECK_EQ(a.cost, b.cost);
		CHECK_EQ(a.sleeps, b.sleeps);
	}
}

/* The simulator itself, on what can be worked out by hand. */
static void simulator_is_right(void)
{
	struct sim_cfg cfg = {15000, 5000, 1, 1000, true};
	const struct sim_trace *t = NULL;
	struct sim_result r;

	for (unsigned i = 0; i < sim_trace_count; i++)
		if (!strcmp(sim_traces[i].name, "const-10us"))
			t = &sim_traces[i];
	if (!t) {
		CHECK(t);
		return;
	}
	for (unsigned p = 0; p < sim_policy_count; p++) {
		sim_run(t, &sim_policies[p], &cfg, &r);
		CHECK_EQ(r.optimum, 1000 * 10000);
		CHECK_EQ(r.bound, 1000 * 10000);
		if (!strcmp(sim_policies[p].name, "never")) {
			CHECK_EQ(r.cost, 1000 * PRICE);
			CHECK_EQ(r.kicks, 1000);
		} else if (!strcmp(sim_policies[p].name, "always")) {
			CHECK_EQ(r.cost, 1000 * 10000);
			CHECK_EQ(r.sleeps, 0);
		} else if (!strcmp(sim_policies[p].name, "qemu-a0")) {
			/* 0, 4, 8 us do not catch 10 us; 16 us does. */
			CHECK_EQ(r.cost, 997 * 10000 + 3 * PRICE + 12000);
		}
	}
}

TESTS(T(four_cases), T(first_gap_sleeps_at_once), T(steady_gaps_are_learned),
      T(in_flight_is_another_matter), T(price_is_learned), T(given_price_stays),
      T(weight_scales_the_price), T(modes), T(other_modes_cost_no_credit),
      T(timer_wakeup_changes_nothing), T(mailbox_wakeup_changes_nothing),
      T(overdue_queue_is_forgotten), T(busy_passes_are_not_gaps), T(hot_time),
      T(nearest_arrival_counts), T(many_regular_queues), T(never_above_twice_the_optimum),
      T(recovers_from_an_adversary), T(old_gaps_fade), T(absurd_times), T(simulator_is_right),
      T(same_seed_same_result), T(traces))
