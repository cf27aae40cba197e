#include "vmm/ioloop.h"

/* From kick to first pass: a first guess, the policy learns it. */
#define WAKE_NS 15000ull
#define EXIT_NS 5000ull
/* No pass takes so long: the core was away. */
#define STOLEN_NS 100000ull
/* A cold queue without progress for longer is armed: from then on it costs nothing but one kick. */
#define COLD_IDLE_NS 10000000ull
#define POLL_BUDGET  256u
#define FIRST_QUEUES 64u
#define HOUSEKEEP_NS 10000000ull
/* A device whose completions cannot wake the core is looked at this often while it sleeps. */
#define BLIND_WAIT_NS 50000ull
/* With requests in flight no sleep is longer, so that a driver notices a dead device. */
#define FLIGHT_WAIT_NS 1000000000ull

static uint64_t ns_to_tsc(uint64_t ns)
{
	uint64_t hz = plat_tsc_hz();

	/* Start-up and policy changes only, so a divide is fine; split so that it cannot overflow. */
	return ns / 1000000000u * hz + ns % 1000000000u * (hz / 1000u) / 1000000u;
}

void ioloop_init(struct ioloop *loop, unsigned core)
{
	memset(loop, 0, sizeof(*loop));
	loop->core = core;
	ready_init(&loop->ready, READY_BY_SIZE);
	ready_init(&loop->changed, READY_BY_SIZE);
	loop->housekeep_tsc = ns_to_tsc(HOUSEKEEP_NS);
	loop->cold_idle_ticks = ns_to_tsc(COLD_IDLE_NS);
	loop->stolen_above_tsc = ns_to_tsc(STOLEN_NS);
	loop->now_tsc = plat_tsc();
	ioloop_costs_set(loop, EXIT_NS, 1);
}

void ioloop_costs_set(struct ioloop *loop, uint64_t exit_ns, uint32_t weight)
{
	poll_policy_init(&loop->policy, &(struct poll_policy_cfg){
	                                        .wake_ticks = ns_to_tsc(WAKE_NS),
	                                        .exit_ticks = ns_to_tsc(exit_ns),
	                                        .weight_x16 = weight * 16,
	                                });
}

int ioloop_dev_add(struct ioloop *loop, struct bio_dev *dev)
{
	for (uint32_t i = 0; i < loop->dev_count; i++)
		if (loop->dev[i] == dev)
			return 0;
	if (loop->dev_count == IOLOOP_DEV_MAX)
		return -ENOSPC;
	loop->dev[loop->dev_count++] = dev;
	return 0;
}

/* The policy's mode is poll_ns in ticks. */
static void poll_ns_apply(struct ioloop *loop, struct ioq *q)
{
	uint64_t mode = q->poll_ns;

	if (mode != IOQ_POLL_AUTO && mode != IOQ_POLL_ALWAYS)
		mode = ns_to_tsc(mode);
	poll_policy_mode_set(&loop->policy, &q->policy, mode);
}

static bool is_polled(const struct ioq *q)
{
	return q->policy.mode != 0;
}

/* Start-up memory is never given back, so each time twice as much as before. */
static int queue_room_grow(struct ioloop *loop)
{
	uint32_t room = MAX(loop->queue_room * 2, FIRST_QUEUES);
	struct ioq **all = plat_mem_alloc(4 * room * sizeof(struct ioq *), CACHE_LINE_BYTES);

	if (!all)
		return -ENOMEM;
	if (loop->queue_room) {
		memcpy(all, loop->hot, loop->hot_count * sizeof(all[0]));
		memcpy(all + room, loop->cold, loop->cold_count * sizeof(all[0]));
		memcpy(all + 2 * room, loop->queue, loop->queue_count * sizeof(all[0]));
		memcpy(all + 3 * room, loop->draining, loop->draining_count * sizeof(all[0]));
	}
	loop->hot = all;
	loop->cold = all + room;
	loop->queue = all + 2 * room;
	loop->draining = all + 3 * room;
	loop->queue_room = room;
	return 0;
}

int ioloop_queue_add(struct ioloop *loop, struct ioq *q)
{
	int error = ready_grow(&loop->ready, loop->queue_count + 1);

	if (!error)
		error = ready_grow(&loop->changed, loop->queue_count + 1);
	if (!error && loop->queue_count == loop->queue_room)
		error = queue_room_grow(loop);
	if (error)
		return error;
	q->loop = loop;
	q->id = loop->queue_count;
	q->state = IOQ_UNATTACHED;
	atomic_store_explicit(&q->want_poll_ns, q->poll_ns, memory_order_relaxed);
	atomic_store_explicit(&q->is_poll_ns, q->poll_ns, memory_order_relaxed);
	poll_policy_queue_init(&loop->policy, &q->policy, 0);
	loop->queue[loop->queue_count++] = q;
	return 0;
}

/* --- what other cores do ----------------------------------------------------------------- */

static void core_rouse(struct ioloop *loop)
{
	/* Pairs with the fence in sleep_try: either we see it asleep, or it sees our bit. */
	if (!atomic_load(&loop->sleeping))
		return;
	atomic_store_explicit(&loop->rouse_tsc, plat_tsc(), memory_order_relaxed);
	if (!atomic_exchange(&loop->wake, 1))
		plat_wake(loop->core);
}

void ioloop_kick(struct ioq *q)
{
	atomic_fetch_add_explicit(&q->kicks, 1, memory_order_relaxed);
	if (ready_set(&q->loop->ready, q->id))
		core_rouse(q->loop);
}

static void mailbox_post(struct ioq *q)
{
	ready_set(&q->loop->changed, q->id);
	atomic_store(&q->loop->mailbox, 1);
	core_rouse(q->loop);
}

void ioloop_attach(struct ioq *q)
{
	atomic_store(&q->want, 1);
	mailbox_post(q);
}

void ioloop_detach(struct ioq *q)
{
	atomic_store(&q->want, 0);
	mailbox_post(q);
}

void ioloop_poll_set(struct ioq *q, uint64_t poll_ns)
{
	atomic_store(&q->want_poll_ns, poll_ns);
	mailbox_post(q);
}

void ioloop_letter_add(struct ioloop *loop, struct ioloop_letter *letter)
{
	letter->next = loop->letters;
	loop->letters = letter;
}

void ioloop_letter_post(struct ioloop *loop, struct ioloop_letter *letter)
{
	atomic_store(&letter->posted, 1);
	atomic_store(&loop->mailbox, 1);
	core_rouse(loop);
}

void ioloop_stop(struct ioloop *loop)
{
	atomic_store(&loop->stop, 1);
	core_rouse(loop);
}

/* --- lists -------------------------------------------------------------------------------- */

static void list_add(struct ioq **list, uint32_t *count, struct ioq *q)
{
	q->list_pos = *count;
	list[(*count)++] = q;
}

static void list_del(struct ioq **list, uint32_t *count, struct ioq *q)
{
	struct ioq *last = list[--*count];

	list[q->list_pos] = last;
	last->list_pos = q->list_pos;
}

static void state_set(struct ioloop *loop, struct ioq *q, enum ioq_state state)
{
	if (q->state == state)
		return;
	if (q->state == IOQ_HOT)
		list_del(loop->hot, &loop->hot_count, q);
	else if (q->state == IOQ_COLD)
		list_del(loop->cold, &loop->cold_count, q);
	else if (q->state == IOQ_DRAINING)
		list_del(loop->draining, &loop->draining_count, q);
	q->state = state;
	if (state == IOQ_HOT)
		list_add(loop->hot, &loop->hot_count, q);
	else if (state == IOQ_COLD)
		list_add(loop->cold, &loop->cold_count, q);
	else if (state == IOQ_DRAINING)
		list_add(loop->draining, &loop->draining_count, q);
}

static void arm(struct ioloop *loop, struct ioq *q)
{
	q->ops->arm(q);
	q->counts.arms++;
	state_set(loop, q, IOQ_ARMED);
}

static void promote(struct ioloop *loop, struct ioq *q)
{
	if (q->state == IOQ_ARMED) {
		q->ops->disarm(q);
		q->counts.disarms++;
	}
	if (q->state != IOQ_HOT)
		loop->counts.promotions++;
	state_set(loop, q, IOQ_HOT);
	q->last_progress_ticks = loop->now_ticks;
}

/* --- serving ------------------------------------------------------------------------------- */

static void progress_note(struct ioloop *loop, struct ioq *q)
{
	q->last_progress_ticks = loop->now_ticks;
	poll_policy_progress(&loop->policy, &q->policy, loop->arrival_ticks, loop->now_ticks);
}

static bool serve(struct ioloop *loop, struct ioq *q)
{
	unsigned taken = q->ops->serve(q, IOLOOP_SERVE_MAX);

	if (!taken)
		return false;
	loop->taken += taken;
	progress_note(loop, q);
	return true;
}

/* Notifications on, with the look that finds a request published in between. */
static void arm_and_look(struct ioloop *loop, struct ioq *q)
{
	arm(loop, q);
	atomic_thread_fence(memory_order_seq_cst);
	if (q->ops->pending(q))
		ready_set(&loop->ready, q->id);
}

/*
 * A queue that is never polled: one helping for its kick, then armed again, with the look that
 * finds a request published in between. What is left waits behind its own ready bit, so it neither
 * starves others nor is starved.
 */
static bool serve_unpolled(struct ioloop *loop, struct ioq *q)
{
	bool progress = serve(loop, q);

	arm_and_look(loop, q);
	return progress;
}

static bool ready_serve_one(struct ioloop *loop, struct ioq *q)
{
	if (q->state == IOQ_UNATTACHED || q->state == IOQ_DRAINING)
		return false;
	if (!is_polled(q))
		return serve_unpolled(loop, q);
	if (q->state == IOQ_HOT)
		return false; /* the hot list serves it in this same pass */
	promote(loop, q);
	/* A kick is progress even when the sweep was quicker: its sender is active. */
	return true;
}

static NOINLINE bool ready_serve(struct ioloop *loop)
{
	struct ready_iter it;
	bool progress = false;
	uint32_t id;

	ready_begin(&loop->ready, &it);
	while (ready_next(&loop->ready, &it, &id))
		progress |= ready_serve_one(loop, loop->queue[id]);
	return progress;
}

/* Nothing has come for as long as it is worth waiting for, and nothing waits for a full device. */
static bool has_cooled(const struct ioloop *loop, struct ioq *q)
{
	return loop->now_ticks >= poll_policy_hot_until(&q->policy) && !q->ops->pending(q);
}

/* Each pass begins one queue further on, so that a full device has room for each in its turn. */
static bool hot_serve(struct ioloop *loop)
{
	uint32_t looks = loop->hot_count, at;
	bool progress = false;

	at = ++loop->hot_pos;
	while (looks-- > 0) {
		struct ioq *q;

		if (at >= loop->hot_count) {
			at = 0;
			if (loop->hot_pos >= loop->hot_count)
				loop->hot_pos = 0;
		}
		q = loop->hot[at];
		if (serve(loop, q)) {
			progress = true;
		} else if (unlikely(has_cooled(loop, q))) {
			loop->counts.demotions++;
			state_set(loop, q, IOQ_COLD); /* another takes its place at `at` */
			continue;
		}
		at++;
	}
	return progress;
}

/* Looks at queues that have just been armed; call after the fence. */
static bool look_again(struct ioloop *loop, struct ioq *const *list, uint32_t count)
{
	bool pending = false;

	for (uint32_t i = 0; i < count; i++) {
		struct ioq *q = list[i];

		if (!q->ops->pending(q))
			continue;
		promote(loop, q);
		pending = true;
	}
	return pending;
}

/* Else a busy core would sweep for ever over all that was ever used. */
static RARE bool cold_retire(struct ioloop *loop, struct ioq *const *list, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		arm(loop, list[i]);
	loop->counts.retired += count;
	atomic_thread_fence(memory_order_seq_cst);
	return look_again(loop, list, count);
}

/* A share of the pass: requests under way wait for it to end. */
static bool cold_sweep(struct ioloop *loop, bool busy)
{
	uint32_t looks = busy ? IOLOOP_BUSY_SWEEP + loop->taken : IOLOOP_COLD_SWEEP;
	uint32_t idle_count = 0;
	struct ioq *idle[IOLOOP_COLD_SWEEP];
	bool progress = false;

	if (loop->sweep_pos >= loop->cold_count)
		loop->sweep_pos = 0;
	/* No further than the list's end: past it might come, in the place of one that went hot, one
	 * that was looked at already. */
	looks = MIN(looks, MIN(loop->cold_count - loop->sweep_pos, IOLOOP_COLD_SWEEP));
	while (looks-- > 0) {
		struct ioq *q = loop->cold[loop->sweep_pos];

		if (q->ops->pending(q)) {
			promote(loop, q); /* the last takes its place at sweep_pos */
			progress |= serve(loop, q);
			continue;
		}
		loop->sweep_pos++;
		if (unlikely(loop->now_ticks - q->last_progress_ticks > loop->cold_idle_ticks) &&
		    q->ops->drained(q))
			idle[idle_count++] = q;
	}
	if (unlikely(idle_count))
		progress |= cold_retire(loop, idle, idle_count);
	return progress;
}

static bool devices_poll(struct ioloop *loop)
{
	bool progress = false;

	for (uint32_t i = 0; i < loop->dev_count; i++) {
		struct bio_dev *dev = loop->dev[i];

		if (dev->submitted) {
			dev->ops->commit(dev);
			loop->counts.commits++;
		}
		if (dev->in_flight && bio_poll(dev, POLL_BUDGET))
			progress = true;
	}
	return progress;
}

void ioq_completed(struct ioq *q)
{
	struct ioloop *loop = q->loop;

	if (q->completed)
		return;
	q->completed = true;
	q->next_completed = loop->completed_list;
	loop->completed_list = q;
}

void ioq_defer(struct ioq *q, uint64_t by_tsc)
{
	struct ioloop *loop = q->loop;

	q->deferred = true;
	q->defer_tsc = by_tsc;
	if (q->defer_listed)
		return;
	q->defer_listed = true;
	q->next_deferred = loop->deferred_list;
	loop->deferred_list = q;
}

static void publish(struct ioq *q)
{
	q->deferred = false;
	switch (q->ops->publish(q)) {
	case IOQ_SIGNAL_SENT: q->counts.interrupts++; break;
	case IOQ_SIGNAL_SUPPRESSED: q->counts.interrupts_suppressed++; break;
	case IOQ_SIGNAL_DEFERRED: q->counts.interrupts_deferred++; break;
	case IOQ_SIGNAL_NONE: break;
	}
}

/* Sends what was held back and is due, and forgets what was answered or whose driver has reset. */
static void deferred_publish(struct ioloop *loop)
{
	struct ioq **at = &loop->deferred_list;

	while (*at) {
		struct ioq *q = *at;

		if (q->deferred && q->state == IOQ_HOT &&
		    (int64_t)(loop->now_tsc - q->defer_tsc) < 0) {
			at = &q->next_deferred;
			continue;
		}
		*at = q->next_deferred;
		q->defer_listed = false;
		if (q->state == IOQ_DRAINING || q->state == IOQ_UNATTACHED)
			q->deferred = false;
		if (q->deferred)
			publish(q);
	}
}

static bool completed_publish(struct ioloop *loop)
{
	struct ioq *q = loop->completed_list;

	if (!q)
		return false;
	loop->completed_list = NULL;
	while (q) {
		struct ioq *next = q->next_completed;

		q->completed = false;
		/* A queue that drains belongs to a driver that has reset it. */
		if (likely(q->state != IOQ_DRAINING && q->state != IOQ_UNATTACHED)) {
			/* Who is answered mostly asks again soon: without a kick, then. */
			if (unlikely(q->state != IOQ_HOT) && is_polled(q))
				promote(loop, q);
			publish(q);
			progress_note(loop, q);
		}
		q = next;
	}
	return true;
}

/* --- configuration, between passes ----------------------------------------------------------- */

static void attach_try(struct ioloop *loop, struct ioq *q)
{
	if (q->ops->attach(q)) {
		atomic_store(&q->want, 0);
		return;
	}
	poll_ns_apply(loop, q);
	arm(loop, q);
	atomic_thread_fence(memory_order_seq_cst);
	atomic_store_explicit(&q->is, 1, memory_order_release);
	/* The driver may have published before it could kick. */
	if (q->policy.mode == POLL_POLICY_ALWAYS || q->ops->pending(q))
		ready_serve_one(loop, q);
}

static RARE void drained_check(struct ioloop *loop)
{
	/* Backwards, as in hot_serve. */
	for (uint32_t i = loop->draining_count; i-- > 0;) {
		struct ioq *q = loop->draining[i];

		if (!q->ops->drained(q))
			continue;
		state_set(loop, q, IOQ_UNATTACHED);
		atomic_store_explicit(&q->is, 0, memory_order_release);
		/* An attach may have been asked for meanwhile. */
		ready_set(&loop->changed, q->id);
		atomic_store(&loop->mailbox, 1);
	}
}

/* A new policy. Nothing is lost: who stops being polled is armed, with the last look. */
static void poll_change(struct ioloop *loop, struct ioq *q, uint64_t poll_ns)
{
	q->poll_ns = poll_ns;
	if (q->state != IOQ_UNATTACHED && q->state != IOQ_DRAINING)
		poll_ns_apply(loop, q);
	if ((q->state == IOQ_ARMED || q->state == IOQ_COLD) && q->policy.mode == POLL_POLICY_ALWAYS)
		promote(loop, q);
	else if ((q->state == IOQ_HOT || q->state == IOQ_COLD) && !is_polled(q))
		arm_and_look(loop, q);
	atomic_store_explicit(&q->is_poll_ns, poll_ns, memory_order_release);
}

static void drain(struct ioloop *loop, struct ioq *q)
{
	poll_policy_queue_drop(&loop->policy, &q->policy);
	state_set(loop, q, IOQ_DRAINING);
}

static void letters_open(struct ioloop *loop)
{
	for (struct ioloop_letter *l = loop->letters; l; l = l->next)
		if (atomic_exchange(&l->posted, 0))
			l->run(l);
}

static void queue_change(struct ioloop *loop, struct ioq *q)
{
	bool want = atomic_load_explicit(&q->want, memory_order_acquire);
	uint64_t poll_ns = atomic_load_explicit(&q->want_poll_ns, memory_order_acquire);

	if (poll_ns != q->poll_ns)
		poll_change(loop, q, poll_ns);
	if (want && q->state == IOQ_UNATTACHED)
		attach_try(loop, q);
	else if (!want && q->state != IOQ_UNATTACHED && q->state != IOQ_DRAINING)
		drain(loop, q);
}

static RARE void mailbox_serve(struct ioloop *loop)
{
	struct ready_iter it;
	uint32_t id;

	/* Before the changes are taken: what is posted from here on makes another round. */
	atomic_store(&loop->mailbox, 0);
	loop->counts.mailbox_rounds++;
	ready_begin(&loop->changed, &it);
	while (ready_next(&loop->changed, &it, &id))
		queue_change(loop, loop->queue[id]);
	letters_open(loop);
}

/* A pass that began much later than the one before: in between the core was not ours. */
static void now_update(struct ioloop *loop)
{
	uint64_t now = plat_tsc(), since = now - loop->now_tsc;

	if (unlikely(since > loop->stolen_above_tsc))
		loop->stolen_tsc += since - loop->stolen_above_tsc;
	loop->now_tsc = now;
	loop->now_ticks = now - loop->stolen_tsc;
	loop->arrival_ticks = loop->kick_ticks ? loop->kick_ticks : loop->now_ticks;
	loop->kick_ticks = 0;
}

bool ioloop_pass(struct ioloop *loop)
{
	bool progress = false;

	now_update(loop);
	loop->counts.passes++;
	loop->taken = 0;
	if (unlikely(atomic_load_explicit(&loop->mailbox, memory_order_relaxed))) {
		mailbox_serve(loop);
		progress = true;
	}
	if (unlikely(ready_any(&loop->ready)))
		progress |= ready_serve(loop);
	progress |= hot_serve(loop);
	progress |= cold_sweep(loop, progress);
	progress |= devices_poll(loop);
	progress |= completed_publish(loop);
	if (unlikely(loop->deferred_list))
		deferred_publish(loop);
	if (unlikely(loop->draining_count))
		drained_check(loop);
	if (!progress)
		loop->counts.empty_passes++;
	return progress;
}

/* --- sleep ------------------------------------------------------------------------------------ */

/* Arms all that is not armed. True: something was published meanwhile and is hot again. */
static bool arm_all(struct ioloop *loop)
{
	uint32_t hot = loop->hot_count, cold = loop->cold_count;
	bool pending;

	/* Emptied from the end, so the arrays still hold what was listed. */
	while (loop->hot_count > 0)
		arm(loop, loop->hot[loop->hot_count - 1]);
	while (loop->cold_count > 0)
		arm(loop, loop->cold[loop->cold_count - 1]);
	if (hot + cold == 0)
		return false;
	atomic_thread_fence(memory_order_seq_cst);
	/* A promotion writes hot[] no further than what was looked at. */
	pending = look_again(loop, loop->hot, hot);
	return look_again(loop, loop->cold, cold) || pending;
}

/* Completion interrupts off again. */
static void devices_irq_off(struct ioloop *loop)
{
	for (uint32_t i = 0; i < loop->dev_count; i++)
		if (loop->dev[i]->ops->irq_set)
			loop->dev[i]->ops->irq_set(loop->dev[i], false);
}

/* Completion interrupts on. False: some device already has one. *longest_ns shrinks to what the
 * devices can bear. */
static bool devices_irq_on(struct ioloop *loop, uint64_t *longest_ns)
{
	for (uint32_t i = 0; i < loop->dev_count; i++) {
		struct bio_dev *dev = loop->dev[i];

		if (!dev->in_flight)
			continue;
		*longest_ns = MIN(*longest_ns, dev->ops->irq_set ? FLIGHT_WAIT_NS : BLIND_WAIT_NS);
		if (dev->ops->irq_set && !dev->ops->irq_set(dev, true))
			return false;
	}
	return true;
}

static bool has_business(struct ioloop *loop)
{
	return ready_any(&loop->ready) || atomic_load(&loop->mailbox) || atomic_load(&loop->stop);
}

/* Tells the policy what the wake-up has cost. Time asleep is never stolen. */
static void wake_note(struct ioloop *loop)
{
	uint64_t rouse_tsc = atomic_load_explicit(&loop->rouse_tsc, memory_order_relaxed);

	loop->now_tsc = plat_tsc();
	loop->now_ticks = loop->now_tsc - loop->stolen_tsc;
	if (!rouse_tsc)
		return;
	rouse_tsc = MIN(rouse_tsc, loop->now_tsc); /* cores' clocks may differ a little */
	if (!ready_any(&loop->ready)) {
		poll_policy_wake_learn(&loop->policy, loop->now_tsc - rouse_tsc);
		return;
	}
	loop->counts.kick_wakes++;
	loop->kick_ticks = rouse_tsc - loop->stolen_tsc;
	poll_policy_woke(&loop->policy, loop->now_tsc - rouse_tsc, true);
}

static void sleep_try(struct ioloop *loop)
{
	uint64_t longest_ns = UINT64_MAX, deadline_tsc, slept_tsc;

	if (arm_all(loop)) {
		loop->counts.last_look_hits++;
		return;
	}
	if (unlikely(loop->deferred_list))
		deferred_publish(loop); /* none is hot now: all of it */
	atomic_store_explicit(&loop->rouse_tsc, 0, memory_order_relaxed);
	atomic_store(&loop->sleeping, 1);
	/* Against core_rouse: we say "asleep" before we look; they set a bit before they ask. */
	atomic_thread_fence(memory_order_seq_cst);
	if (has_business(loop) || !devices_irq_on(loop, &longest_ns)) {
		atomic_store(&loop->sleeping, 0);
		devices_irq_off(loop);
		loop->counts.last_look_hits++;
		return;
	}
	if (loop->housekeep_timed)
		longest_ns = MIN(longest_ns, HOUSEKEEP_NS);
	slept_tsc = plat_tsc();
	deadline_tsc = longest_ns == UINT64_MAX ? UINT64_MAX : slept_tsc + ns_to_tsc(longest_ns);
	loop->counts.sleeps++;
	poll_policy_sleeps(&loop->policy, slept_tsc - loop->stolen_tsc);
	plat_wait(&loop->wake, deadline_tsc);
	atomic_store(&loop->sleeping, 0);
	atomic_store(&loop->wake, 0);
	devices_irq_off(loop);
	loop->counts.wakes++;
	wake_note(loop);
	loop->counts.sleep_tsc += loop->now_tsc - slept_tsc;
	loop->housekeep_last_tsc = loop->now_tsc - loop->housekeep_tsc;
}

static bool has_flights(const struct ioloop *loop)
{
	for (uint32_t i = 0; i < loop->dev_count; i++)
		if (loop->dev[i]->in_flight)
			return true;
	return false;
}

void ioloop_run(struct ioloop *loop)
{
	while (!atomic_load_explicit(&loop->stop, memory_order_relaxed) || loop->draining_count ||
	       loop->deferred_list) {
		bool progress = ioloop_pass(loop);

		if (loop->housekeep &&
		    loop->now_tsc - loop->housekeep_last_tsc >= loop->housekeep_tsc) {
			loop->housekeep_last_tsc = loop->now_tsc;
			loop->housekeep();
		}
		if (progress)
			continue;
		if (poll_policy_notify_on(&loop->policy, POLL_POLICY_EMPTY, has_flights(loop),
		                          loop->now_ticks))
			sleep_try(loop);
		else
			plat_relax();
	}
}
