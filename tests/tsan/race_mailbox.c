/*
 * race_mailbox.c: what other cores ask of the I/O core by mailbox, while it serves and sleeps: new
 * policies, letters, detach and attach. Each must be answered, and no request be lost or done
 * twice.
 */
#include "tests/tsan/rig.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SWITCHES     1000u
#define SWITCHES_RUN 50u /* then the guests go on unpolled for a while */

static const uint64_t policy[] = {0, 1000, IOQ_POLL_AUTO, IOQ_POLL_ALWAYS, 50000};

/* --- letters: several may send the same, so each has its own line in it --------------------------
 */

static struct note {
	struct ioloop_letter letter; /* first: run gets it back */
	atomic_uint_least64_t text[GUESTS], read[GUESTS];
} note;

static void note_read(struct ioloop_letter *letter)
{
	struct note *n = (struct note *)letter;

	for (unsigned i = 0; i < GUESTS; i++)
		atomic_store_explicit(&n->read[i],
		                      atomic_load_explicit(&n->text[i], memory_order_relaxed),
		                      memory_order_release);
}

static bool note_is_read(void *arg)
{
	unsigned sender = *(unsigned *)arg;

	return atomic_load(&note.read[sender]) == atomic_load(&note.text[sender]);
}

static bool note_send(unsigned sender)
{
	atomic_fetch_add_explicit(&note.text[sender], 1, memory_order_relaxed);
	ioloop_letter_post(&rig.loop, &note.letter);
	return rig_await(note_is_read, &sender);
}

/* --- policies ------------------------------------------------------------------------------------
 */

static bool policy_is_taken_over(void *arg)
{
	struct ioq *q = arg;

	return atomic_load(&q->is_poll_ns) == atomic_load(&q->want_poll_ns);
}

static bool policy_switch(struct ioq *q, uint64_t poll_ns)
{
	ioloop_poll_set(q, poll_ns);
	return rig_await(policy_is_taken_over, q);
}

/* How many times a policy was switched, one queue after the other, each time for another. */
static unsigned policies_switch(uint64_t *state, unsigned count, bool letters)
{
	static unsigned last[GUESTS];
	unsigned done = 0;

	for (; done < count && !atomic_load(&rig.lost); done++) {
		unsigned g = done % GUESTS;

		last[g] = (last[g] + 1 + random_next(state) % (ARRAY_LEN(policy) - 1)) %
		          ARRAY_LEN(policy);
		if (!policy_switch(&rig.guest[g].blk->queue[0].ioq, policy[last[g]]) ||
		    (letters && !note_send(0)))
			break;
		dither(state);
	}
	return done;
}

static bool has_stepped_on(void *arg)
{
	struct guest *g = arg;

	return atomic_load(&g->steps) >= g->steps_aim;
}

/* No other switch makes good what one has left undone: unpolled now, both guests must go on. */
static bool unpolled_go_on(void)
{
	bool good = true;

	for (unsigned i = 0; i < GUESTS; i++)
		good = good && policy_switch(&rig.guest[i].blk->queue[0].ioq, 0);
	for (unsigned i = 0; i < GUESTS; i++) {
		rig.guest[i].steps_aim = atomic_load(&rig.guest[i].steps) + 3;
		good = good && rig_await(has_stepped_on, &rig.guest[i]);
	}
	return good;
}

static void guests_run(pthread_t thread[GUESTS], void *(*first)(void *))
{
	for (unsigned i = 0; i < GUESTS; i++)
		if (pthread_create(&thread[i], NULL, i ? guest_main : first, &rig.guest[i]))
			abort();
}

static void guests_join(pthread_t thread[GUESTS])
{
	atomic_store(&rig.stop, 1);
	for (unsigned i = 0; i < GUESTS; i++)
		pthread_join(thread[i], NULL);
}

/* Policy switched 1,000 times under load: every request completes exactly once. */
static void switches(const char *name, bool event_idx)
{
	uint64_t state = 3, before, during, published = 0, taken = 0;
	pthread_t thread[GUESTS];
	unsigned done = 0;

	rig_start(policy[0], event_idx);
	guests_run(thread, guest_main);
	before = atomic_load(&rig.left);
	do
		done += policies_switch(&state, SWITCHES_RUN, false);
	while (unpolled_go_on() && done < SWITCHES);
	during = before - atomic_load(&rig.left);
	guests_join(thread);
	for (unsigned i = 0; i < GUESTS; i++) {
		published += rig.guest[i].published;
		taken += rig.guest[i].taken;
	}
	rig_stop();
	verdict(!atomic_load(&rig.lost) && done == SWITCHES && during > SWITCHES / 10 &&
	                taken == published && rig.served == published,
	        name, "%u switches during %llu requests; %llu published, %llu served, %llu taken",
	        done, (unsigned long long)during, (unsigned long long)published,
	        (unsigned long long)rig.served, (unsigned long long)taken);
}

/* All that the mailbox carries, from three cores. */
static void everything(const char *name, const struct limits *limits)
{
	uint64_t state = 4, published = 0, taken = 0, dropped = 0, resets;
	double end = seconds() + 2 * limits->time_s;
	pthread_t thread[GUESTS];
	unsigned done = 0;

	note = (struct note){.letter.run = note_read};
	rig_prepare(policy[0], true);
	ioloop_letter_add(&rig.loop, &note.letter);
	rig_go();
	guests_run(thread, guest_reset_main);
	while (seconds() < end && !atomic_load(&rig.lost))
		done += policies_switch(&state, 10, true);
	guests_join(thread);
	resets = rig.guest[0].resets;
	for (unsigned i = 0; i < GUESTS; i++) {
		published += rig.guest[i].published;
		taken += rig.guest[i].taken;
		dropped += rig.guest[i].dropped;
	}
	rig_stop();
	verdict(!atomic_load(&rig.lost) && done > 0 && resets > 0 && taken + dropped == published,
	        name,
	        "%u policies, %llu letters, %llu resets, %llu sleeps; %llu requests, %llu given up "
	        "by a reset",
	        done, (unsigned long long)atomic_load(&note.text[0]), (unsigned long long)resets,
	        (unsigned long long)core_waits(0), (unsigned long long)published,
	        (unsigned long long)dropped);
}

/* --- two who ask, and nothing else that would wake the I/O core ----------------------------------
 */

static struct sender {
	unsigned index;
	uint64_t state, asked;
	CACHE_ALIGN atomic_uint_least64_t round; /* that it has begun */
} senders[GUESTS];

/* The other may have asked in vain, which my next would hide: both begin a round together. */
static void round_begin(struct sender *s)
{
	struct sender *other = &senders[1 - s->index];
	uint64_t round = atomic_load(&s->round) + 1;

	atomic_store(&s->round, round);
	while (atomic_load(&other->round) < round && !atomic_load(&rig.stop) &&
	       !atomic_load(&rig.lost))
		sched_yield();
}

static void *sender_main(void *arg)
{
	struct sender *s = arg;
	struct ioq *q = &rig.guest[s->index].blk->queue[0].ioq;
	unsigned last = 0;

	while (!atomic_load(&rig.stop) && !atomic_load(&rig.lost)) {
		round_begin(s);
		short_delay(&s->state);
		if (random_next(&s->state) % 4) {
			note_send(s->index);
		} else {
			last ^= 1; /* no policy that polls for long: the core shall sleep */
			policy_switch(q, policy[last]);
		}
		s->asked++;
		dither(&s->state);
	}
	return NULL;
}

static void quiet(const char *name, const struct limits *limits)
{
	double end = seconds() + 2 * limits->time_s;
	pthread_t thread[GUESTS];
	uint64_t asked = 0;

	note = (struct note){.letter.run = note_read};
	memset(senders, 0, sizeof(senders));
	rig_prepare(policy[0], true);
	ioloop_letter_add(&rig.loop, &note.letter);
	rig_go();
	for (unsigned i = 0; i < GUESTS; i++) {
		senders[i].index = i;
		senders[i].state = 200 + i;
		if (pthread_create(&thread[i], NULL, sender_main, &senders[i]))
			abort();
	}
	while (seconds() < end && !atomic_load(&rig.lost))
		usleep(5000);
	guests_join(thread);
	for (unsigned i = 0; i < GUESTS; i++)
		asked += senders[i].asked;
	rig_stop();
	verdict(!atomic_load(&rig.lost) && core_waits(0) > 0, name,
	        "%llu asked and answered, %llu sleeps, %llu last looks that found something",
	        (unsigned long long)asked, (unsigned long long)core_waits(0),
	        (unsigned long long)rig.loop.counts.last_look_hits);
}

void race_mailbox(const struct limits *limits)
{
	if (case_wanted("mailbox_alone"))
		quiet("mailbox_alone", limits);
	if (case_wanted("mailbox_policies_letters_resets"))
		everything("mailbox_policies_letters_resets", limits);
	if (case_wanted("policy_1000_switches_event_idx"))
		switches("policy_1000_switches_event_idx", true);
	if (case_wanted("policy_1000_switches_flags"))
		switches("policy_1000_switches_flags", false);
}
