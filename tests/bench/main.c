#include "tests/bench/bench.h"

#include <stdio.h>
#include <string.h>

static const struct {
	const char *name;
	void (*run)(void);
} benches[] = {
        {"stages", bench_stages}, {"passes", bench_passes}, {"idle", bench_idle},
        {"steady", bench_steady}, {"ready", bench_ready},   {"threads", bench_threads},
};

/* All, or those named. */
int main(int argc, char **argv)
{
	tsc_ns(1);
	for (unsigned i = 0; i < ARRAY_LEN(benches); i++) {
		bool wanted = argc < 2;

		for (int a = 1; a < argc; a++)
			wanted |= strcmp(argv[a], benches[i].name) == 0;
		if (!wanted)
			continue;
		printf("--- %s\n", benches[i].name);
		bench_pin(bench_cpus() - 1);
		benches[i].run();
	}
	return 0;
}
