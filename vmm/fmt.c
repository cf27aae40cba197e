/*
 * fmt.c: formatted text without a C library. One sink counts every byte and stores those that fit.
 */
#include "vmm/fmt.h"

struct fmt_sink {
	char *buf;
	size_t size; /* of buf */
	size_t len;  /* of the whole text so far */
};

/* One conversion: %[flags][width][.precision][length]verb. */
struct fmt_spec {
	bool left, zero;
	size_t width;
	size_t precision; /* SIZE_MAX: none given */
	unsigned longs;   /* 1 for l and z, 2 for ll; all are 64 bits here */
};

static void fmt_put(struct fmt_sink *sink, char c)
{
	if (sink->len + 1 < sink->size)
		sink->buf[sink->len] = c;
	sink->len++;
}

static void fmt_fill(struct fmt_sink *sink, char c, size_t count)
{
	while (count--)
		fmt_put(sink, c);
}

/* Text of len bytes, the first sign_len of which stay before zero padding. */
static void fmt_field(struct fmt_sink *sink, const struct fmt_spec *spec, const char *text,
                      size_t len, size_t sign_len)
{
	size_t pad = spec->width > len ? spec->width - len : 0;

	if (pad && !spec->left && !spec->zero)
		fmt_fill(sink, ' ', pad);
	for (size_t i = 0; i < sign_len; i++)
		fmt_put(sink, text[i]);
	if (pad && !spec->left && spec->zero)
		fmt_fill(sink, '0', pad);
	for (size_t i = sign_len; i < len; i++)
		fmt_put(sink, text[i]);
	if (spec->left)
		fmt_fill(sink, ' ', pad);
}

static void fmt_number(struct fmt_sink *sink, const struct fmt_spec *spec, uint64_t value,
                       unsigned base, const char *digits, const char *sign)
{
	char text[24], *end = text + sizeof(text), *p = end;
	size_t sign_len = 0;

	do {
		*--p = digits[value % base];
		value /= base;
	} while (value);
	while (sign[sign_len])
		sign_len++;
	for (size_t i = sign_len; i--;)
		*--p = sign[i];
	fmt_field(sink, spec, p, (size_t)(end - p), sign_len);
}

static void fmt_string(struct fmt_sink *sink, struct fmt_spec *spec, const char *text)
{
	size_t len = 0;

	if (!text)
		text = "(null)";
	/* A precision bounds the read as well: the text need not end with NUL. */
	while (len < spec->precision && text[len])
		len++;
	spec->zero = false;
	fmt_field(sink, spec, text, len, 0);
}

int fmt_vsnprintf(char *buf, size_t size, const char *fmt, va_list args)
{
	static const char lower[] = "0123456789abcdef", upper[] = "0123456789ABCDEF";
	struct fmt_sink sink = {buf, size, 0};

	for (; *fmt; fmt++) {
		struct fmt_spec spec = {.precision = SIZE_MAX};
		char c;

		if (*fmt != '%') {
			fmt_put(&sink, *fmt);
			continue;
		}
		for (fmt++; *fmt == '-' || *fmt == '0'; fmt++) {
			if (*fmt == '-')
				spec.left = true;
			else
				spec.zero = true;
		}
		if (*fmt == '*') {
			int width = va_arg(args, int);

			spec.left |= width < 0;
			spec.width = width < 0 ? 0 - (size_t)width : (size_t)width;
			fmt++;
		}
		for (; *fmt >= '0' && *fmt <= '9'; fmt++)
			spec.width = spec.width * 10 + (size_t)(*fmt - '0');
		if (*fmt == '.') {
			spec.precision = 0;
			if (*++fmt == '*') {
				int precision = va_arg(args, int);

				spec.precision = precision < 0 ? SIZE_MAX : (size_t)precision;
				fmt++;
			}
			for (; *fmt >= '0' && *fmt <= '9'; fmt++)
				spec.precision = spec.precision * 10 + (size_t)(*fmt - '0');
		}
		for (; *fmt == 'l' || *fmt == 'z'; fmt++)
			spec.longs++;

		switch (*fmt) {
		case 'd':
		case 'i': {
			int64_t value = spec.longs ? va_arg(args, long) : va_arg(args, int);

			fmt_number(&sink, &spec, value < 0 ? 0 - (uint64_t)value : (uint64_t)value,
			           10, lower, value < 0 ? "-" : "");
			break;
		}
		case 'u':
		case 'x':
		case 'X': {
			uint64_t value =
			        spec.longs ? va_arg(args, unsigned long) : va_arg(args, unsigned);

			fmt_number(&sink, &spec, value, *fmt == 'u' ? 10 : 16,
			           *fmt == 'X' ? upper : lower, "");
			break;
		}
		case 'p':
			fmt_number(&sink, &spec, (uintptr_t)va_arg(args, void *), 16, lower, "0x");
			break;
		case 's': fmt_string(&sink, &spec, va_arg(args, const char *)); break;
		case 'c':
			c = (char)va_arg(args, int);
			spec.zero = false;
			fmt_field(&sink, &spec, &c, 1, 0);
			break;
		case '%': fmt_put(&sink, '%'); break;
		case '\0': /* a lone % at the end */ fmt--; break;
		default: /* unknown: shown, so that it is noticed */
			fmt_put(&sink, '%');
			fmt_put(&sink, *fmt);
			break;
		}
	}
	if (size)
		buf[MIN(sink.len, size - 1)] = '\0';
	return (int)sink.len;
}

int fmt_snprintf(char *buf, size_t size, const char *fmt, ...)
{
	va_list args;
	int len;

	va_start(args, fmt);
	len = fmt_vsnprintf(buf, size, fmt, args);
	va_end(args);
	return len;
}
