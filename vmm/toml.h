/*
 * toml.h: reads a strict subset of TOML 1.0 (docs/manifest.md) one item at a time. Pure, bounded,
 * no allocation. What it accepts means the same to every TOML 1.0 reader; which keys and tables
 * exist, and that none comes twice, is its caller's business (vmm/manifest.c).
 */
#ifndef QUELL_VMM_TOML_H
#define QUELL_VMM_TOML_H

#include "arch/types.h"
#include "vmm/manifest.h"

enum toml_kind {
	TOML_END,
	TOML_TABLE,       /* [a] or [a.b]: path */
	TOML_TABLE_ARRAY, /* [[a]] or [[a.b]]: path */
	TOML_PAIR,        /* key = value: path[0], then type and value */
	TOML_ELEMENT,     /* one more value of the array that the last pair began */
	TOML_ARRAY_END,
};

enum toml_type { TOML_STRING, TOML_INTEGER, TOML_BOOLEAN, TOML_ARRAY };

#define TOML_PATH_MAX 2

/* A piece of the file's own text. */
struct toml_slice {
	const char *text;
	size_t len;
};

struct toml_item {
	enum toml_kind kind;
	struct manifest_pos pos; /* of the header or the key */
	uint32_t path_len;
	struct toml_slice path[TOML_PATH_MAX];
	struct manifest_pos value_pos; /* of the value or the element */
	enum toml_type type;
	int64_t integer;
	bool boolean;
	size_t string_len;
	char string[MANIFEST_CMDLINE_MAX]; /* escapes resolved, NUL behind */
};

struct toml {
	const char *at, *end;
	struct manifest_pos pos; /* of at */
	bool in_array, array_begun;
	enum toml_type element_type;
	struct manifest_error *err;
};

/* Begins. 0, or -EINVAL with err filled when text is not UTF-8. text and err must outlive toml.
 * Any core. TOML 1.0 "Spec". */
int toml_init(struct toml *toml, const char *text, size_t len_bytes, struct manifest_error *err);

/* The next item. 0, or -EINVAL with the error filled; then the reader is spent. */
int toml_next(struct toml *toml, struct toml_item *item);

/* Fills err at a position; always -EINVAL, so that callers can return it. */
int toml_fail(struct manifest_error *err, struct manifest_pos pos, const char *fmt, ...)
        PRINTF(3, 4);

#endif
