/* First cut. */
#include "tests/sim/sim.h"
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
int main(int argc, char **argv)
{
	struct sim_cfg cfg = {15000, 5000, 1, 20000, true};
	if (argc > 1) cfg.seed = (uint64_t)atoi(argv[1]);
	if (argc > 2) { cfg.wake_ns = (uint64_t)atoi(argv[2])*3/4; cfg.exit_ns = (uint64_t)atoi(argv[2]) - cfg.wake_ns; }
	printf("%-20s %7s", "trace", "bound");
	for (unsigned p = 0; p < sim_policy_count; p++) printf(" %8s", sim_policies[p].name);
	printf("\n");
	for (unsigned i = 0; i < sim_trace_count; i++) {
		struct sim_result r0 = {0};
		uint64_t q = UINT64_MAX; char flags[64] = "";
		for (unsigned p = 0; p < sim_policy_count; p++) {
			struct sim_result r;
			sim_run(&sim_traces[i], &sim_policies[p], &cfg, &r);
			double ratio = (double)r.cost/(double)r.optimum;
			if (p == 0) { r0 = r; printf("%-20s %7.3f", sim_traces[i].name, (double)r.bound/(double)r.optimum);
				double lim = sim_traces[i].class == SIM_STEADY ? 1.15 : 2.0;
				if (lim < 1.05*(double)r.bound/(double)r.optimum && lim < 2) lim = 1.05*(double)r.bound/(double)r.optimum;
				if (r.cost > lim*(double)r.optimum + 2*20000) strcat(flags, " LIMIT"); }
			if (!strncmp(sim_policies[p].name, "qemu", 4)) {
				double mine = (double)r0.cost/(double)r0.optimum;
				(void)q;
				if (mine > ratio) { strcat(flags, " "); strcat(flags, sim_policies[p].name+5);}
			}
			printf(" %8.4f", ratio);
		}
		printf("%s\n", flags);
	}
	return 0;
}
