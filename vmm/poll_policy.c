#include "vmm/poll_policy.h"

#include "arch/platform.h"

#define WEIGHT         256u /* of one gap when it is new */
#define STEADY_GAPS    1024u
#define RECENT_GAPS    64u
#define AFTER_GAPS     512u
#define AFTER_MIN_GAPS 4u
/* A threshold is computed anew after so many gaps that polling caught; after each sleep at once. */
#define STALE_GAPS    32u
#define COST_SHIFT    8 /* memory of what each way cost: 256 gaps */
#define MARGIN        32u
#define CREDIT_START  2u /* prices of a sleep */
#define CREDIT_MAX    4u
#define PATIENCE_GAPS 16u
#define DEBT_MAX      20u
#define PLAN_MAX      4u /* polling longer gains next to nothing, at any rate */
#define UNKNOWN_TAIL  2u
#define PRICE_MIN     256u
#define PRICE_MAX     (1ull << 25)
#define GAP_MAX       ((1ull << 27) + 1)
#define HOT_MAX       16u /* prices: a queue that is slower goes cold as if nothing were known */
#define REGULAR_MIN   4u
#define OUTLIER       8u

/* --- gaps and the best threshold on them ------------------------------------------------- */

static unsigned bin_of(uint64_t gap)
{
	unsigned octave;

	if (gap < 256)
		return 0;
	octave = 63u - (unsigned)__builtin_clzll(gap);
	if (octave > 26)
		return POLL_POLICY_BINS - 1;
	return 1 + (octave - 8) * 4 + (unsigned)(gap >> (octave - 2) & 3);
}

static uint64_t bin_end(unsigned bin)
{
	return bin == 0 ? 256 : (uint64_t)(5 + (bin - 1) % 4) << ((bin - 1) / 4 + 6);
}

static void hist_halve(struct poll_policy_hist *h)
{
	h->total = 0;
	for (unsigned i = 0; i < POLL_POLICY_BINS; i++) {
		h->n[i] >>= 1;
		/* A sum without a count would be a cost nobody pays. */
		h->sum[i] = h->n[i] ? h->sum[i] >> 1 : 0;
		h->total += h->n[i];
	}
}

static void hist_add(struct poll_policy_hist *h, uint64_t gap, uint32_t memory_gaps)
{
	unsigned bin = bin_of(gap);

	h->n[bin] += WEIGHT;
	h->sum[bin] += gap * WEIGHT;
	h->total += WEIGHT;
	h->unread++;
	if (h->total >= memory_gaps * WEIGHT)
		hist_halve(h);
}

static uint64_t worth_more_than(uint64_t cost)
{
	return cost - cost / MARGIN;
}

/*
 * A threshold t costs, on the gaps seen, the sum of those it catches, and t + price for each other.
 * Only the ends of bins that hold something can be the least.
 */
static void hist_solve(struct poll_policy_hist *h, uint64_t price)
{
	/* Polling at all has to be worth it by more than chance. */
	uint64_t caught = 0, bar = worth_more_than(h->total * price), best = 0;
	uint32_t missed = h->total;

	for (unsigned i = 0; i < POLL_POLICY_BINS - 1 && bin_end(i) <= PLAN_MAX * price; i++) {
		uint64_t cost;

		if (!h->n[i])
			continue;
		caught += h->sum[i];
		missed -= h->n[i];
		cost = caught + missed * (bin_end(i) + price);
		if (cost < bar) {
			bar = cost;
			best = bin_end(i);
			/* None was longer: one that is may still end soon. */
			if (!missed)
				best = MAX(best, UNKNOWN_TAIL * price);
		}
	}
	h->best_ticks = best;
	h->unread = 0;
}

static uint64_t hist_best(struct poll_policy_hist *h, uint64_t price, bool missed)
{
	if (h->unread && (missed || h->unread >= STALE_GAPS || h->total < STALE_GAPS * WEIGHT))
		hist_solve(h, price);
	return h->best_ticks;
}

/* --- one queue --------------------------------------------------------------------------- */

static void periodic_del(struct poll_policy_core *core, struct poll_policy_queue *q)
{
	struct poll_policy_queue *last;

	if (!q->slot)
		return;
	last = core->periodic[--core->periodic_count];
	core->periodic[q->slot - 1] = last;
	last->slot = q->slot;
	q->slot = 0;
}

static void periodic_add(struct poll_policy_core *core, struct poll_policy_queue *q)
{
	/* With more regular queues than places the whole looks random, and the histograms do. */
	if (q->slot || core->periodic_count == POLL_POLICY_PERIODIC)
		return;
	core->periodic[core->periodic_count++] = q;
	q->slot = (uint8_t)core->periodic_count;
}

static uint64_t expected_end(const struct poll_policy_queue *q)
{
	return q->last_ticks + (uint64_t)(q->mean_ticks + 4 * q->dev_ticks) + 64;
}

static void queue_learn(struct poll_policy_core *core, struct poll_policy_queue *q, uint64_t at)
{
	int64_t gap = (int64_t)(at > q->last_ticks ? MIN(at - q->last_ticks, GAP_MAX) : 0);
	int64_t off = gap - q->mean_ticks;
	uint64_t hot, price = core->price_ticks[0];

	if (q->samples++ == 0) {
		q->mean_ticks = gap;
		q->dev_ticks = gap / 2;
	} else {
		q->mean_ticks += off / 8;
		q->dev_ticks += ((off < 0 ? -off : off) - q->dev_ticks) / 4;
	}
	if (q->samples >= REGULAR_MIN && q->dev_ticks * 8 <= q->mean_ticks)
		periodic_add(core, q);
	else
		periodic_del(core, q);
	hot = (uint64_t)(q->mean_ticks + 4 * q->dev_ticks);
	q->hot_ticks = hot > HOT_MAX * price ? price : MAX(hot, price);
}

/* --- the core -------------------------------------------------------------------------------- */

static uint64_t price_of(uint64_t price)
{
	return MAX(PRICE_MIN, MIN(price, PRICE_MAX));
}

static uint64_t paid(const struct poll_policy_core *core, uint64_t wake_ticks, bool kicked)
{
	uint64_t sum = MIN(wake_ticks, PRICE_MAX) + (kicked ? core->exit_ticks : 0);

	return sum * core->weight_x16 / 16;
}

static void prices_set(struct poll_policy_core *core)
{
	core->price_ticks[0] = price_of(paid(core, core->wake_ticks, true));
	core->price_ticks[1] = price_of(paid(core, core->wake_ticks, false));
}

void poll_policy_init(struct poll_policy_core *core, const struct poll_policy_cfg *cfg)
{
	memset(core, 0, sizeof(*core));
	core->exit_ticks = MIN(cfg->exit_ticks, PRICE_MAX);
	core->weight_x16 = cfg->weight_x16 ? MIN(cfg->weight_x16, 1u << 16) : 16;
	core->wake_given = cfg->wake_given;
	core->wake_ticks = cfg->wake_ticks;
	prices_set(core);
	core->credit_ticks = CREDIT_START * core->price_ticks[0];
}

void poll_policy_queue_init(struct poll_policy_core *core, struct poll_policy_queue *q,
                            uint64_t mode)
{
	memset(q, 0, sizeof(*q));
	q->mode = POLL_POLICY_AUTO;
	q->hot_ticks = core->price_ticks[0];
	poll_policy_mode_set(core, q, mode);
}

void poll_policy_mode_set(struct poll_policy_core *core, struct poll_policy_queue *q, uint64_t mode)
{
	core->always += mode == POLL_POLICY_ALWAYS;
	core->always -= q->mode == POLL_POLICY_ALWAYS;
	q->mode = mode;
	q->samples = 0;
	q->hot_ticks = mode == POLL_POLICY_AUTO ? core->price_ticks[0] : mode;
	periodic_del(core, q);
	/* What a fixed time granted before the change ends with it. */
	core->fixed_until_ticks = 0;
	core->decided = false;
}

void poll_policy_queue_drop(struct poll_policy_core *core, struct poll_policy_queue *q)
{
	poll_policy_mode_set(core, q, 0);
}

/*
 * Without credit the core polls for one price each time, and long gaps alone never earn any. So one
 * price is lent after a while, and after twice as long with each price not yet paid back: n gaps
 * cost at most 2 x optimum + (CREDIT_START + log2(n / PATIENCE_GAPS)) prices.
 */
static void credit_lend(struct poll_policy_core *core)
{
	if (!core->clipped || ++core->clipped_gaps < PATIENCE_GAPS << core->debt)
		return;
	core->clipped_gaps = 0;
	if (core->debt == DEBT_MAX)
		return;
	core->debt++;
	core->credit_ticks += core->price_ticks[core->busy];
}

static void credit_settle(struct poll_policy_core *core, uint64_t earned, uint64_t cost)
{
	uint64_t price = core->price_ticks[core->busy];

	/* Polling on for a queue with a fixed time was not this policy's choice. */
	if (!core->slept && core->sleep_at_ticks > core->auto_until_ticks)
		return;
	core->credit_ticks += earned;
	core->credit_ticks -= MIN(cost, core->credit_ticks);
	if (core->credit_ticks >= CREDIT_MAX * price) {
		core->credit_ticks = CREDIT_MAX * price;
		if (core->debt) {
			core->debt--;
			core->credit_ticks -= price;
		}
	}
	credit_lend(core);
}

/* The gap is over and known: what would each way have cost, and what did it really cost? */
static void gap_learn(struct poll_policy_core *core, uint64_t gap)
{
	unsigned busy = core->busy;
	uint64_t price = core->price_ticks[busy];
	uint64_t cost = core->slept ? core->polled_ticks + core->paid_ticks : gap;

	for (unsigned i = 0; i < POLL_POLICY_WAYS; i++) {
		uint64_t plan = core->plan_ticks[i], *sum = &core->cost_ticks[busy][i];

		*sum -= *sum >> COST_SHIFT;
		*sum += (gap <= plan ? gap : plan + price) << 8;
	}
	credit_settle(core, 2 * MIN(gap, price), cost);

	hist_add(&core->steady[busy], gap, STEADY_GAPS);
	hist_add(&core->recent[busy], gap, RECENT_GAPS);
	hist_add(&core->after[busy][core->history], gap, AFTER_GAPS);
	core->prev_gap_ticks[busy] = gap;
	core->missed = core->slept;
	core->history = (core->history << 1 | (gap > price)) % POLL_POLICY_HISTORIES;
}

void poll_policy_progress(struct poll_policy_core *core, struct poll_policy_queue *q, uint64_t at,
                          uint64_t now)
{
	if (q->mode == 0)
		return;
	if (q->mode != POLL_POLICY_AUTO) {
		q->last_ticks = now;
		if (q->mode != POLL_POLICY_ALWAYS)
			core->fixed_until_ticks = MAX(core->fixed_until_ticks, now + q->mode);
		core->decided = false;
		return;
	}
	if (q->last_ticks != now)
		queue_learn(core, q, at);
	q->last_ticks = now;
	if (core->decided && core->last_ticks != now)
		gap_learn(core, at > core->last_ticks ? MIN(at - core->last_ticks, GAP_MAX) : 0);
	core->last_ticks = now;
	core->decided = false;
	core->slept = false;
}

void poll_policy_sleeps(struct poll_policy_core *core, uint64_t now)
{
	if (core->slept)
		return; /* again, after a wake-up that had nothing to do with queues */
	core->slept = true;
	core->polled_ticks = now - core->last_ticks;
	core->paid_ticks = core->price_ticks[core->busy];
}

void poll_policy_wake_learn(struct poll_policy_core *core, uint64_t wake_ticks)
{
	uint64_t known = core->wake_ticks;

	if (core->wake_given)
		return;
	/* One that was held up, by a hypervisor below say, is no rule. */
	if (core->wake_seen)
		wake_ticks = known - known / 8 + MIN(wake_ticks, OUTLIER * known + 8) / 8;
	core->wake_seen = true;
	core->wake_ticks = wake_ticks;
	prices_set(core);
}

void poll_policy_woke(struct poll_policy_core *core, uint64_t wake_ticks, bool kicked)
{
	core->paid_ticks = paid(core, wake_ticks, kicked);
	poll_policy_wake_learn(core, wake_ticks);
}

/* The nearest arrival expected: worth polling for if it comes sooner than a sleep is dear. */
static uint64_t nearest_plan(const struct poll_policy_core *core, uint64_t price,
                             uint64_t otherwise)
{
	uint64_t nearest = UINT64_MAX, end = 0;

	for (uint32_t i = 0; i < core->periodic_count; i++) {
		const struct poll_policy_queue *q = core->periodic[i];
		uint64_t mid = q->last_ticks + (uint64_t)q->mean_ticks;

		if (expected_end(q) <= core->last_ticks || mid >= nearest)
			continue; /* overdue: it has stopped */
		nearest = mid;
		end = expected_end(q);
	}
	if (nearest == UINT64_MAX)
		return otherwise;
	return nearest < core->last_ticks + price ? end - core->last_ticks : 0;
}

/*
 * The way in use stays unless another has been better by more than chance; the first has the most
 * gaps behind it and need only be better.
 */
static unsigned way_choose(struct poll_policy_core *core, bool in_flight)
{
	const uint64_t *cost = core->cost_ticks[in_flight];
	unsigned best = 0, way = core->way[in_flight];

	for (unsigned i = 1; i < POLL_POLICY_WAYS; i++)
		if (cost[i] < cost[best])
			best = i;
	if (cost[best] < worth_more_than(cost[way]))
		way = best;
	else if (cost[POLL_POLICY_STEADY] < cost[way])
		way = POLL_POLICY_STEADY;
	core->way[in_flight] = (uint8_t)way;
	return way;
}

void poll_policy_decide(struct poll_policy_core *core, bool in_flight)
{
	uint64_t price = core->price_ticks[in_flight], *plan = core->plan_ticks, wanted, chosen;
	struct poll_policy_hist *after = &core->after[in_flight][core->history];
	uint64_t prev =
	        core->prev_gap_ticks[core->steady[in_flight].total ? in_flight : !in_flight];

	core->busy = in_flight;
	plan[POLL_POLICY_STEADY] = hist_best(&core->steady[in_flight], price, core->missed);
	plan[POLL_POLICY_RECENT] = hist_best(&core->recent[in_flight], price, core->missed);
	plan[POLL_POLICY_AFTER] = after->total < AFTER_MIN_GAPS * WEIGHT
	                                  ? plan[POLL_POLICY_STEADY]
	                                  : hist_best(after, price, core->missed);
	plan[POLL_POLICY_REPEAT] = prev < price ? prev + prev / 4 : 0;
	if (!core->steady[in_flight].total)
		plan[POLL_POLICY_STEADY] = plan[POLL_POLICY_REPEAT];
	plan[POLL_POLICY_NEAREST] = nearest_plan(core, price, plan[POLL_POLICY_STEADY]);
	wanted = plan[way_choose(core, in_flight)];
	chosen = MAX(wanted, price - MIN(price, core->credit_ticks));
	chosen = MIN(chosen, price + core->credit_ticks);
	core->clipped = chosen != wanted;
	core->auto_until_ticks = core->last_ticks + chosen;
	core->sleep_at_ticks =
	        core->always ? UINT64_MAX : MAX(core->auto_until_ticks, core->fixed_until_ticks);
	core->decided = true;
}
