/*
 * fmt_snprintf against the C library's snprintf, and its own bounds.
 */
#include "tests/unit/test.h"
#include "vmm/fmt.h"
#include <stdlib.h>
#include <string.h>

#define SAME(...)                                                                                  \
	do {                                                                                       \
		char ours[128], theirs[128];                                                       \
		int ours_len = fmt_snprintf(ours, sizeof(ours), __VA_ARGS__);                      \
		int theirs_len = snprintf(theirs, sizeof(theirs), __VA_ARGS__);                    \
		CHECK_EQ(ours_len, theirs_len);                                                    \
		CHECK(strcmp(ours, theirs) == 0);                                                  \
	} while (0)

static void numbers(void)
{
	SAME("%d %i %u %x %X", -5, 0, 5u, 0xbeefu, 0xbeefu);
	SAME("%d %d", -2147483647 - 1, 2147483647);
	SAME("%ld %ld", INT64_MIN, INT64_MAX);
	SAME("%lu %llu %zu %lx", UINT64_MAX, 1ull << 63, (size_t)77, UINT64_MAX);
	SAME("%lld", -1234567890123ll);
	SAME("%p", (void *)0x1234);
}

static void widths(void)
{
	SAME("[%5d|%-5d|%05d|%05d]", 42, 42, 42, -42);
	SAME("[%2d|%016lx|%-8x|%08X]", 12345, 0xabcul, 0xau, 0xau);
	SAME("[%*d|%*d|%-*u]", 6, 7, -6, 7, 4, 9u);
	SAME("[%s|%8s|%-8s|%.3s|%8.2s|%.*s|%.0s]", "abc", "abc", "abc", "abcdef", "abcdef", 2,
	     "xyz", "q");
	SAME("[%c|%3c|%-3c] 100%%", 'a', 'b', 'c');
	SAME("%s", "");
}

static void bounds(void)
{
	char buf[8] = "unused";

	CHECK_EQ(fmt_snprintf(buf, 0, "abc%d", 12), 5);
	CHECK(strcmp(buf, "unused") == 0);
	CHECK_EQ(fmt_snprintf(NULL, 0, "abc"), 3);
	CHECK_EQ(fmt_snprintf(buf, 1, "abc"), 3);
	CHECK(buf[0] == '\0');
	memset(buf, 'z', sizeof(buf));
	CHECK_EQ(fmt_snprintf(buf, 4, "abcdef"), 6);
	CHECK(strcmp(buf, "abc") == 0 && buf[4] == 'z');
	CHECK_EQ(fmt_snprintf(buf, 4, "abc"), 3);
	CHECK(strcmp(buf, "abc") == 0);
}

/* A precision bounds what is read: without a NUL behind it, ASan would tell. */
static void no_terminator(void)
{
	char *text = strndup("abcd", 4);
	char buf[16];

	text[4] = 'X';
	CHECK_EQ(fmt_snprintf(buf, sizeof(buf), "%.*s", 5, text), 5);
	CHECK(strcmp(buf, "abcdX") == 0);
	free(text);
}

static void odd(void)
{
	char buf[32];
	const char *volatile null = NULL, *volatile fmt = "50%", *volatile unknown = "a%qb";

	fmt_snprintf(buf, sizeof(buf), "%s", null);
	CHECK(strcmp(buf, "(null)") == 0);
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
	CHECK_EQ(fmt_snprintf(buf, sizeof(buf), fmt), 2);
	CHECK(strcmp(buf, "50") == 0);
	fmt_snprintf(buf, sizeof(buf), unknown);
	CHECK(strcmp(buf, "a%qb") == 0);
}

TESTS(T(numbers), T(widths), T(bounds), T(no_terminator), T(odd))
