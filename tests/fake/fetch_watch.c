#include "tests/fake/fetch_watch.h"

#include <stdlib.h>
#include <string.h>

#define SEEN   1u
#define LIVE   2u
#define BEGINS 4u

static struct {
	uint8_t *base, *mark; /* a mark for each byte */
	size_t len_bytes;
} piece[FETCH_PIECES_MAX];
static unsigned piece_count;
static unsigned long loads, doubles;
static size_t last_offset;
static const void *last_code;

/* --- what the test says ----------------------------------------------------------------------- */

void fetch_watch_add(void *base, size_t len_bytes)
{
	if (piece_count == FETCH_PIECES_MAX)
		abort();
	piece[piece_count].base = base;
	piece[piece_count].len_bytes = len_bytes;
	piece[piece_count++].mark = calloc(1, len_bytes);
}

/* The mark of a watched byte, or NULL. */
static uint8_t *mark_of(const void *at)
{
	for (unsigned i = 0; i < piece_count; i++) {
		size_t offset = (size_t)((const uint8_t *)at - piece[i].base);

		if (offset < piece[i].len_bytes)
			return &piece[i].mark[offset];
	}
	return NULL;
}

static void marks_set(const void *at, size_t len_bytes, uint8_t bit)
{
	for (size_t i = 0; i < len_bytes; i++)
		*mark_of((const uint8_t *)at + i) |= bit;
}

void fetch_watch_live(const void *at, size_t len_bytes)
{
	marks_set(at, len_bytes, LIVE);
}

void fetch_watch_begins(const void *at, size_t len_bytes)
{
	marks_set(at, len_bytes, BEGINS);
}

void fetch_watch_anew(void)
{
	for (unsigned i = 0; i < piece_count; i++)
		for (size_t n = 0; n < piece[i].len_bytes; n++)
			piece[i].mark[n] &= (uint8_t)~SEEN;
}

void fetch_watch_end(void)
{
	while (piece_count > 0)
		free(piece[--piece_count].mark);
	loads = doubles = 0;
	last_code = NULL;
}

unsigned long fetch_watch_loads(void)
{
	return loads;
}

unsigned long fetch_watch_doubles(void)
{
	return doubles;
}

size_t fetch_watch_offset(void)
{
	return last_offset;
}

const void *fetch_watch_code(void)
{
	return last_code;
}

/* --- what the compiler calls ------------------------------------------------------------------ */

static void byte_read(uint8_t *at, const void *code)
{
	uint8_t *mark = mark_of(at);

	if (!mark || *mark & LIVE)
		return;
	if (*mark & SEEN) {
		doubles++;
		last_code = code;
		for (unsigned i = 0; i < piece_count; i++)
			if ((size_t)(at - piece[i].base) < piece[i].len_bytes)
				last_offset = (size_t)(at - piece[i].base);
		*at ^= 0x5a;
	}
	*mark |= SEEN;
}

static void range_read(const void *at, size_t len_bytes, const void *code)
{
	uint8_t *mark = mark_of(at);

	if (!mark)
		return;
	loads++;
	if (*mark & BEGINS)
		fetch_watch_anew();
	for (size_t i = 0; i < len_bytes; i++)
		byte_read((uint8_t *)(uintptr_t)at + i, code);
}

/* The names and their arguments are the compiler's. What it calls for stores says nothing here. */
#define READ_OF(bytes)                                                                             \
	void __tsan_read##bytes(const void *at);                                                   \
	void __tsan_unaligned_read##bytes(const void *at);                                         \
	void __tsan_write##bytes(void *at);                                                        \
	void __tsan_unaligned_write##bytes(void *at);                                              \
	void __tsan_read##bytes(const void *at)                                                    \
	{                                                                                          \
		range_read(at, bytes, __builtin_return_address(0));                                \
	}                                                                                          \
	void __tsan_unaligned_read##bytes(const void *at)                                          \
	{                                                                                          \
		range_read(at, bytes, __builtin_return_address(0));                                \
	}                                                                                          \
	void __tsan_write##bytes(void *at)                                                         \
	{                                                                                          \
		(void)at;                                                                          \
	}                                                                                          \
	void __tsan_unaligned_write##bytes(void *at)                                               \
	{                                                                                          \
		(void)at;                                                                          \
	}

READ_OF(1)
READ_OF(2)
READ_OF(4)
READ_OF(8)
READ_OF(16)

/* Atomic accesses are calls as a whole. */
#define ATOMIC_OF(bits)                                                                            \
	uint##bits##_t __tsan_atomic##bits##_load(const uint##bits##_t *at, int order);            \
	void __tsan_atomic##bits##_store(uint##bits##_t *at, uint##bits##_t v, int order);         \
	uint##bits##_t __tsan_atomic##bits##_load(const uint##bits##_t *at, int order)             \
	{                                                                                          \
		(void)order;                                                                       \
		range_read(at, sizeof(*at), __builtin_return_address(0));                          \
		return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                      \
	}                                                                                          \
	void __tsan_atomic##bits##_store(uint##bits##_t *at, uint##bits##_t v, int order)          \
	{                                                                                          \
		(void)order;                                                                       \
		__atomic_store_n(at, v, __ATOMIC_SEQ_CST);                                         \
	}

ATOMIC_OF(8)
ATOMIC_OF(16)
ATOMIC_OF(32)
ATOMIC_OF(64)

void __tsan_init(void);
void __tsan_func_entry(void *caller);
void __tsan_func_exit(void);
void __tsan_atomic_thread_fence(int order);
void __tsan_read_range(const void *at, unsigned long len_bytes);
void __tsan_write_range(void *at, unsigned long len_bytes);

void __tsan_init(void)
{
}

void __tsan_func_entry(void *caller)
{
	(void)caller;
}

void __tsan_func_exit(void)
{
}

void __tsan_atomic_thread_fence(int order)
{
	(void)order;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void __tsan_read_range(const void *at, unsigned long len_bytes)
{
	range_read(at, len_bytes, __builtin_return_address(0));
}

void __tsan_write_range(void *at, unsigned long len_bytes)
{
	(void)at;
	(void)len_bytes;
}

/* Watched code is compiled with memcpy renamed to this: the library's own is not instrumented. */
void *fetch_memcpy(void *restrict dst, const void *restrict src, size_t len_bytes);

void *fetch_memcpy(void *restrict dst, const void *restrict src, size_t len_bytes)
{
	range_read(src, len_bytes, __builtin_return_address(0));
	return memcpy(dst, src, len_bytes);
}
