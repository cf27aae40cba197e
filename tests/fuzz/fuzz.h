/*
 * fuzz.h: what fuzzers share. A fuzzer is one file, fuzz_NAME.c, that defines the four names below.
 * Linked with clang's libFuzzer it searches (make fuzz); linked with replay.c it repeats, with any
 * compiler: its seeds, a fixed stream made from them, and the files it is given (make test).
 *
 * Most inputs are a stream of decisions. Past its end come zeros, so that any bytes are an input.
 */
#ifndef QUELL_TESTS_FUZZ_FUZZ_H
#define QUELL_TESTS_FUZZ_FUZZ_H

#include "arch/types.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUZZ_INPUT_MAX 4096u

/* One input. Returns 0; a broken invariant aborts. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

/* Seed number index into out, which has FUZZ_INPUT_MAX bytes; its length, 0: there are no more. */
size_t fuzz_seed(unsigned index, uint8_t *out);

/* How many inputs of the stream replay.c runs: what takes about a second. */
extern const unsigned fuzz_rounds;

extern const char fuzz_name[];

/* --- reading an input ------------------------------------------------------------------------- */

struct fuzz_in {
	const uint8_t *at, *end;
};

static inline bool fuzz_more(const struct fuzz_in *in)
{
	return in->at < in->end;
}

static inline uint8_t fuzz_u8(struct fuzz_in *in)
{
	return in->at < in->end ? *in->at++ : 0;
}

static inline uint16_t fuzz_u16(struct fuzz_in *in)
{
	uint16_t low = fuzz_u8(in);

	return (uint16_t)(low | fuzz_u8(in) << 8);
}

static inline uint32_t fuzz_u32(struct fuzz_in *in)
{
	uint32_t low = fuzz_u16(in);

	return low | (uint32_t)fuzz_u16(in) << 16;
}

static inline uint64_t fuzz_u64(struct fuzz_in *in)
{
	uint64_t low = fuzz_u32(in);

	return low | (uint64_t)fuzz_u32(in) << 32;
}

/* One byte's worth of choice below n, which is at most 256. */
static inline unsigned fuzz_below(struct fuzz_in *in, unsigned n)
{
	return fuzz_u8(in) % n;
}

/* --- writing a seed --------------------------------------------------------------------------- */

struct fuzz_out {
	uint8_t *at;
	size_t len_bytes;
};

static inline void fuzz_put(struct fuzz_out *out, uint64_t value, unsigned width_bytes)
{
	for (unsigned i = 0; i < width_bytes && out->len_bytes < FUZZ_INPUT_MAX; i++)
		out->at[out->len_bytes++] = (uint8_t)(value >> 8 * i);
}

/* Several bytes: the decisions of one step. */
#define FUZZ_PUT(out, ...)                                                                         \
	do {                                                                                       \
		static const uint8_t bytes_[] = {__VA_ARGS__};                                     \
		for (size_t i_ = 0; i_ < sizeof(bytes_); i_++)                                     \
			fuzz_put(out, bytes_[i_], 1);                                              \
	} while (0)

/* --- invariants ------------------------------------------------------------------------------- */

#define FUZZ_CHECK(cond)                                                                           \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			fprintf(stderr, "%s:%d: FUZZ_CHECK(%s)\n", __FILE__, __LINE__, #cond);     \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

#define FUZZ_EQ(a, b)                                                                              \
	do {                                                                                       \
		unsigned long long a_ = (unsigned long long)(a), b_ = (unsigned long long)(b);     \
		if (a_ != b_) {                                                                    \
			fprintf(stderr, "%s:%d: %s = %#llx, %s = %#llx\n", __FILE__, __LINE__, #a, \
			        a_, #b, b_);                                                       \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

#endif
