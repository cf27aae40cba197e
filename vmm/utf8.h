/*
 * utf8.h: one character in UTF-8 (RFC 3629). Pure.
 */
#ifndef QUELL_VMM_UTF8_H
#define QUELL_VMM_UTF8_H

#include "arch/types.h"

/* Length of the sequence at text, of which left_bytes >= 1 may be read; 0: not UTF-8. Any core. */
unsigned utf8_len(const char *text, size_t left_bytes);

/* Writes a character (no surrogate, at most U+10FFFF) and returns its length. Any core. */
unsigned utf8_encode(uint32_t code, char out[4]);

#endif
