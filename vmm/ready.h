/*
 * ready.h: which of many sources want to be looked at. Any core sets a source's bit; one core, the
 * consumer, takes them. Two implementations stand behind it:
 *
 *   scan    one bit a source in an array of words, all of which the consumer looks at. Least work
 *           for who sets a bit; the look costs one load for each 64 sources.
 *   bitmap  besides, one summary word, each bit of which stands for a run of those words. The look
 *           costs one load however many sources there are, and setting may need a second atomic.
 *
 * A table that grows past READY_SCAN_MAX sources goes over to the bitmap.
 *
 * A bit that is set is found: what its setter wrote before is visible to the consumer after
 * ready_next gave the source. A look at nothing ready writes nothing.
 */
#ifndef QUELL_VMM_READY_H
#define QUELL_VMM_READY_H

#include "arch/types.h"

/*
 * Where a look at the words has become dearer than what a summary costs the setter and the taker,
 * for a source set every few passes (`make bench-native`, "ready").
 */
#define READY_SCAN_MAX 64u
#define READY_MAX      131072u

enum ready_kind { READY_BY_SIZE, READY_SCAN, READY_BITMAP };

struct ready {
	/* Fixed before other cores set bits. */
	atomic_uint_least64_t *word;
	uint32_t word_count;  /* in use */
	uint32_t word_room;   /* allocated */
	uint32_t span_shift;  /* log2 of the words that a summary bit stands for */
	bool summed;          /* bitmap */
	enum ready_kind kind; /* as asked for */
	CACHE_ALIGN atomic_uint_least64_t summary;
};

/* What ready_next has yet to visit. */
struct ready_iter {
	uint64_t spans; /* summary bits taken */
	uint64_t bits;  /* of the word before next_word */
	uint32_t next_word, end_word;
};

/* Empty table of no sources; READY_BY_SIZE but in tests and benchmarks. Boot core. */
void ready_init(struct ready *r, enum ready_kind kind);

/* Makes room for sources [0, count). Bits stay. Boot core, before other cores set any. -ENOSPC:
 * more than READY_MAX, -ENOMEM. */
int ready_grow(struct ready *r, uint32_t count);

/* Sets a bit: one atomic OR, at most one more with a summary. True: it was not set before, so this
 * caller has to see to it that the consumer is awake. Any core. */
bool ready_set(struct ready *r, uint32_t source);

/* Is anything ready? Loads only, relaxed; a caller that is about to sleep fences before. */
static inline bool ready_any(const struct ready *r)
{
	uint64_t any = 0;

	if (r->summed)
		return atomic_load_explicit(&r->summary, memory_order_relaxed) != 0;
	for (uint32_t i = 0; i < r->word_count; i++)
		any |= atomic_load_explicit(&r->word[i], memory_order_relaxed);
	return any != 0;
}

/* Begins to take what is ready. Consumer. */
void ready_begin(struct ready *r, struct ready_iter *it);

/* The next ready source, whose bit it clears; false: no more. Each word is visited once, so what
 * is set meanwhile may wait for the next time. Consumer. */
bool ready_next(struct ready *r, struct ready_iter *it, uint32_t *source);

#endif
