/*
 * A fuzzer as a test program: its seeds, then a stream of inputs made from them, the same in every
 * run. Given files it runs those and nothing else.
 *
 * usage: NAME [--rounds N] [FILE...]
 *        NAME --seeds DIR              writes the seeds to files there
 */
#include "tests/fuzz/fuzz.h"

#include <sanitizer/common_interface_defs.h>
#include <signal.h>
#include <unistd.h>

static uint8_t input[FUZZ_INPUT_MAX];
static size_t input_bytes;
static char finding[256];
static uint64_t seed = 0x9e3779b97f4a7c15ull;

/* --- the input that broke it ------------------------------------------------------------------ */

static void finding_save(void)
{
	FILE *f = fopen(finding, "wb");

	if (f) {
		fwrite(input, 1, input_bytes, f);
		fclose(f);
	}
	fprintf(stderr, "the input is in %s; give that file to %s to repeat it\n", finding,
	        fuzz_name);
}

static void on_abort(int signal)
{
	(void)signal;
	finding_save();
	_exit(1);
}

/* --- the stream ------------------------------------------------------------------------------- */

static uint64_t rnd(uint64_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed % below;
}

static unsigned seed_count(void)
{
	static uint8_t ignored[FUZZ_INPUT_MAX];
	unsigned count = 0;

	while (fuzz_seed(count, ignored))
		count++;
	return count;
}

static void remove_some(void)
{
	size_t at = rnd(input_bytes), len = 1 + rnd(MIN(input_bytes - at, 16));

	memmove(input + at, input + at + len, input_bytes - at - len);
	input_bytes -= len;
}

static void insert_some(void)
{
	size_t at = rnd(input_bytes + 1), len = 1 + rnd(8);

	if (input_bytes + len > sizeof(input))
		return;
	memmove(input + at + len, input + at, input_bytes - at);
	for (size_t i = 0; i < len; i++)
		input[at + i] = (uint8_t)rnd(256);
	input_bytes += len;
}

/* The rest of another seed from somewhere on. */
static void splice(unsigned seeds)
{
	static uint8_t other[FUZZ_INPUT_MAX];
	size_t len = fuzz_seed((unsigned)rnd(seeds), other), from = rnd(len);
	size_t at = rnd(input_bytes + 1), take = MIN(len - from, sizeof(input) - at);

	memcpy(input + at, other + from, take);
	input_bytes = at + take;
}

static void mutate(unsigned seeds)
{
	static const uint8_t edges[] = {0, 1, 0x7f, 0x80, 0xfe, 0xff};

	if (!input_bytes)
		insert_some();
	switch (rnd(7)) {
	case 0: input[rnd(input_bytes)] ^= (uint8_t)(1u << rnd(8)); break;
	case 1: input[rnd(input_bytes)] = (uint8_t)rnd(256); break;
	case 2: input[rnd(input_bytes)] = edges[rnd(sizeof(edges))]; break;
	case 3: input[rnd(input_bytes)] += (uint8_t)(rnd(2) ? 1 : 255); break;
	case 4: remove_some(); break;
	case 5: insert_some(); break;
	case 6: splice(seeds); break;
	}
}

static void stream_next(unsigned seeds)
{
	if (rnd(16) == 0) {
		input_bytes = 1 + rnd(256);
		for (size_t i = 0; i < input_bytes; i++)
			input[i] = (uint8_t)rnd(256);
		return;
	}
	input_bytes = fuzz_seed((unsigned)rnd(seeds), input);
	for (unsigned i = 0, n = 1u << rnd(5); i < n; i++)
		mutate(seeds);
}

/* --- running ---------------------------------------------------------------------------------- */

/* In memory of its exact length, so that a look past the end is noticed. */
static void run(void)
{
	uint8_t *exact = malloc(input_bytes ? input_bytes : 1);

	memcpy(exact, input, input_bytes);
	LLVMFuzzerTestOneInput(exact, input_bytes);
	free(exact);
}

static int run_file(const char *path)
{
	FILE *f = fopen(path, "rb");

	if (!f) {
		perror(path);
		return 1;
	}
	input_bytes = fread(input, 1, sizeof(input), f);
	fclose(f);
	run();
	printf("ok %s\n", path);
	return 0;
}

static int seeds_write(const char *dir)
{
	char path[512];

	for (unsigned i = 0; (input_bytes = fuzz_seed(i, input)); i++) {
		FILE *f;

		snprintf(path, sizeof(path), "%s/seed-%03u", dir, i);
		f = fopen(path, "wb");
		if (!f || fwrite(input, 1, input_bytes, f) != input_bytes || fclose(f)) {
			perror(path);
			return 1;
		}
	}
	return 0;
}

int main(int argc, char **argv)
{
	unsigned rounds = fuzz_rounds, seeds = seed_count();
	int at = 1, failed = 0;

	snprintf(finding, sizeof(finding), "%s.finding", argv[0]);
	signal(SIGABRT, on_abort);
	__sanitizer_set_death_callback(finding_save);
	if (argc == 3 && !strcmp(argv[1], "--seeds"))
		return seeds_write(argv[2]);
	if (argc >= 3 && !strcmp(argv[1], "--rounds")) {
		rounds = (unsigned)strtoul(argv[2], NULL, 0);
		at = 3;
	}
	if (at < argc) {
		while (at < argc)
			failed |= run_file(argv[at++]);
		return failed;
	}
	for (unsigned i = 0; (input_bytes = fuzz_seed(i, input)); i++)
		run();
	printf("ok %s_seeds\n", fuzz_name);
	fflush(stdout);
	for (unsigned i = 0; i < rounds; i++) {
		stream_next(seeds);
		run();
	}
	printf("ok %s_stream\n", fuzz_name);
	return 0;
}
