/*
 * toml.c: a strict subset of TOML 1.0. The whole text is proved to be UTF-8 first, so that the rest
 * may count a character for every byte that is no continuation byte.
 */
#include "vmm/toml.h"
#include "vmm/fmt.h"
#include "vmm/utf8.h"

int toml_fail(struct manifest_error *err, struct manifest_pos pos, const char *fmt, ...)
{
	va_list args;

	err->pos = pos;
	va_start(args, fmt);
	fmt_vsnprintf(err->text, sizeof(err->text), fmt, args);
	va_end(args);
	return -EINVAL;
}

#define FAIL_HERE(toml, ...) toml_fail((toml)->err, (toml)->pos, __VA_ARGS__)

/* --- characters --- */

/* The character at i bytes ahead, -1 at the end. */
static int peek_at(const struct toml *toml, size_t i)
{
	return (size_t)(toml->end - toml->at) > i ? (uint8_t)toml->at[i] : -1;
}

static int peek(const struct toml *toml)
{
	return peek_at(toml, 0);
}

static void advance(struct toml *toml, size_t count_bytes)
{
	while (count_bytes--) {
		uint8_t c = (uint8_t)*toml->at++;

		if (c == '\n') {
			toml->pos.line++;
			toml->pos.col = 1;
		} else if ((c & 0xc0) != 0x80) {
			toml->pos.col++;
		}
	}
}

static bool is_control(int c)
{
	return (c >= 0 && c < 0x20 && c != '\t') || c == 0x7f;
}

static bool is_digit(int c)
{
	return c >= '0' && c <= '9';
}

static bool is_key_char(int c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' ||
	       c == '-';
}

static unsigned digit_value(int c)
{
	if (is_digit(c))
		return (unsigned)(c - '0');
	if (c >= 'a' && c <= 'f')
		return (unsigned)(c - 'a') + 10;
	if (c >= 'A' && c <= 'F')
		return (unsigned)(c - 'A') + 10;
	return 99;
}

static bool at_newline(const struct toml *toml)
{
	return peek(toml) == '\n' || (peek(toml) == '\r' && peek_at(toml, 1) == '\n');
}

static void skip_space(struct toml *toml)
{
	while (peek(toml) == ' ' || peek(toml) == '\t')
		advance(toml, 1);
}

static int fail_control(struct toml *toml, const char *where)
{
	if (peek(toml) == '\r')
		return FAIL_HERE(toml,
		                 "a carriage return without a line feed %s: end lines with "
		                 "LF or CR LF",
		                 where);
	return FAIL_HERE(toml,
	                 "control character 0x%02x %s: remove it, or write it as \\u00%02X in a "
	                 "\"string\"",
	                 (unsigned)peek(toml), where, (unsigned)peek(toml));
}

static int skip_comment(struct toml *toml)
{
	if (peek(toml) != '#')
		return 0;
	while (peek(toml) >= 0 && !at_newline(toml)) {
		if (is_control(peek(toml)))
			return fail_control(toml, "in a comment");
		advance(toml, 1);
	}
	return 0;
}

static int skip_newline(struct toml *toml)
{
	advance(toml, peek(toml) == '\r' ? 2 : 1);
	return 0;
}

/* Blank lines, and comments: between statements and inside arrays. */
static int skip_blank(struct toml *toml)
{
	for (;;) {
		skip_space(toml);
		if (skip_comment(toml))
			return -EINVAL;
		if (!at_newline(toml))
			return 0;
		skip_newline(toml);
	}
}

/* After a statement: only a comment may follow on its line. */
static int expect_line_end(struct toml *toml, const char *after)
{
	skip_space(toml);
	if (skip_comment(toml))
		return -EINVAL;
	if (peek(toml) < 0)
		return 0;
	if (at_newline(toml))
		return skip_newline(toml);
	if (is_control(peek(toml)))
		return fail_control(toml, after);
	return FAIL_HERE(toml, "unexpected text %s: one statement a line", after);
}

/* --- values --- */

static int string_append(struct toml *toml, struct toml_item *item, const char *bytes, unsigned len)
{
	if (item->string_len + len >= sizeof(item->string))
		return toml_fail(toml->err, item->value_pos, "string too long: at most %u bytes",
		                 (unsigned)sizeof(item->string) - 1);
	for (unsigned i = 0; i < len; i++)
		item->string[item->string_len++] = bytes[i];
	return 0;
}

static int parse_unicode(struct toml *toml, struct toml_item *item, struct manifest_pos pos,
                         unsigned digits)
{
	uint32_t code = 0;
	char bytes[4];

	for (unsigned i = 0; i < digits; i++) {
		unsigned value = digit_value(peek(toml));

		if (value > 15)
			return toml_fail(toml->err, pos, "\\%c needs %u hexadecimal digits",
			                 digits == 4 ? 'u' : 'U', digits);
		code = code << 4 | value;
		advance(toml, 1);
	}
	if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
		return toml_fail(toml->err, pos, "U+%04X is no Unicode character", code);
	if (!code)
		return toml_fail(toml->err, pos,
		                 "a string may not hold the character NUL: remove it");
	return string_append(toml, item, bytes, utf8_encode(code, bytes));
}

static int parse_escape(struct toml *toml, struct toml_item *item)
{
	static const char from[] = "btnfr\"\\", to[] = "\b\t\n\f\r\"\\";
	struct manifest_pos pos = toml->pos;
	int c = peek_at(toml, 1);

	for (unsigned i = 0; i < sizeof(from) - 1; i++) {
		if (c == from[i]) {
			advance(toml, 2);
			return string_append(toml, item, &to[i], 1);
		}
	}
	if (c == 'u' || c == 'U') {
		advance(toml, 2);
		return parse_unicode(toml, item, pos, c == 'u' ? 4 : 8);
	}
	return FAIL_HERE(
	        toml, "unknown escape after \\: TOML knows \\b \\t \\n \\f \\r \\\" \\\\ \\uXXXX "
	              "\\UXXXXXXXX; a 'literal string' has none");
}

static int parse_string(struct toml *toml, struct toml_item *item)
{
	char quote = *toml->at;

	item->type = TOML_STRING;
	item->string_len = 0;
	if (peek_at(toml, 1) == quote && peek_at(toml, 2) == quote)
		return FAIL_HERE(toml,
		                 "multi-line strings are not part of Quell's TOML subset: use one "
		                 "%c on each side",
		                 quote);
	advance(toml, 1);
	while (peek(toml) != quote) {
		char c;

		if (peek(toml) < 0 || at_newline(toml))
			return toml_fail(toml->err, item->value_pos,
			                 "string without an end: close it "
			                 "with %c on the same line",
			                 quote);
		if (is_control(peek(toml)))
			return fail_control(toml, "in a string");
		if (quote == '"' && peek(toml) == '\\') {
			if (parse_escape(toml, item))
				return -EINVAL;
			continue;
		}
		c = *toml->at;
		if (string_append(toml, item, &c, 1))
			return -EINVAL;
		advance(toml, 1);
	}
	advance(toml, 1);
	item->string[item->string_len] = '\0';
	return 0;
}

/* A run of characters of which numbers, dates and words are made. */
static size_t word_len(const struct toml *toml)
{
	size_t len = 0;

	while (is_key_char(peek_at(toml, len)) || peek_at(toml, len) == '+' ||
	       peek_at(toml, len) == '.' || peek_at(toml, len) == ':')
		len++;
	return len;
}

static bool word_is(const char *word, size_t len, const char *text)
{
	size_t i = 0;

	for (; i < len && text[i]; i++)
		if (word[i] != text[i])
			return false;
	return i == len && !text[i];
}

/* Digits of that base with single underscores between. Bounded by INT64_MAX + negative. */
static int parse_digits(struct toml *toml, const char *p, size_t len, unsigned base, bool negative,
                        int64_t *out)
{
	uint64_t limit = (uint64_t)INT64_MAX + negative, value = 0;

	for (size_t i = 0; i < len; i++) {
		unsigned digit = digit_value(p[i]);

		if (p[i] == '_' && i > 0 && i + 1 < len && p[i - 1] != '_')
			continue;
		if (digit >= base)
			return FAIL_HERE(toml,
			                 "malformed integer \"%.*s\": digits, with single "
			                 "underscores between them",
			                 (int)MIN(len, 40u), p);
		if (value > (limit - digit) / base)
			return FAIL_HERE(toml, "integer does not fit in 64 bits");
		value = value * base + digit;
	}
	*out = (int64_t)(negative ? 0 - value : value);
	return 0;
}

static int parse_integer(struct toml *toml, struct toml_item *item, size_t len)
{
	const char *p = toml->at;
	bool sign = *p == '+' || *p == '-', negative = *p == '-';
	unsigned base = 10;

	item->type = TOML_INTEGER;
	if (len > 2 && p[0] == '0' && (p[1] == 'x' || p[1] == 'o' || p[1] == 'b'))
		base = p[1] == 'x' ? 16 : p[1] == 'o' ? 8 : 2;
	if (base != 10) {
		p += 2;
		len -= 2;
	} else {
		p += sign;
		len -= sign;
		for (size_t i = 0; i < len; i++) {
			if (p[i] == '.' || p[i] == 'e' || p[i] == 'E')
				return FAIL_HERE(toml,
				                 "fractions are not part of Quell's TOML subset: "
				                 "write an integer");
			if (p[i] == ':' || (p[i] == '-' && i > 1))
				return FAIL_HERE(
				        toml,
				        "dates and times are not part of Quell's TOML subset");
		}
		if (len > 1 && p[0] == '0')
			return FAIL_HERE(toml,
			                 "an integer may not begin with 0: remove leading zeros");
	}
	if (!len)
		return FAIL_HERE(toml, "malformed integer: no digits");
	if (parse_digits(toml, p, len, base, negative, &item->integer))
		return -EINVAL;
	advance(toml, (size_t)(p + len - toml->at));
	return 0;
}

static int parse_scalar(struct toml *toml, struct toml_item *item)
{
	size_t len = word_len(toml);
	int c = peek(toml);

	item->value_pos = toml->pos;
	if (c == '"' || c == '\'')
		return parse_string(toml, item);
	if (c == '{')
		return FAIL_HERE(
		        toml, "inline tables are not part of Quell's TOML subset: write a [table] "
		              "of its own");
	if (c < 0 || at_newline(toml) || c == '#')
		return FAIL_HERE(toml, "value missing after =");
	if (is_control(c))
		return fail_control(toml, "where a value should be");
	if (!len)
		return FAIL_HERE(toml,
		                 "no value begins like this: write a \"string\", an integer, true, "
		                 "false or an [array]");
	if (word_is(toml->at, len, "true") || word_is(toml->at, len, "false")) {
		item->type = TOML_BOOLEAN;
		item->boolean = c == 't';
		advance(toml, len);
		return 0;
	}
	if (is_digit(c) || ((c == '+' || c == '-') && len > 1 && is_digit(peek_at(toml, 1))))
		return parse_integer(toml, item, len);
	if (word_is(toml->at, len, "inf") || word_is(toml->at, len, "nan"))
		return FAIL_HERE(toml,
		                 "fractions are not part of Quell's TOML subset: write an integer");
	return FAIL_HERE(toml,
	                 "\"%.*s\" is no value: put text in \"quotes\"; true and false are lower "
	                 "case",
	                 (int)MIN(len, 40u), toml->at);
}

/* The next element of an open array, or its end. */
static int parse_element(struct toml *toml, struct toml_item *item)
{
	if (skip_blank(toml))
		return -EINVAL;
	if (toml->array_begun && peek(toml) != ']') {
		if (peek(toml) != ',')
			return FAIL_HERE(toml, peek(toml) < 0
			                               ? "array without an end: close it with ]"
			                               : "expected , or ] in an array");
		advance(toml, 1);
		if (skip_blank(toml))
			return -EINVAL;
	}
	if (peek(toml) == ']') {
		advance(toml, 1);
		toml->in_array = false;
		item->kind = TOML_ARRAY_END;
		return expect_line_end(toml, "after an array");
	}
	if (peek(toml) < 0)
		return FAIL_HERE(toml, "array without an end: close it with ]");
	if (peek(toml) == '[')
		return FAIL_HERE(toml, "arrays in arrays are not part of Quell's TOML subset");
	if (peek(toml) == ',')
		return FAIL_HERE(toml, "value missing before ,");
	item->kind = TOML_ELEMENT;
	if (parse_scalar(toml, item))
		return -EINVAL;
	if (toml->array_begun && item->type != toml->element_type)
		return toml_fail(toml->err, item->value_pos,
		                 "an array's values must all be of one type");
	toml->array_begun = true;
	toml->element_type = item->type;
	return 0;
}

/* --- statements --- */

static int parse_key(struct toml *toml, struct toml_slice *key, const char *what)
{
	size_t len = 0;

	if (peek(toml) == '"' || peek(toml) == '\'')
		return FAIL_HERE(
		        toml, "quoted keys are not part of Quell's TOML subset: write the %s bare",
		        what);
	while (is_key_char(peek_at(toml, len)))
		len++;
	if (!len && is_control(peek(toml)) && !at_newline(toml))
		return fail_control(toml, "where a key should be");
	if (!len)
		return FAIL_HERE(toml, "%s missing: it is made of letters, digits, _ and -", what);
	key->text = toml->at;
	key->len = len;
	advance(toml, len);
	return 0;
}

/* [a.b] or [[a.b]]; spaces may stand inside the brackets, not between two of them. */
static int parse_header(struct toml *toml, struct toml_item *item)
{
	unsigned brackets = peek_at(toml, 1) == '[' ? 2 : 1;

	item->kind = brackets == 2 ? TOML_TABLE_ARRAY : TOML_TABLE;
	advance(toml, brackets);
	for (item->path_len = 0;;) {
		skip_space(toml);
		if (item->path_len == TOML_PATH_MAX)
			return toml_fail(toml->err, item->pos,
			                 "no table is nested this deep: Quell knows "
			                 "[host], [[guest]] and [[guest.disk]]");
		if (parse_key(toml, &item->path[item->path_len++], "table name"))
			return -EINVAL;
		skip_space(toml);
		if (peek(toml) != '.')
			break;
		advance(toml, 1);
	}
	for (unsigned i = 0; i < brackets; i++) {
		if (peek(toml) != ']')
			return FAIL_HERE(toml, "expected %s", brackets == 2 ? "]]" : "]");
		advance(toml, 1);
	}
	return expect_line_end(toml, "after a table's name");
}

static int parse_pair(struct toml *toml, struct toml_item *item)
{
	item->kind = TOML_PAIR;
	item->path_len = 1;
	if (parse_key(toml, &item->path[0], "key"))
		return -EINVAL;
	skip_space(toml);
	if (peek(toml) == '.')
		return FAIL_HERE(
		        toml, "dotted keys are not part of Quell's TOML subset: write a [table] of "
		              "its own");
	if (peek(toml) != '=')
		return FAIL_HERE(toml, "expected = after the key \"%.*s\"",
		                 (int)MIN(item->path[0].len, 40u), item->path[0].text);
	advance(toml, 1);
	skip_space(toml);
	if (peek(toml) == '[') {
		item->value_pos = toml->pos;
		item->type = TOML_ARRAY;
		toml->in_array = true;
		toml->array_begun = false;
		advance(toml, 1);
		return 0;
	}
	if (parse_scalar(toml, item))
		return -EINVAL;
	return expect_line_end(toml, "after a value");
}

int toml_init(struct toml *toml, const char *text, size_t len_bytes, struct manifest_error *err)
{
	*toml = (struct toml){.at = text, .end = text + len_bytes, .pos = {1, 1}, .err = err};
	while (toml->at < toml->end) {
		unsigned len = utf8_len(toml->at, (size_t)(toml->end - toml->at));

		if (!len)
			return FAIL_HERE(toml, "byte 0x%02x is not UTF-8: save the file as UTF-8",
			                 (uint8_t)*toml->at);
		advance(toml, len);
	}
	toml->at = text;
	toml->pos = (struct manifest_pos){1, 1};
	if (len_bytes >= 3 && (uint8_t)text[0] == 0xef && (uint8_t)text[1] == 0xbb &&
	    (uint8_t)text[2] == 0xbf)
		return FAIL_HERE(toml, "byte order mark: save the file as UTF-8 without one");
	return 0;
}

int toml_next(struct toml *toml, struct toml_item *item)
{
	if (toml->in_array)
		return parse_element(toml, item);
	if (skip_blank(toml))
		return -EINVAL;
	item->pos = toml->pos;
	item->value_pos = toml->pos;
	item->kind = TOML_END;
	if (peek(toml) < 0)
		return 0;
	return peek(toml) == '[' ? parse_header(toml, item) : parse_pair(toml, item);
}
