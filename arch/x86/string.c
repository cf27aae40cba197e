/* The C library's memory functions, as platform.h promises them. */
#include "arch/platform.h"

/* The compiler would turn these loops into calls to the very function it compiles. */
#define NO_IDIOM __attribute__((optimize("no-tree-loop-distribute-patterns")))

void *memcpy(void *restrict dst, const void *restrict src, size_t len_bytes)
{
	void *d = dst;
	const void *s = src;
	size_t n = len_bytes / 8;

	__asm__ volatile("rep movsq" : "+D"(d), "+S"(s), "+c"(n) : : "memory");
	n = len_bytes % 8;
	__asm__ volatile("rep movsb" : "+D"(d), "+S"(s), "+c"(n) : : "memory");
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

void *memset(void *dst, int byte, size_t len_bytes)
{
	void *d = dst;
	uint64_t fill = (uint8_t)byte * 0x0101010101010101ull;
	size_t n = len_bytes / 8;

	__asm__ volatile("rep stosq" : "+D"(d), "+c"(n) : "a"(fill) : "memory");
	n = len_bytes % 8;
	__asm__ volatile("rep stosb" : "+D"(d), "+c"(n) : "a"(fill) : "memory");
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
