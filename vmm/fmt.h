/*
 * fmt.h: formatted text without a C library.
 */
#ifndef QUELL_VMM_FMT_H
#define QUELL_VMM_FMT_H

#include "arch/types.h"
#include <stdarg.h>

/*
 * As snprintf and vsnprintf for %s %c %d %i %u %x %X %p %% with flags '-', '0', width and '*',
 * precision for %s, and l, ll, z. Always ends with NUL when size > 0; returns the length the whole
 * text would have. Any core.
 */
int fmt_snprintf(char *buf, size_t size, const char *fmt, ...) PRINTF(3, 4);
int fmt_vsnprintf(char *buf, size_t size, const char *fmt, va_list args);

#endif
