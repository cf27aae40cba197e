/*
 * test.h: the smallest unit-test harness. A test file defines static void functions and lists them
 * with TESTS; each prints one line "ok NAME" or "FAIL NAME: file:line: expression", a skip prints
 * "SKIP NAME: why". The exit code is 1 if any failed.
 */
#ifndef QUELL_TESTS_UNIT_TEST_H
#define QUELL_TESTS_UNIT_TEST_H

#include <stdbool.h>
#include <stdio.h>

static int test_failed, test_case_failed;
static const char *test_skip_why;

#define CHECK(cond)                                                                                \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			printf("  %s:%d: CHECK(%s)\n", __FILE__, __LINE__, #cond);                 \
			test_case_failed = 1;                                                      \
		}                                                                                  \
	} while (0)

/* Compares integers and shows both. */
#define CHECK_EQ(a, b)                                                                             \
	do {                                                                                       \
		unsigned long long a_ = (unsigned long long)(a), b_ = (unsigned long long)(b);     \
		if (a_ != b_) {                                                                    \
			printf("  %s:%d: %s = %#llx, %s = %#llx\n", __FILE__, __LINE__, #a, a_,    \
			       #b, b_);                                                            \
			test_case_failed = 1;                                                      \
		}                                                                                  \
	} while (0)

#define SKIP(why)                                                                                  \
	do {                                                                                       \
		test_skip_why = (why);                                                             \
		return;                                                                            \
	} while (0)

struct test_case {
	const char *name;
	void (*run)(void);
};

/* clang-format off */
#define T(function) {#function, function}
/* clang-format on */

#define TESTS(...)                                                                                 \
	int main(void)                                                                             \
	{                                                                                          \
		static const struct test_case cases[] = {__VA_ARGS__};                             \
		for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {                    \
			test_case_failed = 0;                                                      \
			test_skip_why = NULL;                                                      \
			cases[i].run();                                                            \
			if (test_case_failed)                                                      \
				test_failed = 1;                                                   \
			if (test_skip_why)                                                         \
				printf("SKIP %s: %s\n", cases[i].name, test_skip_why);             \
			else                                                                       \
				printf("%s %s\n", test_case_failed ? "FAIL" : "ok",                \
				       cases[i].name);                                             \
			fflush(stdout);                                                            \
		}                                                                                  \
		return test_failed;                                                                \
	}

#endif
