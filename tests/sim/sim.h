/*
 * sim.h: traces of arrivals, policies that poll or sleep, and what it costs; virtual time in ns.
 *
 * Model. The core serves all that has arrived and decides to poll for T. The nearest arrival comes
 * after a gap g. g <= T: found at once, g of polling spent. Else T spent, and the core sleeps until
 * the kick: it is awake wake_ns later, and the kick cost its sender exit_ns. Sources wait for their
 * service before they think of the next arrival (closed loop), so gaps are the policy's own.
 *   cost    = polling without success + weight x (latency added by sleeping)
 *   latency = wake_ns + exit_ns per sleep, and what other sources wait in that wake-up
 *   optimum = sum over the gaps met of min(g, price), price = weight x (wake_ns + exit_ns):
 *             what a clairvoyant pays who knows each gap but wakes by kicks as well
 *   bound   = the best single threshold on the gaps met, chosen afterwards: on gaps that are
 *             independent and alike no policy that cannot see the future is better but by luck
 * Traces of several queues are open: arrivals come at their own times, whatever the core does.
 * Their optimum is exact, over all sequences of polling and sleeping.
 */
#ifndef QUELL_TESTS_SIM_SIM_H
#define QUELL_TESTS_SIM_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_SOURCE_MAX 80u
#define SIM_NEVER      UINT64_MAX

enum sim_class {
	SIM_STEADY,  /* stationary: at most 1.15 x optimum; where bound is above, 1.05 x bound */
	SIM_CHANGE,  /* changes: at most 2 x optimum */
	SIM_ADVERSE, /* made to hurt, the same for all: at most 2 x optimum */
	SIM_ONLINE, /* made to hurt by an adversary who looks at each policy: at most 2 x optimum */
};

struct sim_rng {
	uint64_t state;
};
uint64_t sim_random(struct sim_rng *rng);
double sim_uniform(struct sim_rng *rng);     /* (0, 1) */
double sim_exponential(struct sim_rng *rng); /* mean 1 */
double sim_ln(double x);

struct sim_trace {
	const char *name;
	enum sim_class class;
	/* The next gap of a source just served. poll_ns: what the policy decided (only the online
	 * adversaries look). SIM_NEVER: not by itself. */
	uint64_t (*gap)(struct sim_trace *t, unsigned source, uint64_t poll_ns);
	unsigned sources;
	unsigned depth; /* of the disk; 0: none. Then source 0 is the disk, others the guest */
	bool open;      /* arrivals do not wait for service */
	double p[4];
	/* Working state. */
	struct sim_rng *rng; /* the source's */
	uint64_t count, phase;
	double level;
	uint64_t wake_ns, exit_ns; /* of the wake-up to come; a trace may change them */
};

struct sim_policy {
	const char *name;
	void (*init)(struct sim_policy *p, uint64_t wake_ns, uint64_t exit_ns, unsigned sources);
	/* How long to poll from now on: SIM_NEVER is for ever. */
	uint64_t (*decide)(struct sim_policy *p, uint64_t now, bool in_flight);
	/* The gap is over at now. arrived[i] is when source i's work came, SIM_NEVER if none did.
	 * woke_ns: 0 if polling found it. */
	void (*learn)(struct sim_policy *p, uint64_t now, uint64_t gap_ns, const uint64_t *arrived,
	              uint64_t slept_at, uint64_t woke_ns, bool kicked);
	uint64_t parameter;
	uint64_t poll_ns;
	void *state;
};

struct sim_result {
	uint64_t cost, optimum, bound, polled, latency, sleeps, kicks, gaps, served, end;
};

extern struct sim_trace sim_traces[];
extern const unsigned sim_trace_count;
extern struct sim_policy sim_policies[];
extern const unsigned sim_policy_count;

/* The first is ours; those with a name that begins "qemu" are QEMU's rules. */
#define SIM_OURS 0u

struct sim_cfg {
	uint64_t wake_ns, exit_ns, seed, gaps;
	bool want_bound;
};

void sim_run(const struct sim_trace *trace, struct sim_policy *policy, const struct sim_cfg *cfg,
             struct sim_result *result);

/* What learning may cost in one run, in prices of a sleep, beside each factor. */
#define SIM_LEARNING 16u

/* The factor of the optimum that a trace allows. */
double sim_limit(const struct sim_trace *trace, const struct sim_result *ours);
bool sim_limit_kept(const struct sim_trace *trace, const struct sim_cfg *cfg,
                    const struct sim_result *ours);

/*
 * No worse than other? Where arrivals are the same for all: by cost; where the adversary is online
 * or the guest waits for the disk, each policy meets gaps of its own: by cost over optimum. strict:
 * not even by what learning cost.
 */
bool sim_beats(const struct sim_trace *trace, const struct sim_cfg *cfg,
               const struct sim_result *ours, const struct sim_result *other, bool strict);

#endif
