/*
 * Policies for the simulator: ours (the hypervisor's own object), QEMU's published rules written
 * from their description, and the trivial ones.
 */
#include "tests/sim/sim.h"

#include "vmm/poll_policy.h"

#include <string.h>

/* --- ours ------------------------------------------------------------------------------------ */

static struct poll_policy_core ours;
static struct poll_policy_queue ours_queue[SIM_SOURCE_MAX];
static unsigned ours_count;

static void ours_init(struct sim_policy *p, uint64_t wake_ns, uint64_t exit_ns, unsigned sources)
{
	struct poll_policy_cfg cfg = {.wake_ticks = wake_ns, .exit_ticks = exit_ns};

	(void)p;
	poll_policy_init(&ours, &cfg);
	ours_count = sources;
	for (unsigned i = 0; i < sources; i++)
		poll_policy_queue_init(&ours, &ours_queue[i], POLL_POLICY_AUTO);
}

static uint64_t ours_decide(struct sim_policy *p, uint64_t now, bool in_flight)
{
	uint64_t at = poll_policy_sleep_at(&ours, in_flight);

	(void)p;
	return at > now ? at - now : 0;
}

static void ours_learn(struct sim_policy *p, uint64_t now, uint64_t gap_ns, const uint64_t *arrived,
                       uint64_t slept_at, uint64_t woke_ns, bool kicked)
{
	(void)p;
	(void)gap_ns;
	if (woke_ns) {
		poll_policy_sleeps(&ours, slept_at);
		poll_policy_woke(&ours, woke_ns, kicked);
	}
	/* The first arrival first: it ends the gap. */
	for (unsigned round = 0; round < 2; round++)
		for (unsigned i = 0; i < ours_count; i++)
			if (arrived[i] != SIM_NEVER && (arrived[i] + woke_ns == now) == !round)
				poll_policy_progress(&ours, &ours_queue[i], arrived[i], now);
}

/* --- QEMU ------------------------------------------------------------------------------------ */

#define QEMU_CAP_NS   32768u
#define QEMU_START_NS 4000u
#define QEMU_IDLE_NS  7000000000ull

static struct {
	uint64_t source_ns[SIM_SOURCE_MAX];
	uint64_t idle_at[SIM_SOURCE_MAX]; /* then it is no longer polled */
	unsigned sources;
} qemu;

static void qemu_init(struct sim_policy *p, uint64_t wake_ns, uint64_t exit_ns, unsigned sources)
{
	(void)wake_ns;
	(void)exit_ns;
	memset(&qemu, 0, sizeof(qemu));
	qemu.sources = sources;
	for (unsigned i = 0; i < sources; i++)
		qemu.idle_at[i] = QEMU_IDLE_NS;
	p->poll_ns = 0;
}

static void qemu_active(const uint64_t *arrived, uint64_t now)
{
	for (unsigned i = 0; i < qemu.sources; i++)
		if (arrived[i] != SIM_NEVER)
			qemu.idle_at[i] = now + QEMU_IDLE_NS;
}

/* With every source dropped there is nothing to poll. One dropped among others would be found later
 * than the simulator has it: that is to QEMU's advantage. */
static bool qemu_polls(uint64_t now)
{
	for (unsigned i = 0; i < qemu.sources; i++)
		if (now < qemu.idle_at[i])
			return true;
	return false;
}

static uint64_t qemu_decide(struct sim_policy *p, uint64_t now, bool in_flight)
{
	(void)in_flight;
	return qemu_polls(now) ? p->poll_ns : 0;
}

/* The rule since 2016: within the present time, stay; beyond the cap, shrink; else grow. */
static uint64_t rule_a(uint64_t ns, uint64_t block_ns, uint64_t shrink)
{
	if (block_ns <= ns)
		return ns;
	if (block_ns > QEMU_CAP_NS)
		return shrink ? ns / shrink : 0;
	if (ns >= QEMU_CAP_NS || block_ns == QEMU_CAP_NS)
		return ns;
	ns = ns ? ns * 2 : QEMU_START_NS;
	return ns < QEMU_CAP_NS ? ns : QEMU_CAP_NS;
}

static void qemu_a_learn(struct sim_policy *p, uint64_t now, uint64_t gap_ns,
                         const uint64_t *arrived, uint64_t slept_at, uint64_t woke_ns, bool kicked)
{
	(void)slept_at;
	(void)kicked;
	p->poll_ns = rule_a(p->poll_ns, gap_ns + woke_ns, p->parameter);
	qemu_active(arrived, now);
}

/* 2025: the same for each source on its own; polls for the longest. */
static void qemu_s_learn(struct sim_policy *p, uint64_t now, uint64_t gap_ns,
                         const uint64_t *arrived, uint64_t slept_at, uint64_t woke_ns, bool kicked)
{
	(void)slept_at;
	(void)kicked;
	p->poll_ns = 0;
	for (unsigned i = 0; i < qemu.sources; i++) {
		if (arrived[i] != SIM_NEVER)
			qemu.source_ns[i] =
			        rule_a(qemu.source_ns[i], gap_ns + woke_ns, p->parameter);
		if (qemu.source_ns[i] > p->poll_ns)
			p->poll_ns = qemu.source_ns[i];
	}
	qemu_active(arrived, now);
}

/* 2026: each source with an event averages the time it waited, a quiet one adds it up; either
 * starts over at the cap. The context's time grows to the largest average, or halves when that is
 * small. */
static void qemu_b_learn(struct sim_policy *p, uint64_t now, uint64_t gap_ns,
                         const uint64_t *arrived, uint64_t slept_at, uint64_t woke_ns, bool kicked)
{
	uint64_t block_ns = gap_ns + woke_ns, largest = 0;

	(void)slept_at;
	(void)kicked;
	for (unsigned i = 0; i < qemu.sources; i++) {
		uint64_t *ns = &qemu.source_ns[i];

		if (arrived[i] == SIM_NEVER)
			*ns = *ns ? *ns + block_ns : 0;
		else
			*ns = *ns ? *ns - (*ns >> p->parameter) + (block_ns >> p->parameter)
			          : block_ns;
		if (*ns >= QEMU_CAP_NS)
			*ns = 0;
		if (arrived[i] != SIM_NEVER && *ns > largest)
			largest = *ns;
	}
	if (largest > p->poll_ns) {
		p->poll_ns = largest > p->poll_ns * 2 ? largest : p->poll_ns * 2;
		if (p->poll_ns > QEMU_CAP_NS)
			p->poll_ns = QEMU_CAP_NS;
	} else if (largest < p->poll_ns / 2) {
		p->poll_ns /= 2;
	}
	qemu_active(arrived, now);
}

/* --- the trivial ones ------------------------------------------------------------------------ */

static void fixed_init(struct sim_policy *p, uint64_t wake_ns, uint64_t exit_ns, unsigned sources)
{
	(void)sources;
	/* Parameter 1: the price of a sleep itself, the classic 2-competitive rule. */
	p->poll_ns = p->parameter == 1 ? wake_ns + exit_ns : p->parameter;
}

static uint64_t fixed_decide(struct sim_policy *p, uint64_t now, bool in_flight)
{
	(void)now;
	(void)in_flight;
	return p->poll_ns;
}

static void fixed_learn(struct sim_policy *p, uint64_t now, uint64_t gap_ns,
                        const uint64_t *arrived, uint64_t slept_at, uint64_t woke_ns, bool kicked)
{
	(void)p;
	(void)now;
	(void)gap_ns;
	(void)arrived;
	(void)slept_at;
	(void)woke_ns;
	(void)kicked;
}

#define FIXED fixed_init, fixed_decide, fixed_learn

struct sim_policy sim_policies[] = {
        {"quell", ours_init, ours_decide, ours_learn, 0, 0, NULL},
        {"qemu-a0", qemu_init, qemu_decide, qemu_a_learn, 0, 0, NULL},
        {"qemu-a2", qemu_init, qemu_decide, qemu_a_learn, 2, 0, NULL},
        {"qemu-s0", qemu_init, qemu_decide, qemu_s_learn, 0, 0, NULL},
        {"qemu-b3", qemu_init, qemu_decide, qemu_b_learn, 3, 0, NULL},
        {"price", FIXED, 1, 0, NULL},
        {"32us", FIXED, 32768, 0, NULL},
        {"never", FIXED, 0, 0, NULL},
        {"always", FIXED, SIM_NEVER, 0, NULL},
};
const unsigned sim_policy_count = sizeof(sim_policies) / sizeof(sim_policies[0]);
