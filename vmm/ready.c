#include "vmm/ready.h"

#include "arch/platform.h"

#define WORD_BITS   64u
#define FIRST_WORDS 8u /* a cache line */

void ready_init(struct ready *r, enum ready_kind kind)
{
	memset(r, 0, sizeof(*r));
	r->kind = kind;
}

static int words_alloc(struct ready *r, uint32_t count)
{
	uint32_t room = MAX(r->word_room, FIRST_WORDS);
	atomic_uint_least64_t *word;

	while (room < count)
		room *= 2;
	word = plat_mem_alloc(room * sizeof(*word), CACHE_LINE_BYTES);
	if (!word)
		return -ENOMEM;
	for (uint32_t i = 0; i < r->word_count; i++)
		atomic_store_explicit(&word[i], r->word[i], memory_order_relaxed);
	r->word = word;
	r->word_room = room;
	return 0;
}

/* The summary as the words say. */
static void summary_make(struct ready *r)
{
	uint64_t summary = 0;

	for (r->span_shift = 0; r->word_count > WORD_BITS << r->span_shift;)
		r->span_shift++;
	for (uint32_t i = 0; i < r->word_count; i++)
		if (atomic_load_explicit(&r->word[i], memory_order_relaxed))
			summary |= BIT(i >> r->span_shift);
	atomic_store_explicit(&r->summary, summary, memory_order_relaxed);
}

int ready_grow(struct ready *r, uint32_t count)
{
	uint32_t words = (count + WORD_BITS - 1) / WORD_BITS;

	if (count > READY_MAX)
		return -ENOSPC;
	if (words > r->word_room && words_alloc(r, words))
		return -ENOMEM;
	r->word_count = MAX(r->word_count, words);
	r->summed = r->kind == READY_BITMAP || (r->kind == READY_BY_SIZE && count > READY_SCAN_MAX);
	summary_make(r);
	return 0;
}

bool ready_set(struct ready *r, uint32_t source)
{
	uint32_t word = source / WORD_BITS;
	uint64_t bit = BIT(source % WORD_BITS), span;

	/* Already set: whoever set it goes on to the summary and the wake-up. */
	if (atomic_fetch_or(&r->word[word], bit) & bit)
		return false;
	if (!r->summed)
		return true;
	/* A span that is still marked here has not been taken: the taker visits our word yet. */
	span = BIT(word >> r->span_shift);
	if (!(atomic_load(&r->summary) & span))
		atomic_fetch_or(&r->summary, span);
	return true;
}

void ready_begin(struct ready *r, struct ready_iter *it)
{
	*it = (struct ready_iter){.end_word = r->summed ? 0 : r->word_count};
	if (r->summed)
		it->spans = atomic_exchange(&r->summary, 0);
}

/* Moves to the next word that is not empty and takes its bits. */
static bool word_next(struct ready *r, struct ready_iter *it)
{
	for (;;) {
		while (it->next_word < it->end_word) {
			atomic_uint_least64_t *word = &r->word[it->next_word++];

			if (!atomic_load(word))
				continue;
			it->bits = atomic_exchange(word, 0);
			return true;
		}
		if (!it->spans)
			return false;
		it->next_word = (uint32_t)__builtin_ctzll(it->spans) << r->span_shift;
		it->end_word = MIN(it->next_word + (1u << r->span_shift), r->word_count);
		it->spans &= it->spans - 1;
	}
}

bool ready_next(struct ready *r, struct ready_iter *it, uint32_t *source)
{
	if (!it->bits && !word_next(r, it))
		return false;
	*source = (it->next_word - 1) * WORD_BITS + (uint32_t)__builtin_ctzll(it->bits);
	it->bits &= it->bits - 1;
	return true;
}
