/*
 * fetch_mutant.h: what test_fetch.c must find. fetch_mutant.c is compiled as the code under watch.
 */
#ifndef QUELL_TESTS_UNIT_FETCH_MUTANT_H
#define QUELL_TESTS_UNIT_FETCH_MUTANT_H

#include "arch/types.h"

uint32_t fetch_mutant_read_once(const volatile uint32_t *len_bytes);

/* A length is checked, then read again: what it returns may be above max. 0: refused. */
uint32_t fetch_mutant_check_then_use(const volatile uint32_t *len_bytes, uint32_t max);

/* The same by memcpy. */
uint32_t fetch_mutant_copy_twice(const void *from);

#endif
