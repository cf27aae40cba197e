/*
 * race_loop.c: guests publish, kick and wait while the loop arms, looks, sleeps and completes.
 */
#include "tests/tsan/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const struct {
	const char *name;
	uint64_t poll_ns;
	bool event_idx;
	unsigned guests; /* alone, no other's kick makes good what is lost */
} cases[] = {
        {"races_poll_0_event_idx", 0, true, GUESTS},
        {"races_poll_0_flags", 0, false, GUESTS},
        {"races_poll_1us_event_idx", 1000, true, GUESTS},
        {"races_poll_1us_flags", 1000, false, GUESTS},
        {"races_alone_poll_0_event_idx", 0, true, 1},
        {"races_alone_poll_1us_flags", 1000, false, 1},
        {"races_poll_auto_event_idx", IOQ_POLL_AUTO, true, GUESTS},
        {"races_poll_auto_flags", IOQ_POLL_AUTO, false, GUESTS},
        {"races_poll_always_event_idx", IOQ_POLL_ALWAYS, true, GUESTS},
        {"races_poll_always_flags", IOQ_POLL_ALWAYS, false, GUESTS},
};

static void *clock_main(void *arg)
{
	double end = seconds() + *(double *)arg;

	while (!atomic_load(&rig.stop) && !atomic_load(&rig.lost) && seconds() < end)
		usleep(5000);
	atomic_store(&rig.stop, 1);
	return NULL;
}

static void race(const char *name, uint64_t poll_ns, bool event_idx, unsigned guests,
                 const struct limits *limits)
{
	pthread_t thread[GUESTS], clock;
	uint64_t published = 0, taken = 0, kicks = 0;
	double time_s = limits->time_s;

	rig_start(poll_ns, event_idx);
	atomic_store(&rig.left, limits->requests);
	pthread_create(&clock, NULL, clock_main, &time_s);
	for (unsigned i = 0; i < guests; i++)
		pthread_create(&thread[i], NULL, guest_main, &rig.guest[i]);
	for (unsigned i = 0; i < guests; i++)
		pthread_join(thread[i], NULL);
	pthread_join(clock, NULL);
	for (unsigned i = 0; i < guests; i++) {
		published += rig.guest[i].published;
		taken += rig.guest[i].taken;
		kicks += rig.guest[i].kicks;
	}
	rig_stop();
	verdict(!atomic_load(&rig.lost) && taken == published && rig.served == published, name,
	        "%llu requests, each complete once, %llu kicks, %llu sleeps, %llu last looks that "
	        "found something",
	        (unsigned long long)taken, (unsigned long long)kicks,
	        (unsigned long long)core_waits(0),
	        (unsigned long long)rig.loop.counts.last_look_hits);
}

static bool is_asleep(void *arg)
{
	(void)arg;
	return atomic_load(&rig.loop.sleeping);
}

/* Further than an index has bits, without a kick; then one that needs one. */
static void long_quiet(const char *name, bool event_idx)
{
	struct guest *g = &rig.guest[0];
	uint64_t quiet_kicks;
	bool good = true;

	rig_start(500000000, event_idx);
	for (unsigned i = 0; i < 70000 && good; i += 8) {
		for (unsigned n = 0; n < 8; n++)
			guest_publish(g);
		guest_kick_if_needed(g);
		while (good && g->taken != g->published)
			good = guest_used_wait(g);
	}
	quiet_kicks = g->kicks;
	good = good && quiet_kicks == 1 && rig_await(is_asleep, NULL);
	guest_publish(g);
	guest_kick_if_needed(g);
	good = good && g->kicks == 2 && guest_used_wait(g);
	rig_stop();
	verdict(good, name, "%llu requests, %llu kick; asleep; one request, %llu kick, served",
	        (unsigned long long)g->published - 1, (unsigned long long)quiet_kicks,
	        (unsigned long long)(g->kicks - quiet_kicks));
}

void race_loop(const struct limits *limits)
{
	for (unsigned i = 0; i < ARRAY_LEN(cases); i++)
		if (case_wanted(cases[i].name))
			race(cases[i].name, cases[i].poll_ns, cases[i].event_idx, cases[i].guests,
			     limits);
	for (unsigned event_idx = 0; event_idx < 2; event_idx++) {
		const char *name = event_idx ? "races_70000_then_sleep_event_idx"
		                             : "races_70000_then_sleep_flags";

		if (case_wanted(name))
			long_quiet(name, event_idx);
	}
}
