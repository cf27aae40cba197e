/*
 * fake/fetch_watch.h: finds bytes of guest memory that are read twice for one request, as code does
 * that checks what it read and then reads it again: the guest may have changed it in between.
 *
 * Code under watch is compiled with -fsanitize=thread and without that sanitizer's library: the
 * compiler then calls the functions in fetch_watch.c before each load and store. Everything else
 * is not seen. At the second read of a byte the byte is changed before the code gets it.
 */
#ifndef QUELL_TESTS_FAKE_FETCH_WATCH_H
#define QUELL_TESTS_FAKE_FETCH_WATCH_H

#include "arch/types.h"

/* Watches a piece of guest memory, beside those watched already. At most FETCH_PIECES_MAX. */
#define FETCH_PIECES_MAX 4u
void fetch_watch_add(void *base, size_t len_bytes);

/* These bytes may be read again and again: an index the driver moves, a flag. */
void fetch_watch_live(const void *at, size_t len_bytes);

/* Reading any of these bytes begins a new request: bytes read before may be read once more. */
void fetch_watch_begins(const void *at, size_t len_bytes);

/* A new request, whatever was read. */
void fetch_watch_anew(void);

/* Forgets everything. */
void fetch_watch_end(void);

/* Loads seen in watched memory since fetch_watch_end, and bytes that were read twice. */
unsigned long fetch_watch_loads(void);
unsigned long fetch_watch_doubles(void);

/* Where the last double read was: bytes from its piece's base; and the code that did it. */
size_t fetch_watch_offset(void);
const void *fetch_watch_code(void);

#endif
