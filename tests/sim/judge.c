#include "tests/sim/sim.h"

static double ratio(const struct sim_result *r)
{
	return (double)r->cost / (double)r->optimum;
}

static double learning(const struct sim_cfg *cfg)
{
	return SIM_LEARNING * (double)(cfg->wake_ns + cfg->exit_ns);
}

double sim_limit(const struct sim_trace *trace, const struct sim_result *ours)
{
	double near = 1.05 * (double)ours->bound / (double)ours->optimum;

	if (trace->class != SIM_STEADY)
		return 2.0;
	return near < 1.15 ? 1.15 : near;
}

bool sim_limit_kept(const struct sim_trace *trace, const struct sim_cfg *cfg,
                    const struct sim_result *ours)
{
	return (double)ours->cost <= sim_limit(trace, ours) * (double)ours->optimum + learning(cfg);
}

bool sim_beats(const struct sim_trace *trace, const struct sim_cfg *cfg,
               const struct sim_result *ours, const struct sim_result *other, bool strict)
{
	double allowed = strict ? 0 : learning(cfg);

	if (trace->open)
		allowed += (double)other->cost / (double)other->served * (double)ours->served;
	else
		allowed += ratio(other) * (double)ours->optimum;
	/* A billionth for rounding. */
	return (double)ours->cost <= allowed * (1 + 1e-9);
}
