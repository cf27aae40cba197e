/* The C library's memory functions, as platform.h promises them. */
#include "arch/platform.h"

/* The compiler would turn these loops into calls to the very function it compiles. */
#define NO_IDIOM __attribute__((optimize("no-tree-loop-distribute-patterns")))

/*
 * Plain stores, eight words a turn: as quick as memory on processors, and several times quicker
 * than REP under emulators, where whole guests are cleared and copied.
 */
#define BLOCK_WORDS 8u

typedef uint64_t __attribute__((may_alias, aligned(1))) word_t;

NO_IDIOM void *memcpy(void *restrict dst, const void *restrict src, size_t len_bytes)
{
	word_t *d = dst;
	const word_t *s = src;
	uint8_t *d8;
	const uint8_t *s8;

	for (; len_bytes >= BLOCK_WORDS * 8; len_bytes -= BLOCK_WORDS * 8) {
		uint64_t w0 = s[0], w1 = s[1], w2 = s[2], w3 = s[3];
		uint64_t w4 = s[4], w5 = s[5], w6 = s[6], w7 = s[7];

		d[0] = w0;
		d[1] = w1;
		d[2] = w2;
		d[3] = w3;
		d[4] = w4;
		d[5] = w5;
		d[6] = w6;
		d[7] = w7;
		d += BLOCK_WORDS;
		s += BLOCK_WORDS;
	}
	for (; len_bytes >= 8; len_bytes -= 8)
		*d++ = *s++;
	for (d8 = (uint8_t *)d, s8 = (const uint8_t *)s; len_bytes; len_bytes--)
		*d8++ = *s8++;
	return dst;
}

NO_IDIOM void *memmove(void *dst, const void *src, size_t len_bytes)
{
	char *d = dst;
	const char *s = src;

	if ((uintptr_t)d - (uintptr_t)s >= len_bytes)
		return memcpy(dst, src, len_bytes);
	while (len_bytes--)
		d[len_bytes] = s[len_bytes];
	return dst;
}

NO_IDIOM void *memset(void *dst, int byte, size_t len_bytes)
{
	uint64_t fill = (uint8_t)byte * 0x0101010101010101ull;
	word_t *d = dst;
	uint8_t *d8;

	for (; len_bytes >= BLOCK_WORDS * 8; len_bytes -= BLOCK_WORDS * 8) {
		d[0] = fill;
		d[1] = fill;
		d[2] = fill;
		d[3] = fill;
		d[4] = fill;
		d[5] = fill;
		d[6] = fill;
		d[7] = fill;
		d += BLOCK_WORDS;
	}
	for (; len_bytes >= 8; len_bytes -= 8)
		*d++ = fill;
	for (d8 = (uint8_t *)d; len_bytes; len_bytes--)
		*d8++ = (uint8_t)byte;
	return dst;
}

int memcmp(const void *a, const void *b, size_t len_bytes)
{
	const uint8_t *x = a, *y = b;

	for (size_t i = 0; i < len_bytes; i++)
		if (x[i] != y[i])
			return x[i] < y[i] ? -1 : 1;
	return 0;
}

NO_IDIOM size_t strlen(const char *s)
{
	size_t n = 0;

	while (s[n])
		n++;
	return n;
}

int strcmp(const char *a, const char *b)
{
	return strncmp(a, b, SIZE_MAX);
}

int strncmp(const char *a, const char *b, size_t len_bytes)
{
	for (size_t i = 0; i < len_bytes; i++) {
		if (a[i] != b[i])
			return (uint8_t)a[i] < (uint8_t)b[i] ? -1 : 1;
		if (!a[i])
			return 0;
	}
	return 0;
}
